"""A table of a program's own on a real node: what the SDK and metadctl say of it, of its records, and of mistakes; and
the examples of metadctl's help."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from e2e_metadctl import metadctl, printed
from e2e_nodes import rebalanced

from metad import embedded
from metad_client import (
    U32,
    U63,
    ConflictError,
    InvalidItemError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    Put,
    Record,
    SessionTakeoverItem,
    TablePutItem,
    Transaction,
    blocking,
    connect,
)
from metad_client.cli.command_line import EPILOG
from metad_wire.families import FAMILIES
from metad_wire.families.core import TOPICS, Topic
from metad_wire.tables.table import PlainTable
from waiting import until


class Queue(Record, frozen=True):
    """Of a broker."""

    tenant: str
    queue: str
    owner: str | None = None
    partitions: U32 = 1
    durable: bool = True
    until_ms: U63 = 0


class Lease(Record, frozen=True):
    """Of one shard."""

    tenant: str
    shard: U32


INDEXES: Final = {"by_owner": ("tenant", "owner")}


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.Server]:
    with embedded.serve_in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def m(server: embedded.Server) -> Iterator[blocking.BlockingClient]:
    with blocking.connect(server.url) as client:
        yield client


@pytest.fixture
def brokers() -> Iterator[ExitStack]:
    """What holds their clients."""
    with ExitStack() as stack:
        yield stack


def declared(m: blocking.BlockingClient, name: str) -> PlainTable[Queue]:
    return m.tables.declare(name, Queue, key=("tenant", "queue"), indexes=INDEXES, expires="until_ms")


def test_what_an_index_lists_is_counted_and_deleted(m: blocking.BlockingClient) -> None:
    records = m.table(declared(m, "counted"))
    past = int(time.time() * 1000) - 60_000
    owners = ["ann", "bob", "ann", "anna", None, "ann"]
    records.put_many([Queue("acme", f"q{at}", owner) for at, owner in enumerate(owners)]).raise_for_error()
    records.put_many([Queue("acme", f"old{at}", "ann", until_ms=past) for at in range(3)]).raise_for_error()
    records.put(Queue("other", "q", "ann"))
    for fields, prefix in (((), ""), (("acme",), ""), (("acme", "ann"), ""), (("acme",), "ann"), (("acme", "nn"), "")):
        listed = list(records.list_by("by_owner", *fields, prefix=prefix))
        assert records.count(*fields, prefix=prefix, index="by_owner") == len(listed), (fields, prefix)
    assert records.count("acme", "ann", index="by_owner") == 3
    assert records.delete_prefix("acme", "ann", index="by_owner", page_size=2) == 3
    assert [one.record.queue for one in records.list()] == ["q1", "q3", "q4", "q"]
    for call in (records.count, records.delete_prefix):
        with pytest.raises(InvalidRequestError, match="no index 'by_size'; its indexes: by_owner"):
            call("acme", index="by_size")


class Part(Record, frozen=True):
    """Of a table in the code, as there is none of a program: it has an index by the elements of a list."""

    tenant: str
    name: str
    number: U32
    replicas: list[str] = []  # noqa: RUF012 - msgspec copies it


PARTS: Final[PlainTable[Part]] = PlainTable(
    "part",
    number=1_023,
    kind="data",
    record=Part,
    key=("tenant", "name", "number"),
    routing=("tenant", "name"),
    indexes={"by_replica": ("replicas",)},
)


async def test_a_record_is_listed_by_each_element_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, PARTS.name, PARTS)
    brokers = [f"b{number}" for number in range(5)]
    wanted = [
        Part("acme", f"t{at:02}", at % 3, [brokers[at % 5], brokers[(at + 1) % 5], brokers[at % 5]]) for at in range(60)
    ]
    of_b1 = [part for part in wanted if "b1" in part.replicas]
    async with embedded.serve(groups={"data": 2}) as server, connect(server.url) as client:
        parts = client.table(PARTS)
        (await parts.put_many(wanted[::-1])).raise_for_error()
        assert [one.record async for one in parts.list_by("by_replica", "b1", page_size=7)] == of_b1
        assert [one.record async for one in parts.list_by("by_replica", "b1", "acme", "t01")] == wanted[1:2]
        assert [await parts.count(broker, index="by_replica") for broker in (*brokers, "b", "")] == [24] * 5 + [0, 0]
        for call in (parts.count, parts.delete_prefix):
            with pytest.raises(InvalidRequestError, match="names an element of replicas"):
                await call(index="by_replica")

        # Slots move between two pages: the listing goes on behind the last record, with the same element.
        listing = parts.list_by("by_replica", "b1", page_size=4)
        listed = [(await anext(listing)).record for _ in range(3)]
        await client.cluster.add_group("data")
        await until(lambda: rebalanced(client, 3), "the slots' move")
        assert [*listed, *[one.record async for one in listing]] == of_b1
        assert await parts.delete_prefix("b1", index="by_replica", page_size=5) == len(of_b1)
        left = [part for part in wanted if part not in of_b1]
        assert [one.record async for one in parts.list()] == left
        of_b2 = [part for part in left if "b2" in part.replicas]
        assert [one.record async for one in parts.list_by("by_replica", "b2")] == of_b2
        words = ("records", "list", "part", "--index", "by_replica", "b2")
        shown = await asyncio.to_thread(printed, server, *words)
        assert [row["name"] for row in shown] == [part.name for part in of_b2]


def test_records_are_put_as_they_are(m: blocking.BlockingClient) -> None:
    records = m.table(declared(m, "plainly"))
    items: Any = [Queue("acme", "a"), TablePutItem(Queue("acme", "b"), 0), Lease("acme", 1), ("acme", "c"), None]
    put = records.put_many(items)
    assert put.versions == [1, 1, 0, 0, 0]
    assert str(put.errors[2]) == "record: expected Queue, got Lease (item 2)"
    assert sorted(put.errors) == [2, 3, 4]
    like: Any = msgspec.defstruct("Like", [("tenant", str), ("queue", str)], bases=(Record,), frozen=True)("acme", "d")
    with pytest.raises(InvalidItemError, match="record: expected Queue, got Like"):
        records.put(like)
    assert records.count() == 2


def test_options_of_metadctl_stand_anywhere(server: embedded.Server, m: blocking.BlockingClient) -> None:
    m.table(declared(m, "mixed")).put_many([Queue("acme", f"q{at}", "ann") for at in range(3)]).raise_for_error()
    rows = printed(server, "records", "list", "mixed", "acme", "ann", "--index", "by_owner")
    assert [row["queue"] for row in rows] == ["q0", "q1", "q2"]
    words = ["records", "list", "mixed"]
    for mixed in (
        [*words, "--index", "by_owner", "acme", "ann"],
        [*words, "acme", "--index", "by_owner", "ann"],
        ["records", "list", "--index", "by_owner", "mixed", "acme", "ann"],
        [*words, "--index", "by_owner", "--json", "--", "acme", "ann"],
    ):
        status, out, err = metadctl(server, "--json", *mixed)
        assert (status, json.loads(out), err) == (0, rows, ""), mixed
    assert printed(server, "records", "put", "mixed", "tenant=acme", "--expected-version", "0", "queue=z") == {
        "version": 1
    }
    assert printed(server, "records", "count", "mixed", "--index", "by_owner", "acme", "ann") == {"records": 3}
    assert metadctl(server, "records", "count", "mixed", "acme", "ann", "q0", "x", "--index", "by_owner")[0] == 1
    delete = ["records", "delete", "mixed", "--index", "by_owner", "acme", "ann"]
    assert metadctl(server, *delete) == (1, "", "metadctl: 3 records of mixed would be deleted: add --yes\n")
    assert printed(server, *delete, "--yes") == {"deleted": 3}
    assert metadctl("", "topics", "resize", "acme", "orders", "--nonsense", "4").returncode == 2


def test_a_table_is_dropped_by_who_says_so_twice(server: embedded.Server, m: blocking.BlockingClient) -> None:
    m.table(declared(m, "doomed")).put_many([Queue("acme", f"q{at}") for at in range(3)]).raise_for_error()
    asked = metadctl(server, "tables", "drop", "doomed")
    assert asked == (1, "", "metadctl: 3 records of doomed would be deleted with it: add --yes\n")
    assert len(list(m.table(m.tables.open("doomed")).list())) == 3
    assert printed(server, "tables", "drop", "doomed", "--yes") == {"dropped": True}
    assert metadctl(server, "tables", "drop", "doomed") == (1, "", "metadctl: no table doomed\n")
    for verb in ("get", "drop"):
        assert "metad has it itself, metadctl topics" in metadctl(server, "tables", verb, "topic")[2]


def test_values_are_read_as_they_are_shown(server: embedded.Server, m: blocking.BlockingClient) -> None:
    records = m.table(declared(m, "shown"))
    for at, (said, durable) in enumerate({"yes": True, "no": False, "true": True, "false": False}.items()):
        key = ("tenant=acme", f"queue={at}")
        assert printed(server, "records", "put", "shown", *key, f"durable={said}", f"owner=o{at}") == {"version": 1}
        found = records.get("acme", str(at))
        assert found is not None
        assert (found.record.durable, found.record.owner) == (durable, f"o{at}")
    put = ("records", "put", "shown", "tenant=acme", "queue=x")
    for text, owner in (("null", None), ('"null"', "null"), ("7", "7"), ("{", "{")):
        printed(server, *put, f"owner={text}")
        found = records.get("acme", "x")
        assert found is not None
        assert found.record.owner == owner
    for wrong, wanted in (("durable=maybe", "true or false"), ("partitions=x", "a number")):
        assert metadctl(server, *put, wrong) == (1, "", f"metadctl: {wrong}: expected {wanted}\n")
    until = int(time.time() * 1000) + 3_600_000
    records.put(Queue("acme", "kept", until_ms=until))
    shown = metadctl(server, "records", "get", "shown", "acme", "kept")[1]
    assert f"until_ms         {until}" in shown


def test_what_cannot_be_a_table_is_told_by_name(m: blocking.BlockingClient) -> None:
    class Other:
        """No Struct."""

    map_like: Any = msgspec.defstruct("Mapped", [("tenant", str)])
    declare: Any = m.tables.declare
    key = ("tenant", "queue")
    names = r'expected names of fields, as \("tenant", "queue"\), got'
    for given, why in (
        ((Queue, {"key": key, "routing": 1}), f"routing: {names} 1"),
        ((Queue, {"key": "tenant"}), f"key: {names} 'tenant'"),
        ((Queue, {"key": key, "indexes": {"w": "tenant"}}), f"indexes: w: {names} 'tenant'"),
        ((Queue, {"key": key, "indexes": 3}), "indexes: expected the fields of each by its name"),
        ((Lease, {"key": ("tenant", "shard")}), "shard: a number does not route, .* give routing="),
        ((Other, {"key": key}), r"expected a subclass of metad_client\.Record, got"),
        ((map_like, {"key": ("tenant",)}), r"Mapped: make it a subclass of metad_client\.Record"),
    ):
        with pytest.raises(InvalidRequestError, match=why):
            declare("told", given[0], **given[1])
    for name in ("_x", "1abc"):
        with pytest.raises(InvalidRequestError, match=f"cannot be called '{name}': a small letter, and behind it"):
            declare(name, Queue, key=key)
    with pytest.raises(NotFoundError):
        m.tables.open("told")


def test_the_struct_of_another_table_is_a_conflict(m: blocking.BlockingClient) -> None:
    declared(m, "opened")
    with pytest.raises(ConflictError, match="opened: field 2 is queue with name queue, and the declaration says shard"):
        m.tables.open("opened", Lease)
    shorter: Any = msgspec.defstruct("Shorter", [("tenant", str)], bases=(Record,), frozen=True)
    with pytest.raises(ConflictError, match="'queue' stands in the key"):
        m.tables.open("opened", shorter)
    assert m.tables.open("opened", Queue).record is Queue


async def test_mistakes_are_told_by_the_names_of_fields_and_tables(server: embedded.Server) -> None:
    async with connect(server.url) as m:
        table = await m.tables.declare("mistaken", Queue, key=("tenant", "queue"))
        records, short = m.table(table), r"the key of mistaken is tenant, queue: 2 fields, not 1"
        for call in (records.get("acme"), records.delete("acme")):
            with pytest.raises(InvalidItemError, match=short):
                await call
        many: Any = [("acme",), ("acme", "q"), ("acme", "q", "x"), "ab"]
        for result in (await records.get_many(many), await records.delete_many(many)):
            errors = {at: str(error).removeprefix(short[:-1]) for at, error in result.errors.items()}
            assert errors.items() >= {0: "1 (item 0)", 2: "3 (item 2)", 3: "str (item 3)"}.items()
        puts: Any = [Put(table, Queue("acme", "a")), Put(table, Queue("acme", "b"))]
        with pytest.raises(InvalidItemError, match="fields are acme, b, and those of the others acme, a"):
            await m.tables.transact(Transaction(then=puts))
        wrong: Any = Lease("acme", 1)
        with pytest.raises(InvalidItemError, match="a record of mistaken is a Queue, not a Lease"):
            await m.tables.transact(Transaction(then=[Put(table, wrong)]))
        named: Any = "mistaken"
        with pytest.raises(InvalidRequestError, match=r"pass what m\.tables\.open\('mistaken'\) returns"):
            m.watch(named)
        await m.tables.drop("mistaken")
        for call in (records.get("acme", "q"), records.count(), m.image(table).caught_up(), m.watch(table).opened()):
            with pytest.raises(MetadError, match="there is no table mistaken: it was dropped"):
                await call


async def test_records_are_looked_up_by_the_fields_of_their_key(server: embedded.Server) -> None:
    async with connect(server.url) as m:
        table = await m.tables.declare("looked", Queue, key=("tenant", "queue"))
        records, topics = m.table(table), m.table(TOPICS)
        await records.put(Queue("acme", "q", "ann"))
        await topics.put(Topic("looked", "orders"))
        async with await m.image([table, TOPICS], tenant=None).caught_up() as image:
            queues = image[table]
            assert queues["acme", "q"].record == Queue("acme", "q", "ann")
            assert queues.get(("acme", "q")) == queues[next(iter(queues))] == await records.get("acme", "q")
            assert (("acme", "q") in queues, ("acme", "x") in queues, queues.get(("acme", "x"))) == (True, False, None)
            assert image[TOPICS]["looked", "orders"].record.topic == "orders"
            for wrong in (("acme",), ("acme", 3), "acme"):
                with pytest.raises(TypeError, match="a key of looked"):
                    queues[wrong]
        watch = await m.watch([table, TOPICS], keys=[("acme", "w")]).opened()
        for queue in ("v", "w"):
            await records.put(Queue("acme", queue))
        batch = await anext(aiter(watch))
        (event,) = batch.events
        assert (batch.kind, event.record.record, event.record.version) == ("changes", Queue("acme", "w"), 1)
        for wrong_key in (("acme",), ("acme", 3), ("acme", "w", "x")):
            with pytest.raises(InvalidRequestError, match="keys: "):
                m.watch(table, keys=[wrong_key])
        with pytest.raises(InvalidRequestError, match="keys: "):
            m.watch(keys=[("acme", "w")])
        await watch.close()


ELSEWHERE: Final = {"metadq://10.0.0.1:7420", "transfer", "replace", "s3://backups/metad", "merge", "drain"}
"""Of examples that need the machines, or groups, which they name."""
LASTS: Final = {"watch"}
SHOW_NOTHING: Final = {"audit", "certs", "brokers", "wills", "retained", "leases", "sessions"}
"""As there is none, or none that is away, yet."""


def test_the_examples_of_the_help_work_one_after_the_other(
    server: embedded.Server,
    m: blocking.BlockingClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    brokers: ExitStack,
) -> None:
    monkeypatch.chdir(tmp_path)
    field = [{"name": name, "type": "str"} for name in ("tenant", "device")]
    device = {"name": "device", "kind": "metadata", "key": ["tenant", "device"], "fields": field}
    Path("devices.json").write_text(json.dumps(device))
    Path("orders.avsc").write_text('{"type": "record", "name": "Order", "fields": []}')
    Path("secret").write_text("a password\n")
    m.sessions.takeover_many("broker-1", 7, [SessionTakeoverItem("acme", "device-1")]).raise_for_error()
    m.offsets.commit("acme", "billing", "orders", 0, 41)
    m.config.set("tenant", "acme", "retention_ms", "1000")
    for name in ("b1", "b2", "b3"):
        brokers.enter_context(blocking.connect(server.url)).brokers.register(name)
    examples = [line.split(" && ")[0].split() for line in EPILOG.splitlines() if line.startswith("  metadctl ")]
    tried = 0
    for _, *words in [shlex.split(" ".join(example)) for example in examples]:
        if ELSEWHERE & {*words} or words[0] in LASTS:
            continue
        status, out, err = metadctl(server, *words)
        assert status == 0, (words, err)
        assert err == "" or words[0] in ("certs", "events"), (words, err)  # a young node has no earlier events
        assert out not in ("", "nothing found\n") or words[0] in SHOW_NOTHING, words
        tried += 1
    assert tried >= 20
