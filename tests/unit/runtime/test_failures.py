from __future__ import annotations

from pathlib import Path

import pytest

from rouse_runtime.failures import MAX_TEXT, LoadError, describe


def raised(code: str, folder: Path, name: str = "model.py") -> BaseException:
    with pytest.raises(BaseException) as caught:
        exec(compile(code, folder / name, "exec"), {})
    return caught.value


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise ValueError('no')", "ValueError: no (at model.py:1)"),
        ("\n\ndef f():\n  1 / 0\nf()", "ZeroDivisionError: division by zero (at model.py:4)"),
        ("import json\njson.loads('{')", "(at model.py:2)"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines (at model.py:1)"),
        ("raise ValueError", "ValueError: no message (at model.py:1)"),
        ("class E(Exception):\n  def __str__(self): raise KeyError\nraise E", "E: its text cannot be shown (KeyError"),
        ("raise SystemExit(4)", "SystemExit: 4 (at model.py:1)"),
    ],
)
def test_type_text_and_the_users_own_line(tmp_path: Path, code: str, text: str) -> None:
    assert text in describe(raised(code, tmp_path), str(tmp_path))


def test_values_of_variables_do_not_get_out(tmp_path: Path) -> None:
    assert "hidden" not in describe(raised("secret = 'hidden'\nraise ValueError('x')", tmp_path), str(tmp_path))


def test_long_texts_are_cut(tmp_path: Path) -> None:
    text = describe(raised("raise ValueError('x' * 100_000)", tmp_path), str(tmp_path))
    assert len(text) < MAX_TEXT + 50
    assert text.endswith("… (at model.py:1)")


def test_our_own_load_errors_need_no_type(tmp_path: Path) -> None:
    assert describe(LoadError("there is no such file"), str(tmp_path)) == "there is no such file"
