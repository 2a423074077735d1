"""Brokers that are replaced, fall silent and write on, while nodes die, links break and slots move."""

from __future__ import annotations

import os
import random

from sim.nodes.cluster import Cluster, Settings
from sim.nodes.zombies import play_brokers

SEED = int(os.environ.get("METAD_TEST_SEED", "0")) + 2_000
SEEDS = 1


def test_a_life_that_is_over_writes_nothing_and_one_that_is_heard_of_is_not_over() -> None:
    done = refused = registered = late = 0
    for seed in range(SEED, SEED + SEEDS):
        rng = random.Random(seed)
        settings = Settings(nodes=3, spares=seed % 2, data=2, clients=1, callers=1)
        with Cluster(rng.getrandbits(64), settings) as cluster:
            try:
                judge = play_brokers(cluster, rng, wide=True)
            except BaseException:
                print(f"seed {seed}")
                raise
        done, refused, registered = done + judge.done, refused + judge.refused, registered + judge.registered
        late += judge.late
    # It is worth something only if much happens.
    assert registered > 2 * SEEDS
    assert done > 10 * SEEDS
    assert refused > 10 * SEEDS
    assert late > 10 * SEEDS
