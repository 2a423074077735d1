"""What is in flight for clients: bounded, opaque rows. The owner of the session writes and deletes them. Other
brokers may leave rows for the owner, and never delete one.

On disk such a row is the value, as it goes on the wire; the key says the rest.
"""

from __future__ import annotations

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.methods import encode
from metad_wire.tables import inflight as wire
from metad_wire.tables.inflight import INFLIGHT

from ..core.verb import Command, Verb, written
from ..core.view import View
from .session_parts import SessionParts, rows_of_sessions

PARTS = SessionParts(INFLIGHT, "state", rows_max=wire.INFLIGHT_MAX, bytes_max=wire.INFLIGHT_BYTES_MAX)


def _evaluate_put(view: View, command: Command[wire.InflightPut]) -> m.WriteReply:
    values = [encode(item.value) for item in command.rows.items]
    errors, _ = PARTS.put(view, command, values, any_owner=command.body.any_owner)
    return written(view, errors)


VERBS = (
    Verb(methods.INFLIGHT_PUT, INFLIGHT, evaluate=_evaluate_put),
    Verb(methods.INFLIGHT_DELETE, INFLIGHT, evaluate=PARTS.remove, grows=False),
    Verb(methods.INFLIGHT_GET, INFLIGHT, rows=rows_of_sessions, read=PARTS.read_get),
)
