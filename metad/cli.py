"""The ``metad`` command: the composition root of a server process.

It reads the command line before it imports the server, so that it can help without the packages of the extra
``server``. Exit status: 0 when done, 1 with one line on stderr if the node cannot serve, 2 for a wrong command line or
if a package is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metad_wire import __version__
from metad_wire.extras import advice
from metad_wire.transport.tcp import install_uvloop

from .config import load_config, reference
from .errors import ConfigError, ServerError
from .logs import configure


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "config":
            print(reference())
        else:
            _run(arguments)
    except ServerError as error:
        print(f"metad: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as missing:
        print(f"metad: {advice(missing, 'server')}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
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
    return parser


def _run(arguments: argparse.Namespace) -> None:
    """Run a node or a local cluster until it is told to end."""
    from .process import serve
    from .supervisor import Supervisor, local_cluster, local_fleet, parse_groups, parse_regions, workers_of

    overrides: dict[str, Any] = {}
    if arguments.data_dir is not None:
        overrides["data_dir"] = arguments.data_dir
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
        asyncio.run(serve(configs[0], arguments.ready_file))


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


if __name__ == "__main__":
    sys.exit(main())
