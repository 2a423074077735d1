"""The kinds of resources that brokers of each family have, declared as data: which election, numbers and settings fit.

:class:`.assigned.Assigned` and ``metadctl`` follow this table. A broker with another kind uses
:class:`.assignments.Assignments` itself, and chooses.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import quote, unquote

import msgspec

from metad_wire.families.amqp import QUEUES
from metad_wire.families.core import CONNECTORS, TOPICS
from metad_wire.families.journal import SHARDS
from metad_wire.faults import fault
from metad_wire.tables.assignment import PARTITIONS_MAX, REPLICAS_MAX, Election, Resource, ResourceCreate, Spread
from metad_wire.tables.table import PlainTable

from ..errors import ConflictError, InvalidItemError, ShrinkError


class Bounds(NamedTuple):
    """What a number may be, and what it is where nobody says it."""

    least: int
    most: int
    usual: int


ONE: Final = Bounds(1, 1, 1)
_MANY: Final = Bounds(1, PARTITIONS_MAX, 1)
_MOST: Final = REPLICAS_MAX // 2
_ANY: Final = Bounds(1, _MOST, 1)


class Kind(NamedTuple):
    """A kind of resource."""

    kind: str
    """Its name in rows."""
    plural: str
    """What clients have it as: ``m.assignments.connectors``."""
    part: str
    """What its brokers call a partition."""
    about: str
    """For people."""
    elections: tuple[Election, ...]
    """How its leaders may be elected; the first is usual."""
    partitions: Bounds = _MANY
    replication: Bounds = ONE
    min_isr: Bounds = ONE
    copies: Bounds = ONE
    resizes: Literal["never", "grows", "shrinks", "drains", "seals"] = "never"
    """How its partitions become more or fewer. ``grows``: only more; ``shrinks``: also fewer, at once; ``drains``: also
    fewer, in two calls, first those that are written, then those that are read; ``seals``: its leader seals the last
    one, so that another begins, and the first ones are trimmed."""
    named: bool = False
    """Whether whoever makes it says which brokers have its replicas."""
    settings: PlainTable[Any] | None = None
    """The table that has a record of the same name, with all else that brokers should know."""
    numbers: Mapping[str, str] = types.MappingProxyType({})
    """Numbers that the record has, too: the field that has each."""
    says: Mapping[str, Any] = types.MappingProxyType({})
    """What the record has to say."""


KINDS: Final[dict[str, Kind]] = {
    one.kind: one
    for one in (
        Kind(
            "topic",
            "topics",
            "partition",
            "a topic whose partitions have in-sync replicas, as in Kafka",
            ("isr",),
            replication=Bounds(2, _MOST, 3),
            min_isr=Bounds(2, _MOST, 2),
            resizes="grows",
            settings=TOPICS,
            numbers={"partitions": "partitions", "replication": "replication"},
        ),
        Kind(
            "message_queue",
            "message_queues",
            "queue",
            "a topic with queues at groups of brokers, as in RocketMQ",
            ("position",),
            replication=_ANY,
            copies=Bounds(1, _MOST, 2),
            resizes="drains",
            named=True,
            settings=TOPICS,
        ),
        Kind(
            "master",
            "masters",
            "partition",
            "data with masters and replicas, which are promoted by position or elect among themselves",
            ("position", "external"),
            replication=Bounds(1, _MOST, 3),
            copies=Bounds(1, _MOST, 2),
            resizes="grows",
        ),
        Kind(
            "connector",
            "connectors",
            "task",
            "a connector whose tasks are each done by one broker",
            ("owner",),
            resizes="shrinks",
            settings=CONNECTORS,
            numbers={"partitions": "tasks_max"},
        ),
        Kind(
            "share_group",
            "share_groups",
            "group",
            "consumers that share messages, which one broker gives to them, as in MQTT",
            ("owner",),
            partitions=ONE,
        ),
        Kind(
            "shard",
            "shards",
            "segment",
            "a log in segments, each of which has in-sync replicas",
            ("isr",),
            replication=Bounds(1, _MOST, 3),
            min_isr=Bounds(1, _MOST, 2),
            resizes="seals",
            settings=SHARDS,
            numbers={"replication": "replication", "min_isr": "in_sync_least"},
        ),
        Kind(
            "quorum_queue",
            "quorum_queues",
            "leader",
            "an AMQP queue at several brokers, which elect its leader or have metad elect it",
            ("external", "isr"),
            partitions=ONE,
            replication=Bounds(3, _MOST, 3),
            min_isr=Bounds(2, _MOST, 2),
            settings=QUEUES,
            says={"type": "quorum"},
        ),
        Kind(
            "classic_queue",
            "classic_queues",
            "leader",
            "an AMQP queue at one broker",
            ("owner",),
            partitions=ONE,
            settings=QUEUES,
            says={"type": "classic"},
        ),
    )
}
"""By name."""


def kind_of(name: str) -> Kind:
    """What is declared of a kind. One that is not declared may be anything."""
    return KINDS.get(name) or Kind(name, "", "partition", "", get_args(Election), _MANY, _ANY, _ANY, _ANY)


NUMBERS: Final = ("partitions", "replication", "min_isr", "copies")
_TIED: Final = ("min_isr", "copies")
"""Of these, as many as there are replicas where the usual number is more."""


def settings_key(kind: Kind, tenant: str, name: str) -> tuple[str, ...]:
    """The key of the record of the same name. That of a queue is ``VHOST/QUEUE``, where a ``/`` in the virtual host is
    ``%2F``. Raises InvalidItemError."""
    if kind.settings is None or len(kind.settings.key) == 2:
        return tenant, name
    vhost, slash, queue = name.partition("/")
    if not slash or quote(unquote(vhost), safe="") != vhost:
        raise InvalidItemError(f"resource: a {kind.kind} is named VHOST/QUEUE, as in %2F/orders, and not {name!r}")
    return tenant, unquote(vhost), queue


def name_of(key: Sequence[str]) -> str:
    """The name of the resource whose settings have this key, without the tenant."""
    *vhost, name = key
    return "/".join([*(quote(each, safe="") for each in vhost), name])


def resource_of(
    kind: Kind,
    tenant: str,
    name: str,
    *,
    settings: Any = None,
    partitions: int | None = None,
    write_partitions: int | None = None,
    replication: int | None = None,
    election: Election | None = None,
    min_isr: int | None = None,
    copies: int | None = None,
    force_after_ms: int | None = None,
    repair_after_ms: int | None = None,
    spread: Spread | None = None,
    labels: Mapping[str, str] | None = None,
    attributes: Mapping[str, str] | None = None,
    replicas: Sequence[Sequence[str]] | None = None,
) -> ResourceCreate:
    """Make a resource of this kind, which may be created. A number is the one that is named; else the one of
    ``settings``, if that is not their default; else the usual one. Partition ``p`` is at
    ``replicas[p % len(replicas)]``. Raises InvalidItemError."""
    usual = ResourceCreate(tenant, name, kind.kind)
    places = None if replicas is None else [[*each] for each in replicas]
    named = {"partitions": partitions, "replication": replication, "min_isr": min_isr, "copies": copies}
    if places:
        named["partitions"] = len(places) if partitions is None else partitions
        named["replication"] = len(places[0]) if replication is None else replication
    said = {number: _said(kind, number, settings) if value is None else value for number, value in named.items()}
    item = msgspec.structs.replace(
        usual,
        write_partitions=write_partitions,
        election=kind.elections[0] if election is None else election,
        force_after_ms=force_after_ms,
        repair_after_ms=usual.repair_after_ms if repair_after_ms is None else repair_after_ms,
        spread=usual.spread if spread is None else spread,
        labels={} if labels is None else labels,
        attributes={} if attributes is None else attributes,
        replicas=places,
        **{number: _bounds(kind, number).usual if value is None else value for number, value in said.items()},
    )
    if (why := fault(item, ResourceCreate)) is not None:
        raise InvalidItemError(why)
    tied = {number: item.replication for number in _TIED if said[number] is None}
    item = msgspec.structs.replace(item, **{number: min(most, getattr(item, number)) for number, most in tied.items()})
    _check(kind, item)
    if not places:
        return item
    return msgspec.structs.replace(item, replicas=repeated(places, range(item.partitions)))


def repeated(places: Sequence[Sequence[str]], partitions: range) -> list[list[str]]:
    """Where these partitions are: ``p`` is at ``places[p % len(places)]``."""
    return [[*places[number % len(places)]] for number in partitions]


def _bounds(kind: Kind, number: str) -> Bounds:
    bounds: Bounds = getattr(kind, number)
    return bounds


def _said(kind: Kind, number: str, settings: Any) -> int | None:
    """What settings say of a number; None if nothing, or what they say by default."""
    field = kind.numbers.get(number)
    if settings is None or field is None:
        return None
    usual = {each.name: each.default for each in msgspec.structs.fields(type(settings))}
    value: int = getattr(settings, field)
    return None if value == usual[field] else value


def _check(kind: Kind, item: ResourceCreate) -> None:
    if item.election not in kind.elections:
        raise InvalidItemError(f"election: of a {kind.kind} {' or '.join(kind.elections)}, not {item.election}")
    if kind.named and not item.replicas:
        raise InvalidItemError(f"replicas: name the brokers that have each {kind.part} of a {kind.kind}")
    for number in NUMBERS:
        check_number(kind, number, value := getattr(item, number))
        if number in _TIED and value > item.replication:
            raise InvalidItemError(f"{number}: {value}, with {item.replication} replicas")


def check_number(kind: Kind, number: str, value: int) -> None:
    """Raise InvalidItemError if this number is none of this kind."""
    least, most, _ = _bounds(kind, number)
    if not least <= value <= most:
        may = f"{least}" if least == most else f"{least} to {most}"
        what = f"{number} ({kind.part}s)" if number == "partitions" and kind.part != "partition" else number
        raise InvalidItemError(f"{what}: of a {kind.kind} {may}, not {value}")


def unfit(kind: Kind, settings: Any) -> str | None:
    """Why settings are those of another kind; None if they are of this one."""
    for field, value in kind.says.items():
        if (said := getattr(settings, field)) != value:
            return f"{field}: of a {kind.kind} {value!r}, not {said!r}"
    return None


def settled(kind: Kind, settings: Any, numbers: Resource | ResourceCreate) -> Any:
    """The settings once they have the numbers of a resource."""
    return msgspec.structs.replace(
        settings, **{field: getattr(numbers, number) for number, field in kind.numbers.items()}
    )


def check_same(kind: Kind, found: Resource, wanted: ResourceCreate) -> None:
    """Raise ConflictError if the resource that is there is another than the one that is to be made. What may be altered
    does not count."""
    name = f"{kind.kind} {found.tenant}/{found.resource}"
    if found.state != "active":
        raise ConflictError(f"{name} is being deleted")
    names = ["election", "replication", *([] if kind.resizes == "seals" else ["partitions"])]
    if other := [each for each in names if getattr(found, each) != getattr(wanted, each)]:
        has = "; ".join(f"{each} {getattr(found, each)}, not {getattr(wanted, each)}" for each in other)
        raise ConflictError(f"there is a {name} already, with {has}")


def check_resize(
    kind: Kind, now: Resource, partitions: int, write_partitions: int | None, places: Sequence[Sequence[str]] | None
) -> None:
    """Raise InvalidItemError, ShrinkError or ConflictError if a resource may not get so many partitions."""
    name, part = f"{kind.kind} {now.tenant}/{now.resource}", kind.part
    if kind.resizes == "never":
        raise InvalidItemError(f"partitions: a {kind.kind} always has one")
    if kind.resizes == "seals":
        raise InvalidItemError(f"partitions: {name} gets another {part} when its leader seals the last one")
    check_number(kind, "partitions", partitions)
    if kind.named and partitions > now.partitions and not places:
        raise InvalidItemError(f"replicas: name the brokers that have each new {part} of {name}")
    if kind.resizes != "drains" and write_partitions not in (None, partitions):
        raise InvalidItemError(f"write_partitions: all {part}s of a {kind.kind} are written")
    if kind.resizes == "grows" and partitions < now.partitions:
        raise ShrinkError(
            f"{name} has {now.partitions} {part}s, and would have {partitions}: what is in the others would be lost"
        )
    if kind.resizes == "drains" and partitions < min(now.partitions, now.write_partitions):
        raise ShrinkError(
            f"{now.write_partitions} {part}s of {name} are written. Lower write_partitions to {partitions} first, and "
            "partitions once consumers have read what the others have"
        )


def check_trim(kind: Kind, now: Resource, first: int) -> None:
    """Raise InvalidItemError if the partitions before ``first`` may not go."""
    if kind.resizes != "seals":
        raise InvalidItemError(f"first: the {kind.part}s of a {kind.kind} are not trimmed")
    if first >= now.partitions:
        raise InvalidItemError(
            f"first: {kind.kind} {now.tenant}/{now.resource} has {kind.part}s up to {now.partitions - 1}, and that one "
            "is written"
        )
