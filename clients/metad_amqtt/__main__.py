"""``python -m metad_amqtt``: one broker in the foreground, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from amqtt.errors import BrokerError

from metad_client import MetadError, Options, connect
from metad_wire.program.lines import LineHandler, LineWriter
from metad_wire.program.open_files import raise_files_limit
from metad_wire.program.output import decode_arguments
from metad_wire.transport.credentials import broker_files

from . import MetadBroker
from .broker import ALONE_S
from .kept import NEVER_S
from .seldom import SeldomFromOnePlace

_ABOUT = "Run one broker in the foreground, until SIGTERM or SIGINT."
_ANONYMOUS = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}


async def _serve(arguments: argparse.Namespace) -> int:
    raise_files_limit()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    config = {"listeners": {"default": {"type": "tcp", "bind": arguments.bind}}, "plugins": _ANONYMOUS}
    files = broker_files(arguments.certs, arguments.name) if arguments.certs else None
    # What a client is to have an answer for waits as long for metad as its connection is kept without it.
    tls = None if arguments.metad.startswith("metad://") else files
    options = Options(tls=tls, deadline_s=max(arguments.alone_s, 10.0))
    async with connect(arguments.metad, options) as metad:
        broker = MetadBroker(
            metad,
            arguments.name,
            config,
            tenant=arguments.tenant,
            links=arguments.links,
            links_tls=files,
            expiry_s=arguments.expiry_s,
            lease_s=arguments.lease_s,
            alone_s=arguments.alone_s,
        )
        await broker.start()
        serves = LineWriter(sys.stdout, _dropped)
        serves.write(f"{arguments.name} serves on {broker.bound()} in life {broker.epoch}")
        serves.flush()
        waits = [asyncio.create_task(one.wait()) for one in (ended, broker.fenced)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await broker.shutdown()
    return 3 if broker.fenced.is_set() else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a signal, 1 if it cannot serve, 3 if this life of the broker is over."""
    parser = argparse.ArgumentParser(prog="python -m metad_amqtt", description=_ABOUT)
    parser.add_argument("--metad", metavar="URL", default="metad://127.0.0.1:7420", help="as for metad_client.connect")
    parser.add_argument("--name", required=True, help="of this broker; no two of a tenant have the same")
    parser.add_argument(
        "--bind", metavar="HOST:PORT", default="127.0.0.1:1883", help="for MQTT clients, whoever they are"
    )
    parser.add_argument("--links", metavar="HOST:PORT", default="127.0.0.1:0", help="for the other brokers")
    parser.add_argument(
        "--certs", metavar="DIR", default="", help="written by `metadctl certs --brokers NAME`: for brokers, and metad"
    )
    parser.add_argument("--lease-s", type=float, default=10.0, help="a broker that is silent for so long is over")
    parser.add_argument(
        "--alone-s", type=float, default=ALONE_S, help="how long clients are kept while no node of metad is reached"
    )
    parser.add_argument("--expiry-s", type=int, default=NEVER_S, help="the session of a client that is away ends then")
    parser.add_argument("--tenant", default="mqtt", help="brokers of one tenant share their clients")
    arguments = parser.parse_args(argv)
    try:
        decode_arguments(arguments, {"certs"})
    except UnicodeError:
        parser.error("an argument is not UTF-8")
    writer = LineWriter(sys.stderr, _dropped)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler = LineHandler(writer)
    handler.addFilter(SeldomFromOnePlace())
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[handler])
    try:
        return asyncio.run(_serve(arguments))
    except (MetadError, BrokerError, OSError) as error:
        writer.write(f"{arguments.name}: {error}")
        return 1
    finally:
        writer.flush()


def _dropped(count: int) -> None:
    logging.getLogger(__name__).warning("%d lines were dropped, because nobody read them", count)


if __name__ == "__main__":
    sys.exit(main())
