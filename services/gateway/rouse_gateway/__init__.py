"""The front door: inference protocol, management API, admission, routing."""
