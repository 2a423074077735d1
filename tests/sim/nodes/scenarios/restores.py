"""A cluster that is played with, and another one, of another shape, into which it is restored while nodes of that die,
pause, are cut off, and whoever restores is killed and begins again.

The state of the first stands for a backup: what reads it, brings it and compares it is the production code.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

from metad_backup.copies import Copy, parts_of
from metad_backup.repository import BackupError, Manifest
from metad_backup.restoring import restore
from metad_backup.showing import compared
from metad_client import Kv, KvKey, MetadError
from metad_judge.invariants import Violation
from metad_wire.cluster import METADATA
from metad_wire.tables.kv import KV

from ..cluster import Cluster, Settings, SimClient
from ..trouble import Trouble, play
from .scene import scenario

_PLAYED_S = 2.0
_TROUBLE_S = 4.0
_RESTORED_S = 60.0
_CONVERGE_S = 40.0
_LOOK_S = 0.02


def copied(cluster: Cluster, id_: str) -> Copy | None:
    """The state of a cluster in which nothing happens, as a backup of it has it; None while a group has no leader that
    has applied all."""
    leader = cluster.leader(METADATA)
    if leader is None or leader.node is None or leader.node.map is None:
        return None
    engines: dict[str, Any] = {}
    for record in leader.node.map.groups:
        lead = cluster.leader(record.group_id)
        if lead is None or lead.node is None or not lead.node.drivers[record.group_id].group.ready:
            return None
        engines[record.group_id.name] = lead.disks.state
    return Copy(Manifest(1, id_, 0, leader.node.map.cluster_id, [], 0), parts_of(engines, {}))


class _Faults(Trouble):
    """Those of a cluster that nobody uses yet."""

    def _client(self, number: int) -> None:
        pass

    def _watch(self, rng: random.Random) -> None:
        pass


class Restoring:
    """Whoever restores, through all his lives; and a client that reads meanwhile."""

    def __init__(self, cluster: Cluster, copy: Copy, rng: random.Random) -> None:
        self._cluster = cluster
        self._copy = copy
        self._rng = rng
        self.kills = self.attempts = 0
        self.done = self.compared = False
        self._life: SimClient | None = None

    def begin(self) -> None:
        """A life of his, and its end before long, while there are faults."""
        if self.done:
            return
        self._life = client = self._cluster.client()
        self.attempts += 1
        self._cluster.work(client.process, self._restore(client), client.name)
        if not self._cluster.quiet:
            self._cluster.loop.call_later(self._rng.uniform(0.0, 0.15), self._kill, context=self._cluster.loop.outside)

    def _kill(self) -> None:
        if self._life is None or self.done or self._cluster.quiet:
            return
        self.kills += 1
        self._cluster.network.crash(self._life.process, self._life.name, silently=False)
        self.begin()

    async def _restore(self, client: SimClient) -> None:
        m = await client.open()
        while True:
            try:
                await restore(m, self._copy, complete=self._compare)
                self.done = True
                return
            except (MetadError, BackupError):
                await asyncio.sleep(0.2)  # the operator reads it, and gives the same command again

    async def _compare(self) -> None:
        """Before the new cluster serves anything: then it goes on from there."""
        if self.compared:
            return
        found = copied(self._cluster, "of the target")
        if found is None:
            raise BackupError("no leader: the operator asks again")
        self.compared = True
        both = compared(self._copy, found)
        if both.only_first or both.only_second or both.differ or not both.rows:
            raise Violation("a restore brings all and nothing else", f"{both}")

    def read(self, keys: list[KvKey]) -> None:
        """A client asks for keys of one slot: all are there or none is, and for ever once they are there."""
        client = self._cluster.client()

        async def look() -> None:
            m = await client.open()
            seen: list[bytes] | None = None
            while not self._cluster.quiet:
                await asyncio.sleep(_LOOK_S)
                try:
                    found = await m.kv.get_many(keys, deadline_s=0.5)
                except MetadError:
                    continue
                if found.ok:
                    values = [one.value for one in found if one is not None]
                    if len(values) not in (0, len(keys)) or (seen is not None and values != seen):
                        raise Violation("a restore is all or nothing", f"of {keys} there is {values}, and was {seen}")
                    seen = values or seen

        self._cluster.work(client.process, look(), client.name)


def _together(copy: Copy) -> list[KvKey]:
    """The keys of the namespace that has most, and that no lease ends."""
    found: defaultdict[str, list[KvKey]] = defaultdict(list)
    for part in copy.parts:
        for page in copy.rows(part, KV.rows["record"]):
            for key, value in page:
                if not msgspec.msgpack.decode(value, type=Kv).lease:
                    named = KvKey(*KV.fields_of(key[1:], 2))
                    found[named.namespace].append(named)
    return max(found.values(), key=len)


def play_restore(seed: int) -> Restoring:
    """Play a cluster, restore it into another, compare. Raises what went wrong."""
    rng = random.Random(seed)
    with Cluster(seed, Settings(data=2, offset=2)) as source:
        play(source, rng, _PLAYED_S)
        copy = copied(source, f"backup-{seed}")
        assert copy is not None
    numbers = itertools.count(1_000_000)

    def numbered() -> int:
        return next(numbers) * 1_000_000

    shape = Settings(
        nodes=3, data=rng.choice([1, 3]), offset=rng.choice([1, 3]), metadata=rng.choice([1, 2]), clients=0
    )
    with (
        # Each attempt has a number of its own; no real clock decides which.
        mock.patch("metad_backup.restoring.time", SimpleNamespace(time_ns=numbered, monotonic=lambda: source.loop.now)),
        mock.patch("metad_backup.restoring._ROWS", rng.choice([1, 3])),
        Cluster(seed + 1, shape) as target,
    ):
        target.start()
        operator = Restoring(target, copy, rng)
        operator.read(_together(copy))
        faults = _Faults(target, rng)
        operator.begin()
        target.run(_TROUBLE_S)
        faults.end()
        if not target.run_until(lambda: operator.done, _RESTORED_S):
            raise Violation("a restore comes to its end", target.describe())
        target.require_settled(_CONVERGE_S)
        assert operator.compared
        return operator


@scenario
def a_cluster_is_restored_while_nodes_die() -> None:
    """Also while whoever restores is killed, now and then."""
    assert play_restore(11).kills
