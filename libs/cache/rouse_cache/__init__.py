"""Redis: what may be lost and must be fast and shared."""
