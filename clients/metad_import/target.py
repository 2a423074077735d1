"""What an import keeps in metad: how far it is, and what it wrote. So anybody can go on with it, and nobody's writes
are overwritten.

The namespace ``metad.import`` has one key for each import, its :class:`State`. ``metad.import.ID`` has one for each key
that was copied, a *note*: which revision of the source it is of, and the digest of the value. A key of metad whose
value has another digest was changed by a client of metad: a conflict, which is listed and left alone.

A note is written before its key. So a step that was cut off leaves notes of values that may not be there. The state
says which step that was (``torn``), and only for such notes the value before counts, too. Every write names the version
that was read, so a second run of the same import ends the first.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from metad_client import Client, ConflictError, InvalidItemError, NotFoundError
from metad_wire.messages import Kv, KvDeleteItem, KvKey, KvPutItem

from .source import BATCH_ROWS, ImportFailedError, Names, Row

STATES: Final = "metad.import"
_FORMAT: Final = 1
_TORN_MAX: Final = 1_000
"""Steps that were cut off. An older one is forgotten: what it may have left is then a conflict, and no loss."""

_TRIES: Final = 20
"""How often a run that begins meets one that goes on: that one ends with its next step."""
_TAKEN: Final = "another run of this import has begun meanwhile, and goes on"


class TakenError(ImportFailedError):
    """Another run of the same import goes on."""


class _StaleError(Exception):
    """A note has changed since it was read."""


class State(msgspec.Struct):
    """How far an import is."""

    kind: str
    names: Names
    source: str
    """Which etcd or ZooKeeper: :attr:`.source.Source.identity`."""
    phase: str = "copying"
    """``copying``: a snapshot is being read; ``following``: all up to ``revision`` is here; ``done``: after a cut."""
    revision: int = 0
    cursor: bytes = b""
    """Of the snapshot: the rows up to this key are here."""
    known: int = 0
    """Keys that the source has at ``revision``."""
    step: int = 0
    torn: list[int] = []
    stopped_ms: int = 0
    changed_ms: int = 0
    """When this was written."""
    format: int = _FORMAT


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What was written to a key of metad."""

    revision: int
    """Of the source."""
    step: int
    digest: bytes
    """Of the value; empty: the key is deleted."""
    before: bytes
    """Of the value that the step replaced; empty: there was none."""


class Known(NamedTuple):
    """A note as it was read."""

    note: Note
    version: int


class Work(NamedTuple):
    """One row to bring over; None: the source has it no longer."""

    key: str
    row: Row | None
    known: Known | None


class Act(Enum):
    """What has to be done about one key."""

    NOTHING = "nothing"
    NOTE = "the key is as it should be: write its note"
    PUT = "write the note and the key"
    DELETE = "write the note, delete the key, delete the note"
    FORGET = "delete the note"
    CONFLICT = "a client of metad has changed the key"


Refuse = Callable[[bytes, str, dict[str, Any]], None]
"""Lists a row of the source that was not carried over: its key, the code, and what else there is to say."""


class Counts(msgspec.Struct):
    """What was done."""

    written: int = 0
    deleted: int = 0
    same: int = 0
    conflicts: int = 0

    def add(self, other: Counts) -> None:
        """Sum up."""
        self.written += other.written
        self.deleted += other.deleted
        self.same += other.same
        self.conflicts += other.conflicts


def digest(value: bytes | None) -> bytes:
    """What a note keeps of a value; empty if there is none."""
    return b"" if value is None else hashlib.blake2b(value, digest_size=16).digest()


def decide(wanted: bytes | None, known: Note | None, there: bytes | None, torn: Collection[int]) -> Act:
    """What to do about a key that has the value ``there`` and should have ``wanted``; None: no key."""
    if wanted is None and known is None:
        return Act.NOTHING
    if wanted == there:
        return Act.FORGET if wanted is None else Act.NOTE
    if known is None:
        ours = there is None
    else:
        found = digest(there)
        ours = found == known.digest or (known.step in torn and found == known.before)
    if not ours:
        return Act.CONFLICT
    return Act.DELETE if wanted is None else Act.PUT


def id_of(kind: str, names: Names) -> str:
    """The name of an import: the same for the same words on the command line."""
    return f"{kind}-{hashlib.blake2b(msgspec.json.encode(names), digest_size=6).hexdigest()}"


class Target:
    """The side of metad. ``overwrite``: a conflict is no reason to leave a key alone."""

    def __init__(self, m: Client, kind: str, names: Names, refuse: Refuse, *, overwrite: bool = False) -> None:
        self._m = m
        self._kind = kind
        self.names = names
        self.id = id_of(kind, names)
        self.ledger = f"{STATES}.{self.id}"
        self._refuse = refuse
        self.overwrite = overwrite
        self._version = 0
        self._state: State | None = None

    @property
    def state(self) -> State:
        """That was read last."""
        if self._state is None:
            raise ImportFailedError("nothing was copied yet: begin with `copy`")
        return self._state

    @property
    def phase(self) -> str:
        """That of the state; ``new`` if there is none."""
        return "new" if self._state is None else self._state.phase

    async def load(self) -> None:
        """Read the state. Raises ImportFailedError for one that this version does not know."""
        found = await self._m.kv.get(STATES, self.id)
        self._version, self._state = (0, None) if found is None else (found.version, _state(self.id, found.value))

    async def begin(self, source: str) -> None:
        """Read the state, and go on from it as the only one: another run ends with its next step. ``source``: its
        identity."""
        for left in reversed(range(_TRIES)):
            await self._prepare(source)
            try:
                await self.keep()
            except TakenError:  # a run that goes on has written it since it was read
                if not left:
                    raise
            else:
                return

    async def _prepare(self, source: str) -> None:
        """Read the state, and change it for a run that begins."""
        await self.load()
        if self._state is None:
            self._state = State(self._kind, self.names, source)
        state = self._state
        if state.phase == "done":
            raise ImportFailedError("this import is done: metad has the newer data; `forget` allows a new one")
        if state.source != source:
            raise ImportFailedError("this import was begun from another source: `forget` allows a new one")
        self._tear()  # one step may have been cut off

    def _tear(self) -> None:
        """Note that the step which comes next is one that was cut off."""
        self.state.step += 1
        self.state.torn = [*self.state.torn, self.state.step][-_TORN_MAX:]

    async def keep(self) -> None:
        """Write the state. Raises TakenError."""
        self.state.changed_ms = time.time_ns() // 1_000_000
        value = msgspec.json.encode(self.state)
        try:
            self._version = await self._m.kv.put(STATES, self.id, value, expected_version=self._version)
        except ConflictError:
            raise TakenError(_TAKEN) from None

    async def forget(self, *, state: bool) -> int:
        """Delete all notes, and the state if that is wanted; how many notes there were."""
        count = 0
        items: list[KvDeleteItem] = []
        async for kv in self._m.kv.scan(self.ledger):
            items.append(KvDeleteItem(self.ledger, kv.key))
            if len(items) == BATCH_ROWS:
                await self._drop(items)
                count, items = count + len(items), []
        await self._drop(items)
        count += len(items)
        if state and self._version:
            await self._m.kv.delete(STATES, self.id, expected_version=self._version)
            self._version, self._state = 0, None
        return count

    async def notes(self, after: bytes) -> AsyncIterator[tuple[bytes, Known]]:
        """All notes of keys above ``after``, in order."""
        async for kv in self._m.kv.scan(self.ledger):
            if (key := kv.key.encode()) > after:
                yield key, Known(_note(kv), kv.version)

    async def known(self, keys: Sequence[str]) -> list[Known | None]:
        """The notes of these keys."""
        found = await self._m.kv.get_many([KvKey(self.ledger, key) for key in keys])
        found.raise_for_error()
        return [None if kv is None else Known(_note(kv), kv.version) for kv in found]

    async def there(self, keys: Iterable[str]) -> list[Kv | None]:
        """What metad has for these keys of the source."""
        found = await self._m.kv.get_many([self.names.target(key) for key in keys])
        found.raise_for_error()
        return [*found]

    async def write(self, work: Sequence[Work]) -> Counts:
        """Bring rows over, which have their values, in one step. Keep the state behind it. Raises TakenError."""
        for _ in range(_TRIES):
            try:
                return await self._write(work)
            except _StaleError:
                found = await self._m.kv.get(STATES, self.id)
                if found is None or found.version != self._version:
                    break
                # The run that this one has ended was in the middle of a step. What this one has written is cut off.
                self.state.step -= 1
                self._tear()
                known = await self.known([one.key for one in work])
                work = [one._replace(known=note) for one, note in zip(work, known, strict=True)]
        raise TakenError(_TAKEN)

    async def _write(self, work: Sequence[Work]) -> Counts:
        self.state.step += 1
        counts, step = Counts(), _Step([], [], [], [])
        conflicts: list[Work] = []
        for one, kv in zip(work, await self.there(each.key for each in work), strict=True):
            act = decide(
                None if one.row is None else one.row.value,
                None if one.known is None else one.known.note,
                None if kv is None else kv.value,
                self.state.torn,
            )
            if act is Act.CONFLICT and self.overwrite:
                act = Act.DELETE if one.row is None else Act.PUT
            if act is Act.CONFLICT:
                conflicts.append(one)
            else:
                counts.same += act is Act.NOTE
                self._plan(step, one, kv, act)
        if conflicts and await self.known([one.key for one in conflicts]) != [one.known for one in conflicts]:
            raise _StaleError
        for one in conflicts:
            self._conflict(one, counts)
        await self._do(step, counts)
        return counts

    def _plan(self, step: _Step, one: Work, kv: Kv | None, act: Act) -> None:
        """What the step has to write for one row."""
        at, there = self.names.target(one.key), 0 if kv is None else kv.version
        wanted = None if one.row is None else one.row.value
        if act in (Act.NOTE, Act.PUT, Act.DELETE):
            revision = self.state.revision if one.row is None else one.row.revision
            note = Note(revision, self.state.step, digest(wanted), digest(None if kv is None else kv.value))
            known = None if one.known is None else one.known.note
            if act is not Act.NOTE or known is None or (known.revision, known.digest) != (revision, note.digest):
                version = 0 if one.known is None else one.known.version
                step.notes.append(KvPutItem(self.ledger, one.key, msgspec.msgpack.encode(note), version))
        if act is Act.PUT and wanted is not None:
            step.puts.append((one, KvPutItem(at.namespace, at.key, wanted, there)))
        elif act is Act.DELETE:
            step.deletes.append((one, KvDeleteItem(at.namespace, at.key, there)))
        elif act is Act.FORGET:
            step.gone.append(KvDeleteItem(self.ledger, one.key))

    async def _do(self, step: _Step, counts: Counts) -> None:
        """Write the notes, and then what they are of."""
        if step.notes:
            for error in (await self._m.kv.put_many(step.notes)).errors.values():
                raise _StaleError if isinstance(error, ConflictError) else error
        gone = [*step.gone]
        if step.puts:
            errors = (await self._m.kv.put_many([item for _, item in step.puts])).errors
            for position, error in errors.items():
                one, _ = step.puts[position]
                if isinstance(error, ConflictError):
                    self._conflict(one, counts)
                elif isinstance(error, InvalidItemError):
                    self._refuse(one.key.encode(), "refused", {"why": error.message})
                    gone.append(KvDeleteItem(self.ledger, one.key))
                else:
                    raise error
            counts.written += len(step.puts) - len(errors)
        if step.deletes:
            errors = (await self._m.kv.delete_many([item for _, item in step.deletes])).errors
            for position, (one, _) in enumerate(step.deletes):
                failed = errors.get(position)
                if isinstance(failed, ConflictError):
                    self._conflict(one, counts)
                elif failed is None or isinstance(failed, NotFoundError):
                    counts.deleted += 1
                    gone.append(KvDeleteItem(self.ledger, one.key))
                else:
                    raise failed
        await self._drop(gone)

    async def _drop(self, notes: Sequence[KvDeleteItem]) -> None:
        for error in (await self._m.kv.delete_many(notes)).errors.values() if notes else ():
            if not isinstance(error, NotFoundError):
                raise error

    def _conflict(self, one: Work, counts: Counts) -> None:
        counts.conflicts += 1
        at = self.names.target(one.key)
        self._refuse(one.key.encode(), "conflict", {"namespace": at.namespace, "name": at.key})


class _Step(NamedTuple):
    """What one step writes, in this order."""

    notes: list[KvPutItem]
    puts: list[tuple[Work, KvPutItem]]
    deletes: list[tuple[Work, KvDeleteItem]]
    gone: list[KvDeleteItem]
    """Notes that are of nothing any more."""


def _state(name: str, value: bytes) -> State:
    try:
        state = msgspec.json.decode(value, type=State)
    except msgspec.MsgspecError as error:
        raise ImportFailedError(f"the state of {name} cannot be read: {error}") from None
    if state.format != _FORMAT:
        raise ImportFailedError(f"the state of {name} has format {state.format}, this version reads {_FORMAT}")
    return state


def _note(kv: Kv) -> Note:
    try:
        return msgspec.msgpack.decode(kv.value, type=Note)
    except msgspec.MsgspecError as error:
        raise ImportFailedError(f"the note {kv.key} in {kv.namespace} cannot be read: {error}") from None
