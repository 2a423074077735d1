"""What sessions have of a table, by its rows and by the row that counts them: both must agree."""

from __future__ import annotations

from collections import Counter

import msgspec
from state_rig import Rig, contents

from metad_wire.messages import SessionKey
from metad_wire.table import Table
from metad_wire.tables.session import SESSION


def check_counts(rig: Rig, table: Table, part: str) -> None:
    """A session's count row says how many rows it has and how many bytes they are; without rows it has none."""
    rig.settle()
    rows: Counter[bytes] = Counter()
    sizes: Counter[bytes] = Counter()
    counted: dict[bytes, tuple[int, int]] = {}
    for key, value in contents(rig.group.engine):
        row, behind = key[3], key[4:]
        if row == table.rows[part]:
            session = SESSION.key_of(table.fields_of(behind, 2))
            rows[session] += 1
            sizes[session] += len(behind) + len(value)
        elif row == table.rows["count"]:
            SessionKey(*SESSION.fields_of(behind, 2))
            counted[behind] = msgspec.msgpack.decode(value, type=tuple[int, int])
    assert counted == {session: (count, sizes[session]) for session, count in rows.items()}
