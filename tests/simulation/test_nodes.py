"""Whole nodes with their clients, in virtual time. More of them: ``python tests/simulate.py --level node``."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from metad_wire.cluster import METADATA
from sim.nodes.builds import Builds
from sim.nodes.cluster import Cluster, Settings
from sim.nodes.scenarios import SCENARIOS
from sim.nodes.scenarios.recoveries import play_recovery, slots_decided
from sim.nodes.scenarios.restores import play_restore
from sim.nodes.trouble import play
from simulate import Result, run_seeds

SEED = int(os.environ.get("METAD_TEST_SEED", "0"))


@pytest.mark.parametrize(("nodes", "first", "seeds"), [(1, 5, 1), (5, 0, 1)])
def test_seeds(nodes: int, first: int, seeds: int) -> None:
    """Few: test_watch_properties.py has those of three nodes, and fresh ones are for ``make soak``."""
    results = _held(nodes, first, seeds, wide=False)
    # It is worth something only if much happens.
    assert _sum(results, "answered") > 50 * seeds
    assert _sum(results, "crashes") > seeds // 2
    assert _sum(results, "elections") > 2 * seeds


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "seeds"), [(3, 2), (5, 1)])
def test_wide_seeds(nodes: int, seeds: int) -> None:
    """Hundreds of reads at once, disks that hang, calendars that are set, slots that go back and forth, nodes that
    leave when others are down, identities that are used again."""
    assert _sum(_held(nodes, 0, seeds, wide=True), "answered") > 100 * seeds


@pytest.mark.parametrize("seed", [SEED, pytest.param(SEED + 1, marks=pytest.mark.long)])
def test_seeds_with_upgrades(seed: int) -> None:
    """Nodes are killed and start with the build before or with this one, beside all other faults, until all have this
    one: then what the older could not read is switched on."""
    rng = random.Random(seed)
    with Builds("n1", "n2", "n3", settled_s=0.4) as builds, Cluster(seed, Settings(features_after_ms=1)) as cluster:
        builds.watch(cluster)
        play(cluster, rng, builds=builds)
        assert cluster.run_until(lambda: len(builds.on_at(cluster)) == 3, 10.0), "it is not switched on"
        assert cluster.crashes > 2


@pytest.mark.parametrize(("seed", "nodes"), [pytest.param(SEED, 5, marks=pytest.mark.long), (SEED + 1, 3)])
def test_seeds_with_regions(seed: int, nodes: int) -> None:
    """Groups prefer one region and then another, beside all faults. In the end each is led where it should be."""
    print(f"seed {seed}")
    regions = ("eu", "us", "eu", "us", "us")[:nodes]
    with Cluster(seed, Settings(nodes=nodes, replicas=nodes, regions=regions)) as cluster:
        play(cluster, random.Random(seed))
        assert cluster.crashes


@pytest.mark.parametrize("seed", [SEED, pytest.param(SEED + 1, marks=pytest.mark.long)])
def test_seeds_with_restores(seed: int) -> None:
    """A cluster goes into another of another shape, whose nodes have all faults, by somebody who is killed and begins
    again."""
    print(f"seed {seed}")
    assert play_restore(seed).attempts > 0


@pytest.mark.parametrize(("seed", "rivals"), [(SEED + 3, False), (SEED + 4, False), (SEED, True)])
def test_seeds_with_recoveries(seed: int, rivals: bool) -> None:
    """Groups lose their majority for ever, beside all faults, and are recovered from the nodes that are left: by one
    operator, or by two who do not know of each other."""
    print(f"seed {seed}")
    assert play_recovery(seed, rivals=rivals).taken


def _held(nodes: int, first: int, seeds: int, *, wide: bool) -> list[Result]:
    """What came of seeds in which nothing broke."""
    chosen = range(SEED + first, SEED + first + seeds)
    print(f"{nodes} nodes, {'wide, ' * wide}{chosen}")
    results = run_seeds(chosen, nodes, "node", wide=wide)
    broken = [f"seed {result.seed}: {result.violation}" for result in results if result.violation]
    assert not broken, "\n".join(broken)
    return results


def _sum(results: list[Result], field: str) -> int:
    return sum(getattr(result, field) for result in results)


def test_recoveries_meet_slots_that_moved() -> None:
    """One group gives slots up that it has forgotten to have given up; of others nothing is left; moves go on."""
    decided = slots_decided()
    assert "gives up" in decided
    assert "nothing is left" in decided
    assert "go on to move" in decided


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    SCENARIOS[name]()


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_seed_is_the_same_every_time(wide: bool) -> None:
    code = (
        "from simulate import run_node_seed; import zlib; "
        f"run = run_node_seed(1, 3, wide={wide}, trace=True); assert run.trace; "
        "print(zlib.crc32('\\n'.join(run.trace).encode()))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_node_that_joins_hears_of_the_cluster_and_is_heard() -> None:
    """Guards the peers' links: who joins dialled nobody, so no follower's answer of it ever reached the leader."""
    with Cluster(1, Settings(nodes=3, spares=1)) as cluster:
        cluster.start()
        cluster.nodes["n4"].start()
        cluster.run(2.0)
        cluster.require_settled(10.0)
        node = cluster.nodes["n4"].node
        assert node is not None
        assert node.map is not None
        assert "n4" in node.map.groups[0].replicas


def test_who_is_leaving_is_given_nothing_new() -> None:
    """Guards the controller: a group that was added meanwhile got a replica on a node that no longer hears of it."""
    with Cluster(1, Settings(nodes=3, spares=1)) as cluster:
        cluster.start()
        cluster.nodes["n4"].start()
        cluster.run(2.0)
        admin = cluster.client()

        async def ask() -> None:
            client = await admin.open()
            await client.cluster.leave("n4")
            await client.cluster.add_group("data")
            await client.cluster.rebalance()

        cluster.do(admin, ask())
        cluster.require_settled(20.0)
        leader = cluster.leader(METADATA)
        assert leader is not None
        assert leader.node is not None
        assert leader.node.map is not None
        assert not any("n4" in group.replicas for group in leader.node.map.groups)
