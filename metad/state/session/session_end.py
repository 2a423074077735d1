"""The end of a session: everything that belongs to it goes in one entry.

What belongs to it is derived from the declarations: the rows of every table that is ``part_of`` the session's. Those of
the tables in :data:`..core.counts.COUNTED` are looked for only where a session has any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metad_wire.errors import TooLargeError
from metad_wire.tables import TABLES
from metad_wire.tables.session import SESSION

from ...storage import keys
from ..core.counts import COUNTED, decode_counts
from ..core.limits import ENDED_BYTES_MAX, LOOKED_AT_BYTES_MAX
from ..core.view import View
from . import attachments

PARTS_MAX = 20_000
"""Rows that belong to the sessions which one command ends: what an entry has room for."""
_PROPERTIES, _COUNTS = SESSION.rows["properties"], SESSION.rows["parts"]


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
    for row, deleted in _parts_of(view, sessions):
        view.writes_of(row).update(dict.fromkeys(deleted))
        room -= len(deleted)
        size += sum(map(len, deleted))
        if room < 0 or size > ENDED_BYTES_MAX:
            raise TooLargeError("what belongs to these sessions is too much for one request: name fewer of them")
    view.ended += size


def _parts_of(view: View, sessions: Sequence[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """The keys of what belongs to sessions, by row; more than there may be at most by one of each row."""
    prefix = keys.table_prefix(view.group, _COUNTS)
    stored = view.get_many([prefix + session for session in sessions], LOOKED_AT_BYTES_MAX)
    yield _COUNTS, [prefix + session for session, row in zip(sessions, stored, strict=True) if row is not None]
    counts = decode_counts(stored)
    for table in TABLES.values():
        if table.part_of != SESSION.name:
            continue
        having = sessions
        if table.name in COUNTED:
            having = [session for session, of in zip(sessions, counts, strict=True) if getattr(of, table.name).rows]
        for row in table.rows.values() if having else ():
            prefix = keys.table_prefix(view.group, row)
            deleted: list[bytes] = []
            for session in having:
                deleted += view.keys_under(row, prefix + session, PARTS_MAX + 1 - len(deleted))
                if len(deleted) > PARTS_MAX:
                    break
            yield row, deleted
