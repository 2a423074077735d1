"""The shared policies stay within the bounds their documentation promises, for any seed."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_wire.policy import Backoff, BatchWindow

seeds = st.integers(0, 2**32)


@given(seed=seeds, attempt=st.integers(0, 10_000))
def test_a_wait_is_between_nothing_and_the_doubling_cap(seed: int, attempt: int) -> None:
    backoff = Backoff(base_s=0.01, cap_s=1.5)
    assert 0.0 <= backoff.delay_s(attempt, random.Random(seed)) <= min(1.5, 0.01 * 2 ** min(attempt, 32))


def test_waits_use_their_whole_range_and_double() -> None:
    backoff = Backoff(base_s=0.01, cap_s=100.0)
    rng = random.Random(2024)
    for attempt in range(10):
        waits = [backoff.delay_s(attempt, rng) for _ in range(2_000)]
        scale = 0.01 * 2**attempt
        assert min(waits) < 0.02 * scale
        assert max(waits) > 0.98 * scale
        assert sum(waits) / len(waits) == pytest.approx(scale / 2, rel=0.1)


def test_the_same_seed_gives_the_same_waits() -> None:
    first, second = ([Backoff().delay_s(attempt, random.Random(7)) for attempt in range(8)] for _ in range(2))
    assert first == second


@given(seed=seeds, after=st.integers(0, 10**9), jitter=st.integers(0, 10**9))
def test_a_return_slot_is_kept(seed: int, after: int, jitter: int) -> None:
    wait = Backoff().returning_s(after, jitter, random.Random(seed))
    assert max(0.0, (after - jitter) / 1000) <= wait <= (after + jitter) / 1000


@pytest.mark.parametrize(
    ("items", "size_bytes", "full"), [(0, 0, False), (9, 99, False), (10, 0, True), (0, 100, True), (11, 101, True)]
)
def test_a_batch_closes_at_either_limit(items: int, size_bytes: int, full: bool) -> None:
    assert BatchWindow(items_max=10, bytes_max=100).is_full(items, size_bytes) is full


def test_policies_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Backoff().cap_s = 1.0  # type: ignore[misc]
    assert msgspec.structs.asdict(BatchWindow()) == {"items_max": 1_000, "bytes_max": 1024 * 1024, "linger_s": 0.0}
