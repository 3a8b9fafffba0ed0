"""What runs inside a function instance: loading user code and weights, executing requests.

Functions may name what they are given: `from rouse_runtime import Context, Request`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rouse_runtime.context import BindReport, Context
    from rouse_runtime.request import Request, Sequence

__all__ = ["BindReport", "Context", "Request", "Sequence"]


def __getattr__(name: str) -> Any:
    """Imported on first use: an instance starts without what it does not need yet."""
    if name in __all__:
        from importlib import import_module

        module = "request" if name in ("Request", "Sequence") else "context"
        return getattr(import_module(f"rouse_runtime.{module}"), name)
    raise AttributeError(f"module 'rouse_runtime' has no attribute '{name}'")
