"""What scaler refuses to start with, and what its policy is told."""

from __future__ import annotations

import pytest

from rouse_common.config import ConfigError, load
from rouse_scaler.config import ScalerConfig


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--beta", "0.9"], "beta=0.9: want at most alpha"),
        (["--first-backoff-s", "70"], "first_backoff_s=70.0: want at most max_backoff_s"),
        (["--cluster-manager", "nowhere"], "cluster_manager=nowhere: want host:port"),
        (["--window-s", "0"], "want 1 to 60"),
    ],
)
def test_what_makes_no_sense_is_refused(argv: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(ScalerConfig, "scaler", argv, {})


def test_the_policy_gets_the_settings() -> None:
    environ = {"ROUSE_SCALER_ALPHA": "0.7", "ROUSE_SCALER_GRACE_S": "100"}
    settings = load(ScalerConfig, "scaler", ["--beta", "0.5", "--settle-s", "3"], environ).policy()
    assert (settings.alpha, settings.beta, settings.settle_s) == (0.7, 0.5, 3.0)
    # A stop within its grace is not taken for a forgotten one.
    assert settings.finish_s > 100
