"""``metad-perf backup``: what a backup costs those who write meanwhile, and whether it has everything.

A backup is taken while clients take sessions over as fast as the nodes let them; windows of the same load before and
behind it say what that costs. Then one session in a hundred is written, and the next backup says how much it copies.
The last one, of which nothing is written any more, is restored into a cluster of another shape, which is backed up in
turn: the two have to be the same, row by row.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from metad_backup.copies import opened
from metad_backup.repository import Manifest, Repository
from metad_backup.taking import Progress, take
from metad_backup.verifying import proven
from metad_wire.program.running import run_async

from .commands import Backup
from .experiment.stage import Stage, staged
from .experiment.windows import window
from .load.measure import Load, epoch_now
from .load.prepare import fill_sessions
from .report import output
from .report.conclusion import conclude, reported
from .spawn import Shape

_LOAD: Final = Load(verb="session.takeover", batch=1_000, in_flight=4)
_MIB: Final = 1024 * 1024
_CHANGED: Final = 100
"""One session in so many is written between two backups."""
_LOOK_S: Final = 0.5


def run(options: Backup) -> int:
    """Returns the exit code: 1 if a row was lost or invented."""
    problems: list[str] = []
    found = run_async(_measured(options, problems))
    report = reported(options, found | {"problems": problems})
    code = conclude("backup", report, options)
    output.say(
        f"{found['bytes'] / _MIB:,.0f} MiB in {found['seconds']:.1f} s; writers had {found['write_ratio']:.3f} of what "
        f"they have without. After 1 % of the sessions, the next took {found['incremental_bytes_ratio']:.3f} of it."
    )
    return code


async def _measured(options: Backup, problems: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="metad-perf-backup-") as made:
        repository = Repository(str(Path(made) / "backups"), create=True)
        found = await staged(options.shape, options.server_config, problems, partial(_taken, options, repository))
        last = found.pop("last")
        other = Shape(nodes=options.restored_nodes, groups=options.restored_groups, scheme=options.scheme)
        copied = await staged(other, options.server_config, problems, partial(_restored, repository, last, Path(made)))
        if not copied["rows_equal"]:
            problems.append(f"restored, {copied['differ']} rows are not the same")
        return found | copied


async def _taken(options: Backup, repository: Repository, stage: Stage) -> dict[str, Any]:
    client = await stage.client("fill")
    epoch = epoch_now()
    with output.progress("sessions", options.sessions) as progress:
        await fill_sessions(client, epoch, options.sessions, options.value_bytes, progress)
    load = replace(_LOAD, keys=options.keys)
    rates: dict[bool, list[float]] = {True: [], False: []}
    rss: dict[bool, dict[str, int]] = {True: {}, False: {}}

    async def loaded(beside: bool) -> None:
        found = await window(stage.members.target, load, options.seconds)
        if found.errors:
            stage.problems.append(f"{load.verb}: {found.errors}")
        rates[beside].append(found.items_per_s())

    async def watched(beside: bool) -> None:
        while True:
            for status in await stage.health.statuses():
                known = rss[beside]
                known[status.node_id] = max(known.get(status.node_id, 0), status.rss_bytes)
            await asyncio.sleep(_LOOK_S)

    async def windows(beside: bool, until: asyncio.Task[Any] | None) -> None:
        looking = asyncio.create_task(watched(beside))
        try:
            for _ in range(options.windows):
                await loaded(beside)
            while until is not None and not until.done():
                await loaded(beside)
        finally:
            looking.cancel()

    await window(stage.members.target, load, options.seconds)  # as warm as the others
    await windows(False, None)
    begun_s = time.monotonic()
    taking = asyncio.create_task(_take(client, options, repository, "backup"))
    await windows(True, taking)
    first, seconds = await taking
    await windows(False, None)
    await stage.health.settle()
    await fill_sessions(client, epoch, options.sessions // _CHANGED, options.value_bytes, lambda _: None)
    second, _ = await _take(client, options, repository, "after 1 %")
    grown = [rss[True][node] - rss[False].get(node, 0) for node in rss[True]]
    return {
        "sessions": options.sessions,
        "bytes": first.bytes,
        "seconds": seconds,
        "elapsed_s": time.monotonic() - begun_s,
        "write_ratio": statistics.median(rates[True]) / statistics.median(rates[False]),
        "writes_per_s": statistics.median(rates[False]),
        "rss_growth_mib": max(grown) / _MIB,
        "incremental_bytes": second.copied_bytes,
        "incremental_bytes_ratio": second.copied_bytes / first.bytes,
        "last": second,
    }


async def _take(client: Any, options: Backup, repository: Repository, about: str) -> tuple[Manifest, float]:
    """A backup, and how long it took."""
    begun_s = time.monotonic()
    with output.progress(about, 1_000) as progress:
        shown = 0

        def tell(at: Progress) -> None:
            nonlocal shown
            now = 1_000 * at.bytes // max(at.of_bytes, 1)
            progress(now - shown)
            shown = now

        manifest = await take(client, repository, bytes_per_s=options.rate_mib * _MIB, tell=tell)
    return manifest, time.monotonic() - begun_s


async def _restored(repository: Repository, manifest: Manifest, scratch: Path, stage: Stage) -> dict[str, Any]:
    client = await stage.client("restore")
    with opened(repository, manifest, scratch=scratch) as copy:
        done, found = await proven(client, copy, Repository(str(scratch / "again"), create=True), scratch=scratch)
    wrong = found.only_first + found.only_second + found.differ
    return {"rows": found.rows, "rows_equal": not wrong, "differ": wrong, "restore_s": done.seconds}
