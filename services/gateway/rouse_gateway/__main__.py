"""Starts the gateway."""

from __future__ import annotations

import sys

from rouse_common import lifecycle
from rouse_gateway.app import GatewayApp
from rouse_gateway.config import GatewayConfig


def main() -> int:
    return lifecycle.main("gateway", GatewayConfig, GatewayApp)


if __name__ == "__main__":
    sys.exit(main())
