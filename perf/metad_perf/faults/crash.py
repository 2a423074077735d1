"""``metad-perf crash``: kill -9 under load, restart, and look for every acknowledged write, exactly once.

A round: all lanes write; at a random moment the server gets SIGKILL, and sometimes another while it recovers; lanes
begin no new writes, but the SDK retries those in flight across the restart; when all are answered, every record is read
through a fresh connection and judged. A SIGKILL ends the process, not the machine: data written and not synced yet is
still in the operating system's cache. So this finds writes that are acknowledged before they are *written*, recovery
that forgets or repeats, and retries that are applied twice; it cannot find a missing fsync, which would need a power
loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from metad_client import Options
from metad_judge.acknowledged import Verdict
from metad_wire.policy import Backoff
from metad_wire.program.running import run_async

from ..commands import Crash
from ..report import output
from ..report.conclusion import conclude, reported
from ..spawn import Server, temporary_server
from ..target import open_client
from .writers import LANES, RECORDS, Lane

_WRITING_S = (0.05, 0.6)  # between two kills
_RECOVERY_KILL_SHARE = 0.25  # share of the rounds that kill the server once more
_RECOVERY_KILL_S = (0.0, 0.5)  # after its restart
_BACKOFF = Backoff(base_s=0.01, cap_s=0.2)
_PATIENT_S = 120.0
_IMPATIENT_S = 0.2  # this client gives up while the server is down, so that outcomes stay unknown


def run(options: Crash) -> int:
    """Returns the exit code: 1 if a write was lost or duplicated."""
    assert options.seed is not None
    with temporary_server(config=options.server_config, shape=options.shape) as server:
        made = reported(options, run_async(_rounds(server, options.rounds, options.writers, options.seed)))
        server.stop()
    code = conclude("crash", made, options, "lost", "duplicated")
    output.say(
        f"{made['acknowledged']:,} writes were acknowledged over {made['kills']} kills; "
        f"{made['lost']} lost, {made['duplicated']} duplicated (seed {options.seed})."
    )
    return code


async def _rounds(server: Server, rounds: int, writers: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    verdict = Verdict()
    kills = _Kills()
    begin = time.monotonic()
    await asyncio.to_thread(server.start)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_client(server.target, _options(at))) for at in range(writers)]
        lanes = [
            kind(f"w{at}-{kind.__name__}", client, random.Random(f"{seed}/{at}/{kind.__name__}"), verdict)
            for at, client in enumerate(clients)
            for kind in LANES
        ]
        with output.progress("crash rounds", rounds) as progress:
            for _ in range(rounds):
                await _write_through_a_kill(server, lanes, rng, kills)
                await _check(server.target, lanes)
                progress(1)
        retries = sum(client.statistics().retries for client in clients)
        status = await clients[-1].status()
    return {
        "acknowledged": verdict.acknowledged,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "unknown": verdict.unknown,
        "refused": verdict.refused,
        "retries": retries,
        "kills": kills.count,
        "kills_in_recovery": kills.in_recovery,
        "records": len(lanes) * RECORDS,
        "restart_ms_max": 1e3 * max(kills.restarts_s),
        "restart_ms_median": 1e3 * statistics.median(kills.restarts_s),
        "seconds": time.monotonic() - begin,
        "fsync": status.fsync,
        "replicas": status.replicas,
        "examples": verdict.examples,
    }


class _Kills:
    def __init__(self) -> None:
        self.count = 0
        self.in_recovery = 0
        self.restarts_s: list[float] = []


def _options(writer: int) -> Options:
    """The first writer is impatient; the others wait through every restart."""
    deadline_s = _IMPATIENT_S if writer == 0 else _PATIENT_S
    return Options(deadline_s=deadline_s, backoff=_BACKOFF, client_name=f"crash-{writer}")


async def _write_through_a_kill(server: Server, lanes: Sequence[Lane], rng: random.Random, kills: _Kills) -> None:
    """Returns when the server serves again and every write in flight has its answer."""
    writing = True
    async with asyncio.TaskGroup() as tasks:
        for lane in lanes:
            tasks.create_task(lane.run(lambda: writing))
        await asyncio.sleep(rng.uniform(*_WRITING_S))
        server.kill()  # blocks the loop, so no write begins or is recorded between the kill and the next line
        writing = False
        kills.count += 1
        if rng.random() < _RECOVERY_KILL_SHARE:
            server.launch()
            await asyncio.sleep(rng.uniform(*_RECOVERY_KILL_S))
            server.kill()
            kills.count += 1
            kills.in_recovery += 1
        kills.restarts_s.append(await asyncio.to_thread(server.start))


async def _check(endpoint: str, lanes: Sequence[Lane]) -> None:
    async with open_client(endpoint, Options(deadline_s=_PATIENT_S)) as reader:
        for lane in lanes:
            await lane.check(reader)
