"""What brokers and administrators say of partitions, and what the leader of the group has decided.

Each rule is in :mod:`.rules`. What follows from it is decided in the same entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, InvalidItemError, NoReplicaError, NotFoundError
from metad_wire.families.assignment import PARTITIONS
from metad_wire.tables import assignment as a
from metad_wire.tables.assignment import ASSIGNMENT, Partition, Resource

from ...storage import keys
from ..cluster.fences import Fences
from ..core.part import Origin
from ..core.verb import Command, Reader, Verb, written
from ..core.view import Rows, View, column
from . import rules
from .decide import Hints, Lives, Now
from .explain import explained
from .fleet import Choices
from .plans import Plans
from .records import (
    Records,
    Stored,
    decode_partition,
    decode_resource,
    each,
    grow,
    partition_key,
    resource_key,
    the_resource,
)

Rule = Callable[[Partition, Resource, Lives, Hints, Now, Any], Partition]


def _found(records: Records, item: Any) -> tuple[Stored[Partition], Resource]:
    """The partition that an item names, with its resource. Raises NotFoundError."""
    found, resource = records.partition(item, item.partition), records.resource(item)
    if found is None or resource is None:
        raise NotFoundError(f"there is no partition {item.partition} of {item.kind} {item.resource!r}")
    return found, resource.record


def _by(rule: Rule) -> Callable[[Records, Any], None]:
    def do(records: Records, item: Any) -> None:
        found, resource = _found(records, item)
        records.put(found, rule(found.record, resource, records.lives, records.hints, records.now, item), resource)

    return do


def _seal(records: Records, item: a.Seal) -> None:
    found, resource = _found(records, item)
    new = rules.seal(found.record, resource, records.lives, records.hints, records.now, item)
    following = item.partition + 1
    if item.successor:
        old = the_resource(records, item)
        if following != old.record.partitions:
            raise ConflictError("only the last partition has a successor", current=old.record.partitions)
        if following >= a.PARTITIONS_MAX + old.record.first_partition:
            raise InvalidItemError(f"{a.PARTITIONS_MAX} partitions: trim the first ones")
        writes = following + 1 if old.record.write_partitions == following else old.record.write_partitions
        resource = msgspec.structs.replace(old.record, partitions=following + 1, write_partitions=writes)
        grow(records, resource, following, None)
        records.put_resource(old, resource)
    records.put(found, new, resource)


def _named(body: a.AssignmentStep) -> list[Any]:
    return [*body.items, *body.done, *body.moves]


def _rows_of_step(body: a.AssignmentStep) -> Rows:
    named = _named(body)
    return Rows(named, [b""] * len(named), column(ASSIGNMENT.crcs(named), len(named)))


def _evaluate_step(view: View, command: Command[a.AssignmentStep]) -> m.WriteReply:
    """Decide about partitions; nothing is an error, for the leader looks again at what is left."""
    body, records = command.body, Records(view)
    for due in body.due:
        records.clear_due(due.at_ms, due.key)
    wanted = [partition_key(item, item.partition) for item in body.items]
    for item, found in zip(body.items, records.partitions(wanted), strict=True):
        resource = records.resource(item)
        if found is None or resource is None:
            continue
        p = found.record
        if p.due_ms and p.due_ms <= view.now_ms:
            p = msgspec.structs.replace(p, due_ms=0)
        records.put(found, p, resource.record)
    for move in body.moves:
        with contextlib.suppress(ConflictError, InvalidItemError, NoReplicaError, NotFoundError):
            found, owner = _found(records, move)
            p, plan = found.record, f"plan {move.plan}"
            p = rules.begin(p, owner, records.lives, records.now, move.wanted, plan, move.plan, move.throttle_bytes)
            records.put(found, p, owner)
    for done in body.done:
        known = records.resource(done)
        if known is not None and known.version == done.version:
            records.clear_due(done.at_ms, resource_key(done))
            if done.empty and known.record.state == "deleting":
                records.delete_resource(done)
    view.parts[Fences].stepped(view, body.stepped)
    return written(view, [])


def _read_explain(reader: Reader, command: Command[m.Get[a.PartitionKey]]) -> m.GetReply[a.Explanation]:
    prefix = keys.table_prefix(reader.group, PARTITIONS.rows["record"])
    items = command.body.items
    rows = reader.get_many([prefix + partition_key(item, item.partition) for item in items], command.reply_bytes_max)
    owners = reader.get_many([prefix + resource_key(item) for item in items], command.reply_bytes_max)
    now_ms = reader.now_ms()
    choices, cancelled = Choices(reader.parts, now_ms), reader.parts[Plans].shared.cancelled
    hints = Hints(choices.draining, choices.replacement, cancelled)
    found: list[a.Explanation | None] = []
    for row, owner in zip(rows, owners, strict=True):
        if row is None or owner is None:
            found.append(None)
        else:
            p, r = decode_partition(row).record, decode_resource(owner).record
            found.append(explained(p, r, reader.parts[Fences], hints, Now(now_ms, now_ms)))
    reply: m.GetReply[a.Explanation] = command.method.reply(found)
    return reply


def _each(do: Callable[[Records, Any], None]) -> Callable[[View, Command[m.Items[Any]]], m.WriteReply]:
    return lambda view, command: each(view, command.body.items, do)


VERBS: tuple[Verb[Any, Any], ...] = (
    *(
        Verb(method, ASSIGNMENT, evaluate=_each(do), grows=grows)
        for method, do, grows in (
            (methods.ASSIGNMENT_IN_SYNC, _by(rules.in_sync), False),
            (methods.ASSIGNMENT_RELEASE, _by(rules.release), False),
            (methods.ASSIGNMENT_REPORT, _by(rules.report), False),
            (methods.ASSIGNMENT_CLAIM, _by(rules.claim), False),
            (methods.ASSIGNMENT_SEAL, _seal, True),
            (methods.ASSIGNMENT_ELECT, _by(rules.elect), False),
            (methods.ASSIGNMENT_MOVE, _by(rules.move), True),
        )
    ),
    Verb(
        methods.ASSIGNMENT_STEP,
        ASSIGNMENT,
        rows=_rows_of_step,
        operations=None,
        evaluate=_evaluate_step,
        origin=Origin.CONTROLLER,
        grows=False,
    ),
    Verb(methods.ASSIGNMENT_EXPLAIN, ASSIGNMENT, read=_read_explain),
)
