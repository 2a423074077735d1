"""``metadctl resources``, ``partitions`` and ``plans``: what metad assigns to brokers, and the orders to move it. The
commands of topics, connectors, shards and queues get what assignment does for them, as their kinds are declared."""

from __future__ import annotations

import argparse
import time
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from metad_wire.families.assignment import PARTITIONS
from metad_wire.messages import TableRecord
from metad_wire.tables.assignment import DELETING, REPLICAS_MAX, Explanation, Partition, Resource, Spread
from metad_wire.tables.broker import DRAINING, LIVE, Broker
from metad_wire.tables.plan import MOVES_DEFAULT, Plan, Rule
from metad_wire.tables.table import PlainTable

from ...assignment import kinds
from ...assignment.assigned import Assigned
from ...assignment.kinds import KINDS, kind_of, name_of, resource_of
from ...client import Client
from .. import people
from ..grammar import Arguments, Command, Commands, Parser, count, limit
from ..printing import Printer
from .bounded import Kind, Row, absent, first, page_size, present, say_more, show

_RESOURCE = Kind("resource", ("tenant", "resource", "kind"))
_PARTITION = Kind("partition", ("tenant", "resource", "kind", "partition"))
_PLAN = Kind("plan", ("plan",))
_ANY = [kind_of("any")]


def add(commands: Commands) -> None:
    """Add the commands of plans."""
    listing, verbs = commands.family("plans", "the orders to move partitions between brokers; or give one", _plans)
    for parser in (listing, verbs.add("list", "the same", _plans)):
        parser.add_argument("--prefix", default="", metavar="P", help="only those whose name starts so")
        limit(parser)
    for rule, help in _RULES.items():
        parser = _PLAN.key(verbs.add(rule, help, _begin(rule)))
        parser.set_defaults(brokers=[])
        if rule != "rebalance":
            parser.add_argument("brokers", nargs="+", metavar="BROKER")
        said = f"so many partitions of a group are moved at a time; default {MOVES_DEFAULT}"
        parser.add_argument("--moves", type=count, default=MOVES_DEFAULT, metavar="N", help=said)
        said = "so many bytes a second each broker may copy; default any"
        parser.add_argument("--throttle", type=count, metavar="BYTES", help=said)
    parser = verbs.add(
        "recommend", "whether more brokers are needed, where they report their load in percent", _recommend
    )
    said = "a broker that has had 80 or more for so long is loaded; default 300"
    parser.add_argument("--for", dest="for_s", type=float, default=300.0, metavar="SECONDS", help=said)
    _PLAN.key(verbs.add("show", "how far a plan is", _show))
    _PLAN.key(verbs.add("pause", "let no further move begin", _turn(lambda m: m.plans.pause)))
    _PLAN.key(verbs.add("resume", "let moves begin again", _turn(lambda m: m.plans.resume)))
    _PLAN.key(verbs.add("cancel", "also give up the moves that are under way", _turn(lambda m: m.plans.cancel)))
    _PLAN.key(verbs.add("delete", "delete a plan that has ended", _PLAN.drop(lambda m: m.plans.delete)))


def add_resources(verbs: Commands) -> None:
    """Add those of resources beside list, get and count."""
    create = _resource(verbs.add("create", "make a resource, and place its partitions on brokers", _create))
    _numbers(create, _ANY, "--partitions")
    create.add_argument("--write-partitions", type=count, metavar="N", help="that take records; default all")
    alter = _resource(verbs.add("alter", "change a resource; what is not named stays as it is", _alter))
    for parser in (create, alter):
        _alterable(parser, _ANY)
    resize = _resource(verbs.add("resize", "give a resource more partitions, or fewer", _resize))
    resize.add_argument("--partitions", type=count, required=True, metavar="N")
    resize.add_argument("--write-partitions", type=count, metavar="N", help="that take records; default all")
    resize.add_argument("--first-partition", type=count, metavar="N", help="delete those before it; default as it is")
    delete = _RESOURCE.drop(lambda m: m.assignments.delete, said="ordered")
    _resource(verbs.add("delete", "delete a resource; it stays until its brokers have deleted what they have", delete))
    said = "where the partitions of a resource are: who leads, since when and why"
    limit(_resource(verbs.add("partitions", said, _where(None))))


def add_kinds(verbs: Commands, table: PlainTable[Any]) -> None:
    """Add those of the resources whose settings are the records of a table."""
    known = [kind for kind in KINDS.values() if kind.settings is table]
    if not known:
        return

    def add(name: str, help: str, command: Command, of: Sequence[kinds.Kind]) -> Parser:
        parser = verbs.add(name, help, command)
        for field in table.key:
            parser.add_argument("key", action="append", metavar=field.upper())
        names = [kind.kind for kind in of]
        if len(names) == 1:
            parser.set_defaults(kind=names[0])
        else:
            help = f"what it is: {', '.join(names)}; default as its settings say, or the first"
            parser.add_argument("--kind", choices=names, metavar="K", help=help)
            parser.set_defaults(kinds=of)
        return parser

    assign = add("assign", "place it on brokers, with its settings if there are any; or complete that", _assign, known)
    _numbers(assign, known, *dict.fromkeys(f"--{kind.part}s" for kind in known if kind.partitions.most > 1))
    _alterable(assign, known)
    for part in dict.fromkeys(kind.part for kind in known):
        of = [kind for kind in known if kind.part == part]
        limit(add(f"{part}s", f"where the {part}s are: who leads, since when and why", _where(part), of))
    for kind in known:
        if kind.resizes == "seals":
            trim = add("trim", f"delete the {kind.part}s before one, in two phases", _trim, [kind])
            trim.add_argument("first", type=count, metavar=kind.part.upper())
        if kind.resizes == "shrinks":
            resize = add("resize", f"have more {kind.part}s, or fewer", _resize_kind, [kind])
            resize.add_argument(f"--{kind.part}s", dest="partitions", type=count, required=True, metavar="N")


def add_partitions(verbs: Commands) -> None:
    """Add those of partitions beside list, get and count."""
    for name in ("list", "count"):
        parser = verbs.parser(name)
        parser.add_argument("--broker", metavar="B", help="only those of which this broker has a replica")
        parser.set_defaults(verify=_by_broker)
    _partition(verbs.add("explain", "what is decided about a partition, and what each broker lacks to lead", _explain))
    elect = _partition(verbs.add("elect", "let a partition have another leader", _elect))
    elect.add_argument("--broker", default="", metavar="B", help="it; default the first of the replicas that can")
    elect.add_argument("--force", action="store_true", help="even one that lacks acknowledged records: they are lost")
    move = _partition(verbs.add("move", "give a partition to brokers, the preferred leader first", _move))
    move.add_argument("brokers", nargs="*", metavar="BROKER")
    move.add_argument("--cancel", action="store_true", help="give up the move that is under way")
    move.set_defaults(verify=_brokers_or_cancel)


# --- resources ---


def _numbers(parser: Parser, of: Sequence[kinds.Kind], *partitions: str) -> None:
    """Add what only a new resource is told, as far as it is not the same for all of some kinds."""
    names = ("partitions", "replication", "election", "min_isr", "copies", "force_after_ms")
    parser.set_defaults(**dict.fromkeys(names))
    if partitions:
        parser.add_argument(*partitions, dest="partitions", type=count, metavar="N", help="default 1")
    if _vary(of, "replication"):
        parser.add_argument(
            "--replication", type=count, metavar="N", help="brokers that have each; default by its kind"
        )
    elections = [*dict.fromkeys(election for kind in of for election in kind.elections)]
    if any(len(kind.elections) > 1 for kind in of):
        help = f"how leaders are elected: {', '.join(elections)}; default by its kind"
        parser.add_argument("--election", choices=elections, metavar="E", help=help)
    help = "brokers that have one, the preferred leader first; may be repeated, and then goes round"
    parser.add_argument("--replicas", action="append", type=_brokers, metavar="B,B", help=help)


def _alterable(parser: Parser, of: Sequence[kinds.Kind]) -> None:
    """Add what can be altered."""
    if _vary(of, "min_isr"):
        parser.add_argument("--min-isr", type=count, metavar="N", help="in sync when a record is acknowledged")
    if _vary(of, "copies"):
        parser.add_argument("--copies", type=count, metavar="N", help="that have a record when it is acknowledged")
    if any({*kind.elections} & {"isr", "position"} for kind in of):
        help = "when so long nobody could lead, let one that lacks records; alter: 0 for never"
        parser.add_argument("--force-after-ms", type=count, metavar="MS", help=help)
    help = "when a broker was dead for so long, give its replicas to another; 0: never"
    parser.add_argument("--repair-after-ms", type=count, metavar="MS", help=help)
    help = f"replicas are in different ones: {', '.join(typing.get_args(Spread))}"
    parser.add_argument("--spread", choices=typing.get_args(Spread), metavar="S", help=help)
    help = "an attribute that a broker must have; may be repeated"
    parser.add_argument("--label", action="append", type=_pair, dest="labels", metavar="NAME=VALUE", help=help)
    help = "what its brokers should know; may be repeated"
    parser.add_argument("--attribute", action="append", type=_pair, dest="attributes", metavar="NAME=VALUE", help=help)


def _vary(of: Sequence[kinds.Kind], number: str) -> bool:
    return any(bounds.least < bounds.most for kind in of for bounds in [getattr(kind, number)])


def _resource(parser: Parser, kind: str = "kind") -> Parser:
    """Add the key of a resource, as ``resources get`` takes it; but the kind may be left out, or be an option.
    ``kind``: where the argument goes, if it is there."""
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("resource", metavar="RESOURCE")
    help = f"what it is: {', '.join(KINDS)}, or another word; default topic"
    parser.add_argument(kind, nargs="?", default=argparse.SUPPRESS, metavar="KIND", help=help)
    parser.add_argument("--kind", default="topic", metavar="K", help="the same")
    return parser


def _pair(text: str) -> tuple[str, str]:
    """Read an argument."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"not NAME=VALUE: {text}")
    return name, value


def _brokers(text: str) -> list[str]:
    """Read an argument."""
    return text.split(",")


def _given(a: Arguments) -> dict[str, typing.Any]:
    """What was named of that which a resource can be altered in."""
    names = ("min_isr", "copies", "force_after_ms", "repair_after_ms", "spread")
    given = {name: value for name in names if (value := getattr(a, name)) is not None}
    return given | {name: dict(value) for name in ("labels", "attributes") if (value := getattr(a, name)) is not None}


async def _create(m: Client, a: Arguments, printer: Printer) -> None:
    names = ("partitions", "write_partitions", "replication", "election", "replicas")
    item = resource_of(kind_of(a.kind), a.tenant, a.resource, **{name: getattr(a, name) for name in names}, **_given(a))
    (await m.assignments.create_many([item])).raise_for_error()
    printer.one({"created": True})


async def _alter(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(_RESOURCE.missing(a)):
        await m.assignments.alter(*_RESOURCE.named(a), **_given(a))
    printer.one({"changed": True})


async def _resize(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(_RESOURCE.missing(a)):
        await m.assignments.resize(
            a.tenant,
            a.resource,
            a.kind,
            a.partitions,
            write_partitions=a.write_partitions,
            first_partition=a.first_partition,
        )
    printer.one({"changed": True})


# --- resources with settings ---


async def _kind(m: Client, a: Arguments) -> kinds.Kind:
    """The kind that was named, or which the settings say."""
    if a.kind is not None:
        return kind_of(a.kind)
    usual: kinds.Kind = a.kinds[0]
    assert usual.settings is not None
    found = await m.table(usual.settings).get(*a.key)
    return next((kind for kind in a.kinds if found and kinds.unfit(kind, found.record) is None), usual)


async def _assigned(m: Client, a: Arguments) -> Assigned:
    found: Assigned = getattr(m.assignments, (await _kind(m, a)).plural)
    return found


def _named(a: Arguments) -> tuple[str, str]:
    """Tenant and resource."""
    if "key" in a:
        return a.key[0], name_of(a.key[1:])
    return a.tenant, a.resource


async def _assign(m: Client, a: Arguments, printer: Printer) -> None:
    given = _given(a) | {name: getattr(a, name) for name in ("replication", "election", "replicas")}
    await (await _assigned(m, a)).create(*_named(a), a.partitions, **given)
    printer.one({"assigned": True})


async def _trim(m: Client, a: Arguments, printer: Printer) -> None:
    await (await _assigned(m, a)).trim(*_named(a), a.first)
    printer.one({"ordered": True})


async def _resize_kind(m: Client, a: Arguments, printer: Printer) -> None:
    await (await _assigned(m, a)).resize(*_named(a), a.partitions)
    printer.one({"changed": True})


def _where(part: str | None) -> Command:
    """A command that shows where the partitions of a resource are, which its brokers call so."""

    async def command(m: Client, a: Arguments, printer: Printer) -> None:
        kind, now_ms = await _kind(m, a), int(time.time() * 1_000)
        key = (*_named(a), kind.kind)
        present(await m.assignments.resources.get(*key), f"no {kind.kind} {'/'.join(key[:2])}")
        found = await first(m.assignments.partitions.list(*key, page_size=page_size(a.limit)), a.limit)
        rows = [_where_row(one.record, kind.part, now_ms) for one in found.records]
        printer.listing(f"{part or 'partition'}s", [one.record for one in found.records], found.more, rows)
        if found.more:
            say_more(a.limit)

    return command


def _where_row(p: Partition, part: str, now_ms: int) -> Row:
    row = _row(p)
    why = row.pop("why")
    number = {} if part == "leader" else {part: p.partition}
    end = {} if p.end is None else {"records": p.end}
    return number | row | {"since": people.when(p.changed_ms, now_ms)} | end | {"why": why}


# --- partitions ---


def _partition(parser: Parser) -> Parser:
    """Add the key of a partition, as ``partitions get`` takes it; but the kind may be left out, or be an option."""
    _resource(parser, "kind_there").add_argument("partition", metavar="PARTITION")
    parser.set_defaults(verify=_check_partition)
    return parser


def _check_partition(a: Arguments) -> None:
    """Tell what follows a resource apart, where the kind may be left out: a partition is a number, a kind is none."""
    words = [*([a.kind_there] if "kind_there" in a else []), a.partition, *(a.brokers if "brokers" in a else [])]
    if not words[0].isdecimal():
        a.kind, *words = words
    if not words or not words[0].isdecimal():
        raise ValueError("PARTITION is a number, behind TENANT RESOURCE [KIND]")
    a.partition, a.brokers = int(words[0]), words[1:]
    if a.command is not _move and a.brokers:
        raise ValueError(f"{a.brokers[0]} is too much, behind the partition")


def _by_broker(a: Arguments) -> None:
    """Have the listing be by the index that ``--broker`` needs."""
    if a.broker is None:
        return
    if a.key or a.prefix or a.index:
        raise ValueError("--broker stands alone: without KEY, --prefix and --index")
    a.index, a.key = "by_replica", [a.broker]


def _brokers_or_cancel(a: Arguments) -> None:
    _check_partition(a)
    if a.cancel == bool(a.brokers):
        raise ValueError("name the brokers that are to have the partition, or --cancel")


async def _explain(m: Client, a: Arguments, printer: Printer) -> None:
    found: Explanation = present(await m.assignments.explain(*_PARTITION.named(a)), _PARTITION.missing(a))
    facts = {
        "state": found.state,
        "why": found.why,
        "next": found.next,
        "looked at again": people.when(found.due_ms, int(time.time() * 1_000)),
    }
    rows = [
        {"broker": one.broker, "epoch": one.broker_epoch or None, "lacks": one.lacks or "nothing"}
        for one in found.candidates
    ]
    printer.document(found, facts, [("who could lead", rows)])


async def _elect(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(_PARTITION.missing(a)):
        await m.assignments.elect(*_PARTITION.named(a), broker=a.broker, force=a.force)
    await _print_partition(m, a, printer)


async def _move(m: Client, a: Arguments, printer: Printer) -> None:
    with absent(_PARTITION.missing(a)):
        await m.assignments.move(a.tenant, a.resource, a.kind, a.partition, a.brokers)
    await _print_partition(m, a, printer)


async def _print_partition(m: Client, a: Arguments, printer: Printer) -> None:
    """As it is now that something was ordered."""
    found = present(await m.assignments.partitions.get(*_PARTITION.named(a)), _PARTITION.missing(a)).record
    printer.one(found, _row(found))


def _line(found: TableRecord[Partition]) -> Row:
    """What a person wants to see of a partition in a listing."""
    p = found.record
    row = {"tenant": p.tenant, "resource": p.resource, "kind": p.kind, "partition": p.partition} | _row(p)
    why = row.pop("why")
    return row | {"in sync": [member.broker for member in p.isr], "why": why}


def _facts(found: TableRecord[Partition]) -> Row:
    """All that a person may want to know of one."""
    p, now_ms = found.record, int(time.time() * 1_000)
    lives = {"leader": [] if p.leader is None else [p.leader], "in sync": p.isr, "eligible": p.elr}
    named = {name: [f"{one.broker} in life {one.broker_epoch}" for one in each] for name, each in lives.items()}
    reports = [f"{one.member.broker}: {one.length} records, the last of {one.last_epoch}" for one in p.reports]
    throttle = None if p.move is None or p.move.throttle_bytes is None else f"{people.size(p.move.throttle_bytes)}/s"
    return (
        _line(found)
        | named
        | {"partition epoch": p.partition_epoch, "election": p.election, "in sync at least": p.min_isr}
        | {"target": p.target or None, "plan": p.plan, "throttle": throttle, "reports": reports}
        | {"sealed at": p.end, "missing": p.missing, "changed": people.when(p.changed_ms, now_ms)}
        | {"looked at again": people.when(p.due_ms, now_ms), "resource id": p.resource_id}
        | {name: getattr(found, name) for name in ("version", "create_revision", "mod_revision")}
    )


LINES: Final[dict[str, Callable[[TableRecord[Any]], Row]]] = {PARTITIONS.name: _line}
"""By table: what people see of a record in a listing, where its fields are no cells of a table."""
FACTS: Final[dict[str, Callable[[TableRecord[Any]], Row]]] = {PARTITIONS.name: _facts}
"""The same, of one record."""


def _row(p: Partition) -> Row:
    """What a person wants to see of a partition."""
    move = p.move
    return {
        "state": p.state,
        "leader": None if p.leader is None else p.leader.broker,
        "leader epoch": p.leader_epoch,
        "replicas": p.replicas,
        "moves to": None if move is None else move.original if move.cancelling else move.wanted,
        "why": p.why,
    }


# --- plans ---

_RULES: dict[Rule, str] = {
    "add": "move replicas to brokers, until they have their share",
    "drain": "move every replica away from brokers, which get no new ones",
    "rebalance": "move replicas from who has most of its share to who has least",
}


def _begin(rule: Rule) -> Command:
    async def command(m: Client, a: Arguments, printer: Printer) -> None:
        await m.plans.create(a.plan, rule, a.brokers, moves=a.moves, throttle_bytes=a.throttle)
        printer.one({"plan": a.plan, "state": "running"})

    return command


def _turn(verb: Callable[[Client], Callable[[str], Awaitable[None]]]) -> Command:
    async def command(m: Client, a: Arguments, printer: Printer) -> None:
        with absent(_PLAN.missing(a)):
            await verb(m)(a.plan)
        printer.one({"plan": a.plan, "state": present(await m.plans.get(a.plan), _PLAN.missing(a)).state})

    return command


async def _plans(m: Client, a: Arguments, printer: Printer) -> None:
    now_ms = int(time.time() * 1_000)
    found = await first(m.plans.list(a.prefix, page_size=page_size(a.limit)), a.limit)
    show(printer, "plans", found, lambda plan: _plan_row(plan, now_ms), a.limit)


async def _recommend(m: Client, a: Arguments, printer: Printer) -> None:
    found = await m.plans.recommend(for_s=a.for_s)
    printer.document(msgspec.structs.asdict(found), msgspec.structs.asdict(found), [])


async def _show(m: Client, a: Arguments, printer: Printer) -> None:
    plan = present(await m.plans.get(a.plan), _PLAN.missing(a))
    partitions = m.assignments.partitions
    moving = await partitions.count(plan.plan, index="by_plan")
    left = {broker: await partitions.count(broker, index="by_replica") for broker in plan.brokers}
    brokers = {broker.broker: broker async for broker in m.brokers.list()}
    drained = {broker async for other in m.plans.list() for broker in _drained_by(other)}
    drained.update(name for name, broker in brokers.items() if broker.state == DRAINING)
    rows: list[Row] = []
    for name, replicas in left.items():
        state = brokers[name].state if name in brokers else "unknown"
        drains = "draining" if plan.rule != "drain" and name in drained else state
        rows.append({"broker": name, "state": drains, "replicas": replicas})
    facts = _plan_row(plan, int(time.time() * 1_000)) | {"moving now": moving, "nothing left in": plan.idle}
    stay = Counter[str]()
    if plan.rule == "drain" and plan.state == "running":
        takers = {name: broker for name, broker in brokers.items() if broker.state in LIVE and name not in drained}
        for name in [*plan.brokers]:
            stay += await _staying(m, plan, name, brokers, takers)
    why = [{"replicas": number, "why they are still there": said} for said, number in stay.most_common()]
    if sum(left.values()) > sum(stay.values()) > 0:
        why.append({"replicas": "more", "why they are still there": f"of each broker {_LOOKED_AT} are looked at"})
    printer.document(
        msgspec.structs.asdict(plan) | {"moving": moving, "replicas": left, "stay": dict(stay)},
        facts,
        [("left on them" if plan.rule == "drain" else "have now", rows), ("of those left", why)],
    )


_LOOKED_AT = 1_000


def _drained_by(plan: Plan) -> list[str]:
    return plan.brokers if plan.rule == "drain" and plan.state != "cancelled" else []


async def _staying(
    m: Client, plan: Plan, giver: str, brokers: Mapping[str, Broker], takers: Mapping[str, Broker]
) -> Counter[str]:
    """Why the first replicas of a broker that is drained are still there, and how many for each reason. ``takers``:
    the brokers that live and do not drain."""
    listing = m.assignments.partitions.list_by("by_replica", giver, page_size=_LOOKED_AT)
    found = [one.record for one in (await first(listing, _LOOKED_AT)).records]
    keys = [*dict.fromkeys((p.tenant, p.resource, p.kind) for p in found)]
    resources = dict(zip(keys, await m.assignments.resources.get_many(keys), strict=True)) if keys else {}
    reasons = Counter[str]()
    for p in found:
        resource = resources[p.tenant, p.resource, p.kind]
        if resource is not None:
            reasons[_why_it_stays(plan, giver, p, resource.record, brokers, takers)] += 1
    return reasons


def _why_it_stays(
    plan: Plan, giver: str, p: Partition, r: Resource, brokers: Mapping[str, Broker], takers: Mapping[str, Broker]
) -> str:
    """In the order in which groups look at it."""
    if p.state == DELETING:
        return "the partition is being deleted"
    if p.move is not None:
        return "it is being moved" if p.plan == plan.plan else "something else moves the partition, and this waits"
    if p.leader is None:
        return "the partition has no leader: partitions explain says why"

    def fits(broker: Broker) -> bool:
        return all(broker.attributes.get(name) == value for name, value in r.labels.items())

    labels = "".join(f", with {name}={value}" for name, value in sorted(r.labels.items()))
    live = [broker for broker in brokers.values() if broker.state in LIVE and fits(broker)]
    if len(live) < r.replication:
        return f"{r.replication} brokers have to live{labels}, and {len(live)} do"
    able = [name for name, broker in takers.items() if fits(broker) and name not in p.replicas]
    if not able:
        return f"no other broker lives that does not drain{labels}, and has no replica of the partition yet"
    if len(p.replicas) > REPLICAS_MAX // 2:
        return f"the partition has {len(p.replicas)} replicas, and is moved with {REPLICAS_MAX // 2} at most"
    if p.election == "isr" and len(p.replicas) < p.min_isr:
        return f"min_isr of the partition is {p.min_isr}, and it has {len(p.replicas)} replicas: give it more first"
    dead = [name for name in p.replicas if name != giver and (name not in brokers or brokers[name].state not in LIVE)]
    needed = {"isr": p.min_isr, "owner": 1}.get(p.election, len(p.replicas))
    if len(p.replicas) - len(dead) + len(able) - 1 < needed:
        return f"of the other replicas {', '.join(dead)} are dead, and too few brokers can have theirs, too"
    return "its turn comes"


def _plan_row(plan: Plan, now_ms: int) -> Row:
    return {
        "plan": plan.plan,
        "rule": plan.rule,
        "brokers": plan.brokers,
        "state": plan.state,
        "since": people.when(plan.changed_ms, now_ms),
        "begun": plan.begun,
        "at a time": plan.moves,
        "throttle": None if plan.throttle_bytes is None else f"{people.size(plan.throttle_bytes)}/s",
    }
