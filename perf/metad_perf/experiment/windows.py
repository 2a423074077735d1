"""Windows of load, measured in processes of their own, beside which something else happens or not."""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import UsageError
from ..faults.members import Member
from ..load.fleet import Result, run_fleet
from ..load.measure import Load, epoch_now, plans
from ..report import output
from .nodes import cpu_s


async def window(target: str, load: Load, seconds: float) -> Result:
    """One window of the load."""
    return await _run(target, load, seconds, lambda _: None)


class Side(NamedTuple):
    """One of two clusters that are compared: how a client reaches it, and its nodes."""

    target: str
    members: Sequence[Member]


async def compared(
    sides: tuple[Side, Side],
    loads: Mapping[str, Load],
    count: int,
    seconds: float,
    problems: list[str],
    before: Callable[[str, int], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """What the first of two clusters does by the second, load by load: medians of so many pairs of windows. The windows
    of a pair run at the same time, so a core that is slower for a while slows both.

    ``before`` is called for each target, with the epoch of the brokers in whose names sessions are taken over. Returns
    ``throughput_ratios``; ``cpu_ratios``, of all nodes for an item; ``items_per_s`` of both.
    """
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in loads}
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in loads}
    with output.progress("pairs of windows", count * len(loads)) as progress:
        for _, (name, load) in product(range(count), loads.items()):
            epoch = epoch_now()
            if before is not None:
                await asyncio.gather(*(before(side.target, epoch) for side in sides))
            made = await _at_once(sides, load.checked(), seconds, epoch)
            problems += [f"{name}: {result.errors}" for result, _ in made if result.errors]
            first, second = (result.items_per_s() for result, _ in made)
            rates[name].append((first, second))
            first_s, second_s = (used_s / max(result.items, 1) for result, used_s in made)
            costs[name].append((first_s, second_s))
            progress(1)
    return {
        "throughput_ratios": {name: output.median_ratio(each) for name, each in rates.items()},
        "cpu_ratios": {name: output.median_ratio(each) for name, each in costs.items()},
        "items_per_s": {
            name: [statistics.median(side) for side in zip(*each, strict=True)] for name, each in rates.items()
        },
    }


_TOGETHER_S: Final = 60.0


async def _at_once(sides: Sequence[Side], load: Load, seconds: float, epoch: int) -> list[tuple[Result, float]]:
    """A window of each, and the CPU seconds that its nodes used in it."""
    marks: list[list[float]] = []

    def mark() -> None:
        marks.append([sum(cpu_s(side.members).values()) for side in sides])

    begun, ended = (threading.Barrier(len(sides), mark) for _ in range(2))

    def run(target: str) -> Result:
        try:
            return run_fleet(
                plans(target, load, epoch, seconds=seconds),
                on_begin=lambda: _wait(begun),
                on_end=lambda: _wait(ended),
                progress=lambda _: None,
            )
        except BaseException:
            begun.abort()  # the other one waits no more
            ended.abort()
            raise

    made = await asyncio.gather(*(asyncio.to_thread(run, side.target) for side in sides))
    return [*zip(made, (after - first for first, after in zip(*marks, strict=True)), strict=True)]


def _wait(barrier: threading.Barrier) -> None:
    barrier.wait(_TOGETHER_S)


async def poured(target: str, load: Load, progress: Callable[[int], None]) -> Result:
    """All items of the load."""
    return await _run(target, load, None, progress)


async def _run(target: str, load: Load, seconds: float | None, progress: Callable[[int], None]) -> Result:
    planned = plans(target, load.checked(), epoch_now(), seconds=seconds)
    return await asyncio.to_thread(run_fleet, planned, on_begin=lambda: None, on_end=lambda: None, progress=progress)


def configured(base: Path | None, directory: Path, tables: Mapping[str, Mapping[str, int | str]]) -> Path:
    """A configuration with these tables added to the base; texts are TOML. Raises UsageError."""
    text = base.read_text() if base is not None else ""
    lines = [text]
    for table, settings in tables.items():
        if f"[{table}]" in text:
            raise UsageError(f"{base}: [{table}] is for this measurement to set")
        lines += [f"[{table}]", *(f"{key} = {value}" for key, value in settings.items())]
    made = directory / "metad.toml"
    made.write_text("\n".join([*lines, ""]))
    return made
