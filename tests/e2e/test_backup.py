"""Backups of real nodes: taken while clients write, restored into clusters of other shapes, as of any moment, through
kills, and refused where they are damaged."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import Said, metadctl

from metad.embedded import Cluster, cluster
from metad_backup.copies import opened, scratch_directory
from metad_backup.repository import BackupError, Repository
from metad_backup.restoring import restore
from metad_backup.taking import take
from metad_backup.verifying import proven
from metad_client import Client, NotFoundError, blocking, connect
from metad_client.blocking import BlockingClient
from metad_wire import messages as m
from metad_wire.tables.access import Grant, Role
from waiting import WAIT_S, until, wait_until

METADCTL = Path(sys.executable).with_name("metadctl")
SMALL: dict[str, Any] = {"fsync": False, "groups": {"data": 2, "offset": 1}}


def ctl(where: Cluster | None, *words: str) -> Said:
    return metadctl(where or "", *words)


def told(where: Cluster | None, *words: str) -> Any:
    done = ctl(where, *words, "--json")  # it may say more on stderr
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def client(of: Cluster) -> Iterator[BlockingClient]:
    with blocking.connect(of.url) as opened_client:
        yield opened_client


def put(of: Cluster, begin: int, end: int) -> None:
    with client(of) as c:
        c.kv.put_many([m.KvPutItem(f"n{i % 7}", f"k{i}", b"%d" % i) for i in range(begin, end)]).raise_for_error()


def keys(of: Cluster) -> set[str]:
    with client(of) as c:
        return {one.key for i in range(7) for one in c.kv.scan(f"n{i}")}


class Ledger:
    """What was acknowledged."""

    def __init__(self) -> None:
        self.kv: dict[tuple[str, str], bytes] = {}
        self.offsets: dict[int, int] = {}
        self.sessions: set[str] = set()

    async def write(self, c: Client, epoch: int) -> None:
        """One key, one offset and some sessions after the other, until cancelled."""
        number = 0
        while True:
            number += 1
            await c.kv.put(f"n{number % 20}", f"k{number}", b"%d" % number)
            self.kv[f"n{number % 20}", f"k{number}"] = b"%d" % number
            await c.offsets.commit("acme", "g", "topic", number % 5, number)
            self.offsets[number % 5] = number
            names = [f"c{number}-{i}" for i in range(20)]
            items = [m.SessionTakeoverItem("acme", name, True, m.SessionProperties(3_600, b"p")) for name in names]
            (await c.sessions.takeover_many("b1", epoch, items)).raise_for_error()
            self.sessions.update(names)

    def copy(self) -> Ledger:
        found = Ledger()
        found.kv, found.offsets, found.sessions = dict(self.kv), dict(self.offsets), set(self.sessions)
        return found

    async def missed(self, c: Client) -> list[str]:
        """What of it is not there, or older than was acknowledged."""
        lost = [name for (space, name), value in self.kv.items() if (await _value(c, space, name)) != value]
        for partition, offset in self.offsets.items():
            found = await c.offsets.fetch("acme", "g", "topic", partition)
            lost += [] if found is not None and found.offset >= offset else [f"offset of {partition}"]
        found_sessions = await c.sessions.get_many([m.SessionKey("acme", name) for name in sorted(self.sessions)])
        return lost + [name for name, one in zip(sorted(self.sessions), found_sessions, strict=True) if one is None]


async def _value(c: Client, namespace: str, key: str) -> bytes | None:
    found = await c.kv.get(namespace, key)
    return None if found is None else found.value


@asynccontextmanager
async def writing(c: Client, epoch: int, ledger: Ledger):  # type: ignore[no-untyped-def]
    task = asyncio.create_task(ledger.write(c, epoch))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_backup_beside_writers_has_all_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    repository, ledger = Repository(str(tmp_path / "b"), create=True), Ledger()
    with cluster(3, fsync=False, groups={"data": 3, "offset": 2, "metadata": 2}) as source:
        async with connect(source.url) as c:
            life = await c.brokers.register("b1")
            async with writing(c, life.epoch, ledger):
                await asyncio.sleep(1.0)
                acknowledged = ledger.copy()
                manifest = await take(c, repository)
                assert ledger.kv.keys() > acknowledged.kv.keys()  # it was taken beside them
    assert len(acknowledged.sessions) > 20
    with cluster(2, fsync=False, groups={"data": 5, "offset": 1, "metadata": 1}) as target:
        async with connect(target.url) as c:
            image = await c.image(["kv", "session"]).caught_up()
            assert len(image["kv"]) == len(image["session"]) == 0
            with opened(repository, manifest, scratch=tmp_path) as copy:
                again = Repository(str(tmp_path / "again"), create=True)
                done, found = await proven(c, copy, again, scratch=tmp_path)
            assert done.rows >= found.rows > 100
            assert (found.only_first, found.only_second, found.differ) == (0, 0, 0), found.differences
            assert await acknowledged.missed(c) == []

            def shown() -> bool:
                """What was opened before shows what came at once, and no entry of a log said."""
                keys_shown = {(key.namespace, key.key) for key in image["kv"]}
                return acknowledged.kv.keys() <= keys_shown and len(image["session"]) >= len(acknowledged.sessions)

            await until(shown, "the image has what was restored")
            session = await c.sessions.get("acme", min(acknowledged.sessions))
            assert session is not None
            assert not session.connected
            (broker,) = [one async for one in c.brokers.list()]
            assert broker.state == "fenced"
            following = await c.brokers.register("b1")
            assert following.epoch > life.epoch
            version = await c.kv.put("n1", "k1", b"new")
            assert version == 2


def test_the_next_backup_copies_what_has_changed_and_the_oldest_can_go(tmp_path: Path) -> None:
    with cluster(1, **SMALL) as source:
        with client(source) as c:
            for begin in range(0, 20_000, 1_000):
                items = [m.KvPutItem(f"n{i}", "k", b"x" * 200) for i in range(begin, begin + 1_000)]
                c.kv.put_many(items).raise_for_error()
        first = told(source, "backup", f"{tmp_path}/b")
        put(source, 0, 10)
        second = told(source, "backup", f"{tmp_path}/b")
    assert first["copied_bytes"] == first["bytes"] > 1_000_000
    assert second["copied_bytes"] < first["bytes"] / 10
    assert [one["backup"] for one in told(None, "backup", "list", f"{tmp_path}/b")["backups"]] == [
        first["backup"],
        second["backup"],
    ]
    diff = ctl(None, "backup", "diff", f"{tmp_path}/b", first["backup"], "--json")
    found = json.loads(diff.stdout)
    assert (diff.returncode, found["only_first"], found["only_second"], found["differ"]) == (1, 0, 10, 0)
    names = sorted(
        (one["table"], one["row"], one["key"]["namespace"], one["key"]["key"]) for one in found["differences"]
    )
    assert names == sorted(("kv", "record", f"n{i % 7}", f"k{i}") for i in range(10))
    assert told(None, "backup", "prune", f"{tmp_path}/b", "--keep", "1")["dropped"] == [first["backup"]]
    assert told(None, "backup", "verify", f"{tmp_path}/b")["rows"] >= 20_010
    counts = {one["table"]: one["records"] for one in told(None, "backup", "ls", f"{tmp_path}/b")["tables"]}
    assert counts["kv"] == 20_010
    (record,) = told(None, "backup", "cat", f"{tmp_path}/b", "kv", "n3", "k3")["records"]
    assert record["value"]["value"] == "3"
    (record,) = told(None, "backup", "find", f"{tmp_path}/b", "n19999")["records"]
    assert record["key"] == {"namespace": "n19999", "key": "k"}
    few = ctl(None, "backup", "prune", f"{tmp_path}/b", "--keep", "0")
    assert (few.returncode, few.stderr) == (1, "metadctl: at least one backup has to stay\n")
    missing = ctl(None, "backup", "cat", f"{tmp_path}/b", "nothing")
    assert (missing.returncode, missing.stderr) == (1, "metadctl: there is no table 'nothing' in the backup\n")


def test_a_restore_goes_to_any_moment_that_was_archived_also_over_slot_moves(tmp_path: Path) -> None:
    with cluster(3, **SMALL) as source:
        put(source, 0, 20)
        with client(source) as c:
            c.roles.put("readers", [Grant(["read"])])
        command = [str(METADCTL), "--endpoint", source.url.partition("//")[2], "backup", f"{tmp_path}/b"]
        with (
            subprocess.Popen([*command, "--follow", "--every", "0.2"], stdout=subprocess.PIPE, text=True) as following,
            ended(following),
        ):
            assert following.stdout is not None
            assert "archives what follows" in following.stdout.readline()
            put(source, 20, 40)
            archived(tmp_path, source)
            then_ms = time.time_ns() // 1_000_000
            with client(source) as c:
                c.cluster.add_group("data")
                c.cluster.rebalance()
                wait_until(lambda: not moves(c), "the slots move")
                c.kv.delete("n0", "k0")
            put(source, 40, 60)
            archived(tmp_path, source)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(then_ms / 1_000)) + f".{then_ms % 1_000:03}Z"
    counts = [kv_in(tmp_path), kv_in(tmp_path, "--at", at), kv_in(tmp_path, "--at", "0s")]
    assert counts == [20, 40, 59]
    late, known = (ctl(None, "backup", "ls", f"{tmp_path}/b", "--at", when) for when in ("2100-01-01T00:00:00Z", at))
    assert "nothing was archived after" in late.stderr
    assert (late.returncode, known.stderr) == (0, "")
    with cluster(1, **SMALL) as target:
        assert told(target, "restore", f"{tmp_path}/b", "--at", at)["rows"] >= 40
        assert keys(target) == {f"k{i}" for i in range(40)}
        done = ctl(target, "restore", f"{tmp_path}/b", "--cancel")
        assert (done.returncode, "is finished: nothing is given up" in done.stderr) == (1, True)
        other = ctl(target, "restore", f"{tmp_path}/b")
        assert f"--at {at[:19]}" in other.stderr
        assert "readers" in [one.role for one in roles(target)]
        audited = told(target, "audit", "--kind", "admin")["audit"]
        assert not [line for line in audited if "k1" in line["names"]]
    (role,) = told(None, "backup", "cat", f"{tmp_path}/b", "role")["records"]
    assert role["key"] == {"role": "readers"}
    early = ctl(None, "backup", "ls", f"{tmp_path}/b", "--at", "2d")
    assert (early.returncode, early.stderr.count("\n")) == (1, 1)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    finally:
        process.kill()


def roles(of: Cluster) -> list[Role]:
    with client(of) as c:
        return [*c.roles.list()]


def moves(c: BlockingClient) -> list[Any]:
    known = c.cluster.map().map
    assert known is not None
    return [*known.moves]


def archived(place: Path, source: Cluster) -> None:
    """Wait until all that there is now is archived."""
    with client(source) as c:
        statuses = [one for one in c.cluster.statuses().values() if isinstance(one, m.StatusReply)]
        wanted = {one.name: one.commit for status in statuses for one in status.groups if one.role == "leader"}

    def done() -> bool:
        repository = Repository(f"{place}/b")
        base = {group.group: group.index for group in repository.backup().groups}
        at = {name: max((last for _, last, _, _ in repository.archived(name)), default=0) for name in wanted}
        return all(max(at[name], base.get(name, 0)) >= index for name, index in wanted.items())

    wait_until(done, "the log is archived")


def kv_in(place: Path, *words: str) -> int:
    tables = told(None, "backup", "ls", f"{place}/b", *words)["tables"]
    return next(one["records"] for one in tables if one["table"] == "kv")


def follow_until(number: signal.Signals, source: Cluster, where: Path, *words: str) -> tuple[int, str, str]:
    """Follow a cluster until something is archived, and a signal comes: exit status, stdout and stderr."""
    command = [str(METADCTL), "--endpoint", source.url.partition("//")[2], "backup", "take", str(where), "--follow"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--every", "0.1", *words], stdout=pipe, stderr=pipe, text=True) as following:
        wait_until(lambda: where.exists() and Repository(str(where)).backups(), "there is a backup")
        put(source, 0, 100)
        wait_until(lambda: Repository(str(where)).archived_groups(), "something is archived")
        following.send_signal(number)
        out, err = following.communicate(timeout=WAIT_S)
    return following.returncode, out, err


def test_a_signal_ends_a_follower_which_says_what_it_has_archived(tmp_path: Path) -> None:
    """Once a program that read its JSON read nothing, and SIGTERM ended it without a word."""
    with cluster(1, **SMALL) as source:
        for number, ends_with in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            where = tmp_path / number.name
            status, out, err = follow_until(number, source, where, "--json")
            assert (status, err) == (ends_with, "metadctl: interrupted: the next backup copies only what is missing\n")
            found = json.loads(out)
            assert found["backup"] == Repository(str(where)).backups()[-1].name
            assert found["archived_entries"] > 0
            assert found["archived_bytes"] > 0
        status, out, _ = follow_until(signal.SIGTERM, source, tmp_path / "words")
        assert status == 143
        assert re.search(r"^[1-9]\d* entries, .* were archived$", out.splitlines()[-1])


async def test_a_restore_that_was_killed_goes_on_and_one_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path / "b"), create=True)
    with cluster(1, **SMALL) as source:
        put(source, 0, 3_000)
        async with connect(source.url) as c:
            manifest = await take(c, repository)
    with cluster(3, **SMALL) as target, opened(repository, manifest, scratch=tmp_path) as copy:
        async with connect(target.url) as c:
            with pytest.raises(ZeroDivisionError):
                await restore(c, copy, tell=lambda rows: None if rows < 1_500 else 1 / 0)  # type: ignore[arg-type, return-value]
            assert (await asyncio.to_thread(ctl, target, "restore", f"{tmp_path}/b", "--cancel")).returncode == 0
            assert [one async for one in c.kv.scan("n1")] == []
            with pytest.raises(ZeroDivisionError):
                await restore(c, copy, tell=lambda rows: None if rows < 1_500 else 1 / 0)  # type: ignore[arg-type, return-value]
            seen = await asyncio.to_thread(told, target, "status")
            restoring = {one["group"]: one["text"] for one in seen["problems"] if one["code"] == "restoring"}
            assert {*restoring} == {"metadata-0", "offset-0", "data-0", "data-1"}
            assert f"backup {manifest.id} is being put into it" in restoring["data-0"]
            image = c.image("kv")
            with pytest.raises(TimeoutError):  # what there is of it so far is shown to nobody
                await asyncio.wait_for(image.caught_up(), 1.5)
            leader = (await c.cluster.map()).leaders["data-0"]
            await asyncio.to_thread(target.kill, leader)
            done = await restore(c, copy)
            await image.caught_up()
            assert len(image["kv"]) == 3_000
            assert (done.already, done.groups) == (0, 4)
            await asyncio.to_thread(target.start, leader)
        assert await asyncio.to_thread(keys, target) == {f"k{i}" for i in range(3_000)}


def test_a_cluster_with_records_is_left_as_it_is(tmp_path: Path) -> None:
    with cluster(1, **SMALL) as source:
        put(source, 0, 5)
        told(source, "backup", f"{tmp_path}/b")
        same = ctl(source, "restore", f"{tmp_path}/b")
        assert same.returncode == 1
        assert "of which the backup was taken" in same.stderr
    with cluster(1, **SMALL) as target:
        put(target, 5, 6)
        refused = ctl(target, "restore", f"{tmp_path}/b")
        assert refused.returncode == 1
        assert "has records of table kv already: restore into an empty cluster" in refused.stderr
        assert refused.stderr.count("\n") == 1
        put(target, 6, 20)
        assert keys(target) == {f"k{i}" for i in range(5, 20)}


def test_what_is_damaged_or_missing_is_no_backup(tmp_path: Path) -> None:
    with cluster(1, **SMALL) as source:
        put(source, 0, 5)
        told(source, "backup", f"{tmp_path}/b")
        name = told(source, "backup", f"{tmp_path}/b")["backup"]
    place = tmp_path / "b"
    (sst,) = [one.sha256 for one in Repository(str(place)).backup().nodes[0].files if one.name.endswith(".sst")][:1]
    file = place / "files" / sst[:2] / sst
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    for words in (["verify", "--quick"], ["ls"]):
        done = ctl(None, "backup", words[0], str(place), *words[1:])
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "is damaged: its checksum differs" in done.stderr
    file.unlink()
    assert "is missing" in ctl(None, "backup", "verify", str(place)).stderr
    file.write_bytes(whole)
    manifest = place / "backups" / f"{name}.json"
    manifest.write_text(manifest.read_text().replace('"data-0"', '"data-9"'))
    assert "is damaged: its checksum differs" in ctl(None, "backup", "list", str(place)).stderr
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("somebody's")
    assert "has no backups of metad" in ctl(None, "backup", "list", str(tmp_path / "other")).stderr
    with pytest.raises(BackupError, match="is not empty"):
        Repository(str(tmp_path / "other"), create=True)


async def test_one_that_breaks_off_is_gone_on_with_and_a_restart_of_the_node_is_said(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path / "b"), create=True)
    with cluster(1, **SMALL) as source:
        put(source, 0, 1_000)
        async with connect(source.url) as c:
            begun = await c.backups.checkpoint("n1", "mine")
            assert (await c.backups.checkpoint("n1", "mine")) == begun  # asked again
            assert await c.backups.read("n1", "mine", "CURRENT", 0, 100) != b""
            for name in ("../../LOCK", "/etc/passwd", "nothing"):
                with pytest.raises(NotFoundError):
                    await c.backups.read("n1", "mine", name, 0, 100)
            await asyncio.to_thread(source.kill, "n1")
            await asyncio.to_thread(source.start, "n1")
            with pytest.raises(NotFoundError, match="the node has started since"):
                await c.backups.read("n1", "mine", "CURRENT", 0, 100)
            with pytest.raises(ZeroDivisionError):
                await take(c, repository, tell=lambda at: None if at.files < 3 else 1 / 0)  # type: ignore[arg-type, return-value]
            assert repository.backups() == []
            assert await take(c, repository)
            assert [*(tmp_path / "b" / "unfinished").glob("*")] == []


def test_a_leader_that_was_killed_just_before_only_delays_it(tmp_path: Path) -> None:
    """Once one failed at once: ``conflict: data-0: no leader of data-0 is known``."""
    with cluster(3, **SMALL) as source:
        put(source, 0, 200)
        with client(source) as c:
            leader = c.cluster.map().leaders["data-0"]
        source.kill(leader)
        taken = told(source, "backup", f"{tmp_path}/b", "--timeout", "30")
        assert taken["nodes"]
        assert leader not in taken["nodes"]
        assert taken["stale"] == []
        wait_until(lambda: told(source, "status")["newest_backup"] is not None, "the audit trail knows of it")
        newest = told(source, "status", "--backup-older-than", "1h")["newest_backup"]
        assert (newest["backup"], newest["age_ms"] < 600_000) == (taken["backup"], True)
        old = [one["code"] for one in told(source, "status", "--backup-older-than", "0s")["problems"]]
        assert "backup_old" in old
    (row,) = [row for row in told(None, "backup", "ls", f"{tmp_path}/b")["tables"] if row["table"] == "kv"]
    assert row["records"] == 200


def test_what_a_killed_process_has_left_goes_with_the_next_and_no_running_ones(tmp_path: Path) -> None:
    begun = "import sys, time, pathlib; from metad_backup.copies import scratch_directory as s\n"
    begun += (
        "with s(pathlib.Path(sys.argv[1])) as d:\n  (d / 'f').write_text('x'); print(d, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", begun, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        places = [Path(one.stdout.readline().strip()) for one in running if one.stdout is not None]
        running[0].kill()
        running[0].wait()
        with scratch_directory(tmp_path) as mine:
            assert mine.is_dir()
            assert [(place / "f").exists() for place in places] == [False, True]
        assert len([*tmp_path.iterdir()]) == 2, "the directory and the lock of who runs"
    finally:
        for one in running:
            one.kill()
            one.communicate()
