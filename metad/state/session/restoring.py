"""What a takeover restores of what belongs to sessions: their subscriptions, and what is in flight for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from metad_wire import messages as m

from ..core.counts import Counts
from ..core.verb import Command, Reader
from ..core.view import View
from . import inflight, session_parts, subscriptions
from .session_parts import Found

Column: TypeAlias = list[msgspec.Raw | None]
"""By position, all rows of a session; None where no session is restored."""
_PARTS: Final = (subscriptions.PARTS, inflight.PARTS)


class Kept(NamedTuple):
    """What is kept of the sessions that a takeover restores."""

    are: list[bool]
    """Whether it restores the session, by position."""
    sessions: Sequence[bytes]
    """Those that it restores."""
    counts: Sequence[Counts]
    """What they have."""

    def columns(self, found: Sequence[Found]) -> tuple[Column, Column]:
        """What was found of the sessions that are restored, by table."""
        subscribed, in_flight = (self._column(part.rows) for part in found)
        return subscribed, in_flight

    def _column(self, found: Sequence[msgspec.Raw]) -> Column:
        if len(found) == len(self.are):
            return [*found]
        rows = iter(found)
        return [next(rows) if is_present else None for is_present in self.are]


def look_up(
    source: View | Reader,
    command: Command[m.SessionTakeover],
    previous: Sequence[int],
    known: Mapping[bytes, Counts] | None = None,
) -> Kept | None:
    """What a takeover restores that found ``previous``: nothing of sessions that begin. None if the request does not
    ask for it. ``known``: what all its sessions have, if that has been looked up."""
    if not command.body.restore_parts:
        return None
    items, sessions = command.rows.items, command.rows.keys
    are = [number >= 0 and not item.clean_start for number, item in zip(previous, items, strict=True)]
    if not all(are):
        sessions = [session for session, is_present in zip(sessions, are, strict=True) if is_present]
    counts = list(map(known.__getitem__, sessions)) if known else session_parts.counts_of(source, sessions)
    return Kept(are, sessions, counts)


def restored_parts(view: View, kept: Kept | None, left: int) -> tuple[Column, Column]:
    """The subscriptions of sessions, and what is in flight for them; no columns if they were not looked up. Raises
    TooLargeError if they are more than the ``left`` bytes that the reply has room for beside the properties."""
    if kept is None:
        return [], []
    return kept.columns(session_parts.restored(view, _PARTS, kept.sessions, kept.counts, left))


def recalled_parts(
    reader: Reader, command: Command[m.SessionTakeover], previous: Sequence[int], left: int
) -> tuple[Column, Column]:
    """The same for a retry, as it is now: the broker itself may have changed it since, and others may have left
    something in flight."""
    kept = look_up(reader, command, previous)
    if kept is None:
        return [], []
    return kept.columns(session_parts.read(reader, _PARTS, kept.sessions, kept.counts, left))
