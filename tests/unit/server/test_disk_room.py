"""A node whose disk is short of room: it refuses what grows, says so, and goes on with everything else."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import pytest
from server_rig import Rig, SteppedEnvironment

from metad.node.disk.checkpoints import DiskRoom
from metad.raft.base import FULL, LOW, ROOM
from metad.raft.log.journal import RaftLog
from metad.storage.room import DiskUse, keep_reserve, mark_of, missing_to_open, release_reserve
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import NoRoomError
from metad_wire.tables.broker import BrokerRegister

MIB = 1024 * 1024
MARK = 100 * MIB


class World(SteppedEnvironment):
    """Says what a test wants it to say of the disk."""

    free_bytes = 10 * MARK
    error: OSError | None = None

    def disk_use(self, directory: Path | None) -> DiskUse:
        if self.error is not None:
            raise self.error
        return DiskUse(self.free_bytes, 100 * MARK)


async def opened(monkeypatch: pytest.MonkeyPatch, free_bytes: int = 10 * MARK) -> tuple[Rig, World]:
    monkeypatch.setattr("server_rig.SteppedEnvironment", World)
    monkeypatch.setattr(World, "free_bytes", free_bytes)
    rig = Rig(storage={"low_room_bytes": MARK})
    await rig.open()
    world = rig.node.environment
    assert isinstance(world, World)
    return rig, world


async def looked(room: DiskRoom) -> None:
    for _ in range(10_000):
        if not room._looking:
            break
        await asyncio.sleep(0.001)


async def seen(rig: Rig, world: World, free_bytes: int) -> int:
    """How the disk is once the node has seen this."""
    room = rig.node.disk_room
    world.free_bytes = free_bytes
    await looked(room)  # what began before saw something else
    room.look()
    await looked(room)
    return room.shortage


PUT = m.KvPut([m.KvPutItem("n", "k", b"v")])


async def test_what_grows_is_refused_and_deletes_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, world = await opened(monkeypatch)
    await rig.ask(methods.KV_PUT, PUT)
    assert await seen(rig, world, MARK - 1) == LOW
    entries = rig.entries
    error = (await rig.answered(rig.send(methods.KV_PUT, PUT))).error
    assert isinstance(error, NoRoomError)
    assert "node-1" in str(error)
    assert not error.retryable
    assert error.outcome_known
    assert rig.entries == entries, "a refusal took room in the log"
    await rig.ask(methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", "k")]))
    assert (await rig.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey("n", "k")]))).found == [None]
    register = (await rig.answered(rig.send(methods.BROKER_REGISTER, BrokerRegister("b"), group=""))).error
    assert isinstance(register, NoRoomError)
    assert await seen(rig, world, 2 * MARK) == ROOM
    await rig.ask(methods.KV_PUT, PUT)
    await rig.close()


async def test_a_retry_of_what_was_done_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, world = await opened(monkeypatch)
    identity = m.Identity(1, 1, 0)
    first = await rig.ask(methods.KV_PUT, PUT, identity)
    await seen(rig, world, 0)
    assert await rig.ask(methods.KV_PUT, PUT, identity) == first
    assert isinstance((await rig.answered(rig.send(methods.KV_PUT, PUT, m.Identity(1, 2, 0)))).error, NoRoomError)
    await rig.close()


async def test_there_is_room_again_only_with_some_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, world = await opened(monkeypatch)
    assert await seen(rig, world, MARK + MIB) == ROOM
    assert await seen(rig, world, MARK - 1) == LOW
    assert await seen(rig, world, MARK + MARK // 8) == LOW
    assert await seen(rig, world, MARK // 9) == FULL
    assert await seen(rig, world, 2 * MARK) == ROOM
    await rig.close()


async def test_a_node_that_starts_knows_how_its_disk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, _ = await opened(monkeypatch, MARK // 2)
    assert isinstance((await rig.answered(rig.send(methods.KV_PUT, PUT))).error, NoRoomError)
    await rig.close()


async def test_a_disk_that_cannot_be_seen_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, world = await opened(monkeypatch)
    await seen(rig, world, 0)
    world.error = OSError(errno.EIO, "broken")
    assert await seen(rig, world, 0) == FULL
    world.error = None
    assert await seen(rig, world, 10 * MARK) == ROOM
    await rig.close()


async def test_what_is_in_memory_counts_as_taken_and_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, world = await opened(monkeypatch)
    rig.node.checkpoints.log_grown(MARK)
    assert await seen(rig, world, 2 * MARK) == LOW, "all that is in memory would not fit"
    for _ in range(10_000):
        if not rig.node.checkpoints.flushing:
            break
        await rig.settle()
        await asyncio.sleep(0.001)
    assert rig.node.checkpoints.unwritten_bytes == 0
    assert await seen(rig, world, 2 * MARK) == ROOM
    await rig.close()


@pytest.mark.parametrize("earlier", [False, True])
async def test_nothing_is_said_of_a_log_whose_bytes_are_not_known(
    monkeypatch: pytest.MonkeyPatch, *, earlier: bool
) -> None:
    rig, world = await opened(monkeypatch)
    said: list[int | None] = []
    monkeypatch.setattr(RaftLog, "has_earlier", earlier)
    monkeypatch.setattr(rig.node._stores.log.engine, "reclaim", said.append)
    rig.node.checkpoints.log_grown(8 * MIB)
    await seen(rig, world, MARK // 2)
    for _ in range(10_000):
        if said:
            break
        await asyncio.sleep(0.001)
    assert (said[0] is None) == earlier
    await rig.settle()
    await rig.close()


async def test_the_status_says_how_much_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, world = await opened(monkeypatch)
    await seen(rig, world, 3 * MARK)
    unwritten = rig.node.checkpoints.unwritten_bytes
    assert rig.node.status().disk == m.DiskStatus(3 * MARK - unwritten, 100 * MARK, MARK, ROOM)
    await rig.close()


@pytest.mark.parametrize("free_bytes", [0, MARK // 9, MARK // 2, MARK, MARK * 5 // 4, 3 * MARK])
async def test_what_the_status_says_is_what_the_node_goes_by(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also between two looks, and until there is 1.25 times the mark."""
    rig, world = await opened(monkeypatch)
    for before in (free_bytes, 0, free_bytes, 10 * MARK, free_bytes):
        await seen(rig, world, before)
        left = before
        for grown in (0, MARK // 4, MARK):
            rig.node.checkpoints.log_grown(grown)
            left -= grown
            disk, put = rig.node.status().disk, await rig.answered(rig.send(methods.KV_PUT, PUT))
            assert bool(disk.short) == isinstance(put.results[0], NoRoomError)
            assert disk.short == rig.node.disk_room.shortage
            assert disk.short or disk.free_bytes >= disk.low_bytes
            assert disk.free_bytes <= max(0, left)
    lines = [json.loads(line) for line in caplog.messages if line.startswith("{")]
    assert all(line["free_bytes"] < line["low_bytes"] for line in lines if line["event"] == "disk_short")
    assert all(line["free_bytes"] >= line["low_bytes"] for line in lines if line["event"] == "disk_has_room")
    await rig.close()


async def test_much_growth_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, world = await opened(monkeypatch)
    await seen(rig, world, 3 * MARK)
    world.free_bytes = MARK // 2
    rig.node._log_grown(MARK // 8)
    for _ in range(10_000):
        if rig.node.disk_room.status.free_bytes < MARK:
            break
        await asyncio.sleep(0.001)
    assert rig.node.disk_room.shortage == LOW
    await rig.close()


async def test_a_full_disk_gives_the_reserve_up_and_keeps_it_before_anything_grows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rig, world = await opened(monkeypatch)
    rig.node.disk_room._directory = tmp_path
    await seen(rig, world, 3 * MARK)
    reserve = tmp_path / "reserve"
    size = reserve.stat().st_size
    assert size == MARK // 4
    await seen(rig, world, MARK // 9)
    assert not reserve.exists()
    assert await seen(rig, world, MARK * 5 // 4 + size - 1) == LOW, "what the reserve lacks is not free"
    assert not reserve.exists()
    assert await seen(rig, world, MARK * 5 // 4 + size + MIB) == ROOM
    assert reserve.stat().st_size == size
    await rig.close()


def test_the_mark_is_a_tenth_of_a_small_disk() -> None:
    assert mark_of(DiskUse(0, 10_000), 512) == 512
    assert mark_of(DiskUse(0, 1_000), 512) == 100


def test_the_reserve_is_kept_while_there_is_room_and_given_up_to_start(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "000001.log").write_bytes(bytes(MIB))
    reserve = tmp_path / "reserve"
    keep_reserve(tmp_path, DiskUse(20 * MIB, 100 * MIB), 8 * MIB)
    assert not reserve.exists() or reserve.stat().st_size == 3 * MIB
    reserve.unlink(missing_ok=True)
    keep_reserve(tmp_path, DiskUse(9 * MIB, 100 * MIB), 8 * MIB)
    assert not reserve.exists(), "it would take what clients may need"
    keep_reserve(tmp_path, DiskUse(900 * MIB, 1_000 * MIB), 8 * MIB)
    assert not reserve.exists(), "nobody needs it yet"
    keep_reserve(tmp_path, DiskUse(90 * MIB, 100 * MIB), 8 * MIB)
    assert reserve.stat().st_size == 3 * MIB
    assert not release_reserve(tmp_path, DiskUse(3 * MIB, 100 * MIB), 8 * MIB)
    assert release_reserve(tmp_path, DiskUse(3 * MIB - 1, 100 * MIB), 8 * MIB) == 3 * MIB
    assert not reserve.exists()
    assert not release_reserve(tmp_path, DiskUse(0, 100 * MIB), 8 * MIB)


def test_to_open_the_stores_takes_what_is_to_be_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = DiskUse(3 * MIB, 100 * MIB)
    monkeypatch.setattr("metad.storage.room.use_of", lambda _: use)
    assert missing_to_open(tmp_path) == 0
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "000001.log").write_bytes(bytes(5 * MIB))
    assert missing_to_open(tmp_path) == 2.5 * MIB
    (tmp_path / "reserve").write_bytes(bytes(3 * MIB))
    assert missing_to_open(tmp_path) == 0, "the reserve is for that"
    use = DiskUse(0, 100 * MIB)
    assert missing_to_open(tmp_path) == 2.5 * MIB
