"""The replica's state: pysyncobj's SyncObj, with everything that acts taken away.

SyncObj keeps what a replica *is*: role, term and vote (through its Journal), leader, commit and applied index, the
connected nodes, and the status that shows them. What it *does* is replaced, rule by rule, in the modules beside this
one; ``metad/raft/__init__.py`` has the table. This is the only module that spells SyncObj's private names.
"""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from .journal import RaftLog
from .messages import AnyMessage, Configuration

AUDITED_VERSION: Final = "0.3.17"
AUDITED_SHA256: Final = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"
"""Of pysyncobj/syncobj.py: the source that was read line by line. A test holds the installed one to it."""

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2
ROLES: Final = ("follower", "candidate", "leader")

NEVER: Final = float("inf")


class Timing(NamedTuple):
    """Seconds."""

    election_s: float = 0.6
    """A follower that hears nothing for one to two of these asks for votes, and votes against no leader that it heard
    within one. That is its promise, which it tells the leader: nodes may differ in it."""
    heartbeat_s: float = 0.1
    drift: float = 0.1
    """How much faster one node's clock may run than another's: leases are this much shorter."""
    sleep_after_s: float = 1.0
    """A group without work for this long stops its heartbeats."""
    look_after_s: float = 10.0
    """A leader whose group sleeps asks this often whether the others still follow it."""


class UnsafeStateError(AssertionError):
    """A rule of Raft is broken: the group must stop, for going on could lose what was acknowledged."""


class Host(Protocol):
    """The node a replica lives on."""

    def now(self) -> float:
        """Monotonic, seconds."""

    def send(self, peer: str, group: Any, message: AnyMessage) -> None:
        """Never delivers re-entrantly; may lose the message."""

    def wake(self, group: Any) -> None:
        """Call ``group.turn()`` soon: once however often it is asked."""

    def committed(self, group: Any) -> None:
        """``group.commit`` has moved: apply, then call ``group.applied_to``."""

    def role_changed(self, group: Any) -> None:
        """The replica has become leader, or is none any more."""

    def configured(self, group: Any) -> None:
        """``group.configuration`` has changed."""

    def snapshot_wanted(self, group: Any, peer: str) -> None:
        """Stream a snapshot to the peer, then call ``group.snapshot_streamed`` or ``group.snapshot_failed``."""

    def install_snapshot(self, group: Any, message: Any) -> None:
        """Put a streamed snapshot into the durable state, then call ``group.snapshot_installed``."""


class _NoTransport(Transport):  # type: ignore[misc]  # pysyncobj is untyped
    """What SyncObj wants to exist. Messages go through the host."""

    def __init__(self) -> None:
        super().__init__(None, None, [])

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Node, message: Any) -> NoReturn:
        raise UnsafeStateError("a handler of SyncObj that was to be replaced has sent something")


class RaftState(SyncObj):  # type: ignore[misc]  # pysyncobj is untyped
    """State and small steps; the mixins behind it are the rules."""

    def __init__(
        self,
        name: str,
        kind: str,
        node_id: str,
        log: RaftLog,
        host: Host,
        *,
        timing: Timing,
        rng: random.Random,
        applied: int,
    ) -> None:
        # SyncObj looks at every attribute while it is constructed, properties included: ours must work by then.
        self.name = name
        self.kind = kind
        self.prefix = log.prefix
        self.node_id = node_id
        self.log = log
        self.host = host
        self.timing = timing
        self.rng = rng
        self.deadline_s = NEVER
        """When :meth:`turn` has something to do although nothing happened."""
        self.asleep = False
        self.connected: set[str] = set()
        self.failed: UnsafeStateError | None = None
        self._prepare()
        others = [Node(member) for member in log.configuration.members if member != node_id]
        super().__init__(
            Node(node_id), others, conf=SyncObjConf(autoTick=False, pollerType="select"), transport=_NoTransport()
        )
        self._SyncObj__raftLog = log
        self._SyncObj__raftCurrentTerm = max(log.getCurrentTerm(), log.last_term)
        self._SyncObj__votedForNodeId = log.getVotedForNodeId() if log.getCurrentTerm() >= log.last_term else None
        self._SyncObj__raftLastApplied = applied
        self._SyncObj__raftCommitIndex = max(log.getRaftCommitIndex(), applied)
        log.on_durable = self._log_durable  # type: ignore[method-assign]
        self._started()

    def _prepare(self) -> None:
        """Set what is needed before SyncObj is constructed; each rule its own, and calls the next."""

    def _started(self) -> None:
        """The state is complete."""

    # --- what SyncObj keeps ------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The current term."""
        return self._SyncObj__raftCurrentTerm

    @property
    def vote(self) -> str | None:
        """For whom this replica voted in it."""
        return self._SyncObj__votedForNodeId

    @property
    def role(self) -> int:
        """FOLLOWER, CANDIDATE or LEADER."""
        role: int = self._SyncObj__raftState
        return role

    @property
    def leader(self) -> str | None:
        """Who leads the term, as far as known."""
        node = self._SyncObj__raftLeader
        return None if node is None else node.id

    @property
    def commit(self) -> int:
        """The highest index known to be committed."""
        return self._SyncObj__raftCommitIndex

    @property
    def applied(self) -> int:
        """The highest index in the state machine."""
        return self._SyncObj__raftLastApplied

    @property
    def election_deadline_s(self) -> float:
        """When a follower asks for votes."""
        return self._SyncObj__raftElectionDeadline

    def _enter_term(self, term: int, vote: str | None) -> None:
        if term < self.term or (term == self.term and self.vote is not None and vote != self.vote):
            raise UnsafeStateError(f"{self.name}: from ({self.term}, {self.vote}) to ({term}, {vote})")
        self._SyncObj__setCurrentTerm(term, vote)

    def _set_role(self, role: int) -> None:
        self._SyncObj__setState(role)

    def _set_leader(self, leader: str | None) -> None:
        self._SyncObj__raftLeader = None if leader is None else Node(leader)

    def _set_commit(self, index: int) -> None:
        if index > self.log.last_index:
            raise UnsafeStateError(f"{self.name}: commit {index} behind the log's end {self.log.last_index}")
        self._SyncObj__raftCommitIndex = index

    def _set_applied(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    def _set_election_deadline(self, at_s: float) -> None:
        self._SyncObj__raftElectionDeadline = at_s

    def _set_members(self, members: tuple[str, ...]) -> None:
        self._SyncObj__otherNodes = {Node(member) for member in members if member != self.node_id}

    @property
    def configuration(self) -> Configuration:
        """Who the replicas are: the newest configuration in the log counts, committed or not."""
        return self.log.configuration

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads its term, as far as it knows."""
        return self.role == LEADER

    @property
    def is_voter(self) -> bool:
        """Whether it is one of those who decide."""
        return self.node_id in self.log.configuration.voters

    @property
    def may_campaign(self) -> bool:
        """A voter may, and so may one that is being removed: the others may lack its last entries and elect nobody
        (dissertation §4.2.2). It does not count itself."""
        committed = max(self.commit, self.log.base_index)
        return self.is_voter or self.node_id in self.log.configuration_at(committed).voters

    # --- what SyncObj must not do ------------------------------------------------------------------------

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self.turn()

    def turn(self) -> None:
        """Do what time and events have made due."""
        raise NotImplementedError

    def _log_durable(self) -> None:
        """An fsync covered something of this group's log."""
        raise NotImplementedError

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UnsafeStateError(f"{self.name}: a handler of SyncObj that is replaced was called")

    _applyCommand = _refuse
    _checkCommandsToApply = _refuse
    _transferLeadership = _refuse
    _addNodeToCluster = _refuse
    _removeNodeFromCluster = _refuse
    _setCodeVersion = _refuse
    _SyncObj__onMessageReceived = _refuse
    _SyncObj__sendNextNodeIdx = _refuse
    _SyncObj__sendAppendEntries = _refuse
    _SyncObj__applyLogEntries = _refuse
    _SyncObj__doApplyCommand = _refuse
    _SyncObj__onBecomeLeader = _refuse
    _SyncObj__tryLogCompaction = _refuse
    _SyncObj__loadDumpFile = _refuse
    _SyncObj__changeCluster = _refuse
    _SyncObj__doChangeCluster = _refuse
    _SyncObj__parseChangeClusterRequest = _refuse
    _SyncObj__updateClusterConfiguration = _refuse
