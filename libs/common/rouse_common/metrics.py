"""Prometheus metrics of a service: the RPC metrics every service has, and the endpoint to scrape."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from rouse_common.config import parse_address

# From half a millisecond to a minute: a warm call of a tiny model up to a cold start.
LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)

RPC_REQUESTS = Counter("rouse_rpc_requests_total", "RPCs answered.", ["method", "code"])
RPC_LATENCY = Histogram("rouse_rpc_latency_seconds", "Time to answer an RPC.", ["method"], buckets=LATENCY_BUCKETS_S)
RPC_IN_FLIGHT = Gauge("rouse_rpc_in_flight", "RPCs being answered.", ["method"])


def serve(listen: str) -> None:
    """Serves /metrics from a thread of its own; nothing where `listen` is empty."""
    if listen:
        host, port = parse_address(listen, "metrics_listen")
        start_http_server(port, addr=host)
