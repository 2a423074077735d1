"""Records leave a cluster as files, and come into another that serves: all tables, one tenant, again and again, in the
middle of a kill, with records that are there already, and with files that other programs have written.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from e2e_metadctl import metadctl
from e2e_nodes import rebalanced

from metad import embedded
from metad_client import (
    U32,
    Client,
    Inflight,
    KvPutItem,
    OffsetCommitItem,
    Record,
    RetainedPutItem,
    SessionKey,
    SessionProperties,
    SessionTakeoverItem,
    Subscription,
    SubscriptionOptions,
    Will,
    blocking,
    connect,
)
from metad_client.cli.transfer.exporting import LISTED, Export, tables
from metad_client.cli.transfer.kinds import NOT_IMPORTED, kinds
from metad_wire.families.core import TOPICS, Topic
from metad_wire.messages import NEVER_S, SessionDisconnectItem
from metad_wire.tables.access import Grant, Role
from metad_wire.tables.tenants import Quota, is_scoped
from waiting import WAIT_S, until

METADCTL = Path(sys.executable).with_name("metadctl")
SESSIONS = 2_500


class Meter(Record, frozen=True):
    """Of a program."""

    tenant: str
    meter: str
    scale: U32 = 1
    raw: bytes = b""
    marks: list[bytes] = []  # noqa: RUF012 - msgspec copies it
    more: dict[str, bytes] = {}  # noqa: RUF012


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[embedded.Server, embedded.Server]]:
    with (
        embedded.serve_in_thread(groups={"data": 3, "offset": 2}) as one,
        embedded.serve_in_thread(groups={"data": 2}) as other,
    ):
        yield one, other


def ctl(server: embedded.Server, *arguments: object, status: int = 0) -> Any:
    """The document of a command."""
    done, out, err = metadctl(server, *map(str, arguments), "--json")
    assert done == status, err
    return json.loads(out)


def filled(m: blocking.BlockingClient) -> None:
    """Something of everything that an import writes."""
    m.kv.put_many([KvPutItem("acme", f"k{at}", os.urandom(9)) for at in range(40)]).raise_for_error()
    m.kv.put("other", "a", b"text")
    m.leases.grant("acme", 3_600_000, "held", holder="me", attributes=b"\xff")
    m.kv.put("acme", "leased", b"with it", lease="held")
    m.sequences.add("acme", "orders", 1_234)
    items = [RetainedPutItem("acme", f"site/{at}", b"on", 1, b"\xfe") for at in range(30)]
    items.append(RetainedPutItem("acme", "soon/over", b"off", expiry_interval_s=500))
    m.retained.put_many(items).raise_for_error()
    will = Will("gone", b"bye", delay_s=900)
    clients = [f"c{at}" for at in range(SESSIONS)]
    taken = [
        SessionTakeoverItem("acme", each, properties=SessionProperties(3_600, each.encode(), will)) for each in clients
    ]
    for begin in range(0, SESSIONS, 1_000):
        m.sessions.takeover_many("b1", 1, taken[begin : begin + 1_000]).raise_for_error()
    subscribed = [Subscription("acme", each, f"to/{each}", SubscriptionOptions(qos=1)) for each in clients[:1_500]]
    for begin in range(0, 1_500, 500):
        m.subscriptions.add_many("b1", 1, subscribed[begin : begin + 500]).raise_for_error()
    m.inflight.put_many("b1", 1, [Inflight("acme", each, "7", b"\x00") for each in clients[:50]]).raise_for_error()
    left = [SessionDisconnectItem("acme", "c1", 300), SessionDisconnectItem("acme", "c2", NEVER_S, will_discard=True)]
    m.sessions.disconnect_many("b1", 1, left).raise_for_error()
    m.sessions.takeover("b1", 1, "acme", "short", properties=SessionProperties(0, b"ends with its connection"))
    m.sessions.takeover("b1", 1, "acme", "willed", properties=SessionProperties(0, b"", Will("last", b"words")))
    m.sessions.disconnect("b1", 1, "acme", "willed")
    commits = [OffsetCommitItem("acme", "g", "t", at, at * 10, generation=1 + at // 3, metadata="n") for at in range(6)]
    m.offsets.commit_many(commits).raise_for_error()
    m.table(TOPICS).put(Topic("acme", "orders", partitions=4))
    meters = m.tables.declare("meter", Meter, key=("tenant", "meter"))
    m.table(meters).put_many(
        [
            Meter("acme", "m1", 2, b"\xff\x00", [b"\xf0", b"text"], {"a": b"\x80", "b_base64": b"plain"}),
            Meter("other", "m2"),
        ]
    ).raise_for_error()
    m.roles.put_many([Role("auditor", [Grant(["read"], ["kv"])])]).raise_for_error()
    m.quotas.put_many([Quota("tenant/acme", items_per_s=1_000_000)]).raise_for_error()


def test_everything_comes_over_and_nothing_twice(
    servers: tuple[embedded.Server, embedded.Server], tmp_path: Path
) -> None:
    one, other = servers
    with blocking.connect(one.url) as m, blocking.connect(other.url) as n:
        filled(m)
        made = ctl(one, "export", tmp_path / "all")
        assert made["tables"]["session"] == SESSIONS + 1
        assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "all").iterdir())
        done = ctl(other, "import", tmp_path / "all")
        assert done["refused"] == 0, done
        assert done["tables"]["session"]["over"] == 1  # the one that ends with its connection
        # It says the same of itself: what both have is equal line by line, but for what is the cluster's own.
        ctl(other, "export", tmp_path / "again")
        for name in kinds([]):
            assert lines(tmp_path / "again", name) == lines(tmp_path / "all", name), name
        assert n.sequences.get("acme", "orders").value == 1_234  # type: ignore[union-attr]
        assert n.offsets.generation("acme", "g") == 2
        found = n.kv.get("acme", "leased")
        assert found is not None
        assert found.lease == "held"
        away, never, whole = n.sessions.get_many([SessionKey("acme", each) for each in ("c1", "c2", "c3")])
        now_ms = time.time() * 1_000
        assert away is not None
        assert never is not None
        assert whole is not None
        assert not away.connected
        assert 200_000 < away.expires_ms - now_ms < 310_000
        assert away.will_ms
        assert never.expires_ms == never.will_ms == 0
        assert 3_500_000 < whole.expires_ms - now_ms < 3_610_000
        assert 800_000 < whole.will_ms - now_ms < 910_000
        assert [(one.client_id, one.will) for one in n.wills.list("acme")] == [("willed", Will("last", b"words"))]
        assert {one.broker for one in n.sessions.list("acme")} == {one.broker for one in n.brokers.list()}
        # Begun again, it finds what it has written.
        done = ctl(other, "import", tmp_path / "all")
        assert done["refused"] == 0, done
        for name, table in done["tables"].items():
            assert table["written"] == 0 or name in ("declaration", "offset.generation"), (name, table)
        # A client that comes back has all that it had.
        back = n.sessions.takeover("b2", 1, "acme", "c7", restore=True, restore_parts=True)
        assert back.properties is not None
        assert back.properties.payload == b"c7"
        assert [(one.filter, one.options.qos) for one in back.subscriptions or ()] == [("to/c7", 1)]
        assert [(one.name, one.value) for one in back.inflight or ()] == [("7", b"\x00")]


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    """A file, without what the new cluster counts itself."""
    own = {
        "version",
        "create_revision",
        "mod_revision",
        "revision",
        "broker",
        "broker_epoch",
        "disconnected_ms",
        "left_ms",
    }
    own |= {"connected", "expires_ms", "will_ms", "committed_ms", "granted_by", "stolen", "outlives", "id", "due_ms"}
    path = directory / f"{name}.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = [{key: value for key, value in one.items() if key not in own} for one in found]
    if name == "session":
        found = [one for one in found if one["client_id"] != "short"]
        for one in found:
            if one["will"]:
                one["will"]["delay_s"] = 0  # what was left of it
    if name == "offset":
        for one in found:
            one.pop("generation")  # one that was older is the group's
    return sorted(found, key=json.dumps)


def test_what_is_there_stays_unless_it_is_to_be_overwritten(tmp_path: Path) -> None:
    with embedded.serve_in_thread() as server, blocking.connect(server.url) as m:
        m.kv.put_many([KvPutItem("ns", f"k{at}", b"old") for at in range(4)]).raise_for_error()
        m.sessions.takeover("b1", 1, "acme", "c1", properties=SessionProperties(60, b"old"))
        m.offsets.commit("acme", "g", "t", 0, 5)
        m.sequences.add("ns", "s", 9)
        ctl(server, "export", tmp_path / "x")
        m.kv.put_many([KvPutItem("ns", f"k{at}", b"new") for at in range(2)]).raise_for_error()
        m.sessions.update("b1", 1, "acme", "c1", SessionProperties(60, b"new"))
        m.offsets.commit("acme", "g", "t", 0, 6)
        m.sequences.add("ns", "s", 1)
        done = ctl(server, "import", tmp_path / "x", status=1)
        assert done["refused"] == 5
        assert done["tables"]["kv"] == {"lines": 4, "written": 0, "unchanged": 2, "over": 0, "refused": 2}
        refused = [json.loads(line) for line in (tmp_path / "x/refused/kv.jsonl").read_text().splitlines()]
        assert {(one["error"], one["record"]["key"]) for one in refused} == {("conflict", "k0"), ("conflict", "k1")}
        assert m.kv.get("ns", "k0").value == b"new"  # type: ignore[union-attr]
        done = ctl(server, "import", tmp_path / "x", "--overwrite", "--table", "kv", "--table", "offset")
        assert (done["refused"], sorted(done["tables"])) == (0, ["kv", "offset"])
        assert m.kv.get("ns", "k0").value == b"old"  # type: ignore[union-attr]
        assert m.offsets.fetch("acme", "g", "t", 0).offset == 5  # type: ignore[union-attr]
        assert m.sequences.get("ns", "s").value == 10  # type: ignore[union-attr]
        assert not (tmp_path / "x/refused/kv.jsonl").exists()
        ctl(server, "import", tmp_path / "x", "--overwrite")
        assert m.sessions.get("acme", "c1").properties.payload == b"old"  # type: ignore[union-attr]
        assert m.sequences.get("ns", "s").value == 9  # type: ignore[union-attr]


def test_one_tenant_alone(tmp_path: Path) -> None:
    with embedded.serve_in_thread(groups={"data": 2}) as server, blocking.connect(server.url) as m:
        for tenant in ("a", "b"):
            m.kv.put(tenant, "k", tenant.encode())
            m.sessions.takeover("b1", 1, tenant, "c", properties=SessionProperties(60))
            m.offsets.commit(tenant, "g", "t", 0, 1)
            m.table(TOPICS).put(Topic(tenant, "orders"))
        made = ctl(server, "export", tmp_path / "x", "--tenant", "b")
        whole = (tmp_path / "x").glob("*.jsonl")
        first = [next(iter(json.loads(line).values())) for path in whole for line in path.read_text().splitlines()]
        assert {*first} == {"b"}
        assert len(first) == sum(made["tables"].values()) == 4
        assert not {"role", "broker", "declaration", "cluster"} & {*made["tables"]}
        for arguments, said in (
            (("export", tmp_path / "x"), "it is not empty"),
            (("export", tmp_path / "y", "--table", "kvs"), "there is no table 'kvs'; there is acl"),
            (("export", tmp_path / "z", "--table", "role", "--tenant", "b"), "records of role belong to no tenant"),
            (("import", tmp_path / "none"), "No such file or directory"),
            (("import", tmp_path / "x", "--table", "lost"), "there is no lost.jsonl, and no lost/*.parquet"),
        ):
            status, _, err = metadctl(server, *map(str, arguments))
            assert (status, len(err.splitlines())) == (1, 1), err
            assert said in err


def test_files_of_other_programs(tmp_path: Path) -> None:
    good = [
        {"tenant": "acme", "client_id": "c1", "expiry_interval_s": 600, "payload_base64": "/w=="},
        {"tenant": "acme", "client_id": "c2", "expiry_interval_s": 600},
    ]
    bad = [
        ('{"tenant": "acme"', "Input data was truncated"),
        ("[1]", "a line is a JSON object"),
        ('{"tenant": "acme"}', "client_id is missing"),
        ('{"tenant": "acme", "client_id": "c", "expiry": 1}', "there is no field 'expiry'"),
        ('{"tenant": 7, "client_id": "c"}', "tenant: Expected `str`, got `int`"),
        ('{"tenant": "acme", "client_id": "c", "payload_base64": "?", "expiry_interval_s": 1}', "payload: "),
        ('{"tenant": "acme", "client_id": "c", "will": {"topik": "a"}, "expiry_interval_s": 1}', "there is no field"),
        ('{"tenant": "acme", "client_id": "c", "expiry_interval_s": 5000000000}', "expiry_interval_s: Expected"),
    ]
    text = [*map(json.dumps, good), "", *(line for line, _ in bad)]
    (tmp_path / "session.jsonl").write_text("\n".join(text))
    (tmp_path / "subscription.jsonl").write_text(
        '{"tenant": "acme", "client_id": "c1", "filter": "a/#"}\n{"tenant": "acme", "client_id": "c9", "filter": "a"}\n'
        '{"tenant": "acme", "client_id": "c1", "filter": "a/#/b"}\n'
    )
    (tmp_path / "broker.jsonl").write_text('{"broker": "b1"}\n')
    with embedded.serve_in_thread() as server, blocking.connect(server.url) as m:
        done = ctl(server, "import", tmp_path, status=1)
        assert done["tables"]["session"] == {
            "lines": 10,
            "written": 2,
            "unchanged": 0,
            "over": 0,
            "refused": 8,
        }
        refused = [json.loads(line) for line in (tmp_path / "refused/session.jsonl").read_text().splitlines()]
        for one, (_, said) in zip(refused, bad, strict=True):
            assert one["error"] == "invalid_item"
            assert said in one["message"]
        assert refused[0]["record"] == '{"tenant": "acme"'
        assert done["tables"]["subscription"]["refused"] == 2
        assert [one.filter for one in m.subscriptions.list("acme")] == ["a/#"]
        assert done["not_imported"] == {"broker": NOT_IMPORTED["broker"]}
        assert m.sessions.get("acme", "c1").properties.payload == b"\xff"  # type: ignore[union-attr]
        (tmp_path / "nothing.jsonl").write_text("{}\n")
        status, _, err = metadctl(server, "import", str(tmp_path))
        assert status == 1
        assert "there is no table 'nothing': declare it first" in err


def test_what_is_no_file_of_records_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with embedded.serve_in_thread() as server:
        for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/nonexistent", path)):
            place = tmp_path / "odd"
            place.mkdir()
            make(place / "kv.jsonl")
            status, _, err = metadctl(server, "import", str(place))
            assert (status, err) == (1, f"metadctl: {place}/kv.jsonl: no regular file\n")
            shutil.rmtree(place)


def test_a_line_that_is_nested_too_deeply_is_refused_and_the_others_come(tmp_path: Path) -> None:
    deep = ['{"a":' * 3_000, '{"namespace":"d","key":"k","value":' + '{"a":' * 900 + "1" + "}" * 900 + "}"]
    good = '{"namespace":"d","key":"after","value":"1"}'
    (tmp_path / "kv.jsonl").write_text("\n".join([*deep, good]))
    with embedded.serve_in_thread() as server, blocking.connect(server.url) as m:
        assert ctl(server, "import", tmp_path, status=1)["tables"]["kv"] == {
            "lines": 3,
            "written": 1,
            "unchanged": 0,
            "over": 0,
            "refused": 2,
        }
        assert m.kv.get("d", "after") is not None
    assert len(lines(tmp_path / "refused", "kv")) == 2


def test_two_imports_of_one_directory_do_not_refuse_what_the_other_has_written(tmp_path: Path) -> None:
    with (tmp_path / "kv.jsonl").open("w") as file:
        file.writelines(f'{{"namespace":"two","key":"{i}","value":"1"}}\n' for i in range(20_000))
    with embedded.serve_in_thread() as server:
        command = [str(METADCTL), "--endpoint", server.endpoint, "import", str(tmp_path)]
        both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = [(*one.communicate(timeout=120), one.returncode) for one in both]
        assert not (tmp_path / "refused").exists()
        for _, err, status in said:
            last = "".join(line for line in err.splitlines(keepends=True) if "so far" not in line)  # on a busy machine
            assert (status, last) in (
                (0, ""),
                (1, f"metadctl: {tmp_path}: another import of it is under way\n"),
            )
        assert 0 in [status for *_, status in said]


def test_a_killed_import_goes_on(tmp_path: Path) -> None:
    """kill -9 in the middle; the sessions that are half done, their subscriptions and wills come all the same."""
    count = 30_000
    session = "".join(
        f'{{"tenant":"acme","client_id":"c{at}","expiry_interval_s":600,"payload":"p{at}"}}\n' for at in range(count)
    )
    (tmp_path / "session.jsonl").write_text(session)
    (tmp_path / "subscription.jsonl").write_text(
        "".join(f'{{"tenant":"acme","client_id":"c{at}","filter":"to/c{at}"}}\n' for at in range(count))
    )
    (tmp_path / "sequence.jsonl").write_text('{"namespace":"ns","sequence":"s","value":7}\n')
    with embedded.serve_in_thread(groups={"data": 2}) as server, blocking.connect(server.url) as m:
        command = [str(METADCTL), "--endpoint", server.endpoint, "import", str(tmp_path), "--json"]
        kills = 0
        for table in ("session", "subscription"):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while noted(tmp_path, table) == 0 and process.poll() is None:
                time.sleep(0.01)
            kills += process.poll() is None
            process.kill()
            process.communicate()
        assert kills == 2
        done = ctl(server, "import", tmp_path)
        assert done["refused"] == 0, done
        for table in ("session", "subscription"):
            assert done["tables"][table]["lines"] == count
            assert done["tables"][table]["written"] + done["tables"][table]["unchanged"] == count
        found = [*m.sessions.list("acme")]
        assert len(found) == count
        assert not any(one.connected for one in found)
        assert sum(1 for _ in m.subscriptions.list("acme")) == count
        assert m.sequences.get("ns", "s").value == 7  # type: ignore[union-attr]
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("import-")] == []


def noted(directory: Path, table: str) -> int:
    """How far the note says that a file is."""
    notes = [*directory.glob("import-*.json")]
    return int(json.loads(notes[0].read_bytes())["done"].get(table, {}).get("lines", 0)) if notes else 0


async def test_an_export_has_each_record_once_while_slots_move(tmp_path: Path) -> None:
    async with embedded.serve(groups={"data": 1}) as server, connect(server.url) as m:
        for begin in range(0, 4_000, 1_000):
            taken = [SessionTakeoverItem("acme", f"c{at}", properties=LONG) for at in range(begin, begin + 1_000)]
            (await m.sessions.takeover_many("b", 1, taken)).raise_for_error()
        moved = asyncio.create_task(grow(m))
        runs = 0
        while not moved.done() or runs == 0:
            runs += 1
            made = await Export(m, tmp_path / str(runs), "acme", ["session"], WAIT_S).run()
            found = [json.loads(line)["client_id"] for line in written(tmp_path / str(runs))]
            assert len(found) == made.tables["session"] == len({*found}) == 4_000
        await moved


LONG: Final = SessionProperties(3_600, b"x" * 200)


def written(directory: Path) -> list[str]:
    return (directory / "session.jsonl").read_text().splitlines()


async def grow(m: Client) -> None:
    """Add groups, and wait until all have slots."""
    for groups in (2, 3):
        await m.cluster.add_group("data")
        await until(lambda groups=groups: rebalanced(m, groups))  # type: ignore[misc]


def test_every_table_is_imported_or_says_why_not() -> None:
    known = kinds([])
    exported = {*tables(), *LISTED, "declaration"}
    assert {*known, "declaration"} | {*NOT_IMPORTED} == exported
    assert not {*known} & {*NOT_IMPORTED}
    assert is_scoped(TOPICS)
    # Whatever an export has of a table is a field that its import knows.
    for name, one in tables().items():
        if name in known:
            fields = {field for shown in one.rows for field in fields_of(one.table.shows[one.table.rows[shown]].record)}
            line = {*known[name].line.__struct_fields__}
            assert fields <= line | known[name].others, name


def fields_of(record: Any) -> set[str]:
    fields: tuple[str, ...] = getattr(typing.get_origin(record) or record, "__struct_fields__", ())
    return {*fields} - {"record"}
