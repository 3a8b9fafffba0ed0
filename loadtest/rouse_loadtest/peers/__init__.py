"""Other servers under the same load, each installed at pinned versions into an environment of its own."""
