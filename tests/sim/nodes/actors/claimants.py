"""Clients that go without a word, and brokers that claim their wills, publish and acknowledge them, or die in between.
The rules: each will that must be published becomes due once, and no other does; it is acknowledged once, by a life that
has claimed it; two lives never have the same claim."""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

from metad_client import (
    BrokerLife,
    Client,
    FencedError,
    LifeState,
    MetadError,
    SessionProperties,
    TakenWill,
    Will,
    WillKey,
)
from metad_judge.coordination import Hears, Life
from metad_judge.invariants import Violation
from metad_wire.messages import NEVER_S
from metad_wire.tables.will import WillClaimant, WillDue

from ..cluster import Cluster, SimClient
from .actor import Actor

_TENANT: Final = "wills"
_LONG_S: Final = 1_000  # no run lasts so long
_DUE_S: Final = 60.0
"""Every will is due, and acknowledged, within this time once all works."""


class WillJudge(Hears):
    """Which wills must be published, and what became of them. A will is told from all others by its payload."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._must: set[bytes] = set()
        self._never: set[bytes] = set()
        self._keys: dict[bytes, WillKey] = {}  # of those that have become due
        self._claims: dict[tuple[WillKey, int], Life] = {}
        self._asked: dict[WillKey, set[Life]] = {}  # who has ever said that it has published it
        self._acknowledged: Counter[WillKey] = Counter()
        self._gone: set[WillKey] = set()
        self.claimed = self.again = 0
        cluster.written.coordination.hears.append(self)

    @property
    def acknowledged(self) -> int:
        """How many wills were."""
        return len(self._gone)

    def must_be_due(self, payload: bytes) -> None:
        """Its client has gone for good, without a word."""
        self._must.add(payload)

    def is_never_due(self, payload: bytes) -> None:
        """Its client has said good-bye; or the run does not last so long."""
        self._never.add(payload)

    def will_due(self, key: WillKey, will: WillDue) -> None:
        """See Hears."""
        payload = will.will.payload
        if key.tenant != _TENANT:
            return
        if payload in self._keys or payload in self._never:
            self._cluster.fail(Violation("wills", f"{key} is due; it was {self._keys.get(payload, 'discarded')}"))
        self._keys[payload] = key

    def will_gone(self, key: WillKey, claimant: WillClaimant) -> None:
        """See Hears."""
        self._gone.add(key)
        if (claimant.broker, claimant.broker_epoch) not in self._asked.get(key, ()):
            self._cluster.fail(Violation("wills", f"{key} is gone, and {claimant} has not acknowledged it"))

    def has(self, life: Life, taken: TakenWill) -> None:
        """A life was told that it has a will."""
        self.claimed += 1
        self.again += taken.claims > 1
        other = self._claims.setdefault((taken.key, taken.claims), life)
        if other != life:
            raise Violation("wills", f"{life} and {other} have claim {taken.claims} of {taken.key}")
        if self._keys.get(taken.will.payload) != taken.key:
            raise Violation("wills", f"{life} was given {taken}, which is not due")

    def asks(self, life: Life, key: WillKey) -> None:
        """A life says that it has published a will."""
        self._asked.setdefault(key, set()).add(life)

    def done(self, life: Life, key: WillKey) -> None:
        """It was told that this is noted."""
        self._acknowledged[key] += 1
        if self._acknowledged[key] > 1:
            raise Violation("wills", f"{key} was acknowledged again, by {life}")

    def left(self) -> list[bytes]:
        """The wills that must be published and are not yet."""
        return sorted(payload for payload in {*self._keys, *self._must} if self._keys.get(payload) not in self._gone)


class Goer(Actor):
    """Clients that come with a will and go, and the broker that serves them, which may die."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: WillJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        try:
            life = await client.brokers.register(self.unique(), lease_s=0.6, wait_s=1.0)
        except MetadError:
            return
        silent_s = self.now_s + self._rng.choice([0.3, 1.0, 3.0])
        while not self.quiet and self.now_s < silent_s:
            await self._serve(client, life)
            await self.pause(0.02, 0.2)
        life.stop(FencedError("it was killed"))

    async def _serve(self, client: Client, life: BrokerLife) -> None:
        """One client comes, and may go."""
        name, rng, judge = self.unique(), self._rng, self._judge
        payload = name.encode()
        will = Will("gone", payload, delay_s=rng.choice([0, 1, 2, _LONG_S]))
        properties = SessionProperties(rng.choice([1, 3, _LONG_S, NEVER_S]), b"", will)
        goes = judge.is_never_due if min(will.delay_s, properties.expiry_interval_s) == _LONG_S else judge.must_be_due
        where = life.broker, life.epoch, _TENANT, name
        outcome, _ = await self.ask(f"{name} comes", client.sessions.takeover(*where, properties=properties))
        if outcome != "done":
            return
        end = rng.choice(["stays", "goes", "says good-bye", "comes back"])
        if end == "stays":
            goes(payload)  # its broker dies
            return
        discards = end == "says good-bye"
        outcome, _ = await self.ask(f"{name} {end}", client.sessions.disconnect(*where, will_discard=discards))
        if outcome != "done":
            return
        if discards:
            judge.is_never_due(payload)
        elif end == "goes":
            goes(payload)
        else:
            await self.pause(0.1, 1.0)
            await self.ask(f"{name} comes back", client.sessions.takeover(*where, properties=SessionProperties(3)))


class Claimant(Actor):
    """A broker that publishes wills, or dies before or behind that, or is late, or says it twice."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: WillJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        try:
            life = await client.brokers.register(self.name, lease_s=self._rng.choice([0.6, 1.5]), wait_s=1.0)
        except MetadError:
            return
        silent_s = self.now_s + self._rng.choice([0.5, 2.0, 4.0])
        while not self.quiet and self.now_s < silent_s and life.state is not LifeState.LOST:
            await self._publish(client, life)
            await self.pause(0.05, 0.3)

    async def _publish(self, client: Client, life: BrokerLife) -> None:
        rng, judge, mine = self._rng, self._judge, (life.broker, life.epoch)
        lease_s = rng.choice([0.1, 0.3, 5.0])
        outcome, taken = await self.ask(
            "claims", client.wills.claim(*mine, tenant=_TENANT, lease_s=lease_s, limit=rng.choice([1, 3, 100]))
        )
        if outcome != "done":
            return
        for one in taken:
            judge.has(mine, one)
        for one in taken:
            what = rng.choice(["acknowledge", "acknowledge", "twice", "late", "late", "release", "forget"])
            if what == "late":
                await self.pause(1.1 * lease_s, 3.0 * lease_s)
            if what == "release":
                await self.ask(f"release {one.key}", client.wills.release(*mine, one.key))
            elif what != "forget":
                for _ in range(2 if what == "twice" else 1):
                    await acknowledge(self, client, mine, judge, one.key)


async def acknowledge(actor: Actor, client: Client, mine: Life, judge: WillJudge, key: WillKey) -> None:
    """Say that a will is published."""
    judge.asks(mine, key)
    outcome, _ = await actor.ask(f"acknowledge {key}", client.wills.acknowledge(*mine, key))
    if outcome == "done":
        judge.done(mine, key)


class LastClaimant(Claimant):
    """The one that publishes all that the others have left, at the end."""

    def settle(self) -> None:
        """See Actor."""
        cluster, judge, mine = self._cluster, self._judge, (f"{self.name} at the end", 1)
        sim = self.client()
        until_s = self.now_s + _DUE_S

        async def rest() -> None:
            client = await sim.open()
            while judge.left():
                if self.now_s > until_s:
                    raise Violation("wills", f"never published: {judge.left()}")
                for one in await client.wills.claim(*mine, tenant=_TENANT, deadline_s=10.0):
                    judge.has(mine, one)
                    await acknowledge(self, client, mine, judge, one.key)
                await self.pause(0.5)

        cluster.do(sim, rest(), 2 * _DUE_S)
