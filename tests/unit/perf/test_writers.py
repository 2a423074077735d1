"""The crash run's lanes against a store that keeps its promises, or breaks exactly one of them once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from metad_client.results import Piece, PutResult, ReadResult, TakeoverResult, WriteResult
from metad_judge.acknowledged import Verdict
from metad_perf.faults.writers import LANES, ChainLane, Lane, OffsetLane, PutLane, SessionLane
from metad_wire import messages as m
from metad_wire.errors import (
    ConflictError,
    ConnectionLostError,
    MetadError,
    NotFoundError,
    NotOwnerError,
    OffsetRegressionError,
    OverloadedError,
)
from metad_wire.methods import KV_GET

HONEST, LOSE, REPEAT, UNKNOWN_DONE, UNKNOWN_NOT_DONE, REFUSE = range(6)


class Store:
    """metad in a dict. ``fate`` says what becomes of each request: LOSE acknowledges without writing, REPEAT writes
    twice (the second time as a server that does not recognise a retry, whose answer is the one that counts)."""

    def __init__(self, fate: Callable[[], int]) -> None:
        self._fate = fate
        self._records: dict[Any, Any] = {}
        self.requests = 0
        self.sessions: Any = SimpleNamespace(
            takeover_many=self._takeover, update_many=self._update, get_many=self._reader
        )
        self.offsets: Any = SimpleNamespace(commit_many=self._commit, fetch_many=self._reader)
        self.kv: Any = SimpleNamespace(put_many=self._put, get_many=self._reader)

    async def _reader(self, keys: Sequence[Any], deadline_s: float | None = None) -> ReadResult[Any]:
        found = [self._records.get(key) for key in keys]
        return ReadResult([Piece(0, len(found), KV_GET.reply(found), None)], lambda reply: reply.found, None)

    def _happen(self, write: Callable[[], Any]) -> Any:
        self.requests += 1
        fate = self._fate()
        if fate == REFUSE:
            raise OverloadedError
        if fate == UNKNOWN_NOT_DONE:
            raise ConnectionLostError
        kept = dict(self._records)
        reply = write()
        if fate == REPEAT:
            reply = write()
        if fate == LOSE:
            self._records = kept
        if fate == UNKNOWN_DONE:
            raise ConnectionLostError
        return reply

    async def _put(self, items: Sequence[m.KvPutItem]) -> PutResult:
        def write() -> m.KvPutReply:
            versions, errors = [], []
            for at, item in enumerate(items):
                current = self._records.get(m.KvKey(item.namespace, item.key))
                version = current.version if current else 0
                if item.expected_version not in (None, version):
                    errors.append(m.ItemError(at, ConflictError.code))
                    versions.append(0)
                    continue
                versions.append(version + 1)
                key = m.KvKey(item.namespace, item.key)
                self._records[key] = m.Kv(item.namespace, item.key, item.value, version + 1, 1, 1)
            return m.KvPutReply([], errors, versions)

        return PutResult([Piece(0, len(items), self._happen(write), None)])

    async def _takeover(self, broker: str, epoch: int, items: Sequence[m.SessionTakeoverItem]) -> TakeoverResult:
        def write() -> m.SessionTakeoverReply:
            owners: list[m.Owner] = []
            previous = []
            for item in items:
                key = m.SessionKey(item.tenant, item.client_id)
                current = self._records.get(key)
                if current is None:
                    previous.append(-1)
                else:
                    previous.append(len(owners))
                    owners.append(m.Owner(current.broker, current.broker_epoch))
                stored = current.properties if current else m.SessionProperties()
                self._records[key] = _session(key, broker, epoch, item.properties or stored)
            return m.SessionTakeoverReply([], [], owners, previous, [])

        return TakeoverResult([Piece(0, len(items), self._happen(write), None)], items)

    async def _update(self, broker: str, epoch: int, items: Sequence[m.SessionUpdateItem]) -> WriteResult:
        def write() -> m.WriteReply:
            errors = []
            for at, item in enumerate(items):
                key = m.SessionKey(item.tenant, item.client_id)
                current = self._records.get(key)
                if current is None or current.broker != broker:
                    errors.append(m.ItemError(at, (NotOwnerError if current else NotFoundError).code))
                    continue
                self._records[key] = _session(key, broker, epoch, item.properties)
            return m.WriteReply([], errors)

        return WriteResult([Piece(0, len(items), self._happen(write), None)])

    async def _commit(self, items: Sequence[m.OffsetCommitItem], monotonic: bool) -> WriteResult:
        assert monotonic

        def write() -> m.WriteReply:
            errors = []
            for at, item in enumerate(items):
                key = m.OffsetKey(item.tenant, item.group, item.topic, item.partition)
                current = self._records.get(key)
                offset = current.offset if current else -1
                if item.expected not in (None, offset):
                    errors.append(m.ItemError(at, ConflictError.code))
                elif item.offset < offset:
                    errors.append(m.ItemError(at, OffsetRegressionError.code))
                else:
                    self._records[key] = m.Offset(
                        item.tenant, item.group, item.topic, item.partition, item.offset, 0, 0, ""
                    )
            return m.WriteReply([], errors)

        return WriteResult([Piece(0, len(items), self._happen(write), None)])


def _session(key: m.SessionKey, broker: str, epoch: int, properties: m.SessionProperties) -> m.Session:
    return m.Session(
        tenant=key.tenant,
        client_id=key.client_id,
        broker=broker,
        broker_epoch=epoch,
        connected=True,
        disconnected_ms=0,
        properties=properties,
    )


async def _run(kind: type[Lane], fate: Callable[[], int], *, steps: int = 30, checks: int = 3) -> Verdict:
    verdict = Verdict()
    store: Any = Store(fate)
    lane = kind("lane", store, random.Random(1), verdict)
    for _ in range(checks):
        for _ in range(steps):
            await lane.step()
        await lane.check(store)
    return verdict


def _once(fate: int, at: int) -> Callable[[], int]:
    requests = itertools.count()
    return lambda: fate if next(requests) == at else HONEST


@pytest.mark.parametrize("kind", LANES)
async def test_an_honest_store_is_accused_of_nothing(kind: type[Lane]) -> None:
    verdict = await _run(kind, lambda: HONEST)
    assert verdict.acknowledged > 100
    assert (verdict.lost, verdict.duplicated, verdict.unknown, verdict.refused) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", LANES)
async def test_lost_connections_and_refusals_are_accused_of_nothing(kind: type[Lane]) -> None:
    rng = random.Random(5)
    fates = (HONEST, HONEST, UNKNOWN_DONE, UNKNOWN_NOT_DONE, REFUSE)
    verdict = await _run(kind, lambda: rng.choice(fates), steps=200)
    assert verdict.unknown > 100
    assert verdict.refused > 10
    assert (verdict.lost, verdict.duplicated) == (0, 0), verdict.examples


@pytest.mark.parametrize("kind", LANES)
@pytest.mark.parametrize("at", [0, 20, 80])
async def test_a_lost_tail_is_found(kind: type[Lane], at: int) -> None:
    """Acknowledged and gone from some request on: what a crash does to a store that acknowledges too early."""
    requests = itertools.count()
    verdict = await _run(kind, lambda: LOSE if next(requests) >= at else HONEST)
    assert verdict.lost > 0


@pytest.mark.parametrize("kind", [PutLane, ChainLane])
@pytest.mark.parametrize("at", [0, 20, 80])
async def test_one_lost_request_is_found(kind: type[Lane], at: int) -> None:
    """Also where later writes to the same records follow."""
    verdict = await _run(kind, _once(LOSE, at))
    assert verdict.lost > 0


@pytest.mark.parametrize("kind", [PutLane, ChainLane])
@pytest.mark.parametrize("at", [0, 20, 80])
async def test_one_repeated_request_is_found(kind: type[Lane], at: int) -> None:
    verdict = await _run(kind, _once(REPEAT, at))
    assert verdict.duplicated > 0


async def test_repeated_takeovers_and_conditional_commits_are_found() -> None:
    """An update or an unconditional commit that is repeated leaves no trace, and does no harm; these two do."""
    for kind in (SessionLane, OffsetLane):
        verdict = await _run(kind, lambda: REPEAT)
        assert verdict.duplicated > 0
        assert verdict.lost == 0


def test_every_error_says_whether_its_outcome_is_known() -> None:
    assert not ConnectionLostError.outcome_known
    assert OverloadedError.outcome_known
    assert MetadError.outcome_known
