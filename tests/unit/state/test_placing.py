"""What a new leader counts of brokers' replicas, some rows at a time."""

from __future__ import annotations

import random
from collections import Counter

from metad.config import Config
from metad.state.assignment.fleet import Placing
from metad.state.cluster.fences import replica_rows
from metad.state.core.part import NodeMemory, PartContext
from metad.state.core.slot_assignment import ALL_SLOTS
from metad.storage.memory import MemoryEngine

GROUP = b"\x01\x00\x00"


def test_all_replicas_are_counted_wherever_a_part_of_the_rows_ends() -> None:
    rng = random.Random(1)
    brokers = ["a", "a\0b", "ab", "b", "", "zz"]
    rows = {replica_rows(GROUP, rng.choice(brokers)) + rng.randbytes(6) for _ in range(300)}
    engine = MemoryEngine()
    engine.write(dict.fromkeys(rows, b""))
    wanted = Counter({name: sum(row.startswith(replica_rows(GROUP, name)) for row in rows) for name in brokers})
    for limit in (1, 7, 1_000):
        placing = Placing(PartContext(GROUP, engine, NodeMemory(Config()), lambda: 0.0, ALL_SLOTS))
        placing.forget()
        assert not placing.counted
        for _ in range(len(rows) + 1):
            placing.count_on(limit)
        assert placing.counted
        assert placing.counts == wanted
