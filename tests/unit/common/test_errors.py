"""Errors keep their code, reason, message and names; what a peer sends cannot break the reader."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common import errors
from rouse_common.errors import Internal, NotFound, RouseError, from_rpc_error
from rouse_contracts.status import DETAILS_KEY, ErrorDetails, decode_details, encode_details, shortened

KINDS = list(RouseError.__subclasses__())
HEADER_LIMIT = 8192


class Failed(grpc.RpcError):  # type: ignore[misc]
    """A failed call as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Any], ...] = ()) -> None:
        super().__init__(details)
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._trailing


def test_there_is_one_class_a_status_code() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)
    missing = set(grpc.StatusCode) - set(codes)
    assert missing == {
        grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN, grpc.StatusCode.ABORTED, grpc.StatusCode.OUT_OF_RANGE
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@given(
    message=st.text(min_size=1, max_size=200),
    metadata=st.dictionaries(
        st.sampled_from(["function", "node", "reason", "message", "self", "retry_after_s"]), st.text(max_size=50)
    ),
    retry_after_s=st.none() | st.integers(0, 10_000).map(lambda n: n / 1000),
)
def test_what_is_encoded_is_decoded(
    kind: type[RouseError], message: str, metadata: dict[str, str], retry_after_s: float | None
) -> None:
    details = ErrorDetails("SOME_REASON", metadata, retry_after_s)
    sent = ((DETAILS_KEY, encode_details(kind.code.value[0], message, details)),)
    got = from_rpc_error(Failed(kind.code, message, sent))
    assert type(got) is kind
    assert (got.reason, got.message, got.metadata, got.retry_after_s) == (
        "SOME_REASON",
        message,
        metadata,
        retry_after_s,
    )


def test_metadata_may_have_any_name() -> None:
    error = NotFound("R", "words", reason="why", message="which", node=7)
    assert (error.reason, error.message, str(error)) == ("R", "words", "words")
    assert error.metadata == {"reason": "why", "message": "which", "node": "7"}


def test_a_plain_error_is_named_by_its_code() -> None:
    got = from_rpc_error(Failed(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert (type(got), got.reason, got.message) == (errors.Unavailable, "UNAVAILABLE", "connection refused")
    assert type(from_rpc_error(Failed(grpc.StatusCode.UNKNOWN, ""))) is Internal


@given(st.binary(max_size=200))
def test_details_that_are_no_details_are_ignored(junk: bytes) -> None:
    got = decode_details(Failed(grpc.StatusCode.INTERNAL, "", ((DETAILS_KEY, junk),)))
    assert got.reason


def test_broken_details_within_a_good_status_are_ignored() -> None:
    good = encode_details(5, "text", ErrorDetails("REASON", {"a": "b"}))
    broken = good.replace(b"REASON", b"\xff\xff\xff\xff\xff\xff")
    assert decode_details(Failed(grpc.StatusCode.NOT_FOUND, "", ((DETAILS_KEY, broken),))).reason == "NOT_FOUND"


def percent_encoded(text: str) -> int:
    return sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in text.encode(errors="replace"))


@given(
    st.text(max_size=50).map(lambda text: text * 200),
    st.dictionaries(
        st.text(st.characters(codec="ascii"), min_size=1, max_size=20), st.text(max_size=2000), max_size=20
    ),
)
def test_whatever_is_said_fits_the_headers(message: str, metadata: dict[str, str]) -> None:
    details = encode_details(13, message, ErrorDetails("REASON", metadata))
    assert percent_encoded(shortened(message)) + len(details) * 4 / 3 < HEADER_LIMIT - 256


def test_a_short_message_is_not_cut() -> None:
    assert shortened("tensor 'größe' is missing") == "tensor 'größe' is missing"
    assert shortened("a" * 5000) == "a" * 3000 + "…"
