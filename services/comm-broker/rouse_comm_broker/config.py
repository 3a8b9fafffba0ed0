"""Settings of comm-broker."""

from __future__ import annotations

from dataclasses import dataclass

from rouse_common.config import ServiceConfig, option


@dataclass(frozen=True)
class CommBrokerConfig(ServiceConfig):
    """What comm-broker can be told, beside what every service can."""

    nats: str = option("nats://127.0.0.1:4222", "NATS, which carries the jobs' messages and objects, URL")
    max_jobs: int = option(256, "jobs at once", low=1, high=10_000)
    expiry_period_s: float = option(5.0, "how often jobs past their lifetime are deleted, seconds", low=0.05, high=3600)
