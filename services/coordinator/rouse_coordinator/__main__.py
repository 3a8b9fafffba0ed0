"""`rouse-coordinator`: life of the function instances of a node."""

import sys

from rouse_common import lifecycle
from rouse_coordinator.app import CoordinatorApp
from rouse_coordinator.config import CoordinatorConfig


def main() -> int:
    return lifecycle.main("coordinator", CoordinatorConfig, CoordinatorApp)


if __name__ == "__main__":
    sys.exit(main())
