"""``metad-perf hold``: fill the server with sessions, then measure the cost of holding them.

How much memory (resident set of the server, sampled throughout) and disk; how long from a restart to serving, after a
drain and after a kill -9; and what things cost at N sessions by what they cost at a million, in the same run: server
CPU of a written item and of a session that expires (uniformly random over all), milliseconds of a page of a list.
Before each measurement the server is left alone until its background work is done, so that the fill's compaction is not
charged to the writes; the compaction caused by the writes is.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from metad_client import Client, Options
from metad_wire.messages import SessionDisconnectItem, SessionKey
from metad_wire.program.running import run_async

from .commands import Hold
from .errors import ServerError, UsageError
from .experiment.nodes import quiet, sampled
from .load.draw import Names
from .load.measure import MIB, Load, account_of, ask_account, epoch_now, measure
from .load.prepare import check, take_sessions
from .load.workload import BROKER, TENANT, session_names
from .report import output
from .report.conclusion import conclude, reported
from .spawn import Server, temporary_server
from .target import open_client

Answer = TypeVar("Answer")

SMALL: Final = 1_000_000
"""The number of sessions to compare costs with."""
VERBS: Final = ("session.update", "session.takeover")
EXPIRE: Final = "session.expire"
_BATCH: Final = 1_000
_QUIET_WAIT_S: Final = 180.0
_QUIET_WAIT_S_EACH: Final = 30e-6
"""Beside, for each session: there is as much to compact."""
_EXPIRING: Final = 20_000
_EXPIRY_S: Final = 5
_EXPIRED_WAIT_S: Final = 120.0
_LOOK_S: Final = 1.0
"""A status counts what is overdue, which costs milliseconds."""
_LISTS: Final = 20
_PREFIX_OPEN: Final = 3
"""Digits that a listed prefix leaves open: a page of a thousand."""


def run(options: Hold) -> int:
    """Returns the exit code: 1 if a write failed or a session was missing after a restart. Raises UsageError."""
    if options.sessions < _BATCH or options.updates < 1:
        raise UsageError(f"--sessions must be at least {_BATCH:,} and --updates at least 1")
    with temporary_server(config=options.server_config, shape=options.shape) as server:
        held = reported(options, _hold(server, options.sessions, options.updates, options.value_bytes))
    code = conclude("hold", held, options, "errors")
    for title, key in (("server CPU µs per item", "server_cpu_us_per_item"), ("ms to list", "list_ms")):
        rows = [[int(size), *costs.values()] for size, costs in held[key].items()]
        output.table(title, ["sessions", *held[key][str(options.sessions)]], rows)
    return code


def _hold(server: Server, sessions: int, updates: int, value_bytes: int) -> dict[str, Any]:
    server.start()
    small, names = session_names(min(SMALL, sessions)), session_names(sessions)
    epoch = epoch_now()
    with sampled([server]) as rss:
        _take(server, small, epoch, value_bytes)
        at_small = _costs(server, small, epoch, updates, value_bytes)
        fill_s = _take(server, names, epoch, value_bytes)
        filled_mib = server.rss_bytes() / MIB
        at_size = _costs(server, names, epoch, updates, value_bytes)
        written_mib = server.rss_bytes() / MIB
        files = [path for path in server.data_directory().rglob("*") if path.is_file()]
        disk_mib = sum(path.stat().st_size for path in files) / MIB
        stop_s = server.stop()
        restart_s = server.start()
        errors = at_small["errors"] + at_size["errors"] + _missing(server, names)
        restarted_mib = server.rss_bytes() / MIB
        # A kill after writes leaves a log to replay; a drained server leaves none.
        killed = measure(server.target, _load(VERBS[1], sessions, min(updates, 100_000), value_bytes), epoch)
        server.kill()
        restart_killed_s = server.start()
        errors += killed["errors"] + _missing(server, names)
        peak_mib = max(rss.max_mib_each)
    status = account_of(server.target)
    server.stop()
    sizes = {str(len(small)): at_small, str(sessions): at_size}
    ratios = {
        key: {name: output.ratio(cost, at_small[key][name]) for name, cost in at_size[key].items()}
        for key in ("cpu_us", "list_ms")
    }
    return {
        "sessions": sessions,
        "rss_mib": written_mib,
        "rss_max_mib": max(peak_mib, filled_mib, written_mib),  # samples may miss the peak
        "disk_mib": disk_mib,
        "restart_s": restart_s,
        "write_cost_ratio": max(ratios["cpu_us"][verb] for verb in VERBS),
        "fill_items_per_s": sessions / fill_s,
        "rss_filled_mib": filled_mib,
        "rss_restarted_mib": restarted_mib,
        "restart_killed_s": restart_killed_s,
        "drain_s": stop_s,
        "errors": errors,
        "fsync": status.fsync,
        "replicas": status.replicas,
        "groups": status.groups,
        "cost_ratio_by_name": ratios["cpu_us"],
        "list_ratio_by_name": ratios["list_ms"],
        "server_cpu_us_per_item": {size: found["cpu_us"] for size, found in sizes.items()},
        "list_ms": {size: found["list_ms"] for size, found in sizes.items()},
        "expired_s": {size: found["expired_s"] for size, found in sizes.items()},
    }


def _load(verb: str, sessions: int, items: int, value_bytes: int) -> Load:
    return Load(verb=verb, items=items, keys=sessions, value_bytes=value_bytes, batch=min(_BATCH, items)).checked()


def _take(server: Server, names: Sequence[str], epoch: int, value_bytes: int) -> float:
    """Make the broker the owner of these sessions, new ones where there are none. Returns the seconds it took."""
    begin = time.monotonic()
    with output.progress(f"take {len(names):,} sessions", len(names)) as progress:
        _asked(server, lambda client: take_sessions(client, epoch, names, value_bytes, progress))
    return time.monotonic() - begin


def _costs(server: Server, names: Names, epoch: int, updates: int, value_bytes: int) -> dict[str, Any]:
    """Server CPU in µs of each item, milliseconds of each way to list, the seconds in which sessions expired, and the
    number of failed items."""
    cpu_us: dict[str, float] = {}
    errors = 0
    for verb in VERBS:
        _wait_until_quiet(server, len(names))
        measured = measure(server.target, _load(verb, len(names), updates, value_bytes), epoch)
        cpu_us[verb] = measured["server_cpu_us_per_item"]
        errors += measured["errors"]
    lists_ms = _asked(server, lambda client: _lists_ms(client, names))
    expiring = _spread(names, _EXPIRING)
    _take(server, expiring, epoch, value_bytes)
    _wait_until_quiet(server, len(names))
    before_s = server.cpu_s()
    expired_s = _asked(server, lambda client: _expire(client, expiring, epoch, server.target))
    cpu_us[EXPIRE] = (server.cpu_s() - before_s) * 1e6 / len(expiring)
    _take(server, expiring, epoch, value_bytes)
    return {"cpu_us": cpu_us, "list_ms": lists_ms, "expired_s": expired_s, "errors": errors}


def _wait_until_quiet(server: Server, sessions: int) -> None:
    """Wait until the server uses next to no CPU. Raises ServerError if it does not come to rest."""
    wait_s = _QUIET_WAIT_S + sessions * _QUIET_WAIT_S_EACH
    if not run_async(quiet([server], wait_s)):
        raise ServerError(f"the server was still busy by itself after {wait_s:g} s")


def _spread(names: Names, count: int) -> list[str]:
    """Names from all over; all of them if there are no more."""
    return names[:: max(1, len(names) // count)][:count]


async def _lists_ms(client: Client, names: Names) -> dict[str, float]:
    """Medians of the first page of all sessions, and of the page of a prefix."""
    took: dict[str, list[float]] = {"page": [], "prefix": []}
    for name in _spread(names, _LISTS):
        begin = time.monotonic()
        await anext(client.sessions.list(TENANT))
        paged = time.monotonic()
        prefix = name[:-_PREFIX_OPEN]
        listed = [session.client_id async for session in client.sessions.list(TENANT, prefix)]
        took["page"].append(paged - begin)
        took["prefix"].append(time.monotonic() - paged)
        if name not in listed:
            raise ServerError(f"{name} is not among the {len(listed):,} sessions that begin with {prefix}")
    return {way: statistics.median(seconds) * 1000 for way, seconds in took.items()}


async def _expire(client: Client, names: Sequence[str], epoch: int, target: str) -> float:
    """Disconnect these sessions and wait until their time has come and all have ended. Returns the seconds that took,
    from when the last was due."""
    before = (await ask_account(target)).sessions_ended
    for begin in range(0, len(names), _BATCH):
        items = [SessionDisconnectItem(TENANT, name, _EXPIRY_S) for name in names[begin : begin + _BATCH]]
        check(await client.sessions.disconnect_many(BROKER, epoch, items), "sessions")
    due = time.monotonic() + _EXPIRY_S
    while (await ask_account(target)).sessions_ended - before < len(names):
        if time.monotonic() > due + _EXPIRED_WAIT_S:
            raise ServerError(f"sessions were still there {_EXPIRED_WAIT_S:g} s after their time")
        await asyncio.sleep(_LOOK_S)
    return time.monotonic() - due


def _missing(server: Server, names: Names) -> int:
    """The number of missing sessions among a thousand, spread over all."""
    keys = [SessionKey(TENANT, name) for name in _spread(names, _BATCH)]

    async def read(client: Client) -> int:
        found = await client.sessions.get_many(keys)
        found.raise_for_error()
        return sum(session is None for session in found)

    return _asked(server, read)


def _asked(server: Server, question: Callable[[Client], Awaitable[Answer]]) -> Answer:
    """The answer to a client of its own."""

    async def ask() -> Answer:
        async with open_client(server.target, Options(deadline_s=60.0)) as client:
            return await question(client)

    return run_async(ask())
