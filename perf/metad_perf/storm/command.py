"""The command: stores a population on three nodes, cuts every client off, and follows each until it is back.

What its processes say becomes the result of the storm here, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from metad.config import load_config
from metad_client import Client, Options
from metad_judge.sessions import Verdict
from metad_wire.messages import Owner, StatusReply
from metad_wire.program.running import run_async
from metad_wire.tables.broker import LIVE

from .. import commands
from ..core_speed import CoreSpeed
from ..errors import ServerError, UsageError
from ..experiment.actor import Actor
from ..experiment.nodes import running
from ..faults.members import Member
from ..report import output
from ..report.story import Story
from ..spawn import disk_directory
from ..target import open_client, target_of
from . import accounts, trace
from .background import Begin, End, Work, open_background
from .broker import REFUSED
from .cluster import Cluster
from .crew import open_crew
from .orders import Counts, Finish, Forget, Go, Leave, Look, Prepare, Register, Result, Store, Verify
from .plan import RETURN_SLOT, Storm, broker_name, places
from .population import Clients, Ints, read
from .trace import Series
from .wave import STEP_S

KEYS: Final = (
    "sessions",
    "restored",
    "t50_s",
    "t99_s",
    "t999_s",
    "attempts_per_session",
    "rejected",
    "elections",
    "brokers_fenced",
    "sessions_expired_wrongly",
    "wills_fired_wrongly",
    "goodput_before",
    "goodput_after",
    "rss_max_mib",
    "lost",
)
"""Those that a report always has, and begins with."""
PERCENTILES: Final = (10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0)


def restored_by_s(waited_ns: Ints, percent: float) -> float | None:
    """The time by which that share of all clients was back, each counted from when it lost its connection. None if
    fewer are. ``waited_ns``: -1 for a client that is not back."""
    back = np.sort(waited_ns[waited_ns >= 0])
    wanted = int(np.ceil(len(waited_ns) * percent / 100 - 1e-9))
    if not wanted or wanted > len(back):
        return None
    return float(back[wanted - 1] / 1e9)


def combined(results: Sequence[Result]) -> Series:
    """The series of all processes."""
    return reduce(Series.plus, (one.series for one in results))


def summary(results: Sequence[Result], at_end: Verdict) -> dict[str, Any]:
    """What all processes together say."""
    waited_ns = np.concatenate([one.waited_ns for one in results])
    expected = len(waited_ns)
    restored = int((waited_ns >= 0).sum())
    again = sum(sum(one.repeated.values()) for one in results)
    attempts = sum(one.attempts for one in results)
    returned = Verdict.summed(one.verdict for one in results)
    failed: Counter[str] = Counter()
    retried: Counter[str] = Counter()
    for one in results:
        failed.update(one.failed)
        retried.update(one.retried)
    return {
        "returning": expected,
        "restored": restored,
        **{_name(percent): restored_by_s(waited_ns, percent) for percent in (50.0, 99.0, 99.9)},
        "percentiles_s": {f"{percent:g}": restored_by_s(waited_ns, percent) for percent in PERCENTILES},
        "attempts_per_session": (attempts + again) / expected if expected else 0.0,
        "device_attempts": attempts,
        "sdk_attempts_again": again,
        "rejected": sum(one.refused + one.repeated.get(REFUSED, 0) for one in results),
        "failed": dict(failed),
        "sdk_retries_by_reason": dict(retried),
        "lives_lost": sum(one.lives_lost for one in results),
        "sessions_expired_wrongly": max(at_end.gone, returned.gone),
        "lost": max(at_end.lost, returned.lost),
        "wrong_when_back": returned.counts,
        "wrong_at_the_end": at_end.counts,
        "examples": Verdict.summed([at_end, returned]).examples,
    }


def _name(percent: float) -> str:
    return f"t{f'{percent:g}'.replace('.', '')}_s"


_DEADLINE_S = 60.0
_SLICE = 5_000  # sessions of a process in one order
_LOOK_S = 0.1
_LEAD_S = 0.5  # from the last order to the trigger: every process has heard of it by then
_DOWN_S = 1.0  # from the kill of a node until it is started again
_CALM_S = 1.0  # after the storm, before goodput is measured again
_SETTLE_S = 1.0  # the other work runs so long before it is measured
_EXPIRE_PER_S = 20_000  # sessions that leave before an expiry storm, at least


def planned(options: commands.Storm) -> Storm:
    """The storm that a command line says. Raises UsageError."""
    fields = "sessions brokers processes trigger policy ignore_slots region expiring rolling_s kill_at linger_ms "
    fields += "lease_s background steady_s seed"
    storm = Storm(
        population=read(options.population),
        limit_s=options.seconds_limit,
        sdk_retries=options.policy == RETURN_SLOT if options.sdk_retries == "auto" else options.sdk_retries == "on",
        **{field: getattr(options, field) for field in fields.split()},
    )
    if options.trigger == "leader-kill" and options.endpoint:
        raise UsageError("--trigger leader-kill is not for --endpoint: the command kills only what it has started")
    if options.trigger == "leader-kill" and options.nodes < 3:
        raise UsageError("--nodes must be at least 3: a leader is killed")
    if options.workers != 1:
        raise UsageError("--workers must be 1")
    return storm


def run(options: commands.Storm) -> int:
    """Returns the exit code: 1 if a session is lost, or was not restored in time, or a promise was broken."""
    storm = planned(options)
    if options.trace is not None or options.replay is not None:
        trace.check_parquet()
    with contextlib.ExitStack() as stack:
        if options.replay is not None:
            held = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".npy", dir=disk_directory()))
            begins = trace.read_schedule(options.replay)
            np.save(held.name, begins)
            storm = msgspec.structs.replace(storm, sessions=len(begins), replay=held.name)
        storm = storm.checked()
        if options.trace is not None:
            options.trace.mkdir(parents=True, exist_ok=True)
            storm = msgspec.structs.replace(storm, trace=str(options.trace))
        problems: list[str] = []
        made = output.rounded(run_async(_run(storm, options, problems)))
    made |= {"problems": problems, "ok": not _wrong(made) and not problems}
    output.write_json(options.json, made)
    _show(made)
    if options.report is not None:
        from .page import page  # its pictures take half a second to import

        options.report.write_text(page(made, made_by=[" ".join(["metad-perf", *sys.argv[1:]]), *_dated()]))
        output.say(f"{options.report} shows it in pictures.")
    return 0 if made["ok"] else 1


async def _run(storm: Storm, options: commands.Storm, problems: list[str]) -> dict[str, Any]:
    with Story() as story:
        if options.endpoint:
            how = {"certs": options.certs, "name": options.name, "token_file": options.token_file}
            return await _on(storm, options, target_of(options.endpoint, **how), [], story)
        story.step(f"metad starts: {options.nodes} nodes")
        async with running(options.shape, config=options.server_config, problems=problems) as nodes:
            found = await _on(storm, options, nodes.members.target, nodes.members.all, story)
            queue_ms = load_config(options.server_config, {"data_dir": "unused"}).limits.queue_ms
            return found | {"fsync": nodes.fsync, "queue_ms": queue_ms}


async def _on(
    storm: Storm, options: commands.Storm, target: str, members: Sequence[Member], story: Story
) -> dict[str, Any]:
    async with open_client(target, Options(deadline_s=_DEADLINE_S, client_name="metad-perf storm")) as client:
        cluster = Cluster(client, members)
        watching = asyncio.create_task(cluster.watch())
        try:
            with _actors(target, storm) as (crews, background):
                run = _Run(storm, client, cluster, crews, background, story)
                found = await run.all(clean=bool(options.endpoint))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        statuses = [one for one in (await client.cluster.statuses()).values() if isinstance(one, StatusReply)]
    return found | {
        "nodes": len(statuses),
        "groups": options.groups or len({group.name for one in statuses for group in one.groups}),
        "fsync": all(one.fsync for one in statuses),
        "scheme": options.scheme if members else target.partition("://")[0],
        "own_cluster": bool(members),
    }


@contextlib.contextmanager
def _actors(target: str, storm: Storm) -> Iterator[tuple[list[Actor], Actor]]:
    with contextlib.ExitStack() as stack:

        def actor(*arguments: Any) -> Actor:
            made = Actor(*arguments)
            stack.callback(made.stop)
            return made

        crews = [actor(open_crew, target, storm, process) for process in range(storm.processes)]
        yield crews, actor(open_background, target)


class _Run:
    """One storm."""

    def __init__(
        self,
        storm: Storm,
        client: Client,
        cluster: Cluster,
        crews: Sequence[Actor],
        background: Actor,
        story: Story,
    ) -> None:
        self._storm = storm
        self._client = client
        self._cluster = cluster
        self._crews = crews
        self._background = background
        self._story = story
        everyone = places(storm, Clients(storm.population, storm.seed))
        self._returning = int(everyone.returns.sum())
        self._ending = int(everyone.ends.sum())
        self._stored = np.bincount(everyone.before % storm.processes, minlength=storm.processes).tolist()
        self._mine = np.bincount(everyone.after % storm.processes, minlength=storm.processes).tolist()
        self._last_begin_ns = int(everyone.begin_ns.max())

    async def all(self, *, clean: bool) -> dict[str, Any]:
        """All of it. Returns the report."""
        storm, story = self._storm, self._story
        story.event(f"seed {storm.seed}")
        owners = await self._register()
        story.step(f"{storm.brokers} brokers store their clients", storm.sessions)
        begin_s = time.monotonic()
        await self._sliced(Store, self._stored)
        stored_s = time.monotonic() - begin_s
        story.step("the brokers make ready")
        await asyncio.gather(*(crew.ask(Prepare(owners)) for crew in self._crews))
        moment_s = await self._leave()
        story.step(f"other work alone, {storm.background:,.0f} items/s for {storm.steady_s:g} s")
        await self._background.ask(Begin(storm.background))
        await asyncio.sleep(_SETTLE_S + storm.steady_s)
        if moment_s:
            await asyncio.sleep(max(0.0, moment_s - time.time() - _LEAD_S))
        if storm.trace:
            names = ("sessions", "brokers", "processes", "trigger", "policy", "sdk_retries", "ignore_slots")
            facts = {name: getattr(storm, name) for name in (*names, "limit_s", "seed")}
            trace.describe(Path(storm.trace), {"format": trace.FORMAT, "returning": self._returning, **facts})
        before_s, before, others = time.monotonic(), await self._nodes(), accounts.Others()
        t0_ns = time.monotonic_ns() + round(_LEAD_S * 1e9)
        self._cluster.trigger(t0_ns)
        await asyncio.gather(*(crew.ask(Go(t0_ns)) for crew in self._crews))
        with CoreSpeed() as speed:
            end_ns = await self._follow(t0_ns, others)
        seconds = time.monotonic() - before_s
        others_cores = others.cores(seconds)
        nodes = accounts.since(before, await self._nodes())
        story.step(f"other work again, for {storm.steady_s:g} s")
        await asyncio.sleep(_CALM_S + storm.steady_s)
        fenced = await self._fenced()
        steps = min(round((end_ns - t0_ns) / 1e9 / STEP_S), round(storm.limit_s / STEP_S)) + 1
        results: list[Result] = await asyncio.gather(*(crew.ask(Finish(steps)) for crew in self._crews))
        work: Work = await self._background.ask(End())
        story.step("every session is read back", storm.sessions)
        verdicts: list[Verdict] = await self._sliced(Verify, self._mine)
        wills = 0
        for tenant in storm.population.tenants:
            wills += len([one async for one in self._client.wills.list(tenant)])
        if clean:
            story.step("the sessions are deleted", storm.sessions)
            await self._sliced(Forget, self._mine)
        found = summary(results, Verdict.summed(verdicts))
        calm_ns, steady_ns = end_ns + round(_CALM_S * 1e9), round(storm.steady_s * 1e9)
        parts = {
            "before": (t0_ns - steady_ns, t0_ns),
            "during": (t0_ns, end_ns),
            "after": (calm_ns, calm_ns + steady_ns),
        }
        found |= {
            "sessions": storm.sessions,
            "elections": self._cluster.elections,
            "brokers_fenced": max(fenced, found["lives_lost"]),
            "wills_fired_wrongly": wills,
            "goodput_before": work.goodput(*parts["before"]),
            "goodput_after": work.goodput(*parts["after"]),
            "rss_max_mib": max(self._cluster.rss_max_mib.values(), default=0.0),
        }
        listed = combined(results)
        crews = accounts.of_crews(results)
        return {
            **{key: found.pop(key) for key in KEYS},
            **found,
            "storm_s": (end_ns - t0_ns) / 1e9,
            "stored_s": stored_s,
            "ending": self._ending,
            "harness_cpu_s": sum(one.cpu_s for one in results),
            "harness_cpu_us_per_attempt": 1e6
            * output.ratio(sum(one.cpu_s for one in results), sum(one.attempts for one in results)),
            "data_groups": sum(one.leads for one in before.values()),
            "accounts": {
                "seconds": seconds,
                "others_cores": others_cores,
                "others_running": others.running(),
                "core_us": speed.us,
                "nodes": msgspec.to_builtins(nodes),
                "crews": msgspec.to_builtins(crews),
            },
            "goodput_errors": work.errors,
            "other_ms": {name: work.waits_ms(*part) for name, part in parts.items()},
            "goodput_curve": work.curve(t0_ns, STEP_S, steps),
            "curves": msgspec.to_builtins(listed),
            **self._cluster.told(),
            "settings": msgspec.to_builtins(storm) | {"replay": bool(storm.replay), "trace": bool(storm.trace)},
            "setting": output.machine(),
            "versions": output.versions(),
        }

    # --- the steps ---

    async def _nodes(self) -> dict[str, accounts.NodeAccount]:
        found = await self._client.cluster.statuses()
        return accounts.of_nodes([one for one in found.values() if isinstance(one, StatusReply)])

    async def _register(self) -> dict[int, Owner]:
        self._story.step(f"{self._storm.brokers} brokers register")
        found: list[dict[int, Owner]] = await asyncio.gather(*(crew.ask(Register()) for crew in self._crews))
        return {number: owner for each in found for number, owner in each.items()}

    async def _sliced(self, order: Callable[[int, int], Any], counts: Sequence[int]) -> list[Any]:
        """An order for all positions of each process, a slice at a time. Returns the replies."""
        replies: list[Any] = []

        async def one(crew: Actor, count: int) -> None:
            for begin in range(0, count, _SLICE):
                end = min(count, begin + _SLICE)
                replies.append(await crew.ask(order(begin, end)))
                self._story.add(end - begin)

        async with asyncio.TaskGroup() as tasks:
            for crew, count in zip(self._crews, counts, strict=True):
                tasks.create_task(one(crew, count))
        return replies

    async def _leave(self) -> float:
        """With the trigger ``expiry``, let those sessions be left that are to end; the Unix time at which they do."""
        if not self._ending:
            return 0.0
        storm = self._storm
        moment_s = time.time() + self._ending / _EXPIRE_PER_S + _SETTLE_S + storm.steady_s + 2.0
        self._story.step(f"{self._ending:,} clients leave, and their sessions are to end at one moment")
        await asyncio.gather(*(crew.ask(Leave(moment_s)) for crew in self._crews))
        return moment_s

    async def _follow(self, t0_ns: int, others: accounts.Others) -> int:
        """Wait until all are back or the limit is over, and kill the leader at the peak. Returns the end."""
        storm, story = self._storm, self._story
        story.step(_words(storm), self._returning)
        shown = Counts()
        killing: asyncio.Task[None] | None = None
        while True:
            found: list[Counts] = await asyncio.gather(*(crew.ask(Look()) for crew in self._crews))
            now = reduce(Counts.plus, found)
            others.look()
            story.add(now.restored - shown.restored)
            shown = now
            story.also(f"{now.sent:,} attempts, {now.refused:,} refused, metadata led by {self._cluster.leader or '?'}")
            if storm.trigger == "leader-kill" and killing is None and now.restored >= storm.kill_at * self._returning:
                killing = asyncio.create_task(self._leader_dies())
            if now.done:
                break
            await asyncio.sleep(_LOOK_S)
        end_ns = time.monotonic_ns()
        story.event(f"{shown.restored:,} of {self._returning:,} are back after {(end_ns - t0_ns) / 1e9:.1f} s")
        if storm.trigger == "leader-kill":
            await (killing if killing is not None else self._leader_dies())
        return end_ns

    async def _leader_dies(self) -> None:
        victim = await self._cluster.kill_leader()
        if victim is None:
            raise ServerError("the leader of the metadata is not known, so it cannot be killed")
        self._story.event(f"kill -9 of {victim.name}, the leader of the metadata")
        await asyncio.sleep(_DOWN_S)
        await self._cluster.start(victim)
        self._story.event(f"{victim.name} serves again")

    async def _fenced(self) -> int:
        """Brokers of the storm whose lives metad has ended."""
        names = [broker_name(n) for n in range(self._storm.brokers)]
        found = await self._client.brokers.get_many(names)
        return sum(one is None or one.state not in LIVE for one in found)


def _words(storm: Storm) -> str:
    """What happens now."""
    if storm.replay:
        return "every client loses its connection, and comes back when the schedule says"
    return _WORDS[storm.trigger].format(storm=storm)


_WORDS = {
    "all": "every client loses its connection and comes back at once",
    "rolling": "one broker after the other restarts, within {storm.rolling_s:g} s",
    "region": "every client of the region {storm.region} comes back at once",
    "leader-kill": "every client comes back at once, and the leader dies at the peak",
    "expiry": "half of the sessions end at once, and the other clients come back",
}


_LABELS = {
    "sessions": "sessions",
    "restored": "clients that came back",
    "t50_s": "half of them were back after, s",
    "t99_s": "99 % of them were back after, s",
    "t999_s": "99.9 % of them were back after, s",
    "attempts_per_session": "attempts for each client",
    "rejected": "attempts that were turned away",
    "elections": "elections",
    "brokers_fenced": "brokers that were fenced",
    "sessions_expired_wrongly": "sessions that ended wrongly",
    "wills_fired_wrongly": "wills that were published wrongly",
    "goodput_before": "other work before the storm, items/s",
    "goodput_after": "other work after the storm, items/s",
    "rss_max_mib": "memory of the largest node, MiB",
    "lost": "sessions that were lost",
}


def _wrong(made: dict[str, Any]) -> bool:
    names = ("lost", "sessions_expired_wrongly", "wills_fired_wrongly", "brokers_fenced")
    return any(made[name] for name in names) or made["restored"] < made["returning"]


def _dated() -> list[str]:
    return [f"metad {output.versions().get('metad-service', '')}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}"]


def _show(made: dict[str, Any]) -> None:
    rows = [(_LABELS[key], "never" if made[key] is None else made[key]) for key in KEYS]
    output.table("A reconnect storm", ["what happened", "value"], rows)
    for line in (*made["examples"], *made["problems"]):
        output.say(line)
    killed = any(text.startswith("kill") for _, text in made["marks"])
    through = ", through a kill -9 of the leader of the metadata" if killed else ""
    verdict = "nothing was lost" if not made["lost"] else f"{made['lost']:,} sessions were LOST or are wrong"
    output.say(f"{made['restored']:,} sessions came back in {made['storm_s']:.1f} s{through}: {verdict}.")
    if away := made["returning"] - made["restored"]:
        output.say(f"{away:,} did not come back in time.")
