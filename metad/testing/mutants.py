"""Bugs to plant: every rule of Raft broken once, every wait for the disk removed once, what is wrong in pysyncobj put
back. A simulation that does not find them would not find bugs that nobody planted.

A mutant replaces a piece of a function's source. If the piece is not there any more, the mutant is to be rewritten, and
planting it says so.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """One bug."""

    name: str
    breaks: str
    """The rule, in a few words."""
    edits: tuple[tuple[str, str, str], ...]
    """(class and function, what is there, what is put there). A module without a dot is one of ``metad.raft``."""
    scenarios: tuple[str, ...] = ()
    """That are expected to object, the best first."""


def _m(name: str, breaks: str, target: str, old: str, new: str, *scenarios: str) -> Mutant:
    return Mutant(name, breaks, ((target, old, new),), scenarios)


MUTANTS: tuple[Mutant, ...] = (
    # --- votes
    _m(
        "vote_before_disk",
        "a vote leaves when it is durable",
        "elections:Elections._send_when_durable",
        "if self.log.hard_state_durable:",
        "if True:",
        "vote_waits_for_the_disk",
    ),
    _m(
        "own_vote_before_disk",
        "a candidate's own vote counts when it is durable",
        "elections:Elections._campaign",
        "self._own_vote_due = True",
        "self._own_vote_durable()",
        "vote_waits_for_the_disk",
    ),
    _m(
        "votes_not_stored",
        "votes are persisted",
        "journal:RaftLog.save",
        "self._writer.writes[self._key] = _encode(meta)",
        "pass",
        "vote_survives_power_failure",
    ),
    _m(
        "forgetful_replicas_count",
        "who lacks what it acknowledged in this reign is not counted",
        "replication:Replication._rejected",
        "message.probe > progress.acknowledged_in",
        "False",
        "who_lost_what_it_acknowledged_counts_no_more",
    ),
    _m(
        "late_rejections_accuse",
        "a rejection from before the acknowledgement proves nothing",
        "replication:Replication._rejected",
        "message.probe > progress.acknowledged_in",
        "True",
        "who_lost_what_it_acknowledged_counts_no_more",
    ),
    _m(
        "vote_is_forgotten_at_start",
        "a restart remembers the vote",
        "base:RaftState.__init__",
        "log.getVotedForNodeId() if log.getCurrentTerm() >= log.last_term else None",
        "None",
        "vote_survives_power_failure",
    ),
    Mutant(
        "votes_not_voters",
        "a voter counts once",
        (
            (
                "elections:Elections._on_vote_reply",
                "self._votes.add(peer)",
                "self._votes.add(peer + str(len(self._votes)))",
            ),
            (
                "elections:Elections._has_quorum",
                "len(members.intersection(configuration.voters))",
                "len(members)",
            ),
        ),
        ("votes_are_voters",),
    ),
    _m(
        "strangers_vote",
        "only voters of the configuration count",
        "elections:Elections._has_quorum",
        "len(members.intersection(configuration.voters))",
        "len(members)",
        "votes_are_members",
    ),
    _m(
        "two_votes_in_a_term",
        "one vote per term",
        "elections:Elections._on_vote",
        "self.vote in (None, peer)",
        "True",
        "one_vote_a_term",
    ),
    _m(
        "vote_without_looking_at_the_log",
        "nobody votes for a log that lacks what may be committed",
        "elections:Elections._up_to_date",
        "return (last_term, last_index) >= (self.log.last_term, self.log.last_index)",
        "return True",
        "vote_needs_the_newer_log",
    ),
    _m(
        "longer_log_is_newer",
        "the last term decides first, then the length",
        "elections:Elections._up_to_date",
        "return (last_term, last_index) >= (self.log.last_term, self.log.last_index)",
        "return last_index >= self.log.last_index",
        "newer_term_beats_longer_log",
    ),
    _m(
        "no_pre_vote",
        "whoever was cut off does not raise the term",
        "elections:Elections._ask",
        "if self._has_quorum(self._would_vote):",
        "if True:",
        "pre_vote_keeps_the_term",
    ),
    _m(
        "no_stickiness",
        "a living leader is not voted against",
        "elections:Elections._leader_alive",
        "return self.asleep or now < self._promised_until_s",
        "return False",
        "living_leader_is_not_voted_against",
    ),
    _m(
        "restart_forgets_the_promise",
        "a restarted voter waits before it votes",
        "elections:Elections._started",
        "self._heard_leader(now)\n    self._promised_until_s = max(self._promised_until_s, now +",
        "self._postpone_election(now)\n    _ = (now -",
        "promise_outlives_a_restart",
    ),
    _m(
        "stored_promise_is_not_kept",
        "a restart keeps the promise of the life before",
        "elections:Elections._started",
        "now + self.log.promise_ms / 1000",
        "now",
        "promise_outlives_a_new_configuration",
    ),
    _m(
        "lease_by_the_leaders_own_timeout",
        "a lease rests on what the others promise",
        "replication:Replication._confirm_round",
        "message.promise_ms / 1000",
        "self.timing.election_s",
        "lease_rests_on_what_the_others_promise",
    ),
    _m(
        "sleeping_leader_looks_for_nobody",
        "a leader whose group sleeps asks who follows it",
        "replica:RaftGroup._look_turn",
        "if now < self._look_due_s:",
        "if True:",
        "sleeping_leader_looks_for_its_followers",
    ),
    _m(
        "no_check_quorum",
        "a leader that hears nobody steps down",
        "replication:Replication._leader_turn",
        "if not self._heard_quorum(now):",
        "if False:",
        "isolated_leader_steps_down",
    ),
    _m(
        "old_terms_are_not_answered",
        "an old leader learns from replies that it is one",
        "replication:Replication._on_append",
        "self.host.send(peer, self, AppendReply(self.term, message.probe, 0, 0))",
        "pass",
        "replies_end_a_reign",
    ),
    # --- the log
    _m(
        "tail_truncated_by_appends",
        "only what conflicts is dropped",
        "replication:Replication._store",
        "while position < len(records) and previous + position < last:",
        "if last > previous:\n        log.truncate_from(previous + 1)\n    while False:",
        "late_append_keeps_the_tail",
    ),
    _m(
        "tail_truncated_by_heartbeats",
        "a heartbeat drops nothing",
        "replication:Replication._on_append",
        "if records:\n        self._store(previous, records)",
        "if previous < log.last_index and not records:\n        log.truncate_from(previous + 1)\n"
        "    if records:\n        self._store(previous, records)",
        "heartbeat_keeps_the_tail",
    ),
    _m(
        "conflicts_are_kept",
        "what conflicts is dropped",
        "replication:Replication._store",
        'if log.term_at(index) != int.from_bytes(records[position][:8], "big"):',
        "if False:",
        "long_divergence_is_mended",
    ),
    _m(
        "previous_term_not_compared",
        "entries follow what the leader has before them",
        "replication:Replication._on_append",
        "if previous > log.last_index or log.term_at(previous) != previous_term:",
        "if previous > log.last_index:",
        "append_must_follow",
    ),
    _m(
        "commit_unverified",
        "a follower commits no further than it has verified",
        "replication:Replication._on_append",
        "commit = min(message.commit, verified)",
        "commit = min(message.commit, log.last_index)",
        "diverged_tail_is_not_committed",
    ),
    _m(
        "acknowledge_unverified",
        "a follower acknowledges what it has verified",
        "replication:Replication._reply",
        "match = min(verified, log.durable_index)",
        "match = log.durable_index",
        "diverged_tail_is_not_acknowledged",
    ),
    _m(
        "verified_for_another_leader",
        "what was verified against one leader says nothing about the next",
        "replication:Replication._forget_leader",
        "self._verified = self.commit",
        "pass",
        "verified_is_of_this_leader",
    ),
    _m(
        "acknowledge_before_disk",
        "an acknowledgement is of what is durable",
        "replication:Replication._reply",
        "match = min(verified, log.durable_index)",
        "match = verified",
        "acknowledged_writes_survive_a_blackout",
    ),
    _m(
        "acknowledge_in_a_term_not_on_disk",
        "an acknowledgement waits for its term",
        "replication:Replication._reply",
        "if log.hard_state_durable else 0",
        "if True else 0",
        "terms_are_durable_before_acknowledgements",
    ),
    _m(
        "leader_counts_itself",
        "the leader counts what its disk has",
        "replication:Replication._advance_commit",
        "durable = log.durable_index if log.hard_state_durable else 0",
        "durable = log.last_index",
        "leader_counts_its_disk",
    ),
    _m(
        "agreement_is_taken_for_durability",
        "the leader counts what followers' disks have",
        "replication:Replication._on_append_reply",
        "matched = progress.matched(message.match)",
        "matched = progress.matched(message.agreed)",
        "acknowledged_writes_survive_a_blackout",
    ),
    _m(
        "fsync_covers_later_writes",
        "an fsync covers what was written before it",
        "writer:LogWriter._synced",
        "for _ in range(self._syncing)",
        "for _ in range(len(self._written))",
        "writes_during_an_fsync_wait_for_the_next",
    ),
    _m(
        "truncated_entries_stay_durable",
        "what takes the place of dropped entries is not durable yet",
        "journal:RaftLog.truncate_from",
        "self.durable_index = min(self.durable_index, index - 1)",
        "pass",
        "replaced_entries_are_not_durable",
    ),
    _m(
        "fsync_covers_what_replaced_its_entries",
        "an fsync covers the entries that were written, and not what replaces them",
        "journal:RaftLog.truncate_from",
        "self._written = deque((number, min(last, index - 1)) for number, last in self._written)",
        "pass",
        "fsync_under_way_does_not_cover_what_replaces_its_entries",
    ),
    _m(
        "mark_covers_later_writes",
        "the durable mark is of what the fsync covered",
        "metad.storage.log:LogStore.sync_steps",
        "last = self._last.copy()",
        "last = self._last",
        "durable_mark_is_of_what_the_fsync_covers",
    ),
    _m(
        "apply_before_disk",
        "no state is ahead of its log",
        "replication:Replication.applicable",
        "return min(self.commit, self.log.durable_index)",
        "return self.commit",
        "follower_applies_what_is_durable",
    ),
    _m(
        "commit_old_terms",
        "entries of old terms are not committed by counting",
        "replication:Replication._advance_commit",
        "and log.term_at(index) == self.term",
        "",
        "figure_8",
    ),
    _m(
        "no_term_in_replies",
        "a reply of another term acknowledges nothing",
        "replication:Replication._on_append_reply",
        "if message.term < self.term or self.role != LEADER",
        "if self.role != LEADER",
        "old_acknowledgement_counts_for_nothing",
    ),
    _m(
        "old_leaders_are_obeyed",
        "an append of an old term is refused",
        "replication:Replication._on_append",
        "if message.term < self.term:",
        "if False:",
        "old_leader_is_not_obeyed",
    ),
    _m(
        "applied_twice_after_a_restart",
        "what is in the state is not applied again",
        "base:RaftState.__init__",
        "self._SyncObj__raftLastApplied = applied",
        "self._SyncObj__raftLastApplied = log.base_index",
        "restart_applies_nothing_twice",
    ),
    # --- disks
    _m(
        "hung_disk_keeps_the_lead",
        "a leader whose disk hangs hands over",
        "replication:Replication._leader_turn",
        "if self.disk_hangs and self._others_go_on():",
        "if False:",
        "leader_whose_disk_hangs_hands_over",
    ),
    _m(
        "hung_disk_gives_up_for_nothing",
        "it does so where the others go on without it",
        "replication:Replication._leader_turn",
        "if self.disk_hangs and self._others_go_on():",
        "if self.disk_hangs:",
        "leader_whose_disk_hangs_leads_on_where_others_cannot",
    ),
    _m(
        "pause_counts_as_a_hung_disk",
        "who was suspended cannot tell what its disk has done",
        "elections:Elections._watch_disk",
        "min(now - self._turned_s, 2 * self.timing.heartbeat_s)",
        "now - self._turned_s",
        "pause_is_not_taken_for_a_disk_that_hangs",
    ),
    # --- reads
    _m(
        "read_without_quorum",
        "a read is proved by a quorum",
        "reads:Reads.read",
        "if self.may_read() and not self._reads:",
        "if self.ready:",
        "cut_off_leader_does_not_read",
    ),
    _m(
        "read_by_an_old_round",
        "the round that proves a read begins after it",
        "reads:Reads.read",
        "self._reads.append((self._round + 1, done))",
        "self._reads.append((self._round, done))",
        "round_before_the_read_proves_nothing",
    ),
    _m(
        "read_before_own_entry",
        "a new leader applies its own entry before it reads",
        "reads:Reads.ready",
        "return self.role == LEADER and self.applied >= self.no_op_index",
        "return self.role == LEADER",
        "new_leader_reads_what_it_has_applied",
    ),
    _m(
        "lease_from_the_echo",
        "a lease is as old as the round it rests on",
        "replication:Replication._confirm_round",
        "began_s = rounds[number - rounds[0][0]][1]",
        "began_s = self.host.now()",
        "lease_begins_with_the_round",
    ),
    _m(
        "forgotten_round_counts",
        "a round whose beginning is forgotten proves nothing",
        "reads:Reads._release_reads",
        "if number > echoed:",
        "if number > echoed and number >= self._rounds[0][0]:",
        "forgotten_round_proves_nothing",
    ),
    _m(
        "lease_without_drift",
        "a lease allows for clocks that differ",
        "replication:Replication._confirm_round",
        " * (1 - self.timing.drift)",
        "",
        "lease_allows_for_drift",
    ),
    _m(
        "clock_stands_still_in_sleep",
        "the clock of leases counts the time a machine sleeps",
        "metad.testing.world:SimNode.suspend",
        "if not self.counts_suspension:",
        "if True:",
        "machine_that_slept_does_not_read_by_its_lease",
    ),
    _m(
        "lease_kept_at_hand_over",
        "whoever hands over has no lease",
        "membership:Membership._transfer_turn",
        "self._lease_given_up = True",
        "pass",
        "lease_is_given_up_before_a_hand_over",
    ),
    _m(
        "lease_kept_when_removed",
        "whoever is being removed has no lease",
        "reads:Reads.may_read",
        "and self.is_voter",
        "",
        "removed_leader_has_no_lease",
    ),
    _m(
        "old_hand_over_obeyed",
        "an order to campaign is obeyed in its term only",
        "elections:Elections._on_timeout_now",
        "message.term == self.term and self.leader == peer and",
        "",
        "old_hand_over_is_not_obeyed",
    ),
    _m(
        "echo_of_another_leader",
        "rounds are of one leader",
        "replication:Replication._forget_leader",
        "self._probe = 0",
        "pass",
        "echo_is_of_this_leader",
    ),
    # --- membership
    _m(
        "two_changes_at_once",
        "one change at a time",
        "membership:Membership._may_change",
        "if self.log.configuration_index > self.commit:",
        "if False:",
        "one_change_at_a_time",
    ),
    _m(
        "change_before_commit",
        "no change before an entry of the term is committed",
        "membership:Membership._may_change",
        "if self.commit < self.no_op_index:",
        "if False:",
        "no_change_before_an_entry_of_the_term",
    ),
    _m(
        "configuration_not_truncated",
        "a configuration goes with its entry",
        "journal:RaftLog.truncate_from",
        "while meta.configurations[-1][0] >= index:",
        "while False:",
        "configuration_goes_with_the_log",
    ),
    _m(
        "configuration_of_the_start",
        "the log says who decides, also after a restart",
        "journal:RaftLog._load",
        "return meta",
        "meta.configurations = [(meta.base_index, initial)]\n    return meta",
        "configuration_survives_a_restart",
    ),
    _m(
        "configuration_lost_by_compaction",
        "compaction keeps the configuration",
        "journal:RaftLog.compact",
        "self.configuration_at(through)",
        "meta.configurations[0][1]",
        "configuration_survives_a_restart",
    ),
    _m(
        "configuration_counts_when_committed",
        "a configuration counts from the moment it is in the log",
        "base:RaftState.configuration",
        "return self.log.configuration",
        "return self.log.configuration_at(max(self.commit, self.log.base_index))",
        "new_configuration_counts_at_once",
        "leader_that_removes_itself_does_not_count_itself",
    ),
    _m(
        "learners_count",
        "learners have no vote",
        "replication:Replication._advance_commit",
        "for voter in configuration.voters]",
        "for voter in configuration.members]",
        "learner_does_not_count",
    ),
    _m(
        "learners_campaign",
        "learners do not campaign",
        "elections:Elections._election_turn",
        "if not self.may_campaign:",
        "if False:",
        "learner_does_not_campaign",
    ),
    _m(
        "removed_leader_counts_itself",
        "a leader that is being removed does not count itself",
        "replication:Replication._advance_commit",
        "[durable if voter == self.node_id else self.peers[voter].match for voter in configuration.voters]",
        "[durable] + [self.peers[voter].match for voter in configuration.voters if voter != self.node_id]",
        "leader_that_removes_itself_does_not_count_itself",
    ),
    _m(
        "removed_leader_stays",
        "a leader goes when its removal is committed",
        "membership:Membership._committed",
        "if self.role == LEADER and not self.is_voter",
        "if False and not self.is_voter",
        "leader_that_removes_itself_leads_until_then",
    ),
    _m(
        "removed_replica_gives_up",
        "one whose removal is not committed campaigns",
        "elections:Elections._election_turn",
        "if not self.may_campaign:",
        "if not self.is_voter:",
        "replica_whose_removal_is_not_committed_campaigns",
    ),
    _m(
        "waits_for_a_lost_successor",
        "a hand-over to one that is lost is given up",
        "membership:Membership._transfer_turn",
        "or target not in self.connected",
        "",
        "hand_over_to_one_that_is_lost_is_given_up_at_once",
    ),
    _m(
        "learner_promoted_early",
        "a learner has caught up before it decides",
        "membership:Membership.promote",
        "if progress.sending is not Sending.REPLICATE or behind > CAUGHT_UP_ENTRIES:",
        "if False:",
        "learner_is_promoted_when_it_has_caught_up",
    ),
    # --- handing over
    _m(
        "hand_over_to_who_lags",
        "a successor has every entry before it campaigns",
        "membership:Membership._transfer_turn",
        "and self.peers[target].match == self.log.last_index",
        "",
        "hand_over_waits_for_the_successor",
    ),
    _m(
        "hand_over_for_ever",
        "a hand-over that fails is given up",
        "membership:Membership._transfer_turn",
        "if now >= self._transfer_until_s or",
        "if",
        "hand_over_that_fails_is_given_up",
    ),
    # --- snapshots and compaction
    _m(
        "snapshot_goes_back",
        "an old snapshot is ignored",
        "replication:Replication._on_snapshot",
        "if message.index <= self.commit:",
        "if False:",
        "old_snapshot_is_ignored",
    ),
    _m(
        "snapshot_keeps_a_conflicting_tail",
        "what follows a snapshot stays only where the logs agree",
        "journal:RaftLog.restart",
        "if self.term_at(index) == term and index > self.base_index:",
        "if index <= self.last_index:",
        "snapshot_replaces_a_diverged_log",
    ),
    _m(
        "snapshot_acknowledged_before_disk",
        "a log that begins anew is durable when the disk has it",
        "journal:RaftLog._drop_all",
        "self.durable_index = 0",
        "self.durable_index = 1 << 30",
        "snapshot_is_acknowledged_when_it_is_durable",
    ),
    _m(
        "snapshot_outrun",
        "a snapshot that the log has left behind is followed by another",
        "replication:Replication._on_append_reply",
        "elif progress.snapshot is not None and message.agreed >= progress.snapshot.index:",
        "elif False:",
        "snapshot_that_is_outrun_is_followed_by_another",
    ),
    _m(
        "snapshot_order_sent_once",
        "the order to install is repeated",
        "replication:Replication._leader_turn",
        "if progress.snapshot is not None:",
        "if False:",
        "snapshot_order_that_is_lost_is_repeated",
    ),
    _m(
        "snapshot_stream_taken_for_received",
        "a peer that restarted is asked again what it has",
        "replica:RaftGroup.peer_connected",
        "if progress.sending is not Sending.PROBE:",
        "if progress.sending is Sending.REPLICATE:",
        "snapshot_stream_is_begun_again_after_a_restart",
    ),
    _m(
        "staged_entries_outlive_compaction",
        "what is compacted before it was written is not written",
        "journal:RaftLog.compact",
        "self._writer.writes.pop(keys.log_entry(self.prefix, at), None)",
        "pass",
        "snapshot_ends_in_what_is_not_written_yet",
    ),
    _m(
        "compacted_past_the_state",
        "compaction stops at what the durable state holds",
        "replica:RaftGroup.compact",
        "min(applied, ",
        "min(self.commit, ",
        "log_is_not_compacted_past_the_state",
    ),
    _m(
        "snapshot_takes_a_commit_back",
        "what is committed stays, whatever a snapshot ends with",
        "replication:Replication.snapshot_installed",
        "self._set_commit(max(self.commit, message.index))",
        "self._set_commit(message.index)",
        "snapshot_does_not_take_a_commit_back",
    ),
    _m(
        "snapshot_of_the_newest_configuration",
        "a snapshot carries the configuration of its index",
        "snapshots:Snapshots._export",
        "log.configuration_at(index)",
        "log.configuration",
        "snapshot_carries_the_configuration_of_its_index",
    ),
    _m(
        "last_entry_compacted",
        "compaction keeps the last entry",
        "replica:RaftGroup.compact",
        ", self.log.last_index - 1)",
        ")",
        "replica_that_lacks_one_entry_needs_no_snapshot",
    ),
    # --- sleeping
    _m(
        "sleeps_while_a_peer_lacks_entries",
        "a leader sleeps when every peer has everything",
        "replica:RaftGroup._sleep_if_idle",
        "peer not in self.connected or p.match != log.last_index",
        "peer not in self.connected",
        "leader_does_not_sleep_while_a_peer_lacks_entries",
    ),
    _m(
        "sleeping_leader_is_voted_against",
        "a sleeping leader is alive",
        "elections:Elections._leader_alive",
        "return self.asleep or self._heard_quorum(now)",
        "return self._heard_quorum(now)",
        "sleeping_leader_is_alive",
    ),
    _m(
        "sleeps_through_a_lost_leader",
        "who sleeps wakes when a connection breaks",
        "replica:RaftGroup.peer_lost",
        "self.wake_up()",
        "pass",
        "sleeping_group_notices_that_its_leader_is_gone",
    ),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """While this lasts the bug is in the code."""
    before: list[tuple[type, str, Any]] = []
    try:
        for target, old, new in mutant.edits:
            module_name, _, path = target.partition(":")
            module = sys.modules[module_name if "." in module_name else f"metad.raft.{module_name}"]
            class_name, _, function_name = path.partition(".")
            owner = getattr(module, class_name)
            original = owner.__dict__[function_name]
            before.append((owner, function_name, original))
            setattr(owner, function_name, _mutated(mutant, owner, original, old, new))
        yield
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)


def _mutated(mutant: Mutant, owner: type, original: Any, old: str, new: str) -> Any:
    function: Any = original.fget if isinstance(original, property) else original
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:
        raise LookupError(f"mutant {mutant.name}: {old!r} is {source.count(old)} times in {function.__qualname__}")
    # Names that begin with two underscores are mangled, and super() looks for the class it was written in.
    source = source.replace(old, new)
    wrapped = f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}\n"
    made: dict[str, Any] = {}
    exec(compile(wrapped, f"<mutant {mutant.name}>", "exec"), vars(sys.modules[function.__module__]), made)
    result: Any = made["make"](owner)
    return result
