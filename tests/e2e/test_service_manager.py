"""A node that a service manager has started says READY only once it answers, and STOPPING when it is told to end; so
do workers together, and a node that waits for others says what it waits for."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e_server import Server, free_ports

from metad_client import ConnectionLostError, Options, blocking
from waiting import wait_until


class Manager:
    """What systemd would hear."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "600000"}
        self.lines: list[str] = []

    def heard(self, line: str) -> bool:
        """Whether a datagram with this line has come."""
        try:
            while True:
                self.lines += self._socket.recv(4_096).decode().splitlines()
        except BlockingIOError:
            return any(each.startswith(line) for each in self.lines)

    def until(self, line: str) -> None:
        wait_until(lambda: self.heard(line), line)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


def _told_to_end(server: Server, manager: Manager, ended: Callable[[], int]) -> None:
    manager.lines.clear()
    server.process.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1")
    assert ended() == 0
    manager.heard("")
    assert "READY=1" not in manager.lines


def test_a_node_is_ready_once_it_answers(tmp_path: Path, manager: Manager) -> None:
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    with Server(tmp_path / "data", listen=listen, environment=manager.environment) as server:
        manager.until("READY=1")
        with blocking.connect(f"metad://{listen}") as client:  # at once: whoever waits for READY finds it there
            client.kv.put("ns", "k", b"1", deadline_s=1)
        assert f"STATUS=node node-1 serves at {listen}: leads 5 of 5 groups" in "\n".join(manager.lines)
        manager.lines.clear()
        manager.until("WATCHDOG=1")
        server.process.send_signal(signal.SIGSTOP)
        manager.heard("")
        manager.lines.clear()
        with pytest.raises(ConnectionLostError):  # for longer than three beats take
            blocking.connect(f"metad://{listen}", Options(connect_timeout_s=1))
        assert not manager.heard("WATCHDOG=1"), "a loop that stands still feeds no watchdog"
        server.process.send_signal(signal.SIGCONT)
        manager.until("WATCHDOG=1")
        _told_to_end(server, manager, server.exited)
        assert not server.events("manager_unreachable")


def test_a_founder_that_is_alone_is_not_ready_and_says_why(tmp_path: Path, manager: Manager) -> None:
    seeds = dict(zip("abc", (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True))
    inline = ", ".join(f'{name} = "{at}"' for name, at in seeds.items())

    def toml(name: str) -> str:
        return f'node_id = "{name}"\n[cluster]\nseeds = {{ {inline} }}\n'

    with Server(tmp_path / "a", config=toml("a"), environment=manager.environment) as first:
        manager.until("STATUS=node a waits for its groups to have leaders")
        wait_until(lambda: first.events("listening"), "its listeners")
        assert not manager.heard("READY=1")
        with Server(tmp_path / "b", config=toml("b")).ready():
            manager.until("READY=1")
            _told_to_end(first, manager, first.exited)


def test_workers_are_ready_together_and_only_their_supervisor_speaks(tmp_path: Path, manager: Manager) -> None:
    first, _, _, _ = free_ports(4)
    flags = ["--workers", "2"]
    with Server(tmp_path / "data", listen=f"127.0.0.1:{first}", flags=flags, environment=manager.environment) as server:
        try:
            manager.until("READY=1")
            assert server.ready_file.exists()
            assert "STATUS=2 of 2 processes run" in manager.lines
            assert not any("serves at" in line for line in manager.lines)
            manager.until("WATCHDOG=1")
            _told_to_end(server, manager, server.exited)
        finally:
            server.terminate()  # a supervisor that is killed leaves its workers
