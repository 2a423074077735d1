"""``m.assignments``: resources whose partitions metad places on brokers, elects leaders of, and moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from metad_wire.families.assignment import PARTITIONS, RESOURCES
from metad_wire.messages import Owner
from metad_wire.tables.assignment import (
    Election,
    InSync,
    MovePartition,
    Partition,
    Resource,
    ResourceAlter,
    ResourceCreate,
    ResourceResize,
    Spread,
)

from ..namespaces.brokers import Brokers
from ..namespaces.declared import (
    _ASSIGNMENT_ALTER,
    _ASSIGNMENT_CREATE,
    _ASSIGNMENT_IN_SYNC,
    _ASSIGNMENT_MOVE,
    _ASSIGNMENT_RESIZE,
    _AssignmentDeclared,
)
from ..namespaces.tables import Records
from ..options import Options
from ..requests.requests import Requests
from ..requests.wrong import argument, sequence
from .assigned import Assigned, places_of
from .choosing import Near
from .kinds import KINDS
from .route import PartitionRoute


class Assignments(_AssignmentDeclared):
    """Resources by (tenant, resource, kind), and their partitions.

    A ``*_many`` method reports errors per item in its result, and raises a MetadError only if the whole call failed.
    The other methods raise the error of their item. ``deadline_s`` counts from now, and None means the client's
    default. A broker that leads or follows partitions uses :meth:`metad_client.Client.serve`.
    """

    def __init__(self, requests: Requests, brokers: Brokers, options: Options, rng: Random) -> None:
        super().__init__(requests)
        self._brokers, self._options, self._rng = brokers, options, rng
        self.resources: Records[Resource] = Records(requests, RESOURCES)
        """Resources as they are: to be read, listed and counted."""
        self.partitions: Records[Partition] = Records(requests, PARTITIONS)
        """Partitions as they are; ``by_replica`` lists those of a broker."""
        of = {kind: Assigned(requests, declared) for kind, declared in KINDS.items()}
        self.topics = of["topic"]
        """Topics with in-sync replicas, as in Kafka. Those below are for other families of brokers."""
        self.message_queues = of["message_queue"]
        """Queues at groups of brokers, as in RocketMQ."""
        self.masters = of["master"]
        """Masters with replicas."""
        self.connectors = of["connector"]
        """Connectors, whose partitions are tasks."""
        self.share_groups = of["share_group"]
        """Share groups of MQTT."""
        self.shards = of["shard"]
        """Shards, whose partitions are segments."""
        self.quorum_queues = of["quorum_queue"]
        """Quorum queues of AMQP."""
        self.classic_queues = of["classic_queue"]
        """Classic queues of AMQP."""

    async def route(
        self,
        tenant: str,
        resource: str,
        kind: str,
        *,
        region: str | None = None,
        rack: str = "",
        deadline_s: float | None = None,
    ) -> PartitionRoute:
        """The partitions of one resource and their brokers, read now and by need, for a client of these brokers.
        ``region`` and ``rack``: where the client is, as brokers say it of themselves; by default that of the client's
        options, and any rack. Raises what a listing does."""
        for name, given in (("tenant", tenant), ("resource", resource), ("kind", kind), ("rack", rack)):
            argument(name, given, str)
        argument("region", region, str | None)
        near = Near(self._options.region if region is None else region, rack)
        key = (tenant, resource, kind)
        route = PartitionRoute(self.partitions, self.resources, self._brokers, key, near, self._options, self._rng)
        await route.refresh(deadline_s=deadline_s)
        return route

    async def create(
        self,
        tenant: str,
        resource: str,
        kind: str,
        *,
        partitions: int = 1,
        write_partitions: int | None = None,
        replication: int = 1,
        min_isr: int = 1,
        election: Election = "isr",
        copies: int = 1,
        force_after_ms: int | None = None,
        repair_after_ms: int = 30 * 60_000,
        spread: Spread = "rack",
        labels: Mapping[str, str] | None = None,
        attributes: Mapping[str, str] | None = None,
        replicas: Sequence[Sequence[str]] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Make one resource with its partitions, as :meth:`create_many` does. Raises ConflictError, NoPlaceError,
        InvalidItemError."""
        item = ResourceCreate(
            tenant,
            resource,
            kind,
            partitions,
            write_partitions,
            replication,
            min_isr,
            election,
            copies,
            force_after_ms,
            repair_after_ms,
            spread,
            _texts("labels", {} if labels is None else labels),
            _texts("attributes", {} if attributes is None else attributes),
            places_of(replicas),
        )
        await _ASSIGNMENT_CREATE.one(self._requests, item, deadline_s)

    async def alter(
        self,
        tenant: str,
        resource: str,
        kind: str,
        *,
        min_isr: int | None = None,
        copies: int | None = None,
        force_after_ms: int | None = None,
        repair_after_ms: int | None = None,
        spread: Spread | None = None,
        labels: Mapping[str, str] | None = None,
        attributes: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Change one resource; None stays as it is. Raises NotFoundError, ConflictError, InvalidItemError."""
        item = ResourceAlter(
            tenant,
            resource,
            kind,
            min_isr,
            copies,
            force_after_ms,
            repair_after_ms,
            spread,
            None if labels is None else _texts("labels", labels),
            None if attributes is None else _texts("attributes", attributes),
        )
        await _ASSIGNMENT_ALTER.one(self._requests, item, deadline_s)

    async def resize(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partitions: int,
        *,
        write_partitions: int | None = None,
        first_partition: int | None = None,
        replicas: Sequence[Sequence[str]] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Give one resource more partitions, or fewer. Raises NotFoundError, ConflictError, NoPlaceError,
        InvalidItemError."""
        places = places_of(replicas)
        item = ResourceResize(tenant, resource, kind, partitions, write_partitions, first_partition, places)
        await _ASSIGNMENT_RESIZE.one(self._requests, item, deadline_s)

    async def in_sync(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partition: int,
        leader: Owner,
        *,
        leader_epoch: int,
        partition_epoch: int,
        isr: Sequence[Owner],
        deadline_s: float | None = None,
    ) -> None:
        """The leader says who is in sync. Raises NotFoundError, FencedError, ConflictError, NoReplicaError,
        IneligibleError."""
        argument("leader", leader, Owner)
        item = InSync(
            tenant,
            resource,
            kind,
            partition,
            leader.broker,
            leader.broker_epoch,
            leader_epoch,
            partition_epoch,
            sequence("isr", isr, "Owner"),
        )
        await _ASSIGNMENT_IN_SYNC.one(self._requests, item, deadline_s)

    async def move(
        self,
        tenant: str,
        resource: str,
        kind: str,
        partition: int,
        wanted: Sequence[str],
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Give one partition to these brokers; none: give up what moves it. For administrators. Raises NotFoundError,
        ConflictError, InvalidItemError, NoReplicaError."""
        item = MovePartition(tenant, resource, kind, partition, sequence("wanted", wanted, "str"))
        await _ASSIGNMENT_MOVE.one(self._requests, item, deadline_s)


def _texts(name: str, given: Mapping[str, str]) -> dict[str, str]:
    argument(name, given, Mapping[str, str])
    return {**given}
