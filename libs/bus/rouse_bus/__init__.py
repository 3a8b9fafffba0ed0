"""NATS for the services of a mesh: messages, streams, objects. No type of the client library leaves this package."""

from rouse_bus.bus import Bus, Subscription
from rouse_bus.following import Following

__all__ = ["Bus", "Following", "Subscription"]
