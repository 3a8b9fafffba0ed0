"""Writes the golden traces anew with what the policies decide today. The diff is what somebody has to agree with."""

from __future__ import annotations

import json
from pathlib import Path

from rouse_policy import golden

GOLDEN = Path(__file__).with_name("golden")


def main() -> None:
    for path in sorted(GOLDEN.glob("*.jsonl")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            entry = json.loads(line)
            entry["decision"] = golden.replay(line).decided
            lines[number] = json.dumps(entry, separators=(",", ":"), allow_nan=False)
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
