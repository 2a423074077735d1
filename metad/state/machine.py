"""One group's state machine: evaluate on the leader, write entries, apply them, recover.

``evaluate`` runs commands against the applied state plus what is in flight and yields the *writes* to replicate; the
entry holds those, so applying one reads nothing, decodes nothing of a record, and cannot differ between replicas. The
applied index goes into the same batch as the writes it covers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from metad_wire.cluster import SLOTS
from metad_wire.errors import InternalError, MetadError, StaleRouteError
from metad_wire.messages import Identity
from metad_wire.methods import encode
from metad_wire.tables.cluster import CLUSTER, GROUP
from metad_wire.tables.session import SESSION

from ..config import DedupeConfig
from ..errors import DamagedStoreError, StorageError
from ..storage import keys
from ..storage.engine import Engine
from . import ownership
from .dedupe import DedupeWindow
from .limits import ENTRY_BYTES_FULL, change_estimate, check_change
from .owners import OwnerCache
from .registry import VERBS
from .rows import Rows, crcs_of
from .tables import Command, Reader
from .view import Overlay, RowCache, View, Writes

ENTRY_FORMAT: Final = 2
RECORD_HEADER_BYTES: Final = 9
"""Term and kind, in front of an entry in the log."""

ALL_SLOTS: Final = b"\xff" * (SLOTS // 8)
"""A bit map."""
_SLOT_MASK = SLOTS - 1
_ENTRY_LOOKED_AT_BYTES = 4 * 1024 * 1024  # of rows, after which a further command waits for the next turn of the loop

_OWNER = SESSION.rows["owner"]
_DEDUPE = GROUP.rows["dedupe"]
_TABLE_AT = keys.GROUP_PREFIX_BYTES


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What the log holds. ``now_ms`` is the leader's clock when it was evaluated. ``learned`` are the writes that the
    memory of session owners and request identities must hear of; the others are applied without being looked at."""

    format: int
    now_ms: int
    writes: Writes
    learned: Writes


_decode_entry = msgspec.msgpack.Decoder(Entry).decode


class Effects(NamedTuple):
    """What an entry does to the state; see :class:`Entry`."""

    writes: Writes
    learned: Writes

    def __len__(self) -> int:
        return len(self.writes) + len(self.learned)


NO_EFFECTS = Effects({}, {})
"""Of entries that are Raft's own."""


class Known:
    """The command was done before, by entry ``index``."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


Outcome = tuple[Any, bytes] | MetadError | Known
"""Of one command: (reply, its encoding), why it was refused, or that it is a repetition."""


class Proposal(NamedTuple):
    """What to append to the log. ``outcomes`` are of the commands in it, by position; replies may go out once
    committed."""

    entry: bytes
    effects: Effects
    outcomes: list[Outcome]
    size: int
    """Bytes of writes and replies, about."""


class Machine:
    """State of one group."""

    def __init__(
        self,
        name: str,
        group: bytes,
        engine: Engine,
        owners: OwnerCache,
        rows: RowCache,
        dedupe: DedupeConfig,
        *,
        clock: Callable[[], float],
        initial_slots: bytes = ALL_SLOTS,
    ) -> None:
        self.name = name
        self.group = group
        self.reader = Reader(group, engine, owners)
        self.dedupe = DedupeWindow(
            group,
            engine,
            identities_max=dedupe.identities_max,
            reply_bytes_max=dedupe.reply_bytes_max,
            clock=clock,
        )
        self._engine = engine
        self._owners = owners
        self._salt = self.reader.salt
        self._overlay = Overlay()
        self._owner_overlay = Overlay()
        self._rows = rows
        self._view = View(name, group, engine, owners, self._overlay, self._owner_overlay, self._rows)
        self._applied_key = keys.applied(group)
        stored = engine.get(self._applied_key)
        self.applied = 0 if stored is None else int.from_bytes(stored, "big")
        self._view.initial_slots = initial_slots
        self._holding_key = ownership.row_key(group)
        self._load_holding()
        self._applied_base = self._holding.base
        self._map_key = keys.table_prefix(group, CLUSTER.rows["map"]) + b"map"
        self.map_changed = False
        """An applied entry has changed the cluster map; the node clears it."""
        self.unexpected: BaseException | None = None
        """An exception that was no refusal, for the owner to deal with: a StorageError, or our bug."""

    def evaluate(self, commands: list[tuple[Command[Any], Identity | None]], index: int, now_ms: int) -> Proposal:
        """Run commands in order as entry ``index``: the first of them, and as many more as the entry has room for. A
        command that is refused leaves no writes."""
        view = self._view
        view.revision, view.now_ms = index + self._holding.base, now_ms
        writes: Writes = {}
        learned: Writes = {}
        outcomes: list[Outcome] = []
        size = looked_at = view.looked_at = 0
        for command, identity in commands:
            if view.looked_at:
                looked_at += view.looked_at
                view.looked_at = 0
            if size >= ENTRY_BYTES_FULL or looked_at >= _ENTRY_LOOKED_AT_BYTES:
                break
            verb = VERBS[command.method.code]
            if identity is not None:
                try:
                    known = self.dedupe.lookup(identity, command.digest, command.arrived_s)
                except MetadError as error:
                    outcomes.append(error)
                    continue
                if known is not None:
                    outcomes.append(Known(known))
                    continue
            crcs = command.rows.crcs
            if not self._holds_all and len(crcs) and not self._held[crcs & _SLOT_MASK].all():
                outcomes.append(StaleRouteError())
                continue
            view.writes, view.owner_writes, view.head_writes, view.holding = {}, {}, {}, None
            view.grown = 0
            view.row_cache = verb.table.row_cache
            assert verb.evaluate is not None
            try:
                reply = verb.evaluate(view, command)
                encoded = encode(reply)
                remembered = encoded if identity is None or verb.forget is None else encode(verb.forget(reply))
                grown = view.grown or change_estimate(command.size, command.items)
                if not command.size or grown > ENTRY_BYTES_FULL:  # so many bytes are worth being counted
                    grown = _size_of(view.writes) + _size_of(view.owner_writes)
                if identity is not None:
                    grown += len(remembered)
                if grown > ENTRY_BYTES_FULL:
                    check_change(grown)
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
            if view.writes:
                self._overlay.add(index, view.writes)
                if view.head_writes:
                    self._rows.heads.add(view.head_writes)
                elif view.row_cache:
                    self._rows.add(view.writes)
                writes = _joined(writes, view.writes)
            if view.owner_writes:
                self._owner_overlay.add(index, view.owner_writes)
                learned = _joined(learned, view.owner_writes)
            if view.holding is not None:
                self._hold(view.holding)
                self._held_since = index
            outcomes.append((reply, encoded))
            if identity is not None and (verb.may_write is None or verb.may_write(command.body)):
                self.dedupe.remember(index, identity, command.digest, remembered)
        self.dedupe.record(index, learned)
        entry = encode(Entry(ENTRY_FORMAT, now_ms, writes, learned))
        return Proposal(entry, Effects(writes, learned), outcomes, size)

    def recall(self, index: int, command: Command[Any], identity: Identity) -> tuple[Any, bytes]:
        """The reply that applied entry ``index`` gave to this command."""
        encoded = self.dedupe.reply(index, identity)
        verb = VERBS[command.method.code]
        reply = command.method.decode_reply(encoded)
        if verb.recall is not None:
            reply = verb.recall(self.reader, command, reply)
            encoded = encode(reply)
        return reply, encoded

    def stage(self, index: int, effects: Effects, batches: list[Writes]) -> None:
        """Add a committed entry to what the caller writes to the engine at once, then calls :meth:`staged`."""
        if index != self.applied + 1:
            raise AssertionError(f"{self.name}: entry {index} applied after {self.applied}")
        batches += effects.writes, effects.learned, {self._applied_key: keys.u64(index)}
        if self._map_key in effects.writes:
            self.map_changed = True
        holding = effects.writes.get(self._holding_key)
        if holding is not None:
            held = ownership.decode(holding)
            self._applied_base = held.base
            if index >= self._held_since:  # or a later entry that is in flight has changed it
                self._hold(held)
        if self.dedupe.forgotten_key in effects.learned:
            self.dedupe.learn_forgotten()
        owned: Writes = {}
        for key, value in effects.learned.items():
            table = key[_TABLE_AT]
            if table == _OWNER:
                owned[key[_TABLE_AT + 1 :]] = value
            elif table == _DEDUPE:
                self.dedupe.learn(key, value)
        if owned:
            sessions = list(owned)
            self._owners.learn_many(sessions, crcs_of(sessions), self._salt, list(owned.values()))
        self.applied = index

    def staged(self) -> None:
        """The batch is in the engine."""
        self._overlay.applied(self.applied)
        self._owner_overlay.applied(self.applied)

    @property
    def revision(self) -> int:
        """That of the applied state."""
        return self.applied + self._applied_base

    def check_held(self, rows: Rows) -> None:
        """Raise StaleRouteError where the group does not hold the slots of all rows, or, for what is about all rows,
        where some are on their way: neither group shows them then."""
        if self._holds_all:
            return
        if not self._held[rows.crcs & _SLOT_MASK].all() if len(rows) else self._holding.sealed_move:
            raise StaleRouteError

    @property
    def holding(self) -> ownership.Holding:
        """The slots the group holds, and what of them is moving: of the newest entry evaluated or applied."""
        return self._holding

    def _hold(self, holding: ownership.Holding) -> None:
        self._holding = holding
        self._held = ownership.unpack(holding.slots)
        self._holds_all = bool(self._held.all())
        # Rows that came early, or are yet to be dropped, are nobody's business.
        self.reader.held = None if self._holds_all else self._held

    def _load_holding(self) -> None:
        stored = self._engine.get(self._holding_key)
        self._held_since = 0  # the entry in flight that changed it last
        self._hold(ownership.Holding(self._view.initial_slots) if stored is None else ownership.decode(stored))

    def forget_rows(self) -> None:
        """Others may write rows from now on."""
        self._rows.clear()

    def forget_unapplied(self) -> None:
        """What was evaluated and is not applied may never be: it counts no longer."""
        self._overlay.clear()
        self._owner_overlay.clear()
        self._rows.clear()
        self._load_holding()
        self.dedupe.load()

    def decode(self, index: int, record: bytes) -> Effects:
        """What the entry in a log record does. Raises DamagedStoreError where it is none of ours."""
        try:
            decoded = _decode_entry(memoryview(record)[RECORD_HEADER_BYTES:])
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"entry {index} of group {self.name} in the log is unreadable ({error})") from None
        if decoded.format != ENTRY_FORMAT:
            raise DamagedStoreError(
                f"entry {index} of group {self.name} has format {decoded.format}, this version reads {ENTRY_FORMAT}: "
                "it was written by a newer metad",
                "Start that version",
            )
        return Effects(decoded.writes, decoded.learned)


def _joined(first: Writes, second: Writes) -> Writes:
    """Both; copies nothing where the first is empty, as it is for an entry of one command."""
    if not first:
        return second
    first.update(second)
    return first


def _size_of(writes: Writes) -> int:
    return sum(map(len, writes)) + sum(map(len, filter(None, writes.values())))
