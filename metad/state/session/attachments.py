"""Attachments: which connection of a client a broker speaks for.

An *attachment* is the revision of the takeover that connected a session. It grows with each takeover of the session,
also where its slot moves, because a group's revisions are above those of the groups that had the slot. Two takeovers of
one session are never in one entry, for both write its owner row.

A broker may say an attachment with what it asks for. The owner row alone does not tell two connections of one life
apart: a disconnect of the first must not end the second. So a row of the session holds the *least attachment that may
speak*, and an item with a lower one is a conflict. The row is raised where a connection ends, by its disconnect or by
a takeover that finds it, and where a session is created, for one of its name may have been deleted. A takeover of a
session whose client is away writes nothing. A clean start begins the session anew, and keeps the row.

When everybody comes back, each takeover finds a connection of another broker. What that one still says is refused for
its owner's sake, as long as it does not take the session back. So such a takeover writes no second row: it says in the
owner row, which it writes anyway, that the connection was *stolen*, and whatever comes next raises the row, a takeover
as well as a disconnect. (Of two crowds with nothing in between, the second writes both rows.) So whatever ended a
connection has raised the row, or the owner row says that this is to be done; or else nobody can speak for that
connection: its life is fenced.

It is kept for brokers that have registered, because these are the ones that a group knows. A group that has no fence
has none of these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec

from metad_wire import messages as m
from metad_wire.errors import ConflictError
from metad_wire.methods import encode
from metad_wire.tables.session import SESSION

from ...storage import keys
from ..cluster.fences import Fences
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.verb import mismatch
from ..core.view import Rows, View

_LEAST = SESSION.rows["attachment"]
_attachment = attrgetter("attachment")
_decode = msgspec.msgpack.Decoder(int).decode
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode


def taken_over(fences: Fences, owner: m.SessionOwner, broker: str, epoch: int) -> tuple[bool, bool]:
    """Whether a takeover by this life of a broker raises the least attachment of sessions with this owner; or else,
    whether it ends their connection and leaves that to be said."""
    if owner.stolen or not _can_speak(fences, owner):
        return bool(owner.stolen and fences), False
    own = (owner.broker, owner.broker_epoch) == (broker, epoch)
    return own, not own


def _can_speak(fences: Fences, owner: m.SessionOwner) -> bool:
    """Whether a broker can speak for the connection of a session with this owner."""
    return owner.connected and fences.of(owner.broker) is not None and fences.over(owner) is None


def disconnected(view: View, broker: str, before: dict[bytes, bytes]) -> None:
    """Let the disconnect that is evaluated raise the least attachment of sessions that the broker connected: their
    owner rows until now."""
    if is_kept(view, broker):
        raise_least(view, list(before))
    elif stolen := {row for row in before.values() if _decode_owner(row).stolen}:
        raise_least(view, [session for session, row in before.items() if row in stolen])


def is_kept(view: View, broker: str) -> bool:
    """Whether this is kept for a broker: it has registered."""
    return view.parts[Fences].of(broker) is not None


def ended(view: View, sessions: Sequence[bytes]) -> None:
    """Drop what is noted of sessions that the command ends."""
    if view.parts[Fences]:
        _write(view, sessions, None)


def raise_least(view: View, sessions: Sequence[bytes]) -> None:
    """Let the command that is evaluated raise the least attachment of sessions."""
    _write(view, sessions, encode(view.revision))


def _write(view: View, sessions: Sequence[bytes], value: bytes | None) -> None:
    prefix = keys.table_prefix(view.group, _LEAST)
    rows = list(map(prefix.__add__, sessions))
    view.writes_of(_LEAST).update(dict.fromkeys(rows, value))
    view.beside += sum(map(len, rows)) + len(rows) * len(value or b"")


def outdated(view: View, rows: Rows) -> dict[int, m.ItemError]:
    """The items that speak for an earlier attachment of their session than may, by position."""
    if not view.parts[Fences] or not any(map(_attachment, rows.items)):
        return {}
    said = list(map(_attachment, rows.items))
    asked = [position for position, attachment in enumerate(said) if attachment]
    prefix = keys.table_prefix(view.group, _LEAST)
    stored = view.get_many([prefix + rows.keys[position] for position in asked], LOOKED_AT_BYTES_MAX)
    errors: dict[int, m.ItemError] = {}
    for position, row in zip(asked, stored, strict=True):
        least = 0 if row is None else _decode(row)
        if _is_outdated(said[position], least):
            errors[position] = refusal(position, least)
    return errors


def refusal(position: int, least: int) -> m.ItemError:
    """Why an item does nothing that speaks for a lower attachment than this."""
    return mismatch(position, ConflictError, "the least attachment that may speak", least)


def _is_outdated(said: int, least: int) -> bool:
    return said < least
