"""A table that a program declares, on real nodes: everything that the built-in ones do."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from e2e_nodes import PAUSE_S, Nodes
from msgspec import Meta

from metad_client import (
    U32,
    Client,
    Compare,
    ConflictError,
    Delete,
    FencedError,
    InvalidItemError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    Put,
    Record,
    TablePutItem,
    Transaction,
    Watch,
    blocking,
    connect,
)
from metad_client.cli.command_line import main as metadctl
from metad_wire.cluster import unpack_slots
from metad_wire.declaration import TABLE_KINDS
from metad_wire.messages import StatusReply
from metad_wire.tables.kv import KV
from metad_wire.tables.table import PlainTable
from waiting import until, wait_until

CONFIG = """
[groups]
data = 1
offset = 1
[raft]
log_cache_bytes = 100000
[storage]
log_retained_bytes = 100000
block_cache_bytes = 8388608
memtable_bytes = 33554432
owner_cache_bytes = 1000000
"""


class Reading(Record, frozen=True):
    """The last reading of a sensor."""

    tenant: str
    sensor: str
    payload: bytes
    quality: U32 = 0


SENSORS = [f"boiler/{number}" for number in range(60)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), config=CONFIG) as nodes:
        yield nodes


@pytest.fixture
def nodes(shared: Nodes) -> Iterator[Nodes]:
    """Whatever a test declares is dropped behind it."""
    yield shared
    for table in ctl(shared.where, "tables")["tables"]:
        ctl(shared.where, "tables", "drop", table.get("table") or table["name"], "--yes")


def ctl(url: str, *arguments: str, status: int = 0) -> Any:
    """What ``metadctl`` prints as JSON; its complaint where it is to fail."""
    out, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaint):
        assert metadctl(["--endpoint", url, *arguments, "--json"]) == status
    return json.loads(out.getvalue()) if status == 0 else complaint.getvalue()


async def log_of(client: Client, group: str) -> dict[str, tuple[int, int]]:
    """Node -> where a group's log begins and ends there."""
    statuses = [s for s in (await client.cluster.statuses(deadline_s=2)).values() if isinstance(s, StatusReply)]
    return {s.node_id: (g.first, g.last) for s in statuses for g in s.groups if g.name == group}


async def declared(client: Client, kind: str = "data") -> PlainTable[Reading]:
    indexes = {"by_quality": ("tenant", "quality")}
    return await client.tables.declare("reading", Reading, kind=kind, key=("tenant", "sensor"), indexes=indexes)


async def check(client: Client, kind: str, rounds: int) -> None:
    records = client.table(await declared(client, kind))
    expected = [(sensor, b"%d" % (rounds - 1), rounds) for sensor in SENSORS]
    found = await records.get_many([("acme", sensor) for sensor in SENSORS])
    found.raise_for_error()
    assert [(r.record.sensor, r.record.payload, r.version) for r in found if r is not None] == expected
    listed = [r async for r in records.list("acme")]
    assert [(r.record.sensor, r.record.payload, r.version) for r in listed] == sorted(expected)
    assert [r async for r in records.list_by("by_quality", "acme", rounds - 1, page_size=7)] == listed
    assert len([r async for r in records.list_by("by_quality", page_size=7)]) == len(SENSORS)


async def follow(watch: Watch, told: dict[str, list[int]]) -> None:
    async for batch in watch:
        for event in batch.events:
            told.setdefault(event.record.record.sensor, []).append(event.record.version)


@pytest.mark.parametrize("kind", ["data", "metadata"])
async def test_nothing_is_lost_on_the_way(nodes: Nodes, kind: str) -> None:
    url, added = nodes.where, f"{kind}-1"
    stopping, rounds = asyncio.Event(), 0

    async def write(client: Client) -> None:
        nonlocal rounds
        while not stopping.is_set():
            items = [TablePutItem(Reading("acme", sensor, b"%d" % rounds, rounds), rounds) for sensor in SENSORS]
            (await client.table(readings).put_many(items)).raise_for_error()
            rounds += 1
            await asyncio.sleep(PAUSE_S)

    async with connect(f"metad://{url}") as client:
        readings = await declared(client, kind)
        image = await client.image(readings, tenant="acme", prefix="boiler/").caught_up()
        told: dict[str, list[int]] = {}
        watching = asyncio.create_task(follow(await client.watch(readings).opened(), told))
        writer = asyncio.create_task(write(client))

        # Slots move under writes.
        await client.cluster.add_group(kind)

        async def ordered() -> bool:
            try:
                await client.cluster.rebalance()
            except ConflictError:  # another change was quicker
                return False
            return True

        async def moved() -> bool:
            known = (await client.cluster.map()).map
            assert known is not None
            return not known.moves and set(unpack_slots(known.slots[kind])) == {0, 1}

        await until(ordered, "the order to rebalance")
        await until(moved, "the slots' move")

        # A node that was away gets a snapshot.
        away = await log_of(client, added)
        nodes.kill("n3")

        async def cut() -> bool:
            found = await log_of(client, added)
            return all(found[name][0] > away["n3"][1] + 1 for name in ("n1", "n2") if name in found) and len(found) == 2

        await until(cut, "logs that begin behind what n3 has")
        again = nodes.start("n3")
        await asyncio.to_thread(again.ready)

        async def installed() -> bool:
            return added in {event["group"] for event in again.events("snapshot_installed")}

        await until(installed, "the snapshot")
        stopping.set()
        await writer
        assert rounds > 20

        # It leads, another is killed, and everything is read.
        for group in (f"{kind}-0", added):

            async def led(group: str = group) -> bool:
                if (await client.cluster.map()).leaders.get(group) == "n3":
                    return True
                await client.cluster.transfer(group, "n3")
                return False

            await until(led, f"n3 leading {group}")
        nodes.kill("n1")
        await check(client, kind, rounds)
        async with connect(f"metad://{again.endpoint}") as other:
            await check(other, kind, rounds)

        async def shown() -> bool:
            newest = dict.fromkeys(SENSORS, (b"%d" % (rounds - 1), rounds))
            shows = {key.sensor: (found.record.payload, found.version) for key, found in image[readings].items()}
            return shows == newest and {sensor: versions[-1] for sensor, versions in told.items()} == dict.fromkeys(
                SENSORS, rounds
            )

        await until(shown, "what the watch and the image show")
        assert all(versions == sorted(versions) for versions in told.values())
        watching.cancel()
    await asyncio.to_thread(nodes.restart, "n1")


@pytest.mark.parametrize("kind", TABLE_KINDS)
async def test_a_life_that_is_over_neither_declares_nor_writes(nodes: Nodes, kind: str) -> None:
    url = f"metad://{nodes.where}"
    item = TablePutItem(Reading("acme", "a", b"1"))

    async def declared(client: Client) -> PlainTable[Reading]:
        return await client.tables.declare("reading", Reading, kind=kind, key=("tenant", "sensor"))

    async with connect(url) as first, connect(url) as second:
        await first.brokers.register("b1", lease_s=60)
        records = first.table(await declared(first))
        assert (await records.put_many([item])).versions == [1]
        await second.brokers.register("b1", lease_s=60)
        with pytest.raises(FencedError):
            await records.put_many([item])
        with pytest.raises(FencedError):
            await declared(first)
        assert (await second.table(await declared(second)).put_many([item])).versions == [2]


async def test_bad_records_fail_alone(nodes: Nodes) -> None:
    wrong: Any = None
    async with connect(f"metad://{nodes.endpoints['n1']}") as client:
        records = client.table(await declared(client))
        items = [TablePutItem(Reading("acme", f"t{number}", b"")) for number in range(6)]
        items[1] = TablePutItem(Reading("acme", "x" * 5_000, b""))
        items[3] = TablePutItem(Reading("acme", wrong, b""))
        items[4] = wrong
        put = await records.put_many(items)
        assert put.versions == [1, 0, 1, 0, 0, 1]
        assert str(put.errors[3]) == "record.sensor: expected str, got None (item 3)"
        keys: list[Any] = [("acme", "t0"), ("acme",), "ab", None, ("acme", 5), ("acme", "t2"), ("acme", "\ud800")]
        found = await records.get_many(keys)
        assert [record is not None for record in found] == [True, False, False, False, False, True, False]
        assert sorted(found.errors) == [1, 2, 3, 4, 6]
        assert sorted((await records.delete_many(keys)).errors) == [1, 2, 3, 4, 6]
        for call in (
            records.get("acme", wrong),
            records.delete("acme"),
            records.put(wrong),
            records.get("a", "x" * 5_000),
        ):
            with pytest.raises(InvalidItemError):
                await call
        for listing in (records.list(wrong), records.list("acme", prefix=wrong), records.list("acme", page_size=0)):
            with pytest.raises(MetadError):
                await anext(listing)
        assert [record.record.sensor async for record in records.list("acme")] == ["t5"]


def test_every_face_has_its_verbs(nodes: Nodes) -> None:
    """The blocking client's, and metadctl's."""
    url = nodes.endpoints["n1"]
    with blocking.connect(f"metad://{url}") as m:
        records = m.table(m.tables.declare("reading", Reading, kind="data", key=("tenant", "sensor")))
        assert records.put(Reading("acme", "a", b"\x00", 2)) == 1
        assert [found.record.sensor for found in records.list("acme")] == ["a"]
        with pytest.raises(ConflictError):
            records.put(Reading("acme", "a", b""), expected_version=0)
        assert records.get("acme", "nothing") is None
        assert (records.count(), records.count("acme", prefix="b")) == (1, 0)
        table = m.tables.open("reading", Reading)
        both = Transaction(
            compares=[Compare(table, ("acme", "a"), field="quality", value=2)],
            then=[Delete(table, ("acme", "a")), Put(table, Reading("acme", "a", b"\x01"))],
            reads=[(table, ("acme", "a"))],
        )
        done, again = m.tables.transact(both), m.tables.transact(both)
        assert (done.succeeded, done.versions, again.succeeded, again.versions) == (True, [0, 1], False, [])
        assert done.found == again.found == [records.get("acme", "a")]
        apart = Transaction(then=[Put(table, Reading("acme", "a", b"")), Put(table, Reading("acme", "c", b""))])
        result = m.tables.transact_many([apart, both])
        assert ([*result.errors], [one is None for one in result.results]) == ([0], [True, False])
        assert records.get("acme", "c") is None
        with pytest.raises(InvalidRequestError, match="kv> is none that was declared"):
            m.table(KV)  # type: ignore[arg-type]
    records_of = ("records", "put", "reading", "tenant=acme", "sensor=b")
    assert ctl(url, *records_of, "payload=21.5", "quality=1") == {"version": 1}
    assert ctl(url, *records_of, "payload=22", "--expected-version", "1") == {"version": 2}
    found = ctl(url, "records", "get", "reading", "acme", "b")
    assert {key: found[key] for key in ("tenant", "sensor", "payload", "quality", "version")} == {
        "tenant": "acme",
        "sensor": "b",
        "payload": "22",
        "quality": 0,
        "version": 2,
    }
    assert [each["sensor"] for each in ctl(url, "records", "list", "reading", "acme")] == ["a", "b"]
    assert [each["sensor"] for each in ctl(url, "records", "list", "reading", "acme", "--prefix", "b")] == ["b"]
    assert "conflict" in ctl(url, "records", "delete", "reading", "acme", "b", "--expected-version", "1", status=1)
    assert ctl(url, "records", "delete", "reading", "acme", "b") == {"deleted": True}
    assert "no reading acme/b" in ctl(url, "records", "get", "reading", "acme", "b", status=1)
    assert "no reading acme/b" in ctl(url, "records", "delete", "reading", "acme", "b", status=1)
    assert "quality=-1: Expected `int` >= 0" in ctl(url, *records_of, "payload=", "quality=-1", status=1)
    for sensor in ("a1", "a2", "c"):
        assert ctl(url, "records", "put", "reading", "tenant=acme", f"sensor={sensor}", "payload=") == {"version": 1}
    assert ctl(url, "records", "count", "reading") == {"records": 4}
    assert ctl(url, "records", "count", "reading", "acme", "--prefix", "a") == {"records": 3}
    prefixed = ("records", "delete", "reading", "acme", "--prefix", "a")
    assert "3 records of reading would be deleted: add --yes" in ctl(url, *prefixed, status=1)
    assert "it does not go with --prefix" in ctl(url, *prefixed, "--yes", "--expected-version", "1", status=1)
    assert ctl(url, *prefixed, "--yes") == {"deleted": 3}
    with blocking.connect(f"metad://{url}") as m:
        records = m.table(m.tables.open("reading", Reading))
        assert (records.delete_prefix("acme", page_size=1), records.count()) == (1, 0)
    assert "it has 2 fields" in ctl(url, "records", "list", "reading", "a", "b", "c", status=1)
    assert "sensor, payload is missing" in ctl(url, "records", "put", "reading", "tenant=acme", status=1)
    assert "a field of reading" in ctl(url, "records", "put", "reading", "tenant=acme", "nothing=1", status=1)


def test_a_table_goes_from_one_program_to_another(nodes: Nodes, tmp_path: Path) -> None:
    """As JSON, without the Struct; it grows, and is dropped."""
    url = nodes.where
    with blocking.connect(f"metad://{url}") as m:
        m.tables.declare("reading", Reading, kind="data", key=("tenant", "sensor"))
    found = ctl(url, "tables", "get", "reading")
    assert [each["table"] if "table" in each else each["name"] for each in ctl(url, "tables")["tables"]] == ["reading"]
    found["indexes"] = {"by_quality": ["tenant", "quality"]}
    found["fields"].append({"name": "note", "type": "str", "default": "none", "about": "Of a person."})
    file = tmp_path / "reading.json"
    file.write_text(json.dumps(found))
    assert ctl(url, "tables", "declare", str(file))["number"] == found["number"]
    assert ctl(url, "records", "put", "reading", "tenant=t", "sensor=s", "payload=1", "note=late") == {"version": 1}
    said = ctl(url, "tables", "get", "reading")
    assert (said["first_indexes"], said["building"] in ([], ["by_quality"])) == (0, True)
    by_quality = ("records", "list", "reading", "t", "0", "--index", "by_quality")
    assert [one["note"] for one in ctl(url, *by_quality)] == ["late"]
    assert ctl(url, "tables", "get", "reading")["building"] == []
    with blocking.connect(f"metad://{url}") as m:  # a program that does not know the note leaves it
        old = m.tables.open("reading", Reading)
        assert m.table(old).put(Reading("t", "s", b"2", 7)) == 2
        both = m.table(m.tables.open("reading")).get("t", "s")
        assert both is not None
        assert (both.record.payload, both.record.quality, both.record.note) == (b"2", 7, "late")
        with pytest.raises(ConflictError, match=r"field 2 is sensor"):
            m.tables.declare("reading", Other, kind="data", key=("tenant", "sensor"))
        assert "1 records of reading would be deleted with it" in ctl(url, "tables", "drop", "reading", status=1)
        assert ctl(url, "tables", "drop", "reading", "--yes") == {"dropped": True}

        def is_refused() -> bool:
            try:
                m.table(old).get("t", "s")
            except NotFoundError as error:
                return "dropped" in str(error)
            return False

        wait_until(is_refused, "the drop, where the group is led")  # that node follows metadata-0
        again = m.tables.declare("reading", Reading, kind="data", key=("tenant", "sensor"))
        assert again.number > old.number
        assert m.table(again).get("t", "s") is None
    assert "no table nothing" in ctl(url, "tables", "get", "nothing", status=1)
    file.write_text('{"name": "x"}')
    assert "is missing" in ctl(url, "tables", "declare", str(file), status=1)


class Other(Record, frozen=True):
    """Not the same."""

    tenant: str
    sensor: Annotated[str, Meta(max_length=9)]
    payload: bytes = b""
