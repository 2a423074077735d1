"""The state of a replica: pysyncobj's SyncObj, with everything that acts taken away.

SyncObj keeps the state of a replica: role, term and vote (through its Journal), leader, commit and applied index, the
other members, and the status that shows them. The rules beside this module replace all of SyncObj's behaviour;
``metad/raft/__init__.py`` has the table. Only this module spells SyncObj's private names.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from .base import Timing, UnsafeStateError
from .log.journal import RaftLog
from .messages import Configuration

AUDITED_VERSION: Final = "0.3.17"
AUDITED_SHA256: Final = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"
"""The hash of pysyncobj/syncobj.py as it was read line by line. A test compares the installed file with it."""


class _NoTransport(Transport):  # type: ignore[misc]  # pysyncobj is untyped
    """SyncObj wants a transport to exist. Messages go through the host."""

    def __init__(self) -> None:
        super().__init__(None, None, [])

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Node, message: Any) -> NoReturn:
        raise UnsafeStateError("a handler of SyncObj that was to be replaced has sent something")


class ReplicaState(SyncObj):  # type: ignore[misc]  # pysyncobj is untyped
    """Every rule of a replica reads this, and changes it by checked steps."""

    def __init__(self, name: str, node_id: str, log: RaftLog, *, timing: Timing, applied: int) -> None:
        # SyncObj looks at every attribute while it is constructed, properties included: these must work by then.
        self.name = name
        self.node_id = node_id
        self.log = log
        self.timing = timing
        self.connected: set[str] = set()
        """The nodes that messages reach."""
        self.watched = False
        others = [Node(member) for member in log.configuration.members if member != node_id]
        super().__init__(
            Node(node_id), others, conf=SyncObjConf(autoTick=False, pollerType="select"), transport=_NoTransport()
        )
        self._SyncObj__raftLog = log
        self._SyncObj__raftCurrentTerm = max(log.getCurrentTerm(), log.last_term)
        self._SyncObj__votedForNodeId = log.getVotedForNodeId() if log.getCurrentTerm() >= log.last_term else None
        self._SyncObj__raftLastApplied = applied
        self._SyncObj__raftCommitIndex = max(log.getRaftCommitIndex(), applied)

    def watch(self, watched: bool) -> None:
        """Somebody waits for what this replica applies, or nobody does."""
        self.watched = watched

    # --- what SyncObj keeps ------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The current term."""
        return self._SyncObj__raftCurrentTerm

    @property
    def vote(self) -> str | None:
        """For whom this replica voted in the current term."""
        return self._SyncObj__votedForNodeId

    @property
    def role(self) -> int:
        """FOLLOWER, CANDIDATE or LEADER."""
        role: int = self._SyncObj__raftState
        return role

    @property
    def leader(self) -> str | None:
        """The node that leads the term, as far as known."""
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

    def enter_term(self, term: int, vote: str | None) -> None:
        """Go to a later term, or vote in the current one. Terms do not go back, and votes do not change."""
        if term < self.term or (term == self.term and self.vote is not None and vote != self.vote):
            raise UnsafeStateError(f"{self.name}: from ({self.term}, {self.vote}) to ({term}, {vote})")
        self._SyncObj__setCurrentTerm(term, vote)

    def set_role(self, role: int) -> None:
        """Become a follower, candidate or leader."""
        self._SyncObj__setState(role)

    def set_leader(self, leader: str | None) -> None:
        """Remember who leads the term."""
        self._SyncObj__raftLeader = None if leader is None else Node(leader)

    def set_commit(self, index: int) -> None:
        """Everything up to ``index`` is committed."""
        if index > self.log.last_index:
            raise UnsafeStateError(f"{self.name}: commit {index} behind the log's end {self.log.last_index}")
        self._SyncObj__raftCommitIndex = index

    def set_applied(self, index: int) -> None:
        """Everything up to ``index`` is in the state machine."""
        self._SyncObj__raftLastApplied = index

    def set_members(self, members: tuple[str, ...]) -> None:
        """Have SyncObj's status show these nodes."""
        self._SyncObj__otherNodes = {Node(member) for member in members if member != self.node_id}

    # --- what follows from it ----------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The replicas of the group: the newest configuration in the log counts, committed or not."""
        return self.log.configuration

    @property
    def is_voter(self) -> bool:
        """Whether this replica is one of those that decide."""
        return self.node_id in self.log.configuration.voters

    @property
    def may_campaign(self) -> bool:
        """A voter may, and so may one that is being removed: the others may lack its last entries and elect nobody
        (dissertation §4.2.2). It does not count itself."""
        committed = max(self.commit, self.log.base_index)
        return self.is_voter or self.node_id in self.log.configuration_at(committed).voters

    @property
    def applicable(self) -> int:
        """The highest index that may be applied: committed, and durable here, so no state gets ahead of its log."""
        return min(self.commit, self.log.durable_index)

    @property
    def unapplied(self) -> int:
        """How many entries are known to be committed and have yet to be applied."""
        return max(0, self.commit - self.applied)

    def has_quorum(self, members: set[str]) -> bool:
        """Whether these are enough voters to decide."""
        configuration = self.configuration
        return len(members.intersection(configuration.voters)) >= configuration.quorum()

    # --- what SyncObj must not do ------------------------------------------------------------------------

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UnsafeStateError(f"{self.name}: a handler of SyncObj that is replaced was called")

    _onTick = _refuse
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
