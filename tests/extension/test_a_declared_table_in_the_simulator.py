"""A table that a program declares, on simulated nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from metad.config import ExpiryConfig, RaftConfig, StorageConfig
from metad.control import migration
from metad_client import U32, U63, Client, ConflictError, IndexBuildingError, Record, Records, TablePutItem
from metad_wire.cluster import GroupId, unpack_slots
from metad_wire.table import Table
from metad_wire.tables import moving_rows
from metad_wire.tables.table import DECLARED, INDEXES
from metad_wire.watch import ChangeKind
from sim.nodes.scenarios import Scene


class Reading(Record, frozen=True):
    """The last reading of a sensor."""

    tenant: str
    sensor: str
    payload: bytes
    quality: U32 = 0
    until_ms: U63 = 0


INDEXES_OF = {"by_quality": ("tenant", "quality")}
DECLARED_AS: dict[str, Any] = {"indexes": INDEXES_OF, "expires": "until_ms"}
SENSORS = [f"boiler/{number}" for number in range(60)]
QUIET = [f"boiler/quiet-{number}" for number in range(20)]
"""They are written once. A mover learns of the others from their writes, also where it does not copy what is there."""
ALL = len(SENSORS) + len(QUIET)
SMALL = StorageConfig(engine="memory", log_retained_bytes=500)
CUT = RaftConfig(election_timeout_ms=300, heartbeat_ms=50, sleep_after_ms=500, log_cache_bytes=1)
Rounds = Callable[[], int]
PAGE = 3


def a_round(number: int) -> list[TablePutItem[Reading]]:
    """Every sensor, on the condition that it was written as often as there were rounds. The quiet ones, once."""
    sensors = SENSORS if number else [*SENSORS, *QUIET]
    return [TablePutItem(Reading("acme", sensor, b"%d" % number, number), number) for sensor in sensors]


async def readings(client: Client, kind: str) -> Records[Reading]:
    table = await client.tables.declare("reading", Reading, kind=kind, key=("tenant", "sensor"), **DECLARED_AS)
    return client.table(table)


async def delete_first(client: Client, kind: str, version: int) -> None:
    records = await readings(client, kind)
    await records.delete("acme", SENSORS[0], expected_version=version)
    assert await records.get("acme", SENSORS[0]) is None


async def delete_quiet(client: Client, kind: str) -> None:
    """What was deleted and written anew since it was listed has the same version, and stays."""
    records, told = await readings(client, kind), list[int]()
    listed = [found async for found in records.list("acme", prefix="boiler/q")]
    await records.delete("acme", QUIET[0])
    assert await records.put(anew := Reading("acme", QUIET[0], b"anew")) == listed[0].version == 1
    assert await records._delete_listed(listed, None) == len(QUIET) - 1
    assert [found.record async for found in records.list("acme", prefix="boiler/q")] == [anew]
    assert await records.count("acme", on_progress=told.append) == len(SENSORS)
    assert told == sorted(told)
    assert len(told) > len(SENSORS) // (2 * PAGE)
    assert await records.count("acme", SENSORS[3]) == await records.delete_prefix("acme", SENSORS[3]) == 1
    assert await records.delete_prefix("acme", page_size=PAGE, on_progress=told.append) == len(SENSORS) - 1
    assert told[-1] == len(SENSORS) - 1
    assert await records.count() == await records.delete_prefix() == 0


async def count(client: Client, kind: str, state: dict[str, Any]) -> None:
    """Again and again, as long as somebody writes; also by the index that is added."""
    records = await readings(client, kind)
    while not state["stop"]:
        if state["added"]:
            try:
                assert len([one async for one in state["added"].list_by("by_sensor", deadline_s=1)]) == ALL
                state["built"] += 1
            except IndexBuildingError:
                state["building"] += 1
        assert set(await asyncio.gather(*(records.count("acme") for _ in range(4)))) == {ALL}
        state["counted"] += 1


async def put_round(client: Client, kind: str, number: int) -> None:
    (await (await readings(client, kind)).put_many(a_round(number))).raise_for_error()


async def check(client: Client, kind: str, rounds: int) -> None:
    """Everything is there as it was written last, however it is asked for."""
    records = await readings(client, kind)
    expected = [(sensor, b"%d" % (rounds - 1), rounds) for sensor in SENSORS]
    expected += [(sensor, b"0", 1) for sensor in QUIET]
    found = await records.get_many([("acme", sensor) for sensor, _, _ in expected])
    found.raise_for_error()
    assert [(r.record.sensor, r.record.payload, r.version) for r in found if r is not None] == expected
    listed = [r async for r in records.list("acme", page_size=7)]
    assert [(r.record.sensor, r.record.payload, r.version) for r in listed] == sorted(expected)
    assert listed == [r async for r in records.list(prefix="ac")]
    assert [r.record.sensor async for r in records.list("acme", prefix="boiler/5")] == sorted(
        sensor for sensor, _, _ in expected if sensor.startswith("boiler/5")
    )
    assert [r.record.sensor async for r in records.list("acme", SENSORS[3])] == [SENSORS[3]]
    assert [r async for r in records.list("nobody")] == []
    assert await records.count() == await records.count("acme", prefix="boiler") == len(expected)
    assert await records.count("acme", prefix="boiler/5") == 11
    qualities = sorted((int(payload), sensor) for sensor, payload, _ in expected)
    listed = [r async for r in records.list_by("by_quality", "acme", page_size=7)]
    assert [(r.record.quality, r.record.sensor) for r in listed] == qualities
    newest = [r.record.sensor async for r in records.list_by("by_quality", "acme", rounds - 1, prefix="boiler/5")]
    assert newest == [
        sensor for quality, sensor in qualities if quality == rounds - 1 and sensor.startswith("boiler/5")
    ]


def moved(scene: Scene, kind: str) -> bool:
    """Whether half of the slots are with the new group."""
    return not scene.map.moves and set(unpack_slots(scene.map.slots[kind])) == {0, 1}


def everything(scene: Scene, kind: str) -> None:
    """Put, list, move slots under writes, install a snapshot, kill, read."""
    scene.ask(scene.one, lambda client: put_round(client, kind, 0))
    scene.ask(scene.one, lambda client: check(client, kind, 1))

    state: dict[str, Any] = {"rounds": 1, "stop": False, "counted": 0, "added": None, "built": 0, "building": 0}

    async def add(client: Client) -> None:
        added = {**DECLARED_AS, "indexes": {**INDEXES_OF, "by_sensor": ("sensor",)}}
        table = await client.tables.declare("reading", Reading, kind=kind, key=("tenant", "sensor"), **added)
        state["added"] = client.table(table)

    async def write(client: Client) -> None:
        while not state["stop"]:
            await put_round(client, kind, state["rounds"])
            state["rounds"] += 1
            await asyncio.sleep(0.005)

    writer = scene.begin(scene.two, write)
    counter = scene.begin(scene.one, lambda client: count(client, kind, state))
    scene.ask(scene.one, lambda client: client.cluster.add_group(kind))
    scene.ask(scene.one, add)
    for _ in range(20):
        scene.run(0.3)
        try:
            scene.ask(scene.one, lambda client: client.cluster.rebalance())
        except ConflictError:  # another change was quicker
            continue
        break

    def until(condition: Callable[[], bool], wait_s: float) -> None:
        assert scene.run_until(lambda: writer.done() or counter.done() or condition(), wait_s)
        assert [one for one in (writer, counter) if one.done()] == []  # who finds something wrong is done

    until(lambda: moved(scene, kind), 30.0)

    leaders = {scene.lead(GroupId(kind, ordinal)).name for ordinal in (0, 1)}
    late = next(name for name in scene.nodes if name not in leaders)
    scene.isolate(late)
    before = state["rounds"]
    until(lambda: state["rounds"] > before + 5, 30.0)
    scene.run(1.5)  # until its connections are given up, and what was sent on them with them
    scene.network.heal()
    until(lambda: state["rounds"] > before + 10, 30.0)
    until(lambda: state["built"] > 1, 60.0)
    state["stop"] = True
    assert scene.run_until(lambda: writer.done() and counter.done(), 30.0)
    writer.result()
    counter.result()
    assert state["counted"]
    assert state["building"]
    scene.require_settled(30.0)
    assert scene.snapshots, "no snapshot was needed"

    for group in (GroupId(kind, 0), GroupId(kind, 1)):
        scene.transfer(late, group)
    next(sim for sim in scene.nodes.values() if sim.name != late).crash()
    scene.ask(scene.two, lambda client: check(client, kind, state["rounds"]))
    scene.ask(scene.two, lambda client: delete_first(client, kind, state["rounds"]))
    scene.ask(scene.two, lambda client: delete_quiet(client, kind))


@pytest.fixture(autouse=True)
def small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a count takes many of them."""
    monkeypatch.setattr("metad_client.requests.listing.LIST_LIMIT_MAX", PAGE)


@pytest.mark.parametrize("kind", ["data", "metadata"])
def test_nothing_is_lost_on_the_way(kind: str) -> None:
    with Scene(storage=SMALL, raft=CUT) as scene:
        everything(scene, kind)


@pytest.mark.parametrize("table", [DECLARED, INDEXES], ids=lambda table: table.name)
def test_a_mover_that_does_not_know_its_row_is_found_out(monkeypatch: pytest.MonkeyPatch, table: Table[Any]) -> None:
    """Of a row that no mover carries, half is lost with the first rebalance. This is the bug, planted."""
    (byte,) = table.rows.values()
    monkeypatch.setattr(migration, "moving_rows", lambda kind: [each for each in moving_rows(kind) if each != byte])
    with Scene(storage=SMALL, raft=CUT) as scene, pytest.raises((AssertionError, ConflictError)):
        everything(scene, "data")


@pytest.mark.parametrize("kind", ["data", "metadata"])
def test_records_end_in_the_group_that_their_slots_have_moved_to(kind: str) -> None:
    told: dict[str, ChangeKind] = {}

    async def put(client: Client) -> None:
        items = [TablePutItem(Reading("acme", sensor, b"", 0, until_ms)) for sensor in QUIET]
        items += [TablePutItem(Reading("acme", sensor, b"")) for sensor in SENSORS]
        (await (await readings(client, kind)).put_many(items)).raise_for_error()

    async def follow(client: Client) -> None:
        table = await client.tables.open("reading", Reading)
        async for batch in client.watch(table):
            told.update({event.key.sensor: event.kind for event in batch.events})

    async def left(client: Client) -> int:
        records = await readings(client, kind)
        listed = [found.record.sensor async for found in records.list("acme")]
        assert listed == [found.record.sensor async for found in records.list_by("by_quality", "acme")]
        return await records.count()

    with Scene(expiry=ExpiryConfig(amnesty_ms=500), **{kind: 2}) as scene:
        clock = next(iter(scene.nodes.values())).environment
        until_ms = clock.wall_ms() + 15_000
        scene.ask(scene.one, put)
        scene.begin(scene.two, follow)
        scene.move(0, 1, kind=kind)
        scene.require_settled(20.0)
        assert clock.wall_ms() < until_ms
        assert scene.ask(scene.one, left) == len(SENSORS) + len(QUIET)
        assert scene.run_until(lambda: [*told.values()].count(ChangeKind.EXPIRED) == len(QUIET), 60.0)
        assert clock.wall_ms() >= until_ms
        assert {sensor for sensor, told_as in told.items() if told_as == ChangeKind.EXPIRED} == {*QUIET}
        assert scene.ask(scene.one, left) == len(SENSORS)
