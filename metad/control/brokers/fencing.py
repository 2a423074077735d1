"""Which fences have yet to come to which groups, and which may be forgotten. Pure.

A fence must come to every group, because every group may take writes of a broker: metadata-0 itself has the tables that
programs declare. A group has it once it has acknowledged all that the fence says, whichever of that is new.

Every group keeps a fence for each broker. Where brokers take a new name at each start, the ended ones would fill the
registry. They are forgotten, the first that ended first, once the registry is nearly full: those that their owner or an
administrator has ended at once, the others once a day has passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from metad_wire.cluster import ClusterMap, FenceItem, GroupId
from metad_wire.tables import broker as b
from metad_wire.tables.broker import Broker
from metad_wire.text.fields import BATCH_ITEMS_MAX

NAMES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of all names, see :func:`bytes_of`. Who registers shares it with others, see :class:`FairRoom`."""
NAME_BYTES: Final = 1_024
"""What a name takes at least: what leaders and groups keep of it in memory."""
_FENCE_SHARE: Final = 13
_FENCE_BYTES: Final = 48  # of a fence's row, beside the name
FORGET_FROM: Final = NAMES_BYTES_MAX * 7 // 8
"""From so many bytes of names on, those that ended are forgotten."""
FORGET_AFTER_MS: Final = 24 * 3_600_000
"""After their end. Nothing that a life of theirs has sent is under way by then."""
AT_ONCE_MAX: Final = 256


def bytes_of(name: str, record_bytes: int) -> int:
    """What a name takes of :data:`NAMES_BYTES_MAX`. Every group has a fence of each, and one entry of an adoption of
    slots carries all of them: a thirteenth of the room, 1.3 MB, beside what else may be in it."""
    return max(NAME_BYTES, record_bytes, _FENCE_SHARE * (len(name.encode()) + _FENCE_BYTES))


class Taken:
    """What names take of the room, freed ones too."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.total = 0

    def by(self, name: str, size: int) -> None:
        """A name takes so many bytes from now on; 0: none."""
        self.total += size - self.sizes.pop(name, 0)
        if size:
            self.sizes[name] = size


def to_forget(records: Iterable[Broker], size: int, now_ms: int) -> list[Broker]:
    """The brokers to forget next, of all records, whose names take ``size`` bytes."""
    if size < FORGET_FROM:
        return []
    ended = [
        record
        for record in records
        if record.state not in b.LIVE
        and record.told
        and record.quiet_epoch == record.least_epoch
        and (record.freed or record.changed_ms + FORGET_AFTER_MS <= now_ms)
    ]
    ended.sort(key=lambda record: (not record.freed, record.changed_ms))
    return ended[:AT_ONCE_MAX]


def groups_to_fence(known: ClusterMap) -> list[GroupId]:
    """The groups that have fences of brokers: all of them."""
    return [record.group_id for record in known.groups]


class Fencing:
    """The fences that some group may lack, and what each group has acknowledged of them to this leader."""

    def __init__(self) -> None:
        self._wanted: dict[str, FenceItem] = {}
        self._acknowledged: dict[GroupId, dict[str, FenceItem]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, fence: FenceItem) -> None:
        """All groups shall have this fence, merged with what they shall have of the broker already."""
        self._wanted[fence.broker] = _merged(self._wanted.get(fence.broker), fence)

    def done(self, fence: FenceItem) -> None:
        """It is noted that all groups have this fence."""
        known = self._wanted.get(fence.broker)
        if known is not None and _has(fence, known):
            del self._wanted[fence.broker]
            for acknowledged in self._acknowledged.values():
                acknowledged.pop(fence.broker, None)

    def lacking(self, group: GroupId) -> list[FenceItem]:
        """The fences that a group has to be told of, as many as fit a request."""
        has = self._acknowledged.get(group, {})
        lacking = [fence for broker, fence in self._wanted.items() if not _has(has.get(broker), fence)]
        return lacking[:BATCH_ITEMS_MAX]

    def acknowledged(self, group: GroupId, fences: Iterable[FenceItem]) -> None:
        """A group has these fences."""
        has = self._acknowledged.setdefault(group, {})
        for fence in fences:
            if fence.broker in self._wanted:
                has[fence.broker] = _merged(has.get(fence.broker), fence)

    def everywhere(self, groups: Collection[GroupId]) -> list[FenceItem]:
        """The fences that all these groups have, as many as fit a request."""
        known = [self._acknowledged.get(group, {}) for group in groups]
        everywhere = (
            fence for fence in self._wanted.values() if all(_has(has.get(fence.broker), fence) for has in known)
        )
        return [*islice(everywhere, BATCH_ITEMS_MAX)]

    def unfenced(self, broker: str, groups: Collection[GroupId]) -> list[str]:
        """The groups that lack the broker's fence, by name."""
        fence = self._wanted.get(broker)
        if fence is None:
            return []
        has = {group: self._acknowledged.get(group, {}).get(broker) for group in groups}
        return [group.name for group, known in has.items() if known is None or known.least_epoch < fence.least_epoch]


def _merged(known: FenceItem | None, fence: FenceItem) -> FenceItem:
    return fence if known is None else known.merged(fence)


def _has(known: FenceItem | None, fence: FenceItem) -> bool:
    """Whether who was told the first was told all of the second, which is newer if they differ."""
    return known is fence or (known is not None and known.values == fence.values)
