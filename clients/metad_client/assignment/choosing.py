"""Which partition a client of a broker fleet asks, and which broker of it: pure choices by one reading of a resource.

**By key.** The partitions that take writes, in the order of their numbers, are those from ``first_partition`` of the
resource to before its ``write_partitions`` that are neither sealed nor being deleted. With ``n`` of them a key belongs
to the one at place ``crc32(key) % n``. The hash is the CRC-32 of zlib, gzip and PNG, an unsigned number, over the bytes
of the key; of a text over its UTF-8. So a key keeps its partition as long as these partitions are the same, in whatever
language a client is written, and a partition that is sealed with a successor leaves its place to that.

**In turn.** Without a key any partition will do. Of those that can be asked now the nearest take turns: where the
broker is in the client's rack, then in its region, then elsewhere. Brokers that have not answered lately come last.

**By priority.** The first partition of an order that can be asked now.

What is worked out for all partitions is worked out once for a reading: a choice looks at one partition or a few.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, get_args
from zlib import crc32

from msgspec import Meta

from metad_wire.messages import Owner, TableRecord
from metad_wire.tables.assignment import DELETING, PARTITIONS_MAX, Partition, Resource
from metad_wire.tables.broker import LIVE, Broker

from ..errors import ConflictError, InvalidRequestError, MetadError, NotFoundError
from ..requests.wrong import argument, sequence

To = Literal["write", "read", "read_any"]
"""``write``: the leader of a partition that takes writes. ``read``: the leader. ``read_any``: whoever has the partition
and lives; of those in sync the nearest, and the leader of equally near ones; where nobody is in sync, another
replica."""
Rows = Mapping[tuple[str | int, ...], TableRecord[Partition]]
Tried = Collection[tuple[int, str]]
"""Partitions, with the brokers that were asked."""

_TOS: Final[tuple[To, ...]] = get_args(To)
_Number = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
_SHUNNED: Final = 3
"""The rank of a broker that did not answer lately, behind those of racks and regions."""


class Choice(NamedTuple):
    """Who is to be asked."""

    partition: int
    """Its number."""
    leader_epoch: int
    """What the request names: a broker that leads under another one refuses it as ``stale_route``."""
    broker: Broker
    """Who is asked: ``broker.address`` says where."""
    leads: bool
    """Whether it leads the partition; otherwise it is a replica."""
    found: TableRecord[Partition]
    """The record by which it was chosen; ``found.mod_revision`` is what :meth:`metad_client.Route.check` takes."""
    wait_s: float = math.inf
    """How long connecting may take, or the answer. A blocking program has to keep to it by itself."""


class Wanted(NamedTuple):
    """What is asked for. At most one of the last three is given."""

    to: To
    partition: int | None = None
    order: tuple[int, ...] | None = None
    crc: int | None = None
    """Of the key."""


class Near(NamedTuple):
    """Where the client is; empty: anywhere."""

    region: str = ""
    rack: str = ""

    def rank(self, broker: Broker) -> int:
        """0: its rack; 1: its region; 2: elsewhere."""
        here = not self.region or broker.region == self.region
        if self.rack and here and broker.rack == self.rack:
            return 0
        return 1 if self.region and here else 2


def wanted(to: To, key: bytes | str | None, partition: int | None, order: Sequence[int] | None) -> Wanted:
    """What a caller asks for. Raises InvalidRequestError."""
    if (key is not None) + (partition is not None) + (order is not None) > 1:
        raise InvalidRequestError("give one of key, partition and order, or none of them")
    if to not in _TOS:
        raise InvalidRequestError(f"to: expected one of {', '.join(_TOS)}, got {to!r}")
    if key is not None:
        if not isinstance(key, bytes | str):
            raise InvalidRequestError(f"key: expected bytes or str, got {type(key).__name__}")
        try:
            return Wanted(to, crc=crc32(key.encode() if isinstance(key, str) else key))
        except UnicodeEncodeError:
            raise InvalidRequestError("key: the text is not valid Unicode") from None
    if partition is not None:
        argument("partition", partition, _Number)
        return Wanted(to, partition)
    if order is not None:
        given = sequence("order", order, "int")
        argument("order", given, Annotated[list[_Number], Meta(max_length=PARTITIONS_MAX)])
        return Wanted(to, order=tuple(given))
    return Wanted(to)


class Copy:
    """One reading of a resource. It does not change, so any thread may choose by it."""

    def __init__(
        self,
        key: tuple[str | int, ...],
        resource: Resource | None,
        rows: Rows,
        brokers: Mapping[str, Broker],
        near: Near,
        shunned: Collection[Owner] = (),
    ) -> None:
        """``rows``: by a tuple of the number. ``brokers``: as far as they are known. ``shunned``: who did not answer
        lately."""
        self.key, self.resource, self.rows, self.brokers = key, resource, rows, brokers
        self.near, self.shunned = near, frozenset(shunned)
        self._takers: tuple[int, ...] | None = None
        self._turns: dict[To, list[list[Choice]]] = {}

    def shunning(self, shunned: Collection[Owner]) -> Copy:
        """The same reading for a client to whom others do not answer."""
        return Copy(self.key, self.resource, self.rows, self.brokers, self.near, shunned)

    @property
    def takers(self) -> Sequence[int]:
        """The partitions that take writes."""
        if self._takers is None:
            r = self.resource
            numbers = () if r is None else range(r.first_partition, r.write_partitions)
            self._takers = tuple(number for number in numbers if self._why_not(number, "write") is None)
        return self._takers

    def choose(self, want: Wanted, turn: int, tried: Tried = ()) -> Choice | None:
        """Who is to be asked; None: nobody who was not tried can be now. ``turn``: grows by one with each choice.
        Raises NotFoundError if there is no such partition, ConflictError if it takes no writes."""
        if self.resource is None:
            raise NotFoundError(f"there is no {self._name()}")
        if want.crc is not None:
            takers = self.takers
            if not takers:
                raise ConflictError(f"no partition of {self._name()} takes writes")
            return self._of_one(takers[want.crc % len(takers)], want.to, tried)
        if want.partition is not None:
            if (why_not := self._why_not(want.partition, want.to)) is not None:
                raise why_not
            return self._of_one(want.partition, want.to, tried)
        if want.order is not None:
            return self._by_priority(want.order, want.to, tried)
        return self._in_turn(want.to, turn, tried)

    def _of_one(self, number: int, to: To, tried: Tried) -> Choice | None:
        """The best of a partition that there is."""
        for one in self._able(self.rows[number,], to):
            if not tried or (number, one.broker.broker) not in tried:
                return one
        return None

    def _by_priority(self, order: Sequence[int], to: To, tried: Tried) -> Choice | None:
        why_not = [self._why_not(number, to) for number in order]
        if None not in why_not:
            raise next(filter(None, why_not), ConflictError(f"order: no partition of {self._name()} is named"))
        rest: Choice | None = None
        for number, error in zip(order, why_not, strict=True):
            one = None if error is not None else self._of_one(number, to, tried)
            if one is not None and not self._is_shunned(one.broker):
                return one
            rest = rest or one
        return rest

    def _in_turn(self, to: To, turn: int, tried: Tried) -> Choice | None:
        turns = self._turns.get(to)
        if turns is None:
            turns = self._turns[to] = self._ranked(to)
        for choices in turns:
            for at in range(min(len(choices), len(tried) + 1)):
                one = choices[(turn + at) % len(choices)]
                if not tried or (one.partition, one.broker.broker) not in tried:
                    return one
        return None

    def _ranked(self, to: To) -> list[list[Choice]]:
        """The best of each partition, the nearest first, in lists of equally near ones."""
        if to == "write":
            numbers: Sequence[int] = self.takers
        else:
            numbers = sorted(row.record.partition for row in self.rows.values())
            numbers = [number for number in numbers if self._why_not(number, to) is None]
        if not numbers:
            what = "takes writes" if to == "write" else "is there"
            raise ConflictError(f"no partition of {self._name()} {what}")
        ranked: list[list[Choice]] = [[] for _ in range(_SHUNNED + 1)]
        for number in numbers:
            if (one := self._of_one(number, to, ())) is not None:
                ranked[self._rank(one.broker)].append(one)
        return [choices for choices in ranked if choices]

    def _able(self, row: TableRecord[Partition], to: To) -> Iterator[Choice]:
        """Who can be asked about a partition, the best first."""
        p = row.record
        leader = None if p.leader is None else self._living(p.leader)
        if to != "read_any":
            if leader is not None:
                yield Choice(p.partition, p.leader_epoch, leader, True, row)
            return
        inside = {owner.broker for owner in p.isr if self._living(owner) is not None}
        if leader is not None:
            inside.add(leader.broker)
        names = dict.fromkeys([*([] if leader is None else [leader.broker]), *p.replicas])
        there = [one for name in names if (one := self.brokers.get(name)) is not None and one.state in LIVE]
        there.sort(key=lambda one: (self._is_shunned(one), one.broker not in inside, self.near.rank(one)))
        for one in there:
            yield Choice(p.partition, p.leader_epoch, one, one is leader, row)

    def _living(self, owner: Owner) -> Broker | None:
        """The broker in this life, if that is not over."""
        one = self.brokers.get(owner.broker)
        return one if one is not None and one.broker_epoch == owner.broker_epoch and one.state in LIVE else None

    def _is_shunned(self, broker: Broker) -> bool:
        return bool(self.shunned) and Owner(broker.broker, broker.broker_epoch) in self.shunned

    def _rank(self, broker: Broker) -> int:
        return _SHUNNED if self._is_shunned(broker) else self.near.rank(broker)

    def _why_not(self, number: int, to: To) -> MetadError | None:
        """Why a partition is not asked, whoever lives."""
        row, r = self.rows.get((number,)), self.resource
        if row is None or r is None or row.record.state == DELETING:
            return NotFoundError(f"there is no partition {number} of {self._name()}")
        if to != "write":
            return None
        if r.state == DELETING or not r.first_partition <= number < r.write_partitions:
            why = f"those from {r.first_partition} to before {r.write_partitions} do"
        elif row.record.end is not None:
            why = f"it is sealed at {row.record.end}"
        else:
            return None
        return ConflictError(f"partition {number} of {self._name()} takes no writes: {why}")

    def _name(self) -> str:
        tenant, resource, kind = self.key
        return f"{kind} {tenant}/{resource}"
