"""A disk that fills up, with a real process on a small file system: what grows is refused, deletes make room, and a
node that was killed with a full disk starts again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import metadctl
from e2e_nodes import NAMES, Nodes
from e2e_server import Server, free_ports

from metad_client import Client, KvDeleteItem, KvPutItem, MetadError, NoRoomError, SessionProperties, connect
from waiting import wait_until

DISK_MIB = 224
BATCH, VALUE_BYTES = 50, 8_000
SMALL_MIB = 160
PUTS, PUT_BYTES = 120, 900_000
AGAIN_S = 40.0
"""Within this time writes are taken again after everything was deleted: 0 to 7 seconds were measured."""


@contextlib.contextmanager
def mounted(directory: Path, mib: int) -> Iterator[Path]:
    """The directory as a file system of its own. Without the right to mount one the test is skipped."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A data directory on a file system of its own."""
    with mounted(tmp_path / "data", DISK_MIB) as directory:
        yield directory


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Path]:
    """The home of three nodes, each with a disk of 160 MB."""
    with contextlib.ExitStack() as mounts:
        for name in NAMES:
            mounts.enter_context(mounted(tmp_path / name, SMALL_MIB))
        yield tmp_path


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    filler = disk / "filler"
    with filler.open("ab") as file:
        size = 1 << 24
        while size >= 4096:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    return filler


async def put(m: Client, number: int) -> None:
    items = [KvPutItem("n", f"{number:06}/{i}", os.urandom(VALUE_BYTES)) for i in range(BATCH)]
    (await m.kv.put_many(items)).raise_for_error()


async def delete(m: Client, number: int) -> None:
    await m.kv.delete_many([KvDeleteItem("n", f"{number:06}/{i}") for i in range(BATCH)])


async def fill_by_writing(m: Client) -> int:
    """Write until there is lastingly no room; how many batches were written."""
    written, refused = 0, list[NoRoomError]()
    while len(refused) < 8:
        try:
            await put(m, written)
        except NoRoomError as error:
            refused.append(error)
            await asyncio.sleep(0.5)
        else:
            written, refused = written + 1, []
    assert all("node-1" in str(error) and error.outcome_known for error in refused)
    return written


async def put_again(m: Client, number: int) -> None:
    """Once there is room."""
    for _ in range(240):
        try:
            await put(m, number)
            return
        except NoRoomError:
            await asyncio.sleep(0.5)
    raise AssertionError("no room was made")


async def test_a_disk_that_clients_fill(disk: Path) -> None:
    with Server(disk) as server:
        server.ready()
        async with connect(server.url) as m:
            written = await fill_by_writing(m)
            assert await m.kv.get("n", "000000/0") is not None, "reads go on"
            for number in range(written):
                await delete(m, number)
            await put_again(m, written)
        assert server.events("disk_short")
        assert server.terminate() == 0, server.stderr


async def test_a_node_that_was_killed_with_a_full_disk_starts(disk: Path) -> None:
    with Server(disk) as server:
        server.ready()
        async with connect(server.url) as m:
            for number in range(60):
                await put(m, number)
            for _ in range(200):
                if (disk / "reserve").exists() and (disk / "reserve").stat().st_size > VALUE_BYTES * BATCH * 20:
                    break
                await asyncio.sleep(0.1)
        filler = fill(disk)
        server.kill()
    with Server(disk) as server:
        server.ready()
        assert server.events("reserve_released")
        async with connect(server.url) as m:
            await refused(m)
            assert await m.kv.get("n", "000000/0") is not None
            await delete(m, 0)
            assert await m.kv.get("n", "000000/0") is None
            server.kill()
    with Server(disk) as server:
        async with connect(server.ready().url) as m:
            assert await m.kv.get("n", "000000/0") is None, "and what it said then was so"
            filler.unlink()
            await put_again(m, 1_000)


def log_of_waiting(server: Server) -> list[dict[str, Any]]:
    return server.events("waits_for_room")


async def test_a_disk_that_others_fill_stops_a_node_and_does_not_end_it(disk: Path) -> None:
    """The filler takes all the room there is again and again, the reserve too."""
    with Server(disk) as server:
        process = server.ready().process
        async with connect(server.url) as m:
            await put(m, 0)
            for number in range(1, 1_000):
                filler = fill(disk)
                with contextlib.suppress(MetadError, TimeoutError):
                    async with asyncio.timeout(1):
                        await put(m, number) if number % 2 else await delete(m, number)
                # It opens its stores again at once if they leave room when they are closed.
                if log_of_waiting(server) and "disk_failing" in (said := await status_of(server)):
                    break
            assert "disk_full" in said
            assert process.poll() is None
            filler.unlink()
            await put_again(m, 1_001)
            assert await m.kv.get("n", "000000/0") is not None
        assert server.ready_file.exists(), "it serves at the same endpoint again"
        assert server.terminate() == 0, server.stderr


async def test_a_node_without_room_waits_for_some_at_its_start(disk: Path) -> None:
    with Server(disk) as server:
        async with connect(server.ready().url) as m:
            await put(m, 0)
        server.kill()
    (disk / "reserve").unlink(missing_ok=True)
    filler = fill(disk)
    with Server(disk) as server:
        wait_until(lambda: log_of_waiting(server), "the log says why it does not serve")
        assert log_of_waiting(server)[0]["missing_bytes"] > 0
        assert server.terminate() == 0, "it can be told to end meanwhile"
    (endpoint,) = free_ports(1)
    with Server(disk, listen=f"127.0.0.1:{endpoint}") as server:
        wait_until(lambda: log_of_waiting(server), "the log says why it does not serve")
        server.endpoint = f"127.0.0.1:{endpoint}"
        assert "is full: to open the stores takes" in await status_of(server)
        filler.unlink()
        async with connect(server.ready().url) as m:
            assert await m.kv.get("n", "000000/0") is not None


async def test_a_cluster_whose_disks_are_full_lives_and_takes_writes_again(disks: Path) -> None:
    """120 values of 0.9 MB, of which each node would write 220 MB to a disk of 160. One node is killed meanwhile."""
    kept = SessionProperties(expiry_interval_s=3_600)
    with Nodes(disks) as nodes:
        async with connect(nodes.url) as m:
            await m.sessions.takeover("b1", 1, "acme", "known", properties=kept)
            refused = 0
            for first in range(0, PUTS, 4):
                answers = await asyncio.gather(*(put_large(m, first + i) for i in range(4)), return_exceptions=True)
                failed = [answer for answer in answers if answer is not None]
                assert all(isinstance(answer, NoRoomError) for answer in failed), failed
                refused += len(failed)
            assert 0 < refused < PUTS
            alive(nodes)
            assert await m.kv.get("n", "0") is not None, "reads go on"
            assert await m.sessions.takeover("b2", 1, "acme", "known", properties=kept), "takeovers of what is there"
            nodes.kill("n1")
            nodes.restart("n1")
            await m.kv.delete_many([KvDeleteItem("n", str(number)) for number in range(PUTS)])
            until_s = asyncio.get_running_loop().time() + AGAIN_S
            for number in range(40):  # of room that was made for good, and not for one
                await once_there_is_room(partial(put_large, m, number), until_s)
            taken = partial(m.sessions.takeover, "b1", 1, "acme", "new", properties=kept)
            await once_there_is_room(taken, until_s)  # what the last of the puts wrote is not cut from the logs yet
            alive(nodes)
        assert any(server.events("disk_short") for server in nodes.servers.values())


async def put_large(m: Client, number: int) -> None:
    await m.kv.put("n", str(number), os.urandom(PUT_BYTES))


async def once_there_is_room(write: Callable[[], Awaitable[object]], until_s: float) -> None:
    """Do it, until it is not refused for lack of room any more. Raises NoRoomError if that takes too long."""
    while True:
        try:
            await write()
            return
        except NoRoomError:
            if asyncio.get_running_loop().time() >= until_s:
                raise
        await asyncio.sleep(0.2)


def alive(nodes: Nodes) -> None:
    """No node has ended, or had to close its stores."""
    for server in nodes.servers.values():
        assert server.process.poll() is None, server.stderr
        assert not log_of_waiting(server)


async def status_of(server: Server) -> str:
    """As an operator sees it."""
    return (await asyncio.to_thread(metadctl, server.endpoint, "status")).stdout


async def refused(m: Client) -> None:
    """A put is, and it is said at once."""
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises(NoRoomError) as caught:
        await put(m, 999)
    assert isinstance(caught.value, MetadError)
    assert asyncio.get_running_loop().time() - begun_s < 10
