"""What brokers of logs keep beside topics: streams that take the messages of many subjects."""

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


STREAMS = family(401, "stream", Stream, key=("tenant", "stream"))
"""The number 402 is not given again: it was the table ``topic_partition``, before metad assigned partitions."""
