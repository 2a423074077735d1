"""One group's state machine: evaluate on the leader, write entries, apply them, recover.

``evaluate`` runs commands against the applied state plus what is in flight and yields the *writes* to replicate; the
entry holds those, so applying one reads nothing, decodes nothing of a record, and cannot differ between replicas. The
applied index goes into the same batch as the writes it covers. The machine knows no table: what has to be remembered of
one is a :class:`.core.part.StatePart`.

Deadlines are judged by the time of the group's log. The time of an entry never goes back. A leader whose calendar is
ahead of the log does not jump either: a calendar that was set wrong and an outage look the same, and a jump would end
all that has a deadline. Nor does a leader stand still whose calendar is behind, because it was set back or another's
was ahead: nothing that has a deadline would end. So the log's time follows this node's monotonic clock from the moment
at which the node learned of the newest entry, and gains or loses only a little on it until it agrees with the calendar.
A node that has just started learns of the newest entry when it starts, because nobody tells it how old that entry is.

During an *amnesty* nothing has passed, whatever the log's time says: those who keep things alive may not have reached
this leader. An amnesty begins when the replica begins to lead, when it adopts slots, when its calendar is set, and
whenever the node could not keep up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from metad_wire.cluster import GroupId
from metad_wire.errors import InternalError, MetadError
from metad_wire.messages import Identity
from metad_wire.methods import encode

from ..errors import StorageError
from ..storage import keys
from ..storage.engine import Engine
from .cluster.dedupe import DedupeWindow
from .cluster.features import KnownFeatures
from .cluster.fences import Fences
from .cluster.tenant_ends import TenantEnds
from .cluster.tenant_moves import TenantMoves, admitted, check_writes
from .core.entry import CHECKED_FORMAT, ENTRY_FORMAT, Entry, Replaced
from .core.limits import ENTRY_BYTES_FULL, check_change
from .core.part import NodeMemory, Origin, PartContext, Parts, StatePart, Writes
from .core.slot_assignment import ALL_SLOTS, AssignedSlots, SlotAssignment
from .core.verb import Command, Reader, Verb
from .core.view import View
from .registry import PARTS, VERBS

CATCH_UP: Final = 0.01
"""How much faster or slower than this node's monotonic clock the log's time may go. It must be above the drift of a
good clock. While a log catches up, what lasts ten minutes is over six seconds early: more would be noticed."""
STEP_MS: Final = 1_000
"""A calendar that moves this much more or less than the monotonic clock has been set."""


class LogTime:
    """The log's time of one replica. ``newest_ms`` is the time of the newest entry that is known; 0: there is none.
    ``now_s`` is everywhere the node's monotonic clock."""

    __slots__ = (
        "_amnesty_s",
        "_amnesty_until_s",
        "_anchor_ms",
        "_anchor_s",
        "_applied",
        "_calendar_ms",
        "_leads",
        "_looked_s",
        "newest_ms",
    )

    def __init__(self, newest_ms: int, now_s: float, amnesty_s: float) -> None:
        self._amnesty_s = amnesty_s
        self._amnesty_until_s = now_s
        self._leads = False
        self._calendar_ms = 0.0  # the calendar less the monotonic clock, when they were compared last ...
        self._looked_s = now_s  # ... at this moment
        self.newest_ms = newest_ms
        self._anchor_ms = float(newest_ms)  # the log's time was this, with its fraction ...
        self._anchor_s = now_s  # ... at this moment
        self._applied = newest_ms, now_s  # the newest time of an applied entry, and when it was learned

    def learn(self, time_ms: int, now_s: float) -> None:
        """An entry of this time is applied."""
        self.reach(time_ms, now_s)
        if time_ms > self._applied[0]:  # known since it was made, where this replica made it
            self._applied = time_ms, self._anchor_s if time_ms == self.newest_ms else now_s

    def reach(self, time_ms: int, now_s: float) -> None:
        """There is an entry of this time."""
        if time_ms > self.newest_ms:
            self.newest_ms, self._anchor_ms, self._anchor_s = time_ms, float(time_ms), now_s

    def next(self, calendar_ms: int, now_s: float) -> int:
        """The time of the entry that this leader makes now."""
        ahead_ms = calendar_ms - now_s * 1000
        if not self._leads:
            self._leads = True
            self.amnesty(now_s)
        elif abs(ahead_ms - self._calendar_ms) > STEP_MS + CATCH_UP * 1000 * (now_s - self._looked_s):
            self.amnesty(now_s)
        self._calendar_ms, self._looked_s = ahead_ms, now_s
        self._anchor_ms, self._anchor_s = self._time_ms(calendar_ms, now_s), now_s
        self.newest_ms = max(self.newest_ms, int(self._anchor_ms))
        return self.newest_ms

    def now_ms(self, calendar_ms: int, now_s: float) -> int:
        """The time that an entry would have now, for those who only read."""
        return max(self.newest_ms, int(self._time_ms(calendar_ms, now_s)))

    def _time_ms(self, calendar_ms: int, now_s: float) -> float:
        if not self.newest_ms:
            return float(calendar_ms)
        passed_ms = 1000 * (now_s - self._anchor_s)
        least_ms, most_ms = ((1 + rate) * passed_ms for rate in (-CATCH_UP, CATCH_UP))
        return max(self._anchor_ms + least_ms, min(float(calendar_ms), self._anchor_ms + most_ms))

    def past_ms(self, now_s: float) -> int:
        """What had its deadline at this time or before has passed; 0 during an amnesty. To be asked behind
        :meth:`next`."""
        return 0 if now_s < self._amnesty_until_s else self.newest_ms

    def amnesty(self, now_s: float) -> None:
        """Nothing has passed for a while."""
        self._amnesty_until_s = now_s + self._amnesty_s

    def forget(self) -> None:
        """This replica leads no longer. What it made and has not applied may never come to be: another leader goes on
        with the log, and its time, from before."""
        self._leads = False
        self.newest_ms, self._anchor_s = self._applied
        self._anchor_ms = float(self.newest_ms)


_GROWTH = 6
_ITEM_GROWTH = 400
_ENTRY_LOOKED_AT_BYTES = 4 * 1024 * 1024  # of rows, after which a further command waits for the next turn of the loop


class Known:
    """The command was done before, by entry ``index``."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


Outcome = bytes | MetadError | Known
"""Of one command: the encoded reply, why it was refused, or that it is a repetition."""


class Proposal(NamedTuple):
    """What to append to the log. ``outcomes`` are of the commands in it, by position; replies may go out once
    committed."""

    payload: bytes
    """The entry, encoded."""
    entry: Entry
    outcomes: list[Outcome]
    size: int
    """Bytes of writes and replies, about."""
    heavy: bool = False
    """Whether the last of them left no time for further ones: it has looked at much."""


class Machine:
    """State of one group."""

    def __init__(
        self,
        group: GroupId,
        engine: Engine,
        memory: NodeMemory,
        *,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        initial_slots: bytes = ALL_SLOTS,
    ) -> None:
        """``clock`` is monotonic, in seconds; ``wall_ms`` is the node's calendar, Unix time."""
        self.name = group.name
        prefix = keys.group_prefix(group)
        self.parts = Parts(PARTS, PartContext(prefix, engine, memory, clock, initial_slots))
        for part in self.parts.values():
            part.load()
        self.slots = self.parts[SlotAssignment]
        self.dedupe = self.parts[DedupeWindow]
        self._fences = self.parts[Fences]
        self._moves = self.parts[TenantMoves]
        self._ends_all = self.parts[TenantEnds].ends_all
        self._features: KnownFeatures = memory.shared(KnownFeatures)
        self.reader = Reader(prefix, engine, self.parts, lambda: self.time.now_ms(wall_ms(), clock()))
        self._view = View(self.name, prefix, engine, self.parts)
        self._hearing = self.parts.hearing
        self._awaiting: dict[StatePart, None] = {}  # parts that wait until the engine has what was staged
        self._applied_key = keys.applied(prefix)
        stored = engine.get(self._applied_key)
        self.applied = 0 if stored is None else int.from_bytes(stored, "big")
        self._clock = clock
        self._time_key = keys.log_time(prefix)
        stored = engine.get(self._time_key)
        self._applied_ms = 0 if stored is None else int.from_bytes(stored, "big")
        self.time = LogTime(self._applied_ms, clock(), memory.config.expiry.amnesty_ms / 1000)
        """The log's time. A leader makes its entries by it."""
        self.unexpected: BaseException | None = None
        """An exception that was no refusal, for the owner to deal with: a StorageError, or our bug."""

    def evaluate(
        self, commands: list[tuple[Command[Any], Identity | None]], index: int, calendar_ms: int, no_room: str = ""
    ) -> Proposal:
        """Run commands in order as entry ``index``: the first of them, and as many more of its origin as the entry has
        room for, up to one that writes a row again: who follows the log would not see what the row was in between. A
        step of a slot move is alone in its entry. A command that is refused, or put off, leaves no writes.
        One in the name of a broker's life that is over is refused before it is evaluated. ``calendar_ms`` is the node's
        calendar. ``no_room``: why nothing may take more room, if so."""
        view, slots, fenced, closed = self._view, self.slots, bool(self._fences), self._moves.closed
        base = slots.holding.base
        now_s = self._clock()
        now_ms = self.time.next(calendar_ms, now_s)
        view.index, view.revision = index, index + base
        view.now_ms, view.past_ms, view.calendar_ms = now_ms, self.time.past_ms(now_s), calendar_ms
        view.marker, view.adopts, view.no_room = None, False, no_room
        origin = _verb_of(commands[0][0]).origin
        if origin is Origin.MIGRATION:
            commands = commands[:1]
        writes: Writes = {}
        unwritten = writes.keys().isdisjoint  # says whether none of these keys is among the writes
        heard: dict[int, Writes] = {}
        replaced: dict[int, Replaced] = {}
        outcomes: list[Outcome] = []
        size = looked_at = view.looked_at = 0
        coalesces = True  # so far
        heavy = False
        for command, identity in commands:
            if view.looked_at:
                looked_at += view.looked_at
                view.looked_at = 0
            verb = _verb_of(command)
            heavy = looked_at >= _ENTRY_LOOKED_AT_BYTES
            if heavy or size >= ENTRY_BYTES_FULL or verb.origin is not origin:
                break
            if identity is not None:
                try:
                    known = self.dedupe.lookup(identity, command.digest, command.arrived_s)
                except MetadError as error:
                    outcomes.append(error)
                    continue
                if known is not None:
                    outcomes.append(Known(known))
                    continue
            if ((fenced or command.vouch) and (command.life is not None or verb.names_life)) or command.registered:
                lives = command.life, verb.life(command.body)
                if (over := self._fences.refusal(command.registered, *lives, vouch=command.vouch)) is not None:
                    outcomes.append(over)
                    continue
            if not slots.holds_all and not slots.holds(command.rows.crcs):
                outcomes.append(slots.stale())
                continue
            view.begin(verb.table.row_cache)
            assert verb.evaluate is not None
            try:
                reply = self._beside_moves(view, verb, command) if closed else verb.evaluate(view, command)
                coalesces = coalesces and verb.coalesces
                if (not coalesces and not unwritten(view.writes)) or (heard and _meet(heard, view.heard)):
                    break  # it is evaluated again, as the first of the next entry
                if command.refused is not None:
                    reply = command.refused.widened(reply)
                encoded = encode(reply)
                remembered = encoded if identity is None or verb.forget is None else encode(verb.forget(reply))
                grown = view.grown or change_estimate(command.size, command.items) + view.beside + view.ended
                if not command.size or grown > ENTRY_BYTES_FULL:  # so many bytes are worth being counted
                    grown = _size_of(view.writes) + sum(map(_size_of, view.heard.values()))
                if identity is not None:
                    grown += len(remembered)
                if grown > ENTRY_BYTES_FULL:
                    check_change(grown - view.ended)
                grown += len(encoded)
            except MetadError as error:
                outcomes.append(error)
                continue
            except StorageError as error:
                self.unexpected = error
                outcomes.append(InternalError("the node's storage failed; its log says more"))
                continue
            except Exception as error:  # noqa: BLE001 - our bug must not take the group's other commands down
                self.unexpected = self.unexpected or error
                outcomes.append(InternalError(f"{command.method.name} failed; the server's log says why"))
                continue
            size += grown
            view.accept(index, origin)
            if writes:
                writes.update(view.writes)
            else:  # nothing is copied for an entry of one command
                writes = view.writes
                unwritten = writes.keys().isdisjoint
            for row, written in view.heard.items():
                if row in heard:
                    heard[row].update(written)
                elif written:
                    heard[row] = written
            if view.replaced is not None:
                for row, values in view.replaced.items():
                    size += values.size
                    if row in replaced:
                        replaced[row].extend(values)
                    elif view.heard[row]:
                        replaced[row] = values
            outcomes.append(encoded)
            if identity is not None and (verb.may_write is None or verb.may_write(command.body)):
                self.dedupe.remember(index, identity, command.digest, remembered)
        self.dedupe.record(index, heard)
        revision, marker = index + base, None
        if origin is Origin.MIGRATION and isinstance(outcomes[0], bytes):
            revision, marker, now_ms = view.revision, view.marker, view.now_ms
            if view.adopts:
                self.time.reach(now_ms, now_s)
                self.time.amnesty(now_s)
        previous = {row: values.distinct() for row, values in replaced.items()}
        entry = Entry(self._entry_format, origin, now_ms, writes, heard, revision, marker, previous)
        return Proposal(entry.encoded(), entry, outcomes, size, heavy)

    def _beside_moves(self, view: View, verb: Verb[Any, Any], command: Command[Any]) -> Any:
        """Evaluate a command while tenants are on their way: not what is about them. Raises MetadError."""
        assert verb.evaluate is not None
        closed = self._moves.closed
        left, refused = admitted(verb, command, closed, self._ends_all)
        reply = verb.evaluate(view, left)
        check_writes(view, verb, command, closed, self._ends_all)
        return reply if refused is None else refused.widened(reply)

    @property
    def _entry_format(self) -> int:
        """Of the entries that this node makes as the leader: others must be able to read them."""
        return CHECKED_FORMAT if self._features.checks_entries else ENTRY_FORMAT

    def grows(self, command: Command[Any], identity: Identity | None) -> bool:
        """Whether a command asks for what takes more room, and was not done before."""
        if not _verb_of(command).brings_more(command):
            return False
        try:
            return identity is None or self.dedupe.lookup(identity) is None
        except MetadError:  # its evaluation says what is wrong
            return False

    def recall(self, index: int, command: Command[Any], identity: Identity) -> bytes:
        """The encoded reply that applied entry ``index`` gave to this command."""
        encoded = self.dedupe.reply(index, identity)
        verb = _verb_of(command)
        if verb.recall is None:
            return encoded
        reply, refused = command.method.decode_reply(encoded), command.refused
        if refused is None:
            return encode(verb.recall(self.reader, command, reply))
        return encode(refused.widened(verb.recall(self.reader, command, refused.narrowed(reply))))

    def stage(self, index: int, entry: Entry, batches: list[Writes]) -> None:
        """Add a committed entry to what the caller writes to the engine at once, then calls :meth:`staged`."""
        if index != self.applied + 1:
            raise AssertionError(f"{self.name}: entry {index} applied after {self.applied}")
        applied: Writes = {self._applied_key: keys.u64(index)}
        if entry.now_ms > self._applied_ms:
            self._applied_ms = entry.now_ms
            applied[self._time_key] = keys.u64(entry.now_ms)
            self.time.learn(entry.now_ms, self._clock())
        batches += entry.writes, applied
        for row, writes in entry.heard.items():
            batches.append(writes)
            for part in self._hearing.get(row, ()):
                if part.stage(index, entry.origin, writes):
                    self._awaiting[part] = None
        self.applied = index

    def staged(self) -> None:
        """The batch is in the engine."""
        for overlay in self._view.overlays:
            overlay.applied(self.applied)
        if self._awaiting:
            awaiting, self._awaiting = self._awaiting, {}
            for part in awaiting:
                part.applied()

    @property
    def revision(self) -> int:
        """That of the applied state."""
        return self.applied + self.slots.applied_base

    @property
    def applied_ms(self) -> int:
        """The log's time of the applied state."""
        return self._applied_ms

    @property
    def holding(self) -> AssignedSlots:
        """The slots the group holds, and what of them is moving: of the newest entry evaluated or applied."""
        return self.slots.holding

    def forget(self) -> None:
        """This replica leads no longer: what was evaluated and is not applied may never be."""
        self._view.forget()
        self.time.forget()
        for part in self.parts.values():
            part.forget()


def _verb_of(command: Command[Any]) -> Verb[Any, Any]:
    """What is done with a command: by its table's own verb, if that is declared as data."""
    return command.verb or VERBS[command.method.code]


def _meet(heard: dict[int, Writes], more: dict[int, Writes]) -> bool:
    """Whether some key is among the writes of both."""
    for row, writes in more.items():  # noqa: SIM110 - a generator costs twice as much
        if row in heard and not heard[row].keys().isdisjoint(writes):
            return True
    return False


def _size_of(writes: Writes) -> int:
    return sum(map(len, writes)) + sum(map(len, filter(None, writes.values())))


def change_estimate(size: int, items: int) -> int:
    """What a request of ``size`` bytes may change at most: keys are in up to three rows, twice as long where they are
    all NUL; and an item of few bytes becomes rows with a header, a broker's name and the group's prefix. Not of
    transactions, whose operations share a namespace."""
    return _GROWTH * size + _ITEM_GROWTH * items
