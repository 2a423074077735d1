"""The one list of the systems that ``metad-perf compare`` knows: what each is, how it is started and spoken to, and
what a session, a takeover and a batch are there. The command line, the report and the tests take it from here.

A system's module is imported when it is needed: nobody needs grpcio to read a list.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import cast

import msgspec

from ..commands import PEERS
from ..errors import UsageError
from .peer import Client, Endpoints, MakePeer, OpenClient, Peer

METAD, METAD_ALONE = "metad", "metad alone"
_UNFENCED = "; no epoch is checked, and no former owner returned"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One system. ``nodes`` and ``client`` are ``MODULE:NAME`` in this package: what makes its nodes in a directory
    (empty: it must run already, and its endpoints be given), and what opens a client."""

    title: str
    label: str = ""
    """What a reader must know beside its name; empty: as metad, each write is on the disks of most nodes when it is
    answered."""
    packages: tuple[str, ...] = ()
    """Debian's, that ``make peers`` installs."""
    nodes: str = ""
    client: str
    alone: bool = False
    """It is one node; so is metad then."""
    fenced: bool = True
    """A takeover checks the broker's epoch, and says who owned the session before, as metad's does. Without that it is
    less work."""
    session: str
    takeover: str
    batch: str


KINDS: dict[str, Kind] = {
    METAD: Kind(
        title="metad",
        client="metad_peer:open_metad_client",
        session="a session",
        takeover="session.takeover with restoring; the broker's epoch is checked, and the former owner returned",
        batch="one call of the SDK, which splits it by group",
    ),
    "etcd": Kind(
        title="etcd",
        packages=("etcd-server",),
        nodes="etcd:Etcd",
        client="etcd_client:open_etcd",
        session="two keys: properties, and owner; a lapsing one is a key with a lease of its own",
        takeover="one transaction: the broker's epoch is compared, the owners are put and their previous values "
        "returned, the properties are read",
        batch="one transaction",
    ),
    "zookeeper": Kind(
        title="ZooKeeper",
        packages=("zookeeper", "openjdk-17-jre-headless"),
        nodes="zookeeper:ZooKeeper",
        client="zookeeper_client:open_zookeeper",
        session="two nodes: properties, and owner; a lapsing one is an ephemeral node",
        takeover="a multi-read of owners and properties, then one multi: the version of the broker's node is checked, "
        "and setData of the owners for the versions that were read; again from the beginning if one has changed",
        batch="one multi, or one multi-read",
    ),
    "grpc": Kind(
        title="our own gRPC service",
        label="a floor: one node that is not replicated, compared with one node of metad",
        alone=True,
        nodes="grpc_peer:Grpc",
        client="grpc_peer:open_grpc",
        fenced=False,
        session="a session",
        takeover="session.takeover with restoring; the broker's epoch is checked, but the former owner not returned",
        batch="one request",
    ),
    "oxia": Kind(
        title="Oxia",
        client="oxia_client:open_oxia",
        fenced=False,
        session="two records of one shard: properties, and owner; a lapsing one is an ephemeral record",
        takeover="puts of the owners and, at the same time, gets of the properties" + _UNFENCED,
        batch="one request to each shard, all at once",
    ),
}


class Chosen(msgspec.Struct, frozen=True):
    """A peer of the command line; ``endpoints`` of a running one, and ``pids`` of its processes if they are known."""

    name: str
    endpoints: str = ""
    pids: tuple[int, ...] = ()

    @property
    def kind(self) -> Kind:
        """What is known of it."""
        return KINDS[self.name]

    def make(self, directory: Path) -> Peer:
        """Its nodes. Raises MissingError if it is not installed, UsageError if endpoints are missing."""
        if self.endpoints:
            return Endpoints(self.endpoints, self.pids)
        if not self.kind.nodes:
            raise UsageError(f"--peers {self.name}={self.name.upper()}_ENDPOINTS: only a running one can be measured")
        return cast("MakePeer", _named(self.kind.nodes))(directory)


def parse(text: str) -> list[Chosen]:
    """``NAME[=ENDPOINTS],...``; endpoints are separated by commas, too. Raises UsageError."""
    chosen: dict[str, list[str]] = {}
    name = ""
    for word in text.split(","):
        if ":" in word and "=" not in word and chosen.get(name):
            chosen[name].append(word)
            continue
        name, given, endpoint = word.partition("=")
        if name not in PEERS or name in chosen or (given and ":" not in endpoint):
            raise UsageError(
                f"--peers {text}: at {word!r}; it takes {', '.join(PEERS)}, each once or as NAME=HOST:PORT"
            )
        chosen[name] = [endpoint] if given else []
    return [Chosen(name, ",".join(endpoints)) for name, endpoints in chosen.items()]


def with_pids(peers: Sequence[Chosen], text: str) -> list[Chosen]:
    """The peers with the processes of those that run already: ``[NAME=]PID,...``. The name can be left out where only
    one does. Raises UsageError."""
    import psutil  # not in the base, which has this command's help

    running = [one.name for one in peers if one.endpoints]
    name = running[0] if len(running) == 1 else ""
    found: dict[str, list[int]] = {}
    for word in text.split(",") if text else ():
        given, named, number = word.rpartition("=")
        name = given if named else name
        if name not in running or not number.isdecimal() or not psutil.pid_exists(int(number)):
            raise UsageError(
                f"--pids {text}: at {word!r}; it takes the numbers of processes on this machine, of each system whose "
                "endpoints are given, as NAME=PID,..."
            )
        found.setdefault(name, []).append(int(number))
    return [msgspec.structs.replace(one, pids=tuple(found.get(one.name, ()))) for one in peers]


def open_client(name: str, endpoints: str, in_flight: int) -> AbstractAsyncContextManager[Client]:
    """A client of that system."""
    return cast("OpenClient", _named(KINDS[name].client))(endpoints, in_flight)


def _named(path: str) -> object:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)
