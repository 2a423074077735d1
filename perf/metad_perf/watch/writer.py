"""Writes the events of one client process: batches at an even pace, each of a few places, and books how each ended.

Mostly ``kv.put``; some deletions and transactions, takeovers, updates, disconnects and deletions of sessions, offset
commits and their deletion. A record has one write in flight at most, so its rows' writes have an order. If all records
of the chosen places are busy, because the servers do not answer, the writer waits: ``late_s`` says how far it is behind
its pace.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from metad_client import Client
from metad_client.errors import MetadError
from metad_client.results import WriteResult
from metad_wire import messages as m

from ..report.histogram import Latencies
from .places import KV_KINDS, TOPIC, Cell, Place, by_kind
from .track import Outcome, Stamp, Track, stamped

_IN_FLIGHT_MAX = 256  # requests: more only wait at the servers
_FULL_S = 0.005  # between two looks for room
_LATE_S = 1.0  # a writer that is further behind its pace does not catch up
_EXPIRY_S = 3_600
_SEALS_AT_ONCE = 16
_PARTS = 3  # keys of a transaction
_Mark: TypeAlias = tuple[Track, int]
_Call: TypeAlias = Callable[[], Awaitable[WriteResult]]


class Writer:
    """Writes to places. ``run`` is the number of the whole run, which all values have; ``name`` tells this process's
    brokers from others'. A batch has ``batch`` items of ``spread`` places."""

    def __init__(
        self,
        client: Client,
        places: Sequence[Place],
        *,
        run: int,
        name: str,
        batch: int,
        spread: int,
        value_bytes: int,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._places = places
        self._tables = by_kind(places)
        self._run = run
        self._name = name
        self._batch = batch
        self._spread = spread
        self._value_bytes = value_bytes
        self._rng = rng
        self._epoch = time.time_ns() // 1_000_000
        self._transactions = 0
        self._in_flight: set[asyncio.Task[None]] = set()
        self.sent = 0
        self.acknowledged = 0
        self.unknown = 0
        self.refused = 0
        self.late_s = 0.0
        self.latencies = Latencies()
        self.errors: dict[str, int] = {}

    async def run(self, rate: float, writing: Callable[[], bool]) -> None:
        """Write ``rate`` events a second until ``writing`` is false; returns when nothing is in flight."""
        due = time.monotonic()
        while writing():
            begun = self._begin() if len(self._in_flight) < _IN_FLIGHT_MAX else 0
            now = time.monotonic()
            self.late_s = max(self.late_s, now - due)
            if not begun:
                await asyncio.sleep(_FULL_S)
                continue
            due = max(due + begun / rate, now - _LATE_S)
            await asyncio.sleep(max(0.0, due - now))
        await self.drain()

    async def drain(self) -> None:
        """Wait until nothing is in flight."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    async def seal(self) -> None:
        """Write every record once more, so that its newest write is acknowledged and says whether a watch has all."""
        cells = {table: [cell for place in places for cell in place.cells] for table, places in self._tables.items()}
        for table, found in cells.items():
            for at in range(0, len(found), self._batch):
                self._spawn(*self._renewal(table, found[at : at + self._batch], whole=True))
                while len(self._in_flight) >= _SEALS_AT_ONCE:
                    await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
        await self.drain()

    def _begin(self) -> int:
        """Send one batch; returns the number of its events."""
        rng = self._rng
        chosen = rng.choice(self._places)
        alike = self._tables[chosen.table]
        places = [chosen, *(rng.choice(alike) for _ in range(self._spread - 1))]
        each = max(1, self._batch // self._spread)
        cells: list[Cell] = []
        for place in places:
            for cell in place.free(rng, each):
                cell.busy = True
                cells.append(cell)
        if not cells:
            return 0
        cells, call, marks = self._verb(chosen, cells)
        self._spawn(cells, call, marks)
        return sum(map(len, marks))

    def _verb(self, place: Place, cells: list[Cell]) -> tuple[list[Cell], _Call, list[list[_Mark]]]:
        share = self._rng.random()
        if place.kind in KV_KINDS:
            if share < 0.06:
                there = self._only(cells, lambda cell: cell.exists is True)
                if there:
                    return self._deletion(there)
            elif share < 0.12:
                parts = [cell for cell in cells if cell in place.cells][:_PARTS]
                if parts:
                    return self._transaction(self._only(cells, lambda cell: cell in parts))
        elif place.table == "session":
            if share < 0.6:
                owned = self._only(cells, lambda cell: cell.life is not None and cell.life == cells[0].life)
                if owned:
                    return self._of_owner(owned, share)
        elif share < 0.06:
            there = self._only(cells, lambda cell: cell.exists is True)
            if there:
                return self._deletion(there)
        return self._renewal(place.table, cells)

    @staticmethod
    def _only(cells: list[Cell], wanted: Callable[[Cell], bool]) -> list[Cell]:
        """Those that are wanted; the others are free again. None is: all stay."""
        kept = [cell for cell in cells if wanted(cell)]
        if kept:
            for cell in cells:
                cell.busy = False
            for cell in kept:
                cell.busy = True
        return kept

    # --- verbs: the cells, the call, and for each cell the writes to its rows ---------------------------------------

    def _renewal(
        self, table: str, cells: list[Cell], *, whole: bool = False
    ) -> tuple[list[Cell], _Call, list[list[_Mark]]]:
        """The write that a record takes whatever it was: put, takeover, commit. ``whole``: of all of its rows."""
        now_ns = time.perf_counter_ns()
        marks: list[list[_Mark]] = []
        if table == "session":
            self._epoch += 1
            broker, epoch = f"{self._name}-{self._epoch % 4}", self._epoch
            taken: list[m.SessionTakeoverItem] = []
            for cell in cells:
                assert isinstance(cell.key, m.SessionKey)
                owner, properties = cell.tracks
                both = whole or cell.exists is not True or self._rng.random() < 0.5
                mark = [(owner, owner.write(now_ns, name=(broker, epoch, True)))]
                said = None
                if both:
                    index = properties.write(now_ns)
                    mark.append((properties, index))
                    said = self._properties(properties, index)
                taken.append(m.SessionTakeoverItem(cell.key.tenant, cell.key.client_id, False, said))
                cell.life = (broker, epoch)
                marks.append(mark)
            return cells, lambda: self._client.sessions.takeover_many(broker, epoch, taken), marks
        if table == "offset":
            commits: list[m.OffsetCommitItem] = []
            for cell in cells:
                assert isinstance(cell.key, m.OffsetKey)
                index = cell.tracks[0].write(now_ns)
                commits.append(m.OffsetCommitItem(cell.key.tenant, cell.key.group, TOPIC, cell.key.partition, index))
                marks.append([(cell.tracks[0], index)])
            return cells, lambda: self._client.offsets.commit_many(commits), marks
        puts: list[m.KvPutItem] = []
        for cell in cells:
            assert isinstance(cell.key, m.KvKey)
            track = cell.tracks[0]
            index = track.write(now_ns)
            puts.append(m.KvPutItem(cell.key.namespace, cell.key.key, self._value(Stamp(track.number, index))))
            marks.append([(track, index)])
        return cells, lambda: self._client.kv.put_many(puts), marks

    def _deletion(self, cells: list[Cell]) -> tuple[list[Cell], _Call, list[list[_Mark]]]:
        now_ns = time.perf_counter_ns()
        marks = [[(track, track.write(now_ns, deletes=True)) for track in cell.tracks] for cell in cells]
        keys = [cell.key for cell in cells]
        if isinstance(keys[0], m.SessionKey):
            ended = [m.SessionDeleteItem(key.tenant, key.client_id) for key in keys if isinstance(key, m.SessionKey)]
            for cell in cells:
                cell.life = None
            return cells, lambda: self._client.sessions.delete_many(ended), marks
        if isinstance(keys[0], m.OffsetKey):
            offsets = [key for key in keys if isinstance(key, m.OffsetKey)]
            return cells, lambda: self._client.offsets.delete_many(offsets), marks
        items = [m.KvDeleteItem(key.namespace, key.key) for key in keys if isinstance(key, m.KvKey)]
        return cells, lambda: self._client.kv.delete_many(items), marks

    def _transaction(self, cells: list[Cell]) -> tuple[list[Cell], _Call, list[list[_Mark]]]:
        """One transaction on keys of one place; it deletes one of them, if that is there."""
        now_ns = time.perf_counter_ns()
        self._transactions += 1
        gone = next((cell for cell in cells[1:] if cell.exists is True), None)
        operations: list[m.KvOperation] = []
        marks: list[list[_Mark]] = []
        for cell in cells:
            assert isinstance(cell.key, m.KvKey)
            track = cell.tracks[0]
            index = track.write(now_ns, deletes=cell is gone)
            stamp = Stamp(track.number, index, self._transactions, len(cells) - (gone is not None))
            operations.append(m.KvOperation(cell.key.key, None if cell is gone else self._value(stamp)))
            marks.append([(track, index)])
        assert isinstance(cells[0].key, m.KvKey)
        transaction = m.KvTransaction(cells[0].key.namespace, [], operations)

        async def transact() -> WriteResult:
            result = await self._client.kv.transact_many([transaction])
            result.raise_for_error()  # all of its keys fail, and not only the first
            return result

        return cells, transact, marks

    def _of_owner(self, cells: list[Cell], share: float) -> tuple[list[Cell], _Call, list[list[_Mark]]]:
        """What only the owner of sessions does: update, disconnect; or they are deleted."""
        if share < 0.1:
            return self._deletion(cells)
        now_ns = time.perf_counter_ns()
        assert cells[0].life is not None
        broker, epoch = cells[0].life
        if share < 0.25:
            keys = [cell.key for cell in cells if isinstance(cell.key, m.SessionKey)]
            away = [m.SessionDisconnectItem(key.tenant, key.client_id) for key in keys]
            marks = [[(cell.tracks[0], cell.tracks[0].write(now_ns, name=(broker, epoch, False)))] for cell in cells]
            for cell in cells:
                cell.life = None  # a second disconnect would change nothing
            return cells, lambda: self._client.sessions.disconnect_many(broker, epoch, away), marks
        marks = []
        updates: list[m.SessionUpdateItem] = []
        for cell in cells:
            assert isinstance(cell.key, m.SessionKey)
            track = cell.tracks[1]
            index = track.write(now_ns)
            marks.append([(track, index)])
            updates.append(m.SessionUpdateItem(cell.key.tenant, cell.key.client_id, self._properties(track, index)))
        return cells, lambda: self._client.sessions.update_many(broker, epoch, updates), marks

    def _properties(self, track: Track, index: int) -> m.SessionProperties:
        return m.SessionProperties(_EXPIRY_S, self._value(Stamp(track.number, index)))

    def _value(self, stamp: Stamp) -> bytes:
        return stamped(self._run, stamp, self._value_bytes)

    # --- booking ----------------------------------------------------------------------------------------------------

    def _spawn(self, cells: list[Cell], call: _Call, marks: list[list[_Mark]]) -> None:
        for cell in cells:
            cell.busy = True
        self.sent += sum(map(len, marks))
        task = asyncio.ensure_future(self._booked(cells, call, marks))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _booked(self, cells: list[Cell], call: _Call, marks: list[list[_Mark]]) -> None:
        begin_ns = time.perf_counter_ns()
        errors: Mapping[int, MetadError]
        try:
            errors = (await call()).errors
        except MetadError as error:
            errors = dict.fromkeys(range(len(cells)), error)
        now_ns = time.perf_counter_ns()
        self.latencies.note(now_ns - begin_ns)
        for at, (cell, mark) in enumerate(zip(cells, marks, strict=True)):
            outcome = self._outcome(errors.get(at), len(mark))
            for track, index in mark:
                track.settle(index, outcome, now_ns)
            if outcome != Outcome.ACKNOWLEDGED:
                cell.life = None
            cell.busy = False

    def _outcome(self, error: MetadError | None, events: int) -> Outcome:
        if error is None:
            self.acknowledged += events
            return Outcome.ACKNOWLEDGED
        self.errors[error.name] = self.errors.get(error.name, 0) + events
        if error.outcome_known:
            self.refused += events
            return Outcome.REFUSED
        self.unknown += events
        return Outcome.UNKNOWN
