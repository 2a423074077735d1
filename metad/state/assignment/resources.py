"""Resources: made with all their partitions, changed, and deleted in two phases.

A change of a resource is its row. Its partitions follow: those of a small resource in the same entry, those of a large
one by and by, as the rule :func:`.decide.follow` finds them. Until then the resource is *due*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import (
    ConflictError,
    InvalidItemError,
    NotFoundError,
)
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import ASSIGNMENT, Resource, ResourceAlter, ResourceCreate, ResourceResize

from ..core.verb import Verb, check_broker
from .records import INLINE_MAX, Records, each, grow, numbered, the_resource


def _check(resource: Resource) -> None:
    """Raise InvalidItemError where a resource makes no sense."""
    why = None
    if resource.min_isr > resource.replication:
        why = f"min_isr: {resource.min_isr}, with {resource.replication} replicas"
    elif resource.copies > resource.replication:
        why = f"copies: {resource.copies}, with {resource.replication} replicas"
    elif resource.min_isr > 1 and resource.election == "owner":
        why = f"min_isr: {resource.min_isr}, and a partition with one owner has nobody in sync"
    elif resource.copies > 1 and resource.election != "position":
        why = f"copies: {resource.copies}, which counts with the election position only"
    elif resource.write_partitions > resource.partitions:
        why = f"write_partitions: {resource.write_partitions} of {resource.partitions}"
    elif resource.partitions > a.PARTITIONS_MAX + resource.first_partition:
        why = f"partitions: {a.PARTITIONS_MAX} at most, without those that were trimmed"
    elif resource.first_partition > resource.partitions:
        why = f"first_partition: {resource.first_partition} of {resource.partitions}"
    if why is not None:
        raise InvalidItemError(why)


def _check_replicas(named: Sequence[Sequence[str]] | None, count: int) -> None:
    if named is None:
        return
    if len(named) != count:
        raise InvalidItemError(f"replicas: of {len(named)} partitions, not of {count}")
    for replicas in named:
        if not replicas or len({*replicas}) != len(replicas) or len(replicas) > a.REPLICAS_MAX // 2:
            raise InvalidItemError(f"replicas: 1 to {a.REPLICAS_MAX // 2} different brokers, not {len(replicas)}")
        for broker in replicas:
            check_broker(broker)


def _create(records: Records, item: ResourceCreate) -> None:
    if (known := records.resource(item)) is not None:
        why = "already"
        if known.record.state == "deleting":
            why = "that is being deleted: its brokers have to delete what they have, or to be dead for a day"
        raise ConflictError(f"there is a {item.kind} {item.resource!r} {why}")
    _check_replicas(item.replicas, item.partitions)
    resource = Resource(
        item.tenant,
        item.resource,
        item.kind,
        records.new_id(),
        item.partitions,
        0,
        item.partitions if item.write_partitions is None else item.write_partitions,
        item.replication,
        item.min_isr,
        item.election,
        item.copies,
        item.force_after_ms,
        item.repair_after_ms,
        item.spread,
        item.labels,
        item.attributes,
    )
    _check(resource)
    if not item.kind or not item.resource:
        raise InvalidItemError("kind, resource: neither may be empty")
    grow(records, resource, 0, item.replicas)
    records.put_resource(None, resource)


def _changed(records: Records, old: m.TableRecord[Resource], new: Resource) -> None:
    """Write a resource, and let its partitions follow."""
    _check(new)
    records.put_resource(old, new)
    first, end = min(old.record.first_partition, new.first_partition), max(old.record.partitions, new.partitions)
    if end - first > INLINE_MAX:
        records.set_due(records.now.ms, new)
        return
    for partition in records.partitions(numbered(new, range(first, end))):
        if partition is not None:
            records.put(partition, partition.record, new)


def altered(old: Resource, item: ResourceAlter) -> Resource:
    """A resource once it is changed. Raises InvalidItemError for more copies: an election would count on them, for
    records that were acknowledged with fewer."""
    named = {name: value for name in _ALTERED if (value := getattr(item, name)) is not None}
    if named.get("copies", 0) > old.copies:
        raise InvalidItemError(f"copies: {old.copies}, of records that are acknowledged already; they can only fall")
    if named.get("force_after_ms") == 0:
        named["force_after_ms"] = None
    return msgspec.structs.replace(old, **named)


def _alter(records: Records, item: ResourceAlter) -> None:
    old = the_resource(records, item)
    _changed(records, old, altered(old.record, item))


_ALTERED = [name for name in ResourceAlter.__struct_fields__ if name not in a.ResourceKey.__struct_fields__]


def _resize(records: Records, item: ResourceResize) -> None:
    old = the_resource(records, item)
    was = old.record
    first = was.first_partition if item.first_partition is None else item.first_partition
    if first < was.first_partition:
        raise InvalidItemError(f"first_partition: {first}, and those before {was.first_partition} are deleted")
    new = msgspec.structs.replace(
        was,
        partitions=item.partitions,
        first_partition=first,
        write_partitions=item.partitions if item.write_partitions is None else item.write_partitions,
    )
    if new.partitions < was.partitions and was.write_partitions > new.partitions:
        raise ConflictError(
            f"{was.write_partitions} partitions take records: let fewer of them do first (write_partitions)",
            current=was.write_partitions,
        )
    _check(new)
    come = new.partitions - was.partitions
    if item.replicas is not None and come <= 0:
        raise InvalidItemError("replicas: there are no new partitions")
    if come > 0:
        _check_replicas(item.replicas, come)
        left = [p for p in records.partitions(numbered(was, range(was.partitions, new.partitions))) if p is not None]
        if left:
            raise ConflictError(f"partition {left[0].record.partition} is still being deleted")
        grow(records, new, was.partitions, item.replicas)
    _changed(records, old, new)


def _delete(records: Records, item: a.ResourceKey) -> None:
    old = records.resource(item)
    if old is None:
        raise NotFoundError(f"there is no {item.kind} {item.resource!r}")
    if old.record.state != "deleting":
        _changed(records, old, msgspec.structs.replace(old.record, state="deleting"))
        records.set_due(records.now.ms, item)


VERBS: tuple[Verb[Any, Any], ...] = (
    Verb(methods.ASSIGNMENT_CREATE, ASSIGNMENT, evaluate=each(_create)),
    Verb(methods.ASSIGNMENT_ALTER, ASSIGNMENT, evaluate=each(_alter), grows=False),
    Verb(methods.ASSIGNMENT_RESIZE, ASSIGNMENT, evaluate=each(_resize)),
    Verb(methods.ASSIGNMENT_DELETE, ASSIGNMENT, evaluate=each(_delete), grows=False),
)
