"""pysyncobj as it stands, in the situations that :mod:`metad.raft` is built for: ``cd tests && python -m sim.stock``.

Each situation is played out with real, unchanged SyncObj nodes whose network is a list, and then, under the same name,
with the replicas of this service (:mod:`.replicas.scenarios`). The first must show the fault and the second must not;
the exit code says whether both hold.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj import journal as stock_journal
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from rich.console import Console
from rich.table import Table

from .replicas.scenarios import SCENARIOS

_NO_OP: Final = b"\x01"
_MEMBERSHIP: Final = 2
_LEADER: Final = 2


class Holds(Exception):
    """The fault did not show."""


class _Wire(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(None, None, ())
        self.sent: list[dict[str, Any]] = []

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        self.sent.append(message)
        return True

    def addNode(self, node: Any) -> None:
        """Nothing to connect."""

    def dropNode(self, node: Any) -> None:
        """Nothing to disconnect."""

    def destroy(self) -> None:
        """Nothing to close."""


class _Counter(SyncObj):  # type: ignore[misc]
    """What is replicated."""

    @replicated  # type: ignore[untyped-decorator]
    def add(self) -> None:
        """Whatever."""


class Stock:
    """One node, n1, and hands on what happens to it."""

    def __init__(self, members: int, journal: Path | None = None) -> None:
        self.wire = _Wire()
        self.others = [Node(f"n{at}") for at in range(2, members + 1)]
        conf = SyncObjConf(
            autoTick=False, dynamicMembershipChange=True, journalFile=None if journal is None else str(journal)
        )
        self.node = _Counter(Node("n1"), self.others, conf=conf, transport=self.wire)
        for other in self.others:
            self.wire._onNodeConnected(other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, f"_SyncObj__{name}")

    @property
    def log(self) -> list[tuple[bytes, int, int]]:
        """(command, index, term)."""
        return list(self.raftLog[:])

    def hear(self, sender: int, **message: Any) -> list[dict[str, Any]]:
        """A message from n<sender>; what is sent upon it."""
        before = len(self.wire.sent)
        self.wire._onMessageReceived(self.others[sender - 2], message)
        return self.wire.sent[before:]

    def append(self, sender: int, term: int, previous: tuple[int, int], entries: list[Any], commit: int = 1) -> Any:
        """An append_entries; ``previous`` is (index, term)."""
        return self.hear(
            sender,
            type="append_entries",
            term=term,
            commit_index=commit,
            entries=entries,
            prevLogIdx=previous[0],
            prevLogTerm=previous[1],
        )

    def stand(self) -> int:
        """Its election timeout passes; the term it stands in."""
        self.node._SyncObj__raftElectionDeadline = 0.0
        self.node.doTick()
        return int(self.raftCurrentTerm)

    def win(self) -> int:
        """It stands, and as many vote for it as it needs; its term."""
        term = self.stand()
        for other in range(2, 2 + (len(self.others) + 1) // 2):
            self.hear(other, type="response_vote", term=term)
        self.node.doTick()
        _expect(self.raftState == _LEADER, "it was not elected")
        return term

    def acknowledge(self, *senders: int, next_index: int | None = None) -> None:
        """Followers say that they have the log up to ``next_index - 1``; None: all of it."""
        index = self.log[-1][1] + 1 if next_index is None else next_index
        for sender in senders:
            self.hear(sender, type="next_node_idx", next_node_idx=index, reset=False, success=True)
        self.node.doTick()


def _expect(shown: bool, otherwise: str) -> None:
    if not shown:
        raise Holds(otherwise)


@contextmanager
def _journal() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "journal"


@contextmanager
def _fsyncs() -> Iterator[mock.Mock]:
    """Counts every call that could make something durable."""
    synced = mock.Mock()
    with (
        mock.patch.object(os, "fsync", synced),
        mock.patch.object(os, "fdatasync", synced),
        mock.patch.object(stock_journal.ResizableFile, "flush", synced),
    ):
        yield synced


def _late_append() -> str:
    node = Stock(3)
    entries = [(_NO_OP, index, 1) for index in range(2, 11)]
    (reply,) = node.append(2, 1, (1, 0), entries)
    _expect(reply["success"] and reply["next_node_idx"] == 11, "it did not take the entries")
    node.append(2, 1, (1, 0), entries[:2])  # the leader was asked to begin again, and its first packet is here
    last = node.log[-1][1]
    _expect(last < 10, "it kept its log")
    return f"it had acknowledged entry 10, and its log ends at {last}"


def _old_acknowledgement() -> str:
    node = Stock(5)
    node.win()
    for _ in range(3):
        node.node.add()
    node.node.doTick()
    sent = node.log[-1][1]
    node.append(2, 2, (1, 0), [])  # n2 leads now; its heartbeat drops the entries
    term = node.win()
    for _ in range(3):
        node.node.add()
    node.node.doTick()
    node.acknowledge(3, 4, next_index=sent + 1)  # what n3 and n4 answered in the first term arrives only now
    _expect(node.raftCommitIndex == sent, "nothing was committed")
    return f"entries up to {sent} of term {term} are committed by two answers to entries of term 1"


def _votes() -> str:
    node = Stock(5)
    term = node.stand()
    for _ in range(2):
        node.hear(2, type="response_vote", term=term)
    _expect(node.raftState == _LEADER, "it is no leader")
    return "two of five voters, n2 and itself, make it the leader"


def _changes() -> str:
    node = Stock(3)
    node.win()
    node.acknowledge(2, 3)
    commit = node.raftCommitIndex
    for name in ("n4", "n5"):
        node.node.addNodeToCluster(Node(name))
        node.node.doTick()
    changes = [index for command, index, _ in node.log if command[0] == _MEMBERSHIP and index > commit]
    _expect(len(changes) == 2, "it took one change at a time")
    return f"two changes of the members, entries {changes[0]} and {changes[1]}, are in flight at once"


def _restart() -> str:
    with _journal() as journal:
        node = Stock(3, journal)
        node.win()
        node.acknowledge(2, 3)
        node.node.addNodeToCluster(Node("n4"))
        node.node.doTick()
        node.acknowledge(2, 3)
        _expect(len(node.otherNodes) == 3 and node.raftCommitIndex == node.log[-1][1], "n4 was not added")
        node.node.destroy()
        again = Stock(3, journal)
        members = sorted(other.id for other in again.otherNodes)
        again.node.destroy()
        _expect("n4" not in members, "it knows n4")
        return f"n4 was added, and after a restart it knows {' and '.join(members)}"


def _vote() -> str:
    with _journal() as journal:
        node = Stock(3, journal)
        saved = journal.with_name("saved")
        shutil.copytree(journal.parent, saved)  # what the disk holds for sure
        ask = {"type": "request_vote", "term": 5, "last_log_index": 1, "last_log_term": 0}
        with _fsyncs() as fsyncs:
            first = node.hear(2, **ask)
        _expect(not fsyncs.called, "the vote was made durable")
        node.node.destroy()
        for path in journal.parent.iterdir():  # the power fails
            if path.is_file():
                path.unlink()
        for path in saved.iterdir():
            shutil.copy(path, journal.parent)
        again = Stock(3, journal)
        second = again.hear(3, **ask)
        again.node.destroy()
        _expect(bool(first and second), "it voted once")
        return "it votes for n2, the power fails before anything was synced, and it votes for n3 in the same term"


def _compaction() -> str:
    with _journal() as path:
        journal = stock_journal.FileJournal(str(path))
        for index in range(1, 11):
            journal.add(_NO_OP, index, 1)
        add, left = journal.add, 3

        def until_killed(*entry: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            add(*entry)

        with mock.patch.object(journal, "add", until_killed), suppress(KeyboardInterrupt):
            journal.deleteEntriesTo(2)
        journal._destroy()
        again = stock_journal.FileJournal(str(path))
        reopened = len(again)
        again._destroy()
        _expect(reopened < 8, "the journal was whole")
        return f"killed while it drops 2 of 10 entries, it comes back with {reopened} of the other 8"


def _diverged_tail() -> str:
    node = Stock(3)
    node.append(2, 1, (1, 0), [(_NO_OP, index, 1) for index in range(2, 6)])  # n2 falls; nobody else has them
    node.hear(3, type="append_entries", term=2, commit_index=5, serialized=None)  # n3 has committed others there
    node.node.doTick()
    _expect(node.raftLastApplied == 5, "it waited for the entries")
    return "it applies entries 2 to 5 of the fallen leader, which were never committed"


def _own_disk() -> str:
    with _journal() as path:
        node = Stock(1, path)
        outcomes: list[Any] = []
        with _fsyncs() as fsyncs:
            node.stand()
            node.node.add(callback=lambda _, outcome: outcomes.append(outcome))
            for _ in range(3):
                node.node.doTick()
        node.node.destroy()
        _expect(bool(outcomes) and not fsyncs.called, "the answer came behind an fsync")
        return "a write is answered with SUCCESS, and nothing was ever synced"


def _pre_vote() -> str:
    node = Stock(3)
    term = node.win()
    node.acknowledge(2, 3)
    node.hear(3, type="request_vote", term=term + 8, last_log_index=1, last_log_term=0)
    _expect(node.raftState != _LEADER, "it leads on")
    return f"n3 comes back from a cut with term {term + 8}, and a leader with a healthy majority steps down"


FAULTS: Final[dict[str, Callable[[], str]]] = {
    "late_append_keeps_the_tail": _late_append,
    "old_acknowledgement_counts_for_nothing": _old_acknowledgement,
    "votes_are_voters": _votes,
    "one_change_at_a_time": _changes,
    "configuration_survives_a_restart": _restart,
    "vote_survives_power_failure": _vote,
    "power_fails_at_every_write_of_a_compaction": _compaction,
    "diverged_tail_is_not_committed": _diverged_tail,
    "leader_counts_its_disk": _own_disk,
    "pre_vote_keeps_the_term": _pre_vote,
}
"""Scenario -> plays it with pysyncobj as it stands; returns what came of it, or raises :class:`Holds`."""


def main() -> int:
    """Entry point of the command: 0 where every fault shows there and none here."""
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)
    made = Table(title="pysyncobj as it stands, and metad's replicas", title_justify="left", show_lines=True)
    for column in ("scenario", "pysyncobj 0.3.17", "metad"):
        made.add_column(column)
    failed = False
    for name, play in FAULTS.items():
        try:
            stock = play()
        except Holds as error:
            failed, stock = True, f"the fault did not show: {error}"
        try:
            SCENARIOS[name]()
            ours = "holds"
        except Exception as error:  # noqa: BLE001 - whatever is raised says that the rule is broken
            failed, ours = True, f"{type(error).__name__}: {error}"
        made.add_row(name, stock, ours)
    Console(width=None if sys.stdout.isatty() else 120).print(made)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
