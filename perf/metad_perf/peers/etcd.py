"""etcd's nodes: three members on ports of their own.

All settings are etcd's defaults, durability above all, except the number of operations that a transaction may have.
"""

from __future__ import annotations

from pathlib import Path

from metad_wire.program.running import run_async

from .etcd_client import member_status
from .nodes import Nodes, find

TXN_OPS_MAX = 2_000
"""A takeover of a session is two: its owner is put, its properties are read."""
_NODES = 3


class Etcd:
    """See :class:`~metad_perf.peers.peer.Peer`."""

    def __init__(self, directory: Path) -> None:
        self._program = find("etcd", "etcd", "etcd-server")
        self._directory = directory
        self._nodes = Nodes("etcd", directory)
        ports = self._nodes.ports(2 * _NODES)
        self._clients = {f"e{n}": f"127.0.0.1:{port}" for n, port in enumerate(ports[:_NODES])}
        self._members = {f"e{n}": f"http://127.0.0.1:{port}" for n, port in enumerate(ports[_NODES:])}
        self._leader = ""
        self._version = ""

    def start(self) -> None:
        """Start all members and wait until they have a leader."""
        cluster = ",".join(f"{name}={url}" for name, url in self._members.items())
        for name, member in self._members.items():
            client = f"http://{self._clients[name]}"
            argv = [self._program, "--name", name, "--data-dir", str(self._directory / name)]
            argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
            argv += ["--listen-peer-urls", member, "--initial-advertise-peer-urls", member]
            argv += ["--initial-cluster", cluster, "--initial-cluster-state", "new"]
            argv += ["--max-txn-ops", str(TXN_OPS_MAX), "--logger", "zap", "--log-level", "warn"]
            self._nodes.start(name, argv)
        self._nodes.wait(self._find_leader)

    def endpoints(self) -> str:
        """The leader first."""
        return ",".join(self._clients[name] for name in sorted(self._clients, key=lambda name: name != self._leader))

    def settings(self) -> dict[str, object]:
        """etcd syncs its log before it answers."""
        return {
            "version": self._version,
            "nodes": _NODES,
            "fsync": True,
            "flags": ["--max-txn-ops", str(TXN_OPS_MAX)],
            "transport": "gRPC over HTTP/2, no TLS, to the leader",
        }

    def cpu_us(self) -> int:
        """Of all members."""
        return self._nodes.cpu_us()

    def rss_bytes(self) -> int:
        """Of all members."""
        return self._nodes.rss_bytes()

    def kill_leader(self) -> None:
        """It stays dead."""
        self._find_leader()
        self._nodes.kill(self._leader)

    def stop(self) -> None:
        """In good order."""
        self._nodes.stop()

    def _find_leader(self) -> bool:
        found = {name: run_async(member_status(endpoint, 1.0)) for name, endpoint in self._clients.items()}
        for name, status in found.items():
            if status is not None and status.leads and all(one is not None for one in found.values()):
                self._leader, self._version = name, status.version
                return True
        return False
