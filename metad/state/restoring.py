"""What a takeover restores of what belongs to sessions: their subscriptions, and what is in flight for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from metad_wire import messages as m

from . import inflight, session_parts, subscriptions
from .counts import Counts
from .tables import Command, Reader
from .view import View

Column: TypeAlias = list[msgspec.Raw | None]
"""By position, all rows of a session; None where no session is restored."""
_PARTS: Final = (subscriptions.PARTS, inflight.PARTS)


class Present(NamedTuple):
    """The sessions that a takeover restores."""

    are: list[bool]
    """Whether it restores the session, by position."""
    sessions: Sequence[bytes]
    """Those that it restores."""

    def column(self, found: Sequence[msgspec.Raw]) -> Column:
        """What was found of the sessions that are restored, by position."""
        if len(found) == len(self.are):
            return [*found]
        rows = iter(found)
        return [next(rows) if is_present else None for is_present in self.are]


def present(command: Command[m.SessionTakeover], previous: Sequence[int]) -> Present:
    """Those of a takeover that found ``previous``: it restores none that begins."""
    items, sessions = command.rows.items, command.rows.keys
    are = [number >= 0 and not item.clean_start for number, item in zip(previous, items, strict=True)]
    if not all(are):
        sessions = [session for session, is_present in zip(sessions, are, strict=True) if is_present]
    return Present(are, sessions)


def restored_parts(view: View, of: Present, counts: Sequence[Counts], left: int) -> tuple[Column, Column]:
    """The subscriptions of sessions, and what is in flight for them. Raises TooLargeError if they are more than the
    ``left`` bytes that the reply has room for beside the properties."""
    found = session_parts.restored(view, _PARTS, of.sessions, counts, left)
    return of.column(found[0].rows), of.column(found[1].rows)


def recalled_parts(
    reader: Reader, command: Command[m.SessionTakeover], previous: Sequence[int], left: int
) -> tuple[Column, Column]:
    """The same for a retry, as it is now: the broker itself may have changed it since, and others may have left
    something in flight. No columns if the request does not ask for them."""
    if not command.body.restore_parts:
        return [], []
    of = present(command, previous)
    found = session_parts.read(reader, _PARTS, of.sessions, left)
    return of.column(found[0].rows), of.column(found[1].rows)
