"""``metad-perf hold``: fill the server with sessions, then measure the cost of holding them.

Three questions: how much memory (resident set of the server, sampled throughout), how long from a restart to serving
(after a drain and after a kill -9), and how much more server CPU a written item takes at N sessions than at 100,000
(uniformly random over all of them, same run, same settings). Before each measurement the server is left alone until its
background work is done, so that the fill's compaction is not charged to the writes; the compaction caused by the writes
is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from metad_client import Options
from metad_wire.messages import SessionKey
from metad_wire.program.running import run_async

from .commands import Hold
from .errors import ServerError, UsageError
from .experiment.nodes import sampled
from .load.measure import MIB, Load, account_of, epoch_now, measure
from .load.prepare import fill_sessions
from .load.workload import TENANT, session_names
from .report import output
from .report.conclusion import conclude, reported
from .spawn import Server, temporary_server
from .target import open_client

SMALL = 100_000  # the number of sessions to compare costs with
VERBS = ("session.update", "session.takeover")
_SAMPLE_S = 0.1
_QUIET_CPU_SHARE = 0.05  # of one core: below this share, background work is done
_QUIET_S = 1.0
_QUIET_WAIT_S_MAX = 180.0


def run(options: Hold) -> int:
    """Returns the exit code: 1 if a write failed or a session was missing after a restart. Raises UsageError."""
    if options.sessions < SMALL // 100 or options.updates < 1:
        raise UsageError(f"--sessions must be at least {SMALL // 100:,} and --updates at least 1")
    with temporary_server(config=options.server_config, shape=options.shape) as server:
        held = reported(options, _hold(server, options.sessions, options.updates, options.value_bytes))
    code = conclude("hold", held, options, "errors")
    costs = held["server_cpu_us_per_item"]
    output.table(
        "server CPU µs per item", ["sessions", *VERBS], [[int(size), *cost.values()] for size, cost in costs.items()]
    )
    return code


def _hold(server: Server, sessions: int, updates: int, value_bytes: int) -> dict[str, Any]:
    server.start()
    small = min(SMALL, sessions)
    epoch = epoch_now()
    costs: dict[str, dict[str, float]] = {}
    with sampled([server]) as rss:
        _fill(server.target, epoch, small, value_bytes)
        costs[str(small)], errors = _costs(server, epoch, small, updates, value_bytes)
        fill_s = _fill(server.target, epoch, sessions, value_bytes)
        filled_mib = server.rss_bytes() / MIB
        at_size, more_errors = _costs(server, epoch, sessions, updates, value_bytes)
        costs[str(sessions)] = at_size
        written_mib = server.rss_bytes() / MIB
        stop_s = server.stop()
        restart_s = server.start()
        errors += more_errors + _missing(server.target, sessions)
        restarted_mib = server.rss_bytes() / MIB
        # A kill after writes leaves a log to replay; a drained server leaves none.
        killed = measure(server.target, _load(VERBS[1], sessions, min(updates, 100_000), value_bytes), epoch)
        server.kill()
        restart_killed_s = server.start()
        errors += killed["errors"] + _missing(server.target, sessions)
        peak_mib = max(rss.max_mib_each)
    status = account_of(server.target)
    server.stop()
    ratios = {verb: output.ratio(at_size[verb], costs[str(small)][verb]) for verb in VERBS}
    return {
        "sessions": sessions,
        "rss_mib": written_mib,
        "rss_max_mib": max(peak_mib, filled_mib, written_mib),  # samples may miss the peak
        "restart_s": restart_s,
        "write_cost_ratio": max(ratios.values()),
        "fill_items_per_s": sessions / fill_s,
        "rss_filled_mib": filled_mib,
        "rss_restarted_mib": restarted_mib,
        "restart_killed_s": restart_killed_s,
        "drain_s": stop_s,
        "errors": errors,
        "fsync": status.fsync,
        "replicas": status.replicas,
        "groups": status.groups,
        "write_cost_ratio_by_verb": ratios,
        "server_cpu_us_per_item": costs,
    }


def _load(verb: str, sessions: int, items: int, value_bytes: int) -> Load:
    return Load(verb=verb, items=items, keys=sessions, value_bytes=value_bytes, batch=min(1_000, items)).checked()


def _fill(endpoint: str, epoch: int, sessions: int, value_bytes: int) -> float:
    """Returns the seconds it took."""

    async def fill(progress: Callable[[int], None]) -> None:
        async with open_client(endpoint, Options(deadline_s=60.0)) as client:
            await fill_sessions(client, epoch, sessions, value_bytes, progress)

    begin = time.monotonic()
    with output.progress(f"fill {sessions:,} sessions", sessions) as progress:
        run_async(fill(progress))
    return time.monotonic() - begin


def _costs(server: Server, epoch: int, sessions: int, updates: int, value_bytes: int) -> tuple[dict[str, float], int]:
    """Server CPU in µs per item of each verb, and the number of failed items."""
    costs: dict[str, float] = {}
    errors = 0
    for verb in VERBS:
        _wait_until_quiet(server)
        measured = measure(server.target, _load(verb, sessions, updates, value_bytes), epoch)
        costs[verb] = measured["server_cpu_us_per_item"]
        errors += measured["errors"]
    return costs, errors


def _wait_until_quiet(server: Server) -> None:
    """Wait until the server uses next to no CPU for a while."""
    until = time.monotonic() + _QUIET_WAIT_S_MAX
    while time.monotonic() < until:
        before = server.cpu_s()
        time.sleep(_QUIET_S)
        if server.cpu_s() - before <= _QUIET_CPU_SHARE * _QUIET_S:
            return
    raise ServerError(f"the server was still busy by itself after {_QUIET_WAIT_S_MAX:g} s")


def _missing(endpoint: str, sessions: int) -> int:
    """The number of missing sessions among a thousand, spread over all."""
    names = session_names(sessions)
    keys = [SessionKey(TENANT, names[i]) for i in range(0, sessions, max(1, sessions // 1_000))]

    async def read() -> int:
        async with open_client(endpoint, Options(deadline_s=60.0)) as client:
            found = await client.sessions.get_many(keys)
            found.raise_for_error()
            return sum(session is None for session in found)

    return run_async(read())
