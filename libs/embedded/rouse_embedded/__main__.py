"""`python -m rouse_embedded up`: the mesh on this machine, in the foreground."""

import sys

from rouse_embedded.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
