"""Sequences: counters that are added to, and nothing else."""

from __future__ import annotations

from functools import partial

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError
from metad_wire.methods import encode
from metad_wire.tables import sequence as w
from metad_wire.tables.sequence import SEQUENCE

from ...storage import keys
from ..cluster.quotas import refusal
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.verb import Command, Verb, delete_rows, mismatch, read_list, read_records
from ..core.view import View

_ROW = SEQUENCE.rows["sequence"]
_decode = msgspec.msgpack.Decoder(w.SequenceRecord).decode


def _evaluate_add(view: View, command: Command[w.SequenceAdd]) -> w.SequenceAddReply:
    rows = command.rows
    targets = list(map(keys.table_prefix(view.group, _ROW).__add__, rows.keys))
    stored = dict(zip(targets, view.get_many(targets, LOOKED_AT_BYTES_MAX), strict=True))
    writes = view.writes_of(_ROW)
    errors: list[m.ItemError] = []
    values: list[int] = []
    for position, (item, key) in enumerate(zip(rows.items, targets, strict=True)):
        row = stored[key]
        before = None if row is None else _decode(row)
        if before is None and (why := refusal(view, item.namespace)) is not None:
            errors.append(m.ItemError(position, why.code, why.message))
            values.append(0)
            continue
        value = (0 if before is None else before.value) + item.delta
        if not 0 <= value <= w.SEQUENCE_MAX:
            errors.append(mismatch(position, ConflictError, "value", value - item.delta, item.delta))
            values.append(0)
            continue
        version, created = (1, view.revision) if before is None else (before.version + 1, before.create_revision)
        stored[key] = writes[key] = encode((item.namespace, item.sequence, value, version, created, view.revision))
        values.append(value)
    return w.SequenceAddReply([m.Revision(view.name, view.revision)], errors, values)


VERBS = (
    Verb(methods.SEQUENCE_ADD, SEQUENCE, evaluate=_evaluate_add, grows=None),
    Verb(methods.SEQUENCE_GET, SEQUENCE, read=partial(read_records, row=_ROW)),
    Verb(methods.SEQUENCE_DELETE, SEQUENCE, evaluate=partial(delete_rows, row=_ROW), grows=False),
    Verb(methods.SEQUENCE_LIST, SEQUENCE, read=partial(read_list, row=_ROW)),
)
