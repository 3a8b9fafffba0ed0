"""Models written for Triton's Python backend."""
