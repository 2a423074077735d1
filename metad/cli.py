"""The ``metad`` command: the composition root of a server process.

It reads the command line before it imports the server, so that it can help without the packages of the extra
``server``. Exit status: 0 when done, 1 with one line on stderr if the node cannot serve, 2 for a wrong command line or
if a package is not installed, 3 if every other node refuses this one or it has left its cluster, so that starting it
again would not help.
The last line of a node's log says why it ends, and the status.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metad_wire.described import described, page
from metad_wire.program.build import build
from metad_wire.program.extras import advice
from metad_wire.program.open_files import raise_files_limit
from metad_wire.program.output import escape_unprintable, print_nowhere, reader_may_leave
from metad_wire.program.signals import default_for_children
from metad_wire.transport.tcp import install_uvloop

from . import formats, log_events
from .config import Config, load_config
from .config.environment import VARIABLES, overrides_of, unknown_variables
from .config.files import merged, origins_of, problems_in, read
from .config.pages import reference, sample
from .errors import ConfigError, ServerError
from .log_events import reference as log_reference
from .logs import configure, event, say
from .process_limits import fitted, memory_shortage
from .server.network import Network, in_clear


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    escape_unprintable()
    default_for_children()
    with reader_may_leave():
        arguments = _parser().parse_args(argv)
    try:
        if arguments.command in ("config", "formats", "logs", "metrics", "protocol", "recover"):
            return _to_stdout(arguments)
        with contextlib.ExitStack() as held:
            return _run_to_the_end(arguments, held)
    except ServerError as error:
        print(f"metad: {error}", file=sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as missing:
        print(f"metad: {advice(missing, 'server')}", file=sys.stderr)
        return 2


def _to_stdout(arguments: argparse.Namespace) -> int:
    """Do what needs no node that runs; returns the exit status."""
    try:
        with reader_may_leave():
            return _recover(arguments) if arguments.command == "recover" else _print(arguments)
        return 0
    except OSError as error:
        print(f"metad: cannot write the output: {error.strerror}", file=sys.stderr)
        print_nowhere()
        return 1


def _print(arguments: argparse.Namespace) -> int:
    if arguments.command == "config":
        return _config(arguments)
    if arguments.command == "logs":
        print(log_reference(), end="")
    elif arguments.command == "formats":
        print(json.dumps(formats.described(), indent=1) if arguments.json else formats.table(), end="")
    elif arguments.command == "metrics":
        from .server.lamps import alerts, metrics

        shown = alerts.rules if arguments.alerts else alerts.dashboard if arguments.dashboard else metrics.reference
        print(shown(), end="\n" if arguments.dashboard else "")
    else:
        print(json.dumps(described(), indent=1) if arguments.json else page(), end="\n" if arguments.json else "")
    return 0


def _run_to_the_end(arguments: argparse.Namespace, held: contextlib.ExitStack) -> int:
    """Run a node or a local cluster, and log why it ends. Returns the exit status. ``held`` gets what this process has
    to hold until then."""
    configure("info", _name(arguments))  # its level is in the configuration, which may be what is wrong
    for variable, meant in unknown_variables(os.environ).items():  # one of them may be what is missing
        event(log_events.UNKNOWN_VARIABLE, variable=variable, did_you_mean=meant)
    status = 1
    try:
        reason, status = _run(arguments, held), 0
    except ServerError as error:
        say(f"metad: {error}")
        reason, status = str(error), error.exit_status
    except ModuleNotFoundError:
        raise
    except KeyboardInterrupt:
        reason, status = signal.SIGINT.name, 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - the traceback is in the log
        event(log_events.BUG, exc_info=error, where="the process")
        reason = f"{type(error).__name__}: {error}"
        say(f"metad: stopped by a bug, see the log: {reason}")
    event(log_events.ENDED_BY_ERROR if status else log_events.ENDED, reason=reason, status=int(status))
    return status


def _name(arguments: argparse.Namespace) -> str:
    """The name in the lines of the log, as far as it can be told from a configuration that may be wrong."""
    if arguments.command == "cluster":
        return "cluster"
    settings: dict[str, Any] = {}
    if arguments.config is not None:
        try:
            settings = read(arguments.config)
        except ConfigError:
            return os.environ.get("METAD_NODE_ID", "")
    return os.environ.get("METAD_NODE_ID") or str(settings.get("node_id", Config().node_id))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metad", description="Metadata and coordination service for message brokers.")
    parser.add_argument("--version", action="version", version=f"metad {build()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run a node in the foreground")
    _settings(serve)
    serve.add_argument("--config", metavar="FILE", type=Path, help="TOML file; `metad config` describes the keys")
    serve.add_argument(
        "--ready-file", metavar="F", type=Path, help='file to write {"endpoints": [...]} to once the node serves'
    )
    serve.add_argument("--made-of", help=argparse.SUPPRESS)  # of what --config was made: people are told to edit that
    serve.add_argument("--workers", metavar="W", type=int, default=1, help="processes of this node (default 1)")
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
        "--groups", metavar="G", default="", help="number of groups of each kind, as in metadata=1,offset=2,data=4"
    )
    cluster.add_argument("--workers", metavar="W", type=int, default=1, help="number of processes per node (default 1)")
    cluster.add_argument("--config", metavar="FILE", type=Path, help="TOML file for all nodes")
    cluster.add_argument(
        "--ready-file",
        metavar="F",
        type=Path,
        help='file to write {"endpoints": [...], "pids": {...}} to once all nodes serve',
    )
    _recovering(commands)
    commands.add_parser("logs", help="print the reference of all log events as Markdown")
    metrics = commands.add_parser(
        "metrics", help="print the reference of all metrics as Markdown, rules for Prometheus, or a dashboard"
    )
    instead = metrics.add_mutually_exclusive_group()
    instead.add_argument("--alerts", action="store_true", help="print the rules of all alerts, for Prometheus (YAML)")
    instead.add_argument("--dashboard", action="store_true", help="print a dashboard of all metrics, for Grafana")
    for name, shown in (
        ("formats", "formats of disk, log and protocols that this build reads and writes"),
        ("protocol", "methods, messages, tables, errors and limits"),
    ):
        printed = commands.add_parser(name, help=f"print the {shown} as Markdown")
        printed.add_argument("--json", action="store_true", help="print them as JSON")
    config = commands.add_parser(
        "config",
        help="print the configuration reference as Markdown, print a sample file, or check a file",
        epilog="The flags of settings complete the file that --check reads, as they do with `metad serve`.",
    )
    what = config.add_mutually_exclusive_group()
    what.add_argument("--sample", action="store_true", help="print a file in which every key is a comment")
    text = "name each problem of a file by its key; exit status 1 if there is one"
    what.add_argument("--check", metavar="FILE", type=Path, help=text)
    _settings(config)
    return parser


def _recovering(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command that takes up groups without a majority."""
    recover = commands.add_parser(
        "recover",
        help="take up groups that lost their majority for good, on the data directory of a node that does not run",
        epilog="Without --lost it reports what the directory has, with --lost what would be done. OPERATE.md, "
        "'majority-lost', has the steps.",
    )
    _settings(recover)
    recover.add_argument("--config", metavar="FILE", type=Path, help="TOML file of the node")
    recover.add_argument("--lost", metavar="A,B", default="", help="nodes whose data directories are lost for good")
    recover.add_argument(
        "--others", metavar="F,G", default="", help="reports (--json) of all other nodes that are left"
    )
    recover.add_argument("--confirm", action="store_true", help="do it; what it says may be lost is lost then")
    recover.add_argument("--json", action="store_true", help="print JSON")


def _settings(parser: argparse.ArgumentParser) -> None:
    """Flags for what a configuration file may say too."""
    parser.add_argument("--data-dir", metavar="D", help="directory of log and state; created if it does not exist")
    parser.add_argument("--listen", metavar="HOST:PORT", help="address for clients (default 127.0.0.1:7420)")
    parser.add_argument("--quic", metavar="HOST:PORT", help="address for clients over QUIC; needs certificates")
    parser.add_argument("--http", metavar="HOST:PORT", help="address for /metrics, /livez and /readyz over HTTP")
    parser.add_argument("--tls-cert", metavar="F", help="PEM file: this node's certificate; encrypts every connection")
    parser.add_argument("--tls-key", metavar="F", help="PEM file: the key of the certificate")
    parser.add_argument("--tls-ca", metavar="F", help="PEM file: the trusted authority of clients and nodes")
    parser.add_argument(
        "--require-client-cert",
        action="store_true",
        default=None,
        help="clients need a certificate even if they have a token",
    )


def _recover(arguments: argparse.Namespace) -> int:
    """Print the report of a data directory, or the plan of a recovery, and carry it out if that is confirmed."""
    from .node.disk import recovery

    lost = [name for name in arguments.lost.split(",") if name]
    if not lost and (arguments.confirm or arguments.others):
        raise ConfigError("--lost: name the nodes whose data directories are lost for good")
    with recovery.opened(load_config(arguments.config, _overrides(arguments))) as here:
        mine = recovery.report(here)
        if not lost:
            print(recovery.encoded(mine) if arguments.json else "\n".join(mine.lines()))
            return 0
        others = [recovery.read_report(Path(path)) for path in arguments.others.split(",") if path]
        plan = recovery.planned([mine, *(other for other in others if other != mine)], lost)
        if arguments.confirm:
            recovery.carry_out(here, mine, plan, time.time_ns() // 1_000_000)
    done = f"done on {mine.node}" if arguments.confirm else "nothing was changed: add --confirm to do it"
    print(recovery.encoded(plan, done=arguments.confirm) if arguments.json else "\n".join([*plan.lines(), done]))
    return 0


def _config(arguments: argparse.Namespace) -> int:
    if arguments.check is not None:
        return _check(arguments.check, _overrides(arguments))
    print(sample() if arguments.sample else reference(), end="" if arguments.sample else "\n")
    return 0


def _check(path: Path, overrides: dict[str, Any]) -> int:
    """Print every problem that would keep ``metad serve`` from starting with this file."""
    # The data directory is often a flag, and a file without it is complete.
    settings = {"data_dir": "."} | merged(read(path), overrides)
    found = problems_in(settings)
    if not found:
        try:
            config = load_config(None, settings)
            Network.of(config)  # opens the certificates
            for field, endpoint in in_clear(config).items():
                print(f"metad: {field}: {endpoint} is in clear text and open to all, as you confirm", file=sys.stderr)
            _, lowered = fitted(config, raise_files_limit())
            short = memory_shortage([config])
            for one in [*lowered, *([] if short is None else [short])]:
                said = f"{one.configured:,} is configured, {one.possible:,} is possible"
                print(f"metad: {one.key}: {said}: {one.reason}", file=sys.stderr)
        except ConfigError as error:
            found = [str(error)]
    print("\n".join(found) or f"{path}: no problems")
    for variable, meant in unknown_variables(os.environ).items():
        print(f"metad: {variable} is no variable of metad; did you mean {meant}?", file=sys.stderr)
    return 1 if found else 0


def _run(arguments: argparse.Namespace, held: contextlib.ExitStack) -> str:
    """Run a node or a local cluster until it is told to end. Returns what told it."""
    from .process import bound_heap, look_at_memory, serve
    from .service_manager import VARIABLES as OF_MANAGER
    from .service_manager import ServiceManager
    from .supervisor import Supervisor, local_cluster, local_fleet, parse_groups, parse_regions, workers_of

    if arguments.workers < 1:
        raise ConfigError("--workers: at least 1")
    if arguments.command == "cluster":
        regions = parse_regions(arguments.regions)
        nodes = len(regions) or 3 if arguments.nodes is None else arguments.nodes
        if not 1 <= nodes <= 99:
            raise ConfigError("--nodes: 1 to 99")
        overrides: dict[str, Any] = {"data_dir": arguments.data_dir}
        if arguments.groups:
            overrides["groups"] = parse_groups(arguments.groups)
        if arguments.tls or regions:  # the files are made below, for each node its own
            overrides["security"] = dict.fromkeys(("certificate", "key", "ca"), "made for each node")
        config = load_config(arguments.config, overrides)
        fleet = local_fleet(config, nodes) if arguments.tls or regions else {}
        configs = local_cluster(config, nodes, arguments.workers, fleet=fleet, regions=regions, held=held)
    else:
        config = load_config(arguments.config, _overrides(arguments))
        configs = workers_of(config, arguments.workers, held=held) if arguments.workers > 1 else [config]
    configure(config.log_level, "cluster" if arguments.command == "cluster" else config.node_id)
    install_uvloop()
    look_at_memory(configs)
    manager = ServiceManager.of(os.environ, os.getpid())
    if len(configs) > 1:
        # The members have files of their own. A variable would set them all to the same.
        own = VARIABLES.keys() | {*OF_MANAGER}
        environment = {name: value for name, value in os.environ.items() if name not in own}
        return asyncio.run(Supervisor(configs, arguments.ready_file, environment, manager, arguments.config).run())
    bound_heap()
    is_cluster = arguments.command == "cluster"  # which has no flags of settings, and may be one of one node
    origins = origins_of(arguments.config, overrides_of(os.environ), {} if is_cluster else _flags(arguments))
    if not is_cluster and arguments.made_of is not None:
        origins = origins._replace(file=arguments.made_of)
    return asyncio.run(serve(configs[0], arguments.ready_file, manager, origins))


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of the environment and, on top, those of the flags. Raises ConfigError."""
    return merged(overrides_of(os.environ), _flags(arguments))


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    flags = {
        "data_dir": arguments.data_dir,
        "listen": arguments.listen,
        "quic": arguments.quic,
        "http": arguments.http,
        "security": {
            "certificate": arguments.tls_cert,
            "key": arguments.tls_key,
            "ca": arguments.tls_ca,
            "require_client_certificate": arguments.require_client_cert,
        },
    }
    return _given(flags)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Without the flags that were not used."""
    cut = {key: _given(value) if isinstance(value, dict) else value for key, value in settings.items()}
    return {key: value for key, value in cut.items() if value not in (None, {})}


if __name__ == "__main__":
    sys.exit(main())
