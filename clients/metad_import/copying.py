"""Rows are brought over: a snapshot of the source first, then what changes there.

A snapshot is read in the order of its keys, beside the notes of what was copied before, in the same order. So one pass
finds what is new, what has changed and what is gone, with a batch in memory at a time, and it can begin at any key.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, NamedTuple, TypeVar

from metad_wire.policy.rates import Pace

from .source import BATCH_BYTES, BATCH_ROWS, CompactedError, Head, Row, Source, SourceError, Watch
from .target import Counts, Known, Refuse, State, Target, Work

_IDLE_S: Final = 0.25
"""A watch that says nothing for so long may have said all."""
_WALK_S: Final = 1.0
"""Between two walks of a source that has no watch."""
_STALLED_S: Final = 30.0
"""For so long a watch may lack what the source has; then it is opened again."""
_KEEP_S: Final = 10.0
"""An idle import notes so often how far it is, so that it can go on behind a compaction."""
_HEAD_S: Final = 1.0
"""Between two questions for the head of an idle source,"""
_HEADS_SHARE: Final = 5
"""and so many times what the answer took, at least: the source may have to read all keys for it."""
_SNAPSHOTS_MAX: Final = 5
T = TypeVar("T")


class Progress(NamedTuple):
    """How far a copy is."""

    what: str
    done: int
    of: int
    """0: nobody knows."""


class Seen(NamedTuple):
    """What a follower sees."""

    revision: int
    caught_up: bool
    """Metad has what the source has now."""
    quiet_s: float
    """For how long nothing has changed at the source."""


Tell = Callable[[Progress], None]
Ends = Callable[[Seen], bool]


def is_behind(state: State, head: Head) -> bool:
    """Whether the source has changed since what the state says."""
    return head.keys != state.known or head.newest > state.revision


def once(head: Head) -> Ends:
    """Ends when all is here that the source had at a head."""
    return lambda seen: seen.caught_up or seen.revision >= head.revision


class Copy:
    """Brings rows of a source to metad. ``say``: is told a line that an operator must see."""

    def __init__(
        self, source: Source, target: Target, refuse: Refuse, pace: Pace, tell: Tell, say: Callable[[str], None]
    ) -> None:
        self._source = source
        self._target = target
        self._refuse = refuse
        self._pace = pace
        self._tell = tell
        self._say = say
        self.counts = Counts()
        self.snapshots = 0
        """How many were begun by this run."""
        self.changed_s = time.monotonic()
        """When the last change of the source was seen."""
        self._watched_s = self.changed_s

    async def snapshot(self) -> None:
        """Copy all rows as of one moment, or the rest of them. Raises SourceError."""
        state = self._target.state
        for _ in range(_SNAPSHOTS_MAX):
            resumed = state.phase == "copying" and bool(state.cursor)
            head = Head(state.known, 0, state.revision)
            if not resumed or not self._source.keeps_history:
                head = await self._source.head()
                state.phase, state.revision, state.known, state.cursor = "copying", head.revision, head.keys, b""
                resumed = False
                await self._target.keep()
            self.snapshots += 1
            try:
                await self._pass(head)
            except CompactedError as error:
                self._say(f"{error}: a new snapshot is read")
                state.cursor = b""
                continue
            if not resumed:
                state.torn = []  # all that was cut off has been looked at
            state.phase, state.cursor = "following", b""
            await self._target.keep()
            return
        raise SourceError("the source drops its history faster than it can be read: let it keep more while this copies")

    async def follow(self, ends: Ends) -> None:
        """Copy what changes behind the snapshot, until ``ends`` says so. Raises SourceError."""
        self._watched_s = time.monotonic()
        while True:
            watch = await self._source.watch(self._target.state.revision)
            if watch is None:
                await self._walks(ends)
                return
            try:
                async with contextlib.aclosing(_Closing(watch)):
                    if await self._watched(watch, ends):
                        return
                    self._say("the source has other keys than its watch told: everything is read again")
            except CompactedError as error:
                self._say(f"{error}: a new snapshot is read")
            self._target.state.phase, self._target.state.cursor = "copying", b""
            await self.snapshot()

    async def _watched(self, watch: Watch, ends: Ends) -> bool:
        """Copy what a watch tells; True when ``ends`` says so, False if it lacks something for long."""
        state, heads = self._target.state, _Heads(self._source)
        kept_s = caught_s = time.monotonic()
        while True:
            changes = await watch.next(_IDLE_S)
            caught_up = False
            if changes is not None:
                if changes.events:
                    self.changed_s = time.monotonic()
                    await self._changes(changes.rows)
                state.revision, state.known = max(state.revision, changes.revision), state.known + changes.grown
                if changes.events:
                    await self._target.keep()
            elif (head := await heads.now()) is not None:
                caught_up = not is_behind(state, head)
                if caught_up:
                    state.revision = max(state.revision, head.revision)
                    caught_s = time.monotonic()
            now_s = time.monotonic()
            if now_s > kept_s + _KEEP_S:
                await self._target.keep()
                kept_s = now_s
            self._tell(Progress("changes", self.counts.written + self.counts.deleted, 0))
            if ends(Seen(state.revision, caught_up, self._quiet_s())):
                await self._target.keep()
                return True
            if changes is None and now_s > caught_s + _STALLED_S and self._quiet_s() > _STALLED_S:
                return False

    async def _walks(self, ends: Ends) -> None:
        """The same by reading everything again and again."""
        state = self._target.state
        while True:
            begun_s, before = time.monotonic(), Counts()
            before.add(self.counts)
            head = await self._source.head()
            same = (head.keys, head.newest) == (state.known, state.revision)
            state.revision, state.known = head.revision, head.keys
            await self._pass(head)
            if not same:
                self.changed_s = begun_s
            await self._target.keep()
            if ends(Seen(state.revision, same, self._quiet_s())):
                return
            await asyncio.sleep(max(0.0, begun_s + _WALK_S - time.monotonic()))

    async def _pass(self, head: Head) -> None:
        """Compare the source with the notes, from the cursor on, and write what differs."""
        state = self._target.state
        done = 0
        async with contextlib.aclosing(ahead(self._source.rows(head, state.cursor))) as batches:
            async for pairs in beside(batches, self._target.notes(state.cursor)):
                work: list[Work] = []
                for key, row, known in pairs:
                    work += [Work(key.decode(), None, known)] if row is None else self._work(row, known)
                    done += row is not None
                await self._write(work)
                if self._source.keeps_history:
                    state.cursor = pairs[-1].key
                    await self._target.keep()
                self._tell(Progress("rows", done, head.keys))

    def _quiet_s(self) -> float:
        """For how long the source was watched, and did not change."""
        return time.monotonic() - max(self.changed_s, self._watched_s)

    def _work(self, row: Row, known: Known | None) -> list[Work]:
        """What is to be done about a row of the source."""
        if code := self._target.names.fault(row, self._target.ledger):
            self._refuse(row.key, code, {"bytes": row.size, "revision": row.revision})
        if code or row.lease:  # a key with a lease is for the cut
            return [] if known is None else [Work(row.key.decode(), None, known)]
        settled = (
            known is not None
            and known.note.revision == row.revision
            and known.note.step not in self._target.state.torn
            and known.note.digest
        )
        if settled and not self._target.overwrite:
            self.counts.same += 1
            return []
        return [Work(row.key.decode(), row, known)]

    async def _changes(self, rows: dict[bytes, Row | None]) -> None:
        """Write what a watch has told."""
        named = {key: row for key, row in rows.items() if _is_text(key)}
        keys = [key.decode() for key in named]
        work: list[Work] = []
        for name, row, known in zip(keys, named.values(), await self._target.known(keys), strict=True):
            if row is not None:
                work += self._work(row, known)
            elif known is not None:
                work.append(Work(name, None, known))
        for key, row in rows.items():
            if row is not None and key not in named:
                self._work(row, None)  # which refuses it
        await self._write(work)

    async def _write(self, work: list[Work]) -> None:
        """Write in steps whose values fit the memory."""
        while work:
            size = count = 0
            for one in work[:BATCH_ROWS]:
                size += 0 if one.row is None else one.row.size
                if count and size > BATCH_BYTES:
                    break
                count += 1
            step, work = work[:count], work[count:]
            await asyncio.sleep(self._pace.wait_s(len(step), time.monotonic()))
            self.counts.add(await self._target.write(await self._filled(step)))

    async def _filled(self, step: list[Work]) -> list[Work]:
        """The same with the values that the source did not give at once."""
        lacking = [one.row for one in step if one.row is not None and one.row.value is None]
        if not lacking:
            return step
        found = {row.key: row for row in await self._source.filled(lacking) if row is not None}
        work: list[Work] = []
        for one in step:
            if one.row is None or one.row.value is not None:
                work.append(one)
            elif (row := found.get(one.row.key)) is not None:
                work += self._work(row, one.known)  # it may have changed since the walk
            # What is gone meanwhile is missed by the next walk.
        return work


class _Heads:
    """Asks a source for its head, and not all the time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._next_s = 0.0

    async def now(self) -> Head | None:
        """What the source has; None if it was asked not long ago."""
        begun_s = time.monotonic()
        if begun_s < self._next_s:
            return None
        head = await self._source.head()
        ended_s = time.monotonic()
        self._next_s = ended_s + max(_HEAD_S, _HEADS_SHARE * (ended_s - begun_s))
        return head


class _Closing:
    """A watch as :func:`contextlib.aclosing` wants it."""

    def __init__(self, watch: Watch) -> None:
        self.aclose = watch.close


class Pair(NamedTuple):
    """What both sides know of a key: at least one of them does."""

    key: bytes
    row: Row | None
    known: Known | None


async def beside(
    batches: AsyncIterator[list[Row]], notes: AsyncIterator[tuple[bytes, Known]]
) -> AsyncIterator[list[Pair]]:
    """The rows of a source beside the notes of their keys. Both come in order, and so do the pairs, in lists of up to
    twice :data:`.source.BATCH_ROWS`."""
    pairs: list[Pair] = []
    note = await anext(notes, None)
    async for rows in batches:
        for row in rows:
            while note is not None and note[0] < row.key:
                pairs.append(Pair(note[0], None, note[1]))
                if len(pairs) == BATCH_ROWS:
                    yield pairs
                    pairs = []
                note = await anext(notes, None)
            known = None
            if note is not None and note[0] == row.key:
                known, note = note[1], await anext(notes, None)
            pairs.append(Pair(row.key, row, known))
        if pairs:
            yield pairs
            pairs = []
    while note is not None:
        pairs.append(Pair(note[0], None, note[1]))
        note = await anext(notes, None)
        if note is None or len(pairs) == BATCH_ROWS:
            yield pairs
            pairs = []


async def ahead(batches: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The same, where the next is read while one is worked on."""
    following = asyncio.ensure_future(anext(batches, None))
    try:
        while (batch := await following) is not None:
            following = asyncio.ensure_future(anext(batches, None))
            yield batch
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await following


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
