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

from metad_wire import __version__
from metad_wire.extras import advice

from .errors import SparkError, UsageError
from .target import Target, parse_target

MODELS = ("exact", "vector", "fluid")
Commands = argparse._SubParsersAction  # the only name argparse has for it


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
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
        prog="metad-spark", description="Simulates storms that are too large for one machine."
    )
    parser.add_argument("--version", action="version", version=f"metad-spark {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _simulate(commands)
    _size(commands)
    _schedule(commands)
    _verify(commands)
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


def _storm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clients", type=_count, metavar="N", help="number of clients, as in 1e7; default: the scenario's"
    )
    parser.add_argument(
        "--scenario", default="default", metavar="NAME|FILE", help="a built-in scenario, or a TOML file"
    )
    parser.add_argument("--calibration", metavar="NAME|FILE", help="costs of serving; default: the scenario's")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same storm (default 0)")


def _simulate(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "simulate", "simulate a storm: when clients are back, and at what cost", _run_simulate)
    _storm(parser)
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="vector",
        help="one client at a time (exact), arrays of clients (vector), or masses (fluid)",
    )
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
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a page with charts")
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
        master=args.master,
        connect=args.connect,
        json=args.json,
        report=args.report,
        command=shlex.join(["metad-spark", *args.argv]),
    )


def _size(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "size", "find the smallest cluster that ends a storm in time", _run_size)
    parser.add_argument("--target", type=_target, required=True, help='as in "t999<=300s": 99.9 %% back in 300 s')
    _storm(parser)
    parser.add_argument(
        "--no-check", dest="check", action="store_false", help="skip the final check with the vector model"
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
        master=args.master,
        connect=args.connect,
        json=args.json,
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
        "--only", default="", metavar="NAME[,NAME]", help="of oracle, fluid, theory, aws, brooker, metastable"
    )


def _run_verify(args: argparse.Namespace) -> int:
    from .run_verify import run

    return run(only=[name for name in args.only.split(",") if name], json=args.json)


def _count(text: str) -> int:
    """A positive integer, also written as 1e7 or 10_000_000."""
    try:
        number = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not number.is_integer() or number < 1:
        raise argparse.ArgumentTypeError(f"not a whole number from 1 on: {text!r}")
    return int(number)


def _target(text: str) -> Target:
    try:
        return parse_target(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
