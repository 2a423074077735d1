"""What brokers with queues keep beside topics: who consumes them, and how."""

from __future__ import annotations

from typing import Literal

from ..messages import Message
from ..text.fields import U32, U63
from . import family


class SubscriptionGroup(Message, frozen=True):
    """Consumers that share the messages of topics, as brokers must treat them. Who is in it now is in ``consumer``."""

    tenant: str
    group: str
    """Unique within the tenant."""
    consume: bool = True
    """Whether it may consume at all."""
    from_least: bool = True
    """Whether a consumer without an offset may begin at the oldest message."""
    broadcast: bool = True
    """Whether consumers may ask for every message each, instead of a share."""
    ordered: bool = False
    """Whether it consumes each queue in order."""
    retry_queues: U32 = 1
    """Of the topic that has messages which are to be tried again, at each broker."""
    retries_max: U32 = 16
    """Of a message, before it becomes a dead letter."""
    retry_policy: Literal["steps", "exponential"] = "steps"
    """How the time between them grows."""
    broker_id: U63 = 0
    """The copy of a broker to consume from; 0: the one that is written."""
    slow_broker_id: U63 = 1
    """The copy for consumers that lag too far behind to be served from memory."""
    notify_changes: bool = True
    """Whether consumers hear at once that others have come or gone."""
    consume_timeout_ms: U63 = 900_000
    """For how long a consumer may have a message before another gets it."""
    subscriptions: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """By topic: the expression that chooses messages; ``*``: all."""
    attributes: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Anything else that its brokers should know."""


SUBSCRIPTION_GROUPS = family(301, "subscription_group", SubscriptionGroup, key=("tenant", "group"))
