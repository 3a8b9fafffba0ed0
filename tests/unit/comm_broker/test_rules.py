"""What jobs, messages, keys and barriers may be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_comm_broker import rules
from rouse_common.errors import InvalidArgument
from rouse_contracts.broker import Job, Message


def job(**fields: Any) -> Job:
    return Job(**{"job_id": "j", "workers": 4, **fields})


def test_defaults() -> None:
    full = rules.complete(job())
    assert (full.queue_limit_bytes, full.object_limit_bytes, full.lifetime.seconds) == (64 << 20, 256 << 20, 3600)
    given = job(queue_limit_bytes=5, object_limit_bytes=6)
    given.lifetime.FromSeconds(7)
    assert rules.complete(given) == given


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"workers": 1025}, "1 to 1024"),
        ({"queue_limit_bytes": 1 << 50}, "queue_limit"),
        ({"object_limit_bytes": 1 << 50}, "object_limit"),
        ({"job_id": "a/b"}, "job id"),
        ({"job_id": "é"}, "job id"),
    ],
)
def test_bad_jobs(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        rules.complete(job(**fields))
    assert caught.value.reason == "BAD_JOB"


@pytest.mark.parametrize("seconds", [-1, 8 * 86_400])
def test_bad_lifetimes(seconds: int) -> None:
    wrong = job()
    wrong.lifetime.FromSeconds(seconds)
    with pytest.raises(InvalidArgument, match="lifetime"):
        rules.complete(wrong)


@pytest.mark.parametrize("key", ["a", "a/b/c", "layer 7/rows", "ü" * 128])
def test_good_keys(key: str) -> None:
    assert rules.check_key(key) == key


@pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", "a\nb", "a\0b", "ü" * 129])
def test_bad_keys(key: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        rules.check_key(key)
    assert caught.value.reason == "BAD_KEY"
    assert caught.value.message.isprintable()


def test_messages() -> None:
    rules.check_message(job(), Message(source=3, tag="x" * 128, payload=bytes(100)), 1000)
    for message, reason in (
        (Message(source=4), "BAD_RANK"),
        (Message(tag="é" * 65), "BAD_TAG"),
        (Message(payload=bytes(1000)), "MESSAGE_TOO_LARGE"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            rules.check_message(job(), message, 1000)
        assert caught.value.reason == reason


@given(st.sets(st.integers(0, 60)))
def test_ranges_say_exactly_the_ranks(ranks: set[int]) -> None:
    text = rules.in_ranges(ranks)
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(ranks)


def test_ranges_are_short() -> None:
    assert rules.in_ranges({0, 2, 3, 4, 7}) == "0,2-4,7"
    assert rules.in_ranges(set(range(1024))) == "0-1023"
    assert rules.in_ranges(set()) == ""
