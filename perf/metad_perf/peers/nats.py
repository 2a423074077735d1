"""NATS's nodes: a cluster of three servers with JetStream, whose buckets have three replicas.

Servers from 2.10 on sync each write before they acknowledge it (``sync_interval: always``). Older ones, such as
Debian's, cannot; they sync every two minutes, and then an acknowledged write is in the memory of most nodes and not on
their disks.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ..running import run_async
from .nats_client import REPLICAS, leader
from .nodes import Nodes, find

_NODES = 3
_SYNC_ALWAYS_SINCE = (2, 10)


class Nats:
    """See :class:`~metad_perf.peers.peer.Peer`."""

    def __init__(self, directory: Path) -> None:
        self._program = find("nats", "nats-server", "nats-server")
        self._directory = directory
        self._nodes = Nodes("nats", directory)
        ports = self._nodes.ports(2 * _NODES)
        self._clients = {f"n{n}": port for n, port in enumerate(ports[:_NODES])}
        self._routes = dict(zip(self._clients, ports[_NODES:], strict=True))
        self._leader = ""
        said = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=False).stdout
        self._version = "".join(re.findall(r"v([\d.]+)", said))
        self._synced = tuple(int(one) for one in self._version.split(".")[:2]) >= _SYNC_ALWAYS_SINCE

    def start(self) -> None:
        """Start all servers and wait until the bucket's stream has a leader and current replicas."""
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in self._routes.values())
        for name, port in self._clients.items():
            sync = "sync_interval: always" if self._synced else ""
            config = self._directory / f"{name}.conf"
            config.write_text(
                f"server_name: {name}\nlisten: 127.0.0.1:{port}\n"
                f'jetstream {{ store_dir: "{self._directory / name}"\n{sync} }}\n'
                f"cluster {{ name: metad-perf, listen: 127.0.0.1:{self._routes[name]}, routes: [{routes}] }}\n"
            )
            self._nodes.start(name, [self._program, "--config", str(config)])
        self._nodes.wait(self._find_leader)

    def endpoints(self) -> str:
        """The node that leads the bucket's stream first."""
        names = sorted(self._clients, key=lambda name: name != self._leader)
        return ",".join(f"127.0.0.1:{self._clients[name]}" for name in names)

    def settings(self) -> dict[str, object]:
        """Whether it syncs depends on the version."""
        return {
            "version": self._version,
            "nodes": _NODES,
            "fsync": self._synced,
            "flags": [f"num_replicas={REPLICAS}", "sync_interval=always" if self._synced else "sync every 2 minutes"],
            "transport": "NATS's protocol over TCP, no TLS, to the stream's leader",
        }

    def cpu_us(self) -> int:
        """Of all servers."""
        return self._nodes.cpu_us()

    def rss_bytes(self) -> int:
        """Of all servers."""
        return self._nodes.rss_bytes()

    def kill_leader(self) -> None:
        """It stays dead."""
        self._nodes.kill(self._leader)

    def stop(self) -> None:
        """In good order."""
        self._nodes.stop()

    def _find_leader(self) -> bool:
        first = next(iter(self._clients.values()))
        self._leader = run_async(leader(f"127.0.0.1:{first}"))
        return self._leader in self._clients
