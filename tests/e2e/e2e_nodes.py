"""Three real ``metad serve`` processes that are a cluster."""

from __future__ import annotations

from pathlib import Path

from e2e_server import Server, free_ports

NAMES = ("n1", "n2", "n3")


class Nodes:
    """Three processes of one cluster, by node id."""

    def __init__(self, home: Path) -> None:
        ports = free_ports(6)
        self.home = home
        self.endpoints = dict(zip(NAMES, (f"127.0.0.1:{port}" for port in ports[:3]), strict=True))
        self._seeds = ", ".join(f'{name} = "127.0.0.1:{port}"' for name, port in zip(NAMES, ports[3:], strict=True))
        self.servers = {name: self._started(name) for name in NAMES}
        for server in self.servers.values():
            server.ready()

    def _started(self, name: str) -> Server:
        config = f'node_id = "{name}"\n[cluster]\nseeds = {{ {self._seeds} }}\n'
        return Server(self.home / name, config=config, listen=self.endpoints[name])

    def kill(self, name: str) -> None:
        self.servers[name].kill()

    def restart(self, name: str) -> None:
        self.servers[name].__exit__(None, None, None)
        self.servers[name] = self._started(name)
        self.servers[name].ready()

    def stop(self) -> None:
        for server in self.servers.values():
            server.__exit__(None, None, None)

    @property
    def url(self) -> str:
        return "metad://" + ",".join(self.endpoints.values())
