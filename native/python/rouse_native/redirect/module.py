"""`torch.rouse`: what PyTorch and libraries ask of a device's module."""

from types import TracebackType

import torch

from rouse_native import _redirect

__all__ = [
    "current_device",
    "default_generators",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_rng_state",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "set_device",
    "set_rng_state",
    "synchronize",
]


# What torch.utils.checkpoint asks before it keeps the random numbers' state for the recomputation.
_initialized = True


class device:  # noqa: N801 - PyTorch's own name for it
    """`with torch.rouse.device(0):` - there is one device, so that nothing changes."""

    def __init__(self, index: object) -> None:
        self.idx = _index(index)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _index(which: object) -> int:
    if isinstance(which, str | torch.device):
        which = torch.device(which).index
    found = which or 0
    if found not in (-1, 0):
        raise ValueError(f"there is one rouse device, rouse:0; rouse:{found} is not there")
    return 0


def init() -> None:
    """Nothing to do: importing rouse_native.redirect registered the device."""


def is_initialized() -> bool:
    return True


def is_available() -> bool:
    """Whether there is a session with an executor that is alive."""
    return bool(_redirect.alive())


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(which: object) -> None:
    _index(which)


def synchronize(which: object = None) -> None:
    """Waits for all that was sent; raises the error of an operator that failed."""
    _index(which)
    _redirect.synchronize()


def empty_cache() -> None:
    """Nothing to do: the executor keeps freed memory for the session."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What torch.autocast("rouse") takes."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def default_generators() -> tuple[torch.Generator]:
    return (_redirect.default_generator(),)


def manual_seed(seed: int) -> None:
    """Seeds the session's random numbers: the same as the CPU's for the same seed. Without a session, nothing."""
    if _redirect.connected():
        _redirect.default_generator().manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> int:
    return int(_redirect.default_generator().seed())


def initial_seed() -> int:
    return int(_redirect.default_generator().initial_seed())


def get_rng_state(which: object = None) -> torch.Tensor:
    """The session's generator's state, a CPU ByteTensor as torch.get_rng_state() gives."""
    _index(which)
    state: torch.Tensor = _redirect.default_generator().get_state()
    return state


def set_rng_state(state: torch.Tensor, which: object = None) -> None:
    _index(which)
    _redirect.default_generator().set_state(state)
