"""Arrival statistics; instances up, down, to zero and back."""
