"""What must hold of a group at every moment, checked where it can break: a replica's log, the messages it sends, and
what a step has changed. All of it is incremental, so that thousands of runs are affordable.

The judge of durability is the simulated disk, not the code under test: a vote, an acknowledgement or a commit is
compared with what a power loss at that moment would leave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from metad.raft.base import LEADER
from metad.raft.log.journal import CONFIGURATION, HEADER, REGULAR, Metadata, RaftLog
from metad.raft.messages import AnyMessage, AppendReply, Configuration, Vote, VoteReply
from metad.raft.replica import RaftGroup
from metad.storage.log import log_entry, log_metadata

_decode_metadata = msgspec.msgpack.Decoder(Metadata).decode
_decode_configuration = msgspec.msgpack.Decoder(Configuration).decode
_identity = msgspec.msgpack.Decoder().decode


class Violation(AssertionError):
    """A rule is broken. Starts with its name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class WatchedLog(RaftLog):
    """A replica's log whose every change is looked at."""

    watch: Watch | None = None

    def append(self, records: list[bytes]) -> int:
        first = self.last_index + 1
        number = super().append(records)
        if self.watch is not None:
            self.watch.appended(first, records)
        return number

    def truncate_from(self, index: int) -> None:
        if self.watch is not None:
            self.watch.truncates(index)
        super().truncate_from(index)

    def compact(self, through: int) -> None:
        if self.watch is not None:
            self.watch.compacts(through)
        super().compact(through)

    def restart(self, index: int, term: int, configuration: Configuration) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.restarts(index, term, configuration)
        super().restart(index, term, configuration)
        self.watch = watch


class Ledger:
    """What is known of one group, over all nodes and all of time. ``durable`` reads a node's disk as a power loss would
    leave it."""

    def __init__(self, group: bytes, durable: Callable[[str, bytes], bytes | None], initial: Configuration) -> None:
        self.group = group
        self.durable = durable
        self.configurations: list[tuple[int, Configuration]] = [(0, initial)]
        """Those committed, by index."""
        self.leaders: dict[int, str] = {}
        self.committed: list[bytes] = [b""]
        """Records by index; entry 0 is none."""
        self.committed_in: list[int] = [0]
        """The terms of the leaders that committed them."""
        self.identities: dict[str, int] = {}
        self.acknowledged = 0
        """The highest index whose effect a client was told of."""
        self.elections = 0
        self.changes = 0
        self._entries: dict[tuple[int, int], tuple[int, bytes]] = {}  # (index, term) -> (term before, record)
        self._votes: dict[tuple[int, str], set[str]] = {}  # (term, candidate) -> voters
        self._metadata_key = log_metadata(group)
        self._decoded: dict[bytes, Metadata] = {}

    # --- the disk ----------------------------------------------------------------------------------------

    def hard_state(self, node: str) -> tuple[int, str | None]:
        """Term and vote that a node would wake up with."""
        metadata = self._metadata(node)
        if metadata is None:
            return 0, None
        last = metadata.runs[-1][1] if metadata.runs else metadata.base_term
        return (last, None) if last > metadata.term else (metadata.term, metadata.vote)

    def durable_term(self, node: str, index: int) -> int | None:
        """The term of the entry that a node would have at ``index``: -1 where it is compacted, None where there is
        none."""
        data = self.durable(node, log_entry(self.group, index))
        if data is not None:
            return int.from_bytes(data[:8], "big")
        metadata = self._metadata(node)
        return -1 if metadata is not None and index <= metadata.base_index else None

    def _metadata(self, node: str) -> Metadata | None:
        data = self.durable(node, self._metadata_key)
        if data is None:
            return None
        decoded = self._decoded.get(data)
        if decoded is None:
            if len(self._decoded) > 64:
                self._decoded.clear()
            decoded = self._decoded[data] = _decode_metadata(data)
        return decoded

    # --- the log -----------------------------------------------------------------------------------------

    def entered(self, node: str, log: RaftLog, index: int, record: bytes) -> bool:
        """A log holds ``record`` at ``index`` now. True if nobody has had it before."""
        term = int.from_bytes(record[:8], "big")
        before = log.term_at(index - 1)
        if before is None:
            raise Violation("log", f"{node} appends entry {index} behind nothing")
        known = self._entries.get((index, term))
        if known is None:
            self._entries[index, term] = (before, record)
            return True
        if known != (before, record):
            raise Violation(
                "log matching", f"{node} has {record!r} at ({index}, {term}) behind term {before}; another log {known}"
            )
        return False

    def commits(self, node: str, log: RaftLog, old: int, new: int, *, leads: int) -> None:
        """A replica's commit index moves, while it leads term ``leads``, or 0."""
        committed = self.committed
        if new >= len(committed):
            if not leads:
                raise Violation(
                    "commit", f"{node} takes {new} for committed; leaders have committed {len(committed) - 1}"
                )
            index = len(committed)
            while index <= new:
                for record in log.records(index, 1 << 20, new + 1):
                    self._commit(index, record)
                    self.committed_in.append(leads)
                    index += 1
        for index in range(max(old, log.base_index) + 1, new + 1):
            if log.term_at(index) != HEADER.unpack_from(committed[index])[0]:
                raise Violation(
                    "state machine safety",
                    f"{node} has committed ({index}, {log.term_at(index)}), others {committed[index]!r}",
                )

    def _commit(self, index: int, record: bytes) -> None:
        self.committed.append(record)
        if record[8] == REGULAR:
            identity = str(_identity(record[9:])[0])
            other = self.identities.setdefault(identity, index)
            if other != index:
                raise Violation("exactly once", f"{identity} is committed as entry {other} and {index}")
        elif record[8] == CONFIGURATION:
            self.changes += 1
            self.configurations.append((index, _decode_configuration(record[9:])))

    def voted(self, node: str, term: int, candidate: str) -> None:
        """A vote leaves a node."""
        if self.hard_state(node) != (term, candidate):
            raise Violation(
                "durable votes",
                f"{node} votes for {candidate} in term {term}; its disk says {self.hard_state(node)}",
            )
        for (other_term, other), voters in self._votes.items():
            if other_term == term and other != candidate and node in voters:
                raise Violation("one vote", f"{node} votes for {other} and {candidate} in term {term}")
        self._votes.setdefault((term, candidate), set()).add(node)

    def elected(self, node: str, log: RaftLog, term: int) -> None:
        """A replica leads."""
        self.elections += 1
        other = self.leaders.setdefault(term, node)
        if other != node:
            raise Violation("election safety", f"{other} and {node} lead term {term}")
        configuration = log.configuration
        if self.hard_state(node) == (term, node):
            self._votes.setdefault((term, node), set()).add(node)
        votes = self._votes.get((term, node), set()).intersection(configuration.voters)
        if len(votes) < configuration.quorum():
            raise Violation("election quorum", f"{node} leads term {term} by {sorted(votes)} of {configuration.voters}")
        last = bisect_left(self.committed_in, term) - 1  # what was committed later is none of its business
        if last > log.base_index and log.term_at(last) != HEADER.unpack_from(self.committed[last])[0]:
            raise Violation(
                "leader completeness",
                f"{node} leads term {term} with {log.term_at(last)} at {last}, where {self.committed[last]!r} is",
            )


class Watch:
    """One life of one replica."""

    def __init__(
        self, ledger: Ledger, node: str, group: RaftGroup, log: RaftLog, durable_applied: Callable[[], int]
    ) -> None:
        self._durable_applied = durable_applied
        self._ledger = ledger
        self._node = node
        self._group = group
        self._log = log
        self._term = group.term
        self._leads = 0  # the term
        self._commit = group.commit
        self._applied = group.applied
        self._asleep = group.asleep

    def appended(self, first: int, records: Iterable[bytes]) -> None:
        """The log has them now."""
        ledger, group = self._ledger, self._group
        for index, record in enumerate(records, first):
            new = ledger.entered(self._node, self._log, index, record)
            if new and record[8] == CONFIGURATION:
                self._configured(index, _decode_configuration(record[9:]))
        if first <= group.commit:
            raise Violation("committed entries stay", f"{self._node} appends {first} below commit {group.commit}")

    def _configured(self, index: int, after: Configuration) -> None:
        group, log = self._group, self._log
        before = log.configuration_at(index - 1)
        changed = set(before.voters).symmetric_difference(after.voters)
        if len(changed) > 1:
            raise Violation("one change at a time", f"{before.voters} became {after.voters}")
        pending = [
            at for at in range(group.commit + 1, index) if log.configuration_at(at) != log.configuration_at(at - 1)
        ]
        if pending:
            raise Violation("one change at a time", f"{self._node} changes at {index}, {pending} is not committed")
        if log.term_at(group.commit) != group.term:
            raise Violation("change after commit", f"{self._node} has committed nothing of term {group.term} yet")

    def truncates(self, index: int) -> None:
        """The log is about to lose ``index`` and what follows."""
        group = self._group
        if group.role == LEADER:
            raise Violation("leader append-only", f"{self._node} drops {index} of its own log in term {group.term}")
        if index <= group.commit:
            raise Violation("committed entries stay", f"{self._node} drops {index}, committed is {group.commit}")

    def compacts(self, through: int) -> None:
        """The log is about to lose its beginning."""
        if through > self._durable_applied():
            raise Violation("compaction", f"{self._node} drops {through}; its state holds {self._durable_applied()}")

    def restarts(self, index: int, term: int, configuration: Configuration) -> None:
        """A snapshot takes the place of the log's beginning."""
        ledger = self._ledger
        then = next(c for at, c in reversed(ledger.configurations) if at <= index)
        if configuration != then:
            raise Violation("snapshots", f"{self._node} installs {index} with {configuration}; it was {then}")
        committed = self._ledger.committed
        if index >= len(committed) or HEADER.unpack_from(committed[index])[0] != term:
            raise Violation("snapshots", f"{self._node} installs ({index}, {term}), which is not committed")
        if index <= self._group.applied:
            raise Violation("snapshots", f"{self._node} goes back from {self._group.applied} to {index}")
        if index > self._durable_applied():
            raise Violation("snapshots", f"{self._node} installs {index}; its state holds {self._durable_applied()}")

    def sends(self, peer: str, message: AnyMessage) -> None:
        """A message is handed to the network."""
        ledger, node = self._ledger, self._node
        if isinstance(message, AppendReply):
            if message.match > 0 and message.term == self._group.term:
                self._acknowledges(message.match)
        elif isinstance(message, VoteReply):
            if message.granted:
                ledger.voted(node, message.term, peer)
        elif isinstance(message, Vote):
            ledger.voted(node, message.term, node)

    def _acknowledges(self, match: int) -> None:
        if match < self._log.base_index:
            return  # compacted, hence committed, and looked at then
        term, found = self._log.term_at(match), self._ledger.durable_term(self._node, match)
        if found != -1 and (found is None or found != term):
            raise Violation(
                "durable acknowledgements",
                f"{self._node} acknowledges ({match}, {term}); its disk has term {found} there",
            )
        durable = self._ledger.hard_state(self._node)[0]
        if durable < self._group.term:
            raise Violation(
                "durable terms",
                f"{self._node} acknowledges in term {self._group.term}; its disk has term {durable}",
            )

    def applies(self, index: int, record: bytes) -> None:
        """The state machine is given an entry."""
        committed = self._ledger.committed
        if index >= len(committed) or committed[index] != record:
            raise Violation(
                "state machine safety", f"{self._node} applies {record!r} at {index}, which is not committed"
            )
        term = int.from_bytes(record[:8], "big")
        if self._ledger.durable_term(self._node, index) not in (term, -1):
            raise Violation("apply after durable", f"{self._node} applies {index}, which its disk does not have")

    def look(self) -> None:
        """After every step of the node."""
        group = self._group
        term, commit, applied = group.term, group.commit, group.applied
        if term != self._term:
            if term < self._term:
                raise Violation("terms grow", f"{self._node} went from term {self._term} to {term}")
            self._term = term
        if group.role == LEADER and self._leads != term:
            self._leads = term
            self._ledger.elected(self._node, self._log, term)
        if commit != self._commit:
            if commit < self._commit:
                raise Violation("commit grows", f"{self._node}'s commit went from {self._commit} to {commit}")
            leads = term if self._leads == term else 0
            self._ledger.commits(self._node, self._log, self._commit, commit, leads=leads)
            if leads:
                self._quorum(commit)
            self._commit = commit
        if group.asleep != self._asleep:
            self._asleep = group.asleep
            if self._asleep and group.role == LEADER:
                self._sleeps()
        if applied != self._applied:
            if applied < self._applied:
                raise Violation("applied grows", f"{self._node}'s applied went from {self._applied} to {applied}")
            if applied > commit:
                raise Violation("apply after commit", f"{self._node} has applied {applied}, committed is {commit}")
            self._applied = applied

    def _sleeps(self) -> None:
        last = self._log.last_index
        for member in self._log.configuration.members:
            if self._ledger.durable_term(member, last) not in (self._log.last_term, -1):
                raise Violation("sleep", f"{self._node} sleeps; {member} lacks its entry {last}")

    def _quorum(self, index: int) -> None:
        log = self._log
        term = log.term_at(index)
        if term is None:
            return
        if term != self._group.term and index > log.base_index:
            raise Violation("commit of this term", f"{self._node} commits ({index}, {term}) in term {self._group.term}")
        configuration = log.configuration
        have = [v for v in configuration.voters if self._ledger.durable_term(v, index) in (term, -1)]
        if len(have) < configuration.quorum():
            raise Violation(
                "commit quorum",
                f"{self._node} commits ({index}, {term}) with {have} of {configuration.voters}",
            )


def same_states(states: dict[str, Any]) -> None:
    """Replicas that have applied as much hold the same."""
    first: tuple[str, Any] | None = None
    for node, state in states.items():
        if first is None:
            first = (node, state)
        elif state != first[1]:
            raise Violation("same states", f"{first[0]} and {node} differ: {first[1]} and {state}")
