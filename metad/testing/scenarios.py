"""Situations that decide whether a rule holds, each played out by hand: who leads, what is lost, held back or late is
chosen, nothing is left to chance. Chance alone finds few of them.

A scenario fails by raising. It needs no assertion where :mod:`.invariants` or the state machine would object by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import StorageError
from ..raft import replication
from ..raft.base import LEADER, Timing
from ..raft.journal import REGULAR, RaftLog, record
from ..raft.membership import ChangeRefusedError
from ..raft.messages import (
    AnyMessage,
    Append,
    AppendReply,
    Configuration,
    PreVote,
    Snapshot,
    TimeoutNow,
    Vote,
    VoteReply,
)
from ..raft.replica import RaftGroup
from ..raft.writer import LogWriter
from ..storage import keys
from ..storage.log import LogStore
from .disk import SimDisk
from .machine import Command
from .network import Link
from .world import Hosted, Settings, SimNode, World

Scenario = Callable[[], None]
SCENARIOS: dict[str, Scenario] = {}
ELECTION_S = 0.6


def scenario(function: Scenario) -> Scenario:
    """Put it on the list."""
    SCENARIOS[function.__name__] = function
    return function


class _Rank(random.Random):
    """Draws the same number every time: whose election timeout ends when."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self.number = number

    def random(self) -> float:
        return self.number


class Answer:
    """To one question; ``outcome`` is empty while there is none."""

    def __init__(self) -> None:
        self.outcome = ""
        self.result: Any = None

    def __call__(self, outcome: str, result: Any) -> None:
        assert not self.outcome, "answered twice"
        self.outcome, self.result = outcome, result


class Scene:
    """A world without chance: equal delays, n1 is the first to campaign, messages can be held back and lost by kind."""

    def __init__(self, nodes: int = 3, spares: int = 0, **settings: Any) -> None:
        settings.setdefault("timing", Timing(election_s=ELECTION_S, heartbeat_s=0.1, sleep_after_s=1e9))
        settings.setdefault("fsync", (0.0005, 0.0005))
        self.world = World(
            0,
            Settings(
                nodes=nodes,
                spares=spares,
                link=Link(delay=(0.001, 0.001)),
                turn=(0.0, 0.0),
                noticed=(0.01, 0.01),
                reconnected=(0.01, 0.01),
                **settings,
            ),
        )
        self.world.intercept = self._intercept
        self.sent: list[tuple[str, str, AnyMessage]] = []
        """Everything, in order, also what was held back."""
        self.held: list[tuple[str, str, AnyMessage]] = []
        self._rules: list[tuple[Callable[[str, str, AnyMessage], bool], bool]] = []  # (which, hold or lose)
        self._asked = 0
        self.ranks()

    # --- looking -----------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """All nodes."""
        return list(self.world.nodes)

    def node(self, name: str) -> SimNode:
        """A node."""
        return self.world.nodes[name]

    def hosted(self, name: str) -> Hosted:
        """Its replica and what belongs to it."""
        return self.node(name).hosted[self.world.groups[0]]

    def group(self, name: str) -> RaftGroup:
        """Its replica."""
        return self.hosted(name).group

    def leads(self, name: str) -> bool:
        """Whether it does, as far as it knows."""
        node = self.node(name)
        return node.up and self.group(name).role == LEADER

    def value(self, name: str, key: str = "x") -> Any:
        """What a node's state holds."""
        return self.hosted(name).machine.read(key)

    # --- time and elections ------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run(seconds)

    def until(self, condition: Callable[[], bool], seconds: float = 3.0, text: str = "") -> None:
        """Let time pass until something is so."""
        assert self.world.run_until(condition, seconds, every=0.001), text or "it did not come to that"

    def ranks(self, first: str = "n1") -> None:
        """Whose election timeout is the shortest."""
        for position, name in enumerate([first, *(name for name in self.names if name != first)]):
            node = self.node(name)
            for hosted in node.hosted.values():
                hosted.group.rng = _Rank(min(0.999, position * 0.2))
                if hosted.group.role != LEADER:
                    hosted.group._postpone_election(node.now())
                    hosted.group.host.wake(hosted.group)

    def elect(self, name: str = "n1", seconds: float = 1.5) -> None:
        """Have a node lead. Who led before must not be heard any more."""
        self.ranks(name)
        self.until(lambda: self.leads(name), seconds, f"{name} is not elected")

    def ready(self, name: str = "n1") -> None:
        """Have a node lead, and commit its first entry."""
        self.elect(name)
        self.until(lambda: self.group(name).ready)

    # --- clients -----------------------------------------------------------------------------------------

    def put(self, name: str, value: Any, key: str = "x") -> Answer:
        """Ask a node to write."""
        answer = Answer()
        self._asked += 1
        command = Command(f"w{self._asked}", "put", key, value)
        node = self.node(name)
        node.run(node.life, node.propose, self.world.groups[0], command, answer)
        return answer

    def write(self, name: str, value: Any, key: str = "x") -> None:
        """Have a node write, and wait for its word."""
        answer = self.put(name, value, key)
        self.until(lambda: bool(answer.outcome), text="not answered")
        assert answer.outcome == "done", answer.outcome

    def get(self, name: str, key: str = "x") -> Answer:
        """Ask a node to read."""
        answer = Answer()
        node = self.node(name)
        node.run(node.life, node.read, self.world.groups[0], key, answer)
        return answer

    def do(self, name: str, call: Callable[[RaftGroup], Any]) -> Any:
        """Ask a replica for something, on its loop."""
        results: list[Any] = []
        node = self.node(name)
        node.run(node.life, lambda: results.append(call(self.group(name))))
        return results[0]

    def refused(self, name: str, call: Callable[[RaftGroup], Any]) -> None:
        """It must refuse."""
        try:
            self.do(name, call)
        except ChangeRefusedError:
            return
        raise AssertionError(f"{name} agreed")

    def committed(self, name: str, index: int) -> None:
        """Wait until a replica has committed that far."""
        self.until(lambda: self.group(name).commit >= index)

    # --- the network -------------------------------------------------------------------------------------

    def _intercept(self, source: str, target: str, message: AnyMessage) -> bool:
        self.sent.append((source, target, message))
        for which, hold in self._rules:
            if which(source, target, message):
                if hold:
                    self.held.append((source, target, message))
                return False
        return True

    def hold(
        self, kind: type | tuple[type, ...] = object, source: str = "", target: str = "", *, lose: bool = False
    ) -> None:
        """From now on such messages are kept for :meth:`release`, or lost."""

        def which(s: str, t: str, message: AnyMessage) -> bool:
            return isinstance(message, kind) and source in ("", s) and target in ("", t)

        self._rules.append((which, not lose))

    def open(self) -> None:
        """Hold nothing back any more; what was held stays held."""
        self._rules.clear()

    def release(self) -> None:
        """What was held back arrives now, in order, whatever the connections are by now."""
        held, self.held = self.held, []
        for source, target, message in held:
            self.world.deliver(source, target, message)

    def isolate(self, *names: str) -> None:
        """Cut nodes off."""
        for name in names:
            self.world.network.isolate(name)
        self.run(0.011)

    def split(self, *side: str) -> None:
        """Cut these from the others."""
        self.world.network.partition(side)
        self.run(0.011)

    def heal(self) -> None:
        """Everything is connected again."""
        self.world.network.heal()
        self.run(0.011)

    # --- nodes -------------------------------------------------------------------------------------------

    def crash(self, *names: str, keep: int | None = 0) -> None:
        """Power failure: nothing stays that was not synced."""
        for name in names:
            self.node(name).crash(keep=keep)

    def start(self, *names: str) -> None:
        """They are back."""
        for name in names:
            self.node(name).start()
        self.run(0.011)
        self.ranks()

    def converge(self, seconds: float = 5.0) -> None:
        """Everything works again, and soon everybody agrees."""
        self.open()
        self.heal()
        for name in self.names:
            if not self.node(name).up:
                self.start(name)
        self.world.require_convergence(seconds)


def _started(nodes: int = 3, spares: int = 0, **settings: Any) -> Scene:
    """A scene in which n1 leads and has committed its first entry everywhere."""
    scene = Scene(nodes, spares, **settings)
    scene.run(0.011)
    scene.ready("n1")
    scene.run(0.25)
    return scene


# --- votes -----------------------------------------------------------------------------------------------


@scenario
def vote_waits_for_the_disk() -> None:
    """A vote that is out but not on the disk is given a second time after a power failure."""
    scene = Scene(fsync=(0.05, 0.05))
    scene.run(0.011)
    scene.elect("n1", 2.0)


@scenario
def vote_survives_power_failure() -> None:
    """n2 has voted for n1 in term 1; it must remember that when n3 asks in the same term."""
    scene = Scene()
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(isinstance(m, VoteReply) and s == "n2" for s, _, m in scene.sent))
    scene.crash("n2")
    scene.start("n2")
    assert scene.group("n2").vote == "n1"
    before = len(scene.sent)
    scene.run(ELECTION_S)
    scene.world.deliver("n3", "n2", Vote(1, 0, 0))
    scene.run(0.01)
    assert not any(isinstance(m, VoteReply) and m.granted and t == "n3" for _, t, m in scene.sent[before:])


@scenario
def votes_are_voters() -> None:
    """The network delivers one vote many times over: that is still one voter of five."""
    scene = Scene(5)
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(s == "n2" and t == "n1" for s, t, _ in scene.held))
    vote = next((s, t, m) for s, t, m in scene.held if s == "n2" and t == "n1")
    for _ in range(5):
        scene.world.deliver(*vote)
    assert not scene.leads("n1"), "n1 leads by two votes of five"


@scenario
def votes_are_members() -> None:
    """Whoever is no voter has no say."""
    scene = Scene(3, spares=2)
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(isinstance(m, VoteReply) for _, _, m in scene.held))
    for stranger in ("n4", "n5"):
        scene.world.deliver(stranger, "n1", VoteReply(scene.group("n1").term, granted=True))
    assert not scene.leads("n1"), "n1 leads by the votes of strangers"


@scenario
def one_vote_a_term() -> None:
    """n3 asks in a term in which n2 has voted for n1."""
    scene = Scene()
    scene.run(0.011)
    scene.hold(VoteReply)
    scene.ranks("n1")
    scene.until(lambda: any(isinstance(m, VoteReply) for _, _, m in scene.held))
    scene.world.deliver("n3", "n2", Vote(scene.group("n2").term, 5, 5))
    scene.run(0.02)


@scenario
def vote_needs_the_newer_log() -> None:
    """n3 lacks what n1 and n2 have committed, and asks n2 for its vote."""
    scene = _started()
    scene.isolate("n3")
    scene.write("n1", 1)
    scene.crash("n1")
    scene.heal()
    scene.ranks("n3")
    scene.run(ELECTION_S + 0.05)
    scene.world.deliver("n3", "n2", Vote(scene.group("n2").term + 1, scene.group("n3").log.last_index, 1, True))
    scene.run(0.2)
    assert not scene.leads("n3")
    scene.converge()
    assert scene.value("n3") == 1


@scenario
def newer_term_beats_longer_log() -> None:
    """n3 has many entries of term 1, n2 fewer, but of term 2, and they are committed."""
    scene = _diverged()
    assert scene.group("n3").log.last_index > scene.group("n2").log.last_index
    scene.crash("n1")
    scene.heal()
    scene.ranks("n3")
    scene.run(3.0)
    assert scene.leads("n2")
    scene.converge()


@scenario
def pre_vote_keeps_the_term() -> None:
    """A replica that was cut off comes back and does not end a reign."""
    scene = _started()
    term = scene.group("n1").term
    scene.isolate("n3")
    scene.run(4.0)
    scene.heal()
    scene.run(2.0)
    assert scene.leads("n1")
    assert scene.group("n3").term == scene.group("n1").term == term, "the one that was cut off ended a reign"


@scenario
def living_leader_is_not_voted_against() -> None:
    """n2 wants to lead while n3 hears n1. If n3 let it, n1's lease would be a lie."""
    scene = _started()
    scene.write("n1", 1)
    scene.hold(target="n1")  # n1 is not told
    scene.hold(Append, source="n1", target="n2")
    n2 = scene.group("n2")
    scene.do("n2", lambda group: group._campaign(transfer=False))
    scene.run(0.05)
    if n2.role == LEADER:
        scene.until(lambda: n2.ready)
        scene.write("n2", 2)
        scene.get("n1")
        raise AssertionError("n3 voted against a leader that it hears")


@scenario
def promise_outlives_a_restart() -> None:
    """n3 has just echoed n1's round, and restarts. It must still not vote for n2, for n1 reads by lease."""
    scene = _started()
    scene.write("n1", 1)
    scene.world.network.cut_both("n1", "n2")
    scene.run(1.0)
    scene.isolate("n1")
    scene.crash("n3")
    scene.world.network.heal("n2", "n3")
    scene.start("n3")
    scene.run(0.02)  # connected
    scene.group("n2")._set_election_deadline(0.0)
    scene.do("n2", lambda group: group.host.wake(group))
    scene.run(0.05)
    if scene.leads("n2"):
        scene.until(lambda: scene.group("n2").ready, 0.2)
        scene.write("n2", 2)
        scene.get("n1")
        raise AssertionError("n3 forgot its promise")


@scenario
def isolated_leader_steps_down() -> None:
    """A leader that hears from nobody stops being one, so its clients go elsewhere."""
    scene = _started()
    scene.isolate("n1")
    scene.until(lambda: not scene.leads("n1"), 2 * ELECTION_S + 0.2, "n1 still leads though it hears nobody")


@scenario
def replies_end_a_reign() -> None:
    """An old leader is heard again: the first reply tells it that its term is over."""
    scene = _started()
    scene.isolate("n1")
    scene.ready("n2")
    scene.hold(Append, target="n1")
    scene.heal()
    scene.until(lambda: scene.group("n1").term == scene.group("n2").term, 0.3, "n1 does not learn that it was deposed")
    scene.converge()


# --- the log ---------------------------------------------------------------------------------------------


@scenario
def late_append_keeps_the_tail() -> None:
    """An append that a follower has already comes again, after newer ones which it has acknowledged: nothing may go."""
    scene = _started()
    scene.isolate("n3")
    scene.hold(AppendReply, source="n2")
    answers = []
    for value in range(10):
        answers.append(scene.put("n1", value))
        scene.run(0.01)
    last = scene.group("n2").log.last_index
    early = [(s, t, m) for s, t, m in scene.sent if isinstance(m, Append) and m.records and t == "n2"]
    for message in early[:4]:
        scene.world.deliver(*message)
    assert scene.group("n2").log.last_index == last, "the tail was dropped"
    scene.run(0.05)
    scene.open()
    scene.release()
    scene.run(0.01)
    assert all(answer.outcome == "done" for answer in answers)
    scene.crash("n1")
    scene.heal()
    scene.ready("n2")
    assert scene.value("n2") == 9


@scenario
def heartbeat_keeps_the_tail() -> None:
    """A heartbeat that was sent before the newest entries arrives after them."""
    scene = _started()
    scene.isolate("n3")
    scene.write("n1", 1)
    scene.hold(Append, source="n1", target="n2")
    scene.run(0.15)
    late = next((s, t, m) for s, t, m in scene.held if isinstance(m, Append) and not m.records)
    scene.open()
    scene.write("n1", 2)
    scene.write("n1", 3)
    last = scene.group("n2").log.last_index
    scene.world.deliver(*late)
    assert scene.group("n2").log.last_index == last, "the tail was dropped"


def _diverged() -> Scene:
    """n3 led term 1 alone and has a tail nobody else has; n1 leads term 2 with n2, and has committed others there."""
    scene = Scene()
    scene.run(0.011)
    scene.ready("n3")
    scene.run(0.25)
    scene.isolate("n3")
    for value in range(6):
        scene.put("n3", f"lost {value}")
    scene.run(0.05)
    scene.ready("n1")
    return scene


@scenario
def diverged_tail_is_not_committed() -> None:
    """What reaches n3 agrees with its log at an early index and tells a late commit, where n3 has other entries."""
    scene = _diverged()
    for value in range(4):
        scene.write("n1", value)
    n1 = scene.group("n1")
    scene.world.deliver("n1", "n3", Append(n1.term, 1, 1, n1.commit, 1))
    assert scene.group("n3").commit == 1, "n3 commits what it has not verified"
    scene.converge()
    assert scene.value("n3") == 3


@scenario
def diverged_tail_is_not_acknowledged() -> None:
    """n3's tail is durable and as long as the leader's log. It is not the leader's log."""
    scene = _diverged()
    scene.isolate("n2")
    answers = [scene.put("n1", value) for value in range(4)]
    n1 = scene.group("n1")
    scene.run(0.01)
    scene.hold(Append, source="n1")  # nothing but this one, which agrees at the beginning:
    scene.world.network.heal("n1", "n3")
    scene.run(0.02)
    scene.world.deliver("n1", "n3", Append(n1.term, 1, 1, n1.commit, 1))
    scene.run(0.02)
    assert not any(answer.outcome == "done" for answer in answers), "n1 committed alone"
    scene.converge()


@scenario
def verified_is_of_this_leader() -> None:
    """n2's log agreed with n3's up to entry 8, and n3 is gone. It says nothing of n1's, which leads now."""
    scene = Scene(5)
    scene.run(0.011)
    scene.ready("n3")
    scene.run(0.25)
    scene.isolate("n1", "n4", "n5")
    for value in range(6):
        scene.put("n3", f"lost {value}")
    scene.until(lambda: scene.group("n2").log.durable_index == 7, 0.5)
    scene.crash("n3")
    scene.split("n1", "n4", "n5")
    scene.world.network.heal()
    scene.world.network.partition(["n1", "n4", "n5"])
    scene.run(0.02)
    scene.ready("n1")
    scene.hold(target="n5")
    answers = [scene.put("n1", value) for value in range(4)]
    scene.hold(Append, source="n1", target="n4")
    scene.run(0.01)
    n1 = scene.group("n1")
    scene.hold(Append, source="n1", target="n2")
    scene.world.network.heal("n1", "n2")
    scene.run(0.02)
    scene.world.deliver("n1", "n2", Append(n1.term, 1, 1, n1.commit, 1))
    scene.open()
    scene.hold(target="n5")
    scene.hold(Append, source="n1", target="n2")
    scene.run(0.3)
    assert not any(answer.outcome == "done" for answer in answers), "n2's old tail was counted"
    scene.converge()


@scenario
def replaced_entries_are_not_durable() -> None:
    """n3 drops its durable tail for the leader's entries. Those are on the disk when they are."""
    scene = _diverged()
    for value in range(4):
        scene.write("n1", value)
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.5
    scene.heal()
    scene.run(0.5)
    scene.converge()


@scenario
def append_must_follow() -> None:
    """Entries behind one that n3 has another of."""
    scene = _diverged()
    scene.write("n1", 1)
    n1 = scene.group("n1")
    last = n1.log.last_index
    scene.world.deliver("n1", "n3", Append(n1.term, last - 1, n1.term, last, 1, n1.log.records(last, 1)))
    assert scene.group("n3").log.term_at(last) != n1.term, "n3 put an entry behind one that the leader does not have"
    scene.converge()


@scenario
def old_leader_is_not_obeyed() -> None:
    """An append of a term that is over arrives late."""
    scene = _started()
    scene.hold(Append, source="n1", target="n3")
    scene.put("n1", 1)
    scene.run(0.05)
    scene.open()
    scene.isolate("n1")
    scene.ready("n2")
    before = scene.group("n3").log.last_term
    scene.release()
    scene.run(0.01)
    assert scene.group("n3").leader == "n2"
    assert scene.group("n3").log.last_term == before
    scene.converge()


@scenario
def old_acknowledgement_counts_for_nothing() -> None:
    """n2 acknowledged entries in term 1, which it has lost to another leader since. n1, which had lost them in a power
    failure, leads again: the acknowledgement arrives in term 3."""
    scene = _started(5)
    scene.isolate("n3", "n4", "n5")
    scene.world.network.heal("n1", "n2")
    scene.run(0.03)
    scene.hold(AppendReply, source="n2", target="n1")
    scene.node("n1").disk_slow_until = scene.world.clock.now + 0.05
    for value in range(8):
        scene.put("n1", value)
    scene.until(lambda: any(isinstance(m, AppendReply) and m.match >= 9 for _, _, m in scene.held), 0.1)
    old = max((m.match, s, t, m) for s, t, m in scene.held if isinstance(m, AppendReply))[1:]
    scene.open()
    scene.crash("n1")
    assert old[2].match > 8
    scene.world.network.heal()
    scene.world.network.partition(["n3", "n4", "n5"])
    scene.run(0.02)
    scene.ready("n3")  # term 2
    scene.isolate("n4", "n5")
    scene.world.network.heal("n2", "n3")
    scene.until(lambda: scene.group("n2").log.last_term >= 2, 1.0)
    scene.crash("n3")
    scene.crash("n2")
    scene.world.network.heal("n4", "n5")
    scene.node("n1").start()
    scene.world.network.heal("n1", "n4")
    scene.world.network.heal("n1", "n5")
    scene.run(0.02)
    term = scene.group("n4").term
    # n4 and n5 have n3's first entry, so n1 gets it first; what is left of the story needs only the late reply.
    scene.ranks("n4")
    scene.ready("n4")
    scene.do("n4", lambda group: group.transfer("n1"))
    scene.until(lambda: scene.leads("n1"), 1.0)
    assert scene.group("n1").term > term
    scene.until(lambda: scene.group("n1").ready, 1.0)
    scene.isolate("n5")
    scene.world.network.heal("n1", "n4")
    scene.run(0.02)
    answers = []
    while scene.group("n1").log.last_index < old[2].match:
        answers.append(scene.put("n1", "late"))
    scene.run(0.05)
    scene.world.deliver(*old)
    scene.run(0.05)
    assert answers
    assert not any(answer.outcome == "done" for answer in answers), "committed by two of five"


@scenario
def figure_8() -> None:
    """An entry of an old term is on a majority, and a candidate that lacks it can still be elected: it must not be
    committed by counting (Raft, figure 8)."""
    scene = _started(5)
    scene.isolate("n3", "n4", "n5")
    scene.world.network.heal("n1", "n2")
    scene.run(0.03)
    old = scene.put("n1", "old")  # (b) of the figure: on n1 and n2
    index = scene.group("n1").log.last_index
    scene.until(lambda: scene.group("n2").log.durable_index >= index, 0.3)
    scene.crash("n1")
    scene.crash("n2")
    scene.world.network.heal()
    scene.run(0.02)
    scene.hold(Append, source="n5")
    scene.ranks("n5")
    scene.elect("n5")  # by n3 and n4; its first entry stays with it
    scene.run(0.01)
    scene.crash("n5")
    scene.open()
    scene.node("n1").start()
    scene.node("n2").start()
    scene.run(0.02)
    scene.hold(Append, source="n1")
    scene.elect("n1")  # (c): it sends the old entry on, but its own term's stays with it
    n1 = scene.group("n1")
    scene.run(0.01)
    entry = n1.log.records(index, 1, index + 1)
    for peer in ("n2", "n3"):
        scene.world.deliver("n1", peer, Append(n1.term, index - 1, 1, n1.commit, 1, entry))
    scene.run(0.05)
    assert scene.group("n3").log.term_at(index) == 1
    assert n1.commit < index, "committed by counting replicas of an old entry"
    scene.crash("n1")
    scene.open()
    scene.node("n5").start()
    scene.run(0.02)
    scene.world.deliver(
        "n3", "n5", VoteReply(scene.group("n3").term, granted=False)
    )  # it hears of the term, which saves it a try
    scene.ready("n5")  # (d)
    assert old.outcome in ("", "unknown")
    scene.converge()


@scenario
def acknowledged_writes_survive_a_blackout() -> None:
    """All lose power at the moment a client has its answer. The disks are slower than the heartbeats, whose replies
    must not tell more than the disks hold."""
    scene = _started(fsync=(0.15, 0.15))
    for value in range(2):
        scene.write("n1", value)
        scene.crash(*scene.names)
        scene.start(*scene.names)
        scene.ready("n1")
        assert scene.value("n1") == value, "an acknowledged write is lost"
    scene.converge()


@scenario
def writes_during_an_fsync_wait_for_the_next() -> None:
    """An entry comes while the disk is at work on the one before."""
    scene = _started(fsync=(0.03, 0.03))
    answers = []
    for value in range(12):
        answers.append(scene.put("n1", value))
        scene.run(0.007)
    scene.run(0.2)
    assert all(answer.outcome == "done" for answer in answers)
    scene.converge()


@scenario
def leader_counts_its_disk() -> None:
    """One follower has acknowledged, the leader's own disk has not: that is one of three."""
    scene = _started()
    scene.isolate("n3")
    scene.node("n1").disk_slow_until = scene.world.clock.now + 0.01
    answer = scene.put("n1", 1)
    scene.run(0.03)
    assert answer.outcome == ""
    scene.until(lambda: answer.outcome == "done", 0.3)


@scenario
def follower_applies_what_is_durable() -> None:
    """The others have committed and n3 knows, but its disk is late."""
    scene = _started(fsync=(0.004, 0.004))
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.01
    scene.write("n1", 1)
    scene.run(0.15)
    assert scene.group("n3").commit > scene.group("n3").applied
    scene.converge()


@scenario
def terms_are_durable_before_acknowledgements() -> None:
    """n3 hears of a new term by an append that it could acknowledge at once; its disk is slow."""
    scene = _started()
    scene.write("n1", 1)
    scene.run(0.25)
    scene.isolate("n3")
    scene.do("n1", lambda group: group.transfer("n2"))
    scene.until(lambda: scene.leads("n2"))
    scene.node("n3").disk_slow_until = scene.world.clock.now + 1.0
    scene.heal()
    scene.run(0.3)
    scene.converge()


@scenario
def long_divergence_is_mended() -> None:
    """n3 has hundreds of entries nobody else has, and the leader's are larger than a message: it converges in little
    time, also when rejections overtake each other."""
    scene = Scene()
    scene.run(0.011)
    scene.ready("n3")
    scene.run(0.25)
    with _small_messages():
        scene.isolate("n3")
        for value in range(300):
            scene.put("n3", f"lost {value}")
        scene.run(0.05)
        scene.ready("n1")
        for value in range(100):
            scene.put("n1", "." * 50 + str(value))
        scene.run(0.2)
        scene.do("n1", lambda group: group.transfer("n2"))  # which begins to look for agreement at its end
        scene.until(lambda: scene.leads("n2"))
        scene.heal()
        scene.until(lambda: scene.group("n3").log.last_term == scene.group("n2").term, 0.6, "n3 is not mended")
        scene.converge()


@contextmanager
def _small_messages() -> Iterator[None]:
    before = replication.APPEND_BYTES_MAX
    replication.APPEND_BYTES_MAX = 150
    try:
        yield
    finally:
        replication.APPEND_BYTES_MAX = before


@scenario
def unsynced_suffix_is_asked_for_again() -> None:
    """A follower loses what it had not synced, and comes back."""
    scene = _started()
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.05
    for value in range(5):
        scene.write("n1", value)
    scene.crash("n3")
    scene.start("n3")
    scene.until(lambda: scene.value("n3") == 4)
    scene.converge()


@scenario
def restart_applies_nothing_twice() -> None:
    """The state's last writes are lost, those before are not; then everything is replayed once."""
    scene = _started()
    for value in range(5):
        scene.write("n1", value)
    scene.node("n2").state_disk.sync()
    scene.write("n1", 5)
    scene.run(0.15)
    scene.crash("n2")
    scene.start("n2")
    scene.until(lambda: scene.value("n2") == 5)
    scene.converge()


# --- reads -----------------------------------------------------------------------------------------------


def _overtaken(scene: Scene, by: str = "n2") -> None:
    """Have another lead behind n1's back, and write."""
    scene.ready(by)
    scene.write(by, "new")


@scenario
def cut_off_leader_does_not_read() -> None:
    """Another leads and has written, n1 does not know."""
    scene = _started()
    scene.write("n1", "old")
    scene.isolate("n1")
    scene.hold(target="n1")
    _overtaken(scene)
    assert scene.leads("n1")
    answer = scene.get("n1")
    scene.run(0.1)
    assert answer.outcome != "done", "a deposed leader answers"
    scene.converge()
    assert answer.outcome == "refused"


@scenario
def round_before_the_read_proves_nothing() -> None:
    """A round was begun, another leader came and wrote, a read comes, and then an echo of that round."""
    scene = Scene(timing=Timing(election_s=ELECTION_S, heartbeat_s=0.9, sleep_after_s=1e9))
    scene.run(0.011)
    scene.hold(AppendReply, source="n3", target="n1")
    scene.ready("n1")
    scene.write("n1", "old")
    scene.isolate("n1")
    scene.ranks("n2")
    scene.until(lambda: scene.leads("n2") and scene.group("n2").ready, 0.7)
    scene.write("n2", "new")
    answer = scene.get("n1")
    scene.open()
    scene.release()
    assert answer.outcome != "done", "a read was answered by an old round"
    scene.converge()


@scenario
def lease_begins_with_the_round() -> None:
    """The echoes of a round come late: what they prove is as old as the round."""
    scene = _started()
    scene.write("n1", "old")
    scene.run(0.05)
    scene.hold(AppendReply, target="n1")
    scene.run(0.15)
    scene.isolate("n1")
    _overtaken(scene)
    scene.open()
    scene.release()
    assert scene.leads("n1")
    answer = scene.get("n1")
    scene.run(0.01)
    assert answer.outcome != "done", "the lease was counted from the echo"
    scene.converge()


@scenario
def lease_allows_for_drift() -> None:
    """n1's clock is slow and the others' are fast, as much as is allowed."""
    scene = Scene()
    for name, rate in (("n1", 0.95), ("n2", 1.05), ("n3", 1.05)):
        scene.node(name)._rate = rate
    scene.run(0.011)
    scene.ready("n1")
    scene.write("n1", "old")
    scene.run(0.3)
    n1 = scene.group("n1")
    scene.until(lambda: n1.host.now() - min(peer.confirmed_s for peer in n1.peers.values()) < 0.003)
    scene.world.network.isolate("n1")
    scene.ranks("n2")
    scene.until(lambda: scene.leads("n2") and scene.group("n2").ready, 0.7)
    scene.write("n2", "new")
    scene.get("n1")
    scene.converge()


@scenario
def new_leader_reads_what_it_has_applied() -> None:
    """n2 is elected and has n1's last entry, but does not know that it is committed: it must not read yet."""
    scene = _started()
    scene.hold(Append, source="n1", target="n3")
    scene.write("n1", "acknowledged")
    scene.isolate("n1")
    scene.open()
    scene.elect("n2")
    scene.hold(Append, source="n2")
    answer = scene.get("n2")
    n2 = scene.group("n2")
    for probe in range(1, 40):  # heartbeats that prove its leadership arrive, entries do not
        scene.world.deliver("n3", "n2", AppendReply(n2.term, probe, 0, 0))
        scene.run(0.01)
    assert answer.outcome == ""
    scene.open()
    scene.until(lambda: answer.outcome == "done", 2.0)
    assert answer.result == "acknowledged"


@scenario
def echo_is_of_this_leader() -> None:
    """n3 has heard many rounds of an old leader. Its first reply to the new one, delayed until that has begun as many,
    must not prove them."""
    scene = _started()
    scene.run(3.0)  # n1's rounds reach 30 and more
    scene.isolate("n1")
    scene.hold(AppendReply, source="n3", target="n2")
    scene.elect("n2")
    scene.until(lambda: any(isinstance(m, AppendReply) and s == "n3" for s, _, m in scene.held), 0.5)
    echo = next(m for s, _, m in scene.held if isinstance(m, AppendReply) and s == "n3")
    assert echo.probe <= scene.group("n2")._round, "n3 echoes a round that n2 has not begun"


@scenario
def lease_is_given_up_before_a_hand_over() -> None:
    """The order to campaign is under way for long; n1 has given up waiting and leads on. When it arrives, n2 leads at
    once and n1 does not know."""
    scene = _started()
    scene.write("n1", "old")
    scene.hold(TimeoutNow)
    scene.do("n1", lambda group: group.transfer("n2"))
    scene.run(2 * ELECTION_S + 0.1)
    assert scene.group("n1").accepting
    scene.hold(target="n1")
    scene.open()
    scene.hold(target="n1")
    scene.hold(Append, source="n1")
    scene.release()
    scene.run(0.02)
    scene.until(lambda: scene.leads("n2") and scene.group("n2").ready, 0.3)
    scene.write("n2", "new")
    answer = scene.get("n1")
    scene.run(0.01)
    assert answer.outcome != "done"
    scene.converge()


@scenario
def old_hand_over_is_not_obeyed() -> None:
    """The order to campaign arrives terms later. The leader of now did not give it, and reads by lease."""
    scene = _started()
    scene.write("n1", "old")
    scene.hold(TimeoutNow)
    scene.do("n1", lambda group: group.transfer("n2"))
    scene.run(0.05)
    scene.isolate("n1")
    scene.ready("n3")
    scene.heal()
    scene.run(0.3)
    assert scene.group("n1").leader == scene.group("n2").leader == "n3"
    term = scene.group("n3").term
    scene.open()
    scene.hold(target="n3")
    scene.hold(source="n3")
    order = next(held for held in scene.held if isinstance(held[2], TimeoutNow))
    scene.world.deliver(*order)
    scene.run(0.05)
    if scene.group("n2").term > term:
        scene.until(lambda: scene.leads("n2") and scene.group("n2").ready, 0.3)
        scene.write("n2", "new")
        scene.get("n3")
        raise AssertionError("n2 obeyed an order of a leader that is none any more")


@scenario
def removed_leader_has_no_lease() -> None:
    """n2 removes itself and leaves n1 alone, which restarts: alone, it leads at once. n2 has not heard."""
    scene = Scene(2)
    scene.run(0.011)
    scene.ready("n2")
    scene.write("n2", "old")
    scene.run(0.25)
    scene.hold(target="n2")
    index = scene.do("n2", lambda group: group.remove("n2"))
    scene.until(lambda: scene.group("n1").log.durable_index == index, 0.1)
    scene.crash("n1")
    scene.start("n1")
    scene.until(lambda: scene.leads("n1") and scene.group("n1").ready, 0.1)
    scene.write("n1", "new")
    assert scene.leads("n2")
    answer = scene.get("n2")
    scene.run(0.01)
    assert answer.outcome != "done"


# --- membership ------------------------------------------------------------------------------------------


def _learner(scene: Scene, name: str) -> None:
    scene.node(name).join(scene.world.groups[0])
    index = scene.do("n1", lambda group: group.add_learner(name))
    scene.committed("n1", index)
    scene.until(lambda: scene.group(name).log.durable_index >= index)
    scene.run(0.2)


@scenario
def one_change_at_a_time() -> None:
    """The change before is not committed."""
    scene = _started(3, spares=2)
    scene.isolate("n1")
    scene.do("n1", lambda group: group.add_learner("n4"))
    scene.refused("n1", lambda group: group.add_learner("n5"))
    scene.refused("n1", lambda group: group.remove("n3"))


@scenario
def no_change_before_an_entry_of_the_term() -> None:
    """n1's change is in its log alone. n2, which does not know of it, leads and must not change anything before it has
    committed an entry: the majorities of the two changes need not overlap."""
    scene = _started(4, spares=1)
    scene.isolate("n1")
    scene.node("n5").join(scene.world.groups[0])
    scene.do("n1", lambda group: group.add_learner("n5"))
    scene.hold(Append, source="n2")
    scene.elect("n2")
    scene.refused("n2", lambda group: group.remove("n1"))
    scene.converge()


@scenario
def configuration_goes_with_the_log() -> None:
    """A change that another leader's log does not have is undone, also in memory, and after a restart."""
    scene = _started(3, spares=1)
    scene.isolate("n1")
    scene.do("n1", lambda group: group.add_learner("n4"))
    assert scene.group("n1").configuration.learners == ("n4",)
    scene.run(0.02)
    scene.ready("n2")
    scene.write("n2", 1)
    scene.heal()
    scene.until(lambda: scene.group("n1").log.last_term == scene.group("n2").term)
    assert scene.group("n1").configuration == Configuration(("n1", "n2", "n3"))
    scene.run(0.1)
    scene.crash("n1")
    scene.start("n1")
    assert scene.group("n1").configuration == Configuration(("n1", "n2", "n3"))


@scenario
def configuration_survives_a_restart() -> None:
    """Who decides is in the log, not in what a node was started with; also when that part of the log is gone."""
    for compact in (False, True):
        scene = _started(3, spares=1)
        _learner(scene, "n4")
        index = scene.do("n1", lambda group: group.promote("n4"))
        scene.committed("n1", index)
        scene.write("n1", 1)
        scene.run(0.2)
        if compact:
            for name in scene.names:
                scene.node(name).state_disk.sync()
                scene.hosted(name).log.compact(scene.group(name).applied)
            scene.run(0.01)
            scene.put("n1", 2)
            scene.run(0.2)
        scene.crash(*scene.names)
        scene.start(*scene.names)
        for name in scene.names:
            assert scene.group(name).configuration == Configuration(("n1", "n2", "n3", "n4"))
        scene.isolate("n1", "n2")
        scene.run(2.0)
        assert not any(scene.leads(name) for name in scene.names), "two of four lead"
        scene.converge()


@scenario
def learner_does_not_count() -> None:
    """Leader and learner have an entry: one voter of three."""
    scene = _started(3, spares=1)
    _learner(scene, "n4")
    scene.isolate("n2", "n3")
    answer = scene.put("n1", 1)
    scene.run(0.2)
    assert scene.group("n4").log.durable_index == scene.group("n1").log.last_index
    assert answer.outcome != "done", "a learner's acknowledgement was counted"
    scene.converge()


@scenario
def learner_does_not_campaign() -> None:
    """A learner that hears nobody stays quiet."""
    scene = _started(3, spares=1)
    _learner(scene, "n4")
    scene.isolate("n4")
    before = len(scene.sent)
    scene.run(3.0)
    assert not any(isinstance(m, (PreVote, Vote)) and s == "n4" for s, _, m in scene.sent[before:])
    scene.converge()


@scenario
def new_configuration_counts_at_once() -> None:
    """Three voters become four: from the moment the change is in the log, two are no majority."""
    scene = _started(3, spares=1)
    _learner(scene, "n4")
    scene.isolate("n3", "n4")
    index = scene.do("n1", lambda group: group.promote("n4"))
    scene.run(0.3)
    assert scene.group("n1").commit < index, "two of four have committed"
    scene.converge()


@scenario
def removed_replica_is_harmless() -> None:
    """n3 was cut off when it was removed, comes back and thinks that it is a voter."""
    scene = _started()
    scene.isolate("n3")
    index = scene.do("n1", lambda group: group.remove("n3"))
    scene.committed("n1", index)
    term = scene.group("n1").term
    scene.heal()
    scene.run(4.0)
    assert scene.leads("n1")
    assert scene.group("n1").term == term, "a removed replica ended a reign"
    scene.write("n1", 1)


@scenario
def leader_that_removes_itself_leads_until_then() -> None:
    """It commits its removal without counting itself, then goes, and one of the others takes over soon."""
    scene = _started()
    scene.write("n1", 1)
    index = scene.do("n1", lambda group: group.remove("n1"))
    scene.until(lambda: not scene.leads("n1"), 0.2, "it leads on")
    assert scene.group("n1").commit >= index
    scene.until(lambda: any(scene.leads(name) for name in ("n2", "n3")), 0.2, "nobody takes over")
    scene.run(3.0)
    leader = scene.world.leader()
    assert leader in ("n2", "n3")
    scene.write(leader, 2)
    assert scene.group("n1").role != LEADER


@scenario
def leader_that_removes_itself_does_not_count_itself() -> None:
    """Of the two voters that are left, one is not enough."""
    scene = _started()
    scene.isolate("n3")
    scene.hold(Append, source="n1", target="n2")
    index = scene.do("n1", lambda group: group.remove("n1"))
    scene.run(0.1)
    assert scene.group("n1").commit < index
    scene.open()
    scene.run(0.3)
    assert scene.group("n1").commit < index, "n2 alone has committed for n2 and n3"
    scene.converge()


@scenario
def replica_whose_removal_is_not_committed_campaigns() -> None:
    """n2 removes itself from two and crashes before n1 hears of it. n1's log is the shorter one: only n2 can lead."""
    scene = Scene(2)
    scene.run(0.011)
    scene.ready("n2")
    scene.run(0.2)
    scene.isolate("n1")
    scene.do("n2", lambda group: group.remove("n2"))
    scene.run(0.05)
    scene.crash("n2")
    scene.start("n2")
    scene.converge(8.0)
    assert scene.group("n1").configuration == Configuration(("n1",))


# --- handing over ----------------------------------------------------------------------------------------


@scenario
def hand_over_is_quick_and_loses_nothing() -> None:
    """Entries under way are committed by either; new ones are refused until it is decided."""
    scene = _started()
    answers = [scene.put("n1", value) for value in range(3)]
    scene.do("n1", lambda group: group.transfer("n3"))
    late = scene.put("n1", 99)
    assert late.outcome == "refused"
    scene.until(lambda: scene.leads("n3"), 0.05, "n3 does not lead soon")
    scene.until(lambda: scene.group("n3").ready, 0.05)
    assert scene.value("n3") == 2
    scene.run(0.1)
    assert all(answer.outcome in ("done", "unknown") for answer in answers)
    scene.converge()


@scenario
def hand_over_waits_for_the_successor() -> None:
    """n3 lacks entries: it is not told to campaign before it has them, or it would end the reign and not begin one."""
    scene = _started()
    scene.hold(Append, source="n1", target="n3")
    scene.write("n1", 1)
    scene.do("n1", lambda group: group.transfer("n3"))
    scene.run(0.2)
    assert not any(isinstance(m, TimeoutNow) for _, _, m in scene.sent)
    scene.open()
    scene.until(lambda: scene.leads("n3"), 0.3, "n3 does not lead soon")
    scene.converge()


@scenario
def hand_over_that_fails_is_given_up() -> None:
    """The one that is to lead is not there."""
    scene = _started()
    scene.crash("n3")
    scene.do("n1", lambda group: group.transfer("n3"))
    assert not scene.group("n1").accepting
    scene.until(lambda: scene.group("n1").accepting, 2 * ELECTION_S + 0.2, "n1 takes no more writes")
    scene.write("n1", 1)
    scene.converge()


# --- snapshots -------------------------------------------------------------------------------------------


def _left_behind(**settings: Any) -> Scene:
    """n3 needs a snapshot."""
    scene = _started(compact_entries=5, cache_bytes=0, **settings)
    scene.isolate("n3")
    for value in range(20):
        scene.write("n1", value)
    scene.run(0.1)
    assert scene.group("n1").log.base_index > scene.group("n3").log.last_index
    return scene


@scenario
def snapshot_replaces_a_diverged_log() -> None:
    """n3 led alone and has a long tail that nobody has; what it needs is in a snapshot only."""
    scene = Scene(compact_entries=5, cache_bytes=0)
    scene.run(0.011)
    scene.ready("n3")
    scene.run(0.25)
    scene.isolate("n3")
    for value in range(40):
        scene.put("n3", f"lost {value}")
    scene.run(0.1)
    scene.ready("n1")
    for value in range(15):
        scene.write("n1", value)
    scene.converge()
    assert scene.value("n3") == 14


@scenario
def snapshot_is_acknowledged_when_it_is_durable() -> None:
    """n3's disk is slow: until the log begins anew there, the leader has only its own word for it."""
    scene = _left_behind()
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.3
    scene.heal()
    scene.run(0.3)
    scene.converge()


@scenario
def snapshot_that_fails_is_not_acknowledged() -> None:
    """n3 never gets it installed, and n2 is gone: nothing can be committed."""
    scene = _left_behind()
    scene.node("n3").install_snapshot = lambda *_: None  # type: ignore[method-assign]
    scene.node("n3").replicas.install_snapshot = lambda *_: None
    scene.heal()
    scene.isolate("n2")
    scene.world.network.heal("n1", "n3")
    answer = scene.put("n1", "new")
    scene.run(1.0)
    assert answer.outcome != "done"


@scenario
def old_snapshot_is_ignored() -> None:
    """The order to install comes again when n3 has long gone on."""
    scene = _left_behind()
    scene.heal()
    scene.until(lambda: any(isinstance(m, Snapshot) for _, _, m in scene.sent))
    scene.world.require_convergence(5.0)
    for value in range(3):
        scene.write("n1", value)
    scene.run(0.3)
    order = next((s, t, m) for s, t, m in scene.sent if isinstance(m, Snapshot))
    scene.world.deliver(*order)
    scene.run(0.1)
    scene.converge()


@scenario
def snapshot_that_is_outrun_is_followed_by_another() -> None:
    """While n3 installs it, the leader drops what follows it."""
    scene = _left_behind()
    scene.node("n3").disk_slow_until = scene.world.clock.now + 0.1
    scene.heal()
    scene.until(lambda: scene.hosted("n3").installing is not None)
    for value in range(20):
        scene.write("n1", value)
    scene.converge(3.0)


@scenario
def snapshot_order_that_is_lost_is_repeated() -> None:
    """The stream arrives, the word that it has does not."""
    scene = _left_behind()
    scene.hold(Snapshot, lose=True)
    scene.heal()
    scene.until(lambda: any(isinstance(m, Snapshot) for _, _, m in scene.sent))
    scene.run(0.15)
    scene.open()
    scene.world.require_convergence(2.0)


@scenario
def snapshot_stream_is_begun_again_after_a_restart() -> None:
    """n3 had all of it and crashed before it was told to install."""
    scene = _left_behind()
    scene.hold(Snapshot, lose=True)
    scene.heal()
    scene.until(lambda: any(isinstance(m, Snapshot) for _, _, m in scene.sent))
    scene.crash("n3")
    scene.node("n1")._gone = lambda *_: None  # type: ignore[method-assign]  # nobody tells
    scene.open()
    scene.start("n3")
    scene.world.require_convergence(2.0)


@scenario
def snapshot_ends_in_what_is_not_written_yet() -> None:
    """The entries that a snapshot replaces came in the same turn as the word that it is installed."""
    group = keys.group_prefix("data", 0)
    disk = SimDisk()
    three = Configuration(("n1", "n2", "n3"))

    def opened() -> tuple[LogWriter, RaftLog]:
        store = LogStore(disk)
        writer = LogWriter(store, _Now(disk), failed=_fail)
        return writer, RaftLog(group, "data-0", store, writer, initial=three, cache_bytes=1 << 20)

    writer, log = opened()
    log.append([record(1, REGULAR, b"%d" % index) for index in range(1, 6)])
    log.restart(3, 1, three)
    writer.flush()
    _, log = opened()
    assert (log.base_index, log.last_index) == (3, 5)


class _Now:
    """An fsync that takes no time."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        self._disk.sync()
        done(None)

    def close(self) -> None:
        """Nothing runs."""


def _fail(error: StorageError) -> None:
    raise error


class _PowerCutError(Exception):
    """At a chosen write."""


@scenario
def power_fails_at_every_write_of_a_snapshot() -> None:
    """n3 installs a snapshot over a log of its own and loses power before the first write, the second, and so on, with
    nothing or everything unsynced kept."""
    for keep in (0, 1 << 30):
        for fatal in range(1, 100):
            scene = _left_behind()
            if not _power_cut(scene, "n3", fatal, keep):
                break
            scene.converge()
            assert scene.value("n3") == 19
        else:
            raise AssertionError("there are always more writes")
        assert fatal > 4


@scenario
def power_fails_at_every_write_of_a_compaction() -> None:
    """The same for a leader that flushes its state and drops the log behind it."""
    for keep in (0, 1 << 30):
        for fatal in range(1, 100):
            scene = _started(compact_entries=5, cache_bytes=0)
            for value in range(3):
                scene.write("n1", value)
            if not _power_cut(scene, "n1", fatal, keep, writes=4):
                break
            scene.converge()
        else:
            raise AssertionError("there are always more writes")
        assert fatal > 4


def _power_cut(scene: Scene, name: str, fatal: int, keep: int, writes: int = 0) -> bool:
    """Have a node crash when it writes or syncs for the ``fatal``-th time, then start it. False if it does not come to
    that."""
    node = scene.node(name)
    left = fatal

    def watch(disk: SimDisk, method: str) -> None:
        original = getattr(disk, method)

        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise _PowerCutError
            return original(*arguments, **named)

        setattr(disk, method, counted)

    for disk in (node.log_disk, node.state_disk):
        watch(disk, "write")
        watch(disk, "finish_sync")
    cut = False
    try:
        if writes:
            for value in range(writes):
                scene.put("n1", f"more {value}")
                scene.run(0.02)
            scene.run(0.1)
        else:
            scene.heal()
            scene.world.require_convergence(5.0)
    except _PowerCutError:
        cut = True
    for disk in (node.log_disk, node.state_disk):
        for method in ("write", "finish_sync"):
            delattr(disk, method)
    if cut:
        node.crash(keep=keep)
        node.start()
    return cut


@scenario
def log_is_not_compacted_past_the_state() -> None:
    """What is dropped from the log must be in the state that a power failure leaves."""
    scene = _started(compact_entries=5, cache_bytes=0, apply_entries=1)
    for value in range(10):
        scene.put("n1", value)
    scene.run(0.3)
    scene.crash(*scene.names)
    scene.start(*scene.names)
    scene.converge()
    assert scene.value("n1") == 9


# --- sleeping --------------------------------------------------------------------------------------------


def _asleep() -> Scene:
    scene = _started(timing=Timing(election_s=ELECTION_S, heartbeat_s=0.1, sleep_after_s=0.3))
    scene.write("n1", 1)
    scene.until(lambda: all(scene.group(name).asleep for name in scene.names), 3.0, "the group does not sleep")
    return scene


@scenario
def sleeping_group_is_silent_and_wakes() -> None:
    """No message is sent for as long as nothing happens; a write wakes everybody."""
    scene = _asleep()
    before = len(scene.sent)
    scene.run(10.0)
    assert len(scene.sent) == before, "it talks in its sleep"
    scene.write("n1", 2)
    answer = scene.get("n1")
    scene.run(0.05)
    assert answer.outcome == "done"
    assert answer.result == 2


@scenario
def sleeping_group_notices_that_its_leader_is_gone() -> None:
    """The connection breaks: the others wake up, and one leads."""
    scene = _asleep()
    scene.crash("n1")
    scene.until(lambda: scene.leads("n2") or scene.leads("n3"), 3.0, "nobody leads")
    scene.converge()


@scenario
def sleeping_leader_is_alive() -> None:
    """The connection between two followers breaks, so these wake up and ask who leads. The leader sleeps on until it is
    asked; it must not agree that there is none."""
    scene = _asleep()
    term = scene.group("n1").term
    scene.run(5.0)
    scene.world.network.cut_both("n2", "n3")
    scene.run(5.0)
    assert scene.leads("n1")
    assert scene.group("n1").term == term, "a living leader was deposed"
    scene.converge()


@scenario
def follower_that_missed_good_night_does_no_harm() -> None:
    """n3 did not hear that the leader would sleep, and misses it. The leader is there."""
    scene = _started(timing=Timing(election_s=ELECTION_S, heartbeat_s=0.1, sleep_after_s=0.3))
    scene._rules.append((lambda s, t, m: isinstance(m, Append) and m.sleep and t == "n3", False))
    scene.write("n1", 1)
    scene.until(lambda: scene.group("n1").asleep)
    term = scene.group("n1").term
    scene.run(5.0)
    assert scene.leads("n1")
    assert scene.group("n1").term == term, "a living leader was deposed"
    scene.converge()


__all__ = ["SCENARIOS", "Answer", "Scenario", "Scene"]
