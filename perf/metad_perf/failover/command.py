"""The command: starts nodes and brokers, kills some of both, waits for what is due, reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from metad_client import Client, Watched
from metad_wire.tables.broker import LIVE, Broker
from metad_wire.watch import ChangeKind

from ..commands import Failover
from ..errors import ServerError
from ..experiment.actor import Actor
from ..experiment.nodes import cpu_s
from ..experiment.stage import Stage, conduct
from ..faults.members import START_S
from ..report import output
from ..report.conclusion import conclude
from .brokers import BATCH, Attach, Look, Publish, Return, Seen, open_brokers
from .foreground import Begin, End, Window, Work, compared, curve, open_foreground
from .ledger import Ledger, Left, Verdict
from .plan import END, FIRE, TENANT, Plan

_DEADLINE_S = 60.0
_DYING_PROCESSES = 2  # of the brokers that are killed
_ATTACH = 2 * BATCH  # clients of each broker in one order
_LOOK_S = 0.1
_DETECT_LOOK_S = 0.02
_STRAY_S = 3.0
"""What comes twice, or too early, comes within this after all is done."""
_CALM_S = 1.0
"""After the killed leader is well again."""
_FIRST = 0.3
"""The leader is killed once so much of what is to end has ended."""


def run(options: Failover) -> int:
    """Returns the exit code: 1 if a promise was broken, or a node or a living broker was not well."""
    made = conduct(options, partial(_play, options), three_because="a leader is killed")
    code = conclude("failover", made, options, "broken")
    verbs = [(verb, *row.values()) for verb, row in made["other_verbs"].items()]
    output.table("other verbs, p99 in ms", ["verb", "before", "during", "ratio", "with the leader's death"], verbs)
    return code


async def _play(options: Failover, stage: Stage) -> dict[str, Any]:
    plan = Plan(
        brokers=options.brokers,
        sessions=options.sessions,
        kill=options.kill,
        expiry_s=options.expiry_s,
        delay_s=options.delay_s,
    ).checked()
    told = {"sessions": plan.each * plan.brokers, "lease_ms": options.lease_s * 1000}
    return await _Failover(options, plan, stage, await stage.client(deadline_s=_DEADLINE_S)).run() | told


class _Failover:
    """One run."""

    def __init__(self, options: Failover, plan: Plan, stage: Stage, client: Client) -> None:
        self._options = options
        self._plan = plan
        self._stage = stage
        self._client = client
        self._story = stage.story
        self._problems = stage.problems
        self._ledger = Ledger(plan)
        self._ended = 0
        self._gaps = 0
        self._claimed_again = 0
        target, how = stage.members.target, (options.lease_s, options.probe)
        count = min(_DYING_PROCESSES, plan.kill)
        parts = [range(n, plan.kill, count) for n in range(count)]
        self._dying = [stage.actor(open_brokers, target, plan, part, *how) for part in parts]
        self._living = stage.actor(open_brokers, target, plan, range(plan.kill, plan.brokers), *how)
        self._foreground = stage.actor(open_foreground, target)

    async def run(self) -> dict[str, Any]:
        """All of it. Returns the report."""
        plan, story = self._plan, self._story
        await self._attach()
        opened = asyncio.Event()
        following = asyncio.create_task(self._follow(opened))
        try:
            await opened.wait()
            await self._living.ask(Publish(self._options.publishers))
            story.step(f"other work alone, for {self._options.seconds:g} s")
            await self._foreground.ask(Begin(self._options.rate))
            await asyncio.sleep(min(2.0, self._options.seconds))  # what is first is slow
            before_ns = time.monotonic_ns()
            await asyncio.sleep(self._options.seconds)
            fences = await self._fence_entries()
            used_s = self._cpu_s()
            killed_ns = time.monotonic_ns()
            for actor in self._dying:
                actor.kill()
            story.step(f"kill -9 of {plan.kill} brokers, which serve {plan.kill * plan.each:,} sessions")
            detected_ms, fenced = await self._detect(killed_ns)
            story.event(f"all are fenced, the last of them {max(detected_ms):,.0f} ms after its death")
            await self._return()
            down = await self._wait()
            end_ns = time.monotonic_ns()
            used_s = {name: now_s - used_s[name] for name, now_s in self._cpu_s().items()}
            work: Work = await self._foreground.ask(End())
            await asyncio.sleep(_STRAY_S)
            await self._look()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        fence_entries = await self._fence_entries()
        story.step("every session is looked at", plan.each * plan.brokers)
        verdict = self._ledger.judge([one async for one in self._left()], {r.broker: r.fenced_ms for r in fenced})
        waiting = [one.client_id async for one in self._client.wills.list(TENANT)]
        if waiting:
            self._problems.append(f"{len(waiting)} wills wait to be published, for example of {waiting[:3]}")
        raised = {name: fence_entries[name] - fences.get(name, 0) for name in fence_entries}
        if max(raised.values()) > plan.kill:
            self._problems.append(f"more than one entry in a group for each broker's death: {raised}")
        first_ns = killed_ns + round(min(detected_ms) * 1e6)
        verbs = compared(work.samples, Window(before_ns, killed_ns), Window(first_ns, end_ns), [down])
        return self._report(verdict, detected_ms, raised, verbs, work) | {
            "seconds": (end_ns - killed_ns) / 1e9,
            "other_verbs_curve": curve(work.samples, Window(killed_ns, end_ns)),
            "leader_killed_s": (down.begin_ns - killed_ns) / 1e9,
            "cpu_s": used_s,
            "leader_restart_s": (down.end_ns - down.begin_ns) / 1e9,
        }

    def _report(
        self,
        verdict: Verdict,
        detected_ms: list[float],
        raised: dict[str, int],
        verbs: dict[str, dict[str, float]],
        work: Work,
    ) -> dict[str, Any]:
        return {
            "detect_ms": max(detected_ms),
            "detect_ms_median": sorted(detected_ms)[len(detected_ms) // 2],
            "writes_per_broker_death": max(raised.values()) / self._plan.kill,
            **{field: getattr(verdict, field) for field in Verdict.__struct_fields__},
            "broken": verdict.broken,
            "wills_claimed_again": self._claimed_again,
            "watch_gaps": self._gaps,
            "other_verbs_p99_ratio": max(row["p99_ratio"] for row in verbs.values()),
            "other_verbs": verbs,
            "other_verbs_failed": {verb: failed for verb, failed in work.failures.items() if failed},
        }

    # --- the steps ---

    async def _attach(self) -> None:
        plan = self._plan
        processes = [*self._dying, self._living]
        self._story.step(f"{plan.brokers} brokers begin, and their clients connect", plan.brokers * plan.each)

        async def attach(actor: Actor) -> None:
            for begin in range(0, plan.each, _ATTACH):
                self._story.add(await actor.ask(Attach(begin, min(plan.each, begin + _ATTACH))))

        async with asyncio.TaskGroup() as tasks:
            for actor in processes:
                tasks.create_task(attach(actor))

    async def _follow(self, opened: asyncio.Event) -> None:
        """Hear of the sessions that end."""
        async with self._client.watch(Watched("session", tenant=TENANT, rows=("owner",)), keys_only=True) as watch:
            await watch.opened()
            opened.set()
            async for batch in watch:
                self._gaps += batch.kind == "gap"
                for event in batch.events:
                    if event.kind in (ChangeKind.EXPIRED, ChangeKind.DELETED):
                        self._ended += 1
                        self._ledger.ended(event.key.client_id, event.time_ms)

    async def _detect(self, killed_ns: int) -> tuple[list[float], list[Broker]]:
        """Wait until the registry says of each killed broker that it is fenced. Returns how long that took."""
        names = [self._plan.broker(n) for n in range(self._plan.kill)]
        took_ms: dict[str, float] = {}
        until = time.monotonic() + self._options.limit_s
        while True:
            found = [one for one in await self._client.brokers.get_many(names) if one is not None]
            for one in found:
                if one.state not in LIVE:
                    took_ms.setdefault(one.broker, (time.monotonic_ns() - killed_ns) / 1e6)
            if len(took_ms) == len(names):
                return list(took_ms.values()), found
            if time.monotonic() > until:
                raise ServerError(f"{len(names) - len(took_ms)} killed brokers are not fenced")
            await asyncio.sleep(_DETECT_LOOK_S)

    async def _return(self) -> None:
        clients = [client for n in range(self._plan.kill) for client in self._plan.returning(n)]
        self._story.event(f"{len(clients):,} of their clients come to other brokers")
        for client, present in zip(clients, await self._living.ask(Return(clients)), strict=True):
            self._ledger.returned(client, present=present)

    async def _wait(self) -> Window:
        """Wait for what is due, and kill a leader in the middle. Returns when that node was not well."""
        plan = self._plan
        ending, wills = plan.count(END), plan.count(FIRE)
        self._story.step(f"{ending:,} sessions end and {wills:,} wills are published", ending + wills)
        until = time.monotonic() + self._options.limit_s
        done = 0
        dying: asyncio.Task[Window] | None = None
        while time.monotonic() < until:
            await self._look()
            now = self._ended + self._ledger.wills
            if now > done or (dying is not None and not dying.done()):
                until = time.monotonic() + self._options.limit_s
            self._story.add(now - done)
            done = now
            if dying is None and self._ended >= _FIRST * ending:
                dying = asyncio.create_task(self._leader_dies())
            if dying is not None and dying.done() and await self._all_done(ending):
                return await dying
            await asyncio.sleep(_LOOK_S)
        self._problems.append(
            f"nothing has come for {self._options.limit_s:g} s: {self._ended:,} of {ending:,} sessions have ended, "
            f"and {self._ledger.wills:,} of {self._ledger.wills_due:,} wills are published"
        )
        return await dying if dying is not None else Window(0, 0)

    async def _all_done(self, ending: int) -> bool:
        if self._ledger.wills < self._ledger.wills_due:
            return False
        if self._ended >= ending:
            return True
        return self._gaps > 0 and await self._swept()  # what a gap has swallowed is not heard of

    async def _swept(self) -> bool:
        async for session in self._client.sessions.list(TENANT):
            place = self._plan.place(session.client_id)
            if place is not None and self._plan.dies(place) and self._plan.kind(place) in END:
                return False
        return True

    async def _leader_dies(self) -> Window:
        """Kill the leader of a data group, and start it again."""
        victim = await self._stage.leader("data-0")
        begin_ns = time.monotonic_ns()
        victim.kill()
        self._story.event(f"kill -9 of {victim.name}, the leader of data-0; {self._ended:,} sessions have ended")
        await asyncio.to_thread(victim.start, START_S)
        await self._stage.health.settle()
        self._story.event(f"{victim.name} is back")
        await asyncio.sleep(_CALM_S)
        return Window(begin_ns, time.monotonic_ns())

    async def _look(self) -> None:
        """What the living brokers have done since the last look."""
        seen: Seen = await self._living.ask(Look())
        for firing in seen.fired:
            self._ledger.fired(firing)
        self._claimed_again += seen.claimed_again
        self._problems += seen.problems
        if seen.lost:
            raise ServerError(
                f"{seen.lost} of the living brokers have lost their lives: the machine is too slow for --lease-s; "
                f"{'; '.join(self._problems[:3])}"
            )

    def _cpu_s(self) -> dict[str, float]:
        """User and system time so far. A node that was killed begins at 0 again."""
        others = {"brokers": self._living.cpu_s(), "other work": self._foreground.cpu_s()}
        return cpu_s(self._stage.members.all) | others

    async def _fence_entries(self) -> dict[str, int]:
        """By group: entries that raise fences, as the replica says that has applied most of them."""
        found: dict[str, int] = {}
        for status in await self._stage.health.settle():
            for group in status.groups:
                if group.kind != "metadata":
                    found[group.name] = max(found.get(group.name, 0), group.fence_entries)
        return found

    async def _left(self) -> AsyncIterator[Left]:
        async for session in self._client.sessions.list(TENANT):
            self._story.add(1)
            yield Left(session.client_id, session.connected, session.broker)
