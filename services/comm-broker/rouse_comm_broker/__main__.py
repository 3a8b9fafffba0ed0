"""Starts comm-broker."""

from __future__ import annotations

import sys

from rouse_comm_broker.app import CommBrokerApp
from rouse_comm_broker.config import CommBrokerConfig
from rouse_common import lifecycle


def main() -> int:
    return lifecycle.main("comm-broker", CommBrokerConfig, CommBrokerApp)


if __name__ == "__main__":
    sys.exit(main())
