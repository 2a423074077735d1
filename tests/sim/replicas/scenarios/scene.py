"""A cluster played out by hand, and the list of what is played."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from metad.raft.base import LEADER, Timing
from metad.raft.messages import AnyMessage
from metad.raft.replica import RaftGroup
from metad.raft.roles.membership import ChangeRefusedError

from ..machine import Command
from ..network import Link
from ..world import Hosted, Settings, SimNode, World

Scenario = Callable[[], None]
SCENARIOS: dict[str, Scenario] = {}
ELECTION_S = 0.6
LEASE_S = 0.2


def scenario(function: Scenario) -> Scenario:
    """Put it on the list."""
    SCENARIOS[function.__name__] = function
    return function


TIMING = Timing(
    election_s=ELECTION_S, heartbeat_s=0.1, lease_s=ELECTION_S, step_down_s=2 * ELECTION_S, sleep_after_s=1e9
)
"""With leases as long as followers wait, so that a lease which is too long is seen at once."""
PARTED = TIMING._replace(lease_s=LEASE_S)
"""As production has it."""
REDIALLED = (0.01, 0.01)


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
        settings.setdefault("timing", TIMING)
        settings.setdefault("fsync", (0.0005, 0.0005))
        settings.setdefault("redialled", (1e9, 1e9))  # no evidence of anybody's death
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
                timer = hosted.group._timer
                timer._rng = _Rank(min(0.999, position * 0.2))
                if hosted.group.role != LEADER:
                    timer.postpone(node.now())
                    hosted.group.wake()

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


def started(nodes: int = 3, spares: int = 0, **settings: Any) -> Scene:
    """A scene in which n1 leads and has committed its first entry everywhere."""
    scene = Scene(nodes, spares, **settings)
    scene.run(0.011)
    scene.ready("n1")
    scene.run(0.25)
    return scene


def parted(nodes: int = 3, **settings: Any) -> Scene:
    """The same, with promises that are shorter than the election timeout, and with dials that are answered."""
    settings.setdefault("timing", PARTED)
    return started(nodes, redialled=REDIALLED, **settings)


def diverged() -> Scene:
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
