"""``metadctl groups``: the groups of nodes that store the records, why each is as it is, and changes of them by hand;
and (``groups consumer``) the consumer groups of clients, their members and generations, and where each is in its
topics.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from metad_wire.cluster import GROUP_KINDS, MOVES_OF_A_MAP, SLOTS, ClusterMap, Done
from metad_wire.messages import Offset
from metad_wire.tables.consumer import GroupState, Member
from metad_wire.tables.offset import KnownGroup

from ..client import Client
from ..errors import NotFoundError
from . import overview, people
from .grammar import Arguments, Commands, count, limit, needs
from .lamps.explained import explained
from .looking import add_wait, known, look, wait_until
from .printing import Printer
from .tables.bounded import Kind, Row, first, page_size, say_more, show
from .view import ClusterView

_GROUP = Kind("consumer group", ("tenant", "group"))
_MEMBER = Kind("member {member} of consumer group {tenant}/{group}", ("tenant", "group", "member"))
_NEEDS = needs("tenant", "consumer groups are listed by tenant")


def _add_consumers(commands: Commands) -> None:
    """Add the commands."""
    listing, verbs = commands.family("consumer", "the consumer groups of a tenant; or one of them", _list, _NEEDS)
    listing.add_argument("--tenant", metavar="T", help="required: whose groups to list")
    listing.add_argument("--prefix", default="", metavar="P", help="only groups with this prefix")
    limit(listing)
    get = _GROUP.key(verbs.add("get", "a consumer group: what it does, its members and its offsets", _get))
    get.add_argument("--prefix", default="", metavar="P", help="only topics with this prefix")
    limit(get, "show at most N offsets, 0 for all")
    reset = _GROUP.key(verbs.add("reset", "set the generation of a consumer group, even to a lower one", _reset))
    reset.add_argument("generation", metavar="GENERATION", type=count, help="the new generation; 0: none")
    reset.add_argument("--expected", required=True, type=count, metavar="N", help="only if the generation is N now")
    dismiss = _MEMBER.drop(lambda m: m.consumers.leave, said="dismissed")
    _MEMBER.key(verbs.add("dismiss", "send a member away, as if it had left", dismiss))
    _GROUP.key(verbs.add("delete", "delete all offsets of a consumer group, and its generation", _delete))


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    found = await first(m.offsets.groups(a.tenant, a.prefix, page_size=page_size(a.limit)), a.limit)
    show(printer, "groups", found, known_group_row, a.limit)


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    offsets = m.offsets.list(a.tenant, a.group, a.prefix, page_size=page_size(a.limit))
    generation, found, info, members = await asyncio.gather(
        m.offsets.generation(a.tenant, a.group),
        first(offsets, a.limit),
        m.consumers.describe(a.tenant, a.group),
        first(m.consumers.members(a.tenant, a.group), 0),  # CONSUMER_MEMBERS_MAX at most
    )
    if not generation and not found.records and info is None and not a.prefix:
        raise NotFoundError(_GROUP.missing(a))
    now_ms = int(time.time() * 1_000)
    facts: Row = {"tenant": a.tenant, "group": a.group, "generation": generation}
    state = GroupState(GroupState.EMPTY if info is None else info.state).name.lower()
    document = facts | {"state": state, "members": members.records, "offsets": found.records, "more": found.more}
    if info is not None:
        facts |= {
            "state": state,
            "since": people.when(info.since_ms, now_ms),
            "members": info.members,
            "not joined yet": info.waiting,
            "leader": info.leader or None,
            "protocol": info.protocol or None,
        }
    tables = [
        ("members", [_member_row(member, generation) for member in members.records]),
        ("offsets", [offset_row(offset, now_ms) for offset in found.records]),
    ]
    printer.document(document, facts, tables)
    if found.more:
        say_more(a.limit)


async def _reset(m: Client, a: Arguments, printer: Printer) -> None:
    await m.offsets.reset_generation(a.tenant, a.group, a.expected, a.generation)
    printer.one({"generation": a.generation})


async def _delete(m: Client, a: Arguments, printer: Printer) -> None:
    known = [one async for one in m.offsets.groups(a.tenant, a.group) if one.group == a.group]
    deleted = await m.offsets.delete_group(a.tenant, a.group)
    if not known and not deleted:
        raise NotFoundError(_GROUP.missing(a))
    printer.one({"offsets_deleted": deleted})


def known_group_row(group: KnownGroup) -> Row:
    """What a person wants to see of a consumer group in a line."""
    return {"tenant": group.tenant, "group": group.group, "generation": group.generation}


def _member_row(member: Member, generation: int) -> Row:
    """What a person wants to see of a member in a line. What was assigned in an earlier generation does not count."""
    return {
        "member": member.member,
        "instance": member.instance or None,
        "holder": member.holder or None,
        "joined": member.joined,
        "assigned": people.size(len(member.assignment)) if member.assigned == generation else None,
        "session": people.duration(member.session_ms),
    }


def offset_row(offset: Offset, now_ms: int) -> Row:
    """What a person wants to see of an offset: the end of the topic, which the broker knows, less this is the lag."""
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "offset": offset.offset,
        "generation": offset.generation,
        "committed": people.when(offset.committed_ms, now_ms),
        "metadata": offset.metadata or None,
    }


def add(commands: Commands) -> None:
    """Add the commands."""
    _, verbs = commands.family(
        "groups", "the groups and their leaders, or consumer groups; or change them", _list_groups
    )
    adding = verbs.add("add", "add a group, without slots yet", _add_group)
    adding.add_argument("--kind", required=True, choices=GROUP_KINDS)
    rebalance = verbs.add("rebalance", "spread replicas and leaders, and give slots to groups without any", _rebalance)
    rebalance.add_argument(
        "--replicas", type=_replicas, default=0, metavar="N", help="replicas that every group should have from now on"
    )
    rebalance.add_argument(
        "--even-slots",
        action="store_true",
        help="every group gets as many slots, which undoes splits, merges and moves; else only one without any does",
    )
    explain = verbs.add("explain", "why groups are as they are, and what comes next", _explain)
    explain.add_argument("group", nargs="?", metavar="GROUP", help="all of this one, as in data-0")
    move = verbs.add("move", "move slots to another group, or a replica to another node", _move, _check_move)
    move.add_argument("group", nargs="?", default="", metavar="GROUP", help="whose replica, or whose slots")
    move.add_argument("--slots", type=_slots, metavar="A-B,C", help="slots to move")
    move.add_argument("--from", dest="source", default="", metavar="NODE", help="the node that has the replica")
    move.add_argument("--to", required=True, metavar="GROUP|NODE", help="the group that gets the slots, or the node")
    split = verbs.add("split", "move half of a group's slots to another group, or to a new one", _split)
    split.add_argument("group", metavar="GROUP")
    split.add_argument("--to", default="", metavar="GROUP", help="the group that gets them; default a new one")
    merge = verbs.add("merge", "move all slots of a group to another one", _merge)
    merge.add_argument("group", metavar="GROUP")
    merge.add_argument("--into", required=True, metavar="GROUP", help="the group that gets them")
    remove = verbs.add("remove", "remove a group that has no slots, for ever", _remove)
    remove.add_argument("group", metavar="GROUP")
    prefer = verbs.add("prefer", "have a group be led in a region whenever it can be", _prefer)
    prefer.add_argument("group", metavar="GROUP")
    where = prefer.add_mutually_exclusive_group(required=True)
    where.add_argument("--region", type=_region, metavar="R", help="the region whose nodes should lead it")
    where.add_argument("--none", dest="region", action="store_const", const="", help="nodes of any region may lead it")
    add_wait(prefer, "it is led there")
    for parser in (move, split, merge):
        add_wait(parser, "it is where it is to go")
    add_wait(remove, "no node has a replica of it")
    _add_consumers(verbs)


def _slots(text: str) -> list[int]:
    """Read an argument: slots and ranges of slots with commas between them."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            begin = count(first)
            end = count(last) if dash else begin
        except ValueError:
            begin, end = 1, 0
        if not begin <= end < SLOTS:
            raise argparse.ArgumentTypeError(f"no range of slots from 0 to {SLOTS - 1}: {part}")
        found += range(begin, end + 1)
    return found


def _region(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a region has a name; --none takes the preference back")
    return text


def _check_move(a: Arguments) -> None:
    if (a.slots is None) == (not a.source):
        raise ValueError("name either --slots, or GROUP and --from")
    if a.source and not a.group:
        raise ValueError("GROUP is missing: --from says which of its replicas is to move")


def _replicas(text: str) -> int:
    if (number := count(text)) < 1:
        raise argparse.ArgumentTypeError(f"a group has at least one: {text}")
    return number


async def _list_groups(m: Client, a: Arguments, printer: Printer) -> None:
    cluster = await look(m, a)
    printer.page(overview.groups(cluster), [], [overview.group_table(cluster)])


async def _add_group(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.add_group(a.kind))


async def _rebalance(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.rebalance(replicas=a.replicas, keep_slots=not a.even_slots))


async def _explain(m: Client, a: Arguments, printer: Printer) -> None:
    found = explained(*await known(m, a))
    if a.group is None:
        rows = [
            {"group": one.group, "slots": one.slots, "leader": one.leader, "why": one.why, "next": one.next}
            for one in found
        ]
        printer.listing("groups", found, False, rows)
        return
    one = next((one for one in found if one.group == a.group), None)
    if one is None:
        raise NotFoundError(f"there is no group {a.group}")
    printer.document(one, one.facts(), [("replicas", one.replicas), ("moves", one.moves)])


async def _move(m: Client, a: Arguments, printer: Printer) -> None:
    if a.slots is not None:
        await _moved(m, a, printer, await m.cluster.move_slots(a.to, group=a.group, slots=a.slots))
        return
    done = await m.cluster.move_replica(a.group, a.source, a.to)

    def lacks(_: ClusterMap, cluster: ClusterView) -> str:
        group = next((one for one in cluster.groups if one.name == a.group), None)
        if group is None or group.record is None or not group.leader:
            return f"{a.group} has no leader"
        differ = {*group.voters} ^ {*group.record.replicas}
        return f"{people.listed(sorted(differ))}: not as the map wants yet" if differ else ""

    if a.wait:
        await wait_until(m, a, done.version, lacks)
    printer.one(done)


async def _split(m: Client, a: Arguments, printer: Printer) -> None:
    await _moved(m, a, printer, await m.cluster.move_slots(a.to, group=a.group, half=True))


async def _merge(m: Client, a: Arguments, printer: Printer) -> None:
    await _moved(m, a, printer, await m.cluster.move_slots(a.into, group=a.group))


async def _moved(m: Client, a: Arguments, printer: Printer, done: Done) -> None:
    """Wait for the slot moves that were ordered, if that is asked for, and say what was done."""

    def under_way(current: ClusterMap, cluster: ClusterView) -> str:
        moves = {move["move"]: move for one in explained(current, cluster) for move in one.moves}
        texts = [
            f"{one['source']} to {one['target']}: {one['phase']}, {one['waits_for']}"
            for number, one in moves.items()
            if number // MOVES_OF_A_MAP == done.version
        ]
        closing = [one.name for one in cluster.groups if one.closing // MOVES_OF_A_MAP == done.version]
        texts += [f"{name}: closes the move" for name in closing]
        return "; ".join(texts[:3]) + (" and others" if texts[3:] else "")

    if a.wait:
        await wait_until(m, a, done.version, under_way)
    printer.one(done)


async def _prefer(m: Client, a: Arguments, printer: Printer) -> None:
    done = await m.cluster.prefer(a.group, a.region)

    def elsewhere(current: ClusterMap, cluster: ClusterView) -> str:
        one = next((one for one in explained(current, cluster) if one.group == a.group), None)
        if one is None:
            return f"{a.group} is gone"
        at = next((row["region"] for row in one.replicas if row["node"] == one.leader), None)
        return "" if a.region in ("", at) else one.why

    if a.wait:
        await wait_until(m, a, done.version, elsewhere)
    printer.one(done)


async def _remove(m: Client, a: Arguments, printer: Printer) -> None:
    done = await m.cluster.remove_group(a.group)

    def there(_: ClusterMap, cluster: ClusterView) -> str:
        status = {node.node: node.status for node in cluster.nodes}
        has = [name for name, one in status.items() if one and any(group.name == a.group for group in one.groups)]
        return f"{people.listed(has)}: has a replica yet" if has else ""

    if a.wait:
        await wait_until(m, a, done.version, there)
    printer.one(done)
