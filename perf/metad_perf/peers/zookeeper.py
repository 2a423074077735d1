"""ZooKeeper's nodes: an ensemble of three JVMs, from Debian's package, with its defaults and ``forceSync=yes``."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

from .nodes import Nodes, missing
from .peer import MissingError

JAR = Path("/usr/share/java/zookeeper.jar")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_HEAP = "-Xmx1g"
_NODES = 3
_PACKAGE = "zookeeper"
_WORDS_S = 1.0


def find_zookeeper() -> str:
    """The path of Java, if ZooKeeper is installed. Raises MissingError."""
    if not JAR.exists():
        raise missing("zookeeper", _PACKAGE)
    java = shutil.which("java")
    if java is None:
        raise MissingError("--peers zookeeper: there is no Java; `make peers` installs openjdk-17-jre-headless")
    return java


class ZooKeeper:
    """See :class:`~metad_perf.peers.peer.Peer`."""

    def __init__(self, directory: Path) -> None:
        self._java = find_zookeeper()
        self._directory = directory
        self._nodes = Nodes("zookeeper", directory)
        ports = self._nodes.ports(3 * _NODES)
        self._ports = {f"z{n}": port for n, port in enumerate(ports[:_NODES], 1)}
        between = zip(ports[_NODES : 2 * _NODES], ports[2 * _NODES :], strict=True)
        self._servers = [f"server.{n}=127.0.0.1:{first}:{second}" for n, (first, second) in enumerate(between, 1)]
        self._leader = ""
        self._version = ""

    def start(self) -> None:
        """Start all nodes and wait until one leads and two follow."""
        for n, (name, port) in enumerate(self._ports.items(), 1):
            data = self._directory / name
            data.mkdir()
            (data / "myid").write_text(f"{n}\n")
            lines = ["tickTime=2000", "initLimit=10", "syncLimit=5", f"dataDir={data}", "forceSync=yes"]
            lines += [f"clientPort={port}", "clientPortAddress=127.0.0.1", "maxClientCnxns=0"]
            lines += ["admin.enableServer=false", "4lw.commands.whitelist=srvr", *self._servers]
            config = self._directory / f"{name}.cfg"
            config.write_text("\n".join(lines) + "\n")
            self._nodes.start(name, [self._java, _HEAP, "-cp", str(JAR), _MAIN, str(config)])
        self._nodes.wait(self._find_leader)

    def endpoints(self) -> str:
        """The leader first."""
        names = sorted(self._ports, key=lambda name: name != self._leader)
        return ",".join(f"127.0.0.1:{self._ports[name]}" for name in names)

    def settings(self) -> dict[str, object]:
        """ZooKeeper syncs its log before it answers."""
        return {
            "version": self._version,
            "nodes": _NODES,
            "fsync": True,
            "flags": ["forceSync=yes", "tickTime=2000", _HEAP],
            "transport": "ZooKeeper's protocol over TCP, no TLS, to the leader",
        }

    def cpu_us(self) -> int:
        """Of all JVMs."""
        return self._nodes.cpu_us()

    def rss_bytes(self) -> int:
        """Of all JVMs."""
        return self._nodes.rss_bytes()

    def kill_leader(self) -> None:
        """It stays dead."""
        self._find_leader()
        self._nodes.kill(self._leader)

    def stop(self) -> None:
        """In good order."""
        self._nodes.stop()

    def _find_leader(self) -> bool:
        said = {name: _srvr(port) for name, port in self._ports.items()}
        modes = {name: "".join(re.findall(r"Mode: (\w+)", text)) for name, text in said.items()}
        if sorted(modes.values()) != ["follower", "follower", "leader"]:
            return False
        self._leader = next(name for name, mode in modes.items() if mode == "leader")
        self._version = "".join(re.findall(r"version: ([\d.]+)", said[self._leader]))
        return True


def _srvr(port: int) -> str:
    """What a node says of itself; empty if it does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), _WORDS_S) as sock:
            sock.sendall(b"srvr")
            sock.settimeout(_WORDS_S)
            parts = []
            while part := sock.recv(4096):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""
