"""How the state of a group is opened, with the memory that all groups of a node share."""

from __future__ import annotations

from collections.abc import Callable

from metad_wire.cluster import METADATA, GroupId

from ...config import Config
from ...state.cluster.access import KnownAccess
from ...state.cluster.cluster import MapChanges
from ...state.cluster.declarations import KnownTables
from ...state.cluster.features import KnownFeatures
from ...state.cluster.quotas import KnownQuotas
from ...state.core.part import NodeMemory
from ...state.core.slot_assignment import ALL_SLOTS
from ...state.machine import Machine
from ...storage.engine import Engine
from ..environment import Environment
from .groups import Groups


class Machines:
    """Opens machines over the node's state."""

    def __init__(self, config: Config, state: Engine, groups: Groups, environment: Environment) -> None:
        self._state = state
        self._groups = groups
        self._environment = environment
        self._memory = NodeMemory(config)
        self.tables: KnownTables = self._memory.shared(KnownTables)
        """The declared tables."""
        self.access: KnownAccess = self._memory.shared(KnownAccess)
        """Roles and bindings."""
        self.features: KnownFeatures = self._memory.shared(KnownFeatures)
        self.quotas: KnownQuotas = self._memory.shared(KnownQuotas)
        self._map_listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Tell the listener of every change of the cluster map in the states that are opened from now on."""
        self._map_listeners.append(listener)

    def open(self, group: GroupId) -> Machine:
        """Open a group's state. A thread may do it, for a group that was opened before."""
        known = self._groups.map
        record = None if known is None or group == METADATA else known.group(group)
        machine = Machine(
            group,
            self._state,
            self._memory,
            clock=self._environment.now,
            wall_ms=self._environment.wall_ms,
            initial_slots=ALL_SLOTS if record is None else record.initial_slots,
        )
        for listener in self._map_listeners:
            machine.parts[MapChanges].listen(listener)
        return machine
