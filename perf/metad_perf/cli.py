"""``metad-perf``: reads the command line, runs one command, turns errors into one line and an exit code.

Exit codes: 0 all well; 1 the run failed or found a fault; 2 the command line is wrong or a package is not installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from metad_client.endpoint import SCHEMES
from metad_wire import __version__
from metad_wire.errors import MetadError
from metad_wire.program.extras import advice
from metad_wire.program.output import escape_unprintable
from metad_wire.program.signals import default_for_children
from metad_wire.transport.tcp import install_uvloop

from .errors import PerfError, UsageError
from .faults.names import FAULTS
from .peers.catalog import PEERS
from .running import exit_on_sigterm

VERBS = ("session.takeover", "session.update", "session.get", "offset.commit", "kv.put", "kv.get")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    escape_unprintable()
    default_for_children()
    args = _parser().parse_args(argv)
    exit_on_sigterm()
    install_uvloop()
    try:
        return int(args.run(args))
    except (MetadError, PerfError, OSError) as error:
        return _failed(error)
    except ExceptionGroup as group:
        return _failed(_leaf(group))
    except ModuleNotFoundError as missing:
        print(f"metad-perf: {advice(missing, 'perf')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("metad-perf: interrupted", file=sys.stderr)
        return 130


def _failed(error: BaseException) -> int:
    if not isinstance(error, MetadError | PerfError | OSError):
        raise error  # our bug: the traceback helps
    print(f"metad-perf: {getattr(error, 'name', type(error).__name__)}: {error}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metad-perf", description="Measures metad, and tries to break it.")
    parser.add_argument("--version", action="version", version=f"metad-perf {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _load(commands)
    _grpc(commands)
    _compare(commands)
    _crash(commands)
    _drill(commands)
    _hold(commands)
    _move(commands)
    _watch(commands)
    _image(commands)
    _sessions(commands)
    _failover(commands)
    _leader_kill(commands)
    _overload(commands)
    _outage(commands)
    _topics(commands)
    _retained(commands)
    _storm(commands)
    _calibration_grid(commands)
    _demo(commands)
    _mqtt(commands)
    _wan(commands)
    _attack(commands)
    _quic(commands)
    return parser


Commands = argparse._SubParsersAction  # the only name argparse has for it


def _command(
    commands: Commands[argparse.ArgumentParser], name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text, formatter_class=_Defaults)
    parser.set_defaults(run=run)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    return parser


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


def _server_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server-config", type=Path, metavar="FILE", help="configuration of the started server")


def _scheme(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scheme",
        default="metad",
        choices=SCHEMES,
        help="scheme to reach the started server by; all but metad give it certificates",
    )


def _identity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--certs", metavar="DIR", default="", help="directory written by `metadctl certs`, for --endpoint"
    )
    parser.add_argument(
        "--as", dest="name", metavar="NAME", default="", help="name of the certificate in --certs to use"
    )
    parser.add_argument("--token-file", metavar="FILE", default="", help="file with our token, for --endpoint")


def _shape(parser: argparse.ArgumentParser, nodes: int) -> None:
    parser.add_argument("--nodes", type=int, default=nodes, help="nodes of the started cluster")
    parser.add_argument(
        "--groups", metavar="G", default="", help="groups of the started cluster, as in data=4,offset=2"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes per node of the started cluster")


def _load(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "load", "one verb under load: throughput, latency, server CPU", _run_load)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--endpoint", metavar="[SCHEME://]HOST:PORT[,...]", help="a running server, or a cluster's nodes"
    )
    where.add_argument("--spawn", action="store_true", help="start servers in a temporary directory")
    _server_config(parser)
    _scheme(parser)
    _identity(parser)
    _shape(parser, nodes=1)
    parser.add_argument("--verb", required=True, choices=VERBS)
    parser.add_argument("--batch", type=int, default=1_000, help="items in a request")
    parser.add_argument("--in-flight", type=int, default=8, help="requests in flight, over all processes")
    parser.add_argument("--items", type=_count, default=1_000_000, help="items to send, over all processes")
    parser.add_argument("--value-bytes", type=int, default=200, help="size of a value or payload")
    parser.add_argument("--processes", type=int, default=1, help="load-generating processes, one connection each")
    parser.add_argument("--rate", type=float, default=0.0, help="items/s of an open loop; 0: closed loop")
    parser.add_argument("--keys", type=_count, default=0, help="size of the key space; 0: min(items, 100,000)")
    parser.add_argument("--restore", action="store_true", help="session.takeover asks for the stored properties")
    parser.add_argument(
        "--request-each",
        action="store_true",
        help="with --batch 1: one request per item instead of the SDK's single calls",
    )
    parser.add_argument("--seed", type=int, default=1)


def _run_load(args: argparse.Namespace) -> int:
    from .load.measure import Load, run
    from .spawn import Shape
    from .target import target_of

    if args.server_config is not None and not args.spawn:
        raise UsageError("--server-config needs --spawn")
    shape = Shape(nodes=args.nodes, workers=args.workers, groups=args.groups, scheme=args.scheme)
    if shape != Shape() and not args.spawn:
        raise UsageError("--nodes, --workers, --groups and --scheme need --spawn")
    endpoint = args.endpoint
    if endpoint is not None:
        endpoint = target_of(endpoint, certs=args.certs, name=args.name, token_file=args.token_file)
    load = Load(
        verb=args.verb,
        batch=args.batch,
        in_flight=args.in_flight,
        items=args.items,
        value_bytes=args.value_bytes,
        processes=args.processes,
        rate=args.rate,
        keys=args.keys,
        restore=args.restore,
        singles=args.batch == 1 and not args.request_each,
        seed=args.seed,
    )
    return run(load, endpoint=endpoint, shape=shape, config=args.server_config, json=args.json)


def _grpc(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "grpc", "metad against grpc.aio: the same service on the same core", _run_grpc)
    _server_config(parser)
    _scheme(parser)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each case on each side, alternating")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run")
    parser.add_argument("--keys", type=_count, default=100_000, help="sessions")


def _run_grpc(args: argparse.Namespace) -> int:
    from .peers.grpc_baseline import run

    return run(
        pairs=args.pairs,
        seconds=args.seconds,
        keys=args.keys,
        config=args.server_config,
        json=args.json,
        scheme=args.scheme,
    )


def _compare(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "three nodes of metad against three nodes of other systems"
    parser = _command(commands, "compare", text, _run_compare)
    _server_config(parser)
    _scheme(parser)
    peers = f"NAME[=HOST:PORT,...],... of {', '.join(PEERS)}; `make peers` installs them; with endpoints: a running one"
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--peers", metavar="P", default="", help=peers)
    what.add_argument("--from", dest="made", type=Path, metavar="FILE", help="measure nothing: take this report's JSON")
    pids = "processes of systems that run already, whose CPU and memory count then; one system needs no NAME"
    parser.add_argument("--pids", metavar="[NAME=]PID,...", default="", help=pids)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report as a page with pictures")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="rewrite the tables between the marks in this page")
    parser.add_argument("--loads", metavar="L", default="", help="steady loads; default: all; -: none")
    parser.add_argument("--storm", action="store_true", help="also restore --sessions sessions at once")
    parser.add_argument("--sessions", type=_count, default=100_000, help="sessions of the storm")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each load on each side, alternating")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one run")
    parser.add_argument("--keys", type=_count, default=100_000, help="keys, and sessions of the steady loads")
    parser.add_argument("--processes", type=int, default=2, help="load-generating processes, the same for all systems")
    _shape(parser, nodes=3)


def _run_compare(args: argparse.Namespace) -> int:
    from .peers.compare import STEADY, Options, run
    from .peers.publish import Pages, publish
    from .spawn import Shape

    pages = Pages(json=args.json, report=args.report, tables=args.tables).checked()
    if args.made is not None:
        return publish(args.made, pages)
    loads = {"": STEADY, "-": ()}.get(args.loads, tuple(args.loads.split(",")))
    options = Options(
        pairs=args.pairs,
        seconds=args.seconds,
        keys=args.keys,
        loads=loads,
        sessions=args.sessions if args.storm else 0,
        processes=args.processes,
        shape=Shape(nodes=args.nodes, workers=args.workers, groups=args.groups, scheme=args.scheme).checked(),
        config=args.server_config,
    )
    return run(peers=args.peers, pids=args.pids, options=options, pages=pages)


def _crash(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "kill a server under load, or put a cluster under faults: is every write there, once?"
    parser = _command(commands, "crash", text, _run_crash)
    _server_config(parser)
    _scheme(parser)
    parser.add_argument("--rounds", type=int, default=20, help="one node: number of kills")
    parser.add_argument("--writers", type=int, default=6, help="one node: clients that write, each to its own records")
    parser.add_argument("--nodes", type=int, default=1, help="3 or more: a cluster, one fault after the other")
    parser.add_argument("--faults", default="kill,pause,partition", help="faults of a cluster: " + ", ".join(FAULTS))
    parser.add_argument("--seconds", type=float, default=60.0, help="cluster: duration of the faults")
    parser.add_argument("--groups", metavar="G", default="", help="groups of a cluster, as in data=4,offset=2")
    parser.add_argument("--seed", type=int, default=None, help="seed of the writes and the moments; default: random")


def _run_crash(args: argparse.Namespace) -> int:
    if args.nodes > 1:
        from .faults import cluster
        from .faults.kinds import parse

        return cluster.run(
            nodes=args.nodes,
            names=parse(args.faults),
            seconds=args.seconds,
            groups=args.groups,
            seed=args.seed,
            config=args.server_config,
            json=args.json,
            scheme=args.scheme,
        )
    from .faults.crash import run

    return run(
        rounds=args.rounds,
        writers=args.writers,
        seed=args.seed,
        config=args.server_config,
        json=args.json,
        scheme=args.scheme,
    )


def _drill(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "play the operator's drills of docs/OPERATE.md: what do status, logs and clients say in each?"
    parser = _command(commands, "drill", text, _run_drill)
    parser.add_argument("names", nargs="*", metavar="NAME", help="drills to play; default: all")
    parser.add_argument("--list", action="store_true", help="list the drills instead")
    parser.add_argument("--seed", type=int, default=None, help="seed of the clients' writes; default: random")


def _run_drill(args: argparse.Namespace) -> int:
    from .drill.command import run, show_list

    return show_list() if args.list else run(args.names, seed=args.seed, json=args.json)


def _hold(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "hold", "many sessions: memory, restart time, cost of a write", _run_hold)
    _server_config(parser)
    _scheme(parser)
    parser.add_argument("--sessions", type=_count, default=10_000_000, help="number of sessions to hold, as in 1e7")
    parser.add_argument("--updates", type=_count, default=1_000_000, help="items written per verb and size")
    parser.add_argument("--value-bytes", type=int, default=200, help="payload of a session")


def _run_hold(args: argparse.Namespace) -> int:
    from .hold import run

    return run(
        sessions=args.sessions,
        updates=args.updates,
        value_bytes=args.value_bytes,
        config=args.server_config,
        json=args.json,
        scheme=args.scheme,
    )


def _move(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "move slots to a new group while sessions are written: how long does a write wait, is any lost?"
    parser = _command(commands, "move", text, _run_move)
    _server_config(parser)
    _shape(parser, nodes=3)
    _scheme(parser)
    parser.add_argument("--sessions", type=_count, default=1_000_000, help="number of sessions, as in 1e6")
    parser.add_argument("--writers", type=int, default=4, help="batches in flight, each of its own sessions")
    parser.add_argument("--batch", type=int, default=100, help="items in a request")
    parser.add_argument("--value-bytes", type=int, default=200, help="payload of a session")
    parser.add_argument("--rate", type=float, default=0.0, help="requests/s of a writer; 0: closed loop")
    parser.add_argument("--seed", type=int, default=1)


def _run_move(args: argparse.Namespace) -> int:
    from .move import Move, run
    from .spawn import Shape

    move = Move(
        sessions=args.sessions,
        writers=args.writers,
        batch=args.batch,
        value_bytes=args.value_bytes,
        rate=args.rate,
        seed=args.seed,
    )
    shape = Shape(nodes=args.nodes, workers=args.workers, groups=args.groups, scheme=args.scheme)
    return run(move, shape=shape, config=args.server_config, json=args.json)


def _watch(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "watches: is every change delivered, once and in order, how soon, and what do watches cost?"
    parser = _command(commands, "watch", text, _run_watch)
    _server_config(parser)
    _scheme(parser)
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the started cluster")
    parser.add_argument(
        "--groups", metavar="G", default="", help="groups of the started cluster, as in data=4,offset=2"
    )
    parser.add_argument("--watchers", type=_count, default=1_000, help="watches")
    parser.add_argument("--fan-out", type=float, default=3.0, help="watches that each event goes to, on average")
    parser.add_argument("--rate", type=float, default=10_000.0, help="events/s written")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each phase in which events are judged")
    parser.add_argument(
        "--faults", metavar="FAULT,...", default="kill,move,compact", help="kill, move, compact; none: no faults"
    )
    parser.add_argument(
        "--only", type=_names, metavar="PHASE,...", default=None, help="steady, faults, idle, slow; default: all"
    )
    parser.add_argument("--skip", type=_names, metavar="PHASE,...", default=[], help="phases to leave out")
    parser.add_argument("--processes", type=int, default=2, help="client processes, each with watches and a writer")
    parser.add_argument("--batch", type=int, default=250, help="items in a request")
    parser.add_argument("--spread", type=int, default=10, help="namespaces or tenants of a request's items")
    parser.add_argument("--records", type=int, default=64, help="records of a namespace or tenant")
    parser.add_argument("--value-bytes", type=int, default=100, help="size of a value or payload")
    parser.add_argument("--watches-each", type=int, default=100, help="watches of one client, over its connections")
    parser.add_argument("--idle-watchers", type=_count, default=1_000, help="watches of phase idle")
    parser.add_argument("--behind", type=_count, default=500_000, help="events that the watch of phase slow is behind")
    parser.add_argument("--pairs", type=int, default=11, help="pairs of windows of the phases idle and slow")
    parser.add_argument("--window-s", type=float, default=3.0, help="length of such a window")
    parser.add_argument("--seed", type=int, default=None, help="seed of the writes and faults; default: random")


def _run_watch(args: argparse.Namespace) -> int:
    import secrets

    from .spawn import Shape
    from .watch.command import PHASES, Measurement, run
    from .watch.delivery import Delivery
    from .watch.strikes import parse

    delivery = Delivery(
        watchers=args.watchers,
        fan_out=args.fan_out,
        rate=args.rate,
        seconds=args.seconds,
        processes=args.processes,
        batch=args.batch,
        spread=args.spread,
        records=args.records,
        value_bytes=args.value_bytes,
        watches_each=args.watches_each,
        seed=secrets.randbits(32) if args.seed is None else args.seed,
    )
    for name in args.skip:
        if name not in PHASES:
            raise UsageError(f"--skip: there is no phase {name!r}, but {', '.join(PHASES)}")
    measurement = Measurement(
        delivery=delivery,
        faults=parse(args.faults),
        phases=[name for name in args.only or PHASES if name not in args.skip],
        idle_watchers=args.idle_watchers,
        behind=args.behind,
        pairs=args.pairs,
        window_s=args.window_s,
    )
    shape = Shape(nodes=args.nodes, groups=args.groups, scheme=args.scheme)
    return run(measurement, shape=shape, config=args.server_config, json=args.json)


def _image(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "image", "a local image of many records: time, and memory of the nodes", _run_image)
    _server_config(parser)
    _scheme(parser)
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the started cluster")
    parser.add_argument(
        "--groups", metavar="G", default="", help="groups of the started cluster, as in data=4,offset=2"
    )
    parser.add_argument("--records", type=_count, default=1_000_000, help="key-value records, as in 1e6")
    parser.add_argument("--value-bytes", type=int, default=32, help="size of a value")


def _run_image(args: argparse.Namespace) -> int:
    from .image import run
    from .spawn import Shape

    shape = Shape(nodes=args.nodes, groups=args.groups, scheme=args.scheme)
    return run(
        records=args.records, value_bytes=args.value_bytes, shape=shape, config=args.server_config, json=args.json
    )


def _sessions(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "sessions that begin and end one by one, that are held, and that all end at once"
    parser = _command(commands, "sessions", text, _run_sessions)
    _server_config(parser)
    _scheme(parser)
    _shape(parser, nodes=3)
    parser.add_argument("--mode", choices=("create-close", "live", "expiry-storm"), default="create-close")
    parser.add_argument(
        "--rates", type=_numbers, metavar="R,...", default=[1_000.0, 2_500.0, 5_000.0], help="pairs of calls a second"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of a rate, or of a window")
    parser.add_argument("--sessions", type=_count, default=1_000_000, help="sessions that are held, as in 1e6")
    parser.add_argument(
        "--shares", type=_numbers, metavar="S,...", default=[0.1, 0.5, 1.0], help="shares of them that end at once"
    )
    parser.add_argument(
        "--pairs", type=int, default=11, help="of windows, before there are live sessions and with them"
    )
    parser.add_argument("--processes", type=int, default=1, help="client processes of create-close")
    parser.add_argument("--in-flight", type=int, default=512, help="clients of create-close at a time, at most")


def _run_sessions(args: argparse.Namespace) -> int:
    from .sessions.command import Measurement, run
    from .spawn import Shape

    measurement = Measurement(
        mode=args.mode,
        rates=args.rates,
        seconds=args.seconds,
        sessions=args.sessions,
        shares=args.shares,
        pairs=args.pairs,
        processes=args.processes,
        in_flight=args.in_flight,
    )
    shape = Shape(nodes=args.nodes, workers=args.workers, groups=args.groups, scheme=args.scheme)
    return run(measurement, shape=shape, config=args.server_config, json=args.json)


def _failover(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "brokers die: how soon is it known, does each of their sessions get what it is due, once, who feels it?"
    parser = _command(commands, "failover", text, _run_failover)
    _server_config(parser)
    _scheme(parser)
    _shape(parser, nodes=3)
    parser.add_argument("--brokers", type=_count, default=50, help="brokers")
    parser.add_argument("--sessions", type=_count, default=1_000_000, help="sessions of all brokers, as in 1e6")
    parser.add_argument("--kill", type=_count, default=10, help="brokers that are killed with SIGKILL, at once")
    parser.add_argument("--probe", action="store_true", help="brokers name a port that shows whether they live")
    parser.add_argument("--publishers", type=int, default=0, help="living brokers that publish wills; 0: all")
    parser.add_argument("--lease-s", type=float, default=10.0, help="lease of a broker")
    parser.add_argument("--expiry-s", type=_count, default=5, help="interval after which sessions end")
    parser.add_argument("--delay-s", type=_count, default=2, help="delay of wills")
    parser.add_argument("--rate", type=float, default=100.0, help="requests/s of each verb of the other work")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the other work before the deaths")
    parser.add_argument("--limit-s", type=float, default=120.0, help="for how long nothing may come of what is due")


def _run_failover(args: argparse.Namespace) -> int:
    from .failover.command import Measurement, run
    from .failover.plan import Plan
    from .spawn import Shape

    plan = Plan(
        brokers=args.brokers, sessions=args.sessions, kill=args.kill, expiry_s=args.expiry_s, delay_s=args.delay_s
    )
    measurement = Measurement(
        plan=plan,
        lease_s=args.lease_s,
        publishers=args.publishers,
        probe=args.probe,
        rate=args.rate,
        seconds=args.seconds,
        limit_s=args.limit_s,
    )
    shape = Shape(nodes=args.nodes, workers=args.workers, groups=args.groups, scheme=args.scheme)
    return run(measurement, shape=shape, config=args.server_config, json=args.json)


def _leader_kill(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "kill -9 of leaders under a paced load: when do others lead, which operations fail, is a write lost?"
    parser = _command(commands, "leader-kill", text, _run_leader_kill)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    _server_config(parser)
    _scheme(parser)
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the started cluster")
    parser.add_argument(
        "--groups", metavar="G", default="", help="groups of the started cluster, as in data=4,offset=2"
    )
    parser.add_argument("--rate", type=float, default=10_000.0, help="operations (items) a second, of all processes")
    parser.add_argument("--rounds", type=_count, default=20, help="leaders that are killed, one after the other")
    parser.add_argument("--batch", type=_count, default=10, help="items of a request")
    parser.add_argument("--processes", type=int, default=2, help="processes of brokers")
    parser.add_argument("--clients", type=int, default=4, help="brokers of each process, each with a client of its own")
    parser.add_argument("--value-bytes", type=int, default=100, help="size of a value or payload")
    parser.add_argument(
        "--group", metavar="NAME", default="", help="kill the leader of this group; default: the node that leads most"
    )
    parser.add_argument("--quiet-s", type=float, default=2.0, help="seconds before a kill, and after others lead")
    parser.add_argument("--limit-s", type=float, default=30.0, help="how long to wait until others lead")
    parser.add_argument("--deadline-s", type=float, default=10.0, help="of a call, with the SDK's repetitions")
    parser.add_argument("--seed", type=int, default=1, help="of the load, and of the choice among nodes")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a picture of the rounds as one HTML page")


def _run_leader_kill(args: argparse.Namespace) -> int:
    from .leader_kill.command import run
    from .leader_kill.plan import Measurement
    from .spawn import Shape

    if args.endpoint is not None:
        raise UsageError("--endpoint: leader-kill kills only nodes that it has started itself")
    measurement = Measurement(
        rate=args.rate,
        rounds=args.rounds,
        batch=args.batch,
        processes=args.processes,
        clients=args.clients,
        value_bytes=args.value_bytes,
        group=args.group,
        quiet_s=args.quiet_s,
        limit_s=args.limit_s,
        deadline_s=args.deadline_s,
        seed=args.seed,
    )
    shape = Shape(nodes=args.nodes, groups=args.groups, scheme=args.scheme)
    return run(measurement, shape=shape, config=args.server_config, json=args.json, report=args.report)


def _overload(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "more load than the cluster can take, from clients that do not slow down: what breaks, what comes back?"
    parser = _command(commands, "overload", text, _run_overload)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    _server_config(parser)
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the started cluster")
    parser.add_argument(
        "--groups", metavar="G", default="", help="groups of the started cluster, as in data=4,offset=2"
    )
    parser.add_argument("--factor", type=float, default=3.0, help="the load, by the capacity that is measured first")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the overload")
    parser.add_argument("--base", type=float, default=0.5, help="the load before and after, by the capacity")
    parser.add_argument("--window-s", type=float, default=10.0, help="duration of the load before, and after")
    parser.add_argument("--gap-s", type=float, default=3.0, help="from the end of the overload to the window after it")
    parser.add_argument("--batch", type=_count, default=100, help="items of a request")
    parser.add_argument("--timeout-s", type=float, default=1.0, help="after which a naive client gives a request up")
    parser.add_argument("--processes", type=int, default=2, help="processes of naive clients")
    parser.add_argument("--connections", type=int, default=2, help="connections of each process to each node")
    parser.add_argument("--value-bytes", type=int, default=100, help="size of a value or payload")
    parser.add_argument("--brokers", type=int, default=5, help="brokers that must not suffer")
    parser.add_argument("--lease-s", type=float, default=3.0, help="lease of a broker")
    parser.add_argument("--sessions", type=_count, default=2_000, help="sessions of the brokers, half of them away")
    parser.add_argument("--step-s", type=float, default=2.0, help="duration of each step of the ramp")
    parser.add_argument("--seed", type=int, default=1, help="of the load")


def _run_overload(args: argparse.Namespace) -> int:
    from .overload.command import run
    from .overload.plan import Measurement
    from .spawn import Shape

    if args.endpoint is not None:
        raise UsageError("--endpoint: overload harms only nodes that it has started itself")
    measurement = Measurement(
        factor=args.factor,
        seconds=args.seconds,
        base=args.base,
        window_s=args.window_s,
        gap_s=args.gap_s,
        batch=args.batch,
        timeout_s=args.timeout_s,
        processes=args.processes,
        connections=args.connections,
        value_bytes=args.value_bytes,
        brokers=args.brokers,
        lease_s=args.lease_s,
        sessions=args.sessions,
        step_s=args.step_s,
        seed=args.seed,
    )
    shape = Shape(nodes=args.nodes, groups=args.groups)
    return run(measurement, shape=shape, config=args.server_config, json=args.json)


def _outage(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "three nodes stand still under MQTT brokers with their clients: nothing may end by it"
    parser = _command(commands, "outage", text, _run_outage)
    _server_config(parser)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long nodes stand still")
    parser.add_argument(
        "--who",
        choices=("all", "majority", "leader"),
        help="only this: all nodes, a majority, or the leader of metadata-0; without it one after the other",
    )
    parser.add_argument("--clients", type=_count, default=10_000, help="MQTT connections with wills")
    parser.add_argument("--brokers", type=int, default=2, help="processes of MQTT brokers that share them")
    parser.add_argument("--publishers", type=int, default=20, help="clients that publish all the time")
    parser.add_argument("--lease-s", type=float, default=10.0, help="lease of a broker")


def _run_outage(args: argparse.Namespace) -> int:
    from .outage.command import WHO, Measurement, run

    measurement = Measurement(
        seconds=args.seconds,
        who=(args.who,) if args.who else WHO,
        clients=args.clients,
        brokers=args.brokers,
        publishers=args.publishers,
        lease_s=args.lease_s,
    )
    return run(measurement, config=args.server_config, json=args.json)


def _topics(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands, "topics", "a broker's trie of topic filters: matches, memory, paho-mqtt beside it", _run_topics
    )
    parser.add_argument("--filters", type=_count, default=1_000_000, help="filters in the trie, as in 1e6")
    parser.add_argument("--topics", type=_count, default=200_000, help="topics to match, as in 2e5")


def _run_topics(args: argparse.Namespace) -> int:
    from .topics import run

    return run(count=args.filters, asked=args.topics, json=args.json)


def _retained(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands, "retained", "filters that match a hundred of many retained messages: latency", _run_retained
    )
    _server_config(parser)
    _scheme(parser)
    parser.add_argument("--nodes", type=int, default=3, help="nodes of the started cluster")
    parser.add_argument(
        "--groups", metavar="G", default="", help="groups of the started cluster, as in data=4,offset=2"
    )
    parser.add_argument("--topics", type=_count, default=1_000_000, help="retained messages, as in 1e6")
    parser.add_argument("--matches", type=_count, default=1_000, help="filters of each of the four ways")
    parser.add_argument("--value-bytes", type=int, default=32, help="size of a payload; at least 8 are written")


def _run_retained(args: argparse.Namespace) -> int:
    from .retained import run
    from .spawn import Shape

    return run(
        topics=args.topics,
        matches=args.matches,
        value_bytes=args.value_bytes,
        shape=Shape(nodes=args.nodes, groups=args.groups, scheme=args.scheme),
        config=args.server_config,
        json=args.json,
    )


def _storm(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "a reconnect storm: every client of many brokers loses its connection, and comes back"
    parser = _command(commands, "storm", text, _run_storm)
    parser.add_argument(
        "--endpoint",
        metavar="[SCHEME://]HOST:PORT[,...]",
        default="",
        help="a running cluster instead of a started one",
    )
    _identity(parser)
    _server_config(parser)
    _shape(parser, nodes=3)
    parser.add_argument("--transport", default="tcp", choices=_TRANSPORTS, help="to the started cluster")
    parser.add_argument("--sessions", type=_count, default=1_000_000, help="clients, each with a session")
    parser.add_argument("--brokers", type=_count, default=20, help="brokers, each with a client of the SDK")
    parser.add_argument("--processes", type=_count, default=2, help="processes of brokers")
    parser.add_argument("--population", type=Path, metavar="FILE", help="kinds of clients, as TOML")
    parser.add_argument("--trigger", default="all", metavar="T", help="all, rolling, region, leader-kill or expiry")
    parser.add_argument(
        "--policy",
        default="full-jitter",
        metavar="P",
        help="when a client that was turned away comes back: return-slot (when the server says), population (each kind "
        "by its own backoff), none, exponential, equal-jitter, full-jitter, decorrelated-jitter, proportional-jitter",
    )
    parser.add_argument(
        "--sdk-retries",
        choices=("auto", "on", "off"),
        default="auto",
        help="whether the brokers' SDK repeats what a server has turned away; auto: with the policy return-slot only",
    )
    parser.add_argument("--ignore-slots", type=float, default=0.0, help="share of the brokers that ignore return slots")
    parser.add_argument("--region", default="", help="of the trigger region; the first of the population by default")
    parser.add_argument(
        "--expiring", type=float, default=0.5, help="share of the sessions that the trigger expiry ends"
    )
    parser.add_argument("--rolling-s", type=float, default=10.0, help="in which all brokers restart, with rolling")
    parser.add_argument("--kill-at", type=float, default=0.25, help="share that is back when the leader is killed")
    parser.add_argument("--seconds-limit", type=float, default=60.0, help="who is not back by then is counted as away")
    parser.add_argument("--lease-s", type=float, default=10.0, help="lease of a broker")
    parser.add_argument("--linger-ms", type=float, default=20.0, help="a broker collects clients for a call so long")
    parser.add_argument("--background", type=float, default=1_000.0, help="items/s of other work, an open loop")
    parser.add_argument("--steady-s", type=float, default=5.0, help="how long it is measured, before and after")
    parser.add_argument("--seed", type=int, default=1, help="repeats population, places and schedule")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="write every attempt as Parquet (extra trace)")
    parser.add_argument(
        "--replay", type=Path, metavar="DIR", help="clients begin as `metad-spark schedule` has written (extra trace)"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write one HTML page with pictures")


_TRANSPORTS = {"tcp": "metad", "tls": "metads", "quic": "metadq"}


def _run_storm(args: argparse.Namespace) -> int:
    from .spawn import Shape
    from .storm.command import Where, run
    from .storm.plan import RETURN_SLOT, Storm
    from .storm.population import read
    from .target import target_of

    fields = "sessions brokers processes trigger policy ignore_slots region expiring rolling_s kill_at linger_ms "
    fields += "lease_s background steady_s seed"
    storm = Storm(
        population=read(args.population),
        limit_s=args.seconds_limit,
        sdk_retries=args.policy == RETURN_SLOT if args.sdk_retries == "auto" else args.sdk_retries == "on",
        **{field: getattr(args, field) for field in fields.split()},
    )
    endpoint = args.endpoint and target_of(args.endpoint, certs=args.certs, name=args.name, token_file=args.token_file)
    shape = Shape(nodes=args.nodes, workers=args.workers, groups=args.groups, scheme=_TRANSPORTS[args.transport])
    where = Where(shape=shape, config=args.server_config, endpoint=endpoint)
    return run(storm, where, json=args.json, report=args.report, trace_to=args.trace, replay=args.replay)


def _calibration_grid(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "a fixed grid of loads and storms, from which metad-spark calibrates and validates its predictions"
    parser = commands.add_parser("calibration-grid", help=text, description=text)
    parser.set_defaults(run=_run_calibration_grid)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a file for each run; what is there is not run again"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="smaller runs, to try the grid, as in 0.1")
    parser.add_argument("--only", default="", metavar="NAME[,NAME]", help="some of its runs")


def _run_calibration_grid(args: argparse.Namespace) -> int:
    from .calibration.command import run

    return run(out=args.out, scale=args.scale, only=[name for name in args.only.split(",") if name])


def _demo(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "demo", "a reconnect storm on three nodes in which the leader dies", _run_demo)
    parser.add_argument("--sessions", type=_count, default=100_000, help="sessions whose clients reconnect at once")
    parser.add_argument("--brokers", type=_count, default=8, help="brokers")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", default=Path("storm.html"), help="one HTML page with pictures of it"
    )


def _run_demo(args: argparse.Namespace) -> int:
    from .storm.command import Where, run
    from .storm.plan import RETURN_SLOT, Storm

    storm = Storm(
        sessions=args.sessions,
        brokers=args.brokers,
        trigger="leader-kill",
        policy=RETURN_SLOT,
        sdk_retries=True,
        lease_s=30.0,  # a demo on a busy laptop is no test of leases
        limit_s=240.0,
        background=500.0,
        steady_s=2.0,
    )
    return run(storm, Where(), json=args.json, report=args.report, trace_to=None, replay=None)


def _mqtt(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "real MQTT clients on two brokers that share their sessions, while a broker and a leader are killed"
    parser = _command(commands, "mqtt", text, _run_mqtt)
    parser.add_argument("--clients", type=_count, default=20, help="clients of the broker that is killed")
    parser.add_argument("--messages", type=_count, default=1_000, help="messages that are published meanwhile")


def _run_mqtt(args: argparse.Namespace) -> int:
    from .mqtt.command import run

    return run(clients=args.clients, messages=args.messages, json=args.json)


def _wan(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "TCP and QUIC over emulated long paths: which wins where, and whether metad+auto:// chooses it"
    parser = _command(commands, "wan", text, _run_wan)
    _server_config(parser)
    parser.add_argument("--rtt-ms", type=_numbers, metavar="MS,...", default="1,30,100,200", help="round-trip times")
    parser.add_argument("--loss", type=_numbers, metavar="PCT,...", default="0,0.1,1,3", help="loss in each direction")
    parser.add_argument("--verbs", type=_names, metavar="VERB,...", default="put,batch", help="put, batch")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a heat map as one HTML page")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measured per transport and cell; twice that over long lossy paths"
    )
    parser.add_argument("--batch", type=int, default=100, help="items in a batch")
    parser.add_argument("--puts-in-flight", type=int, default=64, help="requests in flight of verb put, one item each")
    parser.add_argument("--batches-in-flight", type=int, default=16, help="requests in flight of verb batch")
    parser.add_argument("--value-bytes", type=int, default=200, help="size of a value")
    parser.add_argument(
        "--controls",
        type=_names,
        metavar="NAME,...",
        default="bbr",
        help="congestion controls of TCP, beside the kernel's default",
    )
    parser.add_argument("--no-auto", action="store_true", help="do not measure what metad+auto:// chooses")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="jitter of the path, up and down")
    parser.add_argument("--reorder", type=float, default=0.0, metavar="PCT", help="share of packets that are overtaken")
    parser.add_argument("--mbit-per-s", type=float, default=0.0, help="rate of the path's bottleneck; 0: none")
    parser.add_argument("--queue-kib", type=int, default=256, help="queue of the bottleneck")
    parser.add_argument("--seed", type=int, default=1, help="seed of keys, values and the path's losses")
    parser.add_argument(
        "--regions",
        type=_numbers,
        metavar="AB,AC,BC",
        help="instead: a cluster across regions with these RTTs in ms between them",
    )
    parser.add_argument(
        "--reconnect", action="store_true", help="instead: round trips until a reconnecting client is served"
    )
    parser.add_argument("--cuts-s", type=float, default=40.0, help="with --regions: duration of the cuts")


def _run_wan(args: argparse.Namespace) -> int:
    loss = args.loss[0] if len(args.loss) == 1 else 0.0  # the other measurements use one value
    if args.reconnect:
        from .wan.reconnect import run as run_reconnect

        return run_reconnect(args.rtt_ms, loss_pct=loss, json=args.json)
    if args.regions is not None:
        from .wan.regions import run as run_regions

        return run_regions(args.regions, seconds=args.cuts_s, seed=args.seed, loss_pct=loss, json=args.json)
    from .wan.cells import Load
    from .wan.command import Question, run
    from .wan.relay_line import Path as LinePath

    try:
        path = LinePath(
            delay_ms=max(args.rtt_ms) / 2,
            jitter_ms=args.jitter_ms,
            reorder_pct=args.reorder,
            mbit_per_s=args.mbit_per_s,
            queue_bytes=args.queue_kib * 1024,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    load = Load(
        batch=args.batch,
        in_flight_puts=args.puts_in_flight,
        in_flight_batches=args.batches_in_flight,
        value_bytes=args.value_bytes,
        seconds=args.seconds,
        seed=args.seed,
    )
    question = Question(
        rtts_ms=args.rtt_ms,
        losses_pct=args.loss,
        verbs=args.verbs,
        controls=args.controls,
        auto=not args.no_auto,
        load=load,
        path=path,
    )
    return run(question, config=args.server_config, json=args.json, page=args.report)


def _attack(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "floods, garbage, abuse and wrong certificates, while a good client is measured"
    parser = _command(commands, "attack", text, _run_attack)
    parser.add_argument(
        "--only", type=_names, metavar="NAME,...", default=None, help="attacks, strangers or insiders; default: all"
    )
    parser.add_argument("--windows", type=int, default=3, help="runs of each attack; their median counts")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each run")
    parser.add_argument(
        "--quick", action="store_true", help="run each attack once for a second, only to see whether it is refused"
    )
    parser.add_argument(
        "--attacker-cpu", type=int, metavar="N", default=None, help="core of the attacker; default: the first"
    )


def _run_attack(args: argparse.Namespace) -> int:
    from .attack.command import Plan, run

    names = {} if args.only is None else {"names": args.only}
    length = (1, 1.0, 1.0) if args.quick else (args.windows, args.seconds, Plan().quiet_s)
    windows, seconds, quiet_s = length
    plan = Plan(windows=windows, seconds=seconds, quiet_s=quiet_s, processor=args.attacker_cpu, **names)
    return run(plan, json=args.json)


def _numbers(text: str) -> list[float]:
    """``1,30`` -> numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"not numbers with commas between: {text!r}") from None


def _names(text: str) -> list[str]:
    """``a,b`` -> names."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _quic(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "quic", "metad's QUIC transport against aioquic's own serve", _run_quic)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each case on each side, alternating")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run of puts")
    parser.add_argument("--megabytes", type=int, default=48, help="size of a bulk transfer")


def _run_quic(args: argparse.Namespace) -> int:
    from .peers.quic import run

    return run(pairs=args.pairs, seconds=args.seconds, megabytes=args.megabytes, json=args.json)


def _count(text: str) -> int:
    """An integer, also written as 1e7 or 10_000_000."""
    try:
        number = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not number.is_integer():
        raise argparse.ArgumentTypeError(f"not a whole number: {text!r}")
    return int(number)


if __name__ == "__main__":
    sys.exit(main())
