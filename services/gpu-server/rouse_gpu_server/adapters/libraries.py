"""Shared libraries of a device's driver, loaded at run time, so that one build serves machines with and without it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from rouse_common.errors import FailedPrecondition

Function = Any


def load(library: str, functions: Sequence[str]) -> dict[str, Function]:
    """The functions of a library, each of which gives an int. Raises FailedPrecondition DRIVER_MISSING."""
    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        raise FailedPrecondition(
            "DRIVER_MISSING", f"{library} cannot be loaded: {error}; install the devices' driver", library=library
        ) from error
    found: dict[str, Function] = {}
    for name in functions:
        try:
            found[name] = getattr(loaded, name)
        except AttributeError as error:
            raise FailedPrecondition(
                "DRIVER_MISSING", f"{library} has no {name}; install a newer driver", library=library
            ) from error
        found[name].restype = ctypes.c_int
    return found
