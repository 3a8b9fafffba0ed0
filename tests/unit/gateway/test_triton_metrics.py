"""Metrics by Triton's names are what the statistics say."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from rouse_contracts import inference
from rouse_gateway.triton_metrics import FIGURES, InferenceCollector


def test_every_figure_has_its_model_and_version() -> None:
    row = inference.ModelStatistics(name="f", version="2", inference_count=12, execution_count=3)
    row.inference_stats.success.count, row.inference_stats.success.ns = 4, 5_000_000
    row.inference_stats.queue.ns = 1500
    collector = InferenceCollector()
    collector.rows = (row,)
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    for line in (
        'nv_inference_request_success{model="f",version="2"} 4.0',
        'nv_inference_request_failure{model="f",version="2"} 0.0',
        'nv_inference_count{model="f",version="2"} 12.0',
        'nv_inference_exec_count{model="f",version="2"} 3.0',
        'nv_inference_request_duration_us{model="f",version="2"} 5000.0',
        'nv_inference_queue_duration_us{model="f",version="2"} 1.5',
    ):
        assert line in text.splitlines()
    assert all(f"nv_inference_{name}{{" in text for name, _, _ in FIGURES)
