"""The log broker of the examples: its log on disk, and ``metad-perf log-broker``, which kills brokers and judges each
acknowledged record."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from e2e_perf import report_of
from serving_brokers import killed_as_it_registers

from metad import embedded
from metad_client import Client, OverloadedError, Owner, UnknownOutcomeError, connect
from metad_perf.log_broker.command import EXAMPLES
from metad_perf.log_broker.judge import FAULTS, Ack, Ledger, sent
from waiting import until

sys.path.append(str(EXAMPLES))

from log_broker import broker as module
from log_broker.__main__ import main as log_broker
from log_broker.client import Topic
from log_broker.log import Fenced, Log
from log_broker.protocol import Append, Appended, Connection, Fetch, Fetched, Record


def records(leader_epoch: int, first: int, count: int) -> list[Record]:
    return [Record(leader_epoch, at, b"%d" % at) for at in range(first, first + count)]


def test_a_log_keeps_what_counts_and_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = Log(path)
    assert log.append(1, records(1, 0, 3)) == 3
    assert log.append(4, records(4, 3, 2)) == 5
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    log = Log(path)
    assert (log.end, log.epochs, log.last_epoch) == (5, [(1, 0), (4, 3)], 4)
    assert path.read_bytes() == whole
    assert log.read(1, 4) == [*records(1, 1, 2), *records(4, 3, 1)]
    assert log.read(5, 9) == []
    log.truncate(4, 2)
    assert (log.end, log.epochs) == (2, [(1, 0)])
    log.close()
    path.write_bytes(whole[:-1])
    assert Log(path).end == 4


def test_a_log_says_where_an_epoch_ends(tmp_path: Path) -> None:
    log = Log(tmp_path / "0.log")
    assert log.end_of(7) == (0, 0)
    log.append(2, records(2, 0, 3))
    log.append(5, records(5, 3, 2))
    assert [log.end_of(epoch) for epoch in (1, 2, 4, 5, 9)] == [(0, 0), (2, 3), (2, 3), (5, 5), (5, 5)]


def test_what_a_broker_was_before_writes_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "0.log")
    log.append(1, records(1, 0, 1))
    assert log.take(3) == 1
    with pytest.raises(Fenced):
        log.append(2, records(2, 1, 1))
    with pytest.raises(Fenced):
        log.truncate(1, 0)
    assert log.append(3, records(3, 1, 1)) == 2


def test_a_large_log_is_read_in_parts(tmp_path: Path) -> None:
    log = Log(tmp_path / "0.log")
    log.append(1, [Record(1, at, bytes(300_000)) for at in range(8)])
    log.append(1, [Record(1, 8, bytes(3_000_000))])
    parts, at = [], 0
    while at < log.end:
        found = log.read(at, log.end)
        parts.append(len(found))
        at += len(found)
    assert parts == [3, 3, 2, 1]


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ([sent(0, 0), sent(0, 1), sent(0, 2)], None),
        ([sent(0, 0), sent(0, 1), sent(0, 2), sent(0, 3)], None),  # it was not acknowledged, and is there
        ([sent(0, 0), sent(0, 1)], "lost"),
        ([sent(0, 0), sent(0, 2), sent(0, 1)], "lost"),
        ([sent(0, 0), sent(0, 1), sent(0, 2), sent(0, 1)], "twice"),
        ([sent(0, 0), sent(0, 1), sent(0, 2), sent(1, 5), sent(1, 4)], "out_of_order"),
    ],
)
def test_the_judge_sees_each_broken_promise(log: list[bytes], fault: str | None) -> None:
    ledger = Ledger()
    for offset in range(3):
        ledger.acks[0].append(Ack(offset, 1, sent(0, offset), float(offset)))
    ledger.read[0].update((offset, sent(0, offset)) for offset in range(3))
    verdict = ledger.judge({0: log})
    assert {name for name in FAULTS if verdict[name]} >= ({fault} if fault else set())
    assert bool(fault) == any(verdict[name] for name in FAULTS)
    assert bool(verdict["examples"]) == bool(fault)


def test_the_judge_sees_double_leaders_and_what_consumers_saw() -> None:
    ledger = Ledger()
    ledger.acks[0] += [Ack(0, 1, sent(0, 0), 0.0), Ack(0, 2, sent(0, 1), 4.0), Ack(1, 2, sent(0, 2), 4.5)]
    ledger.read[0].update([(0, sent(0, 0)), (0, sent(0, 0))])
    verdict = ledger.judge({0: [sent(0, 1), sent(0, 2)]})
    found = {name: verdict[name] for name in FAULTS if verdict[name]}
    assert found == {"lost": 1, "double_leaders": 1, "read_and_lost": 1, "not_delivered": 1}
    assert verdict["delivered_twice"] == 1
    assert ledger.longest_s(0.0, 4.2) == 4.0
    assert ledger.longest_s(4.1, 4.2) == 0.5


@pytest.fixture(scope="module")
def server() -> Iterator[embedded.ServingInThread]:
    with embedded.serve_in_thread() as server:
        yield server


@asynccontextmanager
async def brokers(server: embedded.ServingInThread, folder: Path, *names: str) -> AsyncIterator[Client]:
    """Log brokers in this process; the client of the others."""
    async with connect(server.url) as m:
        for name in names:
            (folder / name).mkdir(exist_ok=True)
        serving = [asyncio.create_task(log_broker(server.url, one, folder / one, "127.0.0.1", 10.0)) for one in names]
        try:
            for name in names:
                await until(lambda name=name: lives(m, name), f"{name} lives")
            yield m
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


async def lives(m: Client, name: str) -> bool:
    found = await m.brokers.get(name)
    return found is not None and found.state == "active"


@asynccontextmanager
async def led_by_one_of_two(
    server: embedded.ServingInThread, folder: Path, topic: str, *, runs: bool = True
) -> AsyncIterator[tuple[Client, Topic, Owner]]:
    """A partition whose leader runs, here or by itself, and whose other replica lives, but fetches nothing; two have to
    be in sync."""
    here = [f"{topic}-leader"] if runs else []
    async with brokers(server, folder, *here) as m, connect(server.url) as other:
        await until(lambda: lives(m, f"{topic}-leader"), "the leader lives")
        life = await other.brokers.register(f"{topic}-mute", lease_s=3600)
        await m.assignments.create(
            "acme", topic, "topic", replication=2, min_isr=2, replicas=[[f"{topic}-leader", f"{topic}-mute"]]
        )
        opened = await Topic.open(m, "acme", topic)
        yield m, opened, life.owner
        opened.close()


async def address(m: Client, topic: str) -> str:
    found = await m.brokers.get(f"{topic}-leader")
    assert found is not None
    return found.address


async def test_appends_are_refused_while_too_few_are_in_sync(server: embedded.ServingInThread, tmp_path: Path) -> None:
    async with led_by_one_of_two(server, tmp_path, "few") as (m, topic, mute):
        await m.brokers.fence(mute.broker)
        await until(lambda: in_sync(m, "few", 1), "one is in sync")
        await until(lambda: is_turned_away(topic), "the broker says why")
        assert (await topic.fetch(0, 0, wait_s=0.0)).records == []
        assert logs(tmp_path) == [0]


async def is_turned_away(topic: Topic) -> bool:
    """Whether an append ends with what the broker said. The last attempt may instead end with the deadline."""
    try:
        await topic.append(0, [b"no"], deadline_s=1.5)
    except OverloadedError as refused:
        return refused.outcome_known
    except UnknownOutcomeError:
        return False
    pytest.fail("it was taken")


async def in_sync(m: Client, topic: str, count: int) -> bool:
    row = await m.assignments.partitions.get("acme", topic, "topic", 0)
    return row is not None and row.record.leader is not None and len(row.record.isr) == count


def logs(folder: Path, of: str = "*/") -> list[int]:
    """The sizes of the logs of all brokers; or of one, whose folder it is."""
    return [path.stat().st_size for path in folder.glob(f"{of}*.log")]


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_what_a_producer_waits_for_ends_with_its_connection(
    server: embedded.ServingInThread, tmp_path: Path
) -> None:
    async with led_by_one_of_two(server, tmp_path, "gone") as (m, topic, _):
        await until(lambda: in_sync(m, "gone", 2), "there is a leader")
        await topic.fetch(0, 0, wait_s=0.0)
        before = files()
        for _ in range(10):
            with pytest.raises(UnknownOutcomeError):
                await topic.append(0, [b"perhaps"], deadline_s=0.2)
        await until(lambda: files() < before + 5, "the broker has closed its ends")
        assert logs(tmp_path) > [100], "what is begun is ended"


async def test_a_producer_that_waits_is_answered_in_the_end(
    server: embedded.ServingInThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACKNOWLEDGED_S", 0.3)
    async with led_by_one_of_two(server, tmp_path, "late") as (m, topic, mute):
        await until(lambda: in_sync(m, "late", 2), "there is a leader")
        await topic.fetch(0, 0, wait_s=0.0)
        connection = await Connection.open(await address(m, "late"))
        append = Append("acme", "late", 0, 1, [b"perhaps"])
        with pytest.raises(UnknownOutcomeError, match="does not know"):
            await connection.ask(append, Appended, 9.0)
        fetched = await connection.ask(Fetch("acme", "late", 0, 1, 1, 0.0, mute), Fetched, 9.0)
        assert fetched.high_watermark == 1, "the same connection goes on"
        connection.close()


async def test_followers_find_room_where_clients_have_taken_theirs(
    server: embedded.ServingInThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_by_one_of_two(server, tmp_path, "full") as (m, topic, mute):
        await until(lambda: in_sync(m, "full", 2), "there is a leader")
        await topic.fetch(0, 0, wait_s=0.0)
        monkeypatch.setattr(module, "CLIENTS_MAX", 1)
        at = await address(m, "full")
        client, follower = await Connection.open(at), await Connection.open(at)
        with pytest.raises(OverloadedError):
            await client.ask(Append("acme", "full", 0, 1, [b"no"]), Appended, 9.0)
        assert client.writer.is_closing()
        fetched = await follower.ask(Fetch("acme", "full", 0, 1, 0, 0.0, mute), Fetched, 9.0)
        assert fetched.records == []
        topic.close()
        served = await topic.fetch(0, 0, wait_s=0.0)
        assert served.records == [], "there is room again"
        follower.close()


async def test_who_says_nothing_takes_no_room_and_no_file_left_is_survived(
    server: embedded.ServingInThread, tmp_path: Path
) -> None:
    """The broker is a process that may open 64 files, and 200 connections that say nothing are made anew."""
    few = "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
    run = few + "runpy.run_module('log_broker', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", run, "--metad", server.url, "--name", "idle-leader", "--folder", str(tmp_path)]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *filter(None, sys.path)])}
    process = await asyncio.create_subprocess_exec(*command, env=paths, stderr=asyncio.subprocess.PIPE)
    try:
        async with led_by_one_of_two(server, tmp_path, "idle", runs=False) as (m, topic, mute):
            await until(lambda: in_sync(m, "idle", 2), "there is a leader")
            host, _, port = (await address(m, "idle")).rpartition(":")

            async def silent() -> None:
                while True:
                    with suppress(OSError):
                        reader, writer = await asyncio.open_connection(host, int(port))
                        try:
                            await reader.read()
                        finally:
                            writer.close()
                    await asyncio.sleep(0.5)

            flood = [asyncio.create_task(silent()) for _ in range(200)]
            await asyncio.sleep(1.0)

            async def follows() -> bool:
                with suppress(OSError, EOFError):
                    follower = await Connection.open(f"{host}:{port}")
                    await follower.ask(Fetch("acme", "idle", 0, 1, 0, 0.0, mute), Fetched, 5.0)
                    follower.close()
                    return True
                return False

            await until(follows, "a follower is served", 60.0)
            for task in flood:
                task.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
            assert (await topic.fetch(0, 0, wait_s=0.0)).records == []
            process.terminate()
            _, complaints = await process.communicate()
            assert b"Traceback" not in complaints
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_only_replica_leads_again_after_its_broker_was_killed_as_it_registered(
    server: embedded.ServingInThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(server, tmp_path, "sole") as m:
        await m.assignments.create("acme", "sole", "topic", replicas=[["sole"]])
        topic = await Topic.open(m, "acme", "sole")
        await topic.append(0, [b"paid"])
        topic.close()
    async with connect(server.url) as killed:
        await killed_as_it_registers(monkeypatch, killed, "sole", lease_s=10.0, note=tmp_path / "sole" / "life")
    async with connect(server.url) as m:
        await m.brokers.fence("sole")  # as its lease would
    async with brokers(server, tmp_path, "sole") as m:
        topic = await Topic.open(m, "acme", "sole")
        assert [record.payload for record in (await topic.fetch(0, 0)).records] == [b"paid"]
        topic.close()


async def test_what_was_moved_away_from_a_dead_broker_is_deleted_once_it_is_back(
    server: embedded.ServingInThread, tmp_path: Path
) -> None:
    async with brokers(server, tmp_path, "away-a", "away-b") as m:
        await m.assignments.create("acme", "away", "topic", replication=2, replicas=[["away-a", "away-b"]])
        await m.assignments.create("acme", "stays", "topic", replicas=[["away-b"]])
        for name in ("away", "stays"):
            topic = await Topic.open(m, "acme", name)
            await topic.append(0, [b"paid"])
            topic.close()
        await until(lambda: len(logs(tmp_path / "away-b", "")) == 2, "both have a log")
    async with brokers(server, tmp_path, "away-a") as m:
        await m.brokers.fence("away-b")  # as its lease would
        await m.assignments.move("acme", "away", "topic", 0, ["away-a"])

        async def moved() -> bool:
            row = await m.assignments.partitions.get("acme", "away", "topic", 0)
            return row is not None and row.record.replicas == ["away-a"]

        await until(moved, "the partition is moved away")
    async with brokers(server, tmp_path, "away-b") as m:
        await until(lambda: len(logs(tmp_path / "away-b", "")) == 1, "it is deleted")
        topic = await Topic.open(m, "acme", "stays")
        assert [record.payload for record in (await topic.fetch(0, 0)).records] == [b"paid"]
        topic.close()


async def test_a_plan_that_throttles_is_kept_to(tmp_path: Path) -> None:
    with embedded.serve_in_thread() as server:
        async with brokers(server, tmp_path, "slow-a", "slow-b") as m:
            await m.assignments.create("acme", "slow", "topic", replicas=[["slow-a"]])
            topic = await Topic.open(m, "acme", "slow")
            for _ in range(4):
                await topic.append(0, [bytes(100_000)])
            begin_s = time.monotonic()
            await m.plans.create("empty-a", "drain", ["slow-a"], throttle_bytes=200_000)

            async def moved() -> bool:
                row = await m.assignments.partitions.get("acme", "slow", "topic", 0)
                return row is not None and row.record.replicas == ["slow-b"]

            await until(moved, "the partition is moved")
            assert time.monotonic() - begin_s > 400_000 / 200_000
            fetched = await topic.fetch(0, 0)
            assert len(fetched.records) == 4
            topic.close()


def test_a_broker_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    small = ("--brokers", 4, "--partitions", 3, "--consumers", 1, "--seconds", 1, "--lease-s", 5)
    report = report_of(tmp_path, "log-broker", *small, "--only", "broker-kill", "--seed", 1)
    assert {name: report[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert (report["problems"], report["nodes"], report["fsync"]) == ([], 3, True)
    assert report["acknowledged"] > 100
    assert [one["fault"] for one in report["struck"]] == ["broker-kill"]
