"""``m.topics``: how many partitions and queues topics have. They grow and shrink at the tail only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metad_wire.families.core import TOPICS, Topic
from metad_wire.messages import TableRecord
from metad_wire.text.fields import U32

from ..errors import InvalidItemError, MetadError, NotFoundError, ShrinkError
from ..namespaces.tables import Compare, Put, Records, Transaction
from ..requests.requests import Requests
from ..results import RuleResult
from . import Rules, Step, checked, of_fit, only


class Resize(msgspec.Struct, frozen=True):
    """What the numbers of a topic are to be; None: as they are."""

    tenant: str
    topic: str
    partitions: U32 | None = None
    read_queues: U32 | None = None
    write_queues: U32 | None = None


class Topics(Rules):
    """What topics may become. A ``*_many`` method reports errors per item in its result; ``deadline_s`` is that of each
    request, and None means the client's default."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self._topics: Records[Topic] = Records(requests, TOPICS)

    async def resize_many(self, items: Sequence[Resize], *, deadline_s: float | None = None) -> RuleResult[Topic]:
        """Let topics grow or shrink at their tails. The result has each topic as it is then.

        *Queues*: there are never more to write than to read, so that nothing is written which nobody reads. To shrink,
        lower ``write_queues`` first; once consumers have read what the queues of the tail have, lower ``read_queues``,
        to no less than that. Growing needs one call.

        *Partitions* only grow. Where metad assigns them, ``m.assignments.topics.resize`` changes the topic and its
        resource.

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
        deadline_s: float | None = None,
    ) -> Topic:
        """Let one topic grow or shrink, as :meth:`resize_many` does. Raises the error of its item."""
        item = Resize(tenant, topic, partitions, read_queues, write_queues)
        return only(await self._resized([item], deadline_s))

    async def _resized(self, items: Sequence[Resize], deadline_s: float | None) -> list[Topic | MetadError]:
        async def look(some: Sequence[Resize]) -> list[Topic | Step[Topic] | MetadError]:
            return await self._look(some, deadline_s)

        return await of_fit(checked(items, Resize), lambda fit: self._done(fit, look, _name, deadline_s))

    async def _look(self, items: Sequence[Resize], deadline_s: float | None) -> list[Topic | Step[Topic] | MetadError]:
        """What becomes of each topic next: one that needs nothing is done."""
        topics = await self._topics.get_many([(one.tenant, one.topic) for one in items], deadline_s=deadline_s)
        return [topics.errors[at] if at in topics.errors else _next(topics[at], one) for at, one in enumerate(items)]


def _name(item: Resize) -> str:
    return f"topic {item.tenant}/{item.topic}"


def _next(found: TableRecord[Topic] | None, item: Resize) -> Topic | Step[Topic] | MetadError:
    """The topic if it is as it should be, else how it becomes that, or why it does not."""
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
    compares = [Compare(TOPICS, (now.tenant, now.topic), found.version)]
    return Step(Transaction(compares=compares, then=[Put(TOPICS, wanted)]), wanted)


def _refused(now: Topic, wanted: Topic, item: Resize) -> MetadError | None:
    """Why a topic may not become another."""
    name, read, write = _name(item), wanted.read_queues, wanted.write_queues
    if wanted.partitions == 0:
        return InvalidItemError(f"partitions: {name} needs at least one")
    if wanted.partitions < now.partitions:
        return ShrinkError(
            f"{name} has {now.partitions} partitions, and would have {wanted.partitions}: what is in the others would "
            "be lost"
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
