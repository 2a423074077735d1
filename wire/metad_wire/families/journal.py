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
    """A log of messages in segments, one behind the other: how its brokers keep it. Which segments there are, who has
    them and who leads them, the rows of its resource of kind ``shard`` say."""

    tenant: str
    shard: str
    """Unique within the tenant."""
    topic: str = ""
    """Whose messages it has; empty: of none."""
    replication: Copies = 1
    """How many brokers have each segment."""
    in_sync_least: Copies = 1
    """A message is acknowledged once so many of them have it: the ``min_isr`` of the resource."""
    storage: Literal["memory", "file", "object"] = "file"
    """Where it is."""
    segment_bytes: U63 = 1_073_741_824
    """After which a segment is sealed."""
    segment_messages: Some | None = None
    """The same in messages; nil: any number."""
    retention_ms: U63 | None = None
    """For how long messages stay; nil: for ever."""


class Segment(Message, frozen=True):
    """What is in a piece of a shard, and where. Who has it, who leads it and where it ends, the ``partition`` of its
    number says."""

    tenant: str
    shard: str
    """Whose piece it is."""
    segment: U32
    """Counted from 0."""
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
