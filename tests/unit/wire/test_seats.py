"""Where replicas go: spread, fair shares, balance, and what changes when a broker comes or goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import fsum, log
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metad_wire.errors import NoPlaceError
from metad_wire.policy.draw import uniform
from metad_wire.policy.seats import (
    GAIN_MIN,
    SEATS,
    SEATS_OF_MANY,
    SLACK,
    Candidate,
    Placer,
    SeatTable,
    Spread,
    fair_shares,
)

SPREADS: list[Spread] = ["rack", "region", "none"]
spreads = st.sampled_from(SPREADS)


@st.composite
def classes(draw: Callable[[Any], Any]) -> tuple[list[Candidate], int, Spread]:
    """Candidates in racks and regions of any size, some in none; a replication that they can have; a spread."""
    candidates = [
        Candidate(f"b{number}", draw(st.floats(0.1, 10.0)), draw(st.sampled_from("xyz")) * draw(st.booleans()), region)
        for number, region in enumerate(
            draw(st.lists(st.sampled_from(["", "eu", "us", "ap"]), min_size=1, max_size=24))
        )
    ]
    return candidates, draw(st.integers(1, min(5, len(candidates)))), draw(spreads)


def many(brokers: int, racks: int, regions: int = 2) -> list[Candidate]:
    """Every third broker has twice the weight of others."""
    return [
        Candidate(f"b{number}", 1.0 + (number % 3 == 0), f"r{number % racks}", f"g{number % regions}")
        for number in range(brokers)
    ]


def rack_of(one: Candidate) -> tuple[str, ...]:
    return (one.region, one.rack) if one.rack else (one.broker, "", "")


def region_of(one: Candidate) -> str:
    return one.region or f"only {one.broker}"


def uneven(chosen: Sequence[Candidate], all_of: Sequence[Candidate], zone_of: Callable[[Candidate], Any]) -> bool:
    """Whether a zone has two more than another that has a broker left, or one more than one that has none."""
    taken, sizes = Counter(map(zone_of, chosen)), Counter(map(zone_of, all_of))
    most = max(taken.values())
    return any(taken[zone] < min(size, most - 1) for zone, size in sizes.items())


def check_spread(seat: Sequence[str], candidates: Sequence[Candidate], spread: Spread) -> None:
    known = {one.broker: one for one in candidates}
    chosen = [known[broker] for broker in seat]
    assert len({*seat}) == len(seat)
    if spread == "rack":
        assert not uneven(chosen, candidates, rack_of)
    if spread == "region":
        assert not uneven(chosen, candidates, region_of)
        for region in {*map(region_of, chosen)}:
            of_it = [one for one in chosen if region_of(one) == region]
            assert not uneven(of_it, [one for one in candidates if region_of(one) == region], rack_of)


# --- seats -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(classes())
def test_a_seat_has_different_brokers_and_no_rack_again_before_others_are_used(given: Any) -> None:
    candidates, replication, spread = given
    table = SeatTable(candidates, replication, spread)
    assert len(table.seats) == SEATS
    for seat in {*table.seats}:
        assert len(seat) == replication
        check_spread(seat, candidates, spread)


def slowly(seat: int, candidates: Sequence[Candidate], replication: int, spread: Spread) -> tuple[str, ...]:
    """What a seat is by definition, one broker after the other."""
    cost = {}
    for one in candidates:
        name = int.from_bytes(blake2b(one.broker.encode(), digest_size=8).digest(), "big")
        cost[one] = -log(1.0 - uniform(0x5EA7, name, seat)) / one.weight
    chosen: list[Candidate] = []
    while len(chosen) < replication:
        regions, racks = Counter(map(region_of, chosen)), Counter(map(rack_of, chosen))

        def order(one: Candidate) -> tuple[int, int, float]:
            return (
                regions[region_of(one)] if spread == "region" else 0,  # noqa: B023 - called at once
                racks[rack_of(one)] if spread != "none" else 0,  # noqa: B023
                cost[one],
            )

        chosen.append(min((one for one in candidates if one not in chosen), key=order))
    return tuple(one.broker for one in chosen)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("brokers", "racks", "replication"), [(7, 3, 3), (60, 5, 4), (5, 2, 5)])
def test_a_table_is_what_the_definition_says(spread: Spread, brokers: int, racks: int, replication: int) -> None:
    candidates = many(brokers, racks)
    table = SeatTable(candidates, replication, spread)
    assert len(table.seats) == (SEATS if brokers <= 50 else SEATS_OF_MANY)
    looked_at = [*range(60), *range(len(table.seats) - 20, len(table.seats))]
    assert [table.seats[at] for at in looked_at] == [slowly(at, candidates, replication, spread) for at in looked_at]


def test_a_region_has_no_more_because_it_has_more_racks() -> None:
    candidates = [Candidate(f"eu{number}", 1.0, f"r{number}", "eu") for number in range(6)]
    candidates += [Candidate(f"us{number}", 1.0, "r0", "us") for number in range(3)]
    seats = SeatTable(candidates, 4, "region").seats
    assert seats[:40] == [slowly(at, candidates, 4, "region") for at in range(40)]
    assert {sum(broker.startswith("eu") for broker in seat) for seat in seats} == {2}


def test_every_node_has_the_same_table() -> None:
    """The seats are those of every version and machine: a node that has others places elsewhere."""
    candidates = [Candidate(f"broker-{number}", 1.0 + number % 2, f"rack-{number % 3}") for number in range(6)]
    table = SeatTable(candidates, 3, "rack")
    found = ["".join(broker[-1] for broker in seat) for seat in table.seats]
    assert found[:8] == GOLDEN_FIRST
    assert blake2b("".join(found).encode(), digest_size=8).hexdigest() == GOLDEN_ALL
    Random(1).shuffle(candidates)
    assert SeatTable(candidates, 3, "rack").seats == table.seats
    placed = Placer(table, {}).place(4_711, 0, 5)
    assert ["".join(broker[-1] for broker in seat) for seat in placed] == GOLDEN_PLACED


GOLDEN_FIRST = ["543", "153", "543", "021", "501", "105", "540", "345"]
GOLDEN_ALL = "a203c1469b77c2ae"
GOLDEN_PLACED = ["312", "501", "153", "540", "315"]


@pytest.mark.parametrize("spread", SPREADS)
def test_a_broker_more_changes_only_the_seats_that_it_takes(spread: Spread) -> None:
    candidates, new = many(40, 4), Candidate("new", 2.0, "r1", "g1")
    before, after = SeatTable(candidates, 3, spread), SeatTable([*candidates, new], 3, spread)
    changed = [seat for old, seat in zip(before.seats, after.seats, strict=True) if old != seat]
    assert all("new" in seat for seat in changed)
    others = sum(len({*seat} - {*old}) for old, seat in zip(before.seats, after.seats, strict=True))
    assert others / (3 * SEATS) == pytest.approx(after.shares()["new"], rel=0.15)


def test_seats_go_by_weight() -> None:
    candidates = [Candidate(f"b{number}", float(number)) for number in range(1, 9)]
    taken = Counter(seat[0] for seat in SeatTable(candidates, 1, "none").seats)
    for one in candidates:
        expected = SEATS * one.weight / 36
        assert abs(taken[one.broker] - expected) < 4 * expected**0.5
    # Each of them leads by its weight, too, where three are in a seat.
    leads = Counter(seat[0] for seat in SeatTable(candidates, 3, "rack").seats)
    assert leads == taken


def test_candidates_must_make_sense() -> None:
    for spread in SPREADS:
        with pytest.raises(NoPlaceError, match="2 brokers for 3 replicas"):
            SeatTable([Candidate("a"), Candidate("b")], 3, spread)
    with pytest.raises(NoPlaceError):
        fair_shares([], 1, "none")
    with pytest.raises(ValueError, match="twice"):
        SeatTable([Candidate("a"), Candidate("a", 2.0)], 1, "rack")
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight"):
            SeatTable([Candidate("a", weight), Candidate("b")], 1, "rack")


# --- fair shares -----------------------------------------------------------------------------------------------------


@given(classes())
def test_fair_shares_are_by_weight_within_what_the_spread_allows(given: Any) -> None:
    candidates, replication, spread = given
    shares = fair_shares(candidates, replication, spread)
    assert fsum(shares.values()) == pytest.approx(1.0)
    assert max(shares.values()) <= 1 / replication + 1e-9
    zone_of = {"rack": rack_of, "region": region_of, "none": lambda one: ""}[spread]
    zones: dict[Any, list[Candidate]] = {}
    for one in candidates:
        zones.setdefault(zone_of(one), []).append(one)
    of_zone = {zone: fsum(shares[one.broker] for one in part) for zone, part in zones.items()}
    if spread != "none" and len(zones) >= replication:
        assert max(of_zone.values()) <= 1 / replication + 1e-9
    # Whoever is under his bound has as much for his weight as others, and nobody has more.
    if spread in ("none", "rack"):
        for part in zones.values():
            levels = [shares[one.broker] / one.weight for one in part if shares[one.broker] < 1 / replication - 1e-9]
            assert not levels or max(levels) == pytest.approx(min(levels))
    if spread == "rack" and len(zones) >= replication:
        free = [
            of_zone[zone] / fsum(one.weight for one in part)
            for zone, part in zones.items()
            if of_zone[zone] < min(1 / replication, len(part) / replication) - 1e-9
        ]
        assert not free or max(free) == pytest.approx(min(free))


@pytest.mark.parametrize(
    ("zones", "replication", "expected"),
    [
        ({"a": [4.0], "b": [1.0], "c": [1.0]}, 3, [1 / 3] * 3),
        ({"a": [6.0], "b": [2.0], "c": [1.0], "d": [1.0]}, 2, [1 / 2, 1 / 4, 1 / 8, 1 / 8]),
        ({"a": [5.0, 5.0, 5.0], "b": [1.0, 1.0]}, 3, [2 / 9] * 3 + [1 / 6] * 2),
        ({"a": [1.0, 1.0, 1.0], "b": [1.0]}, 4, [1 / 4] * 4),
        ({"a": [1.0, 3.0], "b": [2.0, 2.0]}, 1, [1 / 8, 3 / 8, 1 / 4, 1 / 4]),
    ],
)
def test_no_rack_has_more_than_one_replica_of_each_partition(
    zones: dict[str, list[float]], replication: int, expected: list[float]
) -> None:
    candidates = [
        Candidate(f"{rack}{at}", weight, rack) for rack, weights in zones.items() for at, weight in enumerate(weights)
    ]
    assert [*fair_shares(candidates, replication, "rack").values()] == pytest.approx(expected)


def test_within_a_region_racks_have_a_share_each() -> None:
    candidates = [
        Candidate("e1", 9.0, "r1", "eu"),
        Candidate("e2", 1.0, "r2", "eu"),
        Candidate("e3", 1.0, "r2", "eu"),
        Candidate("u1", 1.0, "r1", "us"),
        Candidate("u2", 1.0, "r2", "us"),
    ]
    shares = fair_shares(candidates, 4, "region")
    assert shares == pytest.approx({"e1": 1 / 4, "e2": 1 / 8, "e3": 1 / 8, "u1": 1 / 4, "u2": 1 / 4})
    # A region has one or two of three replicas, and a rack of it one of them.
    candidates = [Candidate(f"e{number}", 9.0, "r1", "eu") for number in (1, 2)]
    candidates += [Candidate("e3", 2.0, "r2", "eu"), Candidate("u1", 10.0, "r1", "us"), Candidate("u2", 10.0, "", "us")]
    shares = fair_shares(candidates, 3, "region")
    assert shares == pytest.approx({"e1": 1 / 6, "e2": 1 / 6, "e3": 1 / 6, "u1": 1 / 4, "u2": 1 / 4})


# --- placing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("brokers", "racks", "spread"), [(50, 3, "rack"), (60, 5, "region"), (7, 3, "rack")])
def test_what_is_placed_is_balanced(brokers: int, racks: int, spread: Spread) -> None:
    candidates, counts = many(brokers, racks, 3), dict[str, int]()
    placer, random = Placer(SeatTable(candidates, 3, spread), counts), Random(brokers)
    placed = [seat for _ in range(2_500) for seat in placer.place(random.randrange(2**60), 0, 4)]
    assert counts == Counter(broker for seat in placed for broker in seat)
    for seat in {*placed}:
        check_spread(seat, candidates, spread)
    for broker, share in fair_shares(candidates, 3, spread).items():
        assert 0.8 * share * 30_000 <= counts[broker] <= 1.02 * (SLACK * share * 30_000 + 1)


def test_few_partitions_are_spread_over_many_brokers() -> None:
    counts: dict[str, int] = {}
    placer = Placer(SeatTable(many(60, 5), 3, "rack"), counts)
    placer.place(1, 0, 15)
    assert len(counts) >= 36
    assert max(counts.values()) <= 2


def test_a_resource_grows_as_if_it_had_been_created_so() -> None:
    table = SeatTable(many(12, 3), 3, "rack")
    whole, grown = Placer(table, {}), Placer(table, {})
    assert whole.place(99, 0, 40) == grown.place(99, 0, 4) + grown.place(99, 4, 36)
    assert whole.counts == grown.counts
    assert Placer(table, {}).place(98, 0, 40) != Placer(table, {}).place(99, 0, 40)


def test_the_leaders_of_each_resource_take_turns() -> None:
    """One connector in ten had four of its six tasks at one of three brokers."""
    table, counts = SeatTable([Candidate(name) for name in "abc"], 1, "rack"), dict[str, int]()
    most: Counter[int] = Counter()
    for resource in range(300):
        tasks = Counter(seat[0] for seat in Placer(table, counts).place(7_919 * resource, 0, 6))
        most[max(tasks.values())] += 1
    assert most[2] >= 280
    assert max(most) <= 3
    weighted = SeatTable([Candidate("small"), Candidate("large", 3.0)], 1, "none")
    for resource in range(50):
        tasks = Counter(seat[0] for seat in Placer(weighted, {}).place(resource, 0, 8))
        assert tasks["large"] in (5, 6, 7)


def test_what_was_there_before_is_made_up_for() -> None:
    candidates = many(9, 3)
    counts = {"b1": 900, "b2": 10, "elsewhere": 10_000}
    placer = Placer(SeatTable(candidates, 2, "rack"), counts)
    placer.place(5, 0, 400)
    assert counts["b1"] < 930
    assert counts["elsewhere"] == 10_000


@settings(max_examples=40)
@given(classes(), st.data())
def test_who_is_avoided_gets_nothing_and_the_spread_stays(given: Any, data: st.DataObject) -> None:
    candidates, replication, spread = given
    names = [one.broker for one in candidates]
    avoided = {*data.draw(st.lists(st.sampled_from(names), max_size=len(names)))}
    table = SeatTable(candidates, replication, spread)
    left = [one for one in candidates if one.broker not in avoided]
    if len(left) < replication:
        with pytest.raises(NoPlaceError):
            Placer(table, {}, avoided)
        return
    placer = Placer(table, {}, avoided)
    for seat in placer.place(data.draw(st.integers(0, 2**63)), 0, 50):
        assert len({*seat}) == replication
        assert not avoided & {*seat}
        check_spread(seat, left, spread)
    assert sum(placer.counts.values()) == 50 * replication


def test_most_may_be_avoided() -> None:
    """Nine of ten brokers are dead: hardly any seat has none of them."""
    candidates, counts = many(100, 5), dict[str, int]()
    living = [one for one in candidates if int(one.broker[1:]) >= 90]
    placer = Placer(SeatTable(candidates, 3, "rack"), counts, {one.broker for one in {*candidates} - {*living}})
    for seat in placer.place(7, 0, 2_000):
        check_spread(seat, living, "rack")
    for broker, share in fair_shares(living, 3, "rack").items():
        assert counts[broker] == pytest.approx(6_000 * share, rel=0.1)


def test_who_is_to_be_emptied_gets_what_nobody_else_can_have() -> None:
    candidates = [Candidate(f"b{number}") for number in range(5)]
    table, drained = SeatTable(candidates, 3, "rack"), {"b1", "b2"}
    enough = Placer(table, {}, (), drained)
    assert not drained & {broker for seat in enough.place(1, 0, 50) for broker in seat}
    few = Placer(table, {}, {"b4"}, drained)
    for seat in few.place(1, 0, 50):
        assert {*seat} >= {"b0", "b3"}
    assert few.counts["b1"] == few.counts["b2"] == 25
    for placer in (enough, few):
        assert placer.replacement(["b0", "b1", "gone"], "gone") == "b3"
        assert placer.replacement(["b0", "b1", "b3", "b4"], "b4") == "b2"
        assert placer.replacement(["b0", "b1", "b3", "b4"], "b1", needed=False) is None
    assert Placer(table, {}, (), {*table.zones}).place(1, 0, 1) != []


# --- replacing and rebalancing ---------------------------------------------------------------------------------------


def test_a_replica_is_replaced_in_another_rack_by_who_has_least() -> None:
    candidates = [Candidate(f"{rack}{number}", 1.0, rack) for rack in "xyz" for number in (1, 2)]
    placer = Placer(SeatTable(candidates, 3, "rack"), {"z1": 5, "z2": 4, "x2": 0, "y2": 0})
    assert placer.replacement(["x1", "y1", "z1"], "z1") == "z2"
    assert placer.replacement(["x1", "y1", "gone"], "gone") == "z2"
    assert placer.replacement(["x1", "z1", "z2"], "z2") == "y1"
    assert placer.replacement(["z1", "z2", "x1", "x2", "y1", "y2"], "y1") is None
    heavy = [*candidates[:4], Candidate("z1", 4.0, "z"), Candidate("z2", 1.0, "z")]
    assert Placer(SeatTable(heavy, 3, "rack"), {"z1": 5, "z2": 4}).replacement(["x1", "y1"], "") == "z1"
    away = Placer(SeatTable(candidates, 3, "rack"), {}, {"z1", "z2"})
    assert away.replacement(["x1", "y1", "z1"], "z1") == "x2"
    assert away.counts == {}


def test_within_the_region_that_has_least_it_is_another_rack() -> None:
    candidates = [Candidate(f"{region}{rack}", 1.0, rack, region) for region in ("eu", "us") for rack in "123"]
    counts = {"eu2": 8, "eu3": 9, "us1": 9, "us2": 9, "us3": 9}
    placer = Placer(SeatTable([*candidates, Candidate("eu0", 1.0, "1", "eu")], 4, "region"), counts)
    assert placer.replacement(["eu1", "us1", "us2", "eu3"], "eu3") == "eu2"  # eu0, with none, is in the rack of eu1
    assert placer.replacement(["eu1", "eu2", "us1", "eu3"], "eu3") == "us2"


counted = st.lists(st.integers(0, 60), min_size=2, max_size=12)


@given(counted, st.sampled_from(SPREADS))
def test_moves_of_an_excess_gain_and_leave_none_that_would(given: list[int], spread: Spread) -> None:
    candidates = many(len(given), 3)
    counts = {one.broker: count for one, count in zip(candidates, given, strict=True)}
    placer = Placer(SeatTable(candidates, 2, spread), counts)
    before = fsum(placer.surplus(broker) ** 2 for broker in counts)
    excess = placer.excess(10_000)
    for broker, number in excess.items():
        counts[broker] -= number
    after = fsum(placer.surplus(broker) ** 2 for broker in counts)
    moves = sum(number for number in excess.values() if number > 0)
    assert sum(excess.values()) == 0
    assert before - after >= 2 * (GAIN_MIN - 1) * moves - 1e-6  # as many squares less as a move that gains enough
    assert not any(placer.gains(one, other) for one in counts for other in counts)
    assert placer.excess() == {}


def test_a_new_broker_takes_its_share_and_no_more() -> None:
    candidates, counts = many(20, 4), dict[str, int]()
    Placer(SeatTable(candidates, 3, "rack"), counts).place(3, 0, 4_000)
    table = SeatTable([*candidates, Candidate("new", 1.0, "r1", "g1")], 3, "rack")
    placer = Placer(table, counts)
    excess = placer.excess(100_000)
    assert -excess["new"] == pytest.approx(12_000 * table.shares()["new"], abs=1.5)
    some = placer.excess(100)
    assert sum(number for number in some.values() if number > 0) == 100
    assert some["new"] == -100
    assert Placer(table, counts, {"new"}).excess(100_000).get("new", 0) == 0
