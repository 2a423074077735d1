"""What a drill does to the nodes: each method happens to a machine, or is what an operator does there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from metad_wire.operator.authority import issue_fleet
from metad_wire.transport.credentials import TlsFiles

from ..errors import ServerError
from ..faults.members import START_S, Member, Members
from .steps import Steps
from .waiting import until

_STOP_S = 30.0
_FILLS_S = 1.5


class Nodes:
    """The nodes of a drill, by their node ids. What is done is told to ``steps``."""

    def __init__(self, members: Members, steps: Steps) -> None:
        self._members = members
        self._steps = steps
        self._started_at: dict[str, int] = {}  # lines of its log
        self._named = {member.name: member for member in members.all}

    def __getitem__(self, name: str) -> Member:
        """The node with this id."""
        return self._named[name]

    @property
    def names(self) -> list[str]:
        """The ids of the nodes that formed the cluster."""
        return [member.name for member in self._members.all]

    @property
    def endpoints(self) -> str:
        """The endpoints for clients of the nodes that formed the cluster, separated by commas."""
        return self._members.endpoints

    @property
    def certs(self) -> str:
        """The directory of the fleet's certificates; empty if there are none."""
        return str(self._members.certs or "")

    @property
    def working_directory(self) -> Path | None:
        """Where the operator runs commands, if there are certificates."""
        return self._members.certs.parent if self._members.certs is not None else None

    def named_in(self, text: str) -> str:
        """The node whose endpoint for clients a text names. Raises ServerError."""
        for member in self._members.all:
            if member.endpoint in text:
                return member.name
        raise ServerError(f"no endpoint of a node is in {text!r}")

    def log(self, name: str) -> list[str]:
        """What the node has logged since it was started."""
        return self[name].log()[self._started_at.get(name, 0) :]

    def kill(self, *names: str) -> None:
        """The processes end at once."""
        self._steps.done(f"kill -9 {' '.join(names)}")
        for name in names:
            self[name].kill()

    def wipe(self, name: str) -> None:
        """The node gets an empty disk."""
        self._steps.done(f"{name} gets an empty data directory")
        self[name].wipe()

    def configure(self, name: str, toml: str) -> None:
        """The node has another configuration file from its next start on."""
        self._steps.done(f"{name} gets a new configuration: {' '.join(toml.split())}")
        self[name].configure(toml)

    def launch(self, *names: str) -> None:
        """Start nodes, without waiting for them to serve."""
        self._steps.done(f"start {' '.join(names)}")
        for name in names:
            self._started_at[name] = self[name].log_lines()
            self[name].launch()

    async def stop(self, name: str) -> None:
        """SIGTERM, and wait for the end."""
        self._steps.done(f"kill -TERM {name}")
        member = self[name]
        member.terminate()
        if not await until(lambda: member.ended() is not None, _STOP_S):
            raise ServerError(f"{name} did not end within {_STOP_S:g} s of SIGTERM: {member.words()}")

    async def start(self, *names: str) -> None:
        """Start nodes and wait until they serve."""
        self.launch(*names)
        for name in names:
            member = self[name]
            if not await until(member.ready, START_S):
                raise ServerError(f"{name} did not serve within {START_S:g} s: {member.words()}")

    async def fill_disk(self, name: str) -> None:
        """Leave no room on the node's disk, as quickly as a disk fills up."""
        disk = self[name].disk
        assert disk is not None, "the drill asked for no disks"
        self._steps.done(f"fill the disk of {name}")
        for leave_mib in (64, 8, 0):
            await asyncio.to_thread(disk.fill, leave_mib * 1024 * 1024)
            await asyncio.sleep(_FILLS_S)

    def free_disk(self, name: str) -> None:
        """Make room on it again."""
        disk = self[name].disk
        assert disk is not None, "the drill asked for no disks"
        self._steps.done(f"free space on the disk of {name}")
        disk.free()

    def cut_off(self, *names: str) -> None:
        """No packet reaches or leaves these nodes any more."""
        self._steps.done(f"cut off {' '.join(names)}")
        assert self._members.network is not None, "the drill asked for no network of its own"
        for name in names:
            self._members.network.cut_off(self.names.index(name))

    def heal(self) -> None:
        """Every packet arrives again."""
        self._steps.done("the network is healed")
        assert self._members.network is not None, "the drill asked for no network of its own"
        self._members.network.heal()

    def another_authority(
        self, directory: str, *, nodes: Sequence[str], clients: Sequence[str]
    ) -> Mapping[str, TlsFiles]:
        """Certificates that look like the fleet's and are of another authority, in a directory beside it."""
        return issue_fleet(self._beside(directory), nodes, clients)

    def files(self, name: str) -> TlsFiles:
        """The fleet's certificate ``node-n1`` or the like."""
        fleet = self._beside("certificates")
        certificate, key, ca = (str(fleet / file) for file in (f"{name}.pem", f"{name}-key.pem", "ca.pem"))
        return TlsFiles(certificate=certificate, key=key, ca=ca)

    def _beside(self, name: str) -> Path:
        """A file or directory of the operator's working directory."""
        directory = self.working_directory
        assert directory is not None, "the drill asked for no certificates"
        return directory / name

    def newcomer(self, name: str, called: str = "", files: TlsFiles | None = None) -> None:
        """A node with an empty directory that is to join as ``name``, not started. The drill calls it ``called``."""
        assert self._members.visit is not None, "the drill asked for no newcomers"
        self._named[called or name] = self._members.visit(name, files)
