"""Artefacts by content hash, inspected and stored."""
