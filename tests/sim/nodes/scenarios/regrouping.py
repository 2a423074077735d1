"""Groups are changed by hand: split, merged, removed; replicas are moved; and nodes are drained."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from zlib import crc32

from metad_client import Client, ConflictError, Options
from metad_wire.cluster import METADATA, GroupId, unpack_slots
from metad_wire.errors import MetadError
from metad_wire.key import SLOT_MASK, text
from metad_wire.tables.feature import LEADER_REGIONS, REMOVED_GROUPS

from ..cluster import DATA, SimNode
from .scene import Scene, scenario
from .watches import Theatre

Order = Callable[[Client], Coroutine[Any, Any, Any]]

_OTHER = GroupId("data", 1)
_SPACES = [f"space-{number}" for number in range(12)]
_SETTLED_S = 30.0


class _Scene(Scene):
    """One with orders of an administrator."""

    def allow_removals(self) -> None:
        """Switch on what groups are removed under."""
        self.lead(METADATA)
        assert self.switch_on(REMOVED_GROUPS)
        self.run(0.3)

    def prefer(self, group: GroupId, region: str) -> str:
        """Have a group be led in a region. Returns what was done, in words."""
        self.lead(METADATA)
        assert self.switch_on(LEADER_REGIONS)
        self.run(0.3)
        return self.order(lambda c: c.cluster.prefer(group.name, region))

    def require_led_by(self, *names: str, group: GroupId = DATA) -> SimNode:
        """One of these nodes comes to lead a group, and goes on."""
        sims = [self.nodes[name] for name in names]
        assert self.run_until(lambda: self.leader(group) in sims, 15.0), f"{self.lead(group).name} leads {group.name}"
        self.run(3.0)
        assert self.leader(group) in sims, f"{self.lead(group).name} leads {group.name}"
        return self.lead(group)

    def order(self, what: Order) -> str:
        """Ask until no other change of the map is in the way. Returns what was done, in words."""
        for _ in range(100):
            try:
                return str(self.ask(self.two, what).text)
            except ConflictError as error:
                refused = error
                self.run(0.1)
        raise refused

    def refuses(self, what: Order, why: str) -> None:
        """Ask, and be refused for this reason."""
        try:
            done = self.ask(self.two, what)
        except MetadError as error:
            found = str(error)
        else:
            raise AssertionError(f"it was granted: {done.text}")
        if why not in found:
            raise AssertionError(found)

    def merge(self, group: str, into: str) -> None:
        """And wait until it is done."""
        self.order(lambda c: c.cluster.move_slots(into, group=group))
        assert self.run_until(lambda: not self.map.moves, _SETTLED_S), "the slots do not move"

    def fill(self, value: bytes) -> None:
        """A row in each of some slots."""
        for space in _SPACES:
            self.ask(self.one, lambda c, space=space: c.kv.put(space, "k", value))  # type: ignore[misc]

    def check(self, value: bytes) -> None:
        """All of them are there, for a client that knows the map of before, too."""
        for space in _SPACES:
            for client in (self.one, self.two):
                found = self.ask(client, lambda c, space=space: c.kv.get(space, "k"))  # type: ignore[misc]
                assert found is not None, f"{space} is lost"
                assert found.value == value, f"{space} is an old one"


@scenario
def group_is_merged_away_and_removed() -> None:
    """Its rows are the other's, it goes from all nodes, also from one that was down, and its name is not used again."""
    with _Scene(data=2) as scene:
        scene.allow_removals()
        scene.fill(b"1")
        scene.refuses(lambda c: c.cluster.remove_group("data-1"), "has 512 slots")
        scene.merge("data-1", "data-0")
        away = next(name for name in scene.nodes if scene.lead(METADATA).name != name != scene.lead(_OTHER).name)
        scene.nodes[away].crash(power=False)
        assert "is removed" in scene.order(lambda c: c.cluster.remove_group("data-1"))
        assert "already" in scene.order(lambda c: c.cluster.remove_group("data-1"))
        scene.check(b"1")
        scene.fill(b"2")
        scene.nodes[away].start()
        scene.require_settled(_SETTLED_S)
        assert "data-2" in scene.order(lambda c: c.cluster.add_group("data")), "a name is used twice"
        scene.order(lambda c: c.cluster.move_slots("data-2", group="data-0", half=True))
        scene.require_settled(_SETTLED_S)
        scene.check(b"2")


@scenario
def group_is_removed_while_its_leader_dies() -> None:
    """The map has heard of the move, and the source has not closed it, or has rows that it has yet to drop."""
    with _Scene(data=2) as scene:
        scene.allow_removals()
        scene.fill(b"1")
        number = scene.begin_move(1, 0)
        assert scene.run_until(lambda: scene.is_moved(number), _SETTLED_S)
        scene.lead(_OTHER).crash(power=False)
        assert "is removed" in scene.order(lambda c: c.cluster.remove_group("data-1"))
        for sim in scene.nodes.values():
            if not sim.up:
                sim.start()
        scene.require_settled(_SETTLED_S)
        scene.check(b"1")


@scenario
def slots_of_two_groups_move_at_once_while_a_leader_dies() -> None:
    """Neither move waits for the other, and each ends, also that whose source has another leader by now."""
    with _Scene(data=2) as scene:
        scene.fill(b"1")
        scene.order(lambda c: c.cluster.move_slots(group="data-0", half=True))
        scene.order(lambda c: c.cluster.move_slots(group="data-1", half=True))
        moves = [(move.source, move.target) for move in scene.map.moves]
        assert (1, 3) in moves, f"the second is not under way: {moves}"
        scene.refuses(lambda c: c.cluster.move_slots("data-0", group="data-3"), "data-3 has")
        scene.lead(_OTHER).crash(power=False)
        scene.fill(b"2")
        for sim in scene.nodes.values():
            if not sim.up:
                sim.start()
        scene.require_settled(_SETTLED_S)
        owners = unpack_slots(scene.map.slots["data"])
        assert {owner: owners.count(owner) for owner in range(4)} == dict.fromkeys(range(4), 256)
        scene.check(b"2")


@scenario
def what_cannot_be_removed_or_moved_stays() -> None:
    """metadata-0 keeps slot 0, whatever is asked."""
    with _Scene(metadata=2) as scene:
        scene.allow_removals()
        scene.refuses(lambda c: c.cluster.remove_group("metadata-0"), "cannot be removed")
        scene.refuses(lambda c: c.cluster.move_slots("metadata-1", group="metadata-0"), "slot 0")
        scene.refuses(lambda c: c.cluster.move_slots("metadata-1", slots=[0]), "slot 0")
        scene.refuses(lambda c: c.cluster.move_replica("metadata-0", "n1", "n2"), "every node")
        scene.order(lambda c: c.cluster.move_slots("metadata-1", group="metadata-0", half=True))
        scene.require_settled(_SETTLED_S)
        scene.merge("metadata-1", "metadata-0")
        scene.order(lambda c: c.cluster.remove_group("metadata-1"))
        scene.require_settled(_SETTLED_S)
        assert [record.group_id for record in scene.map.groups if record.kind == "metadata"] == [METADATA]


@scenario
def drained_node_leads_nothing_until_it_is_undrained() -> None:
    """Not after a restart, and not after the death of another leader; then it gets its share back."""
    with _Scene(data=3, offset=2) as scene:
        name = scene.lead(DATA).name
        scene.order(lambda c: c.cluster.drain(name))

        def leads() -> list[str]:
            return [
                record.group_id.name
                for record in scene.map.groups
                if (leader := scene.leader(record.group_id)) is not None and leader.name == name
            ]

        assert scene.run_until(lambda: not leads(), 10.0), f"it leads {leads()}"
        scene.nodes[name].crash(power=False)
        scene.run(1.0)
        scene.nodes[name].start()
        scene.require_settled(_SETTLED_S)
        assert not leads()
        other = scene.lead(DATA)
        other.crash(power=False)
        assert scene.run_until(lambda: scene.leader(DATA) not in (None, other), 10.0)
        assert not leads(), "another could lead"
        third = scene.lead(DATA)
        assert third.node is not None
        third.node.drivers[DATA].group.transfer(name)
        assert scene.run_until(lambda: leads() == ["data-0"], 5.0), "the order has no effect"
        assert scene.run_until(lambda: not leads(), 5.0), "it leads, although another can"
        other.start()
        scene.require_settled(_SETTLED_S)
        scene.refuses(lambda c: c.cluster.transfer("data-0", name), "is drained")
        scene.order(lambda c: c.cluster.drain(name, undo=True))
        assert scene.run_until(lambda: len(leads()) >= 2, 20.0), f"it leads {leads()} of {len(scene.map.groups)}"


@scenario
def replica_is_moved_by_hand() -> None:
    """Its new node votes, and the old one has nothing left."""
    with _Scene(nodes=4, data=1) as scene:
        scene.fill(b"1")
        record = scene.map.group(DATA)
        assert record is not None
        (free,) = {*scene.nodes} - {*record.replicas}
        scene.order(lambda c: c.cluster.move_replica("data-0", record.preferred, free))
        scene.require_settled(_SETTLED_S)
        leader = scene.lead(DATA).node
        assert leader is not None
        assert free in leader.drivers[DATA].group.configuration.voters
        gone = scene.nodes[record.preferred].node
        assert gone is not None
        assert scene.run_until(lambda: DATA not in gone.drivers, 10.0), "the old replica stays"
        scene.check(b"1")


@scenario
def write_whose_group_is_removed_is_not_done_twice() -> None:
    """Its answer is lost, its group is merged away and removed, and its client hears of all that at once: nobody can
    say whether it was done."""
    with _Scene(data=2) as scene:
        scene.allow_removals()
        scene.fill(b"1")
        scene.transfer("n1", _OTHER)
        slots = scene.slots_of(1)
        space = next(f"of-{n}" for n in range(100) if crc32(text(f"of-{n}")) & SLOT_MASK in slots)
        writer = scene.client(Options(deadline_s=20.0))
        scene.ask(writer, lambda c: c.kv.put(space, "counted", b"0"))
        for node in scene.nodes:
            scene.network.cut(node, writer.name)
        task = scene.begin(writer, lambda c: c.kv.put(space, "once", b"1"))
        scene.run(0.5)
        assert scene.ask(scene.two, lambda c: c.kv.get(space, "once")) is not None, "it has not come"
        for node in scene.nodes:
            scene.network.reset(node, writer.name)
        scene.ask(scene.two, lambda c: c.kv.delete(space, "once"))
        scene.merge("data-1", "data-0")
        scene.order(lambda c: c.cluster.remove_group("data-1"))
        scene.network.heal()
        assert scene.run_until(task.done, 5.0), "it is asked of a group that is not there"
        error = task.exception()
        assert isinstance(error, MetadError), f"{error!r}"
        assert not error.outcome_known, f"{error!r}"
        assert scene.ask(scene.two, lambda c: c.kv.get(space, "once")) is None, "it was done twice"


class _Theatre(_Scene, Theatre):
    """One with watchers, too."""


@scenario
def watch_goes_on_over_a_merge_and_a_removal() -> None:
    """Whoever keeps up is told everything once, without a gap; so is who begins anew at an old token."""
    for seed in (1,):
        with _Theatre(seed) as scene:
            scene.allow_removals()
            watchers = [scene.watch(), scene.watch(snapshot=True), scene.watch(keeps=lambda: True)]
            scene.write(scene.one)
            scene.run(0.3)
            scene.merge("data-1", "data-0")
            scene.run(0.5)
            watchers[2].kill()
            scene.order(lambda c: c.cluster.remove_group("data-1"))
            scene.run(0.5)
            watchers[2].begin()  # its token names the group
            scene.run(0.5)
            watchers.append(scene.watch())
            scene.end()
            assert not any(watcher.gaps for watcher in watchers), "nothing was cut"


@scenario
def watcher_that_is_away_while_its_group_goes_hears_of_a_gap() -> None:
    """The log that it has not read to its end is gone."""
    with _Theatre() as scene:
        scene.allow_removals()
        watcher = scene.watch(keeps=lambda: True)
        scene.write(scene.one)
        scene.run(0.3)
        watcher.kill()
        scene.run(0.3)
        scene.merge("data-1", "data-0")
        scene.order(lambda c: c.cluster.remove_group("data-1"))
        scene.run(0.5)
        watcher.begin()
        scene.end()
        assert watcher.gaps, "the gap was not announced"


@scenario
def node_that_dies_while_a_group_is_removed_drops_it_later() -> None:
    """The map is on its disk, and its replica has not been dropped when it dies."""
    with _Scene(data=2) as scene:
        scene.allow_removals()
        scene.merge("data-1", "data-0")
        sim = next(one for one in scene.nodes.values() if one is not scene.lead(METADATA))
        assert sim.node is not None
        assert sim.process is not None
        sim.node.drivers[_OTHER].installing = True  # so it is not dropped yet
        scene.order(lambda c: c.cluster.remove_group("data-1"))
        scene.run(1.0)
        sim.process.context.run(sim.node.checkpoints.make, lambda: None)
        scene.run(1.0)
        sim.crash(power=False)
        sim.start()
        scene.require_settled(_SETTLED_S)


# --- groups that prefer a region ---

_FIVE = ("us", "us", "us", "eu", "eu")


@scenario
def group_is_led_in_the_region_that_it_prefers() -> None:
    """By another voter there while the preferred leader is down, by others while nobody there is up, and there again
    as soon as one is back. Nothing that was written is lost."""
    with _Scene(nodes=5, replicas=5, data=2, regions=_FIVE) as scene:
        scene.fill(b"1")
        scene.prefer(DATA, "eu")
        first = scene.require_led_by("n4", "n5")
        first.crash()
        other = scene.require_led_by(*{"n4", "n5"} - {first.name})
        scene.transfer("n1", METADATA)
        other.crash()
        scene.require_led_by("n1", "n2", "n3")
        scene.fill(b"2")
        other.start()
        scene.require_led_by(other.name)
        first.start()
        scene.require_settled(_SETTLED_S)
        scene.check(b"2")
        scene.refuses(lambda c: c.cluster.transfer("data-0", "n1"), "prefers leaders in eu")
        scene.order(lambda c: c.cluster.rebalance())
        scene.require_settled(_SETTLED_S)
        scene.order(lambda c: c.cluster.prefer("data-0", ""))
        scene.transfer("n1")


@scenario
def group_is_handed_to_nobody_who_lacks_entries_or_is_drained() -> None:
    """One voter of the region is drained, and what the other was sent has not reached it."""
    with _Scene(nodes=5, replicas=5, regions=_FIVE) as scene:
        scene.transfer("n1", METADATA)
        scene.transfer("n1")
        scene.order(lambda c: c.cluster.drain("n4"))
        before = {*scene.elections}
        scene.isolate("n5")
        scene.prefer(DATA, "eu")
        scene.fill(b"1")
        assert scene.require_led_by("n1", "n2", "n3")
        led = {scene.elections[new] for new in {*scene.elections} - before if new[0] == DATA.name}
        assert "n4" not in led, "it is drained"
        scene.network.heal()
        scene.require_led_by("n5")
        scene.require_settled(_SETTLED_S)
        scene.check(b"1")


@scenario
def learner_in_a_remote_region_never_leads() -> None:
    """metadata-0 has a learner in a region that it is to be led in, and voters die: only voters lead. (At every look,
    a learner that leads is a violation.)"""
    regions = ("eu", "us", "ap", "sa", "af", "oc")
    with _Scene(nodes=6, replicas=5, regions=regions) as scene:
        (learner,) = scene.map.group(METADATA).learners  # type: ignore[union-attr]
        region = regions[int(learner[1:]) - 1]
        assert "where it has no replica" in scene.prefer(METADATA, region)
        voters = {*scene.nodes} - {learner}
        for _ in range(2):
            leader = scene.require_led_by(*voters, group=METADATA)
            leader.crash()
            voters -= {leader.name}
        scene.require_led_by(*voters, group=METADATA)
        for sim in scene.nodes.values():
            if not sim.up:
                sim.start()
        scene.require_settled(_SETTLED_S)
