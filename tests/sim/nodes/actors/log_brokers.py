"""Brokers with logs, whose partitions metad assigns: they append, follow, are killed, lose part of a disk, own tasks,
and elect masters by position; and a director who moves partitions between them. The rules: one leader per leader epoch,
no acknowledged record is lost, one owner serves a task at a time, and in the end somebody leads who can.

The network between brokers is a call with a delay. A broker's disk outlives its lives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from metad_client import Client, LifeState, MetadError, Owner
from metad_client.assignment.serving import Following, Held, Key, Led, Serving
from metad_judge.invariants import Violation
from metad_wire.tables.assignment import DELETING, RELEASING, Partition

from ..cluster import Cluster, SimClient
from .actor import Actor

TENANT: Final = "logs"
LOG, TASK, MIRROR = "log", "task", "mirror"
_PARTITIONS: Final = 2
_LAG_S: Final = 0.6
_COPIES: Final = 2
Record = tuple[int, int]
"""Its leader_epoch, and a number that no other has."""


class LogJudge:
    """What the brokers were told and have acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.running: dict[str, LogBroker] = {}
        """The brokers, by name."""
        self.acknowledged: dict[Key, list[Record]] = {}
        self.lost_disks = self.served = self.led = self.moves = self.reported = self.handed = 0
        self._leaders: dict[tuple[Key, int], Owner] = {}
        self._numbers = 0

    @property
    def count(self) -> int:
        """Records that were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def _broken(self, why: str) -> None:
        self._cluster.fail(Violation("assignment", why))

    def number(self) -> int:
        """A new one."""
        self._numbers += 1
        return self._numbers

    def leads(self, led: Led) -> None:
        """A broker was told that it leads."""
        self.led += 1
        known = self._leaders.setdefault((led.key, led.leader_epoch), led.me)
        if known != led.me:
            self._cluster.fail(
                Violation("assignment", f"{known} and {led.me} lead {led.key} in epoch {led.leader_epoch}")
            )

    def has_acknowledged(self, key: Key, log: Sequence[Record]) -> None:
        """These records are acknowledged, in this order."""
        known = self.acknowledged.setdefault(key, [])
        common = min(len(known), len(log))
        if known[:common] != [*log[:common]]:
            self._cluster.fail(
                Violation("assignment", f"two histories of {key} are acknowledged: {known[-3:]}, {log[-3:]}")
            )
        known += log[common:]

    def serves(self, led: Led) -> None:
        """An owner serves its task at this moment."""
        self.served += 1
        for broker in self.running.values():
            other = None if broker.serving is None or not broker.up else broker.serving.led.get(led.key)
            if other is not None and other is not led and other.serves:
                self._cluster.fail(
                    Violation("assignment", f"{led!r} and {other!r} serve at once: {led.me}, {other.me}")
                )


class LogBroker(Actor):
    """One broker."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: LogJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge
        judge.running[name] = self
        self.disk: dict[Key, list[Record]] = {}
        self.serving: Serving | None = None
        self.up = False
        self._life = 0  # the last one, whose log the disk has
        self._clean = True
        self._process: Any = None
        self._work: list[asyncio.Task[None]] = []
        self.mirrors: dict[Key, dict[Owner, int]] = {}
        """By partition, how far the followers of this master are."""
        self.handing: dict[Key, Led] = {}
        """What this master hands over: it only lets others fetch."""
        self.promised: dict[Key, int] = {}
        """Leader epochs below which nothing is taken any more."""

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        clean = self._life if self._clean else 0
        lease_s = self._rng.choice([0.6, 1.2, 2.0])
        outcome, life = await self.ask(
            "register",
            client.brokers.register(
                self.name, lease_s=lease_s, clean_epoch=clean, wait_s=2.0, attributes={"has": "logs"}
            ),
        )
        if outcome != "done":
            await self.pause(0.1, 0.4)
            return
        self._life, self._process, self._clean = life.epoch, sim.process, True
        with suppress(MetadError):
            for kind, election in ((LOG, "isr"), (TASK, "owner"), (MIRROR, "position")):
                await client.assignments.create(
                    TENANT,
                    "all",
                    kind,
                    partitions=_PARTITIONS,
                    replication=1 if kind == TASK else 3,
                    min_isr=2 if kind == LOG else 1,
                    election=election,  # type: ignore[arg-type]
                    copies=_COPIES if kind == MIRROR else 1,
                    repair_after_ms=0,
                    labels={"has": "logs"},
                )
        serving = client.serve(
            on_lead=self._lead, on_follow=self._follow, on_release=self._release, on_elect=self._elect
        )
        with suppress(MetadError):  # it may be fenced before it serves
            try:
                async with serving:
                    self.serving, self.up = serving, True
                    begun_s, lasts_s = self.now_s, self._rng.choice([1.0, 3.0, 8.0])
                    while life.state is not LifeState.LOST and (self.quiet or self.now_s < begun_s + lasts_s):
                        await asyncio.sleep(0.05)
                        serving.propose()
            finally:
                self.up = False
            await life.end()

    def _kill_later(self, sim: SimClient, over: asyncio.Future[None], seconds: float) -> None:
        """Killed brokers keep their disks. One of them all loses the end of its logs, once."""
        super()._kill_later(sim, over, seconds)

        def forget() -> None:
            if over.done() and not sim.process.alive:
                self.up = False
                if not self._judge.lost_disks and self.disk and self.chance(0.3):
                    self._judge.lost_disks += 1
                    self._clean = False
                    self.trace("loses the end of its logs")
                    for log in self.disk.values():
                        del log[self._rng.randint(0, len(log)) :]

        self._cluster.loop.call_later(seconds + 0.001, forget, context=self._cluster.loop.outside)

    # --- what metad says ---

    def _spawn(self, held: Held, work: Any) -> None:
        self._work = [task for task in self._work if not task.done()]
        self._work.append(asyncio.create_task(work))

    async def _lead(self, led: Led) -> None:
        self.trace(f"leads {led!r} in {led.leader_epoch}")
        self._judge.leads(led)
        kind = led.record.kind
        if kind == TASK:
            self._spawn(led, self._own(led))
        else:
            log = self.disk.setdefault(led.key, [])
            if kind == LOG:
                led.begin(len(log), lag_s=_LAG_S)
            self._spawn(led, self._append(led, log, {}))

    async def _follow(self, followed: Following) -> None:
        self.trace(f"follows {followed!r} of {followed.leader} in {followed.leader_epoch}")
        if followed.leader is not None and followed.record.kind != TASK:
            self._spawn(followed, self._fetch(followed, self.disk.setdefault(followed.key, [])))

    async def _release(self, held: Held) -> None:
        self.trace(f"releases {held!r}")
        if held.record.state == DELETING:
            self.disk.pop(held.key, None)
        if isinstance(held, Led) and held.record.state == RELEASING and held.record.kind == MIRROR:
            await self._hand_over(held)
        await self.pause(0.0, 0.05)

    async def _hand_over(self, led: Led) -> None:
        """Let the next master fetch what is left."""
        self.handing[led.key], log = led, self.disk[led.key]
        try:
            for _ in range(20):
                await self.pause(0.02, 0.1)
                for member in self._have_everything(led, log):
                    if member.broker == led.record.target:
                        self._judge.handed += 1
                        with suppress(MetadError):
                            await led.hand_over(member)
                        return
        finally:
            del self.handing[led.key]

    def _have_everything(self, led: Led, log: Sequence[Record]) -> list[Owner]:
        return [member for member, position in self.mirrors.get(led.key, {}).items() if position >= len(log)]

    async def _elect(self, followed: Following) -> tuple[int, int]:
        self._judge.reported += 1
        self.promised[followed.key] = followed.leader_epoch
        log = self.disk.setdefault(followed.key, [])
        await self.pause(0.0, 0.05)
        return (log[-1][0] if log else 0), len(log)

    # --- what it does ---

    async def _own(self, led: Led) -> None:
        while not led.over:
            if led.serves:
                self._judge.serves(led)
            await self.pause(0.01, 0.1)

    async def _append(self, led: Led, log: list[Record], reached: dict[Owner, int]) -> None:
        """Append, and acknowledge what may be. It does not ask whether its life is over."""
        led_by = self.mirrors.setdefault(led.key, reached) if led.record.kind == MIRROR else reached
        led_by.clear()
        while not led.over:
            if not self.quiet and len(log) < 150:
                log.append((led.leader_epoch, self._judge.number()))
            self._acknowledge(led, log)
            await self.pause(0.02, 0.1)
            self._acknowledge(led, log)
            if led.record.kind == MIRROR and led.record.move is not None:
                await self._end_move(led, log)

    async def _end_move(self, led: Led, log: list[Record]) -> None:
        """A master says who has everything, and so that a move may end."""
        record, serving = led.record, self.serving
        if record.move is None or serving is None:
            return
        to = record.move.original if record.move.cancelling else record.move.wanted
        members = [led.me, *self._have_everything(led, log)]
        if {member.broker for member in members} >= {*to}:
            with suppress(MetadError):
                await serving.assignments.in_sync(
                    *led.key,
                    led.me,
                    leader_epoch=led.leader_epoch,
                    partition_epoch=record.partition_epoch,
                    isr=[member for member in members if member.broker in record.replicas],
                )

    def _acknowledge(self, led: Led, log: list[Record]) -> None:
        if led.over:
            return
        if led.record.kind == LOG:
            reached = led.appended(len(log))
        else:
            who, move = self.mirrors.get(led.key, {}), led.record.move
            to = led.record.replicas if move is None else move.original if move.cancelling else move.wanted
            followers = sorted((position for one, position in who.items() if one.broker in to), reverse=True)
            reached = followers[_COPIES - 2] if len(followers) >= _COPIES - 1 else 0
        self._judge.has_acknowledged(led.key, log[:reached])

    async def _fetch(self, followed: Following, log: list[Record]) -> None:
        """Take what the leader has, and say how far that is."""
        leader = followed.leader
        assert leader is not None
        while not followed.over:
            await self.pause(0.01, 0.06)
            source = self._judge.running[leader.broker]
            found = source.fetched(self, leader, followed, log)
            await self.pause(0.0, 0.03)
            if found is None or followed.over or self.promised.get(followed.key, 0) > followed.leader_epoch:
                continue
            position, records = found
            del log[position:]
            log += records

    def fetched(
        self, follower: LogBroker, leader: Owner, followed: Following, log: Sequence[Record]
    ) -> tuple[int, list[Record]] | None:
        """A follower asks: where its log agrees with this one, and what follows; None if this does not lead."""
        if not self.up or self.serving is None or self._process is None or not self._process.alive:
            return None
        led = self.serving.led.get(followed.key) or self.handing.get(followed.key)
        if led is None or led.me != leader or led.leader_epoch != followed.leader_epoch:
            return None
        mine = self.disk[followed.key]
        position = 0
        while position < min(len(log), len(mine)) and log[position] == mine[position]:
            position += 1
        if led.record.kind == LOG:
            if led.in_sync is None:
                return None
            with suppress(MetadError):
                led.fetched(followed.me, followed.leader_epoch, position)
        elif follower.promised.get(followed.key, 0) <= followed.leader_epoch:
            who = self.mirrors.setdefault(followed.key, {})
            for former in [one for one in who if one.broker == follower.name]:
                del who[former]
            who[followed.me] = position
        self._acknowledge(led, mine)
        return position, mine[position : position + 3]


class Director(Actor):
    """Moves partitions, chooses leaders, and makes plans."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: LogJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        brokers = [*self._judge.running]
        while not self.quiet:
            await self.pause(0.1, 0.5)
            kind, number = self._rng.choice((LOG, TASK, MIRROR)), self._rng.randrange(_PARTITIONS)
            what = self._rng.choice(["move", "move", "cancel", "elect", "alter", "plan", "end", "fence"])
            wanted = self._rng.sample(brokers, 1 if kind == TASK else 3)
            work: Any
            match what:
                case "move":
                    work = client.assignments.move(TENANT, "all", kind, number, wanted)
                case "cancel":
                    work = client.assignments.move(TENANT, "all", kind, number, [])
                case "elect":
                    work = client.assignments.elect(TENANT, "all", kind, number, broker=self._rng.choice(["", *wanted]))
                case "alter":
                    work = client.assignments.alter(TENANT, "all", LOG, min_isr=self._rng.choice([2, 2, 3]))
                case "fence":
                    work = client.brokers.fence(self._rng.choice(brokers))
                case "plan":
                    work = client.plans.create(self.unique(), "drain", [self._rng.choice(brokers)])
                case _:
                    work = self._end_plans(client)
            outcome, _ = await self.ask(f"{what} {kind}/{number}", work)
            self._judge.moves += outcome == "done"

    async def _end_plans(self, client: Client) -> None:
        async for plan in client.plans.list():
            with suppress(MetadError):
                await client.plans.cancel(plan.plan)
                await client.plans.delete(plan.plan)


class LastReader(Actor):
    """Judges in the end."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: LogJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge

    def begin(self) -> None:
        """It does nothing before."""

    def settle(self) -> None:
        """See Actor."""
        sim = self.client()
        self._cluster.do(sim, sim.open())
        until = self.now_s + 20.0
        while True:
            found: list[Partition] = []
            self._cluster.do(sim, self._read(sim, found))
            wrong = [why for one in found if (why := self._wrong(one))]
            if not wrong:
                return
            if self.now_s > until:
                raise Violation("assignment", wrong[0])
            self._cluster.run(1.0)

    async def _read(self, sim: SimClient, found: list[Partition]) -> None:
        assert sim.client is not None
        found += [row.record async for row in sim.client.assignments.partitions.list(TENANT)]

    def _wrong(self, p: Partition) -> str:
        """What is not as it should be once nothing happens any more."""
        key = (p.tenant, p.resource, p.kind, p.partition)
        alive = {
            name: one.serving.life.owner
            for name, one in self._judge.running.items()
            if one.up and one.serving is not None and one.serving.life.state is LifeState.SERVING
        }
        acknowledged = self._judge.acknowledged.get(key, [])
        if p.leader is None:
            able = [member for member in p.isr if alive.get(member.broker) == member]
            able += [member for member in p.elr if p.kind == LOG and member.broker in alive]
            if p.kind == TASK and alive:
                return f"nobody owns {key}, and {sorted(alive)} live: {p}"
            return f"nobody leads {key}, though {able} could: {p}" if able else ""
        if alive.get(p.leader.broker) != p.leader:
            return f"{key} is led by {p.leader}, which does not live: {p}"
        broker = self._judge.running[p.leader.broker]
        assert broker.serving is not None
        if key not in broker.serving.led:
            return f"{p.leader} does not know that it leads {key}: {p}"
        if broker.disk.get(key, [])[: len(acknowledged)] != acknowledged:
            return f"acknowledged records of {key} are lost at {p.leader}: {len(acknowledged)}, {p}"
        return ""
