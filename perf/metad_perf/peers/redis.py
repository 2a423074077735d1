"""Redis's nodes: one that is written to, and two replicas that follow it. Each syncs its file of commands at every
write.

A write is answered when the first node has synced it. The replicas get it later, and nobody elects another node: Redis
is the floor, what the work costs without consensus on each write.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

from ..errors import UsageError
from .nodes import Nodes, find

_FLAGS = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
_NODES = 3
_WORDS_S = 1.0


class Redis:
    """See :class:`~metad_perf.peers.peer.Peer`."""

    def __init__(self, directory: Path) -> None:
        self._program = find("redis", "redis-server", "redis-server")
        self._directory = directory
        self._nodes = Nodes("redis", directory)
        self._ports = self._nodes.ports(_NODES)
        self._version = ""

    def start(self) -> None:
        """Start all nodes and wait until the replicas follow."""
        first = self._ports[0]
        for n, port in enumerate(self._ports):
            data = self._directory / f"r{n}"
            data.mkdir()
            argv = [self._program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data), *_FLAGS]
            if port != first:
                argv += ["--replicaof", "127.0.0.1", str(first)]
            self._nodes.start(f"r{n}", argv)
        self._nodes.wait(self._followed)

    def endpoints(self) -> str:
        """The node that is written to comes first."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def settings(self) -> dict[str, object]:
        """Durable on one node when it answers."""
        return {
            "version": self._version,
            "nodes": _NODES,
            "fsync": True,
            "consensus": False,
            "flags": [one or '""' for one in _FLAGS],
            "transport": "Redis's protocol over TCP, no TLS, to the one node that is written to",
        }

    def cpu_us(self) -> int:
        """Of all nodes."""
        return self._nodes.cpu_us()

    def rss_bytes(self) -> int:
        """Of all nodes."""
        return self._nodes.rss_bytes()

    def kill_leader(self) -> None:
        """Without Sentinel nobody takes its place."""
        raise UsageError("redis: no other node takes the place of one that was killed")

    def stop(self) -> None:
        """In good order."""
        self._nodes.stop()

    def _followed(self) -> bool:
        said = _info(self._ports[0])
        self._version = "".join(re.findall(r"redis_version:([\d.]+)", said))
        return said.count("state=online") == _NODES - 1


def _info(port: int) -> str:
    """What a node says of itself; empty if it does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), _WORDS_S) as sock:
            sock.sendall(b"INFO server\r\nINFO replication\r\nQUIT\r\n")
            sock.settimeout(_WORDS_S)
            parts = []
            while part := sock.recv(65_536):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""
