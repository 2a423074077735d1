"""Consumer offsets, and the generations of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar
from zlib import crc32

from .. import messages as m
from ..key import text, text2, u32
from ..method import For, Lane
from ..table import Keys, Shown, Table
from ..text.fields import U32, U63, Batch


class KnownGroup(m.Message, frozen=True):
    """A consumer group that has committed something: it has offsets, a generation, or both."""

    tenant: str
    group: str
    generation: U63
    """0: none."""


class OffsetGroups(m.Message, frozen=True):
    """The consumer groups of a tenant that have offsets or a generation, with their generations. Ask every group of
    kind ``offset`` for the slots that it holds by the map: see Listings."""

    tenant: str
    prefix: str = ""
    slots: bytes = b""
    after: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it


class OffsetDeleteGroups(m.Message, frozen=True):
    """Deletes everything of consumer groups that have no members: the offsets and, with the last of them, the
    generation. One request deletes a bounded number of rows: ask again for the groups in ``left``, until none is.
    Item error: ``conflict`` if the group has members."""

    items: Batch[m.ConsumerGroup]


class OffsetDeleteGroupsReply(m.Message, frozen=True):
    """By position: how many offsets of the group were deleted, and whether something of it is left, so that the client
    asks again."""

    columns: ClassVar[dict[str, int | None]] = {"deleted": 0, "left": False}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    deleted: list[U32]
    left: list[bool]


class OffsetExpireGroups(m.Message, frozen=True):
    """Delete everything of those of these consumer groups that have no members, and have had none and have committed
    nothing since ``before_ms``."""

    items: Batch[m.ConsumerGroup]
    before_ms: U63
    """Since when nobody has used them."""


def _crcs(items: Sequence[Any]) -> Iterable[int]:
    # A consumer commits all its partitions together, so its group is looked up more often than encoded.
    known: dict[tuple[str, str], int] = {}
    crcs: list[int] = []
    for item in items:
        key = (item.tenant, item.group)
        crc = known.get(key)
        if crc is None:
            crc = known[key] = crc32(text2(*key))
        crcs.append(crc)
    return crcs


def _keys(items: Sequence[Any]) -> Keys:
    # Consumers commit all their partitions together: the group's part of the key is built once per group.
    groups: dict[tuple[str, str], tuple[bytes, int]] = {}
    topics: dict[str, bytes] = {}
    keys: list[bytes] = []
    crcs: list[int] = []
    for item in items:
        known = groups.get((item.tenant, item.group))
        if known is None:
            prefix = text2(item.tenant, item.group)
            known = groups[item.tenant, item.group] = (prefix, crc32(prefix))
        topic = topics.get(item.topic)
        if topic is None:
            topic = topics[item.topic] = text(item.topic)
        keys.append(known[0] + topic + u32(item.partition))
        crcs.append(known[1])
    return keys, crcs


def _key_bytes(item: Any) -> int:
    group = len(text2(item.tenant, item.group))
    if isinstance(item, m.ConsumerGroup | m.GenerationReset):
        return group
    return group + len(text(item.topic)) + len(u32(item.partition))


def _value_bytes(item: Any) -> int:
    return len(item.metadata.encode()) if isinstance(item, m.OffsetCommitItem) else 0


OFFSET = Table(
    "offset",
    kind="offset",
    rows={"offset": 0x20, "generation": 0x21},
    record=m.Offset,
    key=("tenant", "group", "topic", "partition"),
    routing=("tenant", "group"),
    key_bytes=_key_bytes,
    value_bytes=_value_bytes,
    row_cache=True,
    shows={"offset": Shown(m.OffsetKey, m.Offset), "generation": Shown(m.ConsumerGroup, int)},
    crcs=_crcs,
    keys=_keys,
)
OFFSET_COMMIT = OFFSET.writes(0x0201, "commit", m.OffsetCommit, m.WriteReply, Lane.RECORDS)
OFFSET_FETCH = OFFSET.gets(0x0202, "fetch", m.OffsetKey, m.Offset, "The offset that was committed last for each key.")
OFFSET_DELETE = OFFSET.batches(0x0203, "delete", m.OffsetKey, "Delete offsets. Item errors: not_found.", named="keys")
OFFSET_LIST = OFFSET.lists(
    0x0204, "list", m.OffsetList, m.Offset, "The offsets of a consumer group, in order of (topic, partition)."
)
OFFSET_GENERATIONS = OFFSET.reads(0x0205, "generations", m.OffsetGenerations, m.OffsetGenerationsReply, Lane.SCANS)
OFFSET_RESET_GENERATIONS = OFFSET.writes(
    0x0206, "reset_generations", m.OffsetResetGenerations, m.WriteReply, Lane.RECORDS
)
OFFSET_DELETE_GROUPS = OFFSET.writes(0x0210, "delete_groups", OffsetDeleteGroups, OffsetDeleteGroupsReply, Lane.RECORDS)
OFFSET_EXPIRE_GROUPS = OFFSET.writes(
    0x021E, "expire_groups", OffsetExpireGroups, OffsetDeleteGroupsReply, Lane.SCANS, whose=For.NODES
)
OFFSET_GROUPS = OFFSET.lists(
    0x0220,
    "groups",
    OffsetGroups,
    KnownGroup,
    "The consumer groups of a tenant that have offsets or a generation, in order of their names.",
    order=("group",),
)
