"""The registry of brokers: a row for each, in metadata-0. What is decided about them is decided by its leader.

An epoch is at least the index of the entry that gives it, so it grows even if the row is lost; at least one more than
the last, because registrations may share an entry; and at least what the registration names, because brokers have
chosen their own epochs before.

A row also says from which epoch on the broker may write, and whether every group has that fence. It may be said only
while the map is the one whose groups were asked: a group that was added since has not been fenced. One that is added
later gets its fences with the slots that it adopts.

A life that an administrator or the next registration has ended may serve until its lease is over. The row says for how
long at most; the leader waits for so long from when it has learned that, and notes that the lives are *quiet*. Whether
all groups know what the row says now, ``told``, is noted like the fence.

A broker that ended long ago may be forgotten, once no group has its fence any more. A life of it that comes back is
refused nevertheless, see :mod:`.fences`, and the next one gets a higher epoch, for an entry's index only grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA, FenceItem
from metad_wire.errors import ConflictError, FencedError, MetadError, NotFoundError
from metad_wire.methods import encode
from metad_wire.tables import broker as b
from metad_wire.tables.access import AuditEntry
from metad_wire.tables.broker import BROKER, Broker, BrokerChange, BrokerChanged, BrokerStep

from ...storage import keys
from ...storage.engine import Engine
from ..core import tails
from ..core.part import Origin
from ..core.verb import Command, Verb
from ..core.view import View
from .audit import AuditTrail, bounded
from .cluster import map_version

_RECORD = BROKER.rows["record"]
_PREFIX = keys.table_prefix(keys.group_prefix(METADATA), _RECORD)
_FIELDS = tails.fields(Broker)
_LOAD_ROWS = 1_000
LEASE_MS_MAX = 3_600_000
_PRINCIPAL = "://"
"""In the name of a principal, and in no host's: one client may come from several hosts."""

_decode = msgspec.msgpack.Decoder(Broker).decode


def read_brokers(engine: Engine) -> dict[str, Broker]:
    """All brokers of the applied state, by name."""
    found: dict[str, Broker] = {}
    begin, end = _PREFIX, keys.after_prefix(_PREFIX)
    while True:
        rows = engine.scan(begin, end, _LOAD_ROWS)
        for _, value in rows:
            record = _decode(value)
            found[record.broker] = record
        if len(rows) < _LOAD_ROWS:
            return found
        begin = rows[-1][0] + b"\0"


def read_broker(engine: Engine, broker: str) -> Broker | None:
    """A broker of the applied state; None if nobody has registered it."""
    value = engine.get(_PREFIX + keys.text(broker))
    return None if value is None else _decode(value)


def registered_by(engine: Engine, broker: str) -> str:
    """Who registered the last life of a broker, by the applied state; empty if nobody did."""
    known = read_broker(engine, broker)
    return "" if known is None else known.registered_by


def fence_of(record: Broker) -> FenceItem:
    """What all groups shall know of a broker, at the time of metadata-0's log."""
    live, quiet_epoch = record.state in b.LIVE, record.quiet_epoch
    return FenceItem(record.broker, record.least_epoch, record.fenced_ms, None, live, record.unclean_epoch, quiet_epoch)


class _Now(NamedTuple):
    """What a step is judged by."""

    entry: int
    now_ms: int
    same_map: bool


def _register(now: _Now, step: BrokerStep, known: Broker | None) -> Broker:
    asked = step.registration
    if asked is None:
        raise ConflictError("a registration without its fields")
    least = 0 if known is None else max(known.broker_epoch + 1, known.least_epoch)
    epoch = max(now.entry, least, asked.at_least_epoch)
    unclean_epoch, quiet_epoch, quiet_ms = 0, epoch, 0
    if known is not None:
        is_retry = _is_retry(step, known)
        is_clean = is_retry or asked.clean_epoch == known.broker_epoch
        unclean_epoch = known.unclean_epoch if is_clean else epoch
        # An attempt may come late: then its process lives already, by another attempt.
        has_stopped = asked.sole and asked.registration > 0 and not is_retry
        quiet_epoch, quiet_ms = _quiet(known, epoch, has_stopped=has_stopped)
    return Broker(
        asked.broker,
        epoch,
        b.LOADING if asked.loading_ms else b.REGISTERED,
        asked.lease_ms,
        asked.address,
        asked.region,
        asked.rack,
        asked.attributes,
        registered_ms=now.now_ms,
        changed_ms=now.now_ms,
        least_epoch=epoch,
        fenced_ms=now.now_ms,
        probe_port=asked.probe_port,
        registered_by=step.by,
        loading_ms=asked.loading_ms,
        unclean_epoch=unclean_epoch,
        quiet_epoch=quiet_epoch,
        quiet_ms=quiet_ms,
        registration=asked.registration,
    )


def _is_retry(step: BrokerStep, known: Broker) -> bool:
    """Whether a registration is another attempt of the one that gave the last life. Many can read its number, so it
    counts for nobody but the principal that has drawn it."""
    assert step.registration is not None
    principals = {one for one in (step.by, known.registered_by) if _PRINCIPAL in one}
    return 0 < step.registration.registration == known.registration and len(principals) < 2


def _quiet(known: Broker, least: int, *, has_stopped: bool) -> tuple[int, int]:
    """What is quiet once lives below ``least`` are over, which are those that were known and the last one: its
    ``quiet_epoch`` and ``quiet_ms``. ``has_stopped``: the last one serves no more."""
    waits_ms = 0
    if known.quiet_epoch < (known.broker_epoch if has_stopped else known.least_epoch):
        waits_ms = known.quiet_ms or LEASE_MS_MAX  # an older version did not write it
    if known.state in b.LIVE and not has_stopped:
        waits_ms = max(waits_ms, known.lease_ms, known.loading_ms if known.state == b.LOADING else 0)
    return (known.quiet_epoch, waits_ms) if waits_ms else (least, 0)


def _of_life(step: BrokerStep, known: Broker | None) -> Broker:
    """The broker, whose life must be the one that the step names."""
    if known is None:
        raise NotFoundError(f"there is no broker {step.broker!r}")
    if step.broker_epoch != known.broker_epoch or known.state not in b.LIVE:
        raise FencedError(
            f"epoch {step.broker_epoch} of broker {step.broker!r} is over: epoch {known.broker_epoch} is {known.state}",
            current=known.broker_epoch,
        )
    return known


def _serve(now: _Now, step: BrokerStep, known: Broker | None) -> Broker:
    known = _of_life(step, known)
    if known.state != b.LOADING:
        return known
    return msgspec.structs.replace(known, state=b.ACTIVE if known.fenced else b.REGISTERED, changed_ms=now.now_ms)


def _load(now: _Now, step: BrokerStep, known: Broker | None) -> Broker:
    known = _of_life(step, known)
    return known if known.load_class == step.load_class else msgspec.structs.replace(known, load_class=step.load_class)


def _drain(now: _Now, step: BrokerStep, known: Broker | None) -> Broker:
    known = _of_life(step, known)
    return msgspec.structs.replace(known, state=b.DRAINING, changed_ms=now.now_ms)


def _end(state: str) -> Callable[[_Now, BrokerStep, Broker | None], Broker]:
    def end(now: _Now, step: BrokerStep, known: Broker | None) -> Broker:
        if known is not None and step.step == "fence":
            if known.state not in b.LIVE and step.broker_epoch in (0, known.broker_epoch):
                return known  # it has ended already
            if not step.broker_epoch:
                step = msgspec.structs.replace(step, broker_epoch=known.broker_epoch)
        known = _of_life(step, known)
        least = known.broker_epoch + 1
        quiet_epoch, quiet_ms = _quiet(known, least, has_stopped=step.step != "fence")
        return msgspec.structs.replace(
            known,
            state=state,
            changed_ms=now.now_ms,
            least_epoch=least,
            fenced_ms=now.now_ms,
            fenced=False,
            freed=step.step != "expire",
            quiet_epoch=quiet_epoch,
            quiet_ms=quiet_ms,
            told=False,
        )

    return end


def ended(view: View, row: bytes) -> bytes:
    """The row of a broker as a restore brings it: its life is over, and all groups are to hear of it again. It may
    serve until its lease is over, as one that an administrator has ended."""
    known = _decode(row)
    now = _Now(view.index, view.now_ms, False)
    if known.state in b.LIVE:
        known = _end(b.FENCED)(now, BrokerStep("fence", known.broker), known)
    changed = msgspec.structs.replace(known, fenced_ms=now.now_ms, fenced=False, told=False)
    return tails.keep(row, encode(changed), _FIELDS)


def ended_fence(record: Broker) -> FenceItem:
    """What all groups shall know of a broker in a backup: :func:`ended`, as of now."""
    least = record.broker_epoch + 1 if record.state in b.LIVE else record.least_epoch
    return FenceItem(record.broker, least, 0, 0, False, record.unclean_epoch, record.quiet_epoch)


def _note_quiet(now: _Now, step: BrokerStep, known: Broker | None) -> Broker:
    if known is None:
        raise NotFoundError(f"there is no broker {step.broker!r}")
    quiet_epoch = step.broker_epoch
    if not known.quiet_epoch < quiet_epoch <= known.least_epoch:
        raise ConflictError("other lives are quiet, or not over", current=known.quiet_epoch)
    has_stopped = known.state == b.GONE or (known.state == b.FENCED and not known.freed)
    if has_stopped and quiet_epoch == known.broker_epoch:
        quiet_epoch = known.least_epoch
    quiet_ms = known.quiet_ms if quiet_epoch < known.least_epoch else 0
    return msgspec.structs.replace(known, quiet_epoch=quiet_epoch, quiet_ms=quiet_ms, told=False)


def _fenced(now: _Now, step: BrokerStep, known: Broker | None) -> Broker:
    if known is None:
        raise NotFoundError(f"there is no broker {step.broker!r}")
    if step.told is None or step.told.values != fence_of(known).values:
        raise ConflictError("its fence has changed since", current=known.least_epoch)
    if not now.same_map:
        raise ConflictError("the map has changed since")
    state = b.ACTIVE if known.state == b.REGISTERED else known.state
    return msgspec.structs.replace(known, state=state, fenced=True, told=True)


def _forget(now: _Now, step: BrokerStep, known: Broker | None) -> Broker:
    if known is None:
        raise NotFoundError(f"there is no broker {step.broker!r}")
    if known.state in b.LIVE or known.least_epoch != step.broker_epoch:
        raise ConflictError("it has registered since", current=known.least_epoch)
    if not now.same_map:
        raise ConflictError("the map has changed since")
    return msgspec.structs.replace(known, state=b.FORGOTTEN, changed_ms=now.now_ms)


_STEPS: dict[str, Callable[[_Now, BrokerStep, Broker | None], Broker]] = {
    "register": _register,
    "serve": _serve,
    "load": _load,
    "drain": _drain,
    "deregister": _end(b.GONE),
    "fence": _end(b.FENCED),
    "expire": _end(b.FENCED),
    "quiet": _note_quiet,
    "fenced": _fenced,
    "forget": _forget,
}


def _noted(step: BrokerStep, known: Broker | None, changed: Broker) -> AuditEntry | None:
    """The line about a registration that has ended another life, which was alive; None if it has not. An attempt to
    register that comes again ends its own."""
    asked = step.registration
    if step.line is None or asked is None or known is None or known.state not in b.LIVE:
        return None
    if _is_retry(step, known):
        return None
    names = f"{step.broker}: epoch {changed.broker_epoch} ends epoch {known.broker_epoch}, registered by "
    names += known.registered_by or "nobody known"
    return msgspec.structs.replace(step.line, names=bounded(names))


def _evaluate(view: View, command: Command[BrokerChange]) -> BrokerChanged:
    body = command.body
    now = _Now(view.index, view.now_ms, map_version(view) == body.map_version)
    writes = view.writes_of(_RECORD)
    errors: list[m.ItemError] = []
    brokers: list[Broker | None] = []
    lines: list[AuditEntry] = []
    for position, step in enumerate(body.steps):
        key = _PREFIX + keys.text(step.broker)
        stored = view.get(key)
        known = None if stored is None else _decode(stored)
        try:
            take = _STEPS.get(step.step)
            if take is None:
                raise ConflictError(f"no step {step.step!r}")
            changed = take(now, step, known)
        except MetadError as error:
            errors.append(m.ItemError(position, error.code, error.message, error.current))
            brokers.append(None)
            continue
        if changed.state == b.FORGOTTEN:
            writes[key] = None
        elif changed is not known:
            written = encode(changed)
            writes[key] = written if stored is None else tails.keep(stored, written, _FIELDS)
        brokers.append(changed)
        if (line := _noted(step, known, changed)) is not None:
            lines.append(line)
    view.parts[AuditTrail].write(view, lines)
    return BrokerChanged([m.Revision(view.name, view.revision)], errors, brokers)


VERBS = (Verb(methods.BROKER_CHANGE, BROKER, evaluate=_evaluate, origin=Origin.CONTROLLER, grows=False),)
