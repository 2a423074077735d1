"""``metadctl brokers``: which brokers there are, in which life, and the end of one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from metad_wire.tables.broker import Broker

from ..client import Client
from ..errors import NotFoundError
from .printing import Printer

Arguments = argparse.Namespace
STATES = ("registered", "active", "draining", "fenced", "gone")


def _row(broker: Broker) -> dict[str, Any]:
    """What a person wants to see of a broker in a line."""
    return {
        "broker": broker.broker,
        "epoch": broker.broker_epoch,
        "state": broker.state,
        "address": broker.address,
        "region": broker.region,
        "load": broker.load,
        "lease_ms": broker.lease_ms,
        "earlier lives": "fenced" if broker.fenced else "being fenced",
    }


async def _list(m: Client, a: Arguments, printer: Printer) -> None:
    found = [broker async for broker in m.brokers.list(a.prefix, state=a.state)]
    printer.page(found, [], [[_row(broker) for broker in found]])


async def _get(m: Client, a: Arguments, printer: Printer) -> None:
    broker = await m.brokers.get(a.broker)
    if broker is None:
        raise NotFoundError(f"no broker {a.broker}")
    printer.one(broker)


async def _fence(m: Client, a: Arguments, printer: Printer) -> None:
    ended = await m.brokers.fence(a.broker, a.epoch)
    printer.one(
        {"broker": ended.broker.broker, "state": ended.broker.state, "epoch": ended.broker.broker_epoch}
        | {"groups that do not know yet": ended.unfenced}
    )


def add(plain: Callable[..., argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the commands."""
    listing = plain("brokers", "the brokers and their lives; or end one", _list)
    listing.add_argument("--prefix", default="", help="only those whose name starts so")
    listing.add_argument("--state", default="", choices=STATES, help="only those in this state")
    verbs = listing.add_subparsers(metavar="COMMAND")
    get = verbs.add_parser("get", help="one broker", parents=[common])
    get.add_argument("broker", metavar="BROKER")
    get.set_defaults(command=_get)
    fence = verbs.add_parser("fence", help="end a life of a broker: no group writes in its name", parents=[common])
    fence.add_argument("broker", metavar="BROKER")
    fence.add_argument("--epoch", type=int, default=0, metavar="N", help="only if this is its last life")
    fence.set_defaults(command=_fence)
