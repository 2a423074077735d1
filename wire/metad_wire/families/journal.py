"""What brokers keep that store messages in a journal of their own: its shards, and the segments that these consist of.

A shard lives with its segments in one group.
"""

from __future__ import annotations

from typing import Literal

from ..messages import Message
from ..text.fields import U32, U63
from . import family
from .core import Copies, Some


class Shard(Message, frozen=True):
    """A log of messages in segments, one behind the other."""

    tenant: str
    shard: str
    """Unique within the tenant."""
    topic: str = ""
    """Whose messages it has; empty: of none."""
    state: Literal["serving", "deleting", "deleted"] = "serving"
    """Whether it is used; a deleted one stays until no broker has any of it."""
    first_segment: U32 = 0
    """The oldest that is left."""
    active_segment: U32 = 0
    """The one that is written."""
    last_segment: U32 = 0
    """The newest: the active one, or one that is prepared."""
    replication: Copies = 1
    """How many brokers have each segment."""
    in_sync_least: Copies = 1
    """A message is acknowledged once so many of them have it."""
    storage: Literal["memory", "file", "object"] = "file"
    """Where it is."""
    segment_bytes: U63 = 1_073_741_824
    """After which a segment is sealed."""
    segment_messages: Some | None = None
    """The same in messages; nil: any number."""
    retention_ms: U63 | None = None
    """For how long messages stay; nil: for ever."""


class Segment(Message, frozen=True):
    """A piece of a shard: the brokers that have it, by name, and what is in it."""

    tenant: str
    shard: str
    """Whose piece it is."""
    segment: U32
    """Counted from 0."""
    state: Literal["writing", "sealing", "sealed", "deleting", "unavailable"] = "writing"
    """What may be done with it: it is read in all of these but the last two."""
    replicas: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Brokers that should have it."""
    in_sync: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Of these: those that have every message which was acknowledged."""
    leader: str = ""
    """Of these: the one that takes messages; empty: none does."""
    leader_epoch: U32 = 0
    """Grows with each new leader: messages of an older one are refused."""
    segment_epoch: U32 = 0
    """Grows with each change of this record, so that a late one is refused."""
    folders: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """By broker: the directory that has it."""
    first_offset: U63 | None = None
    """Of the first message; nil: there is none yet."""
    last_offset: U63 | None = None
    """Of the last one; nil: it is not sealed yet."""
    first_at_ms: U63 | None = None
    """Unix time of the first message; nil: there is none yet."""
    last_at_ms: U63 | None = None
    """Of the last one; nil: it is not sealed yet."""


SHARDS = family(601, "shard", Shard, key=("tenant", "shard"))
SEGMENTS = family(602, "segment", Segment, key=("tenant", "shard", "segment"), routing=("tenant", "shard"))
