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
    """Unique within the tenant. Rules are applied in the order of their names."""
    action: Literal["publish", "subscribe", "all"]
    """When it is applied."""
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
    """At most, of what is delivered."""
    no_local: bool = False
    """Whether the client is spared its own messages."""
    retain_as_published: bool = False
    """Whether messages keep their retain flag."""
    retain_handling: RetainHandling = 0
    """What the client gets of retained messages: 0 all, 1 all if the subscription is new, 2 none."""


class TopicSettings(Message, frozen=True):
    """How a broker treats the messages of one topic."""

    tenant: str
    topic: Topic
    """Its name, without wildcards."""
    storage: Literal["memory", "durable"] = "memory"
    """Whether a message that waits for a client outlives the broker."""
    expiry_ms: U63 | None = None
    """After which a message is not delivered any more; None: never."""
    attributes: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Anything else that its brokers should know."""


TOPIC_REWRITES = family(101, "topic_rewrite", TopicRewrite, key=("tenant", "rule"), routing=("tenant",), plural="rules")
AUTO_SUBSCRIPTIONS = family(102, "auto_subscription", AutoSubscription, key=("tenant", "filter"), routing=("tenant",))
TOPIC_SETTINGS = family(103, "topic_settings", TopicSettings, key=("tenant", "topic"), plural="topic-settings")
