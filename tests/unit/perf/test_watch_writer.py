"""The writer of the watch run: what it books is what was done, and a record has one write in flight at most."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from metad_client.errors import ConflictError, DeadlineExceededError, MetadError
from metad_perf.watch.places import KINDS, Kind, Place, lay_out
from metad_perf.watch.track import Outcome, stamp_of
from metad_perf.watch.writer import Writer
from metad_wire import messages as m


class FakeClient:
    """Answers in random order what ``answer`` says; the keys that are in flight must be different ones."""

    def __init__(self, rng: random.Random) -> None:
        self.calls: Counter[str] = Counter()
        self.rng = rng
        self.fail: MetadError | None = None
        self.failing_items: dict[int, MetadError] = {}
        self.values: list[tuple[Any, bytes]] = []  # that transactions have put
        self._busy: set[Any] = set()
        self.kv = SimpleNamespace(
            put_many=self._verb("put"), delete_many=self._verb("delete"), transact_many=self._transact
        )
        self.sessions = SimpleNamespace(
            takeover_many=self._of_broker("takeover"),
            update_many=self._of_broker("update"),
            disconnect_many=self._of_broker("disconnect"),
            delete_many=self._verb("delete_session"),
        )
        self.offsets = SimpleNamespace(commit_many=self._verb("commit"), delete_many=self._verb("delete_offset"))

    def _verb(self, name: str) -> Any:
        async def call(items: Sequence[Any]) -> Any:
            return await self._answer(name, [_key(item) for item in items])

        return call

    def _of_broker(self, name: str) -> Any:
        async def call(broker: str, epoch: int, items: Sequence[Any]) -> Any:
            assert epoch > 0
            return await self._answer(name, [_key(item) for item in items])

        return call

    async def _transact(self, items: Sequence[m.KvTransaction]) -> Any:
        (one,) = items
        self.values += [((one.namespace, o.key), o.value) for o in one.then if o.value is not None]
        result = await self._answer("transact", [(one.namespace, operation.key) for operation in one.then])
        result.errors = {at: error for at, error in result.errors.items() if at == 0}
        return result

    async def _answer(self, name: str, keys: list[Any]) -> Any:
        assert len(set(keys)) == len(keys)
        assert not self._busy & set(keys)
        self._busy |= set(keys)
        for _ in range(self.rng.randint(1, 20)):
            await asyncio.sleep(0)
        self._busy -= set(keys)
        self.calls[name] += 1
        if self.fail is not None:
            raise self.fail

        def raise_for_error() -> None:
            if self.failing_items:
                raise next(iter(self.failing_items.values()))

        return SimpleNamespace(errors=dict(self.failing_items), raise_for_error=raise_for_error)


def _key(item: Any) -> Any:
    if hasattr(item, "namespace"):
        return (item.namespace, item.key)
    if hasattr(item, "topic"):
        return (item.tenant, item.group, item.topic, item.partition)
    return (item.tenant, item.client_id)


@pytest.fixture
def client() -> FakeClient:
    return FakeClient(random.Random(1))


@pytest.fixture
def places() -> list[Place]:
    return lay_out("w0", 10, 16)


def _writer(client: FakeClient, places: list[Place], *, spread: int = 3) -> Writer:
    return Writer(
        client,  # type: ignore[arg-type]
        places,
        run=5,
        name="broker",
        batch=12,
        spread=spread,
        value_bytes=40,
        rng=random.Random(1),
    )


async def _write(writer: Writer, batches: int) -> None:
    left = iter(range(batches))
    await writer.run(1e9, lambda: next(left, None) is not None)


def _outcomes(places: list[Place]) -> Counter[int]:
    return Counter(outcome for place in places for track in place.tracks().values() for outcome in track.outcomes)


async def test_it_writes_in_every_way_and_books_each_event(client: FakeClient, places: list[Place]) -> None:
    writer = _writer(client, places)
    await _write(writer, 600)
    assert client.calls.keys() == {
        "put",
        "delete",
        "transact",
        "takeover",
        "update",
        "disconnect",
        "delete_session",
        "commit",
        "delete_offset",
    }
    assert client.calls["put"] > sum(client.calls.values()) / 2
    assert _outcomes(places) == {Outcome.ACKNOWLEDGED: writer.acknowledged}
    assert writer.sent == writer.acknowledged > 600
    assert not any(cell.busy for place in places for cell in place.cells)


async def test_each_outcome_is_booked_as_its_error_says(client: FakeClient, places: list[Place]) -> None:
    writer = _writer(client, places)
    client.fail = DeadlineExceededError("late")
    await _write(writer, 20)
    assert _outcomes(places) == {Outcome.UNKNOWN: writer.unknown}
    client.fail = ConflictError("no")
    unknown = writer.unknown
    await _write(writer, 20)
    assert _outcomes(places) == {Outcome.UNKNOWN: unknown, Outcome.REFUSED: writer.refused}
    client.fail, client.failing_items = None, {0: ConflictError("no")}
    refused, calls = writer.refused, sum(client.calls.values())
    await _write(writer, 20)
    assert writer.refused >= refused + sum(client.calls.values()) - calls
    assert writer.acknowledged == _outcomes(places)[Outcome.ACKNOWLEDGED] > 0
    assert writer.errors["deadline_exceeded"] == unknown


async def test_a_record_whose_state_is_unknown_is_not_deleted(client: FakeClient, places: list[Place]) -> None:
    writer = _writer(client, places)
    client.fail = DeadlineExceededError("late")
    await _write(writer, 300)
    assert client.calls.keys() <= {"put", "transact", "takeover", "commit"}
    assert not any(any(track.deletes) for place in places for track in place.tracks().values())


async def test_a_transaction_is_of_one_place(client: FakeClient, places: list[Place]) -> None:
    await _write(_writer(client, places, spread=12), 600)
    numbers = {_key(cell.key): cell.tracks[0].number for place in places for cell in place.cells}
    assert len(client.values) > 10
    for key, value in client.values:
        stamp = stamp_of(5, value)
        assert stamp is not None
        assert stamp.track == numbers[key]


async def test_the_seal_writes_every_record(client: FakeClient, places: list[Place]) -> None:
    writer = _writer(client, places)
    await writer.seal()
    for place in places:
        for cell in place.cells:
            assert cell.exists
            assert all(track.last_acknowledged() == len(track) - 1 == 0 for track in cell.tracks)


def test_places_are_of_every_kind_and_share_no_number() -> None:
    places = lay_out("w3", len(KINDS), 5)
    assert {place.kind for place in places} == set(Kind)
    numbers = [track.number for place in places for track in place.tracks().values()]
    assert len(set(numbers)) == len(numbers)
    for place in places:
        for _, key in place.tracks():
            tenant = key.namespace if isinstance(key, m.KvKey) else key.tenant
            assert tenant == place.tenant
            assert getattr(key, "key", "").startswith(place.prefix)
