"""Everything the gateway talks to."""
