"""What a takeover restores of what belongs to sessions: their subscriptions, and what is in flight for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from metad_wire import messages as m

from . import inflight, session_parts, subscriptions
from .session_parts import Found
from .tables import Command, Reader
from .view import View

Column: TypeAlias = list[msgspec.Raw | None]
"""By position, all rows of a session; None where no session is restored."""
_PARTS: Final = (subscriptions.PARTS, inflight.PARTS)


def restored_parts(
    view: View, command: Command[m.SessionTakeover], previous: Sequence[int], left: int
) -> tuple[Column, Column]:
    """The subscriptions and what is in flight; no columns if the request does not ask for them. Raises TooLargeError
    if they are more than the ``left`` bytes that the reply has room for beside the properties."""
    return _columns(command, previous, partial(session_parts.restored, view, _PARTS), left)


def recalled_parts(
    reader: Reader, command: Command[m.SessionTakeover], previous: Sequence[int], left: int
) -> tuple[Column, Column]:
    """The same for a retry, as it is now: the broker itself may have changed it since, and others may have left
    something in flight."""
    return _columns(command, previous, partial(session_parts.read, reader, _PARTS), left)


def _columns(
    command: Command[m.SessionTakeover],
    previous: Sequence[int],
    read: Callable[[Sequence[bytes], int], list[Found]],
    left: int,
) -> tuple[Column, Column]:
    if not command.body.restore_parts:
        return [], []
    sessions = command.rows.keys
    present = [number >= 0 and not item.clean_start for number, item in zip(previous, command.rows.items, strict=True)]
    are_all = all(present)
    if not are_all:
        sessions = [key for key, is_present in zip(sessions, present, strict=True) if is_present]
    columns: list[Column] = []
    for found in read(sessions, left):
        if are_all:
            columns.append([*found.rows])
        else:
            rows = iter(found.rows)
            columns.append([next(rows) if is_present else None for is_present in present])
    return columns[0], columns[1]
