"""Fixtures of every test: see rouse_testkit.fixtures."""

pytest_plugins = ["rouse_testkit.fixtures"]
