"""Runs a cluster through seeds, each a cluster and a mix of faults of its own, and reports what broke.

``python tests/simulate.py --seeds 0..999 --nodes 5`` runs seeds, ``--trace`` tells one of them event by event,
``--mutants`` plants bugs and reports what finds each. There are two levels: replicas alone (``--level raft``), and
whole nodes with their clients (``--level node``), of which one costs as much as some ten of the others. Calendars of
whole nodes disagree, drift and are set in any seed. Seeds are *wide*: with floods of reads, disks that hang, machines
that sleep, nodes that are configured in different ways, and more of its kind. ``--plain`` goes without, four times as
fast.

``--minutes 30`` soaks: wide seeds of whole nodes, of three and of five in turn, with numbers that nobody has run
before, for so long. Whatever breaks is printed as one command that plays it again: seed and commit are all it takes.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from metad_judge.invariants import Violation
from metad_judge.linearizability import Outcome, check
from sim.mutants.nodes import NODE_MUTANTS
from sim.mutants.planting import Mutant, planted
from sim.mutants.replicas import MUTANTS
from sim.nodes import trouble
from sim.nodes.cluster import Cluster
from sim.nodes.scenarios import SCENARIOS as NODE_SCENARIOS
from sim.replicas.chaos import Chaos, draw
from sim.replicas.scenarios import SCENARIOS
from sim.replicas.world import World

STEPS = 2000
"""Of a seed's faults; healing comes on top."""
WIDE_STEPS = 8000
"""The same, where reads come by the hundred."""
CONVERGE_S = 20.0
_VIRTUAL_S_MAX = 60.0
_MUTANT_SEEDS = 40
_MUTANT_WIDE_SEEDS = 10
"""Where nothing else objects to a mutant: plain seeds have found nothing in months that wide ones find in minutes."""
_SOAK_NODES = 3, 5
_COUNTED = "steps", "crashes", "elections", "snapshots", "membership_changes", "told", "gaps"
_NODE_SHARE = 10
"""With both levels, every so manyth seed is one of whole nodes."""
_CHUNK = 20
_TABLE_CHARACTERS = 120


@dataclass
class Result:
    """Of one seed."""

    seed: int
    level: str = "raft"
    nodes: int = 3
    wide: bool = False
    violation: str = ""
    steps: int = 0
    crashes: int = 0
    elections: int = 0
    snapshots: int = 0
    membership_changes: int = 0
    answered: int = 0
    told: int = 0
    """Changes that watchers were told of."""
    gaps: int = 0
    trace: list[str] = field(default_factory=list)


def run_seed(seed: int, nodes: int, *, wide: bool = False, trace: bool = False) -> Result:
    """One run. What went wrong is in ``violation``; nothing is raised."""
    rng = random.Random(f"{nodes}/{seed}/wide" if wide else f"{nodes}/{seed}")
    world = World(rng.getrandbits(64), draw(rng, nodes, wide=wide), tracing=trace)
    chaos = Chaos(world, rng, wide=wide)
    steps = WIDE_STEPS if wide else STEPS
    result = Result(seed, nodes=nodes, wide=wide)
    try:
        while world.steps < steps and world.clock.now < _VIRTUAL_S_MAX:
            world.run(0.25)
        chaos.end()
        world.require_convergence(CONVERGE_S)
        asleep_until = max(node.paused_until for node in world.nodes.values())  # one that is no member is not awaited
        world.run(max(1.0, asleep_until - world.clock.now + 0.1))
        world.require_answers()
        verdict = check(chaos.history())
        if verdict.outcome is not Outcome.LINEARIZABLE:
            raise Violation("linearizability", str(verdict))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this seed's result
        result.violation = _text(error)
    result.steps, result.crashes, result.snapshots = world.steps, world.crashes, world.snapshots
    result.elections = sum(ledger.elections for ledger in world.ledgers.values())
    result.membership_changes = sum(ledger.changes for ledger in world.ledgers.values())
    result.answered = chaos.answered
    result.trace = world.traced
    return result


def run_node_seed(seed: int, nodes: int, *, wide: bool = False, trace: bool = False) -> Result:
    """The same with whole nodes. ``steps`` are callbacks of the loop."""
    rng = random.Random(f"{nodes}/{seed}/node/wide" if wide else f"{nodes}/{seed}/node")
    result = Result(seed, "node", nodes, wide)
    with Cluster(rng.getrandbits(64), trouble.draw(rng, nodes, wide=wide), tracing=trace) as cluster:
        try:
            watchers = trouble.play(cluster, rng, wide=wide)
            result.told = sum(watcher.told for watcher in watchers)
            result.gaps = sum(watcher.gaps for watcher in watchers)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this seed's result
            result.violation = _text(error)
        result.steps, result.crashes, result.snapshots = cluster.loop.callbacks, cluster.crashes, cluster.snapshots
        result.elections, result.membership_changes = len(cluster.elections), cluster.changes
        result.answered = cluster.history.answered
        result.trace = cluster.traced
    return result


def run_seeds(seeds: Iterable[int], nodes: int, level: str = "raft", *, wide: bool = False) -> list[Result]:
    """Many, one after the other. ``wide``: with more kinds of trouble (``replicas/chaos``, ``nodes/trouble``)."""
    results = []
    collecting = gc.isenabled()
    gc.disable()  # a run's nodes are one knot of references: untie it once a seed
    try:
        for seed in seeds:
            whole = level == "node" or (level == "both" and seed % _NODE_SHARE == 0)
            run = run_node_seed if whole else run_seed
            results.append(run(seed, nodes, wide=wide))
            gc.collect(1)
    finally:
        if collecting:
            gc.enable()
    gc.collect()
    return results


def killers(mutant: Mutant, *, everything: bool = False, seeds: int = _MUTANT_SEEDS) -> list[str]:
    """What objects to a mutant: its scenarios, then the others, then a seed, then a wide one. The first of them, or
    ``everything``."""
    found: list[str] = []
    whole = mutant in NODE_MUTANTS
    scenarios = NODE_SCENARIOS if whole else SCENARIOS
    others = [name for name in scenarios if name not in mutant.scenarios]
    with planted(mutant):
        for name in (*mutant.scenarios, *others):
            try:
                scenarios[name]()
            except Exception as error:  # noqa: BLE001 - any objection will do
                found.append(f"{name}: {_text(error)}")
                if not everything:
                    return found
        for wide, count in ((False, seeds), (True, min(seeds, _MUTANT_WIDE_SEEDS))):
            for seed in range(count):
                nodes = 5 if seed % 2 and (wide or not whole) else 3
                result = (run_node_seed if whole else run_seed)(seed, nodes, wide=wide)
                if result.violation:
                    found.append(f"{'wide ' * wide}seed {seed} of {nodes} nodes: {result.violation}")
                    return found
    return found


def _text(error: Exception) -> str:
    if isinstance(error, AssertionError):
        return str(error) or "assertion failed"
    return f"{type(error).__name__}: {error}"


# --- the command -----------------------------------------------------------------------------------------

ABOUT = "Run a cluster through seeds, each a cluster and a mix of faults of its own, and report what broke."


def main(arguments: list[str] | None = None) -> int:
    """The command. 1 if anything broke."""
    parser = argparse.ArgumentParser(prog="python tests/simulate.py", description=ABOUT)
    parser.add_argument("--seeds", type=_seeds, default=range(200), metavar="A..B", help="A and B included")
    parser.add_argument("--minutes", type=float, metavar="M", help="soak: fresh wide seeds of whole nodes, for so long")
    parser.add_argument("--nodes", type=int, choices=(1, 3, 5), help="3, and 3 and 5 in turn where it soaks")
    parser.add_argument("--level", choices=("raft", "node", "both"), default="both")
    parser.add_argument("--plain", action="store_true", help="without what only wide seeds have")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the totals there")
    parser.add_argument("--trace", action="store_true", help="print the events of the seeds")
    parser.add_argument("--mutants", action="store_true", help="plant bugs, and see what finds each")
    options = parser.parse_args(arguments)
    console = Console()
    nodes: int = options.nodes or 3
    if options.mutants:
        report, failed = _mutants(console)
    elif options.minutes is not None:
        turns = (options.nodes,) if options.nodes else _SOAK_NODES
        report, failed = _soak(console, options.minutes, turns, options.processes)
    elif options.trace:
        report, failed = _trace(console, options.seeds, nodes, options.level, wide=not options.plain)
    else:
        report, failed = _run(console, options.seeds, nodes, options.level, options.processes, wide=not options.plain)
    if options.json is not None:
        options.json.write_text(json.dumps(report) + "\n")
    return 1 if failed else 0


class _Totals:
    """What came of seeds, as it comes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self.counts = dict.fromkeys(("seeds", "violations", *_COUNTED), 0)

    def add(self, result: Result) -> None:
        """Count a seed, and say what broke."""
        counts = self.counts
        counts["seeds"] += 1
        for name in _COUNTED:
            counts[name] += getattr(result, name)
        if result.violation:
            counts["violations"] += 1
            self._console.print(
                f"seed {result.seed}, level {result.level}, {result.nodes} nodes: {result.violation}\n"
                f"  again, with every event:\n  {again(result)}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def report(self, what: str) -> tuple[dict[str, int], bool]:
        """Print them, and return them and whether anything broke."""
        counts = self.counts
        self._console.print(
            f"{counts['seeds']} seeds of {what}: {counts['violations']} violations, {counts['steps']} steps, "
            f"{counts['crashes']} crashes, {counts['elections']} elections, {counts['snapshots']} snapshots, "
            f"{counts['membership_changes']} membership changes, {counts['told']} changes told, {counts['gaps']} gaps; "
            f"{counts['seeds'] / (time.monotonic() - self._started_s):.1f} seeds/s",
            highlight=False,
        )
        return counts, counts["violations"] > 0


def again(result: Result) -> str:
    """The command that plays a seed again, from the root of the checkout: seed and commit are all it takes."""
    options = f"--level {result.level} --nodes {result.nodes} --seeds {result.seed}..{result.seed} --trace"
    plain = "" if result.wide else " --plain"
    commit, _, dirty = _commit().partition("-")
    changed = "  # and with the changes that are not committed" if dirty else ""
    return f"git checkout {commit} && {sys.executable} tests/simulate.py {options}{plain}{changed}"


def _run(
    console: Console, seeds: range, nodes: int, level: str, processes: int, *, wide: bool
) -> tuple[dict[str, int], bool]:
    totals = _Totals(console)
    with Progress(console=console) as progress:
        task = progress.add_task(f"{nodes} nodes", total=len(seeds))
        for results in _chunks(seeds, nodes, level, processes, wide=wide):
            for result in results:
                totals.add(result)
            progress.update(task, advance=len(results))
    return totals.report(f"{nodes} nodes")


def _soak(console: Console, minutes: float, nodes: Sequence[int], processes: int) -> tuple[dict[str, int], bool]:
    """Fresh seeds until the time is over; an interrupt ends it early. Those that run by then are waited for."""
    totals, begun_s, first = _Totals(console), time.monotonic(), secrets.randbelow(1 << 40)
    counts = f"{' and '.join(map(str, nodes))} nodes"
    console.print(
        f"wide seeds of {counts} from {first} on, at commit {_commit()}, for {minutes:g} minutes", highlight=False
    )
    fresh = ((first + number, nodes[number % len(nodes)]) for number in itertools.count())
    with ProcessPoolExecutor(processes) as pool, Progress(console=console) as progress, suppress(KeyboardInterrupt):
        task = progress.add_task("", total=60 * minutes)
        running: set[Future[list[Result]]] = set()
        while True:
            while len(running) < processes and time.monotonic() - begun_s < 60 * minutes:
                seed, count = next(fresh)
                running.add(pool.submit(run_seeds, [seed], count, "node", wide=True))
            if not running:
                break
            over, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in over:
                for result in future.result():
                    totals.add(result)
            said = f"{totals.counts['seeds']} seeds, {totals.counts['violations']} violations"
            progress.update(task, completed=time.monotonic() - begun_s, description=said)
    return totals.report(counts)


def _chunks(seeds: range, nodes: int, level: str, processes: int, *, wide: bool) -> Iterator[list[Result]]:
    pieces = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    if processes == 1:
        yield from (run_seeds(piece, nodes, level, wide=wide) for piece in pieces)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(partial(run_seeds, nodes=nodes, level=level, wide=wide), pieces)


def _trace(console: Console, seeds: range, nodes: int, level: str, *, wide: bool) -> tuple[dict[str, int], bool]:
    violations = 0
    for seed in seeds:
        whole = level == "node" or (level == "both" and seed % _NODE_SHARE == 0)
        run = run_node_seed if whole else run_seed
        result = run(seed, nodes, wide=wide, trace=True)
        for line in result.trace:
            print(line)
        print(f"seed {seed}: {result.violation or 'no violation'}")
        violations += bool(result.violation)
    return {"seeds": len(seeds), "violations": violations}, violations > 0


def _mutants(console: Console) -> tuple[dict[str, int], bool]:
    table = Table("mutant", "breaks", "killed by", box=None)
    table.columns[0].no_wrap = True
    killed = 0
    with Progress(console=console) as progress:
        for mutant in progress.track((*MUTANTS, *NODE_MUTANTS), description="mutants"):
            found = killers(mutant)
            killed += bool(found)
            table.add_row(mutant.name, mutant.breaks, _short(found[0]) if found else "[bold red]nothing[/]")
    console.print(table)
    planted_all = len(MUTANTS) + len(NODE_MUTANTS)
    console.print(f"{killed} of {planted_all} killed")
    return {"mutants": planted_all, "killed": killed}, killed < planted_all


def _short(text: str) -> str:
    line = text.splitlines()[0]
    return escape(line if len(line) <= _TABLE_CHARACTERS else f"{line[:_TABLE_CHARACTERS]}...")


def _seeds(text: str) -> range:
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last if dots else first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range like 0..99") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is empty")
    return seeds


def _commit() -> str:
    """What is checked out, with ``-dirty`` behind it if files have changed since."""
    with suppress(OSError, subprocess.SubprocessError):
        here = Path(__file__).resolve().parent
        command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty"]
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return "unknown"


if __name__ == "__main__":
    sys.exit(main())
