"""What MQTT brokers keep beside sessions, subscriptions, wills and retained messages."""

from __future__ import annotations

from typing import Literal

from ..messages import Message
from ..text.fields import U63, Filter, Qos, RetainHandling, Topic
from . import family


class TopicRewrite(Message, frozen=True):
    """A rule by which a broker gives a topic another name."""

    tenant: str
    rule: str
    """Rules are applied in the order of their names."""
    action: Literal["publish", "subscribe", "all"]
    source: Filter
    """The topics that it is about."""
    regex: str
    """What it finds in them."""
    target: str
    """What they become; ``$1`` is the first group of ``regex``."""


class AutoSubscription(Message, frozen=True):
    """A topic filter to which a broker subscribes each client that connects."""

    tenant: str
    filter: Filter
    """``%c`` stands for the client id, ``%u`` for the name of the user."""
    qos: Qos = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: RetainHandling = 0


class TopicSettings(Message, frozen=True):
    """How a broker treats the messages of one topic."""

    tenant: str
    topic: Topic
    storage: Literal["memory", "durable"] = "memory"
    expiry_ms: U63 | None = None
    """After which a message is not delivered any more; None: never."""
    attributes: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it


TOPIC_REWRITES = family(101, "topic_rewrite", TopicRewrite, key=("tenant", "rule"), routing=("tenant",), plural="rules")
AUTO_SUBSCRIPTIONS = family(102, "auto_subscription", AutoSubscription, key=("tenant", "filter"), routing=("tenant",))
TOPIC_SETTINGS = family(103, "topic_settings", TopicSettings, key=("tenant", "topic"), plural="topic-settings")
