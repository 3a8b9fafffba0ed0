"""`python -m rouse_runtime`: one function instance, started by the coordinator."""

import sys

from rouse_runtime.process import main

if __name__ == "__main__":
    sys.exit(main())
