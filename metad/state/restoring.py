"""What a takeover restores of what belongs to sessions: their subscriptions, and what is in flight for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from metad_wire import messages as m

from . import inflight, subscriptions
from .tables import Command, Reader
from .view import View

Column = list[list[msgspec.Raw] | None]
"""By position; None where no session is restored."""


def restored_parts(
    view: View, command: Command[m.SessionTakeover], previous: Sequence[int], restored: Sequence[msgspec.Raw | None]
) -> tuple[Column, Column]:
    """The subscriptions and what is in flight, beside the properties that are ``restored`` already; no columns if the
    request does not ask for them. Raises TooLargeError if the reply would be too long."""
    if not command.body.restore_parts:
        return [], []
    return _columns(command, previous, restored, view, (subscriptions.restored, inflight.restored))


def recalled_parts(
    reader: Reader, command: Command[m.SessionTakeover], previous: Sequence[int], restored: Sequence[msgspec.Raw | None]
) -> tuple[Column, Column]:
    """The same for a retry, as it is now: the broker itself may have changed it since, and others may have left
    something in flight."""
    if not command.body.restore_parts:
        return [], []
    return _columns(command, previous, restored, reader, (subscriptions.recalled, inflight.recalled))


def _columns(
    command: Command[m.SessionTakeover],
    previous: Sequence[int],
    restored: Sequence[msgspec.Raw | None],
    source: Any,
    reads: tuple[Callable[[Any, Sequence[bytes], int], list[list[msgspec.Raw]]], ...],
) -> tuple[Column, Column]:
    rows = command.rows
    present = [number >= 0 and not item.clean_start for number, item in zip(previous, rows.items, strict=True)]
    sessions = [key for key, is_present in zip(rows.keys, present, strict=True) if is_present]
    left = command.reply_bytes_max - sum(len(memoryview(value)) for value in restored if value is not None)
    columns: list[Column] = []
    for read in reads:
        found = read(source, sessions, left)
        left -= sum(len(memoryview(value)) for values in found for value in values)
        values = iter(found)
        columns.append([next(values) if is_present else None for is_present in present])
    return columns[0], columns[1]
