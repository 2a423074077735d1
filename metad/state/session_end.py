"""The end of a session: everything that belongs to it goes in one entry.

What belongs to it is derived from the declarations: the rows of every table that is ``part_of`` the session's. If such
a table has a row ``count``, a session without that row has none of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metad_wire.errors import TooLargeError
from metad_wire.messages import CHANGE_BYTES_MAX
from metad_wire.table import Table
from metad_wire.tables import TABLES
from metad_wire.tables.session import SESSION

from ..storage import keys
from . import attachments
from .limits import LOOKED_AT_BYTES_MAX
from .view import View

PARTS_MAX = 20_000
"""Rows that belong to the sessions which one command ends: what an entry has room for."""
_PARTS_BYTES_MAX = CHANGE_BYTES_MAX // 2  # of their keys
_PROPERTIES = SESSION.rows["properties"]


def end_sessions(view: View, sessions: Sequence[bytes]) -> None:
    """Delete what belongs to sessions, their properties, and what is noted of their attachments. The caller deletes the
    owner rows, and what is due by them. Raises TooLargeError if that is too much for an entry."""
    end_parts(view, sessions)
    attachments.ended(view, sessions)
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    view.writes_of(_PROPERTIES).update(dict.fromkeys(map(prefix.__add__, sessions)))


def end_parts(view: View, sessions: Sequence[bytes]) -> None:
    """Delete what belongs to sessions, but none of their own rows: they begin anew."""
    if not sessions:
        return
    room, size = PARTS_MAX, 0
    for table in TABLES.values():
        if table.part_of != SESSION.name:
            continue
        for row, deleted in _rows_of(view, table, sessions, room):
            view.writes_of(row).update(dict.fromkeys(deleted))
            room -= len(deleted)
            size += sum(map(len, deleted))
            if room < 0 or size > _PARTS_BYTES_MAX:
                raise TooLargeError("what belongs to these sessions is too much for one request: name fewer of them")


def _rows_of(view: View, table: Table[Any], sessions: Sequence[bytes], room: int) -> list[tuple[int, list[bytes]]]:
    """The keys of a table that belong to sessions, by row; more than there is room for at most by one."""
    found: list[tuple[int, list[bytes]]] = []
    for name, row in sorted(table.rows.items(), key=lambda one: one[0] != "count"):
        prefix = keys.table_prefix(view.group, row)
        if name == "count":
            counts = [prefix + session for session in sessions]
            there = [value is not None for value in view.get_many(counts, LOOKED_AT_BYTES_MAX)]
            found.append((row, [key for key, is_there in zip(counts, there, strict=True) if is_there]))
            sessions = [session for session, is_there in zip(sessions, there, strict=True) if is_there]
            continue
        deleted: list[bytes] = []
        for session in sessions:
            deleted += view.keys_under(row, prefix + session, room + 1 - len(deleted))
            if len(deleted) > room:
                break
        found.append((row, deleted))
    return found
