"""Generates the Python stubs of proto/ into rouse_contracts/gen; run by set-up.

Two things differ from plain protoc output:

* modules live under ``rouse_contracts.gen``, because ``rouse`` is the name of the public SDK package;
* ``inference`` is registered in a descriptor pool of its own: tritonclient and kserve each register
  the same names in the default pool, and a second registration there would break the user's process.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
FINAL = Path(__file__).resolve().parent / "rouse_contracts" / "gen"
# Made beside the old code and then put in its place, for processes that import it meanwhile.
OUT = FINAL.with_name("gen.new")
PACKAGE = "rouse_contracts.gen"

PRIVATE_POOL = """\
\"\"\"A descriptor pool for the inference protocol alone; see generate.py.\"\"\"
from google.protobuf import descriptor_pool

_POOL = descriptor_pool.DescriptorPool()


def Default():  # the name that generated code calls
    return _POOL
"""


def main() -> int:
    from grpc_tools import protoc

    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    protos = sorted(str(p.relative_to(PROTO)) for p in PROTO.rglob("*.proto"))
    include = str(Path(protoc.__file__).parent / "_proto")
    outputs = [f"--{kind}_out={OUT}" for kind in ("python", "pyi", "grpc_python")]
    code: int = protoc.main(["protoc", f"-I{PROTO}", f"-I{include}", *outputs, *protos])
    if code != 0:
        print("generate: protoc failed; its message is above", file=sys.stderr)
        return code
    for path in [*OUT.rglob("*.py"), *OUT.rglob("*.pyi")]:
        text = path.read_text()
        text = re.sub(r"^from (rouse|inference)(\.| )", rf"from {PACKAGE}.\1\2", text, flags=re.M)
        if OUT / "inference" in path.parents:
            text = text.replace(
                "from google.protobuf import descriptor_pool as _descriptor_pool",
                f"from {PACKAGE}.inference import private_pool as _descriptor_pool",
            )
        path.write_text(text)
    for folder in [OUT, *(p for p in OUT.rglob("*") if p.is_dir())]:
        (folder / "__init__.py").write_text("")
    (OUT / "inference" / "private_pool.py").write_text(PRIVATE_POOL)
    old = FINAL.with_name("gen.old")
    shutil.rmtree(old, ignore_errors=True)
    if FINAL.exists():
        FINAL.rename(old)
    OUT.rename(FINAL)
    shutil.rmtree(old, ignore_errors=True)
    print(f"generated {len(protos)} contracts into {FINAL.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
