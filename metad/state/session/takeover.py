"""The takeover of sessions: a broker connects clients, whoever had them before, and learns what is kept of them.

Sessions are many and their owner rows few, so each distinct row is judged once, and what is done to all sessions is a
call per column: in a storm 300,000 sessions a second pass here. What concerns some sessions by themselves is looked at
only where there is any: deadlines, lives of brokers that are over, orders to end tenants, clean starts, restoring what
is kept, raising the least attachment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import FencedError, IdentityExpiredError, NoRoomError, QuotaExceededError, TooLargeError
from metad_wire.methods import encode
from metad_wire.tables.session import SESSION

from ...storage import keys
from ..cluster.fences import Fence, Fences
from ..cluster.quotas import KnownQuotas, Quotas
from ..cluster.tenant_ends import TenantEnds
from ..core import due as index
from ..core.counts import Counts
from ..core.due import DUE
from ..core.limits import LOOKED_AT_BYTES_MAX, check_reply
from ..core.part import Writes
from ..core.verb import Command, Reader, Verb, check_broker, check_same_rows, mismatch, read_values
from ..core.view import Rows, View
from . import attachments, inflight, session_parts, subscriptions
from .owned import owner_left
from .owners import SessionOwners
from .session_end import end_parts
from .session_parts import copy_properties, counts_of, kept_properties
from .wills import wills_due

_OWNER, _PROPERTIES = SESSION.rows["owner"], SESSION.rows["properties"]
_PARTS: Final = (subscriptions.PARTS, inflight.PARTS)
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_decode_properties = msgspec.msgpack.Decoder(m.SessionProperties).decode
_NO_PROPERTIES = m.SessionProperties()
_DEFAULT_PROPERTIES = encode(_NO_PROPERTIES)
_clean_start, _given = attrgetter("clean_start"), attrgetter("properties")  # of items
_refused, _waits, _fence, _raises = map(attrgetter, ("refused", "waits", "fence", "raises"))  # of what is judged

_Column: TypeAlias = list[msgspec.Raw | None]
"""What a takeover restores, by position; None where no session is restored."""
_NO_COLUMNS: Sequence[_Column] = [], []


class _Judged(msgspec.Struct, frozen=True):
    """What a takeover makes of all sessions with one owner row, or of those that are new."""

    owner: m.SessionOwner | None = None
    """Who had them; None: they are new."""
    previous: int = -1
    """The number of their owner in the reply; -1: there was no session, or it is over."""
    refused: m.ItemError | None = None
    """Why they stay as they are."""
    waits: int = 0
    """They have deadlines, and this is one of them."""
    fence: Fence | None = None
    """They look connected, and this has ended the life of their broker."""
    raises: bool = False
    """The takeover raises their least attachment."""
    stolen: bool = False
    """The takeover ends their connection, and leaves that to be said."""


class _Present(msgspec.Struct, frozen=True):
    """The sessions that a takeover finds and goes on with: what is kept of these it restores."""

    are: Sequence[bool]
    """Whether the session is one of them, by position."""
    sessions: Sequence[bytes]

    def column(self, found: Sequence[msgspec.Raw | None]) -> _Column:
        """What was found of these sessions, by position of all."""
        if len(found) == len(self.are):
            return [*found]
        values = iter(found)
        return [next(values) if is_present else None for is_present in self.are]


def _present(rows: Rows, previous: Sequence[int]) -> _Present:
    if -1 not in previous and not any(map(_clean_start, rows.items)):  # as nearly always in a storm
        return _Present([True] * len(rows), rows.keys)
    if previous.count(-1) == len(previous):  # all begin
        return _Present([False] * len(rows), ())
    are = [number >= 0 and not item.clean_start for number, item in zip(previous, rows.items, strict=True)]
    return _Present(are, [session for session, is_present in zip(rows.keys, are, strict=True) if is_present])


def _beyond(view: View, known: KnownQuotas, rows: Rows, before: Sequence[bytes | None]) -> dict[int, m.ItemError]:
    """The items, by position, that would begin sessions for which their tenants have no room left, and why. The others
    take of that room once the command is accepted."""
    found: dict[int, m.ItemError] = {}
    begun: dict[str, set[str]] = {}
    for (at, item, _), row in zip(rows, before, strict=True):
        if row is None and (full := known.full.get(item.tenant)) is not None:
            found[at] = m.ItemError(at, QuotaExceededError.code, full)
        elif row is None and (room := known.sessions_left.get(item.tenant)) is not None:
            clients = begun.setdefault(item.tenant, set())
            if item.client_id in clients or len(clients) < room:
                clients.add(item.client_id)
            else:
                why = f"tenant {item.tenant[:256]!r} has as many sessions as its quota allows"
                found[at] = m.ItemError(at, QuotaExceededError.code, why)
    if begun:
        view.on_accept.append(partial(known.begun, {tenant: len(clients) for tenant, clients in begun.items()}))
    return found


def _evaluate(view: View, command: Command[m.SessionTakeover]) -> m.SessionTakeoverReply:
    check_broker(command.body.broker)
    return _Takeover(view, command).reply()


def owner_rows(broker: str, epoch: int) -> tuple[bytes, bytes]:
    """The owner rows that a takeover writes, without and with stealing the session's connection: the first fields only,
    the others are empty."""
    return encode((True, broker, epoch, 0)), encode((True, broker, epoch, 0, 1))


def _is_over(view: View, owner: m.SessionOwner) -> bool:
    """Whether a disconnected session has passed its end, and the sweep has not come to it yet."""
    return 0 < owner.expires_ms <= view.past_ms


class _Takeover:
    """A takeover that is evaluated. Its rows are without those that are refused."""

    def __init__(self, view: View, command: Command[m.SessionTakeover]) -> None:
        self._view, self._command = view, command
        self._owners, self._fences = view.parts[SessionOwners], view.parts[Fences]
        self._named: dict[m.Owner, int] = {}
        """The owners that the reply names, with their numbers: each life of a broker once."""
        self._errors: list[m.ItemError] = []
        self._allowed: list[int] | None = None
        """The positions that are not refused; None: all."""
        rows, before = command.rows, self._owners.before(view, command.rows, written=True)
        judged = {row: self._judge(row) for row in dict.fromkeys(before)}
        known = view.parts[Quotas].shared
        beyond = _beyond(view, known, rows, before) if (known.sessions_left or known.full) and None in judged else {}
        if beyond or any(map(_refused, judged.values())):
            refused = [beyond.get(at) or judged[row].refused for at, row in enumerate(before)]
            self._errors = [msgspec.structs.replace(why, index=at) for at, why in enumerate(refused) if why]
            self._allowed = [at for at, why in enumerate(refused) if why is None]
            rows, before = rows.at(self._allowed), [before[at] for at in self._allowed]
            judged = {row: one for row, one in judged.items() if one.refused is None}
        self._rows, self._before, self._judged = rows, before, judged

    def _judge(self, row: bytes | None) -> _Judged:
        view, body = self._view, self._command.body
        if row is None:
            refused = m.ItemError(0, NoRoomError.code, view.no_room) if view.no_room else None
            return _Judged(refused=refused, raises=bool(self._fences))
        owner = _decode_owner(row)
        if owner.broker_epoch > body.broker_epoch and owner.broker == body.broker:
            return _Judged(owner, -1, mismatch(0, FencedError, "epoch", owner.broker_epoch, body.broker_epoch))
        previous = -1 if _is_over(view, owner) else self._number(owner.broker, owner.broker_epoch)
        raises, stolen = attachments.taken_over(self._fences, owner, body.broker, body.broker_epoch)
        waits = owner.expires_ms or owner.will_ms
        return _Judged(owner, previous, None, waits, self._fences.over(owner), raises, stolen)

    def _number(self, broker: str, epoch: int) -> int:
        return self._named.setdefault(m.Owner(broker, epoch), len(self._named))

    def reply(self) -> m.SessionTakeoverReply:
        """Take the sessions over."""
        view, body, rows, judged = self._view, self._command.body, self._rows, self._judged
        tenants = view.parts[TenantEnds]
        orders = tenants.over(rows) if tenants else {}
        over = self._over(orders) if orders else {}
        known, left = self._left_by_lives_that_are_over() if any(map(_fence, judged.values())) else (None, {})
        previous = list(map({row: one.previous for row, one in judged.items()}.__getitem__, self._before))
        for position, session in enumerate(rows.keys if left or over else ()):
            if session in over or (session in left and _is_over(view, left[session])):
                previous[position] = -1
        writes = self._write_owners(orders)
        if len(writes) < len(rows):
            self._take_over_again(previous)
        begins = any(map(_clean_start, rows.items))
        if (begins or left or over or any(map(_waits, judged.values()))) and self._end_and_tell(left, over):
            known = None  # what ended has nothing any more
        present = _present(rows, previous)
        counts = self._counts_of(present.sessions) if known is None else list(map(known.__getitem__, present.sessions))
        restored = self._write_properties(present, counts)
        if any(map(_raises, judged.values())):
            pairs = zip(rows.keys, self._before, strict=True)
            attachments.raise_least(view, [session for session, row in pairs if judged[row].raises])
        if len(writes) > 1:
            self._owners.wrote(writes, rows)
        subscribed, in_flight = _NO_COLUMNS
        if counts is not None:
            room = self._command.reply_bytes_max - _size_of(restored)
            parts = session_parts.restored(view, _PARTS, present.sessions, counts, room)
            subscribed, in_flight = [self._spread(present.column(part.rows), None) for part in parts]
        restored = self._spread(restored, None) if body.restore else []
        revisions, owners = [m.Revision(view.name, view.revision)], [*self._named]
        previous = self._spread(previous, -1)
        return m.SessionTakeoverReply(revisions, self._errors, owners, previous, restored, subscribed, in_flight)  # type: ignore[arg-type]  # encoded

    def _spread(self, column: list[Any], missing: int | None) -> list[Any]:
        """A column of the rows, as one of all items."""
        if self._allowed is None:
            return column
        spread: list[Any] = [missing] * len(self._command.rows)
        for at, value in zip(self._allowed, column, strict=True):
            spread[at] = value
        return spread

    def _counts_of(self, sessions: Sequence[bytes]) -> list[Counts] | None:
        """What these sessions have, if the takeover asks for that."""
        return counts_of(self._view, sessions) if self._command.body.restore_parts else None

    def _left_by_lives_that_are_over(self) -> tuple[dict[bytes, Counts] | None, dict[bytes, m.SessionOwner]]:
        """What all sessions have, if the takeover asks for that: it has copies of their properties. And the owner rows,
        by session, that the sweep would give to those that look connected, and whose brokers' lives are over."""
        of_all = self._counts_of(self._rows.keys)
        known = None if of_all is None else dict(zip(self._rows.keys, of_all, strict=True))
        lost = {row: (one.owner, one.fence) for row, one in self._judged.items() if one.owner and one.fence}
        found = [(session, row) for session, row in zip(self._rows.keys, self._before, strict=True) if row in lost]
        sessions = [session for session, _ in found]
        counts = None if known is None else list(map(known.__getitem__, sessions))
        stored = kept_properties(self._view, sessions, counts, LOOKED_AT_BYTES_MAX)
        # All clients of a broker come here once it has crashed. Most have the same owner row, interval and delay.
        alike: dict[tuple[bytes | None, int, int | None], m.SessionOwner] = {}
        left: dict[bytes, m.SessionOwner] = {}
        for (session, row), value in zip(found, stored, strict=True):
            kept = _NO_PROPERTIES if value is None else _decode_properties(value)
            which = row, kept.expiry_interval_s, None if kept.will is None else kept.will.delay_s
            if which not in alike:
                alike[which] = owner_left(self._view, *lost[row], kept)
            left[session] = alike[which]
        return known, left

    def _over(self, orders: Mapping[int, Sequence[m.TenantEnd]]) -> dict[bytes, m.TenantEnd]:
        """The sessions that are over because somebody has ordered their tenants to end, with the order that came
        first. ``orders``: all orders about each position."""
        over: dict[bytes, m.TenantEnd] = {}
        for position, ends in orders.items():
            owner = self._judged[self._before[position]].owner
            ending = None if owner is None else next((end for end in ends if end.number > owner.outlives), None)
            if ending is not None:
                over[self._rows.keys[position]] = ending
        return over

    def _write_owners(self, orders: Mapping[int, Sequence[m.TenantEnd]]) -> Writes:
        """Write the owner rows, and say what they replace."""
        body, before, prefix = self._command.body, self._before, self._owners.prefix
        mine, stolen = owner_rows(body.broker, body.broker_epoch)
        after = {row: stolen if one.stolen else mine for row, one in self._judged.items()}
        targets = map(prefix.__add__, self._rows.keys)
        if len(set(after.values())) == 1:  # as nearly always
            writes: Writes = dict.fromkeys(targets, next(iter(after.values())))
        else:
            writes = dict(zip(targets, map(after.__getitem__, before), strict=True))
        for position, ends in orders.items():
            steals = int(self._judged[before[position]].stolen)
            row = m.SessionOwner(True, body.broker, body.broker_epoch, 0, stolen=steals, outlives=ends[-1].number)
            writes[prefix + self._rows.keys[position]] = encode(row)
        self._view.write(_OWNER, writes)
        if len(writes) < len(before):  # some are here twice
            before = list(dict(zip(self._rows.keys, before, strict=True)).values())
        self._view.replaces(_OWNER, before, dict.fromkeys(self._judged))
        return writes

    def _take_over_again(self, previous: list[int]) -> None:
        """A client that is in one batch twice is the broker's own the second time: note its number in ``previous``."""
        mine = self._number(self._command.body.broker, self._command.body.broker_epoch)
        seen: set[bytes] = set()
        for position, session in enumerate(self._rows.keys):
            if session in seen:
                previous[position] = mine
            seen.add(session)

    def _end_and_tell(self, left: Mapping[bytes, m.SessionOwner], over: Mapping[bytes, m.TenantEnd]) -> bool:
        """What a takeover ends: deadlines, for the clients are back; and sessions that are over, or begin anew. The
        will of a session that ends is due, and so is one whose time has come; but not if an order to end its tenant
        drops it. No other will is published. Returns whether sessions have ended."""
        view, rows, judged = self._view, self._rows, self._judged
        if all(one.owner is None for one in judged.values()):
            return False
        deadlines = view.writes_of(DUE)
        ended: dict[bytes, None] = {}
        wills: list[tuple[m.SessionTakeoverItem, bytes]] = []
        for (_, item, session), row in zip(rows, self._before, strict=True):
            owner = judged[row].owner
            if owner is None or session in ended:
                continue
            index.drop(deadlines, view.group, session, owner)
            last, order = left.get(session, owner), over.get(session)
            ends = item.clean_start or order is not None or _is_over(view, last)
            is_due = (last.connected or last.will_ms) if ends else 0 < last.will_ms <= view.past_ms
            if is_due and (order is None or order.publish_wills):
                wills.append((item, session))
            if ends:
                ended[session] = None
        wills_due(view, wills)
        end_parts(view, list(ended))
        return bool(ended)

    def _write_properties(self, present: _Present, counts: Sequence[Counts] | None) -> _Column:
        """Write the properties that the takeover gives, and those of sessions that begin. Returns the properties that
        it restores; none if it restores none. ``counts``: those of all sessions that it restores, if it has looked them
        up."""
        view, rows, restore = self._view, self._rows, self._command.body.restore
        bytes_max = self._command.reply_bytes_max
        restored: _Column = []
        if restore:
            restored = present.column(kept_properties(view, present.sessions, counts, bytes_max))
        if len(present.sessions) < len(rows) or any(map(_given, rows.items)):
            prefix, writes = keys.table_prefix(view.group, _PROPERTIES), view.writes_of(_PROPERTIES)
            if not present.sessions:
                stored = map(_given, rows.items)
                values = [_DEFAULT_PROPERTIES if one is None else encode(one) for one in stored]
                writes.update(zip(map(prefix.__add__, rows.keys), values, strict=True))
                return restored
            given: dict[bytes, bytes] = {}
            for (position, item, session), is_present in zip(rows, present.are, strict=True):
                key = prefix + session
                if restore and is_present and (again := writes.get(key)) is not None:
                    restored[position] = msgspec.Raw(again)
                if item.properties is not None:
                    writes[key] = encoded = encode(item.properties)
                    if is_present:  # one that begins has no counts
                        given[session] = encoded
                elif not is_present:
                    writes[key] = _DEFAULT_PROPERTIES
            copy_properties(view, given)
        if restore:
            check_reply(_size_of(restored), bytes_max)
        return restored


def _size_of(column: _Column) -> int:
    return len(b"".join([value for value in column if value is not None]))


def _forget_restored(reply: m.SessionTakeoverReply) -> m.SessionTakeoverReply:
    return msgspec.structs.replace(reply, properties=[], subscriptions=[], inflight=[])


def _recall_restored(
    reader: Reader, command: Command[m.SessionTakeover], reply: m.SessionTakeoverReply
) -> m.SessionTakeoverReply:
    """What a retry restores, as it is now: the broker itself may have changed it since, and others may have left
    something in flight."""
    body = command.body
    if not body.restore and not body.restore_parts:
        return reply
    check_same_rows(command, len(reply.previous))
    reader.check_still_held(command.rows)
    present = _present(command.rows, reply.previous)
    restored: _Column = []
    columns = _NO_COLUMNS
    try:
        if body.restore:
            values = zip(read_values(reader, command, _PROPERTIES), present.are, strict=True)
            restored = [
                msgspec.Raw(value) if value is not None and is_present else None for value, is_present in values
            ]
        if body.restore_parts:
            counts, room = counts_of(reader, present.sessions), command.reply_bytes_max - _size_of(restored)
            parts = session_parts.read(reader, _PARTS, present.sessions, counts, room)
            columns = [present.column(part.rows) for part in parts]
    except TooLargeError:
        raise IdentityExpiredError("this write was done before; what it restores no longer fits a reply") from None
    subscribed, in_flight = columns
    return msgspec.structs.replace(reply, properties=restored, subscriptions=subscribed, inflight=in_flight)


VERBS = (
    Verb(
        methods.SESSION_TAKEOVER,
        SESSION,
        evaluate=_evaluate,
        grows=None,
        forget=_forget_restored,
        recall=_recall_restored,
    ),
)
