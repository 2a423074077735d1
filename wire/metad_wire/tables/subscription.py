"""Subscriptions: the topic filters of the clients of brokers, a row each. They belong to sessions."""

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

SUBSCRIPTIONS_MAX = 4_096  # of one session: its end drops them all, in one entry of the log
SUBSCRIPTION_BYTES_MAX = 512 * 1024  # of one session's together: key fields with their separators, and options


class Subscription(m.Message, frozen=True):
    """One filter of one client. ``filter`` may be of a shared subscription (``$share/GROUP/FILTER``)."""

    tenant: str
    client_id: ClientId
    filter: Filter
    options: SubscriptionOptions = SubscriptionOptions()


class SubscriptionKey(m.Message, frozen=True):
    """Identity of a subscription; (tenant, client_id) routes it, as it does the session."""

    tenant: str
    client_id: ClientId
    filter: Filter


class SubscriptionAdd(m.Message, frozen=True):
    """Subscribe clients whose sessions belong to this life of a broker. A filter that the client has gets these
    options. Item errors: not_found (there is no session), not_owner, fenced, invalid_item (it is no filter),
    quota_exceeded."""

    broker: str
    broker_epoch: U63
    items: Batch[Subscription]


class SubscriptionAddReply(m.Message, frozen=True):
    """``created[i]``: the client did not have the filter of item i before. False if the item failed."""

    columns: ClassVar[dict[str, int | None]] = {"created": False}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    created: list[bool]


class SubscriptionRemove(m.Message, frozen=True):
    """Unsubscribe clients whose sessions belong to this life of a broker. Item errors: not_found (there is no session,
    or it does not have the filter), not_owner, fenced."""

    broker: str
    broker_epoch: U63
    items: Batch[SubscriptionKey]


class SubscriptionList(m.Message, frozen=True):
    """Subscriptions in order of (tenant, client_id, filter). ``tenant`` matches exactly (None: any);
    ``client_id_prefix`` needs a tenant. ``slots`` and ``after`` are those of a SessionList."""

    tenant: str | None = None
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
    "``client_id_prefix`` needs a tenant. Writes made while the listing runs may be in it or not.",
)
