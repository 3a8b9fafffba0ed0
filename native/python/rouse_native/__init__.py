"""The native core for Python: thin typed wrappers over what is built from native/.

`make setup` builds it where the machine has a C++20 compiler. Where it is not built, `built()` is false and importing a
part of it raises ImportError with what to do; the mesh then executes in plain PyTorch.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def built() -> bool:
    """Whether the native parts are beside this file."""
    return any(_HERE.glob("*.so"))


def executor_program() -> Path:
    """The executor, a program without Python. Raises FileNotFoundError where it is not built."""
    program = _HERE / "bin" / "rouse-executor"
    if not program.exists():
        raise FileNotFoundError(f"{program} is not built; `make setup` builds it where a C++20 compiler is")
    return program
