"""Latencies: what is recorded is what is answered, and processes add up."""

from __future__ import annotations

import random

import pytest

from metad_perf.report.histogram import LATENCY_US_MAX, Latencies


def _recorded(latencies_us: list[int]) -> Latencies:
    latencies = Latencies()
    for latency_us in latencies_us:
        latencies.note(latency_us * 1_000)
    return latencies


def test_percentiles_are_within_three_digits() -> None:
    latencies = _recorded(list(range(1, 100_001)))
    assert latencies.count == 100_000
    for percentile, expected_ms in ((50, 50.0), (99, 99.0), (99.9, 99.9)):
        assert latencies.percentile_ms(percentile) == pytest.approx(expected_ms, rel=1e-3)
    assert latencies.max_ms() == pytest.approx(100.0, rel=1e-3)


def test_nothing_recorded_answers_zero() -> None:
    assert Latencies().percentile_ms(99) == 0.0
    assert Latencies().count == 0


def test_merged_is_what_one_would_have_recorded() -> None:
    rng = random.Random(1)
    parts = [[rng.randrange(1, 10 ** rng.randrange(1, 7)) for _ in range(5_000)] for _ in range(3)]
    merged = Latencies.merged(_recorded(part).encode() for part in parts)
    whole = _recorded([latency for part in parts for latency in part])
    assert merged.count == whole.count == 15_000
    for percentile in (1, 50, 90, 99, 99.9, 100):
        assert merged.percentile_ms(percentile) == whole.percentile_ms(percentile)


def test_extremes_are_kept_within_the_range() -> None:
    latencies = _recorded([0, LATENCY_US_MAX * 2])
    assert latencies.count == 2
    assert latencies.percentile_ms(1) == pytest.approx(0.001)
    assert latencies.max_ms() == pytest.approx(LATENCY_US_MAX / 1_000, rel=1e-2)
