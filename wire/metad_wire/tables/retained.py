"""Retained messages: the last one of each topic, for whoever subscribes later.

A topic and its tenant route a message, so the topics of one tenant are spread over all groups, and so is the work of a
broker that retains much. The price is that a filter is put to every group, each of which has a part of the answer.
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
    """A retained message as read. ``properties`` are the broker's own encoding of the rest. ``expires_ms`` is Unix
    time, 0 if it never expires; no read returns a message from then on, and the group deletes it some time later.
    ``revision`` is that of the entry that wrote it."""

    tenant: str
    topic: Topic
    payload: bytes
    qos: Qos = 0
    properties: bytes = b""
    expires_ms: U63 = 0
    revision: U63 = 0


class RetainedPutItem(m.Message, frozen=True):
    """A message that its topic retains from now on, in place of the one before. An empty ``payload`` deletes that one,
    as MQTT has it, and is no error if there is none. ``expiry_interval_s`` counts from the write (None: it never
    expires)."""

    tenant: str
    topic: Topic
    payload: bytes
    qos: Qos = 0
    properties: bytes = b""
    expiry_interval_s: U32 | None = None


class RetainedPut(m.Message, frozen=True):
    """Retain messages. Item errors: invalid_item (no topic that anybody may publish to)."""

    items: Batch[RetainedPutItem]


class RetainedDeleteItem(m.Message, frozen=True):
    """``revision`` (0: unchecked) makes it a compare-and-delete."""

    tenant: str
    topic: Topic
    revision: U63 = 0


class RetainedDelete(m.Message, frozen=True):
    """Delete retained messages. Item errors: not_found; conflict (another write than ``revision`` was the last)."""

    items: Batch[RetainedDeleteItem]


class RetainedMatch(m.Message, frozen=True):
    """The messages of one tenant whose topics match ``filter`` and are greater than ``after``, in order of the topic's
    UTF-8. The filter is not of a shared subscription: those are not sent retained messages. Each group is asked for
    those of ``slots``, a bit map of those that it holds by the client's map; if it does not, it answers stale_route.
    None named: those that it happens to hold."""

    tenant: str
    filter: UnsharedFilter
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
