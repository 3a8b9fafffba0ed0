"""URLs of NATS: what they say, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rouse_bus.servers import Servers


def test_servers_are_shown_without_their_passwords() -> None:
    found = Servers.parse("nats://u:secret@a:4223,nats://u:secret@b")
    assert (found.shown, found.tls) == ("a:4223,b:4222", False)
    assert found.urls == ("nats://u:secret@a:4223", "nats://u:secret@b")
    assert "secret" not in repr(found)
    assert Servers.parse("localhost").shown == "localhost:4222"
    assert found.context() is None


def test_a_tls_url_names_its_files() -> None:
    found = Servers.parse("tls://u:p@a:4222,tls://b?tls_ca=/x/ca.crt&tls_cert=c&tls_key=k")
    assert found.urls == ("tls://u:p@a:4222", "tls://b")
    assert dict(found.files) == {"tls_ca": Path("/x/ca.crt"), "tls_cert": Path("c"), "tls_key": Path("k")}
    with pytest.raises(OSError):
        found.context()
    machine = Servers.parse("tls://a").context()
    assert machine is not None
    assert machine.check_hostname


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://a", "nats://"),
        ("nats://u:secret@a,tls://b", "all servers of one kind"),
        ("nats://", "want a URL"),
        ("nats://a?tls_ca=x", "tls://"),
        ("tls://u:secret@a?tls_cert=x", "both or none"),
        ("tls://u:secret@a?verify=no", "verify is not known"),
    ],
)
def test_what_is_no_such_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        Servers.parse(url)
    assert "secret" not in str(refused.value)
