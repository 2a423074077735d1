"""What the controller sees of its node, and does to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from metad_wire.cluster import ClusterMap, StoreMap
from metad_wire.group import GroupId
from metad_wire.messages import StatusReply
from metad_wire.methods import CLUSTER_STORE

from ..raft.replicas import Replicas
from .driver import GroupDriver
from .groups import Groups
from .health import Health
from .hosting import Hosting
from .outbound import Outbound
from .parts import Done
from .requests import Requests
from .stores import Stores


class Controlled:
    """A :class:`metad.control.host.Host`, which documents the methods."""

    def __init__(
        self,
        stores: Stores,
        groups: Groups,
        hosting: Hosting,
        replicas: Replicas,
        requests: Requests,
        outbound: Outbound,
        health: Health,
        status: Callable[[], StatusReply],
    ) -> None:
        self._stores = stores
        self._groups = groups
        self._replicas = replicas
        self._requests = requests
        self.status = status
        self.call_peer = outbound.call
        self.close_group = hosting.close
        self.stop_for_bug = health.stop_for_bug

    @property
    def map(self) -> ClusterMap | None:
        return self._groups.map

    @property
    def drivers(self) -> Mapping[GroupId, GroupDriver]:
        return self._groups.drivers

    @property
    def connected(self) -> Collection[str]:
        return self._replicas.connected

    @property
    def cluster_id(self) -> str:
        return self._stores.identity.cluster_id

    def store(self, order: StoreMap, done: Done) -> None:
        self._requests.request(CLUSTER_STORE, order, done)
