"""Some fifty clusters, each with clients and faults of its own, and the same every time: they show that the
simulator works and what it does. Every planted bug is found by a scenario, and seeds that nobody has run before are for
``make soak``."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import simulate
from simulate import Result, main, run_seeds

SEED = int(os.environ.get("METAD_TEST_SEED", "0"))
SEEDS = 20


@pytest.mark.parametrize("nodes", [3, 5])
def test_seeds(nodes: int) -> None:
    print(f"{nodes} nodes, seeds {SEED}..{SEED + SEEDS - 1}")
    results = run_seeds(range(SEED, SEED + SEEDS), nodes)
    broken = [f"seed {result.seed}: {result.violation}" for result in results if result.violation]
    assert not broken, "\n".join(broken)
    # It is worth something only if much happens.
    assert sum(result.steps for result in results) > 1500 * SEEDS
    assert sum(result.answered for result in results) > 30 * SEEDS
    assert sum(result.crashes for result in results) > 3 * SEEDS
    assert sum(result.elections for result in results) > 2 * SEEDS
    assert sum(result.snapshots for result in results) > SEEDS // 6
    assert sum(result.membership_changes for result in results) > SEEDS // 3


@pytest.mark.parametrize(("nodes", "seeds"), [(3, 2), (5, 1)])
def test_wide_seeds(nodes: int, seeds: int) -> None:
    """Floods of reads, disks that hang, machines that sleep, nodes that are configured in different ways."""
    print(f"{nodes} nodes, wide, seeds {SEED}..{SEED + seeds - 1}")
    results = run_seeds(range(SEED, SEED + seeds), nodes, wide=True)
    broken = [f"seed {result.seed}: {result.violation}" for result in results if result.violation]
    assert not broken, "\n".join(broken)
    assert sum(result.steps for result in results) > 5000 * seeds


def test_a_seed_is_the_same_every_time() -> None:
    """Also where strings hash differently: no set decides anything."""
    code = (
        "from simulate import run_seed; import zlib; "
        "runs = [run_seed(1, 3, wide=wide, trace=True) for wide in (False, True)]; "
        "assert all(run.trace for run in runs); "
        "print([zlib.crc32('\\n'.join(run.trace).encode()) for run in runs])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(seen) == 1


class _AtOnce:
    """A pool that does its work when it is asked."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    def __enter__(self) -> _AtOnce:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*arguments, **options))
        return future


def test_a_soak_runs_fresh_wide_seeds_and_says_how_to_play_what_breaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int, bool]] = []
    now_s = itertools.count(0.0, 1.0)

    def run(seeds: list[int], nodes: int, level: str, *, wide: bool) -> list[Result]:
        (seed,) = seeds
        seen.append((seed, nodes, wide))
        return [Result(seed, level, nodes, wide, "copies: too few" if len(seen) == 3 else "")]

    monkeypatch.setattr(simulate, "ProcessPoolExecutor", _AtOnce)
    monkeypatch.setattr(simulate, "run_seeds", run)
    monkeypatch.setattr(time, "monotonic", lambda: next(now_s))
    assert main(["--minutes", "1"]) == 1
    assert len(seen) > 3
    first = seen[0][0]
    assert seen == [(first + at, 5 if at % 2 else 3, True) for at in range(len(seen))]
    (command,) = [line.strip() for line in capsys.readouterr().out.splitlines() if "git checkout" in line]
    assert f"--level node --nodes 3 --seeds {first + 2}..{first + 2} --trace" in command
    count = len(seen)
    assert main(["--minutes", "1", "--nodes", "5"]) == 0
    assert {nodes for _, nodes, _ in seen[count:]} == {5}
    assert seen[count][0] not in range(first - 10_000, first + 10_000), "each night has numbers of its own"
