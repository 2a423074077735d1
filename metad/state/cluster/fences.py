"""The fences of brokers: from which epoch on a broker's writes are done. They belong to the group, not to its slots.

A *life* of a broker is its name and an epoch. Once a group has fenced a broker, its log has no entry of a life with a
lower epoch any more: :mod:`..machine` asks :class:`Fences` once per request, before the request is evaluated. What is
in flight counts. So a fence that is acknowledged is a barrier, whichever session's last owner the life was.

A broker without a fence is allowed: one that never registers is never fenced. A fence is only ever raised. It is an
entry of its own, which may have many brokers. A group that adopts slots also takes over the fences of the group that
had them, as they were when the slots were sealed or later; else a life could write there where the fence came only to
the source.

A fence also says whether the broker's newest life lives, which life began without all that the one before had, and
which lives do not serve any more. A group that places partitions on brokers decides by these and by nothing else. It
goes through the partitions that name a broker when the broker's fence has changed, and notes that in the fence's row.

Every life that metad registered has a fence in every group, so memory would grow with each name ever used. A fence may
be forgotten once its broker ended long ago, none of its sessions looks connected, and no partition names it. A request
says whether its life was registered; such a life is over where its broker has no fence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import FenceItem, GroupFence, GroupId
from metad_wire.errors import ConflictError, FencedError, MetadError
from metad_wire.families.assignment import BY_REPLICA
from metad_wire.methods import encode
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.table import INDEXES

from ...storage import keys
from ...storage.engine import Engine
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.verb import Command, Verb, Vouch, written
from ..core.view import View

_FENCE = GROUP.rows["fence"]
_LOAD_ROWS = 1_000
_INDEX: Final = INDEXES.rows["index"]


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """The row of one broker: lives with an epoch below ``least_epoch`` are over since ``at_ms``, by the group's log. Of
    those below ``swept_epoch``, no session looks connected any more in this group. ``live``, ``unclean_epoch`` and
    ``quiet_epoch`` are those of ``FenceItem``. ``stepped`` has the ``values`` of the fence for which all partitions of
    this group that name the broker have been gone through; nil if they have not, or if slots have come since."""

    least_epoch: int
    at_ms: int
    swept_epoch: int = 0
    live: bool = False
    unclean_epoch: int = 0
    quiet_epoch: int = 0
    stepped: tuple[int, bool, int, int] | None = None

    @property
    def values(self) -> tuple[int, bool, int, int]:
        """What it says, as in ``FenceItem``."""
        return self.least_epoch, self.live, self.unclean_epoch, self.quiet_epoch

    def item(self, broker: str) -> FenceItem:
        """As it is told."""
        return FenceItem(broker, self.least_epoch, self.at_ms, None, *self.values[1:])


_NONE: Final = Fence(0, 0)
_decode = msgspec.msgpack.Decoder(Fence).decode


def aged(items: Iterable[FenceItem], now_ms: int) -> list[FenceItem]:
    """Fences of a log whose time is ``now_ms``, as they are told to other groups."""
    return [msgspec.structs.replace(item, age_ms=max(0, now_ms - item.at_ms)) if item.at_ms else item for item in items]


def replica_rows(group: bytes, broker: str) -> bytes:
    """What the rows of the index begin with that name the partitions of a broker."""
    return keys.table_prefix(group, _INDEX) + BY_REPLICA.header + keys.text(broker)


def names_broker(view: View, broker: str) -> bool:
    """Whether a partition of the group names a broker as a replica. What is in flight counts, but for a row that an
    entry in flight deletes: that broker is named until the entry is applied."""
    prefix = replica_rows(view.group, broker)
    applied, _ = view.scan(prefix, keys.after_prefix(prefix), 1, LOOKED_AT_BYTES_MAX)
    return bool(applied or view.keys_under(_INDEX, prefix, 1))


def _decoded(prefix: bytes, rows: Iterable[tuple[bytes, bytes | None]]) -> Iterable[tuple[str, Fence | None]]:
    return [(keys.split_text(key, len(prefix))[0], None if value is None else _decode(value)) for key, value in rows]


def fences_in(engine: Engine, group: bytes) -> list[FenceItem]:
    """All fences in the state of a group."""
    prefix = keys.table_prefix(group, _FENCE)
    rows = engine.scan(prefix, keys.after_prefix(prefix), 1 << 30)
    return [fence.item(broker) for broker, fence in _decoded(prefix, rows) if fence]


def _set(fences: dict[str, Fence], broker: str, fence: Fence | None) -> None:
    if fence is None:
        fences.pop(broker, None)
    else:
        fences[broker] = fence


class Fences(StatePart):
    """The fences of one group: those of the newest entries that were evaluated or applied."""

    rows = (_FENCE,)

    def __init__(self, context: PartContext) -> None:
        self._prefix = keys.table_prefix(context.group, _FENCE)
        self._engine = context.engine
        self.entries = 0
        """How many entries that raise fences were applied here, since the start of the node."""
        self.changes = 0
        """How many entries that change fences in whatever way."""

    def load(self) -> None:
        self._applied: dict[str, Fence] = {}
        begin, end = self._prefix, keys.after_prefix(self._prefix)
        while True:
            found = self._engine.scan(begin, end, _LOAD_ROWS)
            self._applied.update({broker: fence for broker, fence in _decoded(self._prefix, found) if fence})
            if len(found) < _LOAD_ROWS:
                break
            begin = found[-1][0] + b"\0"
        self.forget()

    def forget(self) -> None:
        self._newest = dict(self._applied)
        self._changed: dict[str, int] = {}  # broker -> the entry in flight that changed its fence last

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        for broker, fence in _decoded(self._prefix, writes.items()):
            _set(self._newest, broker, fence)
            self._changed[broker] = index

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        raised = False
        for broker, fence in _decoded(self._prefix, writes.items()):
            known = self._applied.get(broker)
            raised = raised or (fence is not None and (known is None or fence.least_epoch > known.least_epoch))
            _set(self._applied, broker, fence)
            if index >= self._changed.get(broker, 0):  # or a later entry that is in flight has changed it
                _set(self._newest, broker, fence)
                self._changed.pop(broker, None)
        self.entries += raised
        self.changes += 1

    # --- asked while commands are evaluated --------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether anybody is fenced, in this group, so far."""
        return bool(self._newest)

    def of(self, broker: str) -> Fence | None:
        """The fence of a broker; None if it has none."""
        return self._newest.get(broker)

    def allows(self, broker: str, epoch: int) -> bool:
        """Whether this life of a broker may write."""
        fence = self._newest.get(broker)
        return fence is None or epoch >= fence.least_epoch

    def refusal(self, registered: bool, *lives: m.Owner | None, vouch: Vouch | None = None) -> MetadError | None:
        """Why a request in the name of these lives is refused as a whole; None if it is not. ``registered``: the first
        is one that metad registered. ``vouch`` decides about a life that is not known here as the last that a
        registration gave and that has not ended."""
        if registered and lives[0] is not None and lives[0].broker not in self._newest:
            return FencedError(
                f"epoch {lives[0].broker_epoch} of broker {lives[0].broker!r} is over: it ended so long ago that the "
                f"broker is forgotten"
            )
        for life in lives:
            if life is not None and not self.allows(life.broker, life.broker_epoch):
                least = self._newest[life.broker].least_epoch
                return FencedError(
                    f"epoch {life.broker_epoch} of broker {life.broker!r} is over: "
                    f"the least epoch that may write is {least}",
                    current=least,
                )
            if vouch is None or life is None or not life.broker:
                continue  # a request in nobody's name
            if self.life(life.broker) != life.broker_epoch and (unknown := vouch(life)) is not None:
                return unknown
        return None

    def over(self, owner: m.SessionOwner) -> Fence | None:
        """The fence of the life that owns a session, if the session looks connected and that life is over."""
        fence = self._newest.get(owner.broker) if owner.connected else None
        return fence if fence is not None and owner.broker_epoch < fence.least_epoch else None

    def of_all(self) -> Mapping[str, Fence]:
        """All fences, by broker."""
        return self._newest

    def life(self, broker: str) -> int | None:
        """The epoch of the broker's life that is registered and has not ended; None if there is none."""
        fence = self._newest.get(broker)
        return fence.least_epoch if fence is not None and fence.live else None

    def clean(self, broker: str, epoch: int) -> bool:
        """Whether the broker still has all that this life had."""
        fence = self._newest.get(broker)
        return fence is not None and fence.unclean_epoch <= epoch

    def quiet(self, broker: str, epoch: int) -> bool:
        """Whether this life does not serve any more."""
        fence = self._newest.get(broker)
        return fence is not None and fence.quiet_epoch > epoch

    def ended_ms(self, broker: str) -> int | None:
        """Since when, by the group's log, the lives below its fence are over; None if the broker has no fence."""
        fence = self._newest.get(broker)
        return None if fence is None else fence.at_ms

    # --- asked by reads ----------------------------------------------------------------------------------

    def applied_of(self, broker: str) -> Fence | None:
        """The fence of a broker in the applied state, for reads."""
        return self._applied.get(broker)

    def applied_of_all(self) -> Mapping[str, Fence]:
        """All fences of the applied state, by broker."""
        return self._applied

    def unswept(self) -> list[FenceItem]:
        """Those of the applied state that have lives whose sessions may look connected."""
        return [fence.item(broker) for broker, fence in self._applied.items() if fence.swept_epoch < fence.least_epoch]

    def unstepped(self) -> list[FenceItem]:
        """Those of the applied state that have changed since the partitions were gone through that name the broker."""
        return [fence.item(broker) for broker, fence in self._applied.items() if fence.stepped != fence.values]

    def carried(self, now_ms: int) -> list[FenceItem]:
        """All fences of the applied state, for the group that adopts slots of this one, at this time of the log."""
        found = [fence.item(broker) for broker, fence in self._applied.items()]
        return aged(found, now_ms)

    # --- swept, stepped ----------------------------------------------------------------------------------

    def swept(self, view: View, items: Iterable[FenceItem]) -> None:
        """Let the command that is evaluated note that no session of these lives looks connected any more."""
        writes = view.writes_of(_FENCE)
        for item in items:
            fence = self._newest.get(item.broker)
            if fence is not None and fence.least_epoch == item.least_epoch:
                row = msgspec.structs.replace(fence, swept_epoch=item.least_epoch)
                writes[self._prefix + keys.text(item.broker)] = encode(row)

    def stepped(self, view: View, items: Iterable[FenceItem]) -> None:
        """Let the command that is evaluated note that all partitions were gone through that name the brokers of these
        fences. It counts only for a fence that still says the same."""
        writes = view.writes_of(_FENCE)
        for item in items:
            fence = self._newest.get(item.broker)
            if fence is not None and fence.values == item.values != fence.stepped:
                writes[self._prefix + keys.text(item.broker)] = encode(
                    msgspec.structs.replace(fence, stepped=item.values)
                )

    def slots_came(self, view: View) -> None:
        """Let the command that is evaluated note that sessions and partitions have come from another group, of whatever
        lives. It may have raised fences."""
        writes = view.writes_of(_FENCE)
        for broker, fence in self._newest.items():
            key = self._prefix + keys.text(broker)
            raised = writes.get(key)
            now = fence if raised is None else _decode(raised)
            if now.swept_epoch or now.stepped:
                writes[key] = encode(msgspec.structs.replace(now, swept_epoch=0, stepped=None))

    # --- forgotten ---------------------------------------------------------------------------------------

    def forgotten(self, view: View, items: Iterable[FenceItem]) -> list[m.ItemError]:
        """Let the command that is evaluated drop these fences. Not one that was raised since, and not one that has
        sessions which look connected, or partitions that name the broker: those are the errors."""
        writes, errors = view.writes_of(_FENCE), []
        group = GroupId.parse(view.name)
        kind = "" if group is None else group.kind
        for position, item in enumerate(items):
            fence = self._newest.get(item.broker)
            if fence is None:
                continue
            if (
                fence.values[:2] > item.values[:2]
                or (kind == "data" and fence.swept_epoch < fence.least_epoch)
                or (kind == "metadata" and names_broker(view, item.broker))
            ):
                errors.append(m.ItemError(position, ConflictError.code, current=fence.least_epoch))
            else:
                writes[self._prefix + keys.text(item.broker)] = None
        return errors

    # --- raised ------------------------------------------------------------------------------------------

    def raised(self, view: View, items: Iterable[FenceItem]) -> None:
        """Let the command that is evaluated merge these fences with those that there are. One that says nothing new
        leaves no write."""
        told: dict[str, FenceItem] = {}
        for item in items:
            known = told.get(item.broker)
            told[item.broker] = item if known is None else known.merged(item)
        writes = view.writes_of(_FENCE)
        for broker, item in told.items():
            fence = self._newest.get(broker, _NONE)
            at_ms = item.at_ms if item.age_ms is None else max(1, view.now_ms - item.age_ms)
            now = fence.item(broker).merged(msgspec.structs.replace(item, at_ms=at_ms))
            if now.values != fence.values:
                row = Fence(now.least_epoch, now.at_ms, fence.swept_epoch, *now.values[1:], fence.stepped)
                writes[self._prefix + keys.text(broker)] = encode(row)


def _evaluate(view: View, command: Command[GroupFence]) -> m.WriteReply:
    fences = view.parts[Fences]
    fences.raised(view, command.body.items)
    return written(view, fences.forgotten(view, command.body.forget))


VERBS = (Verb(methods.GROUP_FENCE, GROUP, evaluate=_evaluate, origin=Origin.CONTROLLER, grows=False),)
