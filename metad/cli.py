"""The ``metad`` command: the composition root of a server process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metad_wire.transport.tcp import install_uvloop

from . import __version__
from .config import Config, load_config, reference
from .errors import ConfigError, ServerError
from .logs import configure, event
from .server.network import Network
from .server.serve import Server
from .supervisor import Supervisor, local_cluster, local_fleet, parse_groups, parse_regions, workers_of


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="metad", description="Metadata and coordination service for message brokers.")
    parser.add_argument("--version", action="version", version=f"metad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run a node in the foreground")
    serve.add_argument("--data-dir", metavar="D", help="directory of log and state; created if it does not exist")
    serve.add_argument("--listen", metavar="HOST:PORT", help="address for clients (default 127.0.0.1:7420)")
    serve.add_argument("--quic", metavar="HOST:PORT", help="address for clients over QUIC; needs certificates")
    serve.add_argument("--tls-cert", metavar="F", help="PEM file: this node's certificate; encrypts every connection")
    serve.add_argument("--tls-key", metavar="F", help="PEM file: the key of the certificate")
    serve.add_argument("--tls-ca", metavar="F", help="PEM file: the trusted authority of clients and nodes")
    serve.add_argument(
        "--require-client-cert",
        action="store_true",
        default=None,
        help="clients need a certificate even if they have a token",
    )
    serve.add_argument("--config", metavar="FILE", type=Path, help="TOML file; `metad config` describes the keys")
    serve.add_argument(
        "--ready-file", metavar="F", type=Path, help='file to write {"endpoints": [...]} to once the node serves'
    )
    serve.add_argument(
        "--workers", metavar="W", type=int, default=1, help="number of processes of this node (default 1)"
    )
    cluster = commands.add_parser("cluster", help="run a local cluster in the foreground")
    cluster.add_argument("--nodes", metavar="N", type=int, help="number of nodes (default 3, or one per region)")
    cluster.add_argument(
        "--regions",
        metavar="A,B,C",
        default="",
        help="regions to assign to the nodes in turn; nodes use QUIC between regions; implies --tls",
    )
    cluster.add_argument(
        "--tls", action="store_true", help="create certificates in the data directory, use TLS, and serve QUIC too"
    )
    cluster.add_argument("--data-dir", metavar="D", required=True, help="directory of all nodes")
    cluster.add_argument(
        "--groups", metavar="G", default="", help="number of groups of each kind, as in offset=2,data=4"
    )
    cluster.add_argument("--workers", metavar="W", type=int, default=1, help="number of processes per node (default 1)")
    cluster.add_argument("--config", metavar="FILE", type=Path, help="TOML file for all nodes")
    cluster.add_argument(
        "--ready-file",
        metavar="F",
        type=Path,
        help='file to write {"endpoints": [...], "pids": {...}} to once all nodes serve',
    )
    commands.add_parser("config", help="print the configuration reference as Markdown")
    arguments = parser.parse_args(argv)
    if arguments.command == "config":
        print(reference())
        return 0
    overrides: dict[str, Any] = {}
    if arguments.data_dir is not None:
        overrides["data_dir"] = arguments.data_dir
    try:
        if arguments.workers < 1:
            raise ConfigError("--workers: at least 1")
        if arguments.command == "cluster":
            regions = parse_regions(arguments.regions)
            nodes = len(regions) or 3 if arguments.nodes is None else arguments.nodes
            if not 1 <= nodes <= 99:
                raise ConfigError("--nodes: 1 to 99")
            if arguments.groups:
                overrides["groups"] = parse_groups(arguments.groups)
            config = load_config(arguments.config, overrides)
            fleet = local_fleet(config, nodes) if arguments.tls or regions else {}
            configs = local_cluster(config, nodes, arguments.workers, fleet=fleet, regions=regions)
        else:
            overrides |= _serve_overrides(arguments)
            config = load_config(arguments.config, overrides)
            configs = workers_of(config, arguments.workers) if arguments.workers > 1 else [config]
        configure(config.log_level)
        install_uvloop()
        if len(configs) > 1:
            asyncio.run(Supervisor(configs, arguments.ready_file).run())
        else:
            asyncio.run(_serve(configs[0], arguments.ready_file))
    except ServerError as error:
        print(f"metad: {error}", file=sys.stderr)
        return 1
    return 0


def _serve_overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings in the flags of ``metad serve``, by the keys of the configuration file."""
    security = {
        "certificate": arguments.tls_cert,
        "key": arguments.tls_key,
        "ca": arguments.tls_ca,
        "require_client_certificate": arguments.require_client_cert,
    }
    given = {field: value for field, value in security.items() if value is not None}
    found: dict[str, Any] = {"security": given} if given else {}
    for field in ("listen", "quic"):
        if getattr(arguments, field) is not None:
            found[field] = getattr(arguments, field)
    return found


def settle_interpreter() -> None:
    """Set up the interpreter of a process that hosts a node. Call it once the node is open."""
    # The fsync thread needs the interpreter to report: with the default interval a busy loop delays every commit by 5
    # ms.
    sys.setswitchinterval(0.0001)
    # Requests make thousands of short-lived objects. The long-lived ones exist by now and are frozen. A collection of
    # 5,000 new objects takes 2 ms, for which everybody waits.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 4, 500)


async def _serve(config: Config, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # A killed process leaves its ready file. The lock of the stores proves that no running process owns it.
    server = await Server.start(config, Network.of(config), locked=lambda: _remove(ready_file))
    settle_interpreter()
    running = asyncio.create_task(server.run())
    stopping = asyncio.create_task(stop.wait())
    serving = asyncio.create_task(server.node.serving())
    try:
        await asyncio.wait((running, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and not serving.exception():
            event("serving", endpoint=server.endpoint, quic=server.quic_endpoint or None)
            if ready_file is not None:
                _write_ready(ready_file, server, config)
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        stopping.cancel()
        serving.cancel()
        _remove(ready_file)
        event("draining")
        if not await server.stop():
            event("not everything was answered", logging.WARNING)
        running.cancel()
        await asyncio.gather(running, stopping, serving, return_exceptions=True)
    if server.node.failure is not None and not server.node.closed:  # while it was stopping
        raise server.node.failure


def _remove(ready_file: Path | None) -> None:
    if ready_file is not None:
        try:
            ready_file.unlink(missing_ok=True)
        except OSError as error:
            event("ready file remains", logging.WARNING, path=str(ready_file), error=error.strerror)


def _write_ready(path: Path, server: Server, config: Config) -> None:
    """The file appears whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    body: dict[str, Any] = {"endpoints": [server.endpoint], "pids": {config.node_id: os.getpid()}}
    if server.quic_endpoint:
        body["quic_endpoints"] = [server.quic_endpoint]
    try:
        temporary.write_text(json.dumps(body) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        raise ServerError(f"cannot write the ready file {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
