"""Channels, objects and barriers of distributed jobs over NATS."""
