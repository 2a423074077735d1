"""No step of the loop is long: every verb that clients have, at a large state, asked many times at once, with one proof
of the lead for all. What is counted is work, in rows of the engine, bytes of replies and answers: a crowded machine
changes none of them. The verbs and their bodies are made of the declarations, so a new one is tested without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from msgspec import inspect
from server_rig import Answer, BreakableEngine, Rig

from metad.storage.engine import UNBOUNDED_BYTES
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.methods import METHODS, By, For, Method
from metad_wire.policy.slices import SLICE_PIECES, SLICE_ROWS
from metad_wire.tables import broker as b
from metad_wire.tables.broker import Broker

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
VERBS = [method for method in METHODS.values() if method.whose is not For.NODES and method is not methods.WATCH_OPEN]
"""A watch is a stream, and has turns of its own."""
CROWD, FEW, MANY = 300, 20, 1_000
ENTRY_ITEMS, ENTRY_BYTES = 1_000, 512 * 1024
"""Writes of one turn: they are evaluated and answered together, as ARCHITECTURE.md says."""
BROKERS = 4_096
END, ROWS = b"\xff" * 16, 1 << 30  # of a whole engine
_SHARED = {"tenant": "t", "namespace": "n", "group": "g", "topic": "a", "broker": "b", "filter": "#", "kind": "x"}
_EMPTY = {"prefix", "client_id_prefix", "topic_prefix", "state", "lease", "instance", "node_id", "to", "member"}
_ENDS = ("delete", "remove", "revoke", "end_tenant", "leave", "delete_groups", "detach", "release", "acknowledge")


def value_of(kind: inspect.Type, name: str, number: int, items: int) -> Any:
    """A value of a field, which meets what other verbs have written: the same texts in shared fields, and the number of
    its item in the others."""
    match kind:
        case inspect.Metadata():
            return value_of(kind.type, name, number, items)
        case inspect.StrType():
            return _SHARED.get(name, "" if name in _EMPTY else f"k{number}")
        case inspect.StructType():
            return body_of(kind, number, 1)
        case inspect.UnionType():
            some = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
            return value_of(some[0], name, number, items) if len(some) == len(kind.types) else None
        case inspect.ListType() if name in ("items", "brokers", "beats"):
            return [value_of(kind.item_type, name, at, 1) for at in range(items)]
        case inspect.ListType() | inspect.DictType():
            return [] if isinstance(kind, inspect.ListType) else {}
        case inspect.IntType():
            return m.LIST_LIMIT_MAX if name == "limit" else max(kind.ge or 0, 0 if name.endswith("_ms") else 1)
        case inspect.BytesType():
            return b""
        case _:
            return False


def body_of(kind: inspect.Type, number: int, items: int) -> Any:
    assert isinstance(kind, inspect.StructType)
    made = [value_of(field.type, field.name, number, items) for field in kind.fields]
    return kind.cls(*made)


@cache
def request_of(method: Method[Any, Any], items: int) -> tuple[bytes, str]:
    """A request of this verb, of so many items if it has any; and its group."""
    body = body_of(inspect.type_info(method.body), 0, items)
    kind = "offset" if method.name.startswith(("offset.", "consumer.")) else "data"
    group = f"{kind}-0" if method.by is By.GROUP else ""
    return method.encode_request(body, 60_000, None, group), group


class Step(NamedTuple):
    """The work of one callback of the loop."""

    rows: int = 0
    size: int = 0
    answers: int = 0


class Work:
    """Counts what each callback of the loop does, and keeps the most of each."""

    def __init__(self) -> None:
        self.rows = self.size = self.answers = 0
        self.most = Step()

    def step(self) -> None:
        self.most = Step(*map(max, self.most, (self.rows, self.size, self.answers)))
        self.rows = self.size = self.answers = 0


WORK = Work()


class CountingEngine(BreakableEngine):
    def get(self, key: bytes) -> bytes | None:
        WORK.rows += 1
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        WORK.rows += len(keys)
        return super().get_many(keys)

    def scan(self, begin: bytes, end: bytes, limit: int, bytes_max: int = UNBOUNDED_BYTES) -> list[tuple[bytes, bytes]]:
        found = super().scan(begin, end, limit, bytes_max)
        WORK.rows += len(found)
        return found


class CountedAnswer(Answer):
    def __call__(self, result: Any) -> None:
        super().__call__(result)
        WORK.answers += 1
        WORK.size += len(result) if isinstance(result, bytes) else 0


@contextmanager
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count by callback meanwhile."""
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def counted(handle: asyncio.Handle) -> None:
        WORK.step()
        run(handle)
        WORK.step()

    WORK.most, WORK.rows, WORK.size, WORK.answers = Step(), 0, 0, 0
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", counted)
        yield


@asynccontextmanager
async def filled(kept: Rig | None = None) -> AsyncIterator[Rig]:
    """A node with a large state: that of another, if one is given that has it."""
    rig = Rig()
    rig.state_engine = CountingEngine()
    if kept is not None:
        rig.state_engine.write(dict(kept.state_engine.scan(b"", END, ROWS)))
        rig.log_engine.write(dict(kept.log_engine.scan(b"", END, ROWS)))
    await rig.open()
    for method in VERBS:
        if kept is None and method.mutates and not method.name.endswith(_ENDS):
            send(rig, method, MANY)
            await rig.settle()
    for number in range(BROKERS):
        rig.node.brokers._learn(
            Broker(f"k{number:04}", 1, b.ACTIVE, 3_600_000, fenced=True, attributes={"a": "x" * 200}, told=True)
        )
    yield rig
    rig.node.will_turns.drain()
    await rig.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unchanged() -> AsyncIterator[Rig]:
    async with filled() as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def rig(request: pytest.FixtureRequest, unchanged: Rig) -> AsyncIterator[Rig]:
    """Verbs that only read share a node. A verb that writes has its own, with a copy of that one's state."""
    method = "method" in request.fixturenames and request.getfixturevalue("method")
    if method and not method.mutates:
        yield unchanged
        return
    async with filled(unchanged) as own:
        yield own


def send(rig: Rig, method: Method[Any, Any], items: int) -> Answer:
    payload, _ = request_of(method, items)
    answer = CountedAnswer()
    answer.work = rig.node.requests.submit(method.code, payload, answer)
    return answer


@contextmanager
def unproven(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[bool], None]]]:
    """Nothing may be read meanwhile before a proof of the lead, which these wait for."""
    waiting: list[Callable[[bool], None]] = []
    with monkeypatch.context() as patched:
        for driver in rig.node.drivers.values():
            patched.setattr(driver.group, "may_read", lambda: False)
            patched.setattr(driver.group, "read", waiting.append)
        yield waiting


async def crowd(rig: Rig, monkeypatch: pytest.MonkeyPatch, method: Method[Any, Any], count: int, ok: bool) -> Step:
    """The longest step while so many requests are asked together, and their proof is there (or the lead is lost)."""
    with unproven(rig, monkeypatch) as waiting:
        answers = [send(rig, method, FEW) for _ in range(count)]
        proofs = list(waiting)
        waiting.clear()

        def released() -> None:
            for proven in proofs:
                proven(ok)

        with steps(monkeypatch):
            asyncio.get_running_loop().call_soon(released)
            for _ in range(20):
                await rig.settle()
            rig.node.will_turns.drain() if method is methods.WILL_WAIT else None
            while not all(answer.done for answer in answers):
                for proven in waiting:  # a long read's, or those of what was asked meanwhile
                    proven(ok)
                waiting.clear()
                await rig.settle()
    return WORK.most


@pytest.mark.parametrize("method", VERBS, ids=lambda method: method.name)
async def test_a_crowd_makes_no_step_longer_than_one_request_does(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: Method[Any, Any]
) -> None:
    one = await crowd(rig, monkeypatch, method, 1, True)
    many = await crowd(rig, monkeypatch, method, CROWD, True)
    together = ENTRY_ITEMS // FEW + 1 if method.mutates else 1
    assert many.answers <= (ENTRY_ITEMS if method.mutates else SLICE_PIECES)
    assert many.rows <= together * one.rows + SLICE_ROWS + FEW
    assert many.size <= (ENTRY_BYTES if method.mutates else 2 * max(one.size, SLICE_PIECES * 256))


@pytest.mark.parametrize("method", [each for each in VERBS if not each.mutates], ids=lambda method: method.name)
async def test_a_lead_that_is_lost_is_told_in_slices(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: Method[Any, Any]
) -> None:
    assert (await crowd(rig, monkeypatch, method, CROWD, False)).answers <= SLICE_PIECES


async def test_writes_in_a_lost_group_are_told_in_slices(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(CROWD):
        send(rig, methods.KV_PUT, 1)
    driver = rig.driver("data-0")
    with steps(monkeypatch):
        asyncio.get_running_loop().call_soon(driver.demoted)
        for _ in range(5):
            await asyncio.sleep(0)
    assert 0 < WORK.most.answers <= SLICE_PIECES


@pytest.mark.parametrize("method", VERBS, ids=lambda method: method.name)
async def test_one_request_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch, method: Method[Any, Any]) -> None:
    with steps(monkeypatch):
        answer = send(rig, method, MANY)
        await rig.answered(answer)
    rows_max = 8 * m.BATCH_ITEMS_MAX if method.mutates else m.BATCH_ITEMS_MAX
    assert WORK.most.rows <= rows_max
    assert WORK.most.size <= 4 * 1024 * 1024
