"""Which brokers get the replicas of a partition. Pure; it computes the same bits everywhere, and needs numpy.

A *seat* is an ordered choice of brokers, the first of them the preferred leader. A class of resources, which have the
same replication, spread and candidates, has a table of thousands of seats. A partition takes one by the id of its
resource and its number: so a placement costs the same, however many partitions there are, and a broker more or less
changes about its share of the seats. Where the number of seats changes, all do; what was placed stays. Seats are chosen
by weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005).

**Spread.** ``rack``: a rack comes again in a seat only when no other is left, then all as often. ``region``: the same
with regions, and with racks within them. ``none``: brokers only differ. A rack is one of its region; a broker with no
rack or region is one by itself.

**Fair shares.** What a broker should have of all replicas: by weight, as far as the spread lets it. A broker has no two
replicas of a partition, so none has more than 1/replication.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, MutableMapping, Sequence
from hashlib import blake2b
from math import ceil, floor, fsum, isfinite, log
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import NoPlaceError
from .draw import draw
from .vector import Floats, Ints, uniforms

Spread: TypeAlias = Literal["rack", "region", "none"]

SEATS: Final = 4_096
SEATS_OF_MANY: Final = 16_384
MANY_BROKERS: Final = 50
"""With more than these there are :data:`SEATS_OF_MANY`."""
LOOKED_AT_MAX: Final = 16
"""Seats, for one partition."""
SLACK: Final = 1.05
"""A broker is not given more than this times its fair share, and one replica."""
GAIN_MIN: Final = 2.0
"""A move of a replica brings its two brokers nearer to their fair shares by this in sum."""
_SEAT_STREAM: Final = 0x5EA7
_RESOURCE_STREAM: Final = 0x4E50
_STEP: Final = 1_021
"""From a seat that is skipped to the next one: partitions of one resource have those beside it."""
_BLOCK: Final = 131_072
"""Pairs of seat and broker that are scored at a time, so that arrays stay in the processor's cache."""
_LN_2: Final = log(2.0)
_TAKEN: Final = 1 << 30
_ROUNDED: Final = 1e-9


class Candidate(NamedTuple):
    """A broker that may have replicas."""

    broker: str
    weight: float = 1.0
    """Over 0: how many replicas it should have, relative to others."""
    rack: str = ""
    region: str = ""


class SeatTable:
    """The seats of a class of resources. ``seats``: of each its brokers, in order."""

    def __init__(self, candidates: Sequence[Candidate], replication: int, spread: Spread) -> None:
        """Raises NoPlaceError if there are fewer candidates than replicas, and ValueError for one that comes twice or
        whose weight is not over 0."""
        self.candidates = _checked(candidates, replication)
        self.replication = replication
        self.spread = spread
        self.zones = {one.broker: _zones(one, spread) for one in self.candidates}
        """Of each broker what is not to come again in a seat, the widest first: its region and rack, or its rack."""
        names = [one.broker for one in self.candidates]
        count = SEATS_OF_MANY if len(names) > MANY_BROKERS else SEATS
        self.seats = [tuple([names[at] for at in seat]) for seat in self._choose(count)]
        self.order = _alternating([seat[0] for seat in self.seats])
        """The seats as partitions of a resource take them: their leaders take turns, so that each resource is spread,
        and not only all of them together."""
        self._shares = (frozenset[str](), fair_shares(self.candidates, replication, spread))

    def _choose(self, count: int) -> list[list[int]]:
        """By seat the positions of its candidates."""
        brokers: Ints = np.array([_hash(one.broker) for one in self.candidates], np.uint64).view(np.int64)
        weights: Floats = np.array([one.weight for one in self.candidates], np.float64)
        depth = len(self.zones[self.candidates[0].broker])
        columns = [_numbered([self.zones[one.broker][at] for one in self.candidates]) for at in range(depth)]
        found: list[list[int]] = []
        block = max(1, _BLOCK // len(self.candidates))
        for begin in range(0, count, block):
            seats = np.arange(begin, min(begin + block, count), dtype=np.int64)[:, None]
            drawn = uniforms(_SEAT_STREAM, np.broadcast_to(brokers, (len(seats), len(brokers))), seats)
            found += _cheapest(_waits(drawn) / weights, columns, self.replication).tolist()
        return found

    def shares(self, avoided: frozenset[str] = frozenset()) -> dict[str, float]:
        """The fair shares where these brokers get nothing. The last ones are remembered."""
        if self._shares[0] != avoided:
            left = [one for one in self.candidates if one.broker not in avoided]
            number = min(self.replication, len(left))
            self._shares = (avoided, fair_shares(left, number, self.spread) if left else {})
        return self._shares[1]


def fair_shares(candidates: Sequence[Candidate], replication: int, spread: Spread) -> dict[str, float]:
    """What each broker should have of all replicas; 1 in sum. Raises as :class:`SeatTable`."""
    candidates = _checked(candidates, replication)
    depth = len(_zones(candidates[0], spread))
    poured = _poured(float(replication), candidates, spread, depth)
    return {one.broker: poured[one.broker] / replication for one in candidates}


class Placer:
    """Places replicas by a table, and by what its brokers have already.

    ``counts``: replicas by broker, of all classes that share brokers; a broker without an entry has none. What is
    placed is added to it. ``avoided``: candidates that get nothing, because they are dead. ``last``: those that are to
    be emptied: they get what nobody else can have. Others take their seats, so the table stays as it is. It costs
    O(brokers) to make one.
    """

    def __init__(
        self,
        table: SeatTable,
        counts: MutableMapping[str, int],
        avoided: Collection[str] = (),
        last: Collection[str] = (),
    ) -> None:
        """Raises NoPlaceError if fewer candidates are not avoided than replicas."""
        self.counts = counts
        self._table = table
        if len(table.zones) - len(table.zones.keys() & {*avoided}) < table.replication:
            raise NoPlaceError(f"too few brokers are left for {table.replication} replicas of a partition")
        self._last = table.zones.keys() & {*last} - {*avoided}
        self._avoided = frozenset(table.zones.keys() & {*avoided, *last})
        self._shares = table.shares(self._avoided)
        self._total = sum(counts.get(broker, 0) for broker in self._shares)

    def place(self, id: int, first: int, number: int) -> list[tuple[str, ...]]:
        """The brokers of the partitions ``first`` to ``first + number - 1`` of the resource of this id, in order."""
        start = draw(_RESOURCE_STREAM, id, 0) + first
        return [self._placed(start + at) for at in range(number)]

    def _placed(self, at: int) -> tuple[str, ...]:
        """The first seat from here whose brokers all have room; else that whose fullest broker is the least full."""
        self._total += self._table.replication
        seats, order = self._table.seats, self._table.order
        counts, shares, avoided = self.counts, self._shares, self._avoided
        allowed, best, least = SLACK * self._total, None, 0.0
        for probe in range(LOOKED_AT_MAX):
            seat = seats[order[(at + probe * _STEP) % len(seats)]]
            if avoided and not avoided.isdisjoint(seat):
                continue
            over = max([(counts.get(broker, 0) + 1) / (allowed * shares[broker] + 1.0) for broker in seat])
            if best is None or over < least:
                best, least = seat, over
                if over <= 1.0:
                    break
        if best is None:
            best = self._replaced(seats[order[at % len(seats)]])
        for broker in best:
            counts[broker] = counts.get(broker, 0) + 1
        return best

    def _replaced(self, seat: tuple[str, ...]) -> tuple[str, ...]:
        """A seat, with others instead of those that are avoided."""
        brokers = [broker for broker in seat if broker not in self._avoided]
        others: dict[str, str] = {}
        for broker in filter(self._avoided.__contains__, seat):
            other = self.replacement(brokers, broker)
            assert other is not None  # as many are left as a seat has
            others[broker] = other
            brokers.append(other)
        return tuple([others.get(broker, broker) for broker in seat])

    def replacement(self, replicas: Sequence[str], gone: str, *, needed: bool = True) -> str | None:
        """The broker that gets the replica of one that has to leave: none of ``replicas``; of those that spread the
        replicas best, the one with the least beside its fair share. None if nobody is left. It counts nothing.
        ``needed``: one of ``last`` may get it if nobody else can."""
        zones, counts, shares = self._table.zones, self.counts, self._shares
        taken = Counter(zone for broker in replicas if broker != gone for zone in zones.get(broker, ()))

        def cost(broker: str) -> tuple[list[int], float, str]:
            return [taken[zone] for zone in zones[broker]], counts.get(broker, 0) / shares.get(broker, 1.0), broker

        found = min((broker for broker in shares if broker not in replicas), key=cost, default=None)
        if found is None and needed:
            found = min((broker for broker in self._last if broker not in replicas), key=cost, default=None)
        return found

    def surplus(self, broker: str) -> float:
        """How many replicas a broker has beyond its fair share; under 0: how many it lacks."""
        return self.counts.get(broker, 0) - self._shares.get(broker, 0.0) * self._total

    def gains(self, giver: str, taker: str) -> bool:
        """Whether it is worth it that a replica moves from one broker to another."""
        return self.surplus(giver) - self.surplus(taker) >= GAIN_MIN - _ROUNDED

    def excess(self, most: int = 1_000) -> dict[str, int]:
        """How many replicas the brokers should give away (over 0) or take (under 0), 0 in sum, by the moves that gain
        most, ``most`` of them at most. Brokers that are avoided have no part in it."""
        found: Counter[str] = Counter()
        givers = [(-self.surplus(broker), broker) for broker in self._shares]
        takers = [(self.surplus(broker), broker) for broker in self._shares]
        heapq.heapify(givers)
        heapq.heapify(takers)
        for _ in range(most):
            over, giver = givers[0]
            under, taker = takers[0]
            if -over - under < GAIN_MIN - _ROUNDED:
                break
            heapq.heapreplace(givers, (over + 1.0, giver))
            heapq.heapreplace(takers, (under + 1.0, taker))
            found[giver] += 1
            found[taker] -= 1
        return dict(found)


# --- seats -----------------------------------------------------------------------------------------------------------


def _checked(candidates: Sequence[Candidate], replication: int) -> list[Candidate]:
    """Candidates in the order of their names, so that no other order plays a part."""
    if len(candidates) < replication:
        raise NoPlaceError(f"there are {len(candidates)} brokers for {replication} replicas of a partition")
    found = sorted(candidates)
    if len({one.broker for one in found}) < len(found):
        raise ValueError("a broker is there twice")
    for one in found:
        if not (one.weight > 0 and isfinite(one.weight)):
            raise ValueError(f"{one.broker}: a weight is over 0, not {one.weight}")
    return found


def _zones(one: Candidate, spread: Spread) -> tuple[tuple[str, ...], ...]:
    """The zones of a broker, the widest first; each says of what kind it is."""
    region = ("region", one.region) if one.region else ("region", "", one.broker)
    rack = ("rack", one.region, one.rack) if one.rack else ("rack", "", "", one.broker)
    match spread:
        case "rack":
            return (rack,)
        case "region":
            return (region, rack)
        case "none":
            return ()


def _alternating(leaders: Sequence[str]) -> list[int]:
    """The positions of seats, so that each broker's are as far apart as they can be."""
    of: dict[str, list[int]] = {}
    for position, broker in enumerate(leaders):
        of.setdefault(broker, []).append(position)
    placed = [
        ((at + 0.5) / len(positions), broker, position)
        for broker, positions in of.items()
        for at, position in enumerate(positions)
    ]
    return [position for _, _, position in sorted(placed)]


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def _numbered(zones: Sequence[tuple[str, ...]]) -> npt.NDArray[np.int32]:
    """A number for each zone."""
    numbers: dict[tuple[str, ...], int] = {}
    return np.array([numbers.setdefault(zone, len(numbers)) for zone in zones], np.int32)


def _waits(uniform: Floats) -> Floats:
    """-ln(1 - u), to eight digits and better where it is small. Every step is one that IEEE 754 rounds alike on every
    machine. ``np.log`` is not: it may differ in the last bit, and two nodes in a seat."""
    mantissa, exponent = np.frexp(1.0 - uniform)
    low = mantissa < 0.7071067811865476
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    ratio = (1.0 - mantissa) / (1.0 + mantissa)
    square = ratio * ratio
    series = square * (1.0 / 9.0)
    for term in (7.0, 5.0, 3.0):
        series += 1.0 / term
        series *= square
    series += 1.0
    series *= 2.0 * ratio
    waits: Floats = series - _LN_2 * (exponent - low)
    return waits


def _cheapest(costs: Floats, zones: Sequence[npt.NDArray[np.int32]], number: int) -> Ints:
    """By seat so many columns, each the cheapest of those whose zones the seat has least often, the first zone first.
    ``costs``: (seat, broker); ``zones``: of each broker, the widest first."""
    rows = np.arange(len(costs))
    found = np.empty((len(costs), number), np.int64)
    used = np.zeros(costs.shape, np.int32)
    for place in range(number):
        least = used.min(axis=1, keepdims=True)
        best = np.where(used == least, costs, np.inf).argmin(axis=1)
        found[:, place] = best
        used[rows, best] = _TAKEN
        for level, zone in enumerate(reversed(zones)):
            used += (zone[best][:, None] == zone) * np.int32((number + 1) ** level)
    return found


# --- fair shares -----------------------------------------------------------------------------------------------------


def _poured(amount: float, candidates: Sequence[Candidate], spread: Spread, depth: int) -> dict[str, float]:
    """How many replicas of a partition each broker has on average, if all have ``amount``: by weight, within what the
    spread lets a zone have. ``depth``: zones that the candidates do not share yet."""
    parts: dict[object, list[Candidate]] = {}
    for one in candidates:
        parts.setdefault(_zones(one, spread)[-depth] if depth else one.broker, []).append(one)
    sizes = [len(part) for part in parts.values()] if depth else [1] * len(parts)
    least, _ = _evenly(floor(amount + _ROUNDED), sizes)
    _, most = _evenly(ceil(amount - _ROUNDED), sizes)
    weights = [fsum(one.weight for one in part) for part in parts.values()]
    each = _by_weight(amount, weights, least, most)
    found: dict[str, float] = {}
    for part, poured in zip(parts.values(), each, strict=True):
        found |= _poured(poured, part, spread, depth - 1) if depth else {part[0].broker: poured}
    return found


def _evenly(number: int, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """How many of ``number`` replicas each zone has at least and at most, if no zone has one more before all others
    have as many or are full. ``sizes``: its brokers."""
    level = 0
    while level < number and sum(min(size, level + 1) for size in sizes) <= number:
        level += 1
    left = number - sum(min(size, level) for size in sizes)
    return [min(size, level) for size in sizes], [min(size, level + (left > 0)) for size in sizes]


def _by_weight(amount: float, weights: Sequence[float], least: Sequence[float], most: Sequence[float]) -> list[float]:
    """An amount in proportion to weights, within bounds: what is over a bound goes to the others by weight. It is how
    flexible boxes are laid out in CSS."""
    found = [0.0] * len(weights)
    free = [*range(len(weights))]
    while free:
        fixed = {*range(len(weights))} - {*free}
        left, sum_of = amount - fsum(found[at] for at in fixed), fsum(weights[at] for at in free)
        for at in free:
            found[at] = min(max(left * weights[at] / sum_of, least[at]), most[at])
        wrong = fsum(found[at] for at in free) - left
        if abs(wrong) < 1e-12:
            break
        at_bound = [at for at in free if found[at] == (least if wrong > 0 else most)[at]]
        if not at_bound:
            break
        free = [at for at in free if at not in {*at_bound}]
    return found
