"""What is measured, as Prometheus' own parser reads it."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
from prometheus_client.parser import text_string_to_metric_families

from arr_stream.live.metrics import LiveMetrics, StreamMetrics
from arr_stream.sources.base import SourceStats
from arr_stream.types import Frame
from tests.choices import choose

BLACK = np.zeros((64, 96, 3), np.uint8)


def values(metrics: LiveMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = metrics.render(1, 4)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(metrics: LiveMetrics, name: str, **labels: str) -> float | None:
    return values(metrics).get((f"arr_stream_{name}", tuple(sorted(labels.items()))))


def test_frames_are_counted_and_measured() -> None:
    metrics = LiveMetrics()
    metrics.add("door")
    consumer = StreamMetrics(metrics, "door")
    for index in range(6):
        frame = Frame(index, index / 30, BLACK, captured_seconds=time.monotonic() - 0.025)
        consumer.consume(frame, choose(frame, quality=2, latency_ms={"flow": 1.5, "total": 8.0}))
    assert value(metrics, "frames_total", stream="door") == 6
    assert value(metrics, "keyframes_total", stream="door", reason="first") == 1
    assert value(metrics, "keyframes_total", stream="door", reason="interval") == 1
    assert value(metrics, "stage_seconds_count", stream="door", stage="flow") == 6
    assert value(metrics, "stage_seconds_bucket", stream="door", stage="flow", le="0.001") == 0
    assert value(metrics, "stage_seconds_bucket", stream="door", stage="flow", le="0.002") == 6
    assert value(metrics, "stage_seconds_count", stream="door", stage="total") is None
    assert value(metrics, "frame_seconds_sum", stream="door") == pytest.approx(0.048)
    assert value(metrics, "processed_age_seconds_count", stream="door") == 6
    assert value(metrics, "processed_age_seconds_bucket", stream="door", le="0.02") == 0
    assert value(metrics, "quality_level", stream="door") == 2
    assert value(metrics, "tokens", stream="door") == 6
    assert value(metrics, "confidence_ratio", stream="door") == 0.75


def test_counters_of_a_source_are_taken_over_and_survive_its_replacement() -> None:
    metrics = LiveMetrics()
    metrics.add("a")
    assert value(metrics, "frames_dropped_total", stream="a") == 0, "shown before anything happens"
    metrics.source("a", SourceStats(reconnects=2, stalls=1), dropped=5)
    metrics.source("a", SourceStats(reconnects=2, stalls=1), dropped=7)
    metrics.source("a", SourceStats(reconnects=1), dropped=2)
    assert value(metrics, "source_reconnects_total", stream="a") == 3
    assert value(metrics, "source_stalls_total", stream="a") == 1
    assert value(metrics, "frames_dropped_total", stream="a") == 9


def test_a_stream_that_is_removed_leaves_nothing_and_does_not_come_back() -> None:
    metrics = LiveMetrics()
    before = values(metrics).keys()
    frame = Frame(0, 0.0, BLACK)
    consumer = StreamMetrics(metrics, "a")
    metrics.add("a")
    metrics.add("b")
    consumer.consume(frame, choose(frame))
    metrics.source("a", SourceStats(), 1)
    metrics.remove("a")
    metrics.observe("a", "shown_age_seconds", 0.1)
    metrics.source("a", SourceStats(), 1)
    consumer.consume(frame, choose(frame))
    assert not [labels for _, labels in values(metrics) if ("stream", "a") in labels]
    assert value(metrics, "frames_total", stream="b") == 0
    metrics.remove("b")
    metrics.remove("b")
    assert values(metrics).keys() == before


def test_names_follow_the_conventions() -> None:
    metrics = LiveMetrics()
    metrics.add('a "quoted"\nname\\')
    body, _ = metrics.render(1, 4)
    families = list(text_string_to_metric_families(body.decode()))
    assert len(families) > 20 and all(
        family.name.startswith(("arr_stream_", "process_")) and family.documentation for family in families
    )
    assert not [family.name for family in families if family.name.endswith(("_created", "_ms"))]
    assert value(metrics, "frames_total", stream='a "quoted"\nname\\') == 0
