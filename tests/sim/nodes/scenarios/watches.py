"""What must hold of watches, played out by hand: the traps that are known, one each. The judge of each watcher hears
everything, so a scenario needs no assertion where it would object by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

from metad.config import RaftConfig, StorageConfig
from metad_client import Client, KvKey, KvPutItem, MetadError, SessionProperties
from metad_judge.watch import Wanted
from metad_wire import messages as m
from metad_wire.cluster import METADATA, GroupId
from metad_wire.key import SLOT_MASK, text
from metad_wire.methods import KV_PUT, encode
from metad_wire.watch import ChangeKind

from ..cluster import DATA, SimClient
from ..watchers import Mirror, Watcher
from .scene import Scene, scenario

KV = Wanted("kv")
OTHER = GroupId("data", 1)
SMALL = StorageConfig(engine="memory", log_retained_bytes=500)
_SPACES = [f"space-{number}" for number in range(24)]
_COMES_S = 20.0
"""In quiet, everything has come by then."""


class Theatre(Scene):
    """A scene with watchers and with somebody who writes."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        super().__init__(seed, **{"data": 2, **settings})
        self.watchers: list[Watcher] = []
        self.writing = True

    def watch(self, *wanted: Wanted, name: str = "", opened: bool = True, **how: Any) -> Watcher:
        """One more watcher; wait until it is open."""
        watcher = Watcher(self, name or f"watcher {len(self.watchers) + 1}", *(wanted or (KV,)), **how)
        self.watchers.append(watcher)
        watcher.begin()
        if opened:
            assert self.run_until(lambda: watcher.open, _COMES_S), f"{watcher.name} does not open"
        return watcher

    def again(self, watcher: Watcher) -> Watcher:
        """Kill a watcher, and have it begin at the token that it has kept."""
        watcher.kill()
        watcher.begin()
        return watcher

    def write(self, client: SimClient, spaces: Sequence[str] = _SPACES, *, every_s: float = 0.002) -> None:
        """Have a client write, and now and then delete, keys in all these namespaces, until :attr:`writing` ends."""

        async def one(opened: Client, space: str, turn: int) -> None:
            with suppress(MetadError):
                if turn % 7 == 6:
                    await opened.kv.delete(space, "k", deadline_s=5.0)
                elif turn % 5 == 4:
                    await opened.kv.put_many([KvPutItem(space, key, b"%d" % turn) for key in "klm"], deadline_s=5.0)
                else:
                    await opened.kv.put(space, "k", b"%d" % turn, deadline_s=5.0)

        async def work() -> None:
            opened = client.client or await client.open()
            turn = 0
            while self.writing:
                turn += 1
                for space in spaces:
                    await asyncio.sleep(every_s)
                    self.work(client.process, one(opened, space, turn), f"{client.name} writes {space}")

        self.work(client.process, work(), f"{client.name} writes")

    def end(self) -> None:
        """Nobody writes any more: everything comes, and was right."""
        self.writing = False
        self.run(6.0)
        self.network.heal()
        for sim in self.nodes.values():
            if not sim.up:
                sim.start()
        self.require_settled(40.0)
        self.run_until(lambda: not any(watcher.late for watcher in self.watchers), _COMES_S)
        for watcher in self.watchers:
            watcher.finish()

    def kill_leader(self, group: GroupId) -> None:
        """The process of a group's leader dies."""
        leader = self.leader(group)
        assert leader is not None
        leader.crash(power=False)

    def told_by_n1(self, *groups: GroupId, late: GroupId) -> list[Watcher]:
        """Have n1 serve watchers, n3 lead these groups, and n2 another one, whose log does not come to n1 any more."""
        for group in groups:
            self.transfer("n3", group)
        self.transfer("n2", late)
        watchers = [self.watch(), self.watch(progress_s=0.1)]
        self.write(self.one, every_s=0.01)
        self.run(0.3)
        self.network.partition(["n1"], ["n2"])
        self.run(0.1)
        return watchers

    def catches_up(self, before: Sequence[Watcher]) -> None:
        """Begin further watches while a group is late where they are told; then let it be late no longer. None of them,
        and none that were there before, has a gap."""
        self.run(0.3)
        after = [self.watch(snapshot=snapshot) for snapshot in (False, True)]
        self.run(0.5)
        self.network.heal()
        self.run(4.0)
        self.end()
        assert not any(watcher.gaps for watcher in (*before, *after)), "nothing was cut"

    def pinned_by_n1(self, early: GroupId, *late: GroupId) -> list[Watcher]:
        """Begin watches that n1 alone serves. It can say now how far one group is, whose leader it reaches; of the
        others it can once the network is whole."""
        for group in (METADATA, early):
            self.transfer("n2", group)
        for group in late:
            self.transfer("n3", group)
        self.write(self.one, every_s=0.01)
        self.run(0.3)
        self.network.partition(["n1"], ["n3"])
        begun = [self.watch(snapshot=snapshot, opened=False) for snapshot in (False, True, False, True)]
        for watcher in begun:
            assert watcher.client is not None
            self.network.partition([watcher.client.name], ["n2", "n3"])
        self.run(0.5)
        return begun

    def slots(self, *spaces: str) -> list[int]:
        """Where namespaces are."""
        return [crc32(text(space)) & SLOT_MASK for space in spaces]

    def cut_logs(self, *but: str) -> None:
        """Write until no node's log has what was there before; ``but`` for these nodes."""
        before = {GroupId("data", ordinal): self.written.known(GroupId("data", ordinal)) for ordinal in range(2)}

        def cut() -> bool:
            return all(
                driver.group.log.base_index > index
                for sim in self.nodes.values()
                if sim.node is not None and sim.name not in but
                for group, index in before.items()
                if (driver := sim.node.drivers.get(group)) is not None
            )

        async def fill(client: Client) -> None:
            await client.kv.put_many([KvPutItem(space, "fill", b"." * 90) for space in _SPACES])

        for _ in range(3_000):
            self.ask(self.two, fill)
            if cut():
                return
        raise AssertionError("the logs are not cut")


def _raft(**changes: Any) -> RaftConfig:
    return RaftConfig(**{"election_timeout_ms": 300, "heartbeat_ms": 50, "sleep_after_ms": 500, **changes})


# --- slots that move -------------------------------------------------------------------------------------


@scenario
def watch_over_a_move_that_is_aborted_and_repeated() -> None:
    """The mover dies when its source has sealed the slots: its successor unseals them, and begins again."""
    for seed in (1, 2):
        with Theatre(seed) as scene:
            scene.watch()
            scene.watch(snapshot=True)
            scene.write(scene.one)
            scene.run(0.3)
            scene.once_sealed(DATA, lambda scene=scene: scene.kill_leader(DATA))  # type: ignore[misc]
            number = scene.begin_move(0, 1)
            assert scene.run_until(lambda scene=scene, number=number: scene.is_moved(number), 20.0)  # type: ignore[misc]
            assert scene.written.unsealed(DATA) == 1, "nothing was unsealed"
            scene.run(0.3)
            scene.end()


@scenario
def watch_from_one_group_to_the_other_and_back() -> None:
    """Slots go there and back, and there again. One watcher is late all the time, one begins anew at old tokens."""
    with Theatre(data=2) as scene:
        scene.watch()
        scene.watch(pauses=lambda: 0.1 if scene.writing else 0.0)
        late = scene.watch(keeps=_every(5))
        scene.write(scene.one)
        slots = scene.slots_of(0)
        for _ in range(2):
            scene.move(0, 1, slots)
            scene.again(late)
            scene.move(1, 0, slots)
        scene.run(0.5)
        scene.end()


@scenario
def source_is_late_where_the_target_is_not() -> None:
    """The node that tells has not applied that the source sealed the slots, and has applied that the target adopted
    them. A watch that is open waits for the source. One that begins there sees two groups that have the slots."""
    with Theatre(data=2) as scene:
        before = scene.told_by_n1(METADATA, OTHER, late=DATA)
        scene.move(0, 1, scene.slots(*_SPACES[::2]))
        scene.catches_up(before)


@scenario
def group_between_two_moves_is_late() -> None:
    """Slots go from the first group to the second and on to the third. The node that tells knows what the first and the
    third did long before what the second did."""
    with Theatre(data=3) as scene:
        before = scene.told_by_n1(METADATA, DATA, GroupId("data", 2), late=OTHER)
        slots = scene.slots_of(0)
        scene.move(0, 1, slots)
        scene.move(1, 2, slots)
        scene.catches_up(before)


@scenario
def source_is_pinned_before_a_move_and_the_target_behind_it() -> None:
    """A watch that begins sees two groups that have the slots."""
    with Theatre(data=2) as scene:
        begun = scene.pinned_by_n1(DATA, OTHER)
        scene.move(0, 1, scene.slots(*_SPACES[::2]))
        scene.network.heal()
        scene.run(4.0)
        scene.end()
        assert not any(watcher.gaps for watcher in begun), "nothing was cut"


@scenario
def group_between_two_moves_is_pinned_before_them() -> None:
    """Slots go from the first group to the second and on to the third, while a watch begins."""
    with Theatre(data=3) as scene:
        begun = scene.pinned_by_n1(OTHER, DATA, GroupId("data", 2))
        slots = scene.slots_of(0)
        scene.move(0, 1, slots)
        scene.move(1, 2, slots)
        scene.network.heal()
        scene.run(4.0)
        scene.end()
        assert not any(watcher.gaps for watcher in begun), "nothing was cut"


@scenario
def group_is_added_while_watched() -> None:
    """It begins without slots, and gets some."""
    with Theatre(data=1) as scene:
        watcher = scene.watch()
        kept = scene.watch(keeps=_once())
        scene.write(scene.one)
        scene.run(0.3)
        kept.kill()
        scene.ask(scene.two, lambda c: c.cluster.add_group("data"))
        scene.lead(OTHER)
        scene.move(0, 1, scene.slots(*_SPACES[::2]))
        scene.run(0.3)
        kept.begin()  # its token does not name the group
        scene.run(0.3)
        scene.end()
        assert any(change.group == "data-1" for change in scene.written.log)
        assert not watcher.gaps, "nothing was cut"


@scenario
def token_names_a_group_that_the_node_does_not_know() -> None:
    """A watcher that goes on is connected first to a node which has not heard of the new group that its slots are in.
    Nothing else makes the client ask for a newer map so soon."""
    with Theatre(data=1) as scene:
        watcher = scene.watch(keeps=lambda: True)
        scene.transfer("n3", METADATA)
        scene.transfer("n2", DATA)
        scene.network.partition(["n1"], ["n3"])
        scene.ask(scene.two, lambda c: c.cluster.add_group("data"))
        scene.lead(OTHER)
        scene.move(0, 1, scene.slots(*_SPACES[::2]))
        for space in _SPACES:
            scene.ask(scene.two, lambda c, space=space: c.kv.put(space, "k", b"1"))  # type: ignore[misc]
        assert scene.run_until(lambda: not watcher.late, _COMES_S)
        watcher.kill()
        for space in _SPACES:
            scene.ask(scene.two, lambda c, space=space: c.kv.put(space, "k", b"2"))  # type: ignore[misc]
        watcher.begin()
        assert watcher.client is not None
        for node in ("n2", "n3"):
            scene.network.slow(node, watcher.client.name, 30.0)
        scene.run(4.0)
        assert not watcher.late, "it waited until its client asked for the map by itself"
        scene.end()
        assert not watcher.gaps, "the group is there"


# --- logs that are cut -----------------------------------------------------------------------------------


@scenario
def watch_over_a_log_that_was_cut() -> None:
    """A watcher is away for so long that nobody has the log it needs: that is a gap, and then a snapshot."""
    with Theatre(storage=SMALL, raft=_raft(log_cache_bytes=1)) as scene:
        watcher = scene.watch(KV, keeps=lambda: True)
        for space in _SPACES:
            scene.ask(scene.one, lambda c, space=space: c.kv.put(space, "dropped", b"1"))  # type: ignore[misc]
        assert scene.run_until(lambda: not watcher.late, _COMES_S)
        watcher.kill()
        for space in _SPACES:
            scene.ask(scene.one, lambda c, space=space: c.kv.delete(space, "dropped"))  # type: ignore[misc]
        scene.cut_logs()
        scene.write(scene.one)
        watcher.begin()
        scene.run(0.5)
        scene.end()
        assert watcher.gaps, "the gap was not announced"


@scenario
def slots_move_while_nobody_looks_and_logs_are_cut() -> None:
    """While a watcher is away its slots move, and the log of the one group is cut, at times that of the other."""
    for seed in (1, 2):
        with Theatre(seed, storage=SMALL, raft=_raft(log_cache_bytes=1)) as scene:
            watcher = scene.watch()
            scene.write(scene.one, every_s=0.01)
            scene.run(0.3)
            watcher.kill()
            scene.move(0, 1, scene.slots(*_SPACES[::2]))
            scene.cut_logs()
            watcher.begin()
            scene.run(0.2)
            scene.move(1, 0)
            scene.run(0.5)
            scene.end()


@scenario
def cut_does_not_take_a_watch_back() -> None:
    """The log behind a token is cut wherever it was, and one node has not come to the token: it must not be asked how
    the rows are."""
    for seed in (1, 2, 3, 4):
        with Theatre(seed, storage=SMALL, raft=_raft(log_cache_bytes=1)) as scene:
            for group in (DATA, OTHER):
                scene.transfer("n3", group)
            watcher = scene.watch(keeps=lambda: True)
            scene.network.partition(["n1"], ["n2", "n3"])
            for space in _SPACES:
                scene.ask(scene.one, lambda c, space=space: c.kv.put(space, "k", b"1"))  # type: ignore[misc]
            assert scene.run_until(lambda watcher=watcher: not watcher.late, _COMES_S)  # type: ignore[misc]
            watcher.kill()
            scene.cut_logs("n1")
            watcher.begin()
            scene.run(8.0)
            scene.end()
            assert watcher.gaps, "the gap was not announced"


@scenario
def image_begins_at_what_was_acknowledged() -> None:
    """The only node that an image reaches lacks what was acknowledged before, and so does the only one that a watch
    reaches which begins now."""
    with Theatre() as scene:
        for group in (DATA, OTHER):
            scene.transfer("n3", group)
        mirror, now = Mirror(scene, "mirror", KV), Watcher(scene, "now", KV)
        scene.network.partition(["n1"], ["n2", "n3"])
        for space in _SPACES:
            scene.ask(scene.one, lambda c, space=space: c.kv.put(space, "k", b"1"))  # type: ignore[misc]
        for begun in (mirror, now):
            begun.begin()
            assert begun.client is not None
            scene.network.partition([begun.client.name], ["n2", "n3"])
        scene.run(2.0)
        assert not mirror.caught_up, "it has caught up with nobody who knows"
        scene.network.heal()
        assert scene.run_until(lambda: mirror.caught_up and now.open, _COMES_S), "it does not open"
        scene.run(1.0)
        assert not now.told, "it is told of what was acknowledged before it began"
        mirror.finish(_COMES_S)


@scenario
def image_waits_for_a_replica_that_lags() -> None:
    """The only node that an image reaches asks the leader how far the group is, and is not so far: its disk hangs."""
    with Theatre() as scene:
        for group in (DATA, OTHER):
            scene.transfer("n3", group)
        late = scene.nodes["n1"].environment
        assert late is not None
        late.hang_disk()
        for space in _SPACES:
            scene.ask(scene.one, lambda c, space=space: c.kv.put(space, "k", b"1"))  # type: ignore[misc]
        mirror = Mirror(scene, "mirror", KV)
        mirror.begin()
        assert mirror.client is not None
        scene.network.partition([mirror.client.name], ["n2", "n3"])
        scene.run(1.0)
        assert not mirror.caught_up, "it has caught up with a replica that has not"
        late.unhang_disk()
        assert scene.run_until(lambda: mirror.caught_up, _COMES_S), "it does not catch up"
        mirror.finish(_COMES_S)


@scenario
def image_over_a_gap() -> None:
    """What was deleted while the image could not be kept current vanishes from it."""
    with Theatre(storage=SMALL, raft=_raft(log_cache_bytes=1)) as scene:
        for space in _SPACES:
            scene.ask(scene.one, lambda c, space=space: c.kv.put(space, "dropped", b"1"))  # type: ignore[misc]
        mirror = Mirror(scene, "mirror", KV)
        mirror.begin()
        assert scene.run_until(lambda: mirror.caught_up, _COMES_S)
        assert mirror.client is not None
        scene.network.partition([mirror.client.name], [*scene.nodes])
        scene.run(6.0)
        for space in _SPACES[::2]:
            scene.ask(scene.one, lambda c, space=space: c.kv.delete(space, "dropped"))  # type: ignore[misc]
        scene.cut_logs()
        scene.network.heal()
        scene.run(1.0)
        scene.end()
        mirror.finish(_COMES_S)


# --- replicas --------------------------------------------------------------------------------------------


@scenario
def nothing_is_told_before_it_is_committed() -> None:
    """A leader is cut off with a client and a watcher: what it takes is lost, and the watcher must not hear of it."""
    with Theatre() as scene:
        watcher = scene.watch(keeps=lambda: True)
        assert watcher.client is not None
        scene.put(scene.one, "a", b"1")
        assert scene.run_until(lambda: not watcher.late, _COMES_S)
        old = scene.lead(DATA if {*scene.slots("space")} <= scene.slots_of(0) else OTHER)
        scene.isolate(old.name, scene.one, watcher.client)
        scene.begin(scene.one, lambda c: c.kv.put("space", "a", b"lost", deadline_s=0.3))
        scene.run(0.02)
        scene.again(watcher)  # it comes back to the old leader
        assert watcher.client is not None
        scene.network.partition([watcher.client.name], [name for name in scene.nodes if name != old.name])
        scene.run(3.0)
        scene.network.heal()
        scene.put(scene.two, "a", b"2")
        scene.end()


@scenario
def follower_that_hears_no_leader_ends_its_streams() -> None:
    """A watcher that is told by a node which is cut off from the others goes elsewhere by itself."""
    with Theatre() as scene:
        stops = False
        watchers = [scene.watch() for _ in range(3)]
        # These take nothing for long, so there is something left to send when their streams end.
        watchers += [scene.watch(pauses=lambda: 15.0 if stops else 0.0, buffer_bytes=1) for _ in range(2)]
        stops = True
        for _ in range(3):
            items = [KvPutItem(space, "large", bytes(12_000)) for space in _SPACES]
            assert scene.ask(scene.one, lambda c, items=items: c.kv.put_many(items)).ok  # type: ignore[misc]
        scene.write(scene.one, every_s=0.05)
        scene.run(0.5)
        follower = next(name for name in scene.nodes if name not in (scene.lead().name, scene.lead(OTHER).name))
        scene.network.partition([follower], [name for name in scene.nodes if name != follower])
        scene.run(25.0)
        scene.writing = stops = False
        scene.run(15.0)
        assert scene.run_until(lambda: not any(watcher.late for watcher in watchers), _COMES_S), "one was left alone"
        scene.end()


@scenario
def watch_goes_on_at_a_replica_that_is_behind() -> None:
    """A token is ahead of the only node that the watcher reaches at first."""
    with Theatre() as scene:
        watcher = scene.watch()
        follower = next(name for name in scene.nodes if name not in (scene.lead().name, scene.lead(OTHER).name))
        scene.network.partition([follower], [name for name in scene.nodes if name != follower])
        scene.write(scene.one, every_s=0.01)
        scene.run(1.0)
        watcher.kill()
        watcher.begin()
        assert watcher.client is not None
        others = [name for name in scene.nodes if name != follower]
        scene.network.partition([watcher.client.name], others)
        scene.run(4.0)
        scene.network.heal()
        scene.run(1.0)
        scene.end()
        assert not watcher.gaps, "the log is there"


@scenario
def follower_gets_a_snapshot_while_it_is_watched() -> None:
    """That ends its streams, for entries are missing there: it is no gap, for the others have the log."""
    with Theatre(storage=SMALL, raft=_raft(log_cache_bytes=1)) as scene:
        watchers = [scene.watch() for _ in range(4)]
        leaders = scene.lead().name, scene.lead(OTHER).name
        late = next(name for name in scene.nodes if name not in leaders)
        scene.isolate(late)
        scene.cut_logs(late)
        scene.run(1.5)
        scene.network.heal()
        scene.run(1.0)
        scene.end()
        assert len(watchers) == 4


@scenario
def node_that_ends_hands_its_watchers_over() -> None:
    """One node after the other ends in order while clients write: no watcher has a gap, or waits for long."""
    with Theatre() as scene:
        watchers = [scene.watch() for _ in range(3)]
        watchers.append(scene.watch(pauses=lambda: 0.2, buffer_bytes=1))  # there is always something left to send
        items = [KvPutItem(space, "large", bytes(12_000)) for space in _SPACES]
        scene.write(scene.one, every_s=0.02)
        for name in list(scene.nodes):
            scene.run(0.3)
            for _ in range(3):
                assert scene.ask(scene.two, lambda c: c.kv.put_many(items)).ok
            ended = scene.nodes[name].end()
            assert scene.run_until(ended.done, 8.0), f"{name} does not end"
            scene.run(0.5)
            scene.nodes[name].start()
            assert scene.run_until(scene.serving, 5.0)
            scene.run(1.0)
        scene.end()
        assert not any(watcher.gaps for watcher in watchers)


@scenario
def watch_over_leaders_that_die() -> None:
    """Again and again, with the power."""
    with Theatre(1) as scene:
        scene.watch()
        scene.watch(keeps=_every(3))
        scene.watch(snapshot=True, opened=False)
        scene.write(scene.one, every_s=0.01)
        for group in (DATA, OTHER, DATA, METADATA):
            scene.run(0.4)
            dead = scene.lead(group)
            dead.crash()
            scene.run(1.0)
            dead.start()
            scene.again(scene.watchers[1])
        scene.run(0.5)
        scene.end()


@scenario
def watch_goes_on_at_a_token() -> None:
    """One watcher is killed again and again, and others begin at tokens that it had kept."""
    with Theatre() as scene:
        watcher = scene.watch()
        scene.write(scene.one, every_s=0.01)
        for _ in range(4):
            scene.run(0.5)
            scene.again(watcher)
        scene.run(0.5)
        for at in range(5):
            branch = watcher.branch(random.Random(at))
            assert branch is not None
            scene.watchers.append(branch)
            branch.begin()
        scene.run(0.5)
        scene.end()


@scenario
def marks_promise_that_nothing_older_follows() -> None:
    """Marks come often, while streams move from one replica to another and slots from one group to another."""
    with Theatre() as scene:
        watcher = scene.watch(progress_s=0.05)
        late = scene.watch(progress_s=0.05, keeps=_every(7))
        scene.write(scene.one, every_s=0.01)
        scene.run(0.5)
        scene.move(0, 1, scene.slots(*_SPACES[::2]))
        scene.kill_leader(DATA)
        scene.run(1.0)
        scene.again(late)
        scene.run(1.0)
        scene.end()
        assert watcher.marks > 20, "there are few marks"


# --- what an entry says ----------------------------------------------------------------------------------


@scenario
def hot_key_is_written_by_many_at_once() -> None:
    """Each version of it comes, though many requests wait for the same entry. What a request writes comes at once."""
    with Theatre() as scene:
        watcher = scene.watch(previous=True)
        named = scene.watch(Wanted("kv", tenant="space", prefix="hot"))
        group = DATA if {*scene.slots("space")} <= scene.slots_of(0) else OTHER
        leader = scene.lead(group)
        answers: list[Any] = []
        for number in range(60):
            names = ["hot"] if number % 3 else ["hot", "hot-1", "hot-2"]
            body = m.KvPut([m.KvPutItem("space", name, b"%d" % number) for name in names])
            payload = encode(m.Request(5_000, m.Identity(7, number + 1, 1), body, group.name))
            assert leader.node is not None
            assert leader.process is not None
            leader.process.context.run(leader.node.requests.submit, KV_PUT.code, payload, answers.append)
        assert scene.run_until(lambda: len(answers) == 60, 5.0)
        assert all(isinstance(answer, bytes) for answer in answers), answers
        scene.end()
        assert watcher.told == named.told == 60 + 2 * 20


@scenario
def sessions_come_and_go() -> None:
    """Owners are created, taken over, disconnected and deleted; whoever had them before is always known."""
    with Theatre() as scene:
        watcher = scene.watch(Wanted("session"), previous=True)
        lost = scene.watch(Wanted("session", broker="one"), previous=True)
        kept = scene.watch(Wanted("session", broker="one"), previous=True, keeps=_once())

        async def live(client: Client) -> None:
            sessions = client.sessions
            for turn in range(3):
                for number in range(6):
                    device = f"device-{number}"
                    await sessions.takeover("one", turn + 1, "acme", device)
                    await sessions.update("one", turn + 1, "acme", device, SessionProperties(60, b"%d" % turn))
                    if number % 2:
                        await sessions.takeover("two", turn + 1, "acme", device, clean_start=number == 3)
                        await sessions.disconnect("two", turn + 1, "acme", device)
                    if number == 4:
                        await sessions.delete("acme", device)

        scene.ask(scene.one, live, 30.0)
        assert scene.run_until(lambda: not lost.late, _COMES_S)
        assert lost.told, "a broker does not hear of its sessions"
        assert {ChangeKind.CREATED, ChangeKind.CHANGED, ChangeKind.DELETED} <= {*watcher.kinds}
        scene.again(kept)
        scene.end()


@scenario
def brokers_come_and_go() -> None:
    """Registrations, drains and ends are told as they happen; an image has the brokers that there are."""
    brokers = Wanted("broker")
    with Theatre(data=1) as scene:
        watcher = scene.watch(brokers, previous=True)
        named = scene.watch(Wanted("broker", prefix="one"), keeps=_once())
        mirror = Mirror(scene, "mirror", brokers)
        mirror.begin()

        async def live(client: Client) -> None:
            for name in ("one", "two"):
                life = await client.brokers.register(name, address=f"{name}:1883")
                await life.drain()
                await life.end()

        for _ in range(2):
            scene.ask(scene.one, live, 30.0)
            scene.kill_leader(METADATA)
            scene.run(2.0)
            for sim in scene.nodes.values():
                if not sim.up:
                    sim.start()
            scene.again(named)
        scene.end()
        mirror.finish(_COMES_S)
        late = scene.watch(brokers, snapshot=True)
        assert scene.run_until(lambda: bool(late.rows), _COMES_S)
        late.finish()
        assert watcher.told
        assert named.told
        assert late.rows == 2


@scenario
def previous_values_are_known_while_a_watch_is_current() -> None:
    """It need not look them up in the log: they are what it told last."""
    with Theatre() as scene:
        watcher = scene.watch(previous=True)
        for turn in range(4):
            for space in _SPACES[:6]:
                scene.ask(scene.one, lambda c, space=space, turn=turn: c.kv.put(space, "k", b"%d" % turn))  # type: ignore[misc]
        scene.ask(scene.one, lambda c: c.kv.delete(_SPACES[0], "k"))
        scene.end()
        assert not watcher.judge.unknown, f"{watcher.judge.unknown} previous values were not known"


@scenario
def filters_let_through_what_they_say() -> None:
    """Names that begin like others, keys, tenants; beside each other in one watch, and each alone."""
    names = ["a", "a\0", "ab", "abc", "b", ""]
    with Theatre() as scene:
        filters = [
            Wanted("kv", tenant="ab"),
            Wanted("kv", tenant="a", prefix="a"),
            Wanted("kv", tenant="a", prefix="ab"),
            Wanted("kv", prefix="ab"),
            Wanted("kv", keys=(KvKey("a", "ab"), KvKey("ab", "a"))),
            Wanted("kv", tenant="a\0"),
        ]
        for each in filters:
            scene.watch(each)
        scene.watch(*filters[:3])
        kept = [scene.watch(each, keeps=_once()) for each in filters]
        shown = [scene.watch(each, snapshot=True) for each in filters]
        items = [KvPutItem(space, key, b"1") for space in names if space for key in names]
        for _ in range(2):
            result = scene.ask(scene.one, lambda c: c.kv.put_many(items))
            assert result.ok, result.errors
        for watcher in kept:
            scene.again(watcher)
        later = [scene.watch(each, snapshot=True) for each in filters]
        scene.end()
        assert all(watcher.told for watcher in (*kept, *shown))
        assert all(watcher.rows for watcher in later)


# --- snapshots and what follows them ---------------------------------------------------------------------


@scenario
def snapshot_is_of_one_moment() -> None:
    """Namespaces are written together while snapshots of them begin."""
    with Theatre(data=1) as scene:
        keys = [KvPutItem("space", f"k{number:03}", b"." * 3_000) for number in range(200)]
        assert scene.ask(scene.one, lambda c: c.kv.put_many(keys)).ok

        async def write(client: Client) -> None:
            while scene.writing:
                await client.kv.put_many(keys)
                await asyncio.sleep(0.02)

        task = scene.begin(scene.one, write)
        for _ in range(5):
            scene.watch(snapshot=True, opened=False, pauses=lambda: 0.02, buffer_bytes=65_536)
            scene.run(0.1)
        scene.writing = False
        assert scene.run_until(task.done, 5.0)
        scene.end()


@scenario
def catching_up_meets_what_is_written_meanwhile() -> None:
    """Watchers come back after a while, each at another moment of a busy log."""
    for seed in (1, 2):
        with Theatre(seed, data=1) as scene:
            watchers = [scene.watch(keeps=_every(3 + at)) for at in range(3)]
            scene.write(scene.one, every_s=0.003)
            for turn in range(4):
                scene.run(0.2)
                for watcher in watchers[: 1 + turn % 3]:
                    watcher.kill()
                scene.run(0.05 * turn)
                for watcher in watchers[: 1 + turn % 3]:
                    watcher.begin()
            scene.run(0.3)
            scene.end()


@scenario
def reader_that_stops_holds_up_nobody_and_misses_nothing() -> None:
    """A program takes nothing for seconds, while more is written than anybody holds for it. Others hear it at once."""
    with Theatre() as scene:
        stopped = False
        slow = scene.watch(pauses=lambda: 3.0 if stopped else 0.0)
        quick = scene.watch()
        scene.put(scene.one, "a", b"1")
        assert scene.run_until(lambda: not slow.late, _COMES_S)
        stopped = True
        for number in range(60):
            items = [KvPutItem(space, f"k{number}", bytes(12_000)) for space in _SPACES[:12]]
            scene.ask(scene.one, lambda c, items=items: c.kv.put_many(items))  # type: ignore[misc]
        assert scene.run_until(lambda: not quick.late, 2.0), "the one waits for the other"
        assert slow.late, "it holds everything"
        stopped = False
        scene.end()
        assert not slow.gaps, "the log is there"


def _every(number: int) -> Callable[[], bool]:
    """True every so manyth time."""
    at = 0

    def keeps() -> bool:
        nonlocal at
        at += 1
        return at % number == 1

    return keeps


def _once() -> Callable[[], bool]:
    """True the first time."""
    return _every(1 << 60)
