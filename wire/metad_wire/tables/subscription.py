"""Subscriptions: the topic filters of the clients of brokers, a record each.

They belong to sessions. Only the owner of the session adds and removes them, whether the client is connected or not; a
takeover leaves them to the next owner. SUBSCRIPTIONS_MAX and SUBSCRIPTION_BYTES_MAX bound those of one session.
"""

from __future__ import annotations

from typing import ClassVar

from .. import messages as m
from ..messages import Subscribed as Subscribed
from ..messages import SubscriptionOptions as SubscriptionOptions
from ..method import Lane
from ..session_part import part_key_bytes, part_keys
from ..table import Shown, Table
from ..text.fields import U63, Batch, ClientId, Filter
from .session import SESSION

SUBSCRIPTIONS_MAX = 4_096
"""Filters of one session: ``quota_exceeded``. The session's end drops them all in one entry."""
SUBSCRIPTION_BYTES_MAX = 512 * 1024
"""The same in bytes, key fields with their separators, and options: ``quota_exceeded``."""


class Subscription(m.Message, frozen=True):
    """One filter of one client."""

    tenant: str
    client_id: ClientId
    filter: Filter
    """The topic filter; ``$share/GROUP/FILTER`` is a shared subscription."""
    options: SubscriptionOptions = SubscriptionOptions()


class SubscriptionKey(m.Message, frozen=True):
    """Identity of a subscription; (tenant, client_id) routes it, as it does the session."""

    tenant: str
    client_id: ClientId
    filter: Filter


class SubscriptionAdd(m.Message, frozen=True):
    """Subscribes clients. A filter that the client has already gets the new options; if they are the same, nothing is
    written. Item errors: ``not_found`` if there is no session, ``not_owner``, ``fenced``, ``invalid_item`` if it is
    no topic filter, ``quota_exceeded``."""

    broker: str
    broker_epoch: U63
    items: Batch[Subscription]


class SubscriptionAddReply(m.Message, frozen=True):
    """False if the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"created": False}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    created: list[bool]
    """By position: the client did not have the filter before."""


class SubscriptionRemove(m.Message, frozen=True):
    """Unsubscribes clients. Item errors: ``not_found`` if there is no session or the client does not have the filter,
    ``not_owner``, ``fenced``."""

    broker: str
    broker_epoch: U63
    items: Batch[SubscriptionKey]


class SubscriptionList(m.Message, frozen=True):
    """Subscriptions in order of (tenant, client_id, filter)."""

    tenant: str | None = None
    """Nil: all."""
    client_id_prefix: ClientId = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012 - msgspec copies it
    slots: bytes = b""
    after: SubscriptionKey | None = None


SUBSCRIPTION = Table(
    "subscription",
    kind="data",
    rows={"filter": 0x12},
    record=Subscription,
    key=("tenant", "client_id", "filter"),
    routing=("tenant", "client_id"),
    part_of="session",
    key_bytes=part_key_bytes("filter"),
    shows={"filter": Shown(SubscriptionKey, SubscriptionOptions)},
    crcs=SESSION.crcs,
    keys=part_keys(SESSION, "filter"),
)
"""``filter``: the options of each."""
SUBSCRIPTION_ADD = SUBSCRIPTION.writes(0x0110, "add", SubscriptionAdd, SubscriptionAddReply, Lane.RECORDS)
SUBSCRIPTION_REMOVE = SUBSCRIPTION.writes(0x0111, "remove", SubscriptionRemove, m.WriteReply, Lane.RECORDS)
SUBSCRIPTION_GET = SUBSCRIPTION.gets(
    0x0112, "get", m.SessionKey, list[Subscribed], "All topic filters of each client, in order."
)
SUBSCRIPTION_LIST = SUBSCRIPTION.lists(
    0x0113,
    "list",
    SubscriptionList,
    Subscription,
    "Subscriptions in order of (tenant, client id, filter). ``tenant`` matches exactly, None matches any; "
    "``client_id_prefix`` needs a tenant.",
)
