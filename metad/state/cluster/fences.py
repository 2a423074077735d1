"""The fences of brokers: from which epoch on a broker's writes are done. They belong to the group, not to its slots.

A *life* of a broker is its name and an epoch. Once a group has fenced a broker, its log has no entry of a life with a
lower epoch any more: :mod:`..machine` asks :class:`Fences` once per request, before the request is evaluated. What is
in flight counts. So a fence that is acknowledged is a barrier, whichever session's last owner the life was.

A broker without a fence is allowed: one that never registers is never fenced. A fence is only ever raised. It is an
entry of its own, which may have many brokers. A group that adopts slots also takes over the fences of the group that
had them, as they were when the slots were sealed or later; else a life could write there where the fence came only to
the source.

Every life that metad registered has a fence in every group, so memory would grow with each name ever used. A fence may
be forgotten once its broker ended long ago and none of its sessions looks connected. A request says whether its life
was registered; such a life is over where its broker has no fence.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import FenceItem, GroupFence, GroupId
from metad_wire.errors import ConflictError, FencedError
from metad_wire.methods import encode
from metad_wire.tables.cluster import GROUP

from ...storage import keys
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.verb import Command, Verb, written
from ..core.view import View

_FENCE = GROUP.rows["fence"]
_LOAD_ROWS = 1_000


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """The row of one broker: lives with an epoch below ``least_epoch`` are over since ``at_ms``, by the group's log. Of
    those below ``swept_epoch``, no session looks connected any more in this group."""

    least_epoch: int
    at_ms: int
    swept_epoch: int = 0


_decode = msgspec.msgpack.Decoder(Fence).decode


def aged(items: Iterable[FenceItem], now_ms: int) -> list[FenceItem]:
    """Fences of a log whose time is ``now_ms``, as they are told to other groups."""
    return [msgspec.structs.replace(item, age_ms=max(0, now_ms - item.at_ms)) if item.at_ms else item for item in items]


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

    def load(self) -> None:
        self._applied: dict[str, Fence] = {}
        begin, end = self._prefix, keys.after_prefix(self._prefix)
        while True:
            found = self._engine.scan(begin, end, _LOAD_ROWS)
            self._applied.update({self._broker(key): _decode(value) for key, value in found})
            if len(found) < _LOAD_ROWS:
                break
            begin = found[-1][0] + b"\0"
        self.forget()

    def forget(self) -> None:
        self._newest = dict(self._applied)
        self._changed: dict[str, int] = {}  # broker -> the entry in flight that changed its fence last

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        for broker, fence in self._decoded(writes):
            _set(self._newest, broker, fence)
            self._changed[broker] = index

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        raised = False
        for broker, fence in self._decoded(writes):
            known = self._applied.get(broker)
            raised = raised or (fence is not None and (known is None or fence.least_epoch > known.least_epoch))
            _set(self._applied, broker, fence)
            if index >= self._changed.get(broker, 0):  # or a later entry that is in flight has changed it
                _set(self._newest, broker, fence)
                self._changed.pop(broker, None)
        self.entries += raised

    def _decoded(self, writes: Writes) -> Iterable[tuple[str, Fence | None]]:
        return [(self._broker(key), None if value is None else _decode(value)) for key, value in writes.items()]

    def _broker(self, key: bytes) -> str:
        return keys.split_text(key, len(self._prefix))[0]

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

    def refusal(self, registered: bool, *lives: m.Owner | None) -> FencedError | None:
        """Why a request in the name of these lives is refused as a whole; None if it is not. ``registered``: the first
        is one that metad registered."""
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
        return None

    def over(self, owner: m.SessionOwner) -> Fence | None:
        """The fence of the life that owns a session, if the session looks connected and that life is over."""
        fence = self._newest.get(owner.broker) if owner.connected else None
        return fence if fence is not None and owner.broker_epoch < fence.least_epoch else None

    # --- asked by reads ----------------------------------------------------------------------------------

    def applied_of(self, broker: str) -> Fence | None:
        """The fence of a broker in the applied state, for reads."""
        return self._applied.get(broker)

    def unswept(self) -> list[FenceItem]:
        """Those of the applied state that have lives whose sessions may look connected."""
        return [
            FenceItem(broker, fence.least_epoch, fence.at_ms)
            for broker, fence in self._applied.items()
            if fence.swept_epoch < fence.least_epoch
        ]

    def carried(self, now_ms: int) -> list[FenceItem]:
        """All fences of the applied state, for the group that adopts slots of this one, at this time of the log."""
        found = [FenceItem(broker, fence.least_epoch, fence.at_ms) for broker, fence in self._applied.items()]
        return aged(found, now_ms)

    # --- swept -------------------------------------------------------------------------------------------

    def swept(self, view: View, items: Iterable[FenceItem]) -> None:
        """Let the command that is evaluated note that no session of these lives looks connected any more."""
        writes = view.writes_of(_FENCE)
        for item in items:
            fence = self._newest.get(item.broker)
            if fence is not None and fence.least_epoch == item.least_epoch:
                row = msgspec.structs.replace(fence, swept_epoch=item.least_epoch)
                writes[self._prefix + keys.text(item.broker)] = encode(row)

    def sessions_came(self, view: View) -> None:
        """Let the command that is evaluated note that sessions have come from another group, of whatever lives."""
        writes = view.writes_of(_FENCE)
        for broker, fence in self._newest.items():
            key = self._prefix + keys.text(broker)
            if fence.swept_epoch and key not in writes:
                writes[key] = encode(msgspec.structs.replace(fence, swept_epoch=0))

    # --- forgotten ---------------------------------------------------------------------------------------

    def forgotten(self, view: View, items: Iterable[FenceItem]) -> list[m.ItemError]:
        """Let the command that is evaluated drop these fences. Not one that was raised since, and not one that has
        sessions which look connected: those are the errors."""
        writes, errors = view.writes_of(_FENCE), []
        group = GroupId.parse(view.name)
        has_sessions = group is not None and group.kind == "data"
        for position, item in enumerate(items):
            fence = self._newest.get(item.broker)
            if fence is None:
                continue
            if fence.least_epoch > item.least_epoch or (has_sessions and fence.swept_epoch < fence.least_epoch):
                errors.append(m.ItemError(position, ConflictError.code, current=fence.least_epoch))
            else:
                writes[self._prefix + keys.text(item.broker)] = None
        return errors

    # --- raised ------------------------------------------------------------------------------------------

    def raised(self, view: View, items: Iterable[FenceItem]) -> None:
        """Let the command that is evaluated raise these fences, as far as they are not as high already."""
        writes = view.writes_of(_FENCE)
        highest: dict[str, FenceItem] = {}
        for item in items:
            known = highest.get(item.broker)
            if known is None or item.least_epoch > known.least_epoch:
                highest[item.broker] = item
        for item in highest.values():
            fence = self._newest.get(item.broker)
            if fence is None or item.least_epoch > fence.least_epoch:
                at_ms = item.at_ms if item.age_ms is None else max(1, view.now_ms - item.age_ms)
                writes[self._prefix + keys.text(item.broker)] = encode(Fence(item.least_epoch, at_ms))


def _evaluate(view: View, command: Command[GroupFence]) -> m.WriteReply:
    fences = view.parts[Fences]
    fences.raised(view, command.body.items)
    return written(view, fences.forgotten(view, command.body.forget))


VERBS = (Verb(methods.GROUP_FENCE, GROUP, evaluate=_evaluate, origin=Origin.CONTROLLER, grows=False),)
