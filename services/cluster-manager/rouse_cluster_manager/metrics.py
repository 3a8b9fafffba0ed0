"""What cluster-manager counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

MODELS_MANAGED = Gauge("rouse_models_managed", "Functions that are deployed.")
INSTANCES = Gauge("rouse_instances", "Live instances.", ["state"])
NODES = Gauge("rouse_nodes", "Nodes.", ["state"])
ROUTING_GENERATION = Gauge("rouse_routing_generation", "Generation of the routing table that was built last.")
ROUTING_BUILD = Histogram("rouse_routing_build_seconds", "Time to build a routing table.")
ROUTING_BYTES = Gauge("rouse_routing_size_bytes", "Size of the routing table that was built last.")
ACCESS_GENERATION = Gauge("rouse_access_generation", "Generation of the access table that was built last.")
ACCESS_BUILD = Histogram("rouse_access_build_seconds", "Time to build an access table.")
ACCESS_BYTES = Gauge("rouse_access_size_bytes", "Size of the access table that was built last.")
PUBLISH_FAILURES = Counter("rouse_publish_failures_total", "Messages that NATS did not take at once.", ["what"])
EVENTS_DROPPED = Counter("rouse_events_dropped_total", "Events not published because NATS was away for too long.")
USAGE_RECORDS = Counter("rouse_usage_records_total", "Usage records, counted or known already.", ["outcome"])
INSTANCE_ENDS = Counter("rouse_instance_ends_total", "Instances that ended.", ["state"])
PLACEMENT_REFUSALS = Counter("rouse_placement_refusals_total", "Instances that no node could take.", ["reason"])
DELETIONS = Gauge("rouse_deletions_pending", "Functions whose deletion has begun and not ended.")
SERVING = Gauge("rouse_cluster_manager_serving", "1 while the database is reached and this process is its writer.")
