"""Power losses at random moments: nothing acknowledged is lost, nothing is applied twice, a half is never seen.

Each seed is one history of writes, fsyncs, checkpoints and crashes on engines that lose what was not synced (or, as
a mere kill does, lose nothing). Every write has an identity and keys of its own, spread over the groups; whoever got
no answer retries after the crash, as the SDK does. A failure prints its seed.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from server_rig import Answer, Rig

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import MetadError
from metad_wire.messages import Identity


class Writer:
    """Writes that must each happen once, some of them still waiting for their answer."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.seq = 0
        self.waiting: dict[int, tuple[m.KvPut, Answer, int]] = {}  # seq -> (body, answer, attempts before)
        self.acknowledged: list[m.KvPut] = []

    @property
    def low(self) -> int:
        return min(self.waiting, default=self.seq + 1)

    def write(self) -> None:
        self.seq += 1
        # A request has one namespace, so one group. The namespaces are spread over the groups.
        namespace = f"n{self.rng.randrange(8)}"
        items = [
            m.KvPutItem(namespace, f"k{self.seq}-{i}", b"x" * self.rng.randrange(200))
            for i in range(self.rng.randint(2, 8))
        ]
        body = m.KvPut(items)
        self.waiting[self.seq] = (body, self.send(body, self.seq, 0), 0)

    def send(self, body: m.KvPut, seq: int, attempts: int) -> Answer:
        return self.rig.send(methods.KV_PUT, body, Identity(1, seq, min(self.low, seq), attempts * 10))

    def collect(self) -> None:
        for seq, (body, answer, _) in list(self.waiting.items()):
            if answer.done:
                result = answer.results[0]
                assert not isinstance(result, MetadError), result
                assert answer.reply(methods.KV_PUT).versions == [1] * len(body.items), "applied twice, or not at all"
                self.acknowledged.append(body)
                del self.waiting[seq]

    def retry(self) -> None:
        for seq, (body, _, attempts) in list(self.waiting.items()):
            self.waiting[seq] = (body, self.send(body, seq, attempts + 1), attempts + 1)

    async def check(self) -> None:
        bodies = [*self.acknowledged, *(body for body, _, _ in self.waiting.values())]
        for number, body in enumerate(bodies):
            read = methods.KV_GET.body([m.KvKey(item.namespace, item.key) for item in body.items])
            records = self.rig.send(methods.KV_GET, read).reply(methods.KV_GET).found
            for item, record in zip(body.items, records, strict=True):
                if number < len(self.acknowledged):
                    assert record is not None, f"{item.key} was acknowledged and is lost"
                if record is not None:
                    assert (record.version, record.value) == (1, item.value), f"{item.key} was applied twice"
            assert len({record is None for record in records}) == 1, "a part of a write is there"


def crash(rig: Rig, rng: random.Random) -> None:
    rig.kill()
    # Which of the two lost its unsynced part is chance: either may have been written out in the meantime.
    if rng.random() < 0.7:
        rig.log_engine.crash()
    if rng.random() < 0.7:
        rig.state_engine.crash()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
async def test_a_crash_at_any_moment(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    rig = Rig(
        groups={"offset": 1, "data": 3},
        commit={"pipeline_entries_max": rng.choice([1, 3]), "entry_items_max": rng.choice([4, 256])},
        raft={"log_cache_bytes": rng.choice([1, 2_000, 1_000_000])},
    )
    await rig.open()
    writer = Writer(rig, rng)
    for _ in range(rng.randint(3, 8)):
        for _ in range(rng.randint(1, 60)):
            match rng.randrange(10):
                case 0 | 1 | 2 | 3:
                    writer.write()
                case 4 | 5 | 6:
                    await asyncio.sleep(0)
                case 7 | 8:
                    rig.step()
                case 9:
                    await rig.checkpoint()
            writer.collect()
        crash(rig, rng)
        while rng.random() < 0.3:  # again, before it serves
            await rig.begin()
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
                if rng.random() < 0.5:
                    rig.step()
            crash(rig, rng)
        await rig.open()
        await writer.check()
        writer.retry()
    await rig.settle()
    writer.collect()
    assert not writer.waiting
    await writer.check()
    await rig.close()
