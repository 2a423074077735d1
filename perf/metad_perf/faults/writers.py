"""The writers of the crash run: lanes, each with records of its own, one batch in flight, and a ledger per record.

A lane makes a batch, sends it through the SDK, and records the answer for each item; later it reads all its records
through another connection, and the ledgers judge them. An item is recorded as unknown exactly if its error says that
the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from metad_client import Client
from metad_client.errors import (
    ConflictError,
    FencedError,
    MetadError,
    NotFoundError,
    NotOwnerError,
    OffsetRegressionError,
)
from metad_client.results import WriteResult
from metad_judge.acknowledged import Counted, Stated, Verdict
from metad_wire import messages as m

RECORDS = 48  # of one lane: few enough that each is written often, enough that batches differ
BATCH_MAX = 12
READ_DEADLINE_S = 60.0  # a read waits through a restart, however impatient its client is
_TENANT = "crash"
_Owned: TypeAlias = tuple[str, bytes]  # broker, payload


class Lane(ABC):
    """One sequence of writes, with a rest of ``pause_s`` between two batches. ``name`` keeps its records apart from
    every other lane's."""

    def __init__(
        self, name: str, client: Client, rng: random.Random, verdict: Verdict, *, pause_s: float = 0.0
    ) -> None:
        self.name = name
        self.client = client
        self.rng = rng
        self.verdict = verdict
        self._pause_s = pause_s
        self._made = 0

    async def run(self, writing: Callable[[], bool]) -> None:
        """Write until ``writing`` is false; returns when nothing is in flight."""
        while writing():
            await self.step()
            await asyncio.sleep(self._pause_s)

    @abstractmethod
    async def step(self) -> None:
        """Write one batch (or a few that belong together)."""

    @abstractmethod
    async def check(self, reader: Client) -> None:
        """Read every record and judge it. Nothing may be in flight."""

    def pick(self) -> list[int]:
        """Some of the records, each once."""
        return self.rng.sample(range(RECORDS), self.rng.randint(1, BATCH_MAX))

    def fresh(self) -> bytes:
        """A value that nobody wrote before."""
        self._made += 1
        return f"{self.name}/{self._made}".encode()


class PutLane(Lane):
    """kv.put: the version counts the writes."""

    def __init__(
        self, name: str, client: Client, rng: random.Random, verdict: Verdict, *, pause_s: float = 0.0
    ) -> None:
        super().__init__(name, client, rng, verdict, pause_s=pause_s)
        self.keys = [m.KvKey(name, f"key-{i:04}") for i in range(RECORDS)]
        self.ledgers = [Counted(f"{key.namespace}/{key.key}", verdict) for key in self.keys]

    def expected(self, _record: int) -> int | None:
        """The version to compare with; None for an unconditional put."""
        return None

    async def step(self) -> None:
        records = self.pick()
        items = [m.KvPutItem(self.name, self.keys[i].key, self.fresh(), self.expected(i)) for i in records]
        try:
            result = await self.client.kv.put_many(items)
        except MetadError as failure:
            self._book([failure] * len(items), items, records, [0] * len(items))
        else:
            self._book(_errors(result, len(items)), items, records, result.versions)
            await self._after(records, result)

    def _book(
        self,
        errors: Sequence[MetadError | None],
        items: Sequence[m.KvPutItem],
        records: Sequence[int],
        versions: Sequence[int],
    ) -> None:
        for error, item, record, version in zip(errors, items, records, versions, strict=True):
            if error is None:
                self.ledgers[record].acknowledged(item.value, version)
            elif not error.outcome_known:
                self.ledgers[record].unknown(item.value)
            elif not isinstance(error, ConflictError):
                self.verdict.refused += 1

    async def _after(self, records: Sequence[int], result: WriteResult) -> None:
        """An unconditional put needs nothing more."""

    async def check(self, reader: Client) -> None:
        found = await reader.kv.get_many(self.keys)
        found.raise_for_error()
        for ledger, record in zip(self.ledgers, found, strict=True):
            ledger.read(None if record is None else record.value, 0 if record is None else record.version)


class ChainLane(PutLane):
    """kv.put with a compare: each write names the version it follows, so every link is there exactly once or the chain
    breaks."""

    def expected(self, record: int) -> int | None:
        """The version last seen."""
        return self.ledgers[record].version

    async def _after(self, records: Sequence[int], result: WriteResult) -> None:
        if result.ok:
            return
        torn = [records[at] for at, error in result.errors.items() if isinstance(error, ConflictError)]
        if torn:
            found = await self.client.kv.get_many([self.keys[i] for i in torn], deadline_s=READ_DEADLINE_S)
            found.raise_for_error()
            for record, kv in zip(torn, found, strict=True):
                self.ledgers[record].conflict(0 if kv is None else kv.version)


class SessionLane(Lane):
    """session.takeover by a new broker, then session.update by it."""

    def __init__(
        self, name: str, client: Client, rng: random.Random, verdict: Verdict, *, pause_s: float = 0.0
    ) -> None:
        super().__init__(name, client, rng, verdict, pause_s=pause_s)
        self.keys = [m.SessionKey(_TENANT, f"{name}-{i:04}") for i in range(RECORDS)]
        self.ledgers: list[Stated[_Owned]] = [Stated(key.client_id, verdict) for key in self.keys]
        self._brokers = 0

    async def step(self) -> None:
        """The next broker takes over some sessions, and updates those that it knows to own."""
        self._brokers += 1
        broker = f"{self.name}-{self._brokers}"
        owned = await self._take_over(broker, self.pick())
        for _ in range(self.rng.randint(0, 2)):
            if owned:
                owned = await self._update(broker, owned)

    async def _take_over(self, broker: str, records: list[int]) -> list[int]:
        items, states = [], []
        for record in records:
            ledger = self.ledgers[record]
            stored = ledger.state
            # A reconnect keeps the stored properties if they are certain; otherwise it brings its own.
            keeps = stored is not None and not ledger.unsettled and self.rng.random() < 0.5
            payload = stored[1] if keeps and stored is not None else self.fresh()
            properties = None if keeps else m.SessionProperties(60, payload)
            items.append(m.SessionTakeoverItem(_TENANT, self.keys[record].client_id, False, properties))
            states.append((broker, payload))
        try:
            result = await self.client.sessions.takeover_many(broker, 1, items)
        except MetadError as failure:
            self._book([failure] * len(items), records, states)
            return []
        errors = _errors(result, len(items))
        for at, error in enumerate(errors):
            if error is None:
                previous = result.previous(at)
                shown = None if previous is None else previous.broker
                self.ledgers[records[at]].replaced(shown, states[at], _broker_of)
        return self._book(errors, records, states)

    async def _update(self, broker: str, records: list[int]) -> list[int]:
        states = [(broker, self.fresh()) for _ in records]
        items = [
            m.SessionUpdateItem(_TENANT, self.keys[record].client_id, m.SessionProperties(60, payload))
            for record, (_, payload) in zip(records, states, strict=True)
        ]
        try:
            result = await self.client.sessions.update_many(broker, 1, items)
        except MetadError as failure:
            self._book([failure] * len(items), records, states)
            return []
        errors = _errors(result, len(items))
        owned = self._book(errors, records, states)
        for at, error in enumerate(errors):
            if isinstance(error, NotOwnerError | NotFoundError | FencedError):
                (session,) = await self.client.sessions.get_many([self.keys[records[at]]], deadline_s=READ_DEADLINE_S)
                self.ledgers[records[at]].refused(states[at], _owned(session))
        return owned

    def _book(self, errors: Sequence[MetadError | None], records: Sequence[int], states: Sequence[_Owned]) -> list[int]:
        """The records whose write is acknowledged."""
        acknowledged = []
        for error, record, state in zip(errors, records, states, strict=True):
            if error is None:
                self.ledgers[record].acknowledged(state)
                acknowledged.append(record)
            elif not error.outcome_known:
                self.ledgers[record].unknown(state)
            elif not isinstance(error, NotOwnerError | NotFoundError | FencedError):
                self.verdict.refused += 1
        return acknowledged

    async def check(self, reader: Client) -> None:
        found = await reader.sessions.get_many(self.keys)
        found.raise_for_error()
        for ledger, session in zip(self.ledgers, found, strict=True):
            ledger.read(_owned(session))


class OffsetLane(Lane):
    """offset.commit, monotonic, every other batch as a compare-and-set as well."""

    def __init__(
        self, name: str, client: Client, rng: random.Random, verdict: Verdict, *, pause_s: float = 0.0
    ) -> None:
        super().__init__(name, client, rng, verdict, pause_s=pause_s)
        self.keys = [m.OffsetKey(_TENANT, f"{name}-{i % 4}", "orders", i) for i in range(RECORDS)]
        self.ledgers: list[Stated[int]] = [Stated(f"{key.group}/{key.partition}", verdict) for key in self.keys]
        self._next = 0

    async def step(self) -> None:
        compares = self.rng.random() < 0.5
        records = [i for i in self.pick() if not (compares and self.ledgers[i].unsettled)]
        items = [self._item(record, compares) for record in records]
        if not items:
            return
        try:
            result = await self.client.offsets.commit_many(items, monotonic=True)
            errors = _errors(result, len(items))
        except MetadError as failure:
            errors = [failure] * len(items)
        for error, record, item in zip(errors, records, items, strict=True):
            ledger = self.ledgers[record]
            if error is None:
                ledger.acknowledged(item.offset)
            elif not error.outcome_known:
                ledger.unknown(item.offset)
            elif isinstance(error, ConflictError | OffsetRegressionError):
                (found,) = await self.client.offsets.fetch_many([self.keys[record]], deadline_s=READ_DEADLINE_S)
                ledger.refused(item.offset, None if found is None else found.offset)
            else:
                self.verdict.refused += 1

    def _item(self, record: int, compares: bool) -> m.OffsetCommitItem:
        self._next += 1
        key, state = self.keys[record], self.ledgers[record].state
        expected = (-1 if state is None else state) if compares else None
        return m.OffsetCommitItem(key.tenant, key.group, key.topic, key.partition, self._next, 0, expected)

    async def check(self, reader: Client) -> None:
        found = await reader.offsets.fetch_many(self.keys)
        found.raise_for_error()
        for ledger, offset in zip(self.ledgers, found, strict=True):
            ledger.read(None if offset is None else offset.offset)


LANES: tuple[type[Lane], ...] = (PutLane, ChainLane, SessionLane, OffsetLane)


def _errors(result: WriteResult, count: int) -> list[MetadError | None]:
    """The errors by position."""
    if result.ok:
        return [None] * count
    return [result.errors.get(at) for at in range(count)]


def _owned(session: m.Session | None) -> _Owned | None:
    return None if session is None else (session.broker, session.properties.payload)


def _broker_of(state: _Owned | None) -> str | None:
    return None if state is None else state[0]
