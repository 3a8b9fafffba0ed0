"""Fixtures of every test: see rouse_testkit.fixtures."""

import os

from hypothesis import settings

pytest_plugins = ["rouse_testkit.fixtures"]

# The same examples at every run, so that a commit passes or fails for good. ROUSE_RANDOM=1 looks for new ones.
settings.register_profile("rouse", derandomize="ROUSE_RANDOM" not in os.environ, deadline=None)
settings.load_profile("rouse")
