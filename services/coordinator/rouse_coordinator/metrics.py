"""Metrics of the coordinator, in ModelMesh's words."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

LOAD_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 12, 20, 40, 80, 160)

INSTANCES = Gauge("rouse_node_instances", "Function instances of this node by state.", ["state"])
INSTANCE_CAPACITY = Gauge("rouse_instance_capacity", "Instances that may run on this node.")
LOAD_TIME = Histogram(
    "rouse_instance_start_seconds", "From the request to start an instance until it serves.", buckets=LOAD_BUCKETS_S
)
LOAD_FAILURES = Counter("rouse_instance_start_failures_total", "Instances that did not come to serve.")
INSTANCES_LOST = Counter("rouse_instances_lost_total", "Instances whose process ended while it served.")
