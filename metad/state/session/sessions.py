"""Sessions: who serves a client, and what its broker keeps of it.

A session is two rows. The *owner* row is small, changes at every reconnect and is the same bytes for every session of a
broker, so a takeover encodes nothing per item and logs a few dozen bytes. The *properties* row changes when the broker
says so. Reads put both together.

The rules: a takeover always wins, except that a past life of a broker (same name, lower epoch) is fenced. Everything
else may only be done by the owner.

A session whose client has gone holds in its owner row when it ends, and when its will is due. Both are by the time of
the log, and :mod:`.due` has a row for each. The sweep carries them out; a takeover that comes first judges by its own
time. What belongs to a session goes with it: see :mod:`.session_end`. Who speaks for an earlier connection of a session
is refused: see :mod:`.attachments`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import (
    ConflictError,
    FencedError,
    IdentityExpiredError,
    InvalidItemError,
    InvalidRequestError,
    NoRoomError,
    NotFoundError,
    TooLargeError,
)
from metad_wire.methods import encode
from metad_wire.tables.session import SESSION

from ...storage import keys
from ..cluster.fences import Fence, Fences
from ..cluster.tenant_ends import TenantEnds
from ..core import due as index
from ..core.counts import Counts
from ..core.due import DUE
from ..core.limits import LOOKED_AT_BYTES_MAX, check_reply
from ..core.part import Writes
from ..core.rows import Rows
from ..core.verb import (
    PAGE_BYTES_MAX,
    Command,
    Reader,
    Verb,
    after_cursor,
    check_same_rows,
    key_after,
    mismatch,
    read_values,
    written,
)
from ..core.view import View
from . import attachments
from .owned import refusal as _refusal
from .owners import CONNECTED, SessionOwners
from .restoring import look_up, recalled_parts, restored_parts
from .session_end import end_parts, end_sessions
from .session_parts import copy_properties, counts_of, kept_properties
from .wills import due_will

_OWNER, _PROPERTIES = SESSION.rows["owner"], SESSION.rows["properties"]


_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_decode_properties = msgspec.msgpack.Decoder(m.SessionProperties).decode
_SHORT_OWNER = 0x94  # the header of an owner row without deadlines
_NO_PROPERTIES = m.SessionProperties()
_DEFAULT_PROPERTIES = encode(_NO_PROPERTIES)
# A Session on the wire is an array of 9: the key's 2 fields, the owner row's 4, the properties, 2 deadlines.
_SESSION_HEADER = b"\x99"
_NO_DEADLINES = b"\0\0"
_LIST_READ_ROWS = 32  # properties read at once for a page: of the largest size they take 32 MiB for a moment


def _owner(broker: str, epoch: int) -> tuple[bytes, bytes]:
    """Of a connected session, and of one whose connection was stolen: the first fields only, the others are empty."""
    return encode((True, broker, epoch, 0)), encode((True, broker, epoch, 0, 1))


def _outlives(row: bytes | None) -> int:
    """The last order to end its tenant that a session with this owner row outlives."""
    return 0 if row is None or row[0] == _SHORT_OWNER else _decode_owner(row).outlives


class _Shown(dict[bytes, tuple[bytes, bytes]]):
    """Owner row -> its fields that a session shows, encoded: those in front of the properties and those behind. A
    session is connected if its row says so and the life of its broker is not over."""

    def __init__(self, fences: Fences) -> None:
        super().__init__()
        self._fences = fences

    def __missing__(self, row: bytes) -> tuple[bytes, bytes]:
        if row[0] == _SHORT_OWNER and not self._fences:
            fields = self[row] = row[1:], _NO_DEADLINES
            return fields
        owner = _decode_owner(row)
        fence = self._fences.applied_of(owner.broker)
        connected, since_ms = owner.connected, owner.disconnected_ms
        if connected and fence is not None and owner.broker_epoch < fence.least_epoch:
            connected, since_ms = False, fence.at_ms
        deadlines = encode(owner.expires_ms) + encode(owner.will_ms)
        fields = self[row] = encode((connected, owner.broker, owner.broker_epoch, since_ms))[1:], deadlines
        return fields


class _Owners:
    """The owners a reply names: each life of a broker once, whether it is connected or not."""

    def __init__(self) -> None:
        self.table: list[m.Owner] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def add(self, owner: m.SessionOwner) -> int:
        life = owner.broker, owner.broker_epoch
        number = self._numbers.setdefault(life, len(self.table))
        if number == len(self.table):
            self.table.append(m.Owner(*life))
        return number


def _evaluate_takeover(view: View, command: Command[m.SessionTakeover]) -> m.SessionTakeoverReply:
    # In a storm 300,000 sessions a second pass here: what is done to all of them is a call per column.
    body, keyed = command.body, command.rows
    broker, epoch = body.broker, body.broker_epoch
    length = len(broker.encode())
    if length > m.BROKER_BYTES_MAX:
        raise InvalidRequestError(f"the broker's name takes {length} bytes, {m.BROKER_BYTES_MAX} are allowed")
    mine, stolen = _owner(broker, epoch)
    known_owners = view.parts[SessionOwners]
    before = known_owners.before(view, keyed, written=True)
    owners = _Owners()
    numbers: dict[bytes | None, int] = {None: -1}
    fenced: dict[bytes | None, int] = {}
    away: dict[bytes | None, m.SessionOwner] = {}  # with a deadline
    lost: dict[bytes | None, Fence] = {}  # look connected, and their broker's life is over
    connections = attachments.Takeover(view, broker, epoch)
    fences = view.parts[Fences]
    found = dict.fromkeys(before)
    for row in found:
        if row is not None:
            last = _decode_owner(row)
            if last.broker_epoch > epoch and last.broker == broker:
                fenced[row] = last.broker_epoch
                numbers[row] = -1
                continue
            if last.expires_ms or last.will_ms:
                away[row] = last
            elif fences and (fence := fences.over(last)) is not None:
                lost[row] = fence
            connections.finds(row, last)
            numbers[row] = -1 if _is_over(view, last) else owners.add(last)
    if view.no_room and None in found:
        fenced[None] = 0  # a session that would be new
    previous = list(map(numbers.__getitem__, before))
    known = _counts_of_lost(view, command) if lost else None
    left = _left_by_lives_that_are_over(view, keyed, before, lost, known) if lost else {}
    for position, session in enumerate(keyed.keys if left else ()):
        if session in left and _is_over(view, left[session]):
            previous[position] = -1
    tenants = view.parts[TenantEnds]
    pending = tenants.over(keyed) if tenants else {}
    over: dict[bytes, m.TenantEnd] = {}  # sessions that are, by the order that has ended each
    for position, ends in pending.items():
        row = before[position]
        ending = next((end for end in ends if end.number > _outlives(row)), None)
        if row is not None and row not in fenced and ending is not None:
            over[keyed.keys[position]] = ending
            previous[position] = -1
    allowed: Sequence[bytes] = keyed.keys
    errors: list[m.ItemError] = []
    if fenced:
        refused = [position for position, row in enumerate(before) if row in fenced]
        errors = [
            m.ItemError(at, NoRoomError.code, view.no_room)
            if before[at] is None
            else mismatch(at, FencedError, "epoch", fenced[before[at]], epoch)
            for at in refused
        ]
        allowed = [key for key, row in zip(allowed, before, strict=True) if row not in fenced]
    stealing = connections.stealing
    rows = map(known_owners.prefix.__add__, allowed)
    if len(stealing) in (0, len(found)):  # as nearly always
        writes: Writes = dict.fromkeys(rows, stolen if stealing else mine)
    else:
        owner = {row: stolen if row in stealing else mine for row in found}
        writes = dict(zip(rows, [owner[row] for row in before if row not in fenced], strict=True))
    for position, ends in pending.items():
        key = known_owners.prefix + keyed.keys[position]
        if key in writes:
            stole = int(before[position] in stealing)
            writes[key] = encode(m.SessionOwner(True, broker, epoch, 0, stolen=stole, outlives=ends[-1].number))
    if len(writes) < len(allowed):
        _take_over_again(keyed, before, fenced, previous, owners.add(_decode_owner(mine)))
    view.write(_OWNER, writes)
    _say_replaced(view, keyed, before, found, writes)
    if _end_and_tell(view, command, before, fenced, away, left, over):
        known = None  # what ended has nothing any more
    kept = look_up(view, command, previous, known)
    restored, size = _write_properties(view, command, before, fenced, previous, kept and kept.counts)
    attachments.taken_over(view, keyed, before, found, connections.raising)
    if len(writes) > 1:
        known_owners.wrote(writes, keyed)
    revisions = [m.Revision(view.name, view.revision)]
    parts = restored_parts(view, kept, command.reply_bytes_max - size)
    return m.SessionTakeoverReply(revisions, errors, owners.table, previous, restored, *parts)  # type: ignore[arg-type]  # encoded


def _counts_of_lost(view: View, command: Command[m.SessionTakeover]) -> dict[bytes, Counts] | None:
    """What all sessions of a takeover have, if it asks for that: their counts have copies of their properties. All
    clients of a broker come here once it has begun its next life."""
    if not command.body.restore_parts:
        return None
    sessions = command.rows.keys
    return dict(zip(sessions, counts_of(view, sessions), strict=True))


def _left_by_lives_that_are_over(
    view: View,
    rows: Rows,
    before: list[bytes | None],
    lost: dict[bytes | None, Fence],
    known: Mapping[bytes, Counts] | None,
) -> dict[bytes, m.SessionOwner]:
    """The owner rows that the sweep would give to the sessions with these owner rows: by session. ``known``: what they
    have, if that has been looked up."""
    found = [(session, row) for session, row in zip(rows.keys, before, strict=True) if row in lost]
    sessions = [session for session, _ in found]
    counts = None if known is None else list(map(known.__getitem__, sessions))
    stored = kept_properties(view, sessions, counts, LOOKED_AT_BYTES_MAX)
    # All clients of a broker come here once it has crashed. Most have the same owner row, interval and delay.
    owners = {row: _decode_owner(row) for row in lost if row is not None}
    alike: dict[tuple[bytes, int, int | None], m.SessionOwner] = {}
    left: dict[bytes, m.SessionOwner] = {}
    for (session, row), value in zip(found, stored, strict=True):
        if row is None:
            continue
        kept = _NO_PROPERTIES if value is None else _decode_properties(value)
        which = row, kept.expiry_interval_s, None if kept.will is None else kept.will.delay_s
        if which not in alike:
            alike[which] = owner_left(view, owners[row], lost[row], kept)
        left[session] = alike[which]
    return left


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


def _is_over(view: View, owner: m.SessionOwner) -> bool:
    """Whether a disconnected session has passed its end, and the sweep has not come to it yet."""
    return 0 < owner.expires_ms <= view.past_ms


def _end_and_tell(
    view: View,
    command: Command[m.SessionTakeover],
    before: list[bytes | None],
    fenced: Container[bytes | None],
    away: dict[bytes | None, m.SessionOwner],
    left: dict[bytes, m.SessionOwner],
    over: dict[bytes, m.TenantEnd],
) -> bool:
    """What a takeover ends: deadlines, for the clients are back; and sessions that are over, or begin anew. The will of
    a session that ends is due, and so is one whose time has come; but not if an order to end its tenant drops it. No
    other will is published. Returns whether sessions have ended."""
    rows = command.rows
    if not away and not left and not over and not any(item.clean_start for item in rows.items):
        return False
    writes = view.writes_of(DUE)
    ended: dict[bytes, None] = {}
    wills: list[Any] = []
    for (_, item, session), row in zip(rows, before, strict=True):
        if row is None or row in fenced or session in ended:
            continue
        last = away.get(row) or left.get(session)
        order = over.get(session)
        ends = item.clean_start or order is not None
        publishes = order is None or order.publish_wills
        if last is not None:
            ends = ends or _is_over(view, last)
            if row in away:
                index.drop(writes, view.group, session, last)
            if last.will_ms and publishes and (ends or last.will_ms <= view.past_ms):
                wills.append((item, session))
        elif ends and publishes and row[1] == CONNECTED:
            wills.append((item, session))
        if ends:
            ended[session] = None
    wills_due(view, wills)
    end_parts(view, list(ended))
    return bool(ended)


def wills_due(view: View, sessions: Sequence[tuple[Any, bytes]]) -> None:
    """The wills in the properties of these sessions, if they have any, are due. ``sessions``: what has the fields of
    the key, and the key."""
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    stored = view.get_many([prefix + session for _, session in sessions], LOOKED_AT_BYTES_MAX)
    for (named, _), value in zip(sessions, stored, strict=True):
        will = None if value is None else _decode_properties(value).will
        if will is not None:
            due_will(view, named.tenant, named.client_id, will, view.revision)


def _take_over_again(
    rows: Rows, before: list[bytes | None], fenced: Container[bytes | None], previous: list[int], mine: int
) -> None:
    """A client that is in one batch twice is the broker's own the second time: note its number in ``previous``."""
    seen: set[bytes] = set()
    for position, (key, row) in enumerate(zip(rows.keys, before, strict=True)):
        if key in seen and row not in fenced:
            previous[position] = mine
        seen.add(key)


def _say_replaced(
    view: View, rows: Rows, before: list[bytes | None], found: dict[bytes | None, None], writes: Writes
) -> None:
    """Say what the command's writes to owner rows replace. ``before`` are the owner rows of all these rows, ``found``
    each of them once."""
    if len(writes) < len(before):  # some were refused, or are here twice
        by_key = dict(zip(map(view.parts[SessionOwners].prefix.__add__, rows.keys), before, strict=True))
        before = list(map(by_key.__getitem__, writes))
    view.replaces(_OWNER, before, found)


def _write_properties(
    view: View,
    command: Command[m.SessionTakeover],
    before: list[bytes | None],
    fenced: Container[bytes | None],
    previous: list[int],
    counts: Sequence[Counts] | None,
) -> tuple[list[msgspec.Raw | None], int]:
    """Write the properties that a takeover gives, and those of sessions that begin. Returns the properties that it
    restores, by position, and how many bytes they are; none if it restores none. ``counts``: those of all sessions that
    it restores, if it has looked them up."""
    rows, restore = command.rows, command.body.restore
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    if -1 not in previous and not any(map(_begins_or_gives, rows.items)):  # as nearly all in a storm
        return _restored(view, rows.keys, counts, command.reply_bytes_max) if restore else ([], 0)
    writes = view.writes_of(_PROPERTIES)
    stored: dict[bytes, bytes | None] = {}
    if restore:
        known = [
            prefix + suffix
            for (_, item, suffix), row in zip(rows, before, strict=True)
            if row is not None and not item.clean_start
        ]
        stored = dict(zip(known, view.get_many(known, command.reply_bytes_max), strict=True))
    restored: list[msgspec.Raw | None] = []
    restored_bytes = 0
    given: dict[bytes, bytes] = {}
    for (_, item, suffix), row, number in zip(rows, before, previous, strict=True):
        if row in fenced:
            restored.append(None)
            continue
        key, properties = prefix + suffix, item.properties
        if restore:
            value = None
            if number >= 0 and not item.clean_start:
                value = writes[key] if key in writes else stored[key]
            restored.append(None if value is None else msgspec.Raw(value))
            restored_bytes += 0 if value is None else len(value)
            check_reply(restored_bytes, command.reply_bytes_max)
        if properties is not None:
            writes[key] = encoded = encode(properties)
            if number >= 0 and not item.clean_start:  # one that begins has no counts
                given[suffix] = encoded
        elif number < 0 or item.clean_start:
            writes[key] = _DEFAULT_PROPERTIES
    copy_properties(view, given)
    return restored if restore else [], restored_bytes


def _begins_or_gives(item: m.SessionTakeoverItem) -> bool:
    return item.clean_start or item.properties is not None


def _restored(
    view: View, sessions: Sequence[bytes], counts: Sequence[Counts] | None, bytes_max: int
) -> tuple[list[msgspec.Raw | None], int]:
    """The properties of sessions, and how many bytes they are."""
    found = kept_properties(view, sessions, counts, bytes_max)
    size = len(b"".join([value for value in found if value is not None]))
    check_reply(size, bytes_max)
    return found, size


def _forget_restored(reply: m.SessionTakeoverReply) -> m.SessionTakeoverReply:
    return msgspec.structs.replace(reply, properties=[], subscriptions=[], inflight=[])


def _recall_restored(
    reader: Reader, command: Command[m.SessionTakeover], reply: m.SessionTakeoverReply
) -> m.SessionTakeoverReply:
    body = command.body
    if not body.restore and not body.restore_parts:
        return reply
    check_same_rows(command, len(reply.previous))
    reader.check_still_held(command.rows)
    restored: list[msgspec.Raw | None] = []
    try:
        if body.restore:
            restored = _recalled_properties(reader, command, reply.previous)
        left = command.reply_bytes_max - sum(len(memoryview(value)) for value in restored if value is not None)
        parts = recalled_parts(reader, command, reply.previous, left)
    except TooLargeError:
        raise IdentityExpiredError("this write was done before; what it restores no longer fits a reply") from None
    return msgspec.structs.replace(reply, properties=restored, subscriptions=parts[0], inflight=parts[1])


def _recalled_properties(
    reader: Reader, command: Command[m.SessionTakeover], previous: Sequence[int]
) -> list[msgspec.Raw | None]:
    values = read_values(reader, command, _PROPERTIES)
    return [
        msgspec.Raw(value) if value is not None and number >= 0 and not item.clean_start else None
        for item, number, value in zip(command.rows.items, previous, values, strict=True)
    ]


def _evaluate_update(view: View, command: Command[m.SessionUpdate]) -> m.WriteReply:
    broker, epoch = command.body.broker, command.body.broker_epoch
    mine, stolen = _owner(broker, epoch)
    suffixes, items = command.rows.keys, command.rows.items
    owners = view.parts[SessionOwners].before(view, command.rows)
    errors: list[m.ItemError] = []
    late = attachments.outdated(view, command.rows)
    if late or owners.count(mine) + owners.count(stolen) != len(owners):
        allowed: list[int] = []
        for position, owner in enumerate(owners):
            if owner not in (mine, stolen) and (refusal := _refusal(owner, broker, epoch, position)) is not None:
                errors.append(refusal)
            elif position in late:
                errors.append(late[position])
            else:
                allowed.append(position)
        suffixes, items = [suffixes[at] for at in allowed], [items[at] for at in allowed]
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    properties = dict(zip(suffixes, [encode(item.properties) for item in items], strict=True))
    view.write(_PROPERTIES, dict(zip(map(prefix.__add__, properties), properties.values(), strict=True)))
    copy_properties(view, properties)
    return written(view, errors)


def _evaluate_disconnect(view: View, command: Command[m.SessionDisconnect]) -> m.WriteReply:
    broker, epoch = command.body.broker, command.body.broker_epoch
    errors: list[m.ItemError] = []
    owners = view.parts[SessionOwners]
    before = owners.before(view, command.rows)
    late = attachments.outdated(view, command.rows)
    spoken_for = attachments.is_kept(view, broker)
    going: dict[bytes, tuple[m.SessionDisconnectItem, bytes]] = {}
    for (position, item, session), row in zip(command.rows, before, strict=True):
        if (refusal := _refusal(row, broker, epoch, position)) is not None:
            errors.append(refusal)
        elif position in late:
            errors.append(late[position])
        elif session in going and item.attachment and spoken_for:
            errors.append(attachments.refusal(position, view.revision))  # its connection has ended in this batch
        elif row is not None and row[1] == CONNECTED:
            going.setdefault(session, (item, row))
        # Otherwise it is disconnected already: its first disconnect counts for the expiry.
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    stored = view.get_many([prefix + session for session in going], LOOKED_AT_BYTES_MAX)
    writes, due = view.writes_of(_OWNER), view.writes_of(DUE)
    rows: dict[m.SessionOwner, bytes] = {}  # most have the same deadlines
    ended: list[bytes] = []
    for (session, (item, row)), value in zip(going.items(), stored, strict=True):
        properties = _NO_PROPERTIES if value is None else _decode_properties(value)
        will = None if item.will_discard else properties.will
        interval_s = properties.expiry_interval_s if item.expiry_interval_s is None else item.expiry_interval_s
        if will is not None and not min(will.delay_s, interval_s):
            due_will(view, item.tenant, item.client_id, will, view.revision)
            will = None
        if not interval_s:
            writes[owners.prefix + session] = None
            ended.append(session)
            continue
        gone = index.away(broker, epoch, view.now_ms, interval_s, will, view.now_ms, _outlives(row))
        if gone not in rows:
            rows[gone] = encode(gone)
        writes[owners.prefix + session] = rows[gone]
        index.note(due, view.group, session, gone)
    attachments.disconnected(view, broker, {session: row for session, (_, row) in going.items()})
    end_sessions(view, ended)
    replaced: list[bytes | None] = [row for _, row in going.values()]
    view.replaces(_OWNER, replaced, dict.fromkeys(replaced))
    return written(view, errors)


def _evaluate_delete(view: View, command: Command[m.SessionDelete]) -> m.WriteReply:
    body = command.body
    errors: list[m.ItemError] = []
    owners = view.parts[SessionOwners]
    writes, due = view.writes_of(_OWNER), view.writes_of(DUE)
    before = owners.before(view, command.rows)
    late = attachments.outdated(view, command.rows)
    fences = view.parts[Fences]
    ended: dict[bytes, bytes] = {}
    for (position, item, session), row in zip(command.rows, before, strict=True):
        if item.attachment and not body.broker:
            errors.append(m.ItemError(position, InvalidItemError.code, "attachment: needs the broker that has it"))
            continue
        if row is None or session in ended:  # the second time in one batch it is gone already
            errors.append(m.ItemError(position, NotFoundError.code))
            continue
        owner = _decode_owner(row)
        if body.broker and (refusal := _refusal(row, body.broker, body.broker_epoch, position)) is not None:
            errors.append(refusal)
        elif position in late:
            errors.append(late[position])
        elif item.disconnected_ms and item.disconnected_ms != (since_ms := _disconnected_ms(fences, owner)):
            errors.append(mismatch(position, ConflictError, "disconnected_ms", since_ms, item.disconnected_ms))
        else:
            ended[session] = row
            writes[owners.prefix + session] = None
            index.drop(due, view.group, session, owner)
    end_sessions(view, list(ended))
    replaced: list[bytes | None] = list(ended.values())
    view.replaces(_OWNER, replaced, dict.fromkeys(replaced))
    return written(view, errors)


def _disconnected_ms(fences: Fences, owner: m.SessionOwner) -> int:
    """Since when a session is disconnected, as reads show it: also where the sweep has yet to come to it."""
    fence = fences.over(owner)
    return owner.disconnected_ms if fence is None else fence.at_ms


def _session(suffix_fields: bytes, shown: tuple[bytes, bytes], properties: bytes | None) -> bytes:
    """The wire's Session out of its parts: array bodies behind one header."""
    owner, deadlines = shown
    return _SESSION_HEADER + suffix_fields + owner + (properties or _DEFAULT_PROPERTIES) + deadlines


def _read_get(reader: Reader, command: Command[m.SessionGet]) -> m.SessionGetReply:
    values = read_values(reader, command, _PROPERTIES)
    rows, raw = command.rows, msgspec.Raw
    known_owners = reader.parts[SessionOwners]
    owners = known_owners.get_many(rows)
    unknown = [at for at, owner in enumerate(owners) if owner is None and values[at] is not None]
    for at, owner in zip(unknown, known_owners.read(rows, unknown) if unknown else (), strict=True):
        owners[at] = owner
    sessions: list[msgspec.Raw | None] = []
    shown = _Shown(reader.parts[Fences])
    for item, owner, properties in zip(rows.items, owners, values, strict=True):
        if properties is None:  # both rows exist or none
            sessions.append(None)
            continue
        if owner is None:  # pragma: no cover - both rows are written in one entry
            raise AssertionError(f"session without owner: {item}")
        fields, deadlines = shown[owner]
        sessions.append(raw(_SESSION_HEADER + encode(item)[1:] + fields + properties + deadlines))
    return m.SessionGetReply(sessions)  # type: ignore[arg-type]  # encoded


def _read_list(reader: Reader, command: Command[m.SessionList]) -> m.SessionListReply:
    body = command.body
    if body.client_id_prefix and body.tenant is None:
        raise InvalidRequestError("client_id_prefix needs a tenant")
    table = keys.table_prefix(reader.group, _OWNER)
    start = b""
    if body.tenant is not None:
        start = keys.text(body.tenant) + keys.text_prefix(body.client_id_prefix)
    begin = after_cursor(reader.group, _OWNER, start, body.page.cursor, key_after(SESSION, body.after))
    keep = None
    if body.broker is not None:
        # The broker follows the one-byte boolean, so the filter is a comparison of bytes.
        broker = encode(body.broker)

        def keep(row: bytes) -> bool:
            return row.startswith(broker, 2)

    end = keys.after_prefix(table + start)
    scan = reader.scan(begin, end, body.page.limit, keep, body.slots)
    properties_prefix = keys.table_prefix(reader.group, _PROPERTIES)
    skip = len(table)
    suffixes = [key[skip:] for key, _ in scan.rows]
    reader.spent += 4 * len(suffixes)  # a session is put together of two rows, one by one
    sessions: list[msgspec.Raw] = []
    shown = _Shown(reader.parts[Fences])
    size = 0
    # Owner rows are small and properties are not: a page of large sessions ends before the bytes get out of hand.
    for at in range(0, len(suffixes), _LIST_READ_ROWS):
        part = suffixes[at : at + _LIST_READ_ROWS]
        values = reader.engine.get_many([properties_prefix + suffix for suffix in part])
        for suffix, value, (_, owner) in zip(part, values, scan.rows[at : at + _LIST_READ_ROWS], strict=True):
            tenant, offset = keys.split_text(suffix, 0)
            client_id, _ = keys.split_text(suffix, offset)
            record = _session(encode(tenant) + encode(client_id), shown[owner], value)
            sessions.append(msgspec.Raw(record))
            size += len(record)
            if size >= PAGE_BYTES_MAX and len(sessions) < len(suffixes):
                return m.SessionListReply(sessions, suffix)  # type: ignore[arg-type]  # encoded
    cursor = b"" if scan.stopped_at is None else scan.stopped_at[skip:]
    return m.SessionListReply(sessions, cursor)  # type: ignore[arg-type]  # encoded


VERBS = (
    Verb(
        methods.SESSION_TAKEOVER,
        SESSION,
        evaluate=_evaluate_takeover,
        grows=None,
        forget=_forget_restored,
        recall=_recall_restored,
    ),
    Verb(methods.SESSION_DISCONNECT, SESSION, evaluate=_evaluate_disconnect, grows=False),
    Verb(methods.SESSION_UPDATE, SESSION, evaluate=_evaluate_update),
    Verb(methods.SESSION_GET, SESSION, read=_read_get),
    Verb(methods.SESSION_DELETE, SESSION, evaluate=_evaluate_delete, grows=False),
    Verb(methods.SESSION_LIST, SESSION, read=_read_list),
)
