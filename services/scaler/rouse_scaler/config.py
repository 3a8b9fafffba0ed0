"""Settings of scaler."""

from __future__ import annotations

from dataclasses import dataclass

from rouse_common.config import ConfigError, ServiceConfig, option, parse_address
from rouse_policy import scaling, spreading


@dataclass(frozen=True)
class ScalerConfig(ServiceConfig):
    """What scaler can be told, beside what every service can."""

    cluster_manager: str = option("127.0.0.1:7001", "address of cluster-manager, host:port")
    redis: str = option("redis://127.0.0.1:6379/0", "Redis, which arrivals are read from, URL")
    period_s: float = option(1.0, "time between two looks at all functions, seconds", low=0.05, high=600)
    window_s: int = option(10, "arrivals are averaged over so many seconds", low=1, high=60)
    alpha: float = option(0.8, "scale out above this share of what the instances serve", low=0.01, high=1)
    beta: float = option(0.6, "scale in below this share of what would be left", low=0.01, high=1)
    settle_s: float = option(10.0, "scale in once it was called for so long, seconds", low=0, high=3600)
    retire_s: float = option(30.0, "how long a replaced version is kept, seconds", low=0, high=86_400)
    first_backoff_s: float = option(1.0, "pause before the first restart of what failed, seconds", low=0.01, high=600)
    max_backoff_s: float = option(60.0, "longest pause before a restart, seconds", low=0.01, high=3600)
    ahead_share: float = option(
        0.5, "part of a node's devices that one function may keep busy at its peak before its weights are brought to "
        "one more node ahead of the next burst", low=0.01, high=1,
    )  # fmt: skip
    ahead_half_life_s: float = option(600.0, "after so long a peak of demand counts half, seconds", low=1, high=86_400)
    grace_s: float = option(30.0, "time a stopped instance has for what it executes, seconds", low=0, high=3600)

    def validate(self) -> None:
        """Raises ConfigError naming the setting that cannot be used."""
        parse_address(self.cluster_manager, "cluster_manager")
        if self.beta > self.alpha:
            raise ConfigError(f"beta={self.beta}: want at most alpha, which is {self.alpha}")
        if self.first_backoff_s > self.max_backoff_s:
            raise ConfigError(f"first_backoff_s={self.first_backoff_s}: want at most max_backoff_s")

    def policy(self) -> scaling.Settings:
        return scaling.Settings(
            alpha=self.alpha,
            beta=self.beta,
            settle_s=self.settle_s,
            first_backoff_s=self.first_backoff_s,
            max_backoff_s=self.max_backoff_s,
            # A stop that is under way is not told again.
            finish_s=self.grace_s + 15.0,
            retire_s=self.retire_s,
        )

    def spreading(self) -> spreading.Settings:
        return spreading.Settings(half_life_s=self.ahead_half_life_s, share=self.ahead_share)
