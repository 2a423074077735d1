"""Programs that read near, and one that writes what they read. The rule: a read has all that was acknowledged so long
before it began as it says, whatever leaders, links, clocks and slots did.

What they read are sequences, whose values only grow, also by what a program asked for that was killed since.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Final

from metad_client import Client
from metad_judge.freshness import Read, Writes, judge
from metad_judge.invariants import Violation
from metad_wire.tables.sequence import SequenceRecord

from ..cluster import Cluster, SimClient
from .actor import Actor

_NAMESPACES: Final = tuple(f"near{n}" for n in range(6))  # that are in several groups
_FRESHNESS_MS: Final = (120, 300, 1_000, 3_000)


class FreshnessJudge:
    """What was acknowledged of each sequence, and what was read."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._writes: defaultdict[str, Writes] = defaultdict(Writes)
        self._newest: Counter[str] = Counter()
        self.reads = 0

    def acknowledged(self, sequence: str, value: int) -> None:
        """The writer was told this value."""
        if value > self._newest[sequence]:
            self._newest[sequence] = value
            self._writes[sequence].acknowledged(value, self._cluster.loop.now)

    def read(self, who: str, sequence: str, value: int, begun_s: float, freshness_ms: int) -> None:
        """A read that began at this time found this value."""
        self.reads += 1
        read = Read(sequence, value, begun_s, freshness_ms / 1000)
        if examples := judge(self._writes, [read]).examples:
            raise Violation("freshness", f"{who}: {examples[0]}")


class NearWriter(Actor):
    """Adds to all of the sequences, one after the other."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: FreshnessJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        while not self.quiet:
            namespace = self._rng.choice(_NAMESPACES)
            outcome, value = await self.ask(f"one of {namespace}", client.sequences.add(namespace, "s", 1))
            if outcome == "done":
                self._judge.acknowledged(namespace, value)
            await self.pause(0.005, 0.02, 0.1)


class NearReader(Actor):
    """Reads them from whatever replica is near."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, judge: FreshnessJudge) -> None:
        super().__init__(cluster, name, rng)
        self._judge = judge

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        while not self.quiet:
            namespace, freshness_ms = self._rng.choice(_NAMESPACES), self._rng.choice(_FRESHNESS_MS)
            begun_s = self.now_s
            if self.chance(0.5):
                found = client.sequences.get(namespace, "s", freshness_ms=freshness_ms)
                outcome, record = await self.ask(f"{namespace}, {freshness_ms} ms old", found)
            else:
                listed = self._listed(client, namespace, freshness_ms)
                outcome, record = await self.ask(f"a list of {namespace}, {freshness_ms} ms old", listed)
            if outcome == "done":
                value = 0 if record is None else record.value
                self._judge.read(sim.name, namespace, value, begun_s, freshness_ms)
            await self.pause(0.005, 0.05, 0.3)

    @staticmethod
    async def _listed(client: Client, namespace: str, freshness_ms: int) -> SequenceRecord | None:
        async for record in client.sequences.list(namespace, freshness_ms=freshness_ms):
            return record
        return None
