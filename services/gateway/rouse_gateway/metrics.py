"""Metrics of the gateway; the words are those of ModelMesh where it has one."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from rouse_common.metrics import LATENCY_BUCKETS_S

UNKNOWN = "(unknown)"

REQUESTS = Counter("rouse_requests_total", "Inference requests answered, by status code.", ["function", "code"])
LATENCY = Histogram(
    "rouse_request_latency_seconds", "Time to answer an inference.", ["function"], buckets=LATENCY_BUCKETS_S
)
COLD_REQUESTS = Counter("rouse_cold_requests_total", "Requests that found no ready instance.", ["function"])
COLD_STARTS = Histogram(
    "rouse_cold_start_seconds",
    "Time from waking a function until it is ready.",
    ["function"],
    buckets=LATENCY_BUCKETS_S,
)
HELD = Gauge("rouse_held_requests", "Requests held until their function is ready.")
REROUTED = Counter("rouse_rerouted_requests_total", "Requests that a node turned away unexecuted.", ["reason"])
TABLE_GENERATION = Gauge("rouse_routing_table_generation", "Generation of the routing table in use.")
TABLE_FUNCTIONS = Gauge("rouse_routing_table_functions", "Functions in the routing table in use.")
HTTP_REQUESTS = Counter("rouse_http_requests_total", "HTTP requests answered, by status.", ["route", "status"])
HTTP_LATENCY = Histogram(
    "rouse_http_latency_seconds", "Time to answer an HTTP request.", ["route"], buckets=LATENCY_BUCKETS_S
)
HTTP_IN_FLIGHT = Gauge("rouse_http_in_flight", "HTTP requests being answered.")

ACCESS_GENERATION = Gauge("rouse_access_table_generation", "Generation of the access table in use.")
REFUSED_CALLERS = Counter("rouse_refused_callers_total", "Requests of callers that were refused.", ["reason"])
REFUSED_BY_LIMIT = Counter("rouse_limited_requests_total", "Requests refused for a quota or limit.", ["limit"])
LIMITS_ALONE = Gauge("rouse_limits_alone", "1 while limits are not shared between gateways: Redis is away.")
REPEATED = Counter("rouse_repeated_requests_total", "Requests whose key was known, by what they got.", ["outcome"])

# Looking a label up costs more than counting.
_ANSWERED: dict[str, dict[str, Counter]] = {}
_LATENCY: dict[str, Histogram] = {}
_BY_FUNCTION = (LATENCY, COLD_REQUESTS, COLD_STARTS)


def answered(function: str, code: str, seconds: float) -> None:
    """Counts a request that was answered."""
    codes = _ANSWERED.setdefault(function, {})
    if code not in codes:
        codes[code] = REQUESTS.labels(function, code)
    if function not in _LATENCY:
        _LATENCY[function] = LATENCY.labels(function)
    codes[code].inc()
    _LATENCY[function].observe(seconds)


def forget(function: str) -> None:
    """Drops what is kept for a function that is gone, so that memory does not grow with every deployment."""
    for metric in _BY_FUNCTION:
        metric.remove_by_labels({"function": function})
    _ANSWERED.pop(function, None)
    _LATENCY.pop(function, None)
    REQUESTS.remove_by_labels({"function": function})
