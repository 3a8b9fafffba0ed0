"""What a function's code holds between requests, as far as a request that changes it is to be no tape."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rouse_contracts.functions import FunctionSpec, FunctionVersion
from rouse_contracts.repository import Artefact
from rouse_runtime.handlers import Source
from rouse_runtime.handlers.python import PythonHandler

MODULE = "kept_by_a_test"
CODE = """
calls = 0
seen = []

class Function:
    total = 0

    def __init__(self):
        self.own = 0

    def predict(self, inputs):
        global calls
        what = inputs["what"]
        if what == "global":
            calls += 1
        elif what == "list":
            seen.append(1)
        elif what == "class":
            type(self).total += 1
        elif what == "object":
            self.own += 1
        return {}
"""


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[PythonHandler]:
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    weights: Any = None
    version = FunctionVersion(spec=FunctionSpec(handler=f"{MODULE}:Function"))
    yield PythonHandler(Source(version, Artefact(), tmp_path, weights))
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("nothing", ""), ("global", f"{MODULE}.calls"), ("list", f"{MODULE}.seen"), ("class", "Function.total"),
        ("object", "own"),
    ],
)  # fmt: skip
def test_what_a_request_changes_is_seen(handler: PythonHandler, what: str, name: str) -> None:
    before = handler.kept()
    inputs: Any = {"what": what}
    request: Any = None
    handler.predict(inputs, request)
    after = handler.kept()
    assert before.keys() == after.keys()
    changed = {key for key in before if before[key][0] is not after[key][0] or before[key][1] != after[key][1]}
    assert changed == ({name} if name else set())
