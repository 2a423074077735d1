"""The command: windows of load on nodes of our own, and the CPU time that all nodes spend on an item.

The clock is CPU time, because the machine is shared. A window begins when the nodes have done what they had put off.
With ``--against`` a second cluster of another version runs beside; windows alternate between the two, and twice in all,
since the cluster that was started first is a little slower.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from metad_client import Options
from metad_wire.program.running import run_async

from ..commands import Cost
from ..core_speed import CoreSpeed
from ..errors import ServerError, UsageError
from ..experiment.nodes import cpu_s, quiet
from ..faults.members import Member, Members, temporary_members
from ..load.fleet import Result, run_fleet
from ..load.measure import Load, create, epoch_now, plans
from ..load.prepare import records_needed
from ..report import output
from ..report.conclusion import conclude, reported
from ..spawn import metad_serve
from ..target import open_client
from ..upgrade.release import unpacked
from .sampler import FILE, STAGES, Spent

LOADS: Final = {
    "create": Load(verb="session.create"),
    "takeover": Load(verb="session.takeover"),
    "restore": Load(verb="session.takeover", restore=True),
    "update": Load(verb="session.update"),
    "commit": Load(verb="offset.commit"),
    "put": Load(verb="kv.put"),
    "get": Load(verb="kv.get"),
    "table_put": Load(verb="table.put"),
}
BATCHES: Final = {
    "1000": {"batch": 1_000, "in_flight": 8},
    "100": {"batch": 100, "in_flight": 32},
    "10": {"batch": 10, "in_flight": 128},
    "joined": {"batch": 1, "in_flight": 5_000, "singles": True},
    "alone": {"batch": 1, "in_flight": 1, "singles": True},
}
"""``joined``: single calls that the SDK joins; ``alone``: one call after the other."""
GROUPS: Final = {"3": "data=2,offset=1", "12": "data=11,offset=1", "48": "data=47,offset=1"}
"""By their number, that of metadata among them."""
_ONE_OF_EACH: Final = "data=1,offset=1"
_QUIET_WAIT_S: Final = 4.0
"""No longer, because nodes with many groups are never quiet."""
_SAID_S: Final = 10.0
_LED_S: Final = 60.0


class _Window(NamedTuple):
    cpu_us: float
    """Of all nodes, an item."""
    client_us: float
    items_per_s: float


class _Nodes:
    """One cluster, and what is asked of it."""

    def __init__(self, members: Members, options: Cost, problems: list[str]) -> None:
        self.members = members.all
        self.target = members.target
        self._keys = options.keys
        self._seconds = options.seconds
        self._problems = problems
        self._epoch = epoch_now()
        self._created: set[str] = set()

    def window(self, load: Load, begun: Callable[[], None] | None = None) -> _Window:
        """One window; its records are created first. ``begun`` is called as it begins."""
        load = replace(load, keys=max(self._keys, load.batch)).checked()
        self._epoch = max(self._epoch + 1, epoch_now())
        kind = load.verb.partition(".")[0]
        # Only the owner updates a session, in the life that took it over.
        if load.verb == "session.update" or (records_needed(load.verb) and kind not in self._created):
            create(self.target, load, self._epoch)
            self._created.add(kind)
        run_async(quiet(self.members, _QUIET_WAIT_S))
        marks: list[float] = []

        def begin() -> None:
            marks.append(self._cpu_s())
            if begun is not None:
                begun()

        result: Result = run_fleet(
            plans(self.target, load, self._epoch, seconds=self._seconds),
            on_begin=begin,
            on_end=lambda: marks.append(self._cpu_s()),
            progress=lambda _: None,
        )
        if result.errors:
            self._problems.append(f"{load.verb}: {result.errors}")
        before_s, after_s = marks
        return _Window(
            1e6 * output.ratio(after_s - before_s, result.items),
            1e6 * output.ratio(result.client_cpu_s, result.items),
            result.items_per_s(),
        )

    def leader(self, group: str) -> str:
        """The node that leads a group, once one does. Raises ServerError."""

        async def ask() -> str | None:
            async with open_client(self.target, Options(deadline_s=_SAID_S)) as client:
                found = await client.cluster.statuses()
            leading = [
                name
                for name, status in found.items()
                for one in getattr(status, "groups", ())
                if one.name == group and one.role == "leader"
            ]
            return leading[0] if leading else None

        until = time.monotonic() + _LED_S
        while time.monotonic() < until:
            if (name := run_async(ask())) is not None:
                return name
        raise ServerError(f"{group} has no leader")

    def _cpu_s(self) -> float:
        return sum(cpu_s(self.members).values())


@contextmanager
def _nodes(
    options: Cost,
    problems: list[str],
    *,
    nodes: int | None = None,
    groups: str | None = None,
    command: Callable[[Member], Sequence[str]] | None = None,
) -> Iterator[_Nodes]:
    count = options.nodes if nodes is None else nodes
    with temporary_members(
        count,
        groups=options.groups if groups is None else groups,
        config=options.server_config,
        namespaces=False,
        disks=False,
        replicas=min(count, 3),
    ) as members:
        if command is not None:
            for member in members.all:
                member.command = command(member)
        members.start()
        yield _Nodes(members, options, problems)


def run(options: Cost) -> int:
    """Returns the exit code: 1 if an item failed or a node was not well. Raises UsageError, ServerError."""
    names, sizes = _chosen("only", options.only, LOADS), _chosen("batches", options.batches, BATCHES)
    problems: list[str] = []
    with CoreSpeed() as speed:
        found = _costs(options, names, sizes, problems)
        if not options.no_stages:
            found["stages"] = _stages(options, names, [size for size in ("1000", "joined") if size in sizes], problems)
        if not options.no_groups:
            found |= _many_groups(options, problems)
        if not options.no_one_node:
            with _nodes(options, problems, nodes=1) as alone:
                found["one_node"] = {name: alone.window(_case(name, "1000")).cpu_us for name in names}
        core_us = speed.us
    made = reported(options, {"core_us": core_us, **found, "problems": problems})
    _show(made, names, sizes, options.against)
    return conclude("cost", made, options)


def _chosen(flag: str, given: str, known: Mapping[str, object]) -> list[str]:
    chosen = list(filter(None, given.split(",")))
    if unknown := [name for name in chosen if name not in known]:
        raise UsageError(f"--{flag}: no {', '.join(unknown)}; there is {', '.join(known)}")
    return chosen or [*known]


def _case(name: str, batch: str) -> Load:
    return replace(LOADS[name], **BATCHES[batch])


def _costs(options: Cost, names: list[str], sizes: list[str], problems: list[str]) -> dict[str, Any]:
    """µs of CPU of all nodes by load and batch, of the client beside, and the ratios to the other version."""
    cases = [*product(names, sizes)]
    pairs: dict[tuple[str, str], list[tuple[_Window, _Window | None]]] = {case: [] for case in cases}
    rounds: tuple[bool, ...] = (False, True) if options.against else (False,)
    with tempfile.TemporaryDirectory(prefix="metad-release-") as directory, ExitStack() as stack:
        before = unpacked(options.against, Path(directory)) if options.against else []
        progress = stack.enter_context(
            output.progress("windows", len(cases) * options.pairs * len(rounds) * (1 + bool(before)))
        )
        for first_is_before in rounds:
            with ExitStack() as running:
                commands = [metad_serve(), before] if before else [metad_serve()]
                started = {}
                for at in (1, 0) if first_is_before else range(len(commands)):
                    started[at] = running.enter_context(_nodes(options, problems, command=partial(_same, commands[at])))
                for number, case in product(range(options.pairs), cases):
                    windows: dict[int, _Window] = {}
                    for at in sorted(started, reverse=bool(number % 2)):
                        windows[at] = started[at].window(_case(*case))
                        progress(1)
                    pairs[case].append((windows[0], windows.get(1)))
    found: dict[str, Any] = {name: {} for name in names} | {"client": {name: {} for name in names}}
    against: dict[str, Any] = {name: {} for name in names}
    for (name, size), windows_of in pairs.items():
        found[name][size] = statistics.median(now.cpu_us for now, _ in windows_of)
        found["client"][name][size] = statistics.median(now.client_us for now, _ in windows_of)
        ratios = [output.ratio(now.cpu_us, then.cpu_us) for now, then in windows_of if then is not None]
        if ratios:
            against[name][size] = {"ratio": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return found | {"against": against if options.against else {}, "against_version": options.against}


def _many_groups(options: Cost, problems: list[str]) -> dict[str, Any]:
    """Throughput, and CPU an item, of takeovers in batches and of single puts with more groups, by that with three."""
    cases = {"": _case("takeover", "1000"), "put_": _case("put", "joined")}
    found: dict[str, Any] = {f"{name}groups{kind}_ratio": {} for name in cases for kind in ("", "_cpu")}
    with output.progress("windows with more groups", 2 * (len(GROUPS) - 1) * len(cases) * options.pairs) as progress:
        for count in [*GROUPS][1:]:
            with (
                _nodes(options, problems, groups=GROUPS["3"]) as few,
                _nodes(options, problems, groups=GROUPS[count]) as many,
            ):
                for name, load in cases.items():
                    pairs = []
                    for number in range(options.pairs):
                        windows = {}
                        for one in (few, many) if number % 2 else (many, few):
                            windows[one] = one.window(load)
                            progress(1)
                        pairs.append((windows[many], windows[few]))
                    rates = [(most.items_per_s, least.items_per_s) for most, least in pairs]
                    costs = [(least.cpu_us, most.cpu_us) for most, least in pairs]
                    found[f"{name}groups_ratio"][count] = output.median_ratio(rates)
                    found[f"{name}groups_cpu_ratio"][count] = output.median_ratio(costs)
    return found


def _stages(options: Cost, names: list[str], sizes: list[str], problems: list[str]) -> dict[str, Any]:
    """µs of CPU an item by load, batch, stage and role, with one group of each kind. The client has no role."""
    found: dict[str, Any] = {}
    cases = [*product(names, sizes)]

    def sampled(member: Member) -> list[str]:
        _, *arguments = metad_serve()
        path = Path(f"{member.data_directory()}.spent")
        return ["env", f"{FILE}={path}", sys.executable, "-m", "metad_perf.cost.sampler", *arguments]

    with (
        output.progress("windows by stage", len(cases)) as progress,
        _nodes(options, problems, groups=_ONE_OF_EACH, command=sampled) as nodes,
    ):
        for name, size in cases:
            load, before = _case(name, size), dict[str, Spent]()
            window = nodes.window(load, partial(_note, before, nodes.members))
            after = _spent(nodes.members)
            leader = nodes.leader("offset-0" if name == "commit" else "data-0")
            shares = {node: _shares(before[node], after[node]) for node in after}
            whole = sum(sum(one.values()) for one in shares.values())
            made: dict[str, Any] = {"client": {"leader": window.client_us, "follower": 0.0}}
            for stage in STAGES:
                of_leader = shares[leader][stage]
                of_all = sum(one[stage] for one in shares.values())
                made[stage] = {
                    "leader": window.cpu_us * output.ratio(of_leader, whole),
                    "follower": window.cpu_us * output.ratio(of_all - of_leader, whole),
                }
            found.setdefault(name, {})[size] = made
            progress(1)
    return found


def _note(spent: dict[str, Spent], members: Sequence[Member]) -> None:
    spent.update(_spent(members))


def _same(command: list[str], _: Member) -> list[str]:
    return command


def _shares(before: Spent, after: Spent) -> dict[str, float]:
    """Seconds of a node, by stage."""
    ticks = {stage: after.ticks.get(stage, 0) - before.ticks.get(stage, 0) for stage in STAGES}
    tick_s = output.ratio(after.loop_s - before.loop_s, sum(ticks.values()))
    return {
        stage: ticks[stage] * tick_s + after.threads_s.get(stage, 0.0) - before.threads_s.get(stage, 0.0)
        for stage in STAGES
    }


def _spent(members: Sequence[Member]) -> dict[str, Spent]:
    """What each node says now. Raises ServerError."""
    known = {member.name: spent.number for member in members if (spent := _read(member)) is not None}
    for member in members:
        os.kill(member.pid, signal.SIGUSR2)
    said: dict[str, Spent] = {}
    until = time.monotonic() + _SAID_S
    while len(said) < len(members):
        for member in members:
            spent = _read(member)
            if spent is not None and spent.number != known.get(member.name):
                said[member.name] = spent
        if time.monotonic() > until:
            raise ServerError("a node does not say what its CPU time was spent on")
        time.sleep(0.01)
    return said


def _read(member: Member) -> Spent | None:
    try:
        return msgspec.json.decode(Path(f"{member.data_directory()}.spent").read_bytes(), type=Spent)
    except FileNotFoundError:
        return None


def _show(made: dict[str, Any], names: list[str], sizes: list[str], against: str) -> None:
    output.table(
        "µs of CPU of all nodes, an item",
        ["", *sizes],
        [[name, *(made[name][size] for size in sizes)] for name in names],
    )
    if against:
        output.table(
            f"by that of {against}",
            ["", *sizes],
            [[name, *(made["against"][name][size]["ratio"] for size in sizes)] for name in names],
        )
    for name, by_size in made.get("stages", {}).items():
        for size, stages in by_size.items():
            rows = [[stage, one["leader"], one["follower"]] for stage, one in stages.items()]
            output.table(f"{name}, {size}: µs an item", ["", "leader", "followers"], rows)
