"""What brokers of AMQP 0-9-1 keep: the exchanges, queues and bindings that their clients declare. A durable one is
declared once; any other lasts as long as its broker.

An exchange lives with its bindings in one group. The value of an argument is JSON, because those of AMQP have types:
``60000`` is a number, and ``"dead"`` a text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..messages import Message
from . import family


class Exchange(Message, frozen=True):
    """Takes messages, and gives them to the queues and exchanges that are bound to it."""

    tenant: str
    vhost: str
    """The virtual host; ``/`` by default."""
    exchange: str
    """Unique within the virtual host."""
    type: Annotated[str, Meta(min_length=1)] = "direct"
    """By what it chooses: ``direct``, ``fanout``, ``topic``, ``headers``, or the type of a plugin."""
    durable: bool = True
    """Whether it outlives its broker."""
    auto_delete: bool = False
    """Whether it goes with its last binding."""
    internal: bool = False
    """Whether only other exchanges may publish to it."""
    arguments: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """By name, as JSON."""


class Queue(Message, frozen=True):
    """Keeps messages until consumers acknowledge them."""

    tenant: str
    vhost: str
    """The virtual host; ``/`` by default."""
    queue: str
    """Unique within the virtual host."""
    type: Literal["classic", "quorum", "stream"] = "classic"
    """How it keeps them: at one broker, at several that agree, or as a log."""
    durable: bool = True
    """Whether it outlives its broker."""
    exclusive: bool = False
    """Whether it is of one connection only, and goes with it."""
    auto_delete: bool = False
    """Whether it goes with its last consumer."""
    arguments: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """By name, as JSON."""


class Binding(Message, frozen=True):
    """Gives messages of an exchange to a queue or another exchange."""

    tenant: str
    vhost: str
    """The virtual host of both."""
    source: str
    """Name of the exchange."""
    destination_type: Literal["queue", "exchange"]
    """What gets the messages."""
    destination: str
    """Its name."""
    properties_key: str
    """Tells bindings of the same two apart: the routing key, with ``~`` and a hash of the arguments if there are
    any."""
    routing_key: str = ""
    """The messages that it is about, as the type of the exchange says."""
    arguments: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """By name, as JSON: what an exchange of type ``headers`` compares."""


EXCHANGES = family(501, "exchange", Exchange, key=("tenant", "vhost", "exchange"))
QUEUES = family(502, "queue", Queue, key=("tenant", "vhost", "queue"))
BINDINGS = family(
    503,
    "binding",
    Binding,
    key=("tenant", "vhost", "source", "destination_type", "destination", "properties_key"),
    routing=("tenant", "vhost", "source"),
)
