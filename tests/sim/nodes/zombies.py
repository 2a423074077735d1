"""Brokers that live, die, and write on as if they had not, in a cluster with faults; and the judge of what they did.

Each life is a client of its own. A life that was replaced, or fell silent, goes on writing in its own name, as a broker
does that was cut off and does not know it. The rules: once a registration is acknowledged, nothing that a lower epoch
asks from then on is done, in any group; and nobody is fenced who was acknowledged to be alive. A life also says late,
and more than once, that clients have gone: that counts only while its takeover connects the client.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from metad.state.cluster.fences import Fences
from metad_client import (
    BrokerLife,
    Client,
    ConflictError,
    FencedError,
    LifeState,
    MetadError,
    NotFoundError,
    NotOwnerError,
    Options,
    SessionProperties,
)
from metad_judge.invariants import Violation
from metad_wire.cluster import unpack_slots

from .cluster import Cluster, SimClient
from .trouble import CONVERGE_S, TROUBLE_S, Trouble

BROKERS = ("z1", "z2")
_QUIET_S = 9.0
_DEADLINE_S = 3.0
_SESSIONS = 8
_NEVER_SOON_S = 3_600
_LEAVING = 0.4  # of what a life asks
_REMEMBERED = 6  # takeovers of a life that it says may be over


class Judge:
    """What was acknowledged about the lives of brokers."""

    def __init__(self) -> None:
        self.least: dict[str, int] = dict.fromkeys(BROKERS, 0)
        """The epoch of the last registration that was acknowledged as being known to all groups."""
        self.registered = self.refused = self.done = self.late = 0
        self._newest: dict[str, int] = {}
        self._ended: set[tuple[str, int]] = set()

    def acknowledged(self, broker: str, epoch: int) -> None:
        """No lower epoch writes from now on."""
        self.least[broker] = max(epoch, self.least[broker])

    def wrote(self, broker: str, epoch: int, least_before: int) -> None:
        """A write was done that was begun when ``least_before`` had been acknowledged."""
        self.done += 1
        if epoch < least_before:
            raise Violation("zombies", f"epoch {epoch} of {broker} has written after {least_before} was acknowledged")

    # --- connections of clients

    def connected(self, session: str, attachment: int) -> None:
        """A takeover was acknowledged."""
        self._newest[session] = max(attachment, self._newest.get(session, 0))

    def is_over(self, session: str, attachment: int) -> bool:
        """Whether a later takeover was acknowledged, or a disconnect of this one."""
        return attachment < self._newest[session] or (session, attachment) in self._ended

    def disconnected(self, session: str, attachment: int, was_over: bool) -> None:
        """A disconnect was acknowledged that was begun when the connection was over, or when it may not have been."""
        if was_over:
            raise Violation("attachments", f"the connection {attachment} of {session} was over, and has ended again")
        self._ended.add((session, attachment))


class Lives:
    """One broker: its lives, one after the other, some of which go on writing after their end."""

    def __init__(self, cluster: Cluster, judge: Judge, broker: str, rng: random.Random) -> None:
        self._cluster = cluster
        self._judge = judge
        self._broker = broker
        self._rng = rng
        cluster.work(self._client().process, self._run(), broker)

    def _client(self) -> SimClient:
        return self._cluster.client(Options(deadline_s=_DEADLINE_S, connect_timeout_s=60.0))

    async def _run(self) -> None:
        """In a process that only begins the others."""
        while not self._cluster.quiet:
            client = self._client()
            self._cluster.work(client.process, self._live(client), f"{self._broker} at {client.name}")
            await asyncio.sleep(self._rng.choice([0.3, 1.0, 2.5]))

    async def _live(self, sim: SimClient) -> None:
        """One life, and what comes after it."""
        judge, broker = self._judge, self._broker
        client = await sim.open()
        writes = await self._client().open()  # it names the life itself, and so goes on where the other would not
        try:
            life = await client.brokers.register(broker, lease_s=self._rng.choice([0.6, 1.5, 4.0]), wait_s=2.0)
        except MetadError:
            return
        judge.registered += 1
        if not life.unfenced:
            judge.acknowledged(broker, life.epoch)
        taken: list[tuple[str, int]] = []
        silent_at = self._cluster.loop.now + self._rng.choice([0.2, 1.0, 3.0])
        while not self._cluster.quiet:
            if self._cluster.loop.now >= silent_at and life.state is not LifeState.LOST:
                life.stop(FencedError("it was killed"))
            if taken and self._rng.random() < _LEAVING:
                await self._leave(writes, life, *self._rng.choice(taken[-_REMEMBERED:]))
            else:
                await self._write(writes, life, taken)
            await asyncio.sleep(self._rng.expovariate(8.0))

    async def _write(self, client: Client, life: BrokerLife, taken: list[tuple[str, int]]) -> None:
        judge, broker, session = self._judge, self._broker, f"s{self._rng.randrange(_SESSIONS)}"
        before = judge.least[broker]
        properties = SessionProperties(_NEVER_SOON_S)
        try:
            done = await client.sessions.takeover(broker, life.epoch, "zombies", session, properties=properties)
        except FencedError as error:
            judge.refused += 1
            # A later registration is a reason, also a late copy of this one's. Silence is one only for who knows of it.
            if life.state is LifeState.SERVING and str(error).endswith(f"is {life.epoch + 1}"):
                raise Violation("false death", f"epoch {life.epoch} of {broker} was serving: {error}") from None
        except MetadError:
            pass  # it may be done or not
        else:
            judge.wrote(broker, life.epoch, before)
            judge.connected(session, done.attachment)
            if not life.unfenced:  # all groups know the broker
                taken.append((session, done.attachment))

    async def _leave(self, client: Client, life: BrokerLife, session: str, attachment: int) -> None:
        """The client has gone, or has gone long ago."""
        judge, broker = self._judge, self._broker
        before, was_over = judge.least[broker], judge.is_over(session, attachment)
        interval_s = self._rng.choice([None, None, 0])
        try:
            await client.sessions.disconnect(
                broker, life.epoch, "zombies", session, expiry_interval_s=interval_s, attachment=attachment
            )
        except (ConflictError, NotFoundError, NotOwnerError, FencedError):
            judge.late += 1
        except MetadError:
            pass  # it may be done or not
        else:
            judge.wrote(broker, life.epoch, before)
            judge.disconnected(session, attachment, was_over)


def play_brokers(cluster: Cluster, rng: random.Random, *, wide: bool = False) -> Judge:
    """Faults, clients, and brokers among them; then a look at the fences of all groups. Raises what went wrong."""
    cluster.start()
    judge = Judge()
    trouble = Trouble(cluster, rng, wide=wide)
    for broker in BROKERS:
        Lives(cluster, judge, broker, random.Random(rng.getrandbits(64)))
    cluster.run(TROUBLE_S)
    trouble.end()
    cluster.run(_QUIET_S)
    cluster.require_settled(CONVERGE_S)
    _require_fences(cluster, judge)
    return judge


def _require_fences(cluster: Cluster, judge: Judge) -> None:
    """Every replica of a group that has slots knows of every registration that was acknowledged."""
    for sim in cluster.nodes.values():
        node: Any = sim.node
        if node is None or node.map is None:
            continue
        for group, driver in node.drivers.items():
            if group.ordinal not in unpack_slots(node.map.slots[group.kind]):
                continue
            fences = driver.machine.parts[Fences]
            for broker, least in judge.least.items():
                fence = fences.applied_of(broker)
                if least and (fence is None or fence.least_epoch < least):
                    raise Violation("fences", f"{group.name} on {sim.name} lacks {broker} {least}: {fence}")
