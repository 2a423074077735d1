"""``m.topics``: how many partitions and queues topics have. They grow and shrink at the tail only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from metad_wire.families.core import TOPICS, Topic
from metad_wire.families.stream import TOPIC_PARTITIONS as PARTITIONS
from metad_wire.families.stream import TopicPartition as Partition
from metad_wire.messages import TRANSACTION_ITEMS_MAX, TableRecord
from metad_wire.text.fields import U32

from ..errors import InvalidItemError, MetadError, NotFoundError, ShrinkError
from ..namespaces.tables import Compare, Delete, Put, Records, Transaction
from ..requests.requests import Requests
from ..results import RuleResult
from . import Rules, Step, checked, of_fit, only

STEP_PARTITIONS: Final = TRANSACTION_ITEMS_MAX - 2
"""How many partitions one transaction adds or takes; beside them are the topic and the first partition."""


class Resize(msgspec.Struct, frozen=True):
    """What the numbers of a topic are to be; None: as they are."""

    tenant: str
    topic: str
    partitions: U32 | None = None
    read_queues: U32 | None = None
    write_queues: U32 | None = None
    fewer_partitions: bool = False
    """Allows that partitions go, with what is in them."""
    replicas: dict[U32, list[str]] = {}
    """By number of a new partition: its brokers. All of them are in sync, and the first leads."""


class Topics(Rules):
    """What topics may become. A ``*_many`` method reports errors per item in its result; ``deadline_s`` is that of each
    request, and None means the client's default."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self._topics: Records[Topic] = Records(requests, TOPICS)
        self._partitions: Records[Partition] = Records(requests, PARTITIONS)

    async def resize_many(self, items: Sequence[Resize], *, deadline_s: float | None = None) -> RuleResult[Topic]:
        """Let topics grow or shrink at their tails. The result has each topic as it is then.

        *Queues*: there are never more to write than to read, so that nothing is written which nobody reads. To shrink,
        lower ``write_queues`` first; once consumers have read what the queues of the tail have, lower ``read_queues``,
        to no less than that. Growing needs one call.

        *Partitions* shrink only with ``fewer_partitions``. Where the topic has records in ``partitions`` (its first
        partition has one) those of the new partitions are written, and those of the tail deleted, in the transaction
        that changes the topic: a partition outside of its topic is never seen. New ones have no brokers but those that
        ``replicas`` says, which also has them written where the topic had none. More than 126 at once take several
        transactions, each of which is whole.

        Item errors: NotFoundError, ShrinkError, InvalidItemError, and ConflictError if others change the topic all the
        time. A plain put of a topic is bound by none of this.
        """
        return RuleResult(await self._resized(items, deadline_s))

    async def resize(
        self,
        tenant: str,
        topic: str,
        *,
        partitions: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        fewer_partitions: bool = False,
        replicas: dict[int, list[str]] | None = None,
        deadline_s: float | None = None,
    ) -> Topic:
        """Let one topic grow or shrink, as :meth:`resize_many` does. Raises the error of its item."""
        item = Resize(tenant, topic, partitions, read_queues, write_queues, fewer_partitions, replicas or {})
        return only(await self._resized([item], deadline_s))

    async def _resized(self, items: Sequence[Resize], deadline_s: float | None) -> list[Topic | MetadError]:
        async def look(some: Sequence[Resize]) -> list[Topic | Step[Topic] | MetadError]:
            return await self._look(some, deadline_s)

        return await of_fit(checked(items, Resize), lambda fit: self._done(fit, look, _name, deadline_s))

    async def _look(self, items: Sequence[Resize], deadline_s: float | None) -> list[Topic | Step[Topic] | MetadError]:
        """What becomes of each topic next: one that needs nothing is done."""
        topics = await self._topics.get_many([(one.tenant, one.topic) for one in items], deadline_s=deadline_s)
        steps: list[Topic | _Next | MetadError] = [
            topics.errors[at] if at in topics.errors else _next(topics[at], item) for at, item in enumerate(items)
        ]
        keys = [(at, key) for at, step in enumerate(steps) if isinstance(step, _Next) for key in step.keys]
        found = await self._partitions.get_many([key for _, key in keys], deadline_s=deadline_s)
        for place, error in found.errors.items():
            steps[keys[place][0]] = error
        known = {key for (_, key), one in zip(keys, found, strict=True) if one is not None}
        return [
            step.step(item, known) if isinstance(step, _Next) else step for step, item in zip(steps, items, strict=True)
        ]


class _Next(msgspec.Struct, frozen=True):
    """A step of a topic: what it is now, what it becomes, and whether that is all."""

    now: TableRecord[Topic]
    topic: Topic
    last: bool

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        """The partitions to look at: the first, and those that come."""
        now, then = self.now.record.partitions, self.topic.partitions
        added = range(now, then)
        return [(self.topic.tenant, self.topic.topic, number) for number in ([0, *added] if added else [])]

    def step(self, item: Resize, known: set[tuple[str, str, int]]) -> Step[Topic]:
        """As a transaction. ``known``: the partitions that have a record."""
        tenant, topic = self.topic.tenant, self.topic.topic
        compares = [Compare(TOPICS, (tenant, topic), self.now.version)]
        then: list[Put | Delete] = [Put(TOPICS, self.topic)]
        then += [
            Delete(PARTITIONS, (tenant, topic, number))
            for number in range(self.topic.partitions, self.now.record.partitions)
        ]
        tracked = (tenant, topic, 0) in known
        if self.keys and not tracked:
            compares.append(Compare(PARTITIONS, (tenant, topic, 0), 0))
        for key in self.keys[1:]:
            if key in known or not (tracked or key[2] in item.replicas):
                continue
            brokers = item.replicas.get(key[2], [])
            compares.append(Compare(PARTITIONS, key, 0))
            then.append(Put(PARTITIONS, Partition(*key, brokers, brokers, brokers[0] if brokers else "")))
        return Step(Transaction(compares=compares, then=then), self.topic if self.last else None)


def _name(item: Resize) -> str:
    return f"topic {item.tenant}/{item.topic}"


def _next(found: TableRecord[Topic] | None, item: Resize) -> Topic | _Next | MetadError:
    """The topic if it is as it should be, else the next step towards that, or why there is none."""
    if found is None:
        return NotFoundError(f"there is no {_name(item)}")
    now = found.record
    numbers = {
        name: value
        for name in ("partitions", "read_queues", "write_queues")
        if (value := getattr(item, name)) is not None
    }
    wanted = msgspec.structs.replace(now, **numbers)
    if wanted == now:
        return now
    if (refused := _refused(now, wanted, item)) is not None:
        return refused
    partitions = min(max(wanted.partitions, now.partitions - STEP_PARTITIONS), now.partitions + STEP_PARTITIONS)
    topic = msgspec.structs.replace(wanted, partitions=partitions)
    return _Next(found, topic, partitions == wanted.partitions)


def _refused(now: Topic, wanted: Topic, item: Resize) -> MetadError | None:
    """Why a topic may not become another."""
    name, read, write = _name(item), wanted.read_queues, wanted.write_queues
    if wanted.partitions == 0:
        return InvalidItemError(f"partitions: {name} needs at least one")
    if wanted.partitions < now.partitions and not item.fewer_partitions:
        return ShrinkError(
            f"{name} has {now.partitions} partitions, and would have {wanted.partitions}: what is in the others would "
            "be lost. fewer_partitions allows it"
        )
    if read < now.read_queues and read < now.write_queues:
        return ShrinkError(
            f"{name} has {now.write_queues} queues to write, so {read} to read are too few. Lower write_queues to "
            f"{read} first, and read_queues once consumers have read what the others have"
        )
    if write > read:
        return InvalidItemError(
            f"write_queues: {name} would have {write} queues to write and {read} to read: nobody would read the others"
        )
    return None
