"""What a service manager is told: over a path and an abstract socket, all that it has to hear even if its queue is
full, and nothing that could hold up a node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metad.service_manager import ServiceManager
from waiting import until

Heard = Callable[[], list[str]]


@pytest.fixture(params=["path", "abstract"])
def manager_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"\0metad-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.setblocking(False)
        yield address.replace("\0", "@"), listener


def heard(listener: socket.socket) -> list[str]:
    lines: list[str] = []
    while True:
        try:
            lines.append(listener.recv(4_096).decode())
        except BlockingIOError:
            return lines


async def test_ready_and_stopping_are_told_with_a_status(manager_socket: tuple[str, socket.socket]) -> None:
    address, listener = manager_socket
    manager = ServiceManager.of({"NOTIFY_SOCKET": address}, os.getpid())
    assert heard(listener) == []
    manager.ready("serves")
    manager.stopping("ends")
    manager.ready("serves after all")
    assert heard(listener) == ["READY=1\nSTATUS=serves", "STOPPING=1\nSTATUS=ends"]


async def test_the_watchdog_is_fed_from_the_loop_and_a_status_is_told_when_it_changes(
    manager_socket: tuple[str, socket.socket],
) -> None:
    address, listener = manager_socket
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    manager = ServiceManager.of(environment, os.getpid())
    status, lines = "starts", []
    beating = asyncio.create_task(manager.keep_alive(lambda: status))

    def beats() -> bool:
        lines.extend(heard(listener))
        return len(lines) > 3

    await until(beats)
    assert lines[0] == "WATCHDOG=1\nSTATUS=starts"
    assert set(lines[1:]) == {"WATCHDOG=1"}
    status = "waits"
    await until(lambda: beats() and "WATCHDOG=1\nSTATUS=waits" in lines)
    manager.stopping("ends")
    status = "not told any more"
    lines.clear()
    await until(beats)
    beating.cancel()
    assert lines[0] == "STOPPING=1\nSTATUS=ends"
    assert set(lines[1:]) == {"WATCHDOG=1"}


@pytest.mark.parametrize(
    "environment", [{}, {"WATCHDOG_PID": "1", "WATCHDOG_USEC": "30000"}, {"WATCHDOG_USEC": "soon"}], ids=str
)
async def test_without_a_watchdog_of_our_own_there_are_no_beats(
    manager_socket: tuple[str, socket.socket], environment: dict[str, str]
) -> None:
    address, listener = manager_socket
    manager = ServiceManager.of({"NOTIFY_SOCKET": address, **environment}, os.getpid())
    beating = asyncio.create_task(manager.keep_alive(lambda: "starts"))
    assert await until(lambda: heard(listener)) == ["STATUS=starts"]
    beating.cancel()
    assert manager._watchdog_s == 0


async def test_what_a_full_queue_keeps_out_is_told_later(manager_socket: tuple[str, socket.socket]) -> None:
    """A start whose READY is lost would fail."""
    address, listener = manager_socket
    manager = ServiceManager(address, watchdog_s=0.03)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                other.sendto(b"STATUS=noise", address.replace("@", "\0"))
    manager.ready("serves")
    assert "READY=1" not in "".join(heard(listener))
    beating = asyncio.create_task(manager.keep_alive(lambda: "serves"))
    assert (await until(lambda: heard(listener)))[0] == "READY=1\nWATCHDOG=1"
    beating.cancel()


@pytest.mark.parametrize("address", ["/nowhere/notify", "vsock:2:1234", "relative", "/a\0b", "@" + "x" * 200])
async def test_a_manager_that_cannot_be_told_is_said_in_the_log(address: str, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager(address)
    manager.ready("serves")
    manager.stopping("ends")
    assert "manager_unreachable" in {record.getMessage() for record in caplog.records}


async def test_without_a_manager_nothing_is_told_and_nothing_runs() -> None:
    manager = ServiceManager.of({"WATCHDOG_USEC": "30000"}, os.getpid())
    manager.ready("serves")
    manager.stopping("ends")
    await asyncio.wait_for(manager.keep_alive(lambda: pytest.fail("nobody asks")), 10)
