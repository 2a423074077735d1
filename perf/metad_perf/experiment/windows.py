"""Windows of load, measured in processes of their own, beside which something else happens or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import UsageError
from ..load.fleet import Result, run_fleet
from ..load.measure import Load, epoch_now, plans


async def window(target: str, load: Load, seconds: float, epoch: int | None = None) -> Result:
    """One window of the load. ``epoch``: of its brokers; None: a new one."""
    return await _run(target, load, seconds, lambda _: None, epoch)


async def poured(target: str, load: Load, progress: Callable[[int], None]) -> Result:
    """All items of the load."""
    return await _run(target, load, None, progress)


async def _run(
    target: str, load: Load, seconds: float | None, progress: Callable[[int], None], epoch: int | None = None
) -> Result:
    load = load.checked()
    planned = plans(target, load, epoch_now() if epoch is None else epoch, seconds=seconds)
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
