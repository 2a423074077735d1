"""One watch of the harness: takes its batches, times them, and tells the judge what they say.

A reader may be steady, or *restless*: slow at times, or away at times, and then it goes on from the token of its last
batch.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from metad_client import Client, Watch, WatchBatch, WatchEvent
from metad_wire import messages as m
from metad_wire.watch import ChangeKind

from ..report.histogram import Latencies
from .judge import Judge, Verdict
from .places import Kind, Place
from .track import Stamp, Track, stamp_of

_REST_S = (0.2, 3.0)
_AT_WORK_S = (0.5, 3.0)
_KINDS = (ChangeKind.DELETED, ChangeKind.CREATED, ChangeKind.CHANGED)  # by the number of writes since the creation


class Delays:
    """The times from a write to the moment when a consumer has it: from when the write was ``sent``, and from when it
    was ``acknowledged`` (0 if the event came first)."""

    def __init__(self) -> None:
        self.sent = Latencies()
        self.acknowledged = Latencies()

    def note(self, came: Sequence[tuple[Track, int]], now_ns: int) -> None:
        """The events of these writes have come."""
        self.sent.extend([now_ns - track.sent_ns[index] for track, index in came])
        acknowledged = [track.acknowledged_ns[index] or now_ns for track, index in came]
        self.acknowledged.extend([max(0, now_ns - at_ns) for at_ns in acknowledged])


class Reader:
    """Watches a place. ``previous``: it asks for the values before, too. ``delays`` gives the record of the moment."""

    def __init__(
        self,
        client: Client,
        place: Place,
        name: str,
        *,
        run: int,
        previous: bool,
        verdict: Verdict,
        delays: Callable[[], Delays],
        rng: random.Random,
    ) -> None:
        self._client = client
        self._place = place
        self._run = run
        self._previous = previous
        self._delays = delays
        self._rng = rng
        self._tracks = place.tracks()
        self._snapshots: dict[str, dict[Track, int]] = {}  # by group: what has come of the snapshot that is coming
        self._newest: Watch | WatchBatch | None = None  # whose token the next watch begins with
        self.opened = asyncio.Event()
        self.judge = Judge(name, self._tracks.values(), verdict)

    async def run(self, restless: Callable[[], bool]) -> None:
        """Watch until cancelled."""
        self.judge.begin()
        while True:
            async with self.watch() as watch:
                await watch.opened()
                self._newest = self._newest or watch
                self.opened.set()
                await self._read(watch, restless)
            await asyncio.sleep(self._rng.uniform(*_REST_S))

    def watch(self) -> Watch:
        """A watch of the place that begins now, or where the last one ended."""
        place = self._place
        token = None if self._newest is None else self._newest.token
        said: dict[str, Any] = {"token": token, "previous": self._previous}
        if place.kind is Kind.KEYS:
            return self._client.watch([place.table], keys=[cell.key for cell in place.cells], **said)
        return self._client.watch([place.table], tenant=place.tenant, prefix=place.prefix, **said)

    async def _read(self, watch: Watch, restless: Callable[[], bool]) -> None:
        """Read until a restless reader goes away."""
        until = time.monotonic() + self._rng.uniform(*_AT_WORK_S)
        async for batch in watch:
            self.take(batch)
            self._newest = batch
            if restless() and time.monotonic() > until:
                if self._rng.random() < 0.5:
                    return
                await asyncio.sleep(self._rng.uniform(*_REST_S))
                until = time.monotonic() + self._rng.uniform(*_AT_WORK_S)

    def take(self, batch: WatchBatch) -> None:
        """Time a batch, and tell the judge what it says."""
        if batch.kind == "changes":
            events = batch.events
            now_ns = time.perf_counter_ns()  # the program has them
            self._delays().note(self._changes(events), now_ns)
        elif batch.kind == "gap":
            self.judge.gap()
        elif batch.kind == "snapshot":
            self._snapshot(batch)

    def _changes(self, events: Sequence[WatchEvent]) -> list[tuple[Track, int]]:
        """Returns the writes that the events are of."""
        judge, tracks = self.judge, self._tracks
        came: list[tuple[Track, int]] = []
        together: Counter[tuple[int, int]] = Counter()
        for event in events:
            track = tracks.get((event.row, event.key))
            if track is None:
                judge.phantom(f"a change of {event.row} {event.key}")
                continue
            record, stamp = event.record, None
            if record is None:
                index = judge.deleted(track, event.version)
            else:
                index, stamp = self._index(track, record)
                if index is None:
                    judge.phantom(f"{record!r} in {track.label}")
                    continue
                judge.delivered(track, index, event.version)
                if stamp is not None and stamp.transaction:
                    together[stamp.transaction, stamp.parts] += 1
            if index is not None and index < len(track.outcomes):
                came.append((track, index))
                self._check(event, track, index)
        for (transaction, parts), there in together.items():
            if there != parts:
                judge.split(f"{there} of {parts} keys of transaction {transaction} at once")
        return came

    def _snapshot(self, batch: WatchBatch) -> None:
        if batch.first:
            self._snapshots[batch.group] = {}
        rows = self._snapshots.setdefault(batch.group, {})
        for event in batch.events:
            track = self._tracks.get((event.row, event.key))
            index = None if track is None else self._index(track, event.record)[0]
            if track is None or index is None or track.slot not in batch.slots:
                self.judge.phantom(f"{event.record!r} of {event.row} {event.key} in a snapshot")
            else:
                rows[track] = index
        if batch.last:
            # A slot that an earlier batch named and the last does not is still missing: its rows were in vain.
            found = {track: index for track, index in rows.items() if track.slot in batch.slots}
            del self._snapshots[batch.group]
            self.judge.snapshot(batch.slots, found)

    def _index(self, track: Track, record: Any) -> tuple[int | None, Stamp | None]:
        """Which write a record is of; None if of none."""
        if isinstance(record, m.Kv):
            value = record.value
        elif isinstance(record, m.SessionProperties):
            value = record.payload
        elif isinstance(record, m.Offset):
            return record.offset, None
        else:
            return track.named((record.broker, record.broker_epoch, record.connected)), None
        stamp = stamp_of(self._run, value)
        return (None, None) if stamp is None or stamp.track != track.number else (stamp.index, stamp)

    def _check(self, event: WatchEvent, track: Track, index: int) -> None:
        """What else the event says of the write."""
        version = track.versions[index]
        if version < 0:
            return
        right = ChangeKind.WRITTEN if isinstance(event.record, m.Offset) else _KINDS[min(version, 2)]
        if event.kind != right:
            self.judge.wrong(track, index, f"is {event.kind.name}, and should be {right.name}")
        if isinstance(event.record, m.Kv) and event.record.version != version:
            self.judge.wrong(track, index, f"has version {event.record.version}, and should have {version}")
        if self._previous and event.previous_known:
            before = track.before(index)
            there = None if before is None or track.deletes[before] else before
            said = None if event.previous is None else self._index(track, event.previous)[0]
            if said != there or (event.previous is not None and said is None):
                self.judge.wrong(track, index, f"follows write {there}, and says {said}")
