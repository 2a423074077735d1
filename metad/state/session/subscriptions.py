"""Subscriptions: a row for each filter of a client, which only the owner of its session writes.

On disk a subscription is its options; the key says the rest.
"""

from __future__ import annotations

from functools import partial

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.methods import encode
from metad_wire.tables import subscription as wire
from metad_wire.tables.subscription import SUBSCRIPTION

from ..core.verb import Command, Reader, Verb, read_list
from ..core.view import View
from .session_parts import SessionParts, rows_of_sessions

PARTS = SessionParts(SUBSCRIPTION, "filter", rows_max=wire.SUBSCRIPTIONS_MAX, bytes_max=wire.SUBSCRIPTION_BYTES_MAX)
_SUBSCRIPTION_HEADER = b"\x94"  # an array on the wire, of tenant, client id, filter and options


def _evaluate_add(view: View, command: Command[wire.SubscriptionAdd]) -> wire.SubscriptionAddReply:
    items = command.rows.items
    errors, created = PARTS.put(view, command, [encode(item.options) for item in items])
    return wire.SubscriptionAddReply([m.Revision(view.name, view.revision)], errors, created)


def _as_read(reader: Reader, suffix: bytes, options: bytes) -> msgspec.Raw:
    """A subscription as the wire has it."""
    return msgspec.Raw(_SUBSCRIPTION_HEADER + b"".join(map(encode, SUBSCRIPTION.fields_of(suffix, 3))) + options)


VERBS = (
    Verb(methods.SUBSCRIPTION_ADD, SUBSCRIPTION, evaluate=_evaluate_add),
    Verb(methods.SUBSCRIPTION_REMOVE, SUBSCRIPTION, evaluate=PARTS.remove, grows=False),
    Verb(methods.SUBSCRIPTION_GET, SUBSCRIPTION, rows=rows_of_sessions, read=PARTS.read_get),
    Verb(methods.SUBSCRIPTION_LIST, SUBSCRIPTION, read=partial(read_list, row=PARTS.row, shown=_as_read)),
)
