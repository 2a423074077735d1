"""``metad-spark``: reads the command line, runs one command, turns errors into one line and an exit code.

Exit codes: 0 all well; 1 the run failed or a proof did; 2 the command line is wrong or a package is not installed; 3
the result must not be relied on.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metad_wire import __version__
from metad_wire.program.extras import advice
from metad_wire.program.output import escape_unprintable
from metad_wire.program.signals import default_for_children

from .errors import SparkError, UsageError
from .target import Target, parse_target
from .vary import Axis, parse_axis

MODELS = ("vector",)
RUNNERS = ("auto", "local", "spark")
Commands = argparse._SubParsersAction  # the only name argparse has for it


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    escape_unprintable()
    default_for_children()
    args = _parser().parse_args(argv)
    args.argv = list(sys.argv[1:] if argv is None else argv)
    try:
        return int(args.run(args))
    except (SparkError, OSError) as error:
        print(f"metad-spark: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as missing:
        print(f"metad-spark: {advice(missing, 'spark')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("metad-spark: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="metad-spark",
        description="Simulates storms that are too large for one machine, and exports what a cluster knows.",
    )
    parser.add_argument("--version", action="version", version=f"metad-spark {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _simulate(commands)
    _sweep(commands)
    _report(commands)
    _size(commands)
    _schedule(commands)
    _verify(commands)
    _export(commands)
    _postmortem(commands)
    _calibrate(commands)
    _validate(commands)
    _census(commands)
    _lag(commands)
    _skew(commands)
    _orphans(commands)
    return parser


def _command(
    commands: Commands[argparse.ArgumentParser], name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    command.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    return command


def _spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master",
        metavar="URL",
        help="local[2], spark://HOST:PORT, yarn, k8s://..., or sc://HOST:PORT for Spark Connect; default: that of"
        " spark-submit, else local[*]",
    )
    parser.add_argument("--connect", action="store_true", help="start a Connect server on the local master and use it")


def _runner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runner",
        choices=RUNNERS,
        default="auto",
        help="processes of this machine (local), or Spark; auto: local for one storm of fewer than 1e8 clients",
    )


def _model(parser: argparse.ArgumentParser, *more: str) -> None:
    parser.add_argument(
        "--model",
        choices=[*MODELS, *more],
        default="vector",
        help="every client, in arrays (vector)"
        + ("; or the requests of brokers, with costs of `calibrate` (requests)" if more else ""),
    )


def _storm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clients", type=_count, metavar="N", help="number of clients, as in 1e7; default: the scenario's"
    )
    parser.add_argument(
        "--scenario", default="default", metavar="NAME|FILE", help="a built-in scenario, or a TOML file"
    )
    parser.add_argument("--calibration", metavar="NAME|FILE", help="costs of serving; default: the scenario's")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same storm (default 0)")


def _population(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--population",
        type=Path,
        metavar="CENSUS.json",
        help="the clients that metad-spark census --json found, instead of the scenario's",
    )


def _simulate(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "simulate", "simulate a storm: when clients are back, and at what cost", _run_simulate)
    _storm(parser)
    _model(parser, "requests")
    parser.add_argument(
        "--seeds",
        type=_count,
        default=1,
        metavar="N",
        help="number of storms; the one with the median t99.9 is reported",
    )
    parser.add_argument(
        "--target", type=_target, default=Target(), help='target that the report compares with, as in "t999<=300s"'
    )
    _population(parser)
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a page with charts")
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="write the run as Parquet; one that is there is not simulated again"
    )
    _runner(parser)
    _spark(parser)


def _run_simulate(args: argparse.Namespace) -> int:
    from .run_simulate import run

    return run(
        scenario=args.scenario,
        calibration=args.calibration,
        clients=args.clients,
        model=args.model,
        seed=args.seed,
        seeds=args.seeds,
        target=args.target,
        runner=args.runner,
        master=args.master,
        connect=args.connect,
        json=args.json,
        tables=args.tables,
        report=args.report,
        population=args.population,
        command=shlex.join(["metad-spark", *args.argv]),
    )


def _sweep(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands, "sweep", "simulate a grid of storms into tables, and go on where it was stopped", _run_sweep
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="a built-in scenario, or a TOML file")
    parser.add_argument(
        "--vary",
        type=_axis,
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="values of a key of the scenario, as in cluster.nodes=3,5,9 or sdks.0.cap_s=4,60; once for each key",
    )
    parser.add_argument(
        "--clients", type=_count, metavar="N", help="number of clients, as in 1e7; default: the scenario's"
    )
    parser.add_argument("--calibration", metavar="NAME|FILE", help="costs of serving; default: the scenario's")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seeds", type=_count, default=1, metavar="N", help="storms of each cell of the grid")
    _model(parser)
    parser.add_argument(
        "--target", type=_target, default=Target(), help='target that cells are held to, as in "t999<=300s"'
    )
    parser.add_argument(
        "--tables", type=Path, required=True, metavar="DIR", help="where runs are written and looked for"
    )
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a page")
    _runner(parser)
    _spark(parser)


def _run_sweep(args: argparse.Namespace) -> int:
    from .run_sweep import run

    return run(
        scenario=args.scenario,
        calibration=args.calibration,
        clients=args.clients,
        vary=args.vary,
        model=args.model,
        seed=args.seed,
        seeds=args.seeds,
        target=args.target,
        tables=args.tables,
        runner=args.runner,
        master=args.master,
        connect=args.connect,
        json=args.json,
        report=args.report,
        command=shlex.join(["metad-spark", *args.argv]),
    )


def _report(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "make a page about runs of the tables"
    parser = commands.add_parser("report", help=text, description=text)
    parser.set_defaults(run=_run_report)
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="the tables")
    parser.add_argument(
        "--run",
        dest="runs",
        action="append",
        default=[],
        metavar="ID",
        help="a run, or how its identity begins; once for each; default: all storms",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.html", help="the page")
    parser.add_argument(
        "--target", type=_target, default=Target(), help='target that storms are held to, as in "t999<=300s"'
    )


def _run_report(args: argparse.Namespace) -> int:
    from .run_report import run

    return run(
        tables=args.tables,
        runs=args.runs,
        out=args.out,
        target=args.target,
        command=shlex.join(["metad-spark", *args.argv]),
    )


def _size(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "size", "find the smallest cluster that ends a storm in time", _run_size)
    parser.add_argument("--target", type=_target, required=True, help='as in "t999<=300s": 99.9 %% back in 300 s')
    _storm(parser)
    parser.add_argument(
        "--no-check", dest="check", action="store_false", help="skip the final check with a larger storm"
    )
    _population(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="write what to set as TOML, for metad serve")
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="keep what was tried as Parquet; what is there is not tried again"
    )
    _spark(parser)


def _run_size(args: argparse.Namespace) -> int:
    from .run_size import run

    return run(
        target=args.target,
        scenario=args.scenario,
        calibration=args.calibration,
        clients=args.clients,
        seed=args.seed,
        check=args.check,
        population=args.population,
        master=args.master,
        connect=args.connect,
        json=args.json,
        config=args.config,
        tables=args.tables,
    )


def _schedule(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands,
        "schedule",
        "write a storm's first attempts as Parquet, to be replayed at a smaller scale",
        _run_schedule,
    )
    _storm(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder; on a cluster, its URL")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="scale of clients, rate and queue together, as in 0.01"
    )
    parser.add_argument("--generators", type=_count, default=4, metavar="N", help="load generators; each gets one file")
    _spark(parser)


def _run_schedule(args: argparse.Namespace) -> int:
    from .run_schedule import run

    return run(
        scenario=args.scenario,
        calibration=args.calibration,
        clients=args.clients,
        seed=args.seed,
        out=args.out,
        scale=args.scale,
        generators=args.generators,
        master=args.master,
        connect=args.connect,
        json=args.json,
    )


def _verify(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "check the models against each other, theory and published results"
    parser = _command(commands, "verify", text, _run_verify)
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME[,NAME]",
        help="of theory, anchors, laws, cores, shapes, aws, brooker, metastable",
    )


def _run_verify(args: argparse.Namespace) -> int:
    from .run_verify import run

    return run(only=[name for name in args.only.split(",") if name], json=args.json)


def _export(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(
        commands, "export", "write the tables of a cluster as Parquet, all of a group as of one moment", _run_export
    )
    parser.add_argument("--source", required=True, metavar="URL", help="as in metad://host:port")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--tables", default="", metavar="NAME[,NAME]", help="as in session,offset.generation; default: all"
    )
    for name in ("tenant", "prefix", "region", "ca", "certificate", "key", "token"):
        parser.add_argument(f"--{name}", help=f"as the option {name} of a DataFrame")


def _run_export(args: argparse.Namespace) -> int:
    from .run_export import run

    names = ("tenant", "prefix", "region", "ca", "certificate", "key", "token")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    tables = [name for name in args.tables.split(",") if name]
    return run(source=args.source, out=args.out, tables=tables, given=given, json=args.json)


def _postmortem(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "say what a storm was like, from the trace of metad-perf storm --trace"
    parser = _command(commands, "postmortem", text, _run_postmortem)
    parser.add_argument("--source", required=True, type=Path, metavar="DIR", help="the directory of the trace")
    parser.add_argument(
        "--step-s", type=_positive, default=0.1, metavar="S", help="of the curve in the JSON (default 0.1)"
    )
    parser.add_argument(
        "--stall-s",
        type=_positive,
        default=0.5,
        metavar="S",
        help="so long nobody comes back in a stall, at least (default 0.5)",
    )
    _spark(parser)


def _run_postmortem(args: argparse.Namespace) -> int:
    from .run_postmortem import run

    return run(
        source=args.source,
        step_s=args.step_s,
        stall_s=args.stall_s,
        master=args.master,
        connect=args.connect,
        json=args.json,
    )


_OPTIONS = ("tenant", "prefix", "region", "ca", "certificate", "key", "token")
"""Of ``format("metad")``, which commands have, too."""


def _source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source", required=True, metavar="URL|DIR", help="as in metad://host:port, or what metad-spark export wrote"
    )
    for name in _OPTIONS:
        parser.add_argument(f"--{name}", help=f"as the option {name} of a DataFrame")
    _spark(parser)


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """What every command has that queries a source."""
    given = {name: value for name in _OPTIONS if (value := getattr(args, name)) is not None}
    return {
        "source": args.source,
        "options": given,
        "master": args.master,
        "connect": args.connect,
        "json": args.json,
    }


def _census(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "say who the clients are: sessions, sizes, expiries and last seen by tenant and region"
    _source(_command(commands, "census", text, _run_census))


def _run_census(args: argparse.Namespace) -> int:
    from .run_census import run

    return run(**_asked(args))


def _lag(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "lag", "say how far consumer groups are behind, as far as that is known", _run_lag)
    _source(parser)
    parser.add_argument(
        "--heads", type=Path, metavar="FILE", help="where topics end: CSV, JSON or Parquet with topic, partition, head"
    )
    parser.add_argument("--count", type=_count, default=20, metavar="N", help="partitions to list (default 20)")


def _run_lag(args: argparse.Namespace) -> int:
    from .run_lag import run

    return run(**_asked(args), heads=args.heads, count=args.count)


def _skew(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "say how evenly groups are filled, which keys are heavy, and which moves of slots would even it out"
    parser = _command(commands, "skew", text, _run_skew)
    _source(parser)
    parser.add_argument("--weight", choices=("rows", "bytes"), default="bytes", help="what to even out (default bytes)")
    parser.add_argument(
        "--within",
        type=_positive,
        default=1.1,
        metavar="X",
        help="no group is to have more than X times as much as the mean one (default 1.1)",
    )
    parser.add_argument("--steps", type=_count, default=64, metavar="N", help="slots to move at most (default 64)")
    parser.add_argument("--count", type=_count, default=10, metavar="N", help="keys to list (default 10)")


def _run_skew(args: argparse.Namespace) -> int:
    from .run_skew import run

    if args.within < 1:
        raise UsageError(f"--within: from 1 on, not {args.within:g}: some group has at least as much as the mean one")
    return run(**_asked(args), within=args.within, steps=args.steps, weight=args.weight, count=args.count)


def _orphans(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "orphans", "find records whose owners are gone", _run_orphans)
    _source(parser)
    parser.add_argument(
        "--late-s", type=_positive, default=60.0, metavar="S", help="what metad has not come to by then (default 60)"
    )
    parser.add_argument(
        "--left-s",
        type=_positive,
        default=604_800.0,
        metavar="S",
        help="what nobody has touched since (default a week)",
    )


def _run_orphans(args: argparse.Namespace) -> int:
    from .run_orphans import run

    return run(**_asked(args), late_s=args.late_s, left_s=args.left_s)


def _positive(text: str) -> float:
    """A number over 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"not over 0: {text!r}")
    return number


def _calibrate(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "fit what each step of a request costs to runs of metad-perf calibration-grid"
    parser = _command(commands, "calibrate", text, _run_calibrate)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="folders of the grid, or a file of --keep")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.toml", help="the costs")
    parser.add_argument("--name", default="measured", help="of the costs")
    parser.add_argument("--keep", type=Path, metavar="FILE.parquet", help="keep the runs as rows, to fit them again")


def _run_calibrate(args: argparse.Namespace) -> int:
    from .run_calibrate import run

    return run(runs=args.runs, out=args.out, name=args.name, keep=args.keep, json=args.json)


def _validate(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "predict storms that happened, and say how far off the predictions are"
    parser = _command(commands, "validate", text, _run_validate)
    parser.add_argument(
        "traces", nargs="+", type=Path, metavar="TRACES", help="folders of the grid, or reports of metad-perf storm"
    )
    parser.add_argument("--calibration", default="default", metavar="NAME|FILE", help="costs that calibrate has made")
    parser.add_argument("--seeds", type=_count, default=3, metavar="N", help="storms of each prediction; the median")
    parser.add_argument("--verdict", type=Path, metavar="FILE.toml", help="keep what reports say of all predictions")
    parser.add_argument("--tables", type=Path, metavar="FILE.md", help="rewrite the table between its marks in a page")


def _run_validate(args: argparse.Namespace) -> int:
    from .run_validate import run

    return run(
        traces=args.traces,
        calibration=args.calibration,
        seeds=args.seeds,
        json=args.json,
        verdict=args.verdict,
        tables=args.tables,
    )


def _count(text: str) -> int:
    """A positive integer, also written as 1e7 or 10_000_000."""
    try:
        number = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not number.is_integer() or number < 1:
        raise argparse.ArgumentTypeError(f"not a whole number from 1 on: {text!r}")
    return int(number)


def _axis(text: str) -> Axis:
    try:
        return parse_axis(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _target(text: str) -> Target:
    try:
        return parse_target(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
