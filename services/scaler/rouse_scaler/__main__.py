"""Starts scaler."""

from __future__ import annotations

import sys

from rouse_common import lifecycle
from rouse_scaler.app import Scaler
from rouse_scaler.config import ScalerConfig


def main() -> int:
    return lifecycle.main("scaler", ScalerConfig, Scaler)


if __name__ == "__main__":
    sys.exit(main())
