"""Wills that are due: rows that brokers claim, publish and acknowledge, each once.

A claim holds until its time is over by the log's time, or its broker's life is. Then the next who asks gets the will,
and is told how many have had it before: one of them may have published it. A claimant that is only late may still
acknowledge, for as long as nobody else has claimed the will.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, NotFoundError
from metad_wire.methods import encode
from metad_wire.tables import will as wire
from metad_wire.tables.session import SESSION
from metad_wire.tables.will import WILL

from ...storage import keys
from ..cluster.fences import Fences
from ..cluster.tenant_moves import TenantMoves, tenant_of
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.part import Origin, Writes
from ..core.slot_assignment import SlotAssignment, is_held
from ..core.verb import (
    PAGE_BYTES_MAX,
    SCAN_ROWS_MAX,
    Command,
    Reader,
    Verb,
    after_cursor,
    check_broker,
    page_of,
    written,
)
from ..core.view import NO_ROWS, Rows, View, column
from .will_news import WillNews

DUE = WILL.rows["due"]
_CLAIM = WILL.rows["claim"]
_PROPERTIES = SESSION.rows["properties"]
_decode_properties = msgspec.msgpack.Decoder(m.SessionProperties).decode
_decode_claimant = msgspec.msgpack.Decoder(wire.WillClaimant).decode
_WAITING_BYTES_MAX = 256 * 1024  # looked at for a status
# A DueWill on the wire is an array of 6: the key's 3 fields, the due row's 2, the claimant.
_DUE_WILL_HEADER = b"\x96"
_NIL = b"\xc0"


def due_will(view: View, tenant: str, client_id: str, will: m.Will, number: int) -> None:
    """The will of a client is due. ``number`` tells it from the client's other wills, and grows."""
    key = keys.text2(tenant, client_id) + keys.text(f"{number:016x}")
    row, value = keys.table_prefix(view.group, DUE) + key, encode(wire.WillDue(will, view.now_ms))
    view.writes_of(DUE)[row] = value
    view.beside += len(row) + len(value)
    for each in view.parts[WillNews].hears:
        each.claimable(view.revision, tenant, key)


def wills_due(view: View, sessions: Sequence[tuple[Any, bytes]]) -> None:
    """The wills in the properties of these sessions, if they have any, are due. ``sessions``: what has the fields of
    the key, and the key."""
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    stored = view.get_many([prefix + session for _, session in sessions], LOOKED_AT_BYTES_MAX)
    for (named, _), value in zip(sessions, stored, strict=True):
        will = None if value is None else _decode_properties(value).will
        if will is not None:
            due_will(view, named.tenant, named.client_id, will, view.revision)


def _evaluate_claim(view: View, command: Command[wire.WillClaim]) -> wire.WillClaimReply:
    body = command.body
    check_broker(body.broker)
    prefix, claim_prefix = keys.table_prefix(view.group, DUE), keys.table_prefix(view.group, _CLAIM)
    start = b"" if body.tenant is None else keys.text(body.tenant)
    begin = after_cursor(view.group, DUE, start, body.cursor)
    found, is_last = view.scan(begin, keys.after_prefix(prefix + start), SCAN_ROWS_MAX, PAGE_BYTES_MAX)
    skip, mask = len(prefix), view.parts[SlotAssignment].mask
    claims = view.get_many([claim_prefix + key[skip:] for key, _ in found], LOOKED_AT_BYTES_MAX)
    writes: Writes = {}
    claimed: list[wire.ClaimedWill] = []
    wills: list[msgspec.Raw] = []
    until_ms, size = view.now_ms + body.lease_ms, 0
    fences, closed = view.parts[Fences], view.parts[TenantMoves].closed
    cursor = b""
    for (key, due), row in zip(found, claims, strict=True):
        claimant = None if row is None else _decode_claimant(row)
        suffix = key[skip:]
        if (
            due is not None
            and not _holds(claimant, body.broker, body.broker_epoch, view.past_ms, fences)
            and (mask is None or mask[WILL.slot_of(suffix)])
            and not (closed and tenant_of(suffix) in closed)
        ):
            size += len(due)
            if len(claimed) == body.limit or (claimed and size > command.reply_bytes_max):
                break
            count = 1 if claimant is None else claimant.claims + 1
            writes[claim_prefix + suffix] = encode((body.broker, body.broker_epoch, until_ms, count))
            tenant, client_id, number = WILL.fields_of(suffix, 3)
            claimed.append(wire.ClaimedWill(tenant, client_id, number, count))
            wills.append(msgspec.Raw(due))
        cursor = suffix
    else:
        cursor = b"" if is_last else cursor
    view.write(_CLAIM, writes)
    for each in view.parts[WillNews].hears:
        each.claimed(view.revision, body.broker, len(claimed), more=bool(cursor) or len(claimed) == body.limit)
    view.grown = sum(map(len, writes)) + sum(map(len, filter(None, writes.values())))
    revisions = [m.Revision(view.name, view.revision)]
    return wire.WillClaimReply(revisions, claimed, wills, cursor)  # type: ignore[arg-type]  # encoded


def _holds(claimant: wire.WillClaimant | None, broker: str, epoch: int, past_ms: int, fences: Fences) -> bool:
    """Whether a claim keeps this life of a broker away."""
    if claimant is None or claimant.until_ms <= past_ms:
        return False
    if claimant.broker == broker and claimant.broker_epoch < epoch:
        return False  # this broker's last life
    return fences.allows(claimant.broker, claimant.broker_epoch)


def _forget_wills(reply: wire.WillClaimReply) -> wire.WillClaimReply:
    """The wills are in rows of their own, and are not to be in the log again: a retry reads them again."""
    return msgspec.structs.replace(reply, wills=[])


def _recall_wills(reader: Reader, command: Command[wire.WillClaim], reply: wire.WillClaimReply) -> wire.WillClaimReply:
    suffixes, crcs = WILL.keys(reply.claimed)
    reader.check_still_held(Rows(reply.claimed, suffixes, column(crcs, len(suffixes))))
    prefix = keys.table_prefix(reader.group, DUE)
    values = reader.get_many([prefix + suffix for suffix in suffixes], 2 * command.reply_bytes_max)
    wills = [None if value is None else msgspec.Raw(value) for value in values]
    return msgspec.structs.replace(reply, wills=wills)


def _evaluate_acknowledge(view: View, command: Command[wire.WillAcknowledge]) -> m.WriteReply:
    return _give_up(view, command, drop=True)


def _evaluate_release(view: View, command: Command[wire.WillRelease]) -> m.WriteReply:
    return _give_up(view, command, drop=False)


def _give_up(
    view: View, command: Command[wire.WillAcknowledge] | Command[wire.WillRelease], *, drop: bool
) -> m.WriteReply:
    """End the claims of a life of a broker, and if ``drop``, the wills."""
    body, suffixes = command.body, command.rows.keys
    prefix, claim_prefix = keys.table_prefix(view.group, DUE), keys.table_prefix(view.group, _CLAIM)
    rows = view.get_many([claim_prefix + suffix for suffix in suffixes], LOOKED_AT_BYTES_MAX)
    claims, dues = view.writes_of(_CLAIM), view.writes_of(DUE)
    errors: list[m.ItemError] = []
    for at, (suffix, row) in enumerate(zip(suffixes, rows, strict=True)):
        due, claim = prefix + suffix, claim_prefix + suffix
        if dues.get(due, b"") is None:  # the second time in one batch it is gone already
            errors.append(m.ItemError(at, NotFoundError.code))
            continue
        claimant = None if row is None else _decode_claimant(row)
        if claimant is None:
            is_there = view.get(due) is not None
            error = ConflictError if is_there else NotFoundError
            errors.append(m.ItemError(at, error.code, "nobody has claimed it" if is_there else ""))
        elif (claimant.broker, claimant.broker_epoch) != (body.broker, body.broker_epoch):
            who = f"epoch {claimant.broker_epoch} of {claimant.broker} has claimed it"
            errors.append(m.ItemError(at, ConflictError.code, who))
        elif drop:
            dues[due] = claims[claim] = None
        else:
            claims[claim] = encode(msgspec.structs.replace(claimant, until_ms=0))
            tenant = str(WILL.fields_of(suffix, 1)[0])
            for each in view.parts[WillNews].hears:
                each.claimable(view.revision, tenant, suffix)
    return written(view, errors)


class _Since(m.Message, frozen=True):
    """A will's row, without making objects of the will."""

    will: msgspec.Raw
    due_ms: int


_decode_since = msgspec.msgpack.Decoder(_Since).decode


def due_ms_of(row: bytes) -> int:
    """Since when a will is due, in the time of the log."""
    return _decode_since(row).due_ms


def _evaluate_expire(view: View, command: Command[wire.WillExpire]) -> wire.WillExpireReply:
    suffixes = [*dict.fromkeys(command.rows.keys)]
    prefix, claim_prefix = keys.table_prefix(view.group, DUE), keys.table_prefix(view.group, _CLAIM)
    rows = view.get_many([prefix + suffix for suffix in suffixes], LOOKED_AT_BYTES_MAX)
    claims = view.get_many([claim_prefix + suffix for suffix in suffixes], LOOKED_AT_BYTES_MAX)
    dues, claim_writes = view.writes_of(DUE), view.writes_of(_CLAIM)
    fences = view.parts[Fences]
    dropped = 0
    for suffix, row, claim in zip(suffixes, rows, claims, strict=True):
        if row is None or due_ms_of(row) + command.body.keep_ms > view.past_ms:
            continue
        claimant = None if claim is None else _decode_claimant(claim)
        if _holds(claimant, "", 0, view.past_ms, fences):
            continue  # somebody publishes it now
        dropped += 1
        dues[prefix + suffix] = None
        if claim is not None:
            claim_writes[claim_prefix + suffix] = None
    return wire.WillExpireReply([m.Revision(view.name, view.revision)], [], dropped)


def _read_list(reader: Reader, command: Command[wire.WillList]) -> m.ListReply[wire.DueWill]:
    claim_prefix = keys.table_prefix(reader.group, _CLAIM)
    rows, cursor = page_of(reader, command, DUE)
    claims = reader.get_many([claim_prefix + suffix for suffix, _ in rows], LOOKED_AT_BYTES_MAX)
    found: list[msgspec.Raw] = []
    asker, fences = command.body.claimable_by, reader.parts[Fences]
    past_ms = 0 if asker is None else reader.now_ms()
    for (suffix, due), claim in zip(rows, claims, strict=True):
        claimant = None if asker is None or claim is None else _decode_claimant(claim)
        if asker is not None and _holds(claimant, asker.broker, asker.broker_epoch, past_ms, fences):
            continue
        fields = b"".join(map(encode, WILL.fields_of(suffix, 3)))
        found.append(msgspec.Raw(_DUE_WILL_HEADER + fields + due[1:] + (claim or _NIL)))
    return m.ListReply(found, cursor)  # type: ignore[arg-type]  # encoded


def _read_wait(reader: Reader, command: Command[wire.WillWait]) -> wire.WillWaitReply:
    """Whether there is a will to claim, at once: the node does the waiting (:mod:`metad.node.watches.will_turns`)."""
    body = command.body
    start = b"" if body.tenant is None else keys.text(body.tenant)
    prefix, claim_prefix = keys.table_prefix(reader.group, DUE), keys.table_prefix(reader.group, _CLAIM)
    begin = after_cursor(reader.group, DUE, start, body.cursor)
    scan = reader.scan(begin, keys.after_prefix(prefix + start), SCAN_ROWS_MAX)
    skip = len(prefix)
    suffixes = [key[skip:] for key, _ in scan.rows]
    claims = reader.get_many([claim_prefix + suffix for suffix in suffixes], LOOKED_AT_BYTES_MAX)
    fences, past_ms, closed = reader.parts[Fences], reader.now_ms(), reader.parts[TenantMoves].closed
    for suffix, claim in zip(suffixes, claims, strict=True):
        if closed and tenant_of(suffix) in closed:
            continue
        claimant = None if claim is None else _decode_claimant(claim)
        if not _holds(claimant, body.broker, body.broker_epoch, past_ms, fences):
            return wire.WillWaitReply(True, just_before(suffix), suffix != suffixes[0])
    return wire.WillWaitReply(False, b"" if scan.stopped_at is None else scan.stopped_at[skip:], bool(suffixes))


def just_before(key: bytes) -> bytes:
    """A cursor that this key of a will is behind, and none before it that has another beginning."""
    return key[:-1]


class Waiting(NamedTuple):
    """Wills that are due and not acknowledged, how many of them nobody has, and since when the oldest of these is due
    (0: there is none). ``more``: others were not looked at."""

    wills: int
    unclaimed: int
    since_ms: int
    more: bool


def waiting(reader: Reader, now_ms: int, limit: int) -> Waiting:
    """Look at so many of a group's wills that are due."""
    prefix, claim_prefix = keys.table_prefix(reader.group, DUE), keys.table_prefix(reader.group, _CLAIM)
    rows = reader.engine.scan(prefix, keys.after_prefix(prefix), limit + 1, _WAITING_BYTES_MAX)
    more = len(rows) > limit or sum(len(key) + len(row) for key, row in rows) >= _WAITING_BYTES_MAX
    looked = [(key, row) for key, row in rows[:limit] if reader.held is None or is_held(reader.held, key)]
    claims = reader.engine.get_many([claim_prefix + key[len(prefix) :] for key, _ in looked])
    fences = reader.parts[Fences]
    since = [
        due_ms_of(row)
        for (_, row), claim in zip(looked, claims, strict=True)
        if claim is None or not _is_claim_of_now(_decode_claimant(claim), fences, now_ms)
    ]
    return Waiting(len(looked), len(since), min(since, default=0), more)


def _is_claim_of_now(claimant: wire.WillClaimant, fences: Fences, now_ms: int) -> bool:
    fence = fences.applied_of(claimant.broker)
    return claimant.until_ms > now_ms and (fence is None or claimant.broker_epoch >= fence.least_epoch)


def _no_rows(body: wire.WillClaim) -> Rows:
    """A claim finds its rows itself, among those of slots that the group holds."""
    return NO_ROWS


VERBS = (
    Verb(
        methods.WILL_CLAIM,
        WILL,
        rows=_no_rows,
        evaluate=_evaluate_claim,
        grows=False,
        forget=_forget_wills,
        recall=_recall_wills,
    ),
    Verb(methods.WILL_ACKNOWLEDGE, WILL, evaluate=_evaluate_acknowledge, grows=False),
    Verb(methods.WILL_RELEASE, WILL, evaluate=_evaluate_release, grows=False),
    Verb(methods.WILL_EXPIRE, WILL, evaluate=_evaluate_expire, origin=Origin.EXPIRY, background=True, grows=False),
    Verb(methods.WILL_LIST, WILL, read=_read_list),
    Verb(methods.WILL_WAIT, WILL, read=_read_wait),
)
