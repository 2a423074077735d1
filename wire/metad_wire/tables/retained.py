"""Retained messages: the last message of each topic, for later subscribers.

Tenant and topic route a message together, so the topics of one tenant are spread over all groups: a filter is put to
every group, and each has a part of the answer. What a topic may be: see Topics, filters and client ids. A message that
has expired is not read any more. The group deletes it some time later, and watches show that as ``expired``.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from .. import messages as m
from ..method import Lane
from ..table import Shown, Table
from ..text.fields import U32, U63, Batch, Topic, UnsharedFilter

Qos = Annotated[int, Meta(ge=0, le=2)]


class RetainedKey(m.Message, frozen=True):
    """Identity of a retained message; both fields route it."""

    tenant: str
    topic: Topic


class Retained(m.Message, frozen=True):
    """A retained message as read."""

    tenant: str
    topic: Topic
    payload: bytes
    """Never empty."""
    qos: Qos = 0
    properties: bytes = b""
    """The broker's own encoding of the rest."""
    expires_ms: U63 = 0
    """Unix time in milliseconds by the time of the group's log, which is late behind an outage; 0: never."""
    revision: U63 = 0
    """Index of the revision of the entry that wrote it."""


class RetainedPutItem(m.Message, frozen=True):
    """A message that its topic retains from now on, in place of the one before."""

    tenant: str
    topic: Topic
    payload: bytes
    """Empty: delete the message, if there is one."""
    qos: Qos = 0
    properties: bytes = b""
    """The broker's own encoding of the rest."""
    expiry_interval_s: U32 | None = None
    """Seconds from the write on; nil: never."""


class RetainedPut(m.Message, frozen=True):
    """Each message replaces the one that its topic retained. An item whose topic is no name that anybody may publish to
    fails with ``invalid_item``."""

    items: Batch[RetainedPutItem]


class RetainedDeleteItem(m.Message, frozen=True):
    """Names one message to delete."""

    tenant: str
    topic: Topic
    revision: U63 = 0
    """Delete only what this entry wrote; 0: unchecked."""


class RetainedDelete(m.Message, frozen=True):
    """Deletes messages, also expired ones that are still there. An item without a message fails with ``not_found``; one
    whose ``revision`` is not that of the message with ``conflict``, and ``current`` is the revision of the message."""

    items: Batch[RetainedDeleteItem]


class RetainedMatch(m.Message, frozen=True):
    """The messages of a tenant whose topics match a filter. Ask every group of kind ``data`` for the slots that it
    holds by the map: see Listings. ``invalid_request`` for a filter that is wrong or shared. The work
    grows with the values that each ``+`` of the filter takes, not with the number of topics."""

    tenant: str
    filter: UnsharedFilter
    """At most 256 levels, and no ``$share``."""
    slots: bytes = b""
    after: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it


def _value_bytes(item: Any) -> int:
    return len(item.payload) + len(item.properties) if isinstance(item, RetainedPutItem) else 0


RETAINED = Table(
    "retained",
    kind="data",
    rows={"message": 0x40},
    record=Retained,
    key=("tenant", "topic"),
    value_bytes=_value_bytes,
    shows={"message": Shown(RetainedKey, Retained)},
)
RETAINED_PUT = RETAINED.writes(0x0400, "put", RetainedPut, m.WriteReply, Lane.RECORDS)
RETAINED_GET = RETAINED.gets(
    0x0401, "get", RetainedKey, Retained, "The message that each topic retains and that has not expired."
)
RETAINED_DELETE = RETAINED.writes(0x0402, "delete", RetainedDelete, m.WriteReply, Lane.RECORDS)
RETAINED_MATCH = RETAINED.lists(
    0x0403,
    "match",
    RetainedMatch,
    Retained,
    "The messages of a tenant whose topics match a filter of MQTT, in order of the topic. Raises InvalidRequestError "
    "if the filter is not right, or is of a shared subscription, which MQTT sends no retained messages.",
    order=("topic",),
)
