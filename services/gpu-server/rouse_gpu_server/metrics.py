"""Metrics of gpu-server, in the words that ModelMesh made common."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from rouse_common.metrics import LATENCY_BUCKETS_S

AGE_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200)

ACQUIRES = Counter("rouse_device_acquires_total", "Requests for a device, by how they ended.", ["outcome"])
WAIT = Histogram("rouse_device_wait_seconds", "From a request for a device to its lease.", buckets=LATENCY_BUCKETS_S)
WAITING = Gauge("rouse_device_waiting", "Requests that wait for a device.")
CACHE_MISS = Counter("rouse_cache_miss_total", "Requests whose model was on no device when they came.", ["function"])
LOADMODEL = Histogram(
    "rouse_loadmodel_seconds", "Swapping a model in, evictions included.", ["device"], buckets=LATENCY_BUCKETS_S
)
LOADMODEL_BYTES = Counter("rouse_loadmodel_bytes_total", "Bytes swapped in.", ["device"])
LOADMODEL_FAILURE = Counter("rouse_loadmodel_failure_total", "Swaps that failed.", ["device", "reason"])
LOADING_QUEUE_DELAY = Histogram(
    "rouse_swap_start_delay_seconds",
    "From the decision to swap in to the start of the copy.",
    ["device"],
    buckets=LATENCY_BUCKETS_S,
)
MODEL_EVICTED = Counter("rouse_model_evicted_total", "Models evicted.", ["device"])
AGE_AT_EVICTION = Histogram(
    "rouse_age_at_eviction_seconds", "Time since the last use of what is evicted.", ["device"], buckets=AGE_BUCKETS_S
)
MODELS_LOADED = Gauge("rouse_models_loaded", "Models on the device.", ["device"])
INSTANCE_CAPACITY = Gauge("rouse_instance_capacity_bytes", "Memory of the device.", ["device"])
INSTANCE_USED = Gauge("rouse_instance_used_bytes", "Mapped and reserved memory of the device.", ["device"])
DEVICE_BUSY = Counter("rouse_device_busy_seconds_total", "Time that executors say they worked.", ["device"])
TIER_CAPACITY = Gauge("rouse_tier_capacity_bytes", "Size of a tier of the node.", ["tier"])
TIER_USED = Gauge("rouse_tier_used_bytes", "Use of a tier of the node.", ["tier"])
TIER_DROPPED = Counter("rouse_tier_dropped_total", "What left a tier to make room.", ["tier"])
STAGED = Histogram(
    "rouse_stage_seconds", "Bringing an artefact to host memory.", ["outcome"], buckets=LATENCY_BUCKETS_S
)
STATES_FAILED = Counter("rouse_states_failed_total", "Materialised states that could not be kept.", ["step"])
EXECUTORS_ENDED = Counter("rouse_executors_ended_total", "Executors that had to be ended.", ["reason"])
