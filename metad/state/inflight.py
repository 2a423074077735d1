"""What is in flight for clients: bounded, opaque rows. The owner of the session writes and deletes them. Other
brokers may leave rows for the owner, and never delete one.

On disk such a row is the value, as it goes on the wire; the key says the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.methods import encode
from metad_wire.tables import inflight as wire
from metad_wire.tables.inflight import INFLIGHT

from ..storage import keys
from .session_parts import Named, SessionParts, rows_of_sessions
from .tables import Command, Reader, Verb, written
from .view import View

_PARTS = SessionParts(INFLIGHT, "state", "count", rows_max=wire.INFLIGHT_MAX, bytes_max=wire.INFLIGHT_BYTES_MAX)
_STATE_HEADER = b"\x92"  # an array on the wire, of a name and a value


def _evaluate_put(view: View, command: Command[wire.InflightPut]) -> m.WriteReply:
    values = [encode(item.value) for item in command.rows.items]
    errors, _ = _PARTS.put(view, command, values, {}, any_owner=command.body.any_owner)
    return written(view, errors)


def _evaluate_delete(view: View, command: Command[wire.InflightDelete]) -> m.WriteReply:
    return written(view, _PARTS.remove(view, command))


def _read_get(reader: Reader, command: Command[wire.InflightGet]) -> wire.InflightGetReply:
    found = list(map(_states, _PARTS.read(reader, command.rows.keys, command.reply_bytes_max)))
    return wire.InflightGetReply(found)  # type: ignore[arg-type]  # encoded


def _states(rows: Named) -> list[msgspec.Raw]:
    """What is in flight for one client, as it goes on the wire."""
    return [msgspec.Raw(_STATE_HEADER + encode(keys.split_text(key, 0)[0]) + value) for key, value in rows]


def restored(view: View, sessions: Sequence[bytes], bytes_max: int) -> list[list[msgspec.Raw]]:
    """What is in flight for sessions, for a command that restores it."""
    return list(map(_states, _PARTS.restored(view, sessions, bytes_max)))


def recalled(reader: Reader, sessions: Sequence[bytes], bytes_max: int) -> list[list[msgspec.Raw]]:
    """The same for its retry."""
    return list(map(_states, _PARTS.read(reader, sessions, bytes_max)))


VERBS = (
    Verb(methods.INFLIGHT_PUT, INFLIGHT, evaluate=_evaluate_put),
    Verb(methods.INFLIGHT_DELETE, INFLIGHT, evaluate=_evaluate_delete),
    Verb(methods.INFLIGHT_GET, INFLIGHT, rows=rows_of_sessions, read=_read_get),
)
