"""Real ``metad serve`` processes that are a cluster: those that found it, and whoever joins."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e_server import Server, free_ports

from metad_client import Client, ConflictError
from metad_wire.cluster import unpack_slots

NAMES = ("n1", "n2", "n3")
PAUSE_S = 0.02
"""Of those who write for as long as a test lasts, from one round to the next: without it they would take all processors
from the nodes, and from the other tests."""
JOINS = "n4"
"""Has an address in every cluster, and is not started with it."""


class Nodes:
    """Processes of one cluster, by node id.

    ``founders``: their ids, or their ids and regions. ``config``: TOML tables that all of them have. ``flags``: of the
    command, for each id.
    """

    def __init__(
        self,
        home: Path,
        founders: Sequence[str] | Mapping[str, str] = NAMES,
        *,
        config: str = "",
        flags: Callable[[str, str], Sequence[str]] = lambda name, endpoint: (),
    ) -> None:
        names = [*founders, JOINS]
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2 * len(names))]
        self.home = home
        self.peers = dict(zip(names, addresses[: len(names)], strict=True))
        self.endpoints = dict(zip(names, addresses[len(names) :], strict=True))
        self.servers: dict[str, Server] = {}
        self.forgotten = ""
        """Who has left: it knows the last map that it heard of."""
        self._config, self._flags = config, flags
        self._founders = f"seeds = {{ {_inline({name: self.peers[name] for name in founders})} }}"
        if isinstance(founders, Mapping):
            self._founders += f"\nseed_regions = {{ {_inline(founders)} }}"
        try:
            self.start_all(founders)
        except BaseException:
            self.__exit__(None, None, None)  # nobody else would end them
            raise

    def start(self, name: str, *, join: str = "", top: str = "") -> Server:
        """Start a node, or start it again. ``join``: id of a node to join through; ``top``: settings of its own."""
        how = f'join = ["{self.peers[join]}"]\nlisten = "{self.peers[name]}"' if join else self._founders
        config = f'node_id = "{name}"\n{top}\n[cluster]\n{how}\n{self._config}'
        if name in self.servers:
            self.servers[name].__exit__(None, None, None)
        endpoint = self.endpoints[name]
        flags = self._flags(name, endpoint)
        server = self.servers[name] = Server(self.home / name, config=config, listen=endpoint, flags=flags)
        return server

    def start_all(self, names: Sequence[str] | Mapping[str, str]) -> None:
        """Start these, and wait until they serve."""
        for server in [self.start(name) for name in names]:
            server.ready()

    def restart(self, name: str) -> None:
        self.start(name).ready()

    def kill(self, name: str) -> None:
        self.servers[name].kill()

    def lose_disk(self, name: str) -> None:
        """Of a node that does not run."""
        shutil.rmtree(self.home / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers.values():
            server.__exit__(kind, error, trace)

    @property
    def where(self) -> str:
        """The endpoints, without a scheme."""
        return ",".join(self.endpoints[name] for name in self.servers if name != self.forgotten)

    @property
    def url(self) -> str:
        return f"metad://{self.where}"


async def rebalanced(client: Client, groups: int) -> bool:
    """Have the slots of data move until so many groups hold them all."""
    with contextlib.suppress(ConflictError):
        await client.cluster.rebalance()
    known = (await client.cluster.map()).map
    return known is not None and not known.moves and len({*unpack_slots(known.slots["data"])}) == groups


def _inline(table: Mapping[str, str]) -> str:
    return ", ".join(f'{name} = "{value}"' for name, value in table.items())
