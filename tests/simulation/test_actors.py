"""Holders of leases and locks, claimants of wills, and brokers that keep what belongs to clients, while nodes die,
links break and slots move. Whole-node seeds have some of them each; here all of them meet, in wide seeds."""

from __future__ import annotations

import os
import random

from metad.config import ExpiryConfig
from sim.nodes.actors.cast import Cast
from sim.nodes.actors.subscribers import Subscriber
from sim.nodes.cluster import Cluster, Settings
from sim.nodes.trouble import CONVERGE_S, TROUBLE_S, Trouble

SEED = int(os.environ.get("METAD_TEST_SEED", "0")) + 3_000
SEEDS = 1
_QUIET_S = 9.0


def test_nobody_is_told_what_is_not_so() -> None:
    sent_away = member_commits = fenced = assigned = 0
    expired = kept_alive = locks = numbers = acknowledged = claimed_again = restored = 0
    for seed in range(SEED, SEED + SEEDS):
        rng = random.Random(seed)
        settings = Settings(data=2, clients=1, callers=1, spares=seed % 2, expiry=ExpiryConfig(amnesty_ms=500))
        with Cluster(rng.getrandbits(64), settings) as cluster:
            try:
                cluster.start()
                cast = Cast(cluster, rng, share=1.0)
                trouble = Trouble(cluster, rng, wide=True)
                cluster.run(TROUBLE_S)
                trouble.end()
                cluster.run(_QUIET_S)
                cluster.require_settled(CONVERGE_S)
                cast.settle()
                cluster.history.check()
            except BaseException:
                print(f"seed {seed}")
                raise
        assert cast.leases is not None
        assert cast.locks is not None
        assert cast.wills is not None
        assert cast.members is not None
        sent_away, assigned = sent_away + cast.members.sent_away, assigned + cast.members.assigned
        member_commits, fenced = member_commits + cast.members.commits, fenced + cast.members.fenced
        expired, kept_alive = expired + cast.leases.expired, kept_alive + cast.leases.kept_alive
        acknowledged, claimed_again = acknowledged + cast.wills.acknowledged, claimed_again + cast.wills.again
        locks += cast.locks.acquired
        numbers += sum(judge.count for judge in cast.numbers.values())
        restored += sum(actor.restored for actor in cast.actors if isinstance(actor, Subscriber))
    # It is worth something only if much happens.
    counts = (expired, kept_alive, locks, numbers, acknowledged, claimed_again, restored)
    counts += (sent_away, member_commits, fenced, assigned)
    assert min(counts) > SEEDS // 2, counts
