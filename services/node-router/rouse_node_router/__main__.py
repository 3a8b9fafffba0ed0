"""Starts node-router."""

from __future__ import annotations

import sys

from rouse_common import lifecycle
from rouse_node_router.app import NodeRouter
from rouse_node_router.config import NodeRouterConfig


def main() -> int:
    return lifecycle.main("node-router", NodeRouterConfig, NodeRouter)


if __name__ == "__main__":
    sys.exit(main())
