"""``metadctl slow`` and ``metadctl loud``: which requests took long, and who asks for most. And ``metadctl compact``,
for nodes whose reads take long because much was deleted."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from metad_wire.messages import ACTIVITY_MAX, ActivityReply, CompactReply, SlowRequest

from ..client import Client
from ..errors import MetadError
from . import people
from .grammar import Arguments, Commands, count
from .looking import STATUS_S, answered, raise_failed
from .printing import Printer, progress

_KINDS: Final = ("tenants", "clients", "brokers", "keys")


def add(commands: Commands) -> None:
    """Add the commands."""
    slow = commands.add("slow", "requests that took longer than limits.slow_ms, and what they waited for", _slow)
    loud = commands.add("loud", "which tenants, clients, brokers and keys ask for most", _loud)
    for parser in (slow, loud):
        parser.add_argument("--node", default="", help="only what this node has seen")
        parser.add_argument(
            "--most", type=count, default=20, metavar="N", help="at most N of each kind, 0 for 256; default 20"
        )

    compact = commands.add(
        "compact", "drop what is deleted from the files of nodes, and show how much that frees", _compact
    )
    compact.add_argument("node", metavar="NODE", help="the node, or `all`")


_LOOK_S: Final = 0.5


async def _compact(m: Client, a: Arguments, printer: Printer) -> None:
    """Begin, and look until all have ended. A node that goes on after that needs nobody to look."""
    nodes = () if a.node == "all" else (a.node,)
    found = await m.cluster.compact(nodes=nodes)
    with progress(a.json) as line:
        while running := {n: one for n, one in found.items() if isinstance(one, CompactReply) and one.running}:
            line.say(", ".join(f"{node}: {one.done} of {one.parts} parts" for node, one in sorted(running.items())))
            await asyncio.sleep(_LOOK_S)
            found |= await m.cluster.compact(begin=False, nodes=[*running])
    ended = answered(found)
    records = [
        {
            "node": node,
            "parts": one.parts,
            "done": one.done,
            "bytes": one.bytes,
            "freed_bytes": max(0, one.before_bytes - one.bytes),
            "error": one.error,
        }
        for node, one in ended.items()
    ]
    rows = [
        {
            "node": node,
            "files": people.size(one.bytes),
            "freed": people.size(max(0, one.before_bytes - one.bytes)),
            "error": one.error or None,
        }
        for node, one in ended.items()
    ]
    if ended or not found:
        printer.many(records, rows)
    raise_failed(found)


async def _asked(m: Client, a: Arguments) -> dict[str, ActivityReply]:
    """By node. Raises the error of a node that is the only one asked."""
    a.most = a.most or ACTIVITY_MAX
    found: dict[str, ActivityReply] = {}
    replies = await m.cluster.activity(a.most, deadline_s=min(STATUS_S, a.timeout), nodes=[a.node] if a.node else ())
    for node, reply in replies.items():
        if not isinstance(reply, MetadError):
            found[node] = reply
        elif a.node or len(replies) == 1:
            raise reply
        else:
            sys.stderr.write(f"metadctl: {node} did not say: {reply}\n")
    return found


async def _slow(m: Client, a: Arguments, printer: Printer) -> None:
    now_ms = time.time_ns() // 1_000_000
    found = [(one, node) for node, reply in (await _asked(m, a)).items() for one in reply.slow]
    found.sort(key=lambda each: each[0].ended_ms, reverse=True)
    records = [{"node": node, **{name: getattr(one, name) for name in one.__struct_fields__}} for one, node in found]
    printer.many(records[: a.most], [slow_row(one, node, now_ms) for one, node in found[: a.most]])


def slow_row(one: SlowRequest, node: str, now_ms: int) -> dict[str, Any]:
    """What a person wants to see of a slow request in a line."""

    def ms(us: int) -> str:
        return people.duration(us // 1_000)

    row: dict[str, Any] = {
        "ended": people.when(one.ended_ms, now_ms),
        "node": node,
        "method": one.method,
        "items": one.items,
        "took": ms(one.took_us),
    }
    if one.group:
        row |= {
            "queued": ms(one.queued_us),
            "committed": ms(max(0, one.applying_us - one.queued_us)),
            "applied": ms(max(0, one.took_us - one.applying_us)),
        }
    else:
        row |= {"queued": ms(one.queued_us) if one.queued_us else None, "committed": None, "applied": None}
    return row | {"group": one.group or None, "outcome": one.outcome, "client": one.client}


async def _loud(m: Client, a: Arguments, printer: Printer) -> None:
    printer.many(loud_rows((await _asked(m, a)).values(), a.most))


def loud_rows(replies: Collection[ActivityReply], most: int) -> list[dict[str, Any]]:
    """Who asks for most, all nodes together: up to ``most`` rows of each kind."""
    total: dict[str, Counter[str]] = {}
    for kind in _KINDS:
        total[kind] = Counter()
        for reply in replies:
            for one in getattr(reply, kind):
                total[kind][one.name] += one.at_least
    return [
        {"kind": kind.removesuffix("s"), "name": name, "items": items}
        for kind in _KINDS
        for name, items in total[kind].most_common(most)
    ]
