"""What brokers of logs keep beside topics: streams that take the messages of many subjects, and who has a partition."""

from __future__ import annotations

from typing import Literal

from ..messages import Message
from ..text.fields import U32, U63
from . import family
from .core import Copies


class Stream(Message, frozen=True):
    """Stores the messages of some subjects."""

    tenant: str
    stream: str
    """Unique within the tenant."""
    subjects: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Patterns of the broker's protocol; none: the stream's own name."""
    retention: Literal["limits", "interest", "work_queue"] = "limits"
    """Until when a message stays: as the limits say, until all consumers have it, or until one has it."""
    storage: Literal["file", "memory"] = "file"
    """Where its messages are."""
    replication: Copies = 1
    """How many brokers have it."""
    discard: Literal["old", "new"] = "old"
    """What goes when a limit is reached: the oldest messages, or the one that comes."""
    messages_max: U63 | None = None
    """That stay; nil: any number."""
    retention_bytes: U63 | None = None
    """That stay; nil: any number."""
    retention_ms: U63 | None = None
    """For how long they stay; nil: for ever."""
    message_bytes: U32 | None = None
    """Of one message, at most; nil: as the broker is configured."""
    duplicates_ms: U63 = 120_000
    """For how long the broker remembers ids of messages, and drops those that come twice."""
    attributes: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Anything else that its brokers should know."""


class TopicPartition(Message, frozen=True):
    """A partition of a topic: the brokers that have it, and which of them leads. All of them by their names."""

    tenant: str
    topic: str
    """Whose messages it has a part of."""
    partition: U32
    """Counted from 0."""
    replicas: list[str]
    """Brokers that should have it; the first one leads whenever it can."""
    in_sync: list[str]
    """Of these: those that have every message which was acknowledged."""
    leader: str = ""
    """Of these: the one that serves it; empty: none does."""
    leader_epoch: U32 = 0
    """Grows with each new leader: messages of an older one are refused."""
    partition_epoch: U32 = 0
    """Grows with each change of this record, so that a late one is refused."""
    adding: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Brokers that are to have it, and copy it."""
    removing: list[str] = []  # noqa: RUF012 - msgspec copies it
    """Brokers that leave once the others are in sync."""
    recovering: bool = False
    """Whether the leader may lack messages, because no broker in sync was left."""


STREAMS = family(401, "stream", Stream, key=("tenant", "stream"))
TOPIC_PARTITIONS = family(
    402, "topic_partition", TopicPartition, key=("tenant", "topic", "partition"), routing=("tenant", "topic")
)
