"""Metrics of comm-broker."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from rouse_common.metrics import LATENCY_BUCKETS_S

JOBS = Gauge("rouse_broker_jobs", "Jobs that have a channel.")
EXPIRED = Counter("rouse_broker_jobs_expired_total", "Jobs deleted because their lifetime was over.")
SENT = Counter("rouse_broker_messages_sent_total", "Messages stored in queues.")
SENT_BYTES = Counter("rouse_broker_sent_bytes_total", "Bytes of payload stored in queues.")
RECEIVED = Counter("rouse_broker_messages_received_total", "Messages taken out of queues.")
OBJECT_BYTES = Counter("rouse_broker_object_bytes_total", "Bytes of objects stored and read.", ["direction"])
BARRIER_WAIT = Histogram(
    "rouse_broker_barrier_wait_seconds", "Time a worker waited at a barrier.", buckets=LATENCY_BUCKETS_S
)
ROUND_TRIP = Gauge("rouse_broker_round_trip_seconds", "Round trip through a stream at the last check.")
