"""A broker with clients, a holder of a lease, and a member of a group, which live on while the service stands still.
The rules: nothing of theirs ends by that, no will of theirs is due, and all of them go on soon after."""

from __future__ import annotations

import random
from typing import Final

from metad_client import (
    BrokerLife,
    Client,
    Generation,
    HeldLease,
    LeaseState,
    LifeState,
    Membership,
    SessionProperties,
    Will,
    WillKey,
)
from metad_judge.coordination import Hears
from metad_judge.invariants import Violation
from metad_wire.tables.will import WillDue

from ..cluster import Cluster

_TENANT: Final = "residents"
_SESSIONS: Final = 3
_SETTLES_S: Final = 30.0
_RESUMES_S: Final = 6.0
"""Elections and connections anew are among it, on links and disks of any speed."""
_LEASES_S: Final = (0.5, 1.0, 4.0)
_LONG_S: Final = 4.0
"""Where a network holds up a chunk now and then: a heartbeat, its proof and its answer may all meet that."""
_STANDS_S: Final = (2.0, 8.0, 30.0)


class Residents(Hears):
    """Those of a cluster in which nothing else happens."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._lease_s = rng.choice(_LEASES_S)
        if cluster.settings.wire.slow_chance:
            self._lease_s = _LONG_S
        self._what = ""
        self._over = False
        self.life: BrokerLife
        self.lease: HeldLease
        self.member: Membership
        self.generation: Generation
        cluster.written.coordination.hears.append(self)
        self._sim = cluster.client()
        cluster.do(self._sim, self._settle(), _SETTLES_S)

    async def _settle(self) -> None:
        client = await self._sim.open()
        lease_s = self._lease_s
        self.life = await client.brokers.register("resident", lease_s=lease_s, wait_s=15.0)
        self.life.on_state(lambda state: self._lost("life", str(self.life.over)) if state is LifeState.LOST else None)
        for number in range(_SESSIONS):
            properties = SessionProperties(1, b"", Will("gone"))
            where = self.life.broker, self.life.epoch, _TENANT, f"client{number}"
            await client.sessions.takeover(*where, properties=properties)
        self.lease = await client.hold(_TENANT, ttl_s=lease_s).opened()
        self.lease.on_state(lambda state: self._lost("lease", "") if state is LeaseState.LOST else None)
        self.member = await client.consume(_TENANT, "g", assign=lambda *_: {}, session_s=lease_s).opened()
        self.member.on_state(lambda state: self._lost("membership", "") if state is LeaseState.LOST else None)
        generation = await self.member.next()
        assert generation is not None
        self.generation = generation

    def _lost(self, what: str, why: str) -> None:
        if not self._over:
            self._cluster.fail(
                Violation("standstills", f"after a standstill of {self._what} a {what} has ended: {why}")
            )

    def will_due(self, key: WillKey, will: WillDue) -> None:
        """See Hears."""
        if key.tenant == _TENANT:
            self._lost("connection", f"the will of {key.client_id} is due")

    def serves(self) -> bool:
        """Whether everybody may believe in what it has."""
        is_served = self.life.state is LifeState.SERVING
        return is_served and self.lease.state is self.member.state is LeaseState.CONNECTED

    def endure(self, times: int) -> None:
        """The service stands still so often."""
        cluster, rng = self._cluster, self._rng
        for _ in range(times):
            who, seconds = rng.choice(["all", "majority", "leader"]), rng.choice(_STANDS_S) * rng.uniform(0.5, 1.5)
            self._what = f"{who} for {seconds:.1f} s"
            cluster.stand_still(who, seconds)
            cluster.run(seconds)
            if not cluster.run_until(self.serves, _RESUMES_S):
                states = f"{self.life.state}, {self.lease.state}, {self.member.state}"
                raise Violation("standstills", f"{_RESUMES_S} s after a standstill of {self._what}: {states}")
            cluster.run(rng.choice([0.0, 0.3, 3.0 * self._lease_s]))
        if not cluster.run_until(lambda: self.generation.is_current, _RESUMES_S):
            raise Violation(
                "standstills", f"after a standstill of {self._what} the group has gone on without its member"
            )

    def leave(self) -> None:
        """In good order."""

        async def go(client: Client) -> None:
            for number in range(_SESSIONS):
                where = self.life.broker, self.life.epoch, _TENANT, f"client{number}"
                await client.sessions.disconnect(*where, will_discard=True)
            await client.close()

        self._cluster.written.coordination.hears.remove(self)
        assert self._sim.client is not None
        self._over = True
        self._cluster.do(self._sim, go(self._sim.client), _SETTLES_S)
