"""Nodes of the build before in a simulated cluster: such a process knows no features, and what it must never be given
is an entry that it cannot read. All code is that of this build; which features a process knows is by its node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from unittest import mock

from metad.state.core.entry import CHECKED_FORMAT, RECORD_HEADER_BYTES
from metad_judge.invariants import Violation
from metad_wire.cluster import GroupId
from metad_wire.tables.feature import FEATURES, Feature

from .cluster import Cluster, SimNode
from .loop import PROCESS

_READ_BY = (
    "metad.control.map.presence",
    "metad.control.features",
    "metad.node.disk.replica_lifecycle",
    "metad.server.peers.peers",
)
"""The modules that ask what the software of their node knows."""
_ENDED_S = 20.0
_FORMAT_AT = RECORD_HEADER_BYTES + 1
"""Where an entry has its format, behind the header of its array."""


class Builds(Mapping[str, Feature]):
    """Which nodes run the build before. To be entered before the cluster is made."""

    def __init__(self, *older: str, settled_s: float | None = None) -> None:
        """``settled_s``: for how long all nodes must know a feature at least, in place of some seconds."""
        self.older = {*older}
        self._patches: list[Any] = [mock.patch(f"{module}.FEATURES", self) for module in _READ_BY]
        if settled_s is not None:
            self._patches.append(mock.patch("metad.control.features.SETTLED_S", settled_s))

    def __enter__(self) -> Self:
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for patch in self._patches:
            patch.stop()

    @property
    def _known(self) -> Mapping[str, Feature]:
        process = PROCESS.get()
        return {} if process is not None and process.name in self.older else FEATURES

    def __getitem__(self, name: str) -> Feature:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def watch(self, cluster: Cluster) -> None:
        """Have it be a violation if an older node applies what its build cannot read."""

        def applied(name: str, group: GroupId, index: int) -> None:
            record = cluster.nodes[name]._record(group, index) if name in self.older else None
            if record is not None and len(record) > _FORMAT_AT and record[_FORMAT_AT] == CHECKED_FORMAT:
                cluster.fail(Violation("older nodes can read all", f"{name} applies entry {index} of {group.name}"))

        cluster.on_applied.append(applied)

    def on_at(self, cluster: Cluster) -> set[str]:
        """The nodes that know all features to be on."""
        found = set()
        for name, sim in cluster.nodes.items():
            if sim.node is not None and sim.node.lifecycle.features.on >= FEATURES.keys():
                found.add(name)
        return found

    def change(self, sim: SimNode, *, older: bool) -> None:
        """End a node in order, and start it with this build or the one before."""
        if sim.up:
            sim.end()
            assert sim.cluster.run_until(lambda: not sim.up, _ENDED_S), f"{sim.name} does not end"
        (self.older.add if older else self.older.discard)(sim.name)
        sim.start()
