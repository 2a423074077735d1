"""What sessions have of a table, by its rows and by the row that counts them, and may copy them and the properties: all
must agree."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from state_rig import Rig, contents

from metad.state.core import counts
from metad_wire.messages import SessionKey
from metad_wire.table import Table
from metad_wire.tables.session import SESSION

COPIED = (0, 12, counts.COPY_BYTES_MAX)
"""Bounds of a copy: nothing fits, a short row does, or all that a test writes."""


def check_counts(rig: Rig, table: Table, part: str) -> None:
    """A session's counts say how many rows it has and how many bytes they are; without any it has no counts. If they
    have a copy of the rows, that is what they are, and it is within its bound. They have a copy of the properties if
    these are within it."""
    rig.settle()
    rows: defaultdict[bytes, list[tuple[str, Any]]] = defaultdict(list)
    sizes: defaultdict[bytes, int] = defaultdict(int)
    counted: dict[bytes, list[Any]] = {}
    properties: dict[bytes, bytes] = {}
    copied: dict[bytes, bytes] = {}
    for key, value in contents(rig.group.engine):
        row, behind = key[3], key[4:]
        if row == table.rows[part]:
            *fields, name = table.fields_of(behind, 3)
            session = SESSION.key_of(fields)
            rows[session].append((name, msgspec.msgpack.decode(value)))
            sizes[session] += len(behind) + len(value)
        elif row == SESSION.rows["parts"]:
            SessionKey(*SESSION.fields_of(behind, 2))
            each = msgspec.msgpack.decode(value)
            assert any(count[0] for count in each[: len(counts.COUNTED)]), "a session without rows has no counts"
            copied[behind] = msgspec.msgpack.encode(each[len(counts.COUNTED)]) if each[len(counts.COUNTED) :] else b""
            if (count := each[counts.COUNTED.index(table.name)])[0]:
                counted[behind] = count
        elif row == SESSION.rows["properties"]:
            properties[behind] = value
    assert {session: count[:2] for session, count in counted.items()} == {
        session: [len(of), sizes[session]] for session, of in rows.items()
    }
    for session, (*_, copy) in ((session, count) for session, count in counted.items() if len(count) > 2):
        assert copy == [[*pair] for pair in rows[session]]
        assert sizes[session] - len(copy) * len(session) <= counts.COPY_BYTES_MAX
    assert copied == {
        session: properties[session] if len(properties[session]) <= counts.COPY_BYTES_MAX else b"" for session in copied
    }
