"""The relay between real kernels: what it is asked of a path is what a datagram meets. Delays are checked from below,
for a busy machine may add to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metad_perf.wan import relay as network
from metad_perf.wan.command import exchange
from metad_perf.wan.relay import Places
from metad_perf.wan.relay_line import Path

pytestmark = pytest.mark.skipif(bool(network.missing()), reason=network.missing())


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with network.places(3, seed=1) as made:
        yield made


def test_delay_is_per_path(places: Places) -> None:
    places.shape(0, 1, Path(delay_ms=30))
    places.shape(0, 2, Path(delay_ms=5))
    for target, delay_ms in ((1, 30.0), (2, 5.0)):
        delays_ms = exchange(places, 0, target, 50)
        assert len(delays_ms) == 50
        assert min(delays_ms) >= delay_ms
    assert min(exchange(places, 0, 2, 50)) < min(exchange(places, 0, 1, 50))


def test_loss_is_counted_and_happens(places: Places) -> None:
    places.shape(0, 1, Path(loss_pct=30))
    before = places.account().counts[0, 1].lost
    arrived = len(exchange(places, 0, 1, 1_000))
    lost = places.account().counts[0, 1].lost - before
    assert 200 < lost < 400  # over six standard deviations on either side
    assert arrived <= 1_000 - lost


def test_a_place_is_cut_off_from_all_and_comes_back(places: Places) -> None:
    places.shape(0, 1, Path())
    places.shape(0, 2, Path())
    places.cut_off(0)
    assert exchange(places, 0, 1, 20) == exchange(places, 2, 0, 20) == []
    assert exchange(places, 1, 2, 20) != []
    places.heal()
    assert len(exchange(places, 0, 1, 20)) == 20
