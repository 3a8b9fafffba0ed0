"""Recorded decisions are made again, and come out the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.decision_log import DecisionLog
from rouse_policy import golden, queueing
from rouse_policy.golden import GoldenError, decode, encode, line, replay

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.jsonl"))
ANY = st.floats(allow_nan=False)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_policies_decide_as_they_did(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) >= 40
    for number, text in enumerate(lines):
        again = replay(text)
        assert again.decided == again.recorded, (
            f"{path.name}:{number + 1}: {again.policy} decides otherwise now; where that is meant, run "
            "`.venv/bin/python -m tests.unit.policy.bless` and say in the commit why"
        )


@given(
    st.lists(st.builds(queueing.Head, st.text(max_size=5), ANY, ANY, ANY, ANY), max_size=5).map(tuple), ANY,
    st.sampled_from(list(queueing.Order)),
)  # fmt: skip
def test_what_is_written_is_read_again(heads: tuple[queueing.Head, ...], now: float, order: queueing.Order) -> None:
    snapshot = queueing.Snapshot(heads, 1, ((1.0, "a"),), 2)
    settings = queueing.Settings(order=order)
    through = json.loads(json.dumps(encode(snapshot), allow_nan=False))
    assert decode(queueing.Snapshot, through) == snapshot
    assert decode(queueing.Settings, json.loads(json.dumps(encode(settings)))) == settings
    decision, _ = queueing.decide(snapshot, queueing.State(), settings, now)
    assert replay(line("queueing", snapshot, queueing.State(), settings, now, decision)).same


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"policy":"no"}', '{"policy":"queueing","now":1,"snapshot":3}'])
def test_what_is_no_decision_is_refused(text: str) -> None:
    with pytest.raises(GoldenError):
        replay(text)


def test_every_recorded_policy_is_known() -> None:
    named = {json.loads(text)["policy"] for path in GOLDEN for text in path.read_text().splitlines()}
    assert named == set(golden.POLICIES)


def test_a_decision_log_ends_at_its_size(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    for _ in range(2):
        log = DecisionLog(path, max_bytes=25)
        for text in ("12345678", "too long for what is left over", "1"):
            log.write(text)
        log.close()
    assert path.read_text() == "12345678\n12345678\n"
