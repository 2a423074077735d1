"""What metad assigns to brokers: resources and their partitions. See :mod:`..tables.assignment`, whose methods write
them."""

from __future__ import annotations

from ..tables.assignment import ASSIGNMENT, Partition, Resource
from . import family

RESOURCES = family(
    801,
    "resource",
    Resource,
    key=("tenant", "resource", "kind"),
    routing=("tenant", "resource"),
    ruled_by=ASSIGNMENT.name,
)
PARTITIONS = family(
    802,
    "partition",
    Partition,
    key=("tenant", "resource", "kind", "partition"),
    routing=("tenant", "resource"),
    indexes={"by_replica": ("replicas",), "by_plan": ("plan",)},
    ruled_by=ASSIGNMENT.name,
    hears="replicas",
)
BY_REPLICA = PARTITIONS.indexes["by_replica"]
BY_PLAN = PARTITIONS.indexes["by_plan"]
