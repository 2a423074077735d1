"""A node whose disk is short of room: it refuses what grows, says so, and goes on with everything else."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from server_rig import Rig, SteppedEnvironment

from metad.config import StorageConfig
from metad.node.disk.checkpoints import DiskRoom
from metad.raft.base import FULL, LOW, ROOM
from metad.raft.log.journal import RaftLog
from metad.storage.room import DiskUse, Trend, keep_reserve, lend_reserve, mark_of, missing_to_open, release_reserve
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
    monkeypatch.setattr(Rig, "environment", World)
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


def said(caplog: pytest.LogCaptureFixture, key: str) -> list[dict[str, Any]]:
    """The fields of each event of this kind."""
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == key]


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
    rig.node.checkpoints.log_grown(2 * MARK + MIB)
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
    monkeypatch.setattr(rig.node.stores.log.engine, "reclaim", lambda left, spare: said.append(left))
    rig.node.checkpoints.log_grown(8 * MIB)
    await seen(rig, world, MARK // 2)
    for _ in range(10_000):
        if said:
            break
        await asyncio.sleep(0.001)
    assert (said[0] is None) == earlier
    await rig.settle()
    await rig.close()


@pytest.mark.parametrize(("free_bytes", "lent"), [(MARK // 2, True), (MARK * 3 // 2, False)])
async def test_the_reserve_is_lent_only_below_the_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, *, lent: bool
) -> None:
    """While more may be written, what is dropped must leave the mark."""
    rig, world = await opened(monkeypatch, free_bytes)
    reserve, spared = tmp_path / "reserve", list[int]()
    reserve.write_bytes(bytes(1_000))

    def reclaim(left: int | None, spare: int = 0) -> int:
        spared.append(spare)
        return 1_000 if reserve.exists() else 0

    monkeypatch.setattr(rig.node.checkpoints, "_directory", tmp_path)
    monkeypatch.setattr(rig.node.stores.state, "reclaim", reclaim)
    await seen(rig, world, free_bytes)
    for _ in range(10_000):
        if spared and not rig.node.checkpoints.flushing:
            break
        await asyncio.sleep(0.001)
    assert reserve.exists() != lent
    assert set(spared) == {0 if lent else MARK}
    await rig.settle()
    await rig.close()


async def test_what_is_being_written_anew_counts_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise entries of leaders elsewhere take the rest."""
    rig, world = await opened(monkeypatch)
    assert await seen(rig, world, MARK // 2) == LOW
    monkeypatch.setattr(type(rig.node.stores.state), "reclaiming_bytes", MARK // 8, raising=False)
    assert rig.node.disk_room.shortage == LOW
    monkeypatch.setattr(type(rig.node.stores.state), "reclaiming_bytes", MARK // 5, raising=False)
    assert rig.node.disk_room.shortage == FULL
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
    short, has_room = said(caplog, "disk_short"), said(caplog, "disk_has_room")
    assert short
    assert all(line["free_bytes"] < line["low_bytes"] for line in short)
    assert all(line["free_bytes"] >= line["low_bytes"] for line in has_room)
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
    assert mark_of(DiskUse(0, 10_000), StorageConfig(low_room_bytes=512)) == 512
    assert mark_of(DiskUse(0, 1_000), StorageConfig(low_room_bytes=512)) == 100


def test_the_mark_is_a_share_of_the_disk_where_that_is_more() -> None:
    config = StorageConfig(low_room_bytes=512, low_room_share=0.2)
    assert mark_of(DiskUse(0, 1_000), config) == 200
    assert mark_of(DiskUse(0, 2_560), config) == 512
    assert mark_of(DiskUse(0, 10_000), config) == 2_000


def shrunk(*rates: tuple[int, int, int]) -> Trend:
    """What is seen twice a second of a disk with 10 GB free: (seconds, bytes that go in each, bytes of a file that
    comes and goes with every minute)."""
    trend, now_s, free_bytes = Trend(), 0.0, 10**10
    for seconds, per_s, file_bytes in rates:
        for _ in range(2 * seconds):
            now_s, free_bytes = now_s + 0.5, free_bytes - per_s // 2
            trend.see(now_s, free_bytes - (file_bytes if now_s % 60 > 40 else 0))
    return trend


def test_how_long_the_room_lasts_is_how_fast_it_shrank() -> None:
    assert shrunk((600, 1_000, 0)).lasts_s(10**6) == pytest.approx(1_000)
    assert shrunk((600, 1_000, 0)).lasts_s(-5) == 0


def test_room_that_does_not_shrink_lasts() -> None:
    assert Trend().lasts_s(10**9) is None
    assert shrunk((600, 0, 0)).lasts_s(10**9) is None
    assert shrunk((600, -1_000, 0)).lasts_s(0) is None
    assert shrunk((3, 1_000_000, 0)).lasts_s(10**6) is None, "a moment is no trend"
    assert shrunk((3_600, 0, 10**9)).lasts_s(10**9) is None, "a compaction is none either"


def test_a_trend_is_believed_for_thirty_times_as_long_as_it_was_seen() -> None:
    trend = shrunk((600, 1_000, 0))
    assert trend.lasts_s(10**7) == pytest.approx(10_000)
    assert trend.lasts_s(10**8) is None


def test_the_fastest_of_three_spans_counts() -> None:
    trend = shrunk((7_200, 1_000, 0), (60, 10**6, 0))
    assert trend.lasts_s(10**7) == pytest.approx(10, rel=0.1), "what began a minute ago"
    trend = shrunk((7_200, 1_000, 0), (300, 0, 0))
    assert trend.lasts_s(10**7) == pytest.approx(10**4, rel=0.1), "a pause of minutes is no end"


def test_the_trend_keeps_no_more_than_three_times_thirty_samples() -> None:
    trend = shrunk((10_000, 1, 0))
    assert sum(len(span._seen) for span in trend._spans) <= 93


async def test_status_and_log_say_how_long_the_room_lasts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig, world = await opened(monkeypatch)
    now_s = rig.node.environment.now()
    monkeypatch.setattr(world, "now", lambda: now_s)
    assert rig.node.status().disk.lasts_ms is None
    for step in range(12):
        now_s += 2.0
        await seen(rig, world, 3 * MARK - step * MIB)
    disk = rig.node.status().disk
    assert disk.lasts_ms == pytest.approx((disk.free_bytes - MARK) / MIB * 2_000, rel=0.05)
    await seen(rig, world, MARK - 1)
    (line,) = said(caplog, "disk_short")
    assert line["total_bytes"] == 100 * MARK
    assert line["lasts_ms"] == pytest.approx(line["free_bytes"] / MIB * 2_000, rel=0.05), "until nothing is left"
    assert rig.node.status().disk.lasts_ms is not None
    await rig.close()


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


def test_the_reserve_is_lent_for_what_it_is_enough_for(tmp_path: Path) -> None:
    assert not lend_reserve(tmp_path, 1)
    (tmp_path / "reserve").write_bytes(bytes(3_000))
    assert not lend_reserve(tmp_path, 3_001)
    assert lend_reserve(tmp_path, 3_000) == 3_000
    assert not (tmp_path / "reserve").exists()


def test_a_log_that_is_deleted_meanwhile_takes_no_room(tmp_path: Path) -> None:
    """The store does that at any time, and a look must not fail of it."""
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "000001.log").symlink_to(tmp_path / "gone")
    assert keep_reserve(tmp_path, DiskUse(9 * MIB, 100 * MIB), 8 * MIB) == 2 * MIB
    assert missing_to_open(tmp_path) == 0


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
