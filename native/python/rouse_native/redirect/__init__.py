"""The `rouse` device of PyTorch: tensors whose operators run in an executor process.

Importing this module registers the device and `torch.rouse`. A session is needed before the first tensor:

    from rouse_native import redirect
    with redirect.spawn_local():
        y = model.to("rouse")(x.to("rouse")).cpu()

Operators are sent without waiting; only reading a value waits (`.cpu()`, `.item()`, a shape that depends on data). An
operator that fails raises at the next wait, with its name; `blocking()` makes each call wait.
"""

from rouse_native.redirect.cache import load_templates, save_templates
from rouse_native.redirect.session import (
    Session,
    attach,
    blocking,
    connected,
    counters,
    disconnect,
    spawn_local,
    synchronize,
    tensor_at,
)
from rouse_native.redirect.setup import register

__all__ = [
    "Session",
    "attach",
    "blocking",
    "connected",
    "counters",
    "disconnect",
    "load_templates",
    "save_templates",
    "spawn_local",
    "synchronize",
    "tensor_at",
]

register()
