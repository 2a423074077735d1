"""Subscriptions: a row for each filter of a client, which only the owner of its session writes.

On disk a subscription is its options; the key says the rest.
"""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import InvalidRequestError
from metad_wire.methods import encode
from metad_wire.tables import subscription as wire
from metad_wire.tables.subscription import SUBSCRIPTION

from ...storage import keys
from ..core.verb import Command, Reader, Verb, after_cursor, key_after, written
from ..core.view import View
from .session_parts import SessionParts, rows_of_sessions

PARTS = SessionParts(SUBSCRIPTION, "filter", rows_max=wire.SUBSCRIPTIONS_MAX, bytes_max=wire.SUBSCRIPTION_BYTES_MAX)
_SUBSCRIPTION_HEADER = b"\x94"  # an array on the wire, of tenant, client id, filter and options


def _evaluate_add(view: View, command: Command[wire.SubscriptionAdd]) -> wire.SubscriptionAddReply:
    items = command.rows.items
    errors, created = PARTS.put(view, command, [encode(item.options) for item in items])
    return wire.SubscriptionAddReply([m.Revision(view.name, view.revision)], errors, created)


def _evaluate_remove(view: View, command: Command[wire.SubscriptionRemove]) -> m.WriteReply:
    return written(view, PARTS.remove(view, command))


def _read_list(reader: Reader, command: Command[wire.SubscriptionList]) -> wire.SubscriptionListReply:
    body = command.body
    if body.client_id_prefix and body.tenant is None:
        raise InvalidRequestError("client_id_prefix needs a tenant")
    start = b"" if body.tenant is None else keys.text(body.tenant) + keys.text_prefix(body.client_id_prefix)
    prefix = keys.table_prefix(reader.group, PARTS.row)
    begin = after_cursor(reader.group, PARTS.row, start, body.page.cursor, key_after(SUBSCRIPTION, body.after))
    scan = reader.scan(begin, keys.after_prefix(prefix + start), body.page.limit, slots=body.slots)
    skip = len(prefix)
    found: list[msgspec.Raw] = []
    for key, options in scan.rows:
        fields = b"".join(map(encode, SUBSCRIPTION.fields_of(key[skip:], 3)))
        found.append(msgspec.Raw(_SUBSCRIPTION_HEADER + fields + options))
    cursor = b"" if scan.stopped_at is None else scan.stopped_at[skip:]
    return wire.SubscriptionListReply(found, cursor)  # type: ignore[arg-type]  # encoded


VERBS = (
    Verb(methods.SUBSCRIPTION_ADD, SUBSCRIPTION, evaluate=_evaluate_add),
    Verb(methods.SUBSCRIPTION_REMOVE, SUBSCRIPTION, evaluate=_evaluate_remove, grows=False),
    Verb(methods.SUBSCRIPTION_GET, SUBSCRIPTION, rows=rows_of_sessions, read=PARTS.read_get),
    Verb(methods.SUBSCRIPTION_LIST, SUBSCRIPTION, read=_read_list),
)
