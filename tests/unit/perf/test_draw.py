"""Keys and values: deterministic by seed, fresh for each batch, and spread as they should be."""

from __future__ import annotations

import itertools
import random

import pytest

from metad_perf.load.draw import Names, Values, Walk


@pytest.mark.parametrize("count", [10, 1_000_001])
def test_names_are_the_same_listed_or_formatted(count: int) -> None:
    names = Names("client-%010d", count)
    assert len(names) == count
    assert names[0] == "client-0000000000"
    assert names[-1] == f"client-{count - 1:010d}"
    assert names[3:5] == ["client-0000000003", "client-0000000004"]
    assert names.at([7, 1]) == ["client-0000000007", "client-0000000001"]
    with pytest.raises(IndexError):
        names[count]


@pytest.mark.parametrize("count", [10, 1_000_001])
def test_picks_are_within_the_key_space_and_by_seed(count: int) -> None:
    names = Names("%d", count)
    picked = names.pick(random.Random(1), 500)
    assert picked == names.pick(random.Random(1), 500)
    assert picked != names.pick(random.Random(2), 500)
    assert {int(name) for name in picked} <= set(range(count))
    assert len(set(picked)) > min(count, 400) / 2


def test_values_have_their_size_and_differ_within_and_between_batches() -> None:
    values = Values(random.Random(1), 200)
    first, second = values.pick(1_000), values.pick(1_000)
    assert {len(value) for value in first} == {200}
    assert len(set(first) | set(second)) == 2_000
    assert first == Values(random.Random(1), 200).pick(1_000)


@pytest.mark.parametrize(("value_bytes", "count"), [(1, 10_000), (1024 * 1024, 3), (200, 10_000), (4 * 1024 * 1024, 1)])
def test_values_of_any_size_and_number_fit_the_pool(value_bytes: int, count: int) -> None:
    values = Values(random.Random(1), value_bytes)
    for _ in range(20):
        picked = values.pick(count)
        assert len(picked) == count
        assert {len(value) for value in picked} == {value_bytes}


@pytest.mark.parametrize(("count", "shares"), [(1, 1), (2, 1), (3, 2), (1_000, 1), (1_000, 3), (997, 2), (12, 12)])
def test_a_walk_takes_everything_of_its_share_once_a_round(count: int, shares: int) -> None:
    walks = [Walk(random.Random(1), count, share, shares) for share in range(shares)]
    assert sum(walk.length for walk in walks) == count
    taken = [index for walk in walks for index in walk.take(walk.length)]
    assert sorted(taken) == list(range(count))
    assert {walk.rounds for walk in walks} == {1}
    assert sorted(index for walk in walks for index in walk.take(walk.length)) == list(range(count))


def test_a_walk_is_scattered() -> None:
    taken = Walk(random.Random(3), 100_000).take(1_000)
    distances = [abs(second - first) for first, second in itertools.pairwise(taken)]
    assert min(distances) > 1_000
