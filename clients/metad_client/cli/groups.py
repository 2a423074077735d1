"""``metadctl groups``: the groups of nodes that store the records, and (``groups consumer``) the consumer groups of
clients."""

from __future__ import annotations

import argparse

from ..client import Client
from . import overview
from .grammar import Arguments, Commands, count
from .looking import look
from .printing import Printer
from .tables import consumers


def add(commands: Commands) -> None:
    """Add the commands."""
    _, verbs = commands.family("groups", "the groups and their leaders, or consumer groups; or change them", _list)
    adding = verbs.add("add", "add a group, without slots yet", _add)
    adding.add_argument("--kind", required=True, choices=("data", "offset"))
    rebalance = verbs.add("rebalance", "spread slots, replicas and leaders evenly", _rebalance)
    rebalance.add_argument(
        "--replicas", type=_replicas, default=0, metavar="N", help="replicas that every group should have from now on"
    )
    consumers.add(verbs)


def _replicas(text: str) -> int:
    if (number := count(text)) < 1:
        raise argparse.ArgumentTypeError(f"a group has at least one: {text}")
    return number


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    cluster = await look(m, a)
    printer.page(overview.groups(cluster), [], [overview.group_table(cluster)])


async def _add(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.add_group(a.kind))


async def _rebalance(m: Client, a: Arguments, printer: Printer) -> None:
    printer.one(await m.cluster.rebalance(replicas=a.replicas))
