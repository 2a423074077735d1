"""``metad-perf calibration-grid``: carries the grid out, a file for each run. What is there is not run again.

Loads are takeovers by one client process, so that the work of a leader, and that of its followers, differ in one thing
from run to run: items in a request, requests in flight, whether properties are restored, groups. Storms that are *seen*
are for the fit as well: they have what a load does not, refusals, and brokers that look at what they restore.
*Unseen* ones are never used for a fit; they differ from the seen in size, brokers, groups, policy and trigger.

What it costs to turn a request away is measured by itself. In a storm a node does it beside all else, and a fit over
storms said ten times too much.

Storms of one setting differ by a twentieth. So each is made several times, in rounds over all of them: what changes on
a machine from one quarter of an hour to the next does not fall on one setting.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from metad_client import Client, MetadError, Options, SessionTakeoverItem
from metad_client.errors import DeadlineExceededError, OverloadedError
from metad_wire.messages import Owner, StatusReply
from metad_wire.program.running import run_async

from ..commands import CalibrationGrid
from ..core_speed import CoreSpeed
from ..errors import ServerError, UsageError
from ..load import measure
from ..load.fleet import run_fleet
from ..report import output
from ..spawn import Server, Shape, cpu_s, disk_directory, program, temporary_server
from ..storm import accounts, trace
from ..target import open_client

_DATA = "data={},offset=1"
SESSIONS_MIN: Final = 2_000
SECONDS_MIN: Final = 0.5
_STEADY_S: Final = 8
"""Until a storm begins, so that nodes have written what was stored to their files, as they have in hours of peace."""
_SEEN_RUNS: Final = 2
_UNSEEN_RUNS: Final = 3
"""Odd, so that there is a median."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Takeovers as fast as they are answered."""

    name: str
    batch: int
    in_flight: int
    restore: bool
    groups: int = 1
    seconds: float = 4.0


class StormRun(msgspec.Struct, frozen=True, kw_only=True):
    """A storm of ``metad-perf storm``. ``parts``: subscriptions and waiting messages of each client; None: those of
    the default population."""

    name: str
    seen: bool
    sessions: int
    brokers: int
    groups: int = 3
    policy: str = "return-slot"
    trigger: str = "all"
    parts: tuple[int, int] | None = None
    queue_ms: int = 0
    """``limits.queue_ms`` of the nodes; 0: the default."""
    nodes: int = 3
    linger_ms: float = 20.0
    processes: int = 2
    limit_s: float = 60.0
    seed: int = 1
    number: int = 1
    """Of the run, among those of this setting."""

    @property
    def run(self) -> str:
        """The name of this run."""
        return f"{self.name}-{self.number}"

    def arguments(self) -> list[str]:
        """Of the command, without those that say where to write."""
        given = {
            "nodes": self.nodes,
            "groups": _DATA.format(self.groups),
            "sessions": self.sessions,
            "brokers": self.brokers,
            "processes": self.processes,
            "linger-ms": f"{self.linger_ms:g}",
            "policy": self.policy,
            "trigger": self.trigger,
            "seconds-limit": f"{self.limit_s:g}",
            "lease-s": 30,
            "steady-s": _STEADY_S,
            "seed": self.seed,
        }
        return ["storm", *(word for key, value in given.items() for word in (f"--{key}", str(value)))]


def loads() -> list[Load]:
    """In their order: those of one number of groups share a cluster."""
    found = [
        Load(name=f"load-{batch}-{in_flight}{'-restore' * restore}", batch=batch, in_flight=in_flight, restore=restore)
        for batch in (1, 10, 100, 1_000)
        for in_flight in (1, 8)
        for restore in (False, True)
    ]
    found += [
        Load(name=f"load-{batch}-8{'-restore' * restore}-groups", batch=batch, in_flight=8, restore=restore, groups=3)
        for batch in (100, 1_000)
        for restore in (False, True)
    ]
    return found


def storms() -> list[StormRun]:
    """All runs in their order, a round after the other; the seen first in each."""
    return [
        msgspec.structs.replace(one, number=number)
        for number in range(1, max(_SEEN_RUNS, _UNSEEN_RUNS) + 1)
        for one in _settings()
        if number <= (_SEEN_RUNS if one.seen else _UNSEEN_RUNS)
    ]


def _turned_away(name: str, **given: Any) -> StormRun:
    """One whose nodes turn nearly all clients away at first. Those who then come back together, without jitter, are
    turned away together again: it does not end in time. With jitter they come back in many small calls."""
    return StormRun(name=name, seen=True, brokers=10, queue_ms=250, **given)


def _settings() -> list[StormRun]:
    return [
        StormRun(name="seen-slots", seen=True, sessions=150_000, brokers=8),
        StormRun(name="seen-jitter", seen=True, sessions=150_000, brokers=8, policy="full-jitter", seed=2),
        StormRun(name="seen-groups", seen=True, sessions=200_000, brokers=20, groups=2, seed=3),
        StormRun(name="seen-parts", seen=True, sessions=120_000, brokers=8, parts=(6, 2), seed=4),
        StormRun(name="seen-bare", seen=True, sessions=150_000, brokers=8, parts=(0, 0), seed=5),
        StormRun(name="seen-more", seen=True, sessions=300_000, brokers=12, seed=6),
        StormRun(name="seen-most", seen=True, sessions=500_000, brokers=20, groups=2, seed=7),
        StormRun(name="seen-million", seen=True, sessions=1_000_000, brokers=20, groups=2, seed=8),
        StormRun(name="seen-large", seen=True, sessions=800_000, brokers=16, seed=11),
        StormRun(name="seen-naive", seen=True, sessions=700_000, brokers=10, policy="none", limit_s=4.0, seed=9),
        StormRun(name="seen-refused", seen=True, sessions=400_000, brokers=16, groups=2, queue_ms=1_500, seed=10),
        StormRun(name="seen-one-node", seen=True, sessions=200_000, brokers=8, nodes=1, groups=1, linger_ms=5, seed=12),
        StormRun(name="seen-five-nodes", seen=True, sessions=250_000, brokers=12, nodes=5, linger_ms=5, seed=13),
        StormRun(name="seen-twelve", seen=True, sessions=250_000, brokers=8, groups=12, linger_ms=5, seed=14),
        StormRun(name="seen-linger-2", seen=True, sessions=200_000, brokers=8, linger_ms=2, processes=1, seed=15),
        StormRun(name="seen-many", seen=True, sessions=120_000, brokers=20, nodes=5, groups=12, linger_ms=2, seed=16),
        _turned_away("seen-small", sessions=100_000, policy="full-jitter", nodes=1, groups=1, linger_ms=5, seed=20),
        _turned_away("seen-small-twelve", sessions=300_000, policy="full-jitter", groups=12, linger_ms=5, seed=21),
        _turned_away("seen-at-once", sessions=200_000, policy="none", linger_ms=5, seed=17),
        _turned_away("seen-waves", sessions=400_000, policy="exponential", limit_s=40, seed=18),
        _turned_away("seen-waves-of-one", sessions=300_000, policy="exponential", nodes=1, limit_s=40, seed=19),
        StormRun(name="unseen-slots", seen=False, sessions=450_000, brokers=14, seed=101),
        StormRun(
            name="unseen-jitter", seen=False, sessions=350_000, brokers=24, groups=4, policy="full-jitter", seed=102
        ),
        StormRun(name="unseen-rolling", seen=False, sessions=500_000, brokers=4, trigger="rolling", seed=103),
        StormRun(name="unseen-region", seen=False, sessions=900_000, brokers=15, groups=2, trigger="region", seed=104),
        StormRun(name="unseen-kill", seen=False, sessions=500_000, brokers=9, trigger="leader-kill", seed=105),
        StormRun(
            name="unseen-decorrelated",
            seen=False,
            sessions=650_000,
            brokers=18,
            groups=2,
            policy="decorrelated-jitter",
            seed=106,
        ),
        StormRun(
            name="unseen-too-many", seen=False, sessions=560_000, brokers=12, policy="none", limit_s=4.0, seed=107
        ),
    ]


def scaled(run: Load | StormRun, scale: float) -> Load | StormRun:
    """A smaller run, to try the grid: fewer sessions, or a shorter time."""
    if isinstance(run, Load):
        return msgspec.structs.replace(run, seconds=max(SECONDS_MIN, run.seconds * scale))
    return msgspec.structs.replace(run, sessions=max(SESSIONS_MIN, 100 * run.brokers, round(run.sessions * scale)))


REFUSED: Final = (1, 100)
"""Items of requests that are turned away, a run each: the cost of a request, and that of its items."""
_ROUNDS: Final = 7
_CALLERS: Final = 1_500
_FLOOD_S: Final = 3.0
_QUIET_S: Final = 0.4
"""Without a refusal for so long the leader has noticed that it is alone, and turns nothing away any more."""
_LED_TRIES: Final = 75
FSYNCS: Final = 1_000
_FSYNC_BYTES: Final = 32 * 1024
_QUANTILES: Final = 200
_KEYS: Final = 100_000
_STORM_S_MAX: Final = 900.0
_MANIFEST: Final = "grid.json"


def run(command: CalibrationGrid) -> int:
    """Returns the exit code. Raises UsageError, and ServerError where a run fails."""
    out, scale, only = command.out, command.scale, command.only
    if not 0 < scale <= 1:
        raise UsageError(f"--scale must be over 0 and at most 1, not {scale:g}")
    trace.check_parquet()
    all_loads, all_storms = loads(), storms()
    refused = {f"refused-{items}": items for items in REFUSED}
    names = ["fsync", *refused, *(one.name for one in all_loads), *(one.run for one in all_storms)]
    of_setting: dict[str, list[str]] = {}
    for one in all_storms:
        of_setting.setdefault(one.name, []).append(one.run)
    if unknown := [name for name in only if name not in names and name not in of_setting]:
        raise UsageError(f"no run {unknown[0]}; there are {', '.join([*names, *of_setting])}")
    chosen = {run for name in only for run in of_setting.get(name, [name])}
    out.mkdir(parents=True, exist_ok=True)
    _check_same(out, scale)
    wanted = [name for name in names if (not only or name in chosen) and not (out / f"{name}.json").exists()]
    with _shown(len(names) - len(wanted), len(names)) as step:
        if "fsync" in wanted:
            step("fsync")
            _write(out, "fsync", {"kind": "fsync", "seconds": _fsyncs(round(max(50, FSYNCS * scale)))})
        for name, items in refused.items():
            if name in wanted:
                step(name)
                _run_refused(name, items, out)
        _run_loads([one for one in all_loads if one.name in wanted], out, scale, step)
        for one in all_storms:
            if one.run in wanted:
                step(one.run)
                _run_storm(one, out, scale)
        step("")
    output.say(
        f"{len(names) - sum(not (out / f'{name}.json').exists() for name in names)} of {len(names)} runs in {out}"
    )
    return 0


def _check_same(out: Path, scale: float) -> None:
    """One folder is of one machine, one version and one scale."""
    now = {"scale": scale, "machine": output.machine(), "versions": output.versions()}
    path = out / _MANIFEST
    if path.exists():
        before = msgspec.json.decode(path.read_bytes())
        for key, value in now.items():
            if before.get(key) != value:
                raise UsageError(
                    f"{out} has runs of another {key}: {before.get(key)}, not {value}; take another folder"
                )
        return
    _write(out, path.stem, now | {"begun": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"})


def _write(out: Path, name: str, value: Any) -> None:
    made = out / f"{name}.tmp"
    made.write_bytes(msgspec.json.encode(output.rounded(value)))
    made.replace(out / f"{name}.json")


@contextmanager
def _shown(done: int, total: int) -> Iterator[Any]:
    """Yields a function that is called with the name of the run that begins, and with "" at the end."""
    columns = (TextColumn("calibration grid"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=done)
        begun = False

        def step(name: str) -> None:
            nonlocal begun
            bar.update(task, advance=int(begun), description=name)
            begun = True

        yield step


def _fsyncs(count: int) -> list[float]:
    """Quantiles of the seconds that one append and its fsync take, one after the other."""
    taken: list[float] = []
    with tempfile.NamedTemporaryFile(dir=disk_directory()) as file:
        data = os.urandom(_FSYNC_BYTES)
        for _ in range(count):
            begin_s = time.perf_counter()
            os.write(file.fileno(), data)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begin_s)
    taken.sort()
    return [taken[min(count - 1, int((at + 0.5) / _QUANTILES * count))] for at in range(_QUANTILES)]


# --- requests that are turned away


def _run_refused(name: str, items: int, out: Path) -> None:
    """A leader whose followers are stopped for a moment commits nothing: its queue is full, and for about a second it
    does nothing but turn requests away."""
    speed = CoreSpeed()
    with tempfile.TemporaryDirectory() as directory, speed:
        config = Path(directory, "metad.toml")
        config.write_text("[limits]\nqueue_ms = 1\n")
        shape = Shape(nodes=3, groups=_DATA.format(1)).checked()
        with temporary_server(shape=shape, config=config) as server:
            server.start()
            rounds = run_async(_refused(server, items))
            server.stop()
    if not rounds:
        raise ServerError(f"{name}: the leader turned nothing away")
    _write(out, name, {"kind": "refused", "name": name, "items": items, "core_us": speed.us, "rounds": rounds})


async def _refused(server: Server, items: int) -> list[dict[str, float]]:
    """Of each round: how many requests the leader of the group turned away, and the CPU time that it took for them."""
    options = Options(client_name="metad-perf calibration-grid", repeat_refused=False, deadline_s=_FLOOD_S)
    found: list[dict[str, float]] = []
    async with open_client(server.target, options) as client:
        owner = (await client.brokers.register("broker-1", lease_s=300)).owner
        batch = [SessionTakeoverItem("tenant", f"client-{number}", False) for number in range(items)]
        for _ in range(_ROUNDS):
            for _ in range(_LED_TRIES):  # after the last round the group needs a leader again
                if await _taken(client, owner, batch):
                    break
                await asyncio.sleep(_QUIET_S)
            await _flood(client, owner, batch, 0.5, Counter())  # the leader learns how fast it serves
            leader = (await client.cluster.map()).leaders.get("data-0", "")
            if leader in server.pids:
                found += await _round(client, owner, batch, server.pids, leader)
    return found


async def _round(
    client: Client, owner: Owner, batch: list[SessionTakeoverItem], pids: Mapping[str, int], leader: str
) -> list[dict[str, float]]:
    stopped = [pid for node, pid in pids.items() if node != leader]
    node, told = [pids[leader]], Counter[str]()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        flood = asyncio.ensure_future(_flood(client, owner, batch, _FLOOD_S, told))
        await asyncio.sleep(0.05)  # what was under way has ended
        begun_s, refused = cpu_s(node), told["refused"]
        end_s, count, since_s = begun_s, refused, time.monotonic()
        while time.monotonic() < since_s + _QUIET_S and not flood.done():
            await asyncio.sleep(0.02)
            if told["refused"] > count:
                end_s, count, since_s = cpu_s(node), told["refused"], time.monotonic()
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    await flood
    return [{"refused": count - refused, "cpu_s": end_s - begun_s}] if count - refused >= _CALLERS // 4 else []


async def _flood(
    client: Client, owner: Owner, batch: list[SessionTakeoverItem], seconds: float, told: Counter[str]
) -> None:
    """Many callers, each of which asks again as soon as it has an answer."""
    end_s = time.monotonic() + seconds

    async def ask() -> None:
        while time.monotonic() < end_s:
            told["done" if await _taken(client, owner, batch) else "refused"] += 1

    await asyncio.gather(*(ask() for _ in range(max(100, _CALLERS // len(batch)))))


async def _taken(client: Client, owner: Owner, batch: list[SessionTakeoverItem]) -> bool:
    try:
        await client.sessions.takeover_many(owner.broker, owner.broker_epoch, batch)
    except (OverloadedError, DeadlineExceededError):
        return False
    return True


# --- loads


def _run_loads(chosen: Sequence[Load], out: Path, scale: float, step: Any) -> None:
    for groups in sorted({one.groups for one in chosen}):
        shape = Shape(nodes=3, groups=f"data={groups},offset=1")
        with temporary_server(shape=shape.checked()) as server:
            server.start()
            epoch = measure.epoch_now()
            begun = False
            for one in chosen:
                if one.groups != groups:
                    continue
                step(one.name)
                short = scaled(one, scale)
                assert isinstance(short, Load)
                keys = max(3_000, round(_KEYS * scale))
                load = measure.Load(
                    verb="session.takeover", batch=one.batch, in_flight=one.in_flight, keys=keys, restore=one.restore
                ).checked()
                if not begun:
                    measure.create(server.target, load, epoch)
                    begun = True
                _write(out, one.name, _measured(server.target, load, epoch, short))
            server.stop()


def _measured(target: str, load: measure.Load, epoch: int, one: Load) -> dict[str, Any]:
    seen: list[tuple[float, dict[str, accounts.NodeAccount], accounts.Others]] = []
    speed, stack = CoreSpeed(), ExitStack()

    def look() -> None:
        seen.append((time.monotonic(), run_async(_accounts(target)), accounts.Others()))

    def begin() -> None:
        look()
        stack.enter_context(speed)

    plans = measure.plans(target, load, epoch, seconds=one.seconds)
    others = [0.0]

    def end() -> None:
        stack.close()
        others[0] = seen[0][2].cores(time.monotonic() - seen[0][0])
        look()

    with stack:
        result = run_fleet(plans, on_begin=begin, on_end=end, progress=lambda _: None)
    if result.failed:
        raise ServerError(f"{one.name}: {result.failed:,} items failed: {result.errors}")
    (begin_s, before, _), (end_s, after, _) = seen
    return {
        "kind": "load",
        "name": one.name,
        "run": msgspec.to_builtins(one),
        "seconds": end_s - begin_s,
        "others_cores": others[0],
        "core_us": speed.us,
        "requests": result.requests,
        "items": result.items,
        "items_per_s": result.items_per_s(),
        "p50_ms": result.latencies.percentile_ms(50),
        "client_cpu_s": result.client_cpu_s,
        "nodes": msgspec.to_builtins(accounts.since(before, after)),
    }


async def _accounts(target: str) -> dict[str, accounts.NodeAccount]:
    async with open_client(target, Options(client_name="metad-perf calibration-grid")) as client:
        found = list((await client.cluster.statuses()).values())
    for one in found:
        if isinstance(one, MetadError):
            raise one
    return accounts.of_nodes([one for one in found if isinstance(one, StatusReply)])


# --- storms


def _run_storm(one: StormRun, out: Path, scale: float) -> None:
    """In a process of its own, as an operator would run it."""
    smaller = scaled(one, scale)
    assert isinstance(smaller, StormRun)
    report = out / f"{one.run}.report.json"
    report.unlink(missing_ok=True)
    command = [program("metad-perf"), *smaller.arguments(), "--json", str(report), "--trace", str(out / one.run)]
    with tempfile.TemporaryDirectory() as directory:
        if one.parts is not None:
            population = Path(directory, "population.toml")
            population.write_text(_population(*one.parts))
            command += ["--population", str(population)]
        if one.queue_ms:
            config = Path(directory, "metad.toml")
            config.write_text(f"[limits]\nqueue_ms = {one.queue_ms}\n")
            command += ["--server-config", str(config)]
        try:
            # Exit code 1: not all came back in time, which may be what a run is for. Its report says what happened.
            done = subprocess.run(command, capture_output=True, text=True, timeout=_STORM_S_MAX, check=False)
        except subprocess.TimeoutExpired:
            raise ServerError(f"{one.run}: the storm did not end in {_STORM_S_MAX:g} s") from None
    if not report.exists():
        raise ServerError(f"{one.run}: {(done.stderr or done.stdout).strip()[-500:]}")
    made = msgspec.json.decode(report.read_bytes())
    if made["lost"] or made["problems"]:
        raise ServerError(f"{one.run}: {made['lost']} sessions lost; {made['problems']}")
    _write(out, one.run, {"kind": "storm", "name": one.run, "setting": one.name, "seen": one.seen, "report": made})
    report.unlink()


def _population(subscriptions: int, inflight: int) -> str:
    kinds = (("meter", 0.6, "eu", 30.0), ("car", 0.25, "us", 80.0), ("phone", 0.15, "ap", 150.0))
    return "\n".join(
        f'[[kinds]]\nname = "{name}"\nshare = {share}\nregion = "{region}"\nrtt_ms = {rtt_ms}\n'
        f"subscriptions = {subscriptions}\ninflight = {inflight}\n"
        for name, share, region, rtt_ms in kinds
    )
