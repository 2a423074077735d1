"""Owner rows: which life of a broker owns a session, for nobody else may touch it, nor what belongs to it."""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire.errors import FencedError, NotFoundError, NotOwnerError

from ..cluster.fences import Fence
from ..core import due as index
from ..core.verb import mismatch
from ..core.view import Rows, View
from .owners import SessionOwners

SHORT_OWNER = 0x94
"""The header of an owner row without deadlines."""
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode


def outlives(row: bytes | None) -> int:
    """The last order to end its tenant that a session with this owner row outlives."""
    return 0 if row is None or row[0] == SHORT_OWNER else _decode_owner(row).outlives


def owner_left(view: View, owner: m.SessionOwner, fence: Fence, kept: m.SessionProperties) -> m.SessionOwner:
    """The owner row of a session with these properties whose broker's life is over: its client is away since that was
    said."""
    since_ms = min(fence.at_ms, view.now_ms) or view.now_ms
    return index.away(
        owner.broker,
        owner.broker_epoch,
        since_ms,
        kept.expiry_interval_s,
        kept.will,
        view.now_ms,
        owner.outlives,
        owner.stolen,
    )


def refusal(row: bytes | None, broker: str, epoch: int, position: int) -> m.ItemError | None:
    """Why this life of a broker may not touch a session with this owner row; None if it may."""
    if row is None:
        return m.ItemError(position, NotFoundError.code)
    owner = _decode_owner(row)
    if owner.broker != broker:
        return m.ItemError(position, NotOwnerError.code, f"owner is {owner.broker}")
    if owner.broker_epoch != epoch:
        return mismatch(position, FencedError, "epoch", owner.broker_epoch, epoch)
    return None


def refusals(view: View, sessions: Rows, broker: str, epoch: int) -> dict[int, m.ItemError]:
    """Why this life may not touch some of these sessions, by position. An owner row is looked at once, however many
    sessions have it."""
    rows = view.parts[SessionOwners].before(view, sessions)
    refused = {row for row in dict.fromkeys(rows) if refusal(row, broker, epoch, 0) is not None}
    if not refused:
        return {}
    errors = {position: refusal(row, broker, epoch, position) for position, row in enumerate(rows) if row in refused}
    return {position: error for position, error in errors.items() if error is not None}


def absences(view: View, sessions: Rows) -> dict[int, m.ItemError]:
    """Which of these sessions are not there, by position."""
    rows = view.parts[SessionOwners].before(view, sessions)
    return {at: m.ItemError(at, NotFoundError.code) for at, row in enumerate(rows) if row is None}
