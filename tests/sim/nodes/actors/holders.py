"""Holders of leases: they are granted, attach keys, keep alive, fall silent, come back late, and revoke. The rules: no
lease ends by time that was said to be alive within its time to live; one that has ended is never said to live; and none
of a holder that is silent stays."""

from __future__ import annotations

import random
from typing import Final

from metad_client import Client
from metad_judge.coordination import Ended, Hears
from metad_judge.invariants import Violation

from ..cluster import Cluster, SimClient
from .actor import DRIFT, Actor

_ENDED_S: Final = 20.0
"""A lease of a silent holder has ended within this time, if nothing goes wrong meanwhile."""
Name = tuple[str, str]


class LeaseJudge(Hears):
    """What was said about leases, and what became of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lasts_s: dict[Name, float] = {}  # until when each lease lasts at least, by what was answered
        self.ended: dict[Name, Ended] = {}
        self.expired = self.kept_alive = 0
        cluster.written.coordination.hears.append(self)

    def granted(self, name: Name, ttl_s: float, asked_s: float) -> None:
        """A lease was granted. Its name was never used before."""
        if name in self._lasts_s or (name in self.ended and self.ended[name].moment_s < asked_s):
            raise Violation("leases", f"{name} was granted again")
        self._heard(name, ttl_s, asked_s)

    def alive(self, name: Name, ttl_ms: int, asked_s: float) -> None:
        """A keep-alive that was sent then was answered."""
        if not ttl_ms:
            return
        ended = self.ended.get(name)
        if ended is not None and ended.moment_s < asked_s:
            raise Violation("leases", f"{name} has ended at {ended.moment_s}, and was said to live at {asked_s}")
        self.kept_alive += 1
        self._heard(name, ttl_ms / 1000, asked_s)

    def _heard(self, name: Name, ttl_s: float, asked_s: float) -> None:
        self._lasts_s[name] = max(self._lasts_s.get(name, 0.0), asked_s + ttl_s / DRIFT)
        self._check(name)

    def lease_ended(self, ended: Ended) -> None:
        """See Hears."""
        name = ended.namespace, ended.lease
        self.ended[name] = ended
        self.expired += ended.expired
        self._check(name)

    def _check(self, name: Name) -> None:
        ended = self.ended.get(name)
        if ended is not None and ended.expired and ended.moment_s < self._lasts_s.get(name, 0.0):
            self._cluster.fail(
                Violation("leases", f"{name} was to last until {self._lasts_s[name]} and ended at {ended.moment_s}")
            )

    def require_ended(self) -> None:
        """Nobody keeps a lease alive any more."""

        def left() -> list[Name]:
            return [name for name in self._lasts_s if name not in self.ended]

        if not self._cluster.run_until(lambda: not left(), _ENDED_S):
            raise Violation("leases", f"their holders are silent, and they last: {left()}")


class Holder(Actor):
    """One program that holds leases, one after the other."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: LeaseJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        while not self.quiet:
            await self._hold(client)
            await self.pause(0.01, 0.3)

    async def _hold(self, client: Client) -> None:
        rng, namespace = self._rng, f"leases{self._rng.randrange(2)}"
        ttl_s = rng.choice([0.5, 1.0, 2.0])
        wanted = self.unique() if self.chance(0.7) else ""
        asked_s = self.now_s
        outcome, lease = await self.ask(
            f"grant {wanted}", client.leases.grant(namespace, int(1000 * ttl_s), wanted, holder=self.name)
        )
        if outcome != "done":
            return  # if it was granted nevertheless, it ends by itself
        name = namespace, lease
        self._judge.granted(name, ttl_s, asked_s)
        keys = [self.unique() for _ in range(rng.randint(0, 4))]
        for key in keys:
            if self.chance(0.5):
                await self.ask(f"put {key}", client.kv.put(namespace, key, b"1", lease=lease))
            else:
                await self.ask(f"put {key}", client.kv.put(namespace, key, b"1"))
                await self.ask(f"attach {key}", client.leases.attach(namespace, lease, key))
            if self.chance(0.2):
                await self.ask(f"detach {key}", client.leases.detach(namespace, lease, key))
            elif self.chance(0.2):
                await self.ask(f"delete {key}", client.kv.delete(namespace, key))
        for _ in range(rng.randrange(6)):
            await self.pause(0.2 * ttl_s, 0.6 * ttl_s)
            if self.quiet or not await self._speak(client, name):
                return
        end = rng.choice(["revoke", "late", "silent"])
        if end == "revoke":
            await self.ask(f"revoke {lease}", client.leases.revoke(namespace, lease))
        elif end == "late":
            await self.pause(1.1 * ttl_s, 2.0 * ttl_s)
            await self._speak(client, name)

    async def _speak(self, client: Client, name: Name) -> bool:
        asked_s = self.now_s
        outcome, ttl_ms = await self.ask(f"keep {name[1]} alive", client.leases.keep_alive(*name))
        if outcome != "done":
            return True
        self._judge.alive(name, ttl_ms, asked_s)
        return bool(ttl_ms)

    def settle(self) -> None:
        """See Actor."""
        self._judge.require_ended()
