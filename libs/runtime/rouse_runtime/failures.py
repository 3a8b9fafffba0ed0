"""What went wrong in user code, in one line that its author can act on."""

from __future__ import annotations

import traceback
from pathlib import Path

MAX_TEXT = 600


class LoadError(Exception):
    """A function that cannot be loaded; the text is shown to its owner as it is."""


class BadResult(Exception):
    """A result that does not match the function's signature; names the tensor."""

    def __init__(self, tensor: str, message: str) -> None:
        super().__init__(message)
        self.tensor = tensor


class UnknownOutput(Exception):
    """A caller asked for an output that the function does not have."""


class ExecutorLost(Exception):
    """The executor that the function's operations ran in has ended, whatever the function itself made of it."""


def describe(error: BaseException, folder: str) -> str:
    """`ValueError: text (at model.py:12)`: type, message, and the line of the user's own code, if any is involved.

    Nothing of the frames but file and line is read, so no values of local variables can get out.
    """
    where = _place(error, Path(folder))
    message = _message(error)
    text = message if isinstance(error, LoadError) else f"{type(error).__name__}: {message}"
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT] + "…"
    return f"{text} (at {where})" if where else text


def _message(error: BaseException) -> str:
    try:
        if isinstance(error, SyntaxError):
            return error.msg
        if isinstance(error, KeyError):
            return f"missing key {error}"
        return " ".join(str(error).split()) or "no message"
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may do anything
        return f"its text cannot be shown ({type(broken).__name__} in __str__)"


def _place(error: BaseException, folder: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        inside = _inside(error.filename, folder)
        if inside:
            return f"{inside}:{error.lineno}"
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        inside = _inside(frame.f_code.co_filename, folder)
        if inside:
            place = f"{inside}:{line}"
    return place


def _inside(filename: str, folder: Path) -> str:
    try:
        return str(Path(filename).relative_to(folder))
    except ValueError:
        return ""
