"""Members of consumer groups: they join, speak, join again, assign, commit, say things twice, fall silent, come back
late, and leave. The rules: no member is sent away for its silence that was said to be one within its time; none that
was sent away is said to be one; and none of a program that is silent stays. What entries do to the groups, and with
which generations offsets are written, :mod:`metad_judge.consumers` looks at."""

from __future__ import annotations

import random
from typing import Final

from metad_client import Beat, Client, GroupState, MemberKey
from metad_judge.consumers import SentAway
from metad_judge.invariants import Violation

from ..cluster import Cluster, SimClient
from .actor import DRIFT, Actor

_TENANT: Final = "consumers"
_REBALANCE_S: Final = 1.0
_GONE_S: Final = 20.0
"""A silent member is gone within this time, if nothing goes wrong meanwhile."""


class MemberJudge:
    """What was said about members, and what became of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lasts_s: dict[MemberKey, float] = {}  # until when each is a member at least, by what was answered
        self._gone: dict[MemberKey, SentAway] = {}
        self.sent_away = self.heard = self.commits = self.fenced = self.assigned = 0
        cluster.written.consumers.sent_away.append(self._away)

    def joined(self, key: MemberKey) -> None:
        """It is a member, even if one of its name was sent away before."""
        self._gone.pop(key, None)

    def answered(self, key: MemberKey, session_s: float, asked_s: float) -> None:
        """A member was said to be one, to a question of this time."""
        gone = self._gone.get(key)
        if gone is not None and gone.moment_s < asked_s:
            raise Violation("consumers", f"{key} was sent away at {gone.moment_s}, and was a member at {asked_s}")
        self.heard += 1
        self._lasts_s[key] = max(self._lasts_s.get(key, 0.0), asked_s + session_s / DRIFT)
        self._check(key)

    def committed(self, key: MemberKey, asked_s: float) -> None:
        """A commit in the name of a member was stored; without a name, of whoever knew the generation."""
        gone = self._gone.get(key)
        if gone is not None and gone.moment_s < asked_s:
            raise Violation("consumers", f"{key} was sent away at {gone.moment_s}, and has committed since {asked_s}")
        self.commits += 1

    def _away(self, gone: SentAway) -> None:
        member, group = gone.member, gone.group
        if member.tenant != _TENANT:
            return
        self.sent_away += 1
        waited_for = group.state == GroupState.JOINING and member.joined <= group.generation
        waited_for |= group.state == GroupState.ASSIGNING and member.member == group.leader
        key = MemberKey(member.tenant, member.group, member.member)
        self._gone[key] = gone
        if not waited_for:  # else it may have kept the others waiting, however much it spoke
            self._check(key)

    def _check(self, key: MemberKey) -> None:
        gone = self._gone.get(key)
        if gone is None or gone.moment_s >= self._lasts_s.get(key, 0.0):
            return
        group, member = gone.group, gone.member
        if group.state == GroupState.STABLE or (group.state == GroupState.JOINING and member.joined > group.generation):
            lasts_s = self._lasts_s[key]
            text = f"{key} was to be a member until {lasts_s} and was sent away at {gone.moment_s}"
            self._cluster.fail(Violation("consumers", text))


class MemberActor(Actor):
    """One program that is a member of one group after the other."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: MemberJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge
        self._joined = 0

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        while not self.quiet:
            await self._belong(client)
            await self.pause(0.01, 0.2)

    async def _join(self, client: Client, group: str, session_s: float, name: str, instance: str) -> str:
        """The id; empty: it may be none."""
        outcome, joined = await self.ask(
            f"join {group} as {name or instance or 'somebody'}",
            client.consumers.join(
                _TENANT,
                group,
                int(1000 * session_s),
                name,
                rebalance_ms=int(1000 * _REBALANCE_S),
                instance=instance,
                protocols=["turns"],
                metadata=b"m" * self._rng.randrange(2),
                rebalance=self.chance(0.1),
            ),
        )
        if outcome != "done":
            return ""
        member, self._joined = joined
        self._judge.joined(MemberKey(_TENANT, group, member))
        return str(member)

    async def _belong(self, client: Client) -> None:
        rng, group = self._rng, f"g{self._rng.randrange(2)}"
        session_s = rng.choice([0.5, 1.0, 2.0])
        instance = rng.choice(["", "", "place"])
        name = await self._join(client, group, session_s, "" if instance else rng.choice(["", self.unique()]), instance)
        for _ in range(rng.randrange(2, 15)):
            if not name or self.quiet:
                return
            await self.pause(0.1 * session_s, 0.3 * session_s)
            asked_s = self.now_s
            outcome, beat = await self.ask(f"{name} lives", client.consumers.heartbeat(_TENANT, group, name))
            if outcome != "done":
                continue
            if beat is None:
                return
            self._judge.answered(MemberKey(_TENANT, group, name), beat.session_ms / 1000, asked_s)
            await self._act(client, group, name, beat)
            if beat.state == GroupState.JOINING and self._joined <= beat.generation and self.chance(0.9):
                name = await self._join(client, group, session_s, name, instance) or name
        end = rng.choice(["leave", "late", "silent", "again"])
        if end == "leave":
            await self.ask(f"{name} leaves {group}", client.consumers.leave(_TENANT, group, name))
        elif end == "late":
            await self.pause(1.1 * session_s, 2.0 * session_s)
            await self._commit(client, group, name, self._joined)
        elif end == "again":
            await self._join(client, group, session_s, name, instance)

    async def _act(self, client: Client, group: str, name: str, beat: Beat) -> None:
        """Do what a member does, and what it must not."""
        if self.chance(0.8):
            await self._commit(client, group, name, beat.generation)
        if self.chance(0.2):
            await self._commit(client, group, "", beat.generation + self._rng.choice([-1, 0, 1]))
        if beat.state == GroupState.ASSIGNING and self.chance(0.9):
            for _ in range(self._rng.choice([1, 1, 2])):
                what = f"{name} assigns {beat.generation} of {group}"
                work = client.consumers.assign(_TENANT, group, name, beat.generation, {name: self.unique().encode()})
                outcome, _ = await self.ask(what, work)
                self._judge.assigned += outcome == "done"

    async def _commit(self, client: Client, group: str, name: str, generation: int) -> None:
        asked_s = self.now_s
        work = client.offsets.commit(_TENANT, group, "t", 0, 1, generation=max(0, generation), member=name)
        outcome, _ = await self.ask(f"commit in generation {generation} of {group} as {name}", work)
        self._judge.fenced += outcome == "refused"
        if outcome == "done":
            self._judge.committed(MemberKey(_TENANT, group, name), asked_s)


class LastMember(MemberActor):
    """The one that waits until all others are gone, at the end."""

    def settle(self) -> None:
        """See Actor."""
        left: list[str] = []

        async def look(client: Client) -> None:
            left[:] = [
                member.member for group in ("g0", "g1") async for member in client.consumers.members(_TENANT, group)
            ]

        async def until_gone() -> None:
            client = await sim.open()
            await look(client)
            while left:
                await self.pause(0.5)
                await look(client)

        sim = self.client()
        task = sim.process.start(until_gone())
        if not self._cluster.run_until(task.done, _GONE_S):
            raise Violation("consumers", f"their programs are silent, and they stay: {left}")
        task.result()
