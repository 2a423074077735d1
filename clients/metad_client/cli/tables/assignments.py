"""``metadctl resources``, ``partitions`` and ``plans``: what metad assigns to brokers, and the orders to move it."""

from __future__ import annotations

import argparse
import time
import typing
from collections.abc import Awaitable, Callable

import msgspec

from metad_wire.tables.assignment import Election, Explanation, Partition, Spread
from metad_wire.tables.plan import MOVES_DEFAULT, Plan, Rule

from ...client import Client
from .. import people
from ..grammar import Arguments, Command, Commands, Parser, count, limit
from ..printing import Printer
from .bounded import Kind, Row, absent, first, page_size, present, show

_RESOURCE = Kind("resource", ("tenant", "resource", "kind"))
_PARTITION = Kind("partition", ("tenant", "resource", "kind", "partition"))
_PLAN = Kind("plan", ("plan",))


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
    create.add_argument("--partitions", type=count, default=1, metavar="N", help="default 1")
    create.add_argument("--write-partitions", type=count, metavar="N", help="that take records; default all")
    create.add_argument("--replication", type=count, default=1, metavar="N", help="brokers of a partition; default 1")
    help = f"how leaders are elected: {', '.join(typing.get_args(Election))}; default isr"
    create.add_argument("--election", choices=typing.get_args(Election), default="isr", metavar="E", help=help)
    alter = _resource(verbs.add("alter", "change a resource; what is not named stays as it is", _alter))
    for parser in (create, alter):
        parser.add_argument("--min-isr", type=count, metavar="N", help="in sync when a record is acknowledged")
        parser.add_argument("--copies", type=count, metavar="N", help="that have a record when it is acknowledged")
        help = "when so long nobody could lead, let one that lacks records; alter: 0 for never"
        parser.add_argument("--force-after-ms", type=count, metavar="MS", help=help)
        help = "when a broker was dead for so long, give its replicas to another; 0: never"
        parser.add_argument("--repair-after-ms", type=count, metavar="MS", help=help)
        help = f"replicas are in different ones: {', '.join(typing.get_args(Spread))}"
        parser.add_argument("--spread", choices=typing.get_args(Spread), metavar="S", help=help)
        help = "an attribute that a broker must have; may be repeated"
        parser.add_argument("--label", action="append", type=_pair, dest="labels", metavar="NAME=VALUE", help=help)
        help = "what its brokers should know; may be repeated"
        parser.add_argument(
            "--attribute", action="append", type=_pair, dest="attributes", metavar="NAME=VALUE", help=help
        )
    resize = _resource(verbs.add("resize", "give a resource more partitions, or fewer", _resize))
    resize.add_argument("--partitions", type=count, required=True, metavar="N")
    resize.add_argument("--write-partitions", type=count, metavar="N", help="that take records; default all")
    resize.add_argument("--first-partition", type=count, metavar="N", help="delete those before it; default as it is")
    delete = _RESOURCE.drop(lambda m: m.assignments.delete, said="ordered")
    _resource(verbs.add("delete", "delete a resource; it stays until its brokers have deleted what they have", delete))


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


def _resource(parser: Parser) -> Parser:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("resource", metavar="RESOURCE")
    help = "what it is: topic, connector, share_group, shard or another word; default topic"
    parser.add_argument("--kind", default="topic", metavar="K", help=help)
    return parser


def _pair(text: str) -> tuple[str, str]:
    """Read an argument."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"not NAME=VALUE: {text}")
    return name, value


def _given(a: Arguments) -> dict[str, typing.Any]:
    """What was named of that which a resource can be altered in."""
    names = ("min_isr", "copies", "force_after_ms", "repair_after_ms", "spread")
    given = {name: value for name in names if (value := getattr(a, name)) is not None}
    return given | {name: dict(value) for name in ("labels", "attributes") if (value := getattr(a, name)) is not None}


async def _create(m: Client, a: Arguments, printer: Printer) -> None:
    await m.assignments.create(
        *_RESOURCE.named(a),
        partitions=a.partitions,
        write_partitions=a.write_partitions,
        replication=a.replication,
        election=a.election,
        **_given(a),
    )
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


# --- partitions ---


def _partition(parser: Parser) -> Parser:
    _resource(parser).add_argument("partition", type=count, metavar="PARTITION")
    return parser


def _by_broker(a: Arguments) -> None:
    """Have the listing be by the index that ``--broker`` needs."""
    if a.broker is None:
        return
    if a.key or a.prefix or a.index:
        raise ValueError("--broker stands alone: without KEY, --prefix and --index")
    a.index, a.key = "by_replica", [a.broker]


def _brokers_or_cancel(a: Arguments) -> None:
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
    rows = [{"broker": broker, "replicas": replicas} for broker, replicas in left.items()]
    facts = _plan_row(plan, int(time.time() * 1_000)) | {"moving now": moving, "nothing left in": plan.idle}
    printer.document(
        msgspec.structs.asdict(plan) | {"moving": moving, "replicas": left},
        facts,
        [("left on them" if plan.rule == "drain" else "have now", rows)],
    )


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
