"""``metad-spark``: reads the command line, runs one command, turns errors into one line and an exit code.

Exit codes: 0 all well; 1 the run failed or a proof did; 2 the command line is wrong or a package is not installed; 3
the result must not be relied on; 4 the storm collapses.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec

from metad_wire.program.build import build
from metad_wire.program.extras import advice
from metad_wire.program.output import escape_unprintable
from metad_wire.program.signals import default_for_children

from .arguments import Command, count, made, parser_of
from .errors import SparkError, UsageError
from .target import Target, parse_target
from .vary import Axis, parse_axis

T = TypeVar("T")
NOTES = resources.files(__package__) / "data" / "help" / "commands.toml"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    escape_unprintable()
    default_for_children()
    command = made(_parser().parse_args(argv))
    assert isinstance(command, _Runs)
    try:
        return command.run_as(shlex.join(["metad-spark", *(sys.argv[1:] if argv is None else argv)]))
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
    about = "Simulates storms that are too large for one machine, and exports what a cluster knows."
    return parser_of("metad-spark", about, build(), COMMANDS, NOTES)


def _positive(text: str) -> float:
    """A number over 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"not over 0: {text!r}")
    return number


def _count(text: str) -> int:
    """A positive integer, also written as 1e7 or 10_000_000."""
    if (number := count(text)) < 1:
        raise argparse.ArgumentTypeError(f"not a whole number from 1 on: {text!r}")
    return number


def _told(parse: Callable[[str], T]) -> Callable[[str], T]:
    """What raises UsageError, for argparse."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class _Runs(Command, frozen=True, kw_only=True):
    """Base of all commands. ``RUNS``: the module whose ``run`` takes the fields."""

    RUNS: ClassVar[str]
    COMMAND: ClassVar[bool] = False
    """Whether it also takes the command line, for a page."""
    READ: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        **dict.fromkeys(("clients", "seeds", "sample", "blind", "generators", "count", "steps"), _count),
        **dict.fromkeys(("step_s", "stall_s", "within", "late_s", "left_s", "scale"), _positive),
        "target": _told(parse_target),
        "vary": _told(parse_axis),
        "runs": str,
    }

    def run_as(self, command: str) -> int:
        """Run it. ``command``: the command line."""
        module = importlib.import_module(f".run_{self.RUNS}", __package__)
        return int(module.run(**self.given(), **({"command": command} if self.COMMAND else {})))

    def given(self) -> dict[str, Any]:
        """The arguments of ``run``."""
        return msgspec.structs.asdict(self)


Scenario = Annotated[str, "a built-in scenario, or a TOML file", "NAME|FILE"]
Clients = Annotated[int | None, "number of clients, as in 1e7; default: the scenario's", "N"]
Calibration = Annotated[str | None, "costs of serving; default: the scenario's", "NAME|FILE"]
Model = Annotated[
    Literal["requests", "vector"],
    "the requests of brokers, with costs of `calibrate` (requests); or every client, in arrays, for what that leaves"
    " out, not validated (vector)",
]
Sample = Annotated[
    int | None,
    "so many slices of three nodes of a storm, drawn at random; default: all, or of more than 2e7 clients as many as"
    " have these",
    "N",
]
Master = Annotated[
    str | None,
    "local[2], spark://HOST:PORT, yarn, k8s://..., or sc://HOST:PORT for Spark Connect; default: that of spark-submit,"
    " else local[*]",
    "URL",
]
Connect = Annotated[bool, "start a Connect server on the local master and use it"]
Runner = Annotated[
    Literal["auto", "local", "spark"],
    "processes of this machine (local), or Spark; auto: local for one storm of fewer than 1e8 clients",
]
Census = Annotated[
    Path | None, "the clients that metad-spark census --json found, instead of the scenario's", "CENSUS.json"
]
Report = Annotated[Path | None, "write a page with charts", "FILE.html"]
Json = Annotated[Path | None, "write the result as JSON", "FILE"]


class Simulate(_Runs, frozen=True, kw_only=True):
    ABOUT = "simulate a storm: when clients are back, and at what cost"
    RUNS, COMMAND = "simulate", True

    json: Json = None
    clients: Clients = None
    scenario: Scenario = "default"
    calibration: Calibration = None
    seed: Annotated[int, "the same seed gives the same storm"] = 0
    model: Model = "requests"
    seeds: Annotated[int, "number of storms; the one with the median t99.9 is reported", "N"] = 1
    sample: Sample = None
    target: Annotated[Target, 'target that the report compares with, as in "t999<=300s"'] = Target()
    population: Census = None
    report: Report = None
    tables: Annotated[Path | None, "write the run as Parquet; one that is there is not simulated again", "DIR"] = None
    runner: Runner = "auto"
    master: Master = None
    connect: Connect = False


class Sweep(_Runs, frozen=True, kw_only=True):
    ABOUT = "simulate a grid of storms into tables, and go on where it was stopped"
    RUNS, COMMAND = "sweep", True

    json: Json = None
    scenario: Annotated[str, "a built-in scenario, or a TOML file", None, "SCENARIO"]
    vary: Annotated[
        tuple[Axis, ...],
        "values of a key of the scenario, as in cluster.nodes=3,5,9 or sdks.0.cap_s=4,60; once for each key",
        "KEY=V1,V2",
    ] = ()
    clients: Clients = None
    calibration: Calibration = None
    seed: Annotated[int, "the first seed"] = 0
    seeds: Annotated[int, "storms of each cell of the grid", "N"] = 1
    model: Model = "requests"
    sample: Sample = None
    target: Annotated[Target, 'target that cells are held to, as in "t999<=300s"'] = Target()
    tables: Annotated[Path, "where runs are written and looked for", "DIR"]
    report: Report = None
    runner: Runner = "auto"
    master: Master = None
    connect: Connect = False


class Report_(_Runs, frozen=True, kw_only=True):
    ABOUT = "make a page about runs of the tables"
    RUNS, COMMAND = "report", True

    tables: Annotated[Path, "the tables", "DIR"]
    runs: Annotated[
        tuple[str, ...], "a run, or how its identity begins; once for each; default: all storms", "ID", "--run"
    ] = ()
    out: Annotated[Path, "the page", "FILE.html"]
    target: Annotated[Target, 'target that storms are held to, as in "t999<=300s"'] = Target()


class Size(_Runs, frozen=True, kw_only=True):
    ABOUT = "find the smallest cluster that ends a storm in time"
    RUNS = "size"

    json: Json = None
    target: Annotated[Target, 'as in "t999<=300s": 99.9 %% back in 300 s']
    clients: Clients = None
    scenario: Scenario = "default"
    calibration: Calibration = None
    seed: Annotated[int, "the same seed gives the same storm"] = 0
    check: Annotated[
        bool, "skip the check of the answer and its neighbour by the model of requests", None, "--no-check"
    ] = True
    population: Census = None
    config: Annotated[Path | None, "write what to set as TOML, for metad serve", "FILE"] = None
    tables: Annotated[Path | None, "keep what was tried as Parquet; what is there is not tried again", "DIR"] = None
    master: Master = None
    connect: Connect = False


class Schedule(_Runs, frozen=True, kw_only=True):
    ABOUT = "write a storm's first attempts as Parquet, to be replayed at a smaller scale"
    RUNS = "schedule"

    json: Json = None
    clients: Clients = None
    scenario: Scenario = "default"
    calibration: Calibration = None
    seed: Annotated[int, "the same seed gives the same storm"] = 0
    out: Annotated[str, "a new folder; on a cluster, its URL", "DIR"]
    scale: Annotated[float, "scale of clients, rate and queue together, as in 0.01"] = 1.0
    generators: Annotated[int, "load generators; each gets one file", "N"] = 4
    master: Master = None
    connect: Connect = False


class Verify(_Runs, frozen=True, kw_only=True):
    ABOUT = "check the models against theory and published results"
    RUNS = "verify"

    json: Json = None
    only: Annotated[
        tuple[str, ...], "of theory, anchors, laws, cores, shapes, aws, brooker, metastable", "NAME[,NAME]"
    ] = ()


class _Source(_Runs, frozen=True, kw_only=True):
    """Base of the commands that read a source, with the options of ``format("metad")``."""

    AS: ClassVar[str] = "options"
    """How ``run`` calls the options."""

    json: Json = None
    source: Annotated[str, "as in metad://host:port, or what metad-spark export wrote", "URL|DIR"]
    tenant: Annotated[str | None, "as the option tenant of a DataFrame"] = None
    prefix: Annotated[str | None, "as the option prefix of a DataFrame"] = None
    region: Annotated[str | None, "as the option region of a DataFrame"] = None
    ca: Annotated[str | None, "as the option ca of a DataFrame"] = None
    certificate: Annotated[str | None, "as the option certificate of a DataFrame"] = None
    key: Annotated[str | None, "as the option key of a DataFrame"] = None
    token: Annotated[str | None, "as the option token of a DataFrame"] = None

    def given(self) -> dict[str, Any]:
        """The options are one argument."""
        given = msgspec.structs.asdict(self)
        names = ("tenant", "prefix", "region", "ca", "certificate", "key", "token")
        options = {name: given.pop(name) for name in names}
        return given | {self.AS: {name: value for name, value in options.items() if value is not None}}


class Export(_Source, frozen=True, kw_only=True):
    ABOUT = "write the tables of a cluster as Parquet, all of a group as of one moment"
    RUNS, AS = "export", "given"

    source: Annotated[str, "as in metad://host:port", "URL"]
    out: Annotated[Path, "a new folder", "DIR"]
    tables: Annotated[tuple[str, ...], "as in session,offset.generation; default: all", "NAME[,NAME]"] = ()


class Postmortem(_Runs, frozen=True, kw_only=True):
    ABOUT = "say what a storm was like, from the trace of metad-perf storm --trace"
    RUNS = "postmortem"

    json: Json = None
    source: Annotated[Path, "the directory of the trace", "DIR"]
    step_s: Annotated[float, "of the curve in the JSON", "S"] = 0.1
    stall_s: Annotated[float, "so long nobody comes back in a stall, at least", "S"] = 0.5
    master: Master = None
    connect: Connect = False


class _Query(_Source, frozen=True, kw_only=True):
    """Base of the commands that query a source by Spark."""

    master: Master = None
    connect: Connect = False


class Census_(_Query, frozen=True, kw_only=True):
    ABOUT = "say who the clients are: sessions, sizes, expiries and last seen by tenant and region"
    RUNS = "census"


class Lag(_Query, frozen=True, kw_only=True):
    ABOUT = "say how far consumer groups are behind, as far as that is known"
    RUNS = "lag"

    heads: Annotated[Path | None, "where topics end: CSV, JSON or Parquet with topic, partition, head", "FILE"] = None
    count: Annotated[int, "partitions to list", "N"] = 20


class Skew(_Query, frozen=True, kw_only=True):
    ABOUT = "say how evenly groups are filled, which keys are heavy, and which moves of slots would even it out"
    RUNS = "skew"

    weight: Annotated[Literal["rows", "bytes"], "what to even out"] = "bytes"
    within: Annotated[float, "no group is to have more than X times as much as the mean one", "X"] = 1.1
    steps: Annotated[int, "slots to move at most", "N"] = 64
    count: Annotated[int, "keys to list", "N"] = 10

    def given(self) -> dict[str, Any]:
        """Raises UsageError."""
        if self.within < 1:
            raise UsageError(
                f"--within: from 1 on, not {self.within:g}: some group has at least as much as the mean one"
            )
        return super().given()


class Orphans(_Query, frozen=True, kw_only=True):
    ABOUT = "find records whose owners are gone"
    RUNS = "orphans"

    late_s: Annotated[float, "what metad has not come to by then", "S"] = 60.0
    left_s: Annotated[float, "what nobody has touched since", "S"] = 604_800.0


class Calibrate(_Runs, frozen=True, kw_only=True):
    ABOUT = "fit what each step of a request costs to runs of metad-perf calibration-grid"
    RUNS = "calibrate"
    READ: ClassVar[Mapping[str, Callable[[str], Any]]] = {}

    json: Json = None
    runs: Annotated[tuple[Path, ...], "folders of the grid, or a file of --keep", None, "RUNS"]
    out: Annotated[Path, "the costs", "FILE.toml"]
    name: Annotated[str, "of the costs"] = "measured"
    keep: Annotated[Path | None, "keep the runs as rows, to fit them again", "FILE.parquet"] = None


class Validate(_Runs, frozen=True, kw_only=True):
    ABOUT = "predict storms that happened, and say how far off the predictions are"
    RUNS = "validate"

    json: Json = None
    traces: Annotated[tuple[Path, ...], "folders of the grid, or reports of metad-perf storm", None, "TRACES"] = ()
    blind: Annotated[
        int | None,
        "instead of storms that happened: so many whose settings are drawn now, each made three times on this machine",
        "N",
    ] = None
    scale: Annotated[float, "of the sizes of these storms, to try it", "X"] = 1.0
    calibration: Annotated[str, "costs that calibrate has made", "NAME|FILE"] = "default"
    seeds: Annotated[int, "storms of each prediction; the median", "N"] = 3
    verdict: Annotated[Path | None, "keep what reports say of all predictions", "FILE.toml"] = None
    tables: Annotated[Path | None, "rewrite the table between its marks in a page", "FILE.md"] = None


_ALL = (Simulate, Sweep, Report_, Size, Schedule, Verify, Export, Postmortem, Calibrate, Validate, Census_, Lag)
COMMANDS: Final = {one.RUNS: one for one in (*_ALL, Skew, Orphans)}
"""In the order of the help."""

if __name__ == "__main__":
    sys.exit(main())
