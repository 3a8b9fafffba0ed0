"""Subjects of the mesh."""

from __future__ import annotations

import pytest

from rouse_bus import subjects


def test_subjects_have_their_agreed_names() -> None:
    assert subjects.ROUTING == "rouse.routing"
    assert subjects.event("function.deployed") == "rouse.events.function.deployed"


@pytest.mark.parametrize("kind", ["", "Function", "a..b", "a b", "a.*", ">", "a\r\nPUB x"])
def test_an_event_kind_cannot_widen_the_subject(kind: str) -> None:
    with pytest.raises(ValueError, match="event kind"):
        subjects.event(kind)
