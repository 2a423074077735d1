"""The rows of resources and partitions, as one command reads and writes them: with their rows in the indexes, and when
a partition is looked at again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from metad_wire import messages as m
from metad_wire.errors import ConflictError, MetadError, NotFoundError, TooLargeError
from metad_wire.families.assignment import BY_REPLICA, PARTITIONS, RESOURCES
from metad_wire.key import u32
from metad_wire.methods import encode
from metad_wire.tables.assignment import ASSIGNMENT_DUES, DELETING, Partition, Resource
from metad_wire.tables.table import INDEXES

from ...storage import keys
from ..cluster.fences import Fences
from ..core.limits import LOOKED_AT_BYTES_MAX, check_change
from ..core.verb import Command, written
from ..core.view import HeadCache, View
from . import rules
from .decide import Now, settle
from .fleet import Choices, Placing

DUE: Final = ASSIGNMENT_DUES.rows["due"]
_ROW: Final = PARTITIONS.rows["record"]
_INDEX: Final = INDEXES.rows["index"]
_BY: Final = [*PARTITIONS.indexes.values()]
Record = TypeVar("Record", Resource, Partition)
INLINE_MAX: Final = 256
"""Of a change of a resource with no more partitions, these change in the same entry."""

decode_partition = msgspec.msgpack.Decoder(m.TableRecord[Partition]).decode
decode_resource = msgspec.msgpack.Decoder(m.TableRecord[Resource]).decode


def resource_key(named: Any) -> bytes:
    """The key of the resource that a message names."""
    return RESOURCES.key_of((named.tenant, named.resource, named.kind))


def partition_key(named: Any, number: int) -> bytes:
    """The key of a partition of the resource that a message names."""
    return PARTITIONS.key_of((named.tenant, named.resource, named.kind)) + u32(number)


class Records:
    """Those that one command reads and writes."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._prefix = keys.table_prefix(view.group, _ROW)
        self._writes = view.writes_of(_ROW)
        self._indexes, self._index_prefix = view.writes_of(_INDEX), keys.table_prefix(view.group, _INDEX)
        self._dues, self._due_prefix = view.writes_of(DUE), keys.table_prefix(view.group, DUE)
        self._changed: dict[bytes, None] = {}
        view.on_accept.append(partial(view.parts[HeadCache].overwritten, self._changed))
        self.lives = view.parts[Fences]
        self.choices = Choices(view.parts, view.now_ms)
        view.on_accept.append(self.choices.accepted)
        self.hints = self.choices.hints
        self.revision = view.revision
        self.now = Now(view.now_ms, view.past_ms)
        self._resources: dict[bytes, m.TableRecord[Resource] | None] = {}

    def new_id(self) -> int:
        """Return one that no other resource has."""
        return self._view.parts[Placing].new_id(self.revision)

    # --- reading ---

    def resource(self, named: Any) -> m.TableRecord[Resource] | None:
        """The resource that a message names; None if there is none."""
        key = resource_key(named)
        if key not in self._resources:
            value = self._view.get(self._prefix + key)
            self._resources[key] = None if value is None else decode_resource(value)
        return self._resources[key]

    def partitions(self, wanted: Sequence[bytes]) -> list[m.TableRecord[Partition] | None]:
        """The partitions of these keys, by position."""
        values = self._view.get_many([self._prefix + key for key in wanted], LOOKED_AT_BYTES_MAX)
        return [None if value is None else decode_partition(value) for value in values]

    def partition(self, named: Any, number: int) -> m.TableRecord[Partition] | None:
        """The partition of this number of the resource that a message names; None if there is none."""
        return self.partitions([partition_key(named, number)])[0]

    # --- writing ---

    def put_resource(self, old: m.TableRecord[Resource] | None, new: Resource) -> None:
        """Write a resource."""
        key = resource_key(new)
        row = self._resources[key] = self._row(old, new)
        self._write(key, encode(row))

    def delete_resource(self, named: Any) -> None:
        """Delete a resource that has no partitions."""
        key = resource_key(named)
        self._write(key, None)
        self._resources[key] = None

    def put_settled(self, new: Sequence[Partition], prefix: bytes) -> None:
        """Write new partitions, all at once, about which nothing is to be decided. ``prefix`` of their keys."""
        revision, rows = self.revision, list[bytes]()
        written: dict[bytes, bytes | None] = {}
        for p in new:
            key = prefix + u32(p.partition)
            written[self._prefix + key] = encode((p, 1, revision, revision))
            rows += BY_REPLICA.rows_of(p, key)
        self.choices.changed((), [broker for p in new for broker in p.replicas])
        index = self._index_prefix
        self._indexes.update(dict.fromkeys([index + row for row in rows], b""))
        self._writes.update(written)
        self._changed.update(dict.fromkeys(written))
        self._grow(sum(map(len, written)) + sum(map(len, filter(None, written.values()))) + sum(map(len, rows)))

    def put(self, old: m.TableRecord[Partition] | None, new: Partition, resource: Resource) -> None:
        """Write a partition with all that is decided about it now. Nothing is written if nothing changes. It is no more
        if all that had some of it have deleted that."""
        new = settle(new, resource, self.lives, self.hints, self.now)
        was = None if old is None else old.record
        key = partition_key(new, new.partition)
        gone = new.state == DELETING and not new.replicas
        if new == was and not gone:
            return
        left = None if gone else new
        self._write(key, None if gone else encode(self._row(old, new)))
        self._reindex(was, left, key)
        old_due, new_due = (0 if one is None else one.due_ms for one in (was, left))
        if old_due != new_due:
            self._set_due(old_due, key, None)
            self._set_due(new_due, key, b"")

    def _row(self, old: m.TableRecord[Record] | None, new: Record) -> m.TableRecord[Record]:
        """A record with its numbers, once it is written."""
        revision = self.revision
        if old is None:
            return m.TableRecord(new, 1, revision, revision)
        return m.TableRecord(new, old.version + 1, old.create_revision, revision)

    def _reindex(self, was: Partition | None, new: Partition | None, key: bytes) -> None:
        before, after = [] if was is None else was.replicas, [] if new is None else new.replicas
        self.choices.changed(before, after)
        old: set[bytes] = set()
        come: set[bytes] = set()
        for index in _BY:
            if was is not None and new is not None and index.values(was) == index.values(new):
                continue
            old.update(() if was is None else index.rows_of(was, key))
            come.update(() if new is None else index.rows_of(new, key))
        self._indexes.update((self._index_prefix + row, None) for row in old - come)
        self._indexes.update((self._index_prefix + row, b"") for row in come - old)
        self._grow(sum(map(len, old ^ come)))

    def set_due(self, at_ms: int, named: Any) -> None:
        """Have a change of a resource carried out for all its partitions, by whoever leads."""
        self._set_due(at_ms, resource_key(named), b"")

    def clear_due(self, at_ms: int, key: bytes) -> None:
        """What was due at this time is done."""
        self._set_due(at_ms, key, None)

    def _set_due(self, at_ms: int, key: bytes, value: bytes | None) -> None:
        if at_ms:
            self._dues[self._due_prefix + ASSIGNMENT_DUES.key_for(at_ms, key)] = value
            self._grow(len(key) + 8)

    def _write(self, key: bytes, value: bytes | None) -> None:
        self._writes[self._prefix + key] = value
        self._changed[self._prefix + key] = None
        self._grow(len(key) + len(value or b""))

    def _grow(self, size: int) -> None:
        self._view.grown += size
        check_change(self._view.grown)


def numbered(resource: Resource, numbers: Iterable[int]) -> list[bytes]:
    """The keys of partitions of a resource."""
    return [partition_key(resource, number) for number in numbers]


def each(do: Callable[[Records, Any], None]) -> Callable[[View, Command[m.Items[Any]]], m.WriteReply]:
    """What evaluates a command that does something with each item. One that fails changes nothing, and is an error of
    the reply."""

    def evaluate(view: View, command: Command[m.Items[Any]]) -> m.WriteReply:
        errors: list[m.ItemError] = []
        records = Records(view)
        for position, item in enumerate(command.body.items):
            try:
                do(records, item)
            except TooLargeError:
                raise  # the whole request may be asked again, in parts
            except MetadError as error:
                errors.append(m.ItemError(position, error.code, error.message, error.current))
        return written(view, errors)

    return evaluate


def grow(records: Records, resource: Resource, first: int, named: Sequence[Sequence[str]] | None) -> None:
    """Write the partitions of a resource from ``first`` on. Those that come later have an id of their own: there may
    have been others of their numbers. Raises NoPlaceError, and TooLargeError if they are too many for an entry."""
    resource_id = records.new_id() if first else resource.resource_id
    count = resource.partitions - first
    places = records.choices.place(resource, first, count) if named is None else named
    new = [
        rules.first(resource, resource_id, first + at, replicas, records.lives, records.hints, records.now)
        for at, replicas in enumerate(places)
    ]
    # Where all replicas live and the first of them leads, there is nothing to decide, and nothing is due.
    settled = [p for p in new if p.isr[:1] == [p.leader] and [one.broker for one in p.isr] == p.replicas]
    records.put_settled(settled, PARTITIONS.key_of((resource.tenant, resource.resource, resource.kind)))
    if len(settled) < len(new):
        made = {p.partition for p in settled}
        for partition in new:
            if partition.partition not in made:
                records.put(None, partition, resource)


def the_resource(records: Records, named: Any) -> m.TableRecord[Resource]:
    """The resource that a message names. Raises NotFoundError; ConflictError if it is being deleted."""
    found = records.resource(named)
    if found is None:
        raise NotFoundError(f"there is no {named.kind} {named.resource!r}")
    if found.record.state == "deleting":
        raise ConflictError(f"{named.kind} {named.resource!r} is being deleted")
    return found
