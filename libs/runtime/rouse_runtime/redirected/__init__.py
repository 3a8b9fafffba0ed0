"""Redirected execution of a function: its PyTorch operations are carried out by the device's executor.

The function is loaded as for plain execution, on the host, with its weights in the model's range. Whatever session it
is given later only *names* what the executor has under the same addresses, so nothing is copied but the few tensors
that are not weights. When a session ends (eviction, another device, an executor that died) the host's tensors are still
there, and the next session starts from them.
"""

from rouse_runtime.redirected.device import Device, native_device
from rouse_runtime.redirected.handler import Redirected

__all__ = ["Device", "Redirected", "native_device"]
