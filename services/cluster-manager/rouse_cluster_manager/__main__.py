"""Runs cluster-manager."""

from __future__ import annotations

import sys

from rouse_cluster_manager.app import ClusterManager
from rouse_cluster_manager.config import ClusterManagerConfig
from rouse_common import lifecycle


def main() -> int:
    return lifecycle.main("cluster-manager", ClusterManagerConfig, ClusterManager)


if __name__ == "__main__":
    sys.exit(main())
