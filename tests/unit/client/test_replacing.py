"""``metadctl replace`` against a cluster that says what the test wants: what it asks, tells and waits for."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest
from test_status import NAMES, Cluster

from metad_client.cli import replacing
from metad_client.cli.replacing import Replacement, advice
from metad_wire import cluster as c
from metad_wire.errors import ConflictError, ConnectionLostError, DeadlineExceededError, MetadError, NotFoundError


class Desk:
    """A client of a cluster that stays as it is until the node has left, and goes on to the next scene after each look
    from then on."""

    def __init__(self, *scenes: Cluster, leaves: list[c.Done | MetadError]) -> None:
        self.cluster: Any = self
        self.scenes = list(scenes)
        self.leaves = leaves
        self.asked: list[tuple[str, bool]] = []

    def _next(self) -> None:
        if len(self.scenes) > 1:
            self.scenes.pop(0)

    async def map(self) -> c.MapReply:
        if not self.leaves:
            self._next()
        known = self.scenes[0].map
        return c.MapReply(0 if known is None else known.version, known, {})

    async def statuses(self, *, deadline_s: float) -> Any:
        return self.scenes[0].statuses

    async def leave(self, node: str, *, lost: bool) -> c.Done:
        self.asked.append((node, lost))
        answer = self.leaves.pop(0)
        if isinstance(answer, MetadError):
            raise answer
        return answer


shown: list[str] = []
"""The configuration of the new node, as the command prints it on stdout."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "_LOOK_S", 0.0)
    shown.clear()


def lost() -> Cluster:
    """n3 does not answer."""
    cluster = whole()
    cluster.fails("n3")
    return cluster


def whole(names: tuple[str, ...] = NAMES) -> Cluster:
    cluster = Cluster(names)
    assert cluster.map is not None
    cluster.map = msgspec.structs.replace(cluster.map, replicas=3)
    return cluster


async def test_it_asks_until_the_node_has_left_and_says_how_to_start_the_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moving, needed = c.Done("the replicas of n3 move away"), ConflictError("n3 may still be needed for data-0")
    desk = Desk(
        lost(),
        whole(("n1", "n2")),
        leaves=[DeadlineExceededError("ask again"), moving, needed, NotFoundError("n3 is not a member")],
    )
    done = await Replacement(desk, "n3", 60.0, shown.append).run(wait=False)  # type: ignore[arg-type]
    assert desk.asked == [("n3", True)] * 4
    assert (done["groups_lacking"], done["replicas"]) == (2, 3)
    told = capsys.readouterr().err
    for text in ("ask again", moving.text, str(needed), "n3 is no member any more"):
        assert told.count(text) == 1, text
    (config,) = shown
    new = tomllib.loads(config)
    assert new["node_id"] == "n3"
    assert new["cluster"] == {"join": ["n1:7421", "n2:7421"], "listen": "n3:7421"}
    assert done["config"] == config
    assert "join" not in told


async def test_with_wait_it_ends_when_every_group_has_its_replicas_again(capsys: pytest.CaptureFixture[str]) -> None:
    two, catching_up = whole(("n1", "n2")), whole()
    catching_up.group("n1", voters=["n1", "n2"], learners=["n3"])
    desk = Desk(lost(), two, two, catching_up, whole(), leaves=[c.Done("it leaves"), NotFoundError("gone")])
    done = await Replacement(desk, "n3", 60.0, shown.append).run(wait=True)  # type: ignore[arg-type]
    assert (done["groups_lacking"], done["state"]) == (0, "every group has all its replicas")
    told = capsys.readouterr().err
    assert "waiting for a node to join: 2 machines for 3 replicas of each group" in told
    assert "1 of 2 groups have 3 replicas; missing: data-0" in told


async def test_run_again_after_the_node_has_left_it_goes_on_from_there(capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(whole(("n1", "n2")), leaves=[NotFoundError("n3 is not a member")])
    done = await Replacement(desk, "n3", 60.0, shown.append).run(wait=False)  # type: ignore[arg-type]
    assert done["groups_lacking"] == 2, "as the status says"
    told = capsys.readouterr().err
    assert "n3 has left: it is no member of the cluster, and 2 of 2 groups lack a replica until its successor" in told
    assert "check the name" not in told, "the command itself has let it leave, as the page says"
    (config,) = shown
    assert 'listen = "HOST:PORT"  # its address for other nodes, which is not known any more' in config
    assert "region" not in config, "the cluster has none"


@pytest.mark.parametrize("wait", [False, True])
async def test_a_name_that_no_node_ever_had_is_an_error(wait: bool) -> None:
    desk = Desk(whole(), leaves=[NotFoundError("n9 is not a member")])
    with pytest.raises(NotFoundError, match="n9 is no member of the cluster, whose members are n1, n2 and n3, and no"):
        await Replacement(desk, "n9", 60.0, shown.append).run(wait=wait)  # type: ignore[arg-type]
    assert not shown


async def test_waiting_after_the_node_has_left_is_by_the_book(capsys: pytest.CaptureFixture[str]) -> None:
    """Once wrong: the second command of the page said "check the name" until the new node had joined."""
    two = whole(("n1", "n2"))
    desk = Desk(two, two, two, two, whole(), leaves=[NotFoundError("n3 is not a member")])
    done = await Replacement(desk, "n3", 60.0, shown.append).run(wait=True)  # type: ignore[arg-type]
    assert done["state"] == "every group has all its replicas"
    told = capsys.readouterr().err
    assert "check the name" not in told
    assert "waiting for a node to join" in told


async def test_a_refusal_on_the_way_does_not_make_a_stranger_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Its first order to leave is answered late, as by a cluster that elects: it has left all the same."""
    late = DeadlineExceededError("no answer")
    desk = Desk(lost(), whole(("n1", "n2")), leaves=[late, NotFoundError("n3 is not a member")])
    await Replacement(desk, "n3", 60.0, shown.append).run(wait=False)  # type: ignore[arg-type]
    told = capsys.readouterr().err
    assert "n3 is no member any more" in told
    assert "check the name" not in told


async def test_the_new_node_is_described_before_the_old_one_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    """Once wrong: who interrupted the command had to start the new node without its region."""
    cluster = lost()
    cluster.record("n3", region="ap")
    desk = Desk(cluster, leaves=[c.Done("the replicas of n3 move away; it ends when nothing needs it any more")])
    with pytest.raises(DeadlineExceededError):
        await Replacement(desk, "n3", 0.0, shown.append).run(wait=False)  # type: ignore[arg-type]
    told = capsys.readouterr().err
    _, _, moved = told.partition("the replicas of n3 move away")
    (config,) = shown
    assert tomllib.loads(config)["cluster"] == {"join": ["n1:7421", "n2:7421"], "listen": "n3:7421", "region": "ap"}
    assert moved == "\n", "it is dead, and does not end"


async def test_a_node_that_others_reach_is_not_asked_to_leave() -> None:
    hidden = whole()
    hidden.statuses["n3"] = ConnectionLostError("connection refused by n3:7420")  # to the desk only
    desk = Desk(hidden, leaves=[])
    with pytest.raises(ConflictError, match="n3 is alive: n1 and n2 are connected to it"):
        await Replacement(desk, "n3", 60.0, shown.append).run(wait=False)  # type: ignore[arg-type]
    assert not desk.asked


async def test_with_wait_a_new_node_that_has_joined_already_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """An operator runs the command again after the new node was started, and it has the name of the old one."""
    filling = whole()
    filling.group("n1", voters=["n1", "n2"], learners=["n3"])
    desk = Desk(filling, whole(), leaves=[])
    done = await Replacement(desk, "n3", 60.0, shown.append).run(wait=True)  # type: ignore[arg-type]
    assert not desk.asked
    assert (done["member"], done["state"]) == (True, "every group has all its replicas")
    told = capsys.readouterr().err
    assert "n3 is alive: n1 and n2 are connected to it, so it stays" in told
    assert not shown


async def test_it_gives_up_at_its_deadline_and_says_why() -> None:
    desk = Desk(lost(), leaves=[ConflictError("n3 cannot leave now: data-0 has no majority")] * 2)
    with pytest.raises(DeadlineExceededError, match=r"it has not left, after 0 s \(n3 cannot leave now"):
        await Replacement(desk, "n3", 0.0, shown.append).run(wait=False)  # type: ignore[arg-type]


async def test_while_nothing_changes_it_says_from_time_to_time_that_it_still_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once wrong: with two of three nodes lost it was silent for ten minutes."""
    monkeypatch.setattr(replacing, "_REMIND_S", 0.0)
    no_majority = ConflictError("n3 cannot leave now: data-0 has no majority")
    desk = Desk(lost(), whole(("n1", "n2")), leaves=[no_majority] * 3 + [NotFoundError("gone")])
    await Replacement(desk, "n3", 600.0, shown.append).run(wait=False)  # type: ignore[arg-type]
    told = capsys.readouterr().err.splitlines()
    told = told[told.index(f"metadctl: {no_majority}") :]
    assert told[1:4] == [f"metadctl: still waiting, for at most 600 s more: it has not left ({no_majority})"] * 3


def test_the_advice_has_the_region_of_the_lost_node() -> None:
    cluster = whole()
    assert cluster.map is not None
    record = c.NodeRecord("n3", "n3:7420", "n3:7421", "eu")
    lines = advice("n3", record, cluster.map).splitlines()
    assert 'node_id = "n3"' in lines
    assert 'region = "eu"' in lines
    assert 'join = ["n1:7421", "n2:7421"]' in lines


def test_the_advice_says_what_is_not_known_any_more() -> None:
    cluster = whole(("n1", "n2"))
    for node, region in (("n1", "eu"), ("n2", "us")):
        cluster.record(node, region=region)
    assert cluster.map is not None
    text = advice("n3", None, cluster.map)
    assert 'region = "REGION"  # not known any more; the others have eu and us' in text.splitlines()


async def test_a_node_that_knows_no_cluster_is_not_waited_for() -> None:
    nowhere = Cluster()
    nowhere.map = None
    desk = Desk(nowhere, leaves=[])
    with pytest.raises(NotFoundError, match="give the endpoint of another one"):
        await Replacement(desk, "n3", 60.0, shown.append).run(wait=False)  # type: ignore[arg-type]
