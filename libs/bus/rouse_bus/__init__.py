"""NATS for the services of a mesh: messages, streams, objects. No type of the client library leaves this package."""

from rouse_bus.bus import Bus, Subscription

__all__ = ["Bus", "Subscription"]
