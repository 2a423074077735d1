"""Groups of one kind without a node: commands are evaluated, kept in flight for as long as a test wants, and applied.

Beside every leader a follower applies the same entries from their bytes alone, which proves that an entry holds all
that its command did.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from metad.config import Config, DedupeConfig
from metad.raft.log.journal import REGULAR, record
from metad.state.core.entry import Entry, decode_entry
from metad.state.core.part import NodeMemory
from metad.state.core.slot_assignment import ALL_SLOTS
from metad.state.core.verb import Command
from metad.state.machine import Known, Machine
from metad.state.registry import VERBS
from metad.storage.keys import group_prefix
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import GroupId
from metad_wire.errors import MetadError
from metad_wire.messages import Identity
from metad_wire.methods import Method, encode

MIB = 1024 * 1024


class Group:
    """A leader, its follower, and the entries between them."""

    def __init__(self, kind: str, ordinal: int, dedupe: DedupeConfig, *, initial_slots: bytes = ALL_SLOTS) -> None:
        self.group_id = GroupId(kind, ordinal)
        self.name = self.group_id.name
        self.prefix = group_prefix(self.group_id)
        self.config = Config(dedupe=dedupe)
        self.initial_slots = initial_slots
        self.now_s = 1_000.0
        """Of the monotonic clocks of leader and follower."""
        self.now_ms = 1_700_000_000_000
        """Unix time, for reads; a proposal is given the leader's."""
        self.engine, self.follower_engine = MemoryEngine(), MemoryEngine()
        self.machine, self.follower = self._machine(self.engine), self._machine(self.follower_engine)
        self.no_room = ""
        """Why nothing may grow, if so."""
        self.in_flight: deque[tuple[int, bytes, Entry]] = deque()
        self.last = 0
        self.log: list[bytes] = []

    def _machine(self, engine: MemoryEngine) -> Machine:
        return Machine(
            self.group_id,
            engine,
            NodeMemory(self.config),
            clock=self.clock,
            wall_ms=self.wall_ms,
            initial_slots=self.initial_slots,
        )

    def clock(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return self.now_ms

    def propose(self, commands: list[tuple[Command[Any], Identity | None]], now_ms: int) -> list[Any]:
        """Make an entry; its outcomes."""
        proposal = self.machine.evaluate(commands, self.last + 1, now_ms, self.no_room)
        assert self.machine.unexpected is None, self.machine.unexpected
        self.last += 1
        self.log.append(record(1, REGULAR, proposal.payload))
        self.in_flight.append((self.last, self.log[-1], proposal.entry))
        return proposal.outcomes

    def apply(self, count: int) -> None:
        """Apply the oldest entries in flight, on the leader from memory, on the follower from bytes."""
        batches: list[Any] = []
        followers: list[Any] = []
        for _ in range(min(count, len(self.in_flight))):
            index, data, entry = self.in_flight.popleft()
            self.machine.stage(index, entry, batches)
            self.follower.stage(index, decode_entry(self.name, index, data), followers)
        self.engine.write(*batches)
        self.machine.staged()
        self.follower_engine.write(*followers)
        self.follower.staged()

    def lose(self) -> None:
        """What is in flight never comes to be: another led meanwhile. This node leads again."""
        self.last -= len(self.in_flight)
        del self.log[self.last :]
        self.in_flight.clear()
        self.machine.forget()

    def restart(self) -> None:
        """What is in flight is committed and replayed by a new life, as a node's recovery does."""
        self.in_flight.clear()
        self.machine = self._machine(self.engine)
        for index in range(self.machine.applied + 1, self.last + 1):
            batches: list[Any] = []
            self.machine.stage(index, decode_entry(self.name, index, self.log[index - 1]), batches)
            self.engine.write(*batches)
        self.machine.staged()
        while self.follower.applied < self.last:
            batches = []
            index = self.follower.applied + 1
            self.follower.stage(index, decode_entry(self.name, index, self.log[index - 1]), batches)
            self.follower_engine.write(*batches)
        self.follower.staged()


def contents(engine: MemoryEngine) -> list[tuple[bytes, bytes]]:
    """Everything an engine holds."""
    return engine.scan(b"", b"\xff" * 16, 10**9)


class ChoreNode:
    """What a chore of a group asks of its node: the group's time, and a request at a time."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.pending: Any = None
        """The request that is not answered: method, body, and whom to tell."""

    def now(self) -> float:
        return self.group.now_s

    def wall_ms(self) -> int:
        return self.group.now_ms

    def call_soon(self, callback: Any) -> None:
        callback()

    def request(self, method: Any, body: Any, done: Any, *, group: str) -> None:
        assert self.pending is None
        self.pending = method, body, done


class Rig:
    """A group. ``lag`` entries stay in flight behind a write until :meth:`settle`."""

    def __init__(self, kind: str = "data", *, lag: int = 0, dedupe: DedupeConfig | None = None) -> None:
        self.group = Group(kind, 0, dedupe or DedupeConfig())
        self.lag = lag

    @property
    def now_ms(self) -> int:
        """Unix time of the leader."""
        return self.group.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.group.now_ms = now_ms

    def advance(self, passed_ms: int) -> None:
        """Let time pass, by all clocks."""
        self.now_ms += passed_ms
        self.group.now_s += passed_ms / 1000

    def write(self, method: Method[Any, Any], body: Any, identity: Identity | None = None) -> Any:
        """The reply, evaluated in an entry of its own. Raises MetadError."""
        group, command = self.group, command_of(method, body)
        (outcome,) = group.propose([(command, identity)], self.now_ms)
        group.apply(len(group.in_flight) - self.lag)
        if isinstance(outcome, Known):
            group.apply(len(group.in_flight))
            assert identity is not None
            outcome = group.machine.recall(outcome.index, command, identity)
        if isinstance(outcome, MetadError):
            raise outcome
        return method.decode_reply(outcome)

    def read(self, method: Method[Any, Any], body: Any) -> Any:
        """The reply, from the applied state. Raises MetadError."""
        verb, command = VERBS[method.code], command_of(method, body)
        assert verb.read is not None
        reply = verb.read(self.group.machine.reader, command)
        return method.decode_reply(encode(reply if command.refused is None else command.refused.widened(reply)))

    def settle(self) -> None:
        """Apply everything; leader and follower then hold the same bytes."""
        self.group.apply(len(self.group.in_flight))
        assert contents(self.group.engine) == contents(self.group.follower_engine)


def command_of(method: Method[Any, Any], body: Any, size: int = 0) -> Command[Any]:
    """A request as it arrives: through the codec."""
    request, refused = method.decode_what_fits(method.encode_request(body))
    return VERBS[method.code].command(request.body, size, refused)


def item_errors(reply: Any) -> dict[int, str]:
    """Position -> error name."""
    from metad_wire.errors import ERRORS

    return {error.index: ERRORS[error.code].name for error in reply.errors}
