"""How the state of a group is opened, and the caches that all groups of a node share."""

from __future__ import annotations

from metad_wire.group import METADATA, GroupId

from ..config import Config
from ..state.machine import ALL_SLOTS, Machine
from ..state.owners import OwnerCache
from ..state.view import RowCaches
from ..storage.engine import Engine
from ..storage.keys import group_prefix
from .environment import Environment
from .groups import Groups


class Machines:
    """Opens machines over the node's state."""

    def __init__(self, config: Config, state: Engine, groups: Groups, environment: Environment) -> None:
        self._dedupe = config.dedupe
        self._state = state
        self._groups = groups
        self._environment = environment
        self._owners = OwnerCache(config.storage.owner_cache_bytes)
        self._row_caches = RowCaches(config.storage.row_cache_bytes)

    def open(self, group: GroupId) -> Machine:
        """Open a group's state. Its dedupe window is not loaded yet."""
        known = self._groups.map
        record = None if known is None or group == METADATA else known.group(group)
        prefix = group_prefix(group)
        return Machine(
            group.name,
            prefix,
            self._state,
            self._owners,
            self._row_caches.open(prefix),
            self._dedupe,
            clock=self._environment.now,
            initial_slots=ALL_SLOTS if record is None else record.initial_slots,
        )

    def forget(self) -> None:
        """Forget owners, because rows were dropped or replaced as a whole."""
        self._owners.clear()
