"""Bugs to plant where a unit test says the rule best, or where no scenario comes to it. Each names the tests that find
it, from the folder of the tests. This module is a plugin of pytest, too: ``python -m pytest -p
sim.mutants.units TESTS`` runs tests once with each of their bugs, and says which bugs survive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .planting import Mutant, planted
from .planting import one_edit as _m

_DEDUPE = "unit/state/test_dedupe.py::"
_LOST = "unit/state/test_lost_sweep.py::"
_TENANTS = "unit/state/test_tenant_ends.py::"
_GROUPS = "unit/server/test_group_expiry.py::"
_STREAMS = "unit/watch/test_streams.py::"
_REGISTRY = "unit/state/test_brokers.py::"
_LEASES = "unit/server/test_lease_ends.py::"
_REQUIREMENTS = "unit/server/test_requirements.py::"
_REMOVED = "unit/server/test_removed.py::"
_JOURNAL = "unit/raft/test_journal.py::"
_LIVES = "unit/server/test_lives.py::"
_DISK = "unit/server/test_disk_room.py::"
_SNAPSHOTS = "unit/raft/test_snapshots.py::"
_ROOM = "unit/wire/test_fair_room.py::"
_TURNS = "unit/server/test_turns.py::"
_QUEUE = "unit/wire/test_fair_queue.py::"
_FENCES = "unit/state/test_fences.py::"
_BROKERS = "unit/control/test_brokers.py::"
_REGISTRY = "unit/state/test_brokers.py::"
_DECISIONS = "unit/control/test_decisions.py::"
_LEAVING = "unit/control/test_leaving.py::"
_DRIVER = "unit/server/test_driver.py::"
_BOUND = "unit/server/test_bound_names.py::"
_SCHEDULER = "unit/server/test_scheduler.py::"
_RATE = "unit/wire/test_queue_rate.py::"
_TRANSACTIONS = "unit/state/test_table_transactions.py::"
_DECLARED = "unit/state/test_declarations.py::"
_CUTTING = "unit/client/test_cutting.py::"
_RETURNS = "unit/server/test_return_slots.py::"

UNIT_MUTANTS: tuple[Mutant, ...] = (
    # --- fences in every group
    _m(
        "metadata_groups_have_no_fences",
        "every group has the fences, those of kind metadata too",
        "metad.control.brokers.fencing:groups_to_fence",
        "for record in known.groups]",
        "for record in known.groups if record.kind != 'metadata']",
        _BROKERS + "test_a_registration_is_answered_once_every_group_has_the_fence",
    ),
    _m(
        "a_fence_is_merged_by_its_epoch_alone",
        "the greater pair of least epoch and live counts",
        "metad_wire.cluster:FenceItem.merged",
        "max((self.least_epoch, self.live), (other.least_epoch, other.live))",
        "(newer.least_epoch, newer.live)",
        _FENCES + "test_a_registration_may_have_the_least_epoch_of_the_death_before",
    ),
    _m(
        "a_group_has_what_it_was_told_of_the_epoch",
        "a group has a fence once it has acknowledged all that it says",
        "metad.control.brokers.fencing:_has",
        "known.values == fence.values",
        "known.least_epoch >= fence.least_epoch",
        _BROKERS + "test_a_group_has_a_fence_once_it_has_all_that_it_says",
    ),
    _m(
        "the_note_of_a_death_counts_for_the_next_life",
        "what all groups have is noted for what the record says now",
        "metad.state.cluster.brokers:_fenced",
        "step.told.values != fence_of(known).values",
        "step.told.least_epoch != known.least_epoch",
        _REGISTRY + "test_the_fence_of_a_death_is_not_that_of_the_life_that_begins_with_its_epoch",
    ),
    _m(
        "who_may_serve_on_is_forgotten",
        "a broker is forgotten once all its lives are quiet",
        "metad.control.brokers.fencing:to_forget",
        "record.quiet_epoch == record.least_epoch",
        "True",
        _BROKERS + "test_a_name_that_somebody_has_ended_makes_room_at_once",
    ),
    _m(
        "the_death_of_a_life_makes_all_quiet",
        "the life before one that has died may serve until its own lease is over",
        "metad.state.cluster.brokers:_quiet",
        "(known.broker_epoch if has_stopped else known.least_epoch)",
        "(0 if has_stopped else known.least_epoch)",
        _REGISTRY + "test_the_death_of_a_life_says_nothing_of_the_one_before",
    ),
    _m(
        "a_retry_of_a_registration_is_unclean",
        "a retry of a registration is as clean as the attempt before",
        "metad.state.cluster.brokers:_register",
        "is_clean = is_retry or",
        "is_clean =",
        _REGISTRY + "test_a_retry_is_as_clean_as_the_attempt_before",
    ),
    _m(
        "a_late_attempt_makes_its_own_process_quiet",
        "who says that the process before has ended may be its own late attempt",
        "metad.state.cluster.brokers:_register",
        "asked.registration > 0 and not is_retry",
        "True",
        _REGISTRY + "test_an_attempt_that_comes_late_makes_nobody_quiet",
    ),
    _m(
        "quiet_is_begun_anew_with_each_life",
        "a broker that registers again and again becomes quiet",
        "metad.control.brokers.brokers:_Serving.learn",
        "self._below.get(name, 0) <= record.quiet_epoch",
        "self._below.get(name, 0) < record.least_epoch",
        _BROKERS + "test_lives_that_follow_each_other_fast_become_quiet_as_well",
    ),
    _m(
        "a_standstill_counts_for_quiet",
        "a leader that stood still waits for a whole lease until a life is quiet",
        "metad.control.brokers.brokers:_Serving.overslept",
        "self._waits.amnesty(now_s)",
        "pass",
        _BROKERS + "test_a_leader_that_stood_still_waits_for_a_whole_lease_until_a_life_is_quiet",
    ),
    _m(
        "an_adoption_overwrites_fences",
        "a fence that is told is merged with the one that is there",
        "metad.state.cluster.fences:Fences.raised",
        "fence.item(broker).merged(msgspec.structs.replace(item, at_ms=at_ms))",
        "msgspec.structs.replace(item, at_ms=at_ms)",
        _FENCES + "test_all_of_a_fence_is_carried_and_merged",
    ),
    _m(
        "a_fence_is_forgotten_that_a_partition_needs",
        "a fence stays while a partition names the broker",
        "metad.state.cluster.fences:Fences.forgotten",
        '(kind == "metadata" and names_broker(view, item.broker))',
        "False",
        _FENCES + "test_a_fence_stays_while_a_partition_names_the_broker",
    ),
    _m(
        "partitions_that_come_are_not_gone_through",
        "a group that adopts slots goes through the partitions of all fences again",
        "metad.state.cluster.fences:Fences.slots_came",
        "swept_epoch=0, stepped=None",
        "swept_epoch=0",
        _FENCES + "test_slots_that_come_are_gone_through_and_swept_again",
    ),
    # --- metadata-0 and the others of its kind
    _m(
        "no_group_of_kind_metadata_is_a_load",
        "every group but metadata-0 counts as what a node has",
        "metad.control.map.placement:_least_loaded",
        "group.group_id != METADATA",
        "group.kind != METADATA.kind",
        _DECISIONS + "test_groups_of_kind_metadata_share_its_slots_and_every_node_follows_the_first_of_them",
    ),
    _m(
        "a_learner_of_any_group_of_kind_metadata_may_go",
        "a node that leaves may follow metadata-0 alone until the end",
        "metad.control.map.leaving:still_needed",
        "status.name == METADATA.name",
        "status.kind == METADATA.kind",
        _LEAVING + "test_a_node_that_only_follows_is_forgotten_in_metadata_0_and_nowhere_else",
    ),
    # --- declared tables
    _m(
        "a_transaction_touches_what_lives_elsewhere",
        "all records of a transaction live together",
        "metad.state.cluster.transactions:_Checked._place",
        "if list(key[:routing]) != self._route:",
        "if False:",
        _TRANSACTIONS + "test_what_does_not_fit_is_refused_as_a_whole_and_alone",
    ),
    _m(
        "a_transaction_forgets_its_indexes",
        "what a transaction writes is listed by indexes, too",
        "metad.state.cluster.transactions:_do",
        "if indexes or records.table.expires:",
        "if False:",
        _TRANSACTIONS + "test_they_do_what_the_model_does",
    ),
    _m(
        "a_transaction_cuts_unknown_fields",
        "who knows fewer fields leaves the others as they are, in a transaction too",
        "metad.state.cluster.transactions:_do",
        "if old is not None and fewer:",
        "if False:",
        _TRANSACTIONS + "test_they_do_what_the_model_does",
    ),
    _m(
        "a_retried_transaction_reads_nothing",
        "a retry of a transaction reads again",
        "metad.state.cluster.transactions:_recall",
        "if found else reply",
        "if False else reply",
        _TRANSACTIONS + "test_they_do_what_the_model_does",
    ),
    _m(
        "an_index_keeps_what_a_record_said",
        "a record is listed by what it says now, and no more by what it said",
        "metad.state.core.plain:DeclaredRecords._reindex",
        "rows.update((prefix + row, None) for row in gone - come)",
        "pass",
        _DECLARED + "test_an_index_lists_what_the_records_say",
    ),
    _m(
        "a_record_ends_before_its_time",
        "no record ends before the log says that its time has come",
        "metad.state.ends.expiry:_evaluate_records",
        "if at_ms > view.past_ms:",
        "if False:",
        "unit/state/test_record_expiry.py::test_nothing_ends_early_or_during_an_amnesty",
    ),
    _m(
        "a_time_that_a_record_says_no_more_stays_in_the_order",
        "a write of a record deletes the row of the time that it said before",
        "metad.state.core.plain:DeclaredRecords.follow",
        '((old_ms, None), (new_ms, b""))',
        '((0, None), (new_ms, b""))',
        "unit/state/test_record_expiry.py::test_a_write_moves_the_time_and_leaves_no_row_behind",
    ),
    _m(
        "who_comes_back_was_there_at_the_beginning",
        "a node that has left was not there when its groups began",
        "metad.control.map.leaving:forget",
        "if node != node_id])",
        "])",
        "unit/control/test_controller.py::test_a_node_that_nobody_counts_on_is_forgotten",
    ),
    _m(
        "an_index_that_is_being_built_is_listed",
        "a list by an index that was added is whole, or refused",
        "metad.state.core.plain:DeclaredRecords._complete_index",
        "if lacks:",
        "if False:",
        "unit/state/test_added_indexes.py::test_whoever_writes_moves_and_leads_meanwhile_a_list_is_whole_or_refused",
    ),
    _m(
        "a_leader_that_has_not_heard_of_an_index_writes_on",
        "a leader that has not heard of an index that the slot keeps refuses to write",
        "metad.state.core.indexes:IndexStates.kept",
        "if (most := max(found.values(), default=0)) > len(table.indexes):",
        "if False:",
        "unit/state/test_added_indexes.py::test_whoever_writes_moves_and_leads_meanwhile_a_list_is_whole_or_refused",
    ),
    _m(
        "a_page_of_an_index_ends_the_listing",
        "a listing goes on behind the last record that a page had room for",
        "metad.state.core.plain:DeclaredRecords._records_of",
        "return Page(found, row)",
        "return Page(found, page.cursor)",
        _DECLARED + "test_a_page_of_an_index_has_no_more_than_it_has_room_for",
    ),
    _m(
        "a_number_is_given_again",
        "the number of a dropped table is given to no other",
        "metad.state.cluster.declarations:_evaluate_drop",
        "count, tables=count.tables - 1)",
        "count, tables=count.tables - 1, last=count.last - 1)",
        _DECLARED + "test_a_table_gets_a_number_that_no_other_has_had",
    ),
    _m(
        "unknown_fields_fall_to_their_defaults",
        "who knows fewer fields leaves the others as they are",
        "metad.state.core.plain:DeclaredRecords.evaluate_put",
        "if known < len(self._names):",
        "if False:",
        _DECLARED + "test_who_knows_fewer_fields_leaves_the_others_as_they_are",
    ),
    _m(
        "a_node_that_is_behind_cuts_records",
        "a node that knows fewer fields than the client refuses the request",
        "metad.state.core.plain:DeclaredRecords._check_known",
        "if known > len(self._names):",
        "if False:",
        _DECLARED + "test_a_node_that_knows_fewer_fields_drops_none",
    ),
    _m(
        "what_is_not_heard_of_is_dropped",
        "a node does not take a table that it has not heard of for one that was dropped",
        "metad.state.cluster.declarations:KnownTables.is_dropped",
        "number <= self._last and",
        "True and",
        _DECLARED + "test_a_node_tells_what_it_has_not_heard_of_from_what_is_no_more",
    ),
    _m(
        "defaults_are_made_before_they_are_counted",
        "a put is refused for its defaults before any of its records is made",
        "metad.state.cluster.declarations:KnownTables.verb",
        "check_change(len(payload) + filled)",
        "pass",
        _DECLARED + "test_defaults_count_before_a_put_is_decoded",
    ),
    _m(
        "tables_in_flight_take_no_room",
        "what is declared counts to its holder as soon as it is evaluated",
        "metad.state.cluster.declarations:Declarations.evaluated",
        "key not in self._in_flight:",
        "False:",
        _DECLARED + "test_nobody_declares_more_tables_than_are_left_free",
    ),
    _m(
        "a_batch_in_doubt_is_halved_before_its_identity_is_spent",
        "items go out with other identities only once the first can do nothing any more",
        "metad_client.dispatch.calls.call:Call.spends",
        "if not self.in_doubt or self.items < 2:",
        "self.in_doubt = False\n    if True:",
        _CUTTING + "test_a_write_in_doubt_is_not_sent_in_halves_unless_its_identity_is_spent",
    ),
    _m(
        "the_last_number_is_forgotten",
        "a node that starts anew knows which numbers were given",
        "metad.state.cluster.declarations:KnownTables.replace",
        "self._last = count.last",
        "pass",
        _DECLARED + "test_a_dropped_last_table_is_dropped_for_a_node_that_starts_anew",
    ),
    _m(
        "a_swept_record_is_remembered",
        "what is remembered of a record goes with it when its table was dropped",
        "metad.state.cluster.declarations:_evaluate_sweep",
        "view.on_accept.append(partial(view.parts[HeadCache].overwritten, gone))",
        "pass",
        _DECLARED + "test_a_sweep_deletes_rows_and_what_is_remembered_of_them",
    ),
    _m(
        "any_declaration_replaces_another",
        "a declaration that differs in more than further fields is refused",
        "metad.state.cluster.declarations:_known",
        "raise ConflictError(why)",
        "pass",
        _DECLARED + "test_what_can_be_no_table_is_refused_alone",
    ),
    # --- leases
    _m(
        "no_full_lease_after_an_adoption",
        "who adopts slots gives full leases",
        "metad.state.live.live:LiveRows.stage",
        "if adopted != self._adopted:",
        "if False:",
        "unit/state/test_leases.py::test_who_adopts_a_slot_gives_its_leases_full_time",
    ),
    _m(
        "what_is_over_by_now_ends",
        "what is over only since the proof was begun is proven once more",
        "metad.state.live.liveness:Silence.look",
        " if key in self._suspects",
        "",
        _LEASES + "test_a_lease_that_is_over_only_since_the_proof_began_needs_another",
    ),
    _m(
        "an_end_that_is_lost_is_the_last",
        "what is over is looked at again if its end is not committed",
        "metad.state.live.live:LiveRows.over",
        "elif key not in self._ending:",
        "elif key in self._ending:\n            self._live.put_aside(key)\n        else:",
        "unit/state/test_leases.py::test_a_lease_whose_end_was_not_committed_is_over_again",
    ),
    _m(
        "what_was_not_answered_was_not_done",
        "a node that may still be taken in does not take a map for a proof that it has left",
        "metad.control.map.leaving:Departure.has_left",
        " and not self.unsure",
        "",
        "unit/control/test_departure.py::test_no_map_proves_anything_while_the_node_may_still_be_taken_in",
    ),
    _m(
        "what_was_answered_is_forgotten",
        "a node that has failed remembers in which map it was taken in, and whether it is answered",
        "metad.control.map.leaving:Departure.__init__",
        "= directory.asked",
        "= False, 0",
        "unit/control/test_departure.py::"
        "test_maps_from_before_the_last_answer_prove_nothing_to_a_node_that_has_failed_since",
    ),
    _m(
        "asked_before_it_is_kept",
        "that a node asks to be taken in is kept before it asks",
        "metad.control.map.leaving:Departure._asks",
        "if not kept.unanswered:",
        "if False:",
        "unit/control/test_departure.py::test_a_node_that_failed_before_the_answer_asks_until_it_is_answered",
    ),
    _m(
        "a_refusal_answers_nothing",
        "that a node is not taken in anew answers what it has asked before",
        "metad.control.map.leaving:Departure._refused",
        "isinstance(error, NotFoundError)",
        "False",
        "unit/control/test_departure.py::test_a_node_that_was_let_go_is_not_taken_in_anew_and_knows_it",
    ),
    _m(
        "what_was_refused_once_is_never_done",
        "a write whose last attempt was lost is asked for in the group that may have done it",
        "metad_client.dispatch.calls.call:Call.attempt",
        "self.stale = False",
        "pass",
        "unit/client/test_cluster.py::test_a_write_whose_last_attempt_was_lost_is_asked_for_where_it_may_be_done",
    ),
    _m(
        "a_suspect_answers_in_vain",
        "a suspect that has answered who leads is asked in its turn",
        "metad_client.dispatch.discovery:Discovery._ask",
        " and each[0].node not in self.answered",
        "",
        "unit/client/test_dispatch.py::test_a_suspect_that_answers_is_asked_in_its_turn",
    ),
    _m(
        "an_answered_node_is_waited_for",
        "a node that has answered is asked again while another says nothing",
        "metad_client.dispatch.discovery:Discovery._waits_for",
        " and queue.node not in self.answered",
        "",
        "unit/client/test_dispatch.py::test_a_node_that_has_answered_is_asked_again_while_another_says_nothing",
    ),
    # --- standstills
    _m(
        "leases_are_judged_before_a_standstill_is_noticed",
        "what has a late look notices that the node stood still before it ends leases",
        "metad.node.chores.leases:LeaseEnds.start",
        "self._standstills.look(now_s)",
        "pass",
        _LEASES + "test_a_node_that_stood_still_gives_full_leases_and_forgets_what_was_proven",
    ),
    _m(
        "lives_are_judged_before_a_standstill_is_noticed",
        "what has a late look notices that the node stood still before it ends lives",
        "metad.control.brokers.brokers:Brokers._tick",
        "self._look(self._clock.now())",
        "pass",
        _BROKERS + "test_who_is_suspected_of_silence_before_a_standstill_has_a_whole_lease",
    ),
    _m(
        "raft_does_not_hear_of_a_standstill",
        "a node that stood still reads what its peers have sent before it elects or gives up the lead",
        "metad.node.node:Node.__init__",
        "[replicas.overslept, self._overslept,",
        "[self._overslept,",
        "unit/server/test_node.py::test_all_that_judge_silence_hear_of_a_standstill",
    ),
    _m(
        "peers_are_silent_through_a_standstill",
        "a node that stood still gives no peer up that it could not hear",
        "metad.server.peers.peer_connection:PeerConnection.silent_s",
        "min(self._loop.time() - self.heard_s, self.home.node.standstills.running_s())",
        "self._loop.time() - self.heard_s",
        "unit/server/test_peers.py::test_a_node_that_stood_still_waits_for_its_peers_as_long_as_ever",
    ),
    _m(
        "suspects_of_before_a_standstill",
        "a node that stood still suspects no broker, for it may not have been heard",
        "metad.control.brokers.brokers:Brokers.overslept",
        "self._evidence.excuse()",
        "pass",
        _BROKERS + "test_who_is_suspected_while_the_node_stands_still_has_its_lease",
    ),
    _m(
        "a_standstill_that_lasts_for_longer_than_peers_are_waited_for",
        "a standstill that is not noticed is shorter than the patience of Raft",
        "metad.node.requests.scheduler:Standstills.__init__",
        "min(_STOOD_S, (patience_s - timing.heartbeat_s) / 2)",
        "_STOOD_S",
        _SCHEDULER + "test_a_standstill_that_nobody_is_told_of_is_short",
    ),
    _m(
        "believed_from_the_answer_on",
        "a holder counts from when it sent the keep-alive",
        "metad_client.holding.belief:Belief.answered",
        "self._sent_s, self._ttl_s = sent_s, ttl_s",
        "self._sent_s, self._ttl_s = now_s, ttl_s",
        "unit/client/test_holding.py::test_an_answer_counts_from_when_its_question_was_sent",
    ),
    # --- clients that are forgotten
    _m(
        "who_came_back_was_always_there",
        "what is known of a client that was forgotten and came back says nothing of the time before",
        "metad.state.cluster.dedupe:DedupeWindow.lookup",
        "(client is None or client.since_s >= forgot_s)",
        "client is None",
        _DEDUPE + "test_a_client_that_was_forgotten_and_came_back_is_not_known_from_before",
    ),
    _m(
        "who_came_back_at_that_moment_was_always_there",
        "one that came at the moment of the forgetting may be the one that was forgotten",
        "metad.state.cluster.dedupe:DedupeWindow.lookup",
        "client.since_s >= forgot_s",
        "client.since_s > forgot_s",
        _DEDUPE + "test_a_client_that_was_forgotten_and_came_back_is_not_known_from_before",
    ),
    _m(
        "clients_are_known_since_ever",
        "a client is known from when this replica first heard of it",
        "metad.state.cluster.dedupe:DedupeWindow._new_client",
        "_Client(client_id, self._clock())",
        "_Client(client_id, 0.0)",
        _DEDUPE + "test_a_client_that_was_forgotten_and_came_back_is_not_known_from_before",
    ),
    _m(
        "clocks_of_clients_are_right",
        "the age of a retry allows for a client's clock that is slow",
        "metad.state.cluster.dedupe:DedupeWindow.lookup",
        " * (1 + _DRIFT)",
        "",
        _DEDUPE + "test_a_client_that_is_forgotten_with_its_mark",
    ),
    _m(
        "forgetting_is_not_replicated",
        "followers hear that a client was forgotten, also those that never knew it",
        "metad.state.cluster.dedupe:DedupeWindow.record",
        'heard.setdefault(_STATE, {})[self._forgotten_key] = b""',
        "pass",
        _DEDUPE + "test_whoever_is_forgotten_by_the_leader_is_so_by_followers_that_have_more_room",
    ),
    _m(
        "forgetting_is_not_heard",
        "a follower takes note that a client was forgotten",
        "metad.state.cluster.dedupe:DedupeWindow.stage",
        "if self._forgotten_key in writes:",
        "if False:",
        _DEDUPE + "test_whoever_is_forgotten_by_the_leader_is_so_by_followers_that_have_more_room",
    ),
    _m(
        "forgetting_is_forgotten_at_start",
        "a restart knows that a client was forgotten",
        "metad.state.cluster.dedupe:DedupeWindow.load",
        "if self._engine.get(self._forgotten_key) is not None:",
        "if False:",
        _DEDUPE + "test_whoever_is_forgotten_by_the_leader_is_so_by_followers_that_have_more_room",
    ),
    _m(
        "marks_of_the_forgotten_stay",
        "the mark of a client that is forgotten goes with it",
        "metad.state.cluster.dedupe:DedupeWindow.record",
        "writes.update(dict.fromkeys(map(self._mark_key, self._forgot)))",
        "pass",
        _DEDUPE + "test_whoever_is_forgotten_by_the_leader_is_so_by_followers_that_have_more_room",
    ),
    _m(
        "a_follower_repeats_what_the_leader_forgot",
        "who leads deletes no mark for what it forgot when another led",
        "metad.state.cluster.dedupe:DedupeWindow._learn",
        "self._forgot.clear()",
        "pass",
        _DEDUPE + "test_a_follower_that_leads_deletes_no_mark_for_what_it_forgot_when_another_led",
    ),
    _m(
        "identities_in_flight_are_believed",
        "what was in flight when the lead was lost is not known",
        "metad.state.cluster.dedupe:DedupeWindow.forget",
        "if self._recorded:",
        "if False:",
        _DEDUPE + "test_what_was_in_flight_when_the_lead_was_lost_is_not_known",
    ),
    # --- formats
    _m(
        "other_formats_are_applied",
        "an entry of another format is refused, also if it can be decoded",
        "metad.state.core.entry:decode_entry",
        "if entry.format == ENTRY_FORMAT:",
        "if True:",
        "golden/test_entries.py::test_other_entries_are_refused",
    ),
    _m(
        "marks_of_other_formats_are_read",
        "a snapshot mark of another format is refused",
        "snapshots:read_mark",
        "if mark.format != MARK_FORMAT:",
        "if False:",
        "unit/raft/test_snapshots.py::test_an_unreadable_mark_is_refused",
    ),
    _m(
        "logs_of_other_formats_are_read",
        "a log's metadata of another format is refused",
        "journal:RaftLog._load",
        "if meta.format != METADATA_FORMAT:",
        "if False:",
        "unit/raft/test_journal.py::test_metadata_of_a_newer_format_is_refused",
    ),
    # --- sessions of the dead
    _m(
        "a_pass_goes_on_over_a_move",
        "a pass over lost sessions begins anew when slots go or come",
        "metad.node.chores.session_sweeps:LostSweep.begin",
        "!= (self._slots, self._adopted_move)",
        "is None",
        _LOST + "test_a_pass_in_which_slots_go_and_come_back_looks_at_all_rows_again",
    ),
    _m(
        "a_pass_beside_other_slots_counts",
        "a fence is swept by a pass over all slots that the group holds",
        "metad.state.ends.expiry:_evaluate_lose",
        "holding.slots == command.body.slots and ",
        "",
        _LOST + "test_a_pass_over_half_of_the_slots_sweeps_no_fence_once_the_others_are_back",
    ),
    _m(
        "a_pass_from_before_the_adoption_counts",
        "a fence is swept by a pass that has seen the rows of all adoptions",
        "metad.state.ends.expiry:_evaluate_lose",
        " and holding.adopted_move == command.body.adopted_move",
        "",
        _LOST + "test_a_pass_that_was_begun_before_sessions_came_sweeps_no_fence",
    ),
    _m(
        "a_pass_beside_sealed_slots_counts",
        "no fence is swept while slots are sealed",
        "metad.state.ends.expiry:_evaluate_lose",
        " and not holding.sealed_move",
        "",
        _LOST + "test_a_pass_that_was_begun_before_sessions_came_sweeps_no_fence",
    ),
    _m(
        "sessions_of_others_are_named",
        "a pass names sessions of slots that the group holds",
        "metad.node.chores.session_sweeps:LostSweep._lost",
        "self._holds(key)",
        "True",
        _LOST + "test_sessions_of_slots_that_the_group_does_not_hold_are_not_named",
    ),
    # --- an order to end a tenant
    _m(
        "messages_of_the_orders_entry_go",
        "a retained message in the order's own entry stays",
        "metad.state.retained.retained:delete_older",
        ".revision < revision",
        ".revision <= revision",
        _TENANTS + "test_what_shares_the_entry_of_the_order_stays",
    ),
    _m(
        "wills_of_the_orders_entry_go",
        "a will that is due by the order's own entry stays",
        "metad.state.ends.tenant_steps:_drop_wills",
        "[2] < before",
        "[2] <= before",
        _TENANTS + "test_a_will_that_is_due_by_the_order_s_own_entry_stays",
    ),
    _m(
        "sessions_of_the_orders_entry_go",
        "a session that was taken over behind the order in its own entry outlives it",
        "metad.state.ends.tenant_steps:_end_sessions",
        "owner.outlives >= end.number",
        "owner.outlives > end.number",
        _TENANTS + "test_what_shares_the_entry_of_the_order_stays",
    ),
    # --- an amnesty
    _m(
        "groups_are_ordered_to_end_in_an_amnesty",
        "no consumer group is over during an amnesty",
        "metad.node.chores.group_expiry:GroupExpiry._before_ms",
        "self._past_ms() -",
        "(self._past_ms() or self._driver.machine.time.newest_ms) -",
        _GROUPS + "test_during_an_amnesty_nothing_is_ordered_and_no_order_ends_anything",
    ),
    _m(
        "groups_end_in_an_amnesty",
        "an order of before ends no consumer group during an amnesty",
        "metad.state.consumer.offsets:_evaluate_expire_groups",
        "min(command.body.before_ms, view.past_ms)",
        "command.body.before_ms",
        _GROUPS + "test_during_an_amnesty_nothing_is_ordered_and_no_order_ends_anything",
    ),
    _m(
        "groups_with_members_are_over",
        "a consumer group that has members is in use",
        "metad.node.chores.group_expiry:GroupExpiry._look",
        "info.members or ",
        "",
        _GROUPS + "test_a_group_that_has_members_or_had_some_lately_is_in_use",
    ),
    _m(
        "living_brokers_are_forgotten",
        "only a broker that has ended is forgotten",
        "metad.state.cluster.brokers:_forget",
        "known.state in b.LIVE or ",
        "",
        _REGISTRY + "test_only_a_broker_that_has_ended_is_forgotten_and_by_the_map_whose_groups_were_asked",
    ),
    _m(
        "brokers_are_forgotten_by_an_old_map",
        "a broker is forgotten by the map whose groups were asked",
        "metad.state.cluster.brokers:_forget",
        "if not now.same_map:",
        "if False:",
        _REGISTRY + "test_only_a_broker_that_has_ended_is_forgotten_and_by_the_map_whose_groups_were_asked",
    ),
    # --- while a snapshot is installed
    _m(
        "groups_are_looked_at_during_an_install",
        "consumer groups are not read while a snapshot is installed",
        "metad.node.chores.group_expiry:GroupExpiry.begin",
        "not self._leads()",
        "not self._driver.group.accepting",
        _GROUPS + "test_nothing_is_read_while_a_snapshot_is_installed",
    ),
    _m(
        "lost_sessions_are_looked_for_during_an_install",
        "sessions are not read while a snapshot is installed",
        "metad.node.chores.session_sweeps:LostSweep.begin",
        "not self._leads()",
        "not driver.group.accepting",
        _LOST + "test_nothing_is_read_while_a_snapshot_is_installed",
    ),
    _m(
        "tenants_end_during_an_install",
        "no step of an order is looked for while a snapshot is installed",
        "metad.node.chores.sweeps:TenantSweep.begin",
        "not self._leads()",
        "not self._driver.group.accepting",
        _TENANTS + "test_nothing_is_read_while_a_snapshot_is_installed",
    ),
    _m(
        "leases_are_looked_at_during_an_install",
        "leases are not looked at while a snapshot is installed",
        "metad.node.chores.leases:LeaseEnds._look_at",
        " or driver.installing",
        "",
        _LEASES + "test_nothing_is_looked_at_while_a_snapshot_is_installed",
    ),
    _m(
        "deadlines_are_looked_at_during_an_install",
        "deadlines are not looked at while a snapshot is installed",
        "metad.node.chores.chore:Chore._leads",
        " and not self._driver.installing",
        "",
        "unit/state/test_due_sweep.py::test_who_does_not_lead_sweeps_nothing",
    ),
    _m(
        "records_are_read_during_an_install",
        "nothing is answered from a state in whose place a snapshot is put",
        "metad.node.requests.reads:Reads._read",
        "if driver.installing:",
        "if False:",
        _REQUIREMENTS + "test_nothing_is_read_while_a_snapshot_is_installed",
    ),
    _m(
        "entries_are_applied_during_an_install",
        "nothing is applied to a state in whose place a snapshot is put",
        "metad.node.replicas.driver:GroupDriver.stage",
        "if self.installing:",
        "if False:",
        _REQUIREMENTS + "test_nothing_is_applied_while_a_snapshot_is_installed",
    ),
    _m(
        "terms_of_leaders_do_not_matter",
        "a leader of a new term gives full leases, whether or not it looked in between",
        "metad.node.chores.leases:LeaseEnds._look_at",
        " or leadership.term != group.term",
        "",
        _LEASES + "test_a_leader_of_a_new_term_gives_full_leases_though_it_never_looked_in_between",
    ),
    # --- what an entry has no place for
    _m(
        "what_is_put_off_goes_first",
        "who needs an entry for each of its requests ends its turn with each",
        "metad_wire.policy.fair_queue:LaneQueue.put_back",
        "self._lanes[after.lane].skip_line_of(after)",
        "pass",
        _DRIVER + "test_who_needs_an_entry_for_each_request_holds_others_up_for_few_entries",
    ),
    _m(
        "entries_cost_their_items_only",
        "entries of one item are bounded by what bounds items",
        "metad.node.replicas.driver:GroupDriver.stage",
        "items += ENTRY_ITEMS + len(decoded)",
        "items += len(decoded)",
        _DRIVER + "test_a_write_that_applies_is_bounded_in_entries_and_the_rest_follows",
    ),
    # --- replicas that are removed
    _m(
        "state_goes_before_its_log",
        "a removed replica's state is dropped once it is durable that its log is",
        "metad.node.disk.replica_lifecycle:ReplicaLifecycle.close",
        "group.log.remove(term, vote, dropped)",
        "dropped(); group.log.remove(term, vote, dropped)",
        _REMOVED + "test_its_data_goes_once_that_it_is_gone_is_durable",
    ),
    _m(
        "an_earlier_fsync_is_enough",
        "an fsync that ran already does not say that the log is dropped",
        "journal:RaftLog.remove",
        "if self._writer.durable >= number:",
        "if True:",
        _JOURNAL + "test_a_removed_log_is_dropped_once_that_is_durable_and_not_what_was_before",
    ),
    _m(
        "removal_is_not_remembered",
        "a removed replica remembers that it was here",
        "journal:RaftLog.remove",
        "meta.term, meta.vote, meta.removed = term, vote, True",
        "meta.term, meta.vote = term, vote",
        _JOURNAL + "test_a_removed_log_is_dropped_once_that_is_durable_and_not_what_was_before",
    ),
    _m(
        "removal_forgets_the_vote",
        "a removed replica remembers its vote",
        "journal:RaftLog.remove",
        "meta.term, meta.vote, meta.removed = term, vote, True",
        "meta.term, meta.vote, meta.removed = 0, None, True",
        _JOURNAL + "test_a_removed_log_is_dropped_once_that_is_durable_and_not_what_was_before",
    ),
    _m(
        "old_state_goes_before_the_disk_says_so",
        "the state of a replica that comes back is dropped once it is durable that its log was",
        "metad.node.disk.replica_lifecycle:ReplicaLifecycle._come_back",
        "self._environment.beside(self._stores.log.sync, synced, Queue.SYNCS)",
        "self._environment.beside(lambda: None, synced, Queue.SYNCS)",
        _REMOVED + "test_wanted_again_it_begins_with_nobody_and_remembers_its_vote",
    ),
    _m(
        "new_log_above_the_old_state",
        "a replica comes back once it is durable that its old state is gone",
        "metad.node.disk.replica_lifecycle:ReplicaLifecycle._come_back",
        "self._environment.beside(self._stores.state.sync, flushed)",
        "self._environment.beside(lambda: None, flushed)",
        _REMOVED + "test_wanted_again_it_begins_with_nobody_and_remembers_its_vote",
    ),
    _m(
        "new_log_above_the_old_state_at_start",
        "and so it does at a start",
        "metad.node.disk.replica_lifecycle:ReplicaLifecycle._open",
        "self._stores.state.sync()",
        "pass",
        _REMOVED + "test_a_crash_before_its_state_was_dropped",
    ),
    _m(
        "late_word_drops_the_new_state",
        "the word that an old log is dropped says nothing of the state of a new replica",
        "metad.node.disk.replica_lifecycle:ReplicaLifecycle.close",
        "group_id not in self._groups.drivers and ",
        "",
        _REMOVED + "test_one_that_is_back_keeps_its_state_whenever_the_disk_is_done_with_the_old_log",
    ),
    # --- orders on their way
    _m(
        "steps_beside_a_seal",
        "no step of an order is taken while slots are sealed",
        "metad.state.ends.tenant_steps:_evaluate",
        "or view.parts[SlotAssignment].holding.sealed_move",
        "",
        _TENANTS + "test_no_step_is_taken_while_slots_are_sealed",
    ),
    _m(
        "orders_go_back",
        "an entry that is applied does not undo what a later one says of an order",
        "metad.state.cluster.tenant_ends:TenantEnds.stage",
        "if index >= self._changed.get(key, 0)",
        "if True",
        _TENANTS + "test_an_order_that_a_later_entry_has_changed_stays_as_that_says",
    ),
    _m(
        "orders_are_about_sessions_for_ever",
        "behind the phase of sessions none is over",
        "metad.state.cluster.tenant_ends:TenantEnds.over",
        "if each.end.phase == SESSIONS:",
        "if True:",
        _TENANTS + "test_a_session_at_the_place_of_the_order_was_looked_at_and_what_comes_later_is_not_over",
    ),
    _m(
        "the_place_of_an_order_is_still_to_come",
        "the session to which an order has come was looked at",
        "metad.state.cluster.tenant_ends:TenantEnds.over",
        "session > each.end.cursor",
        "session >= each.end.cursor",
        _TENANTS + "test_a_session_at_the_place_of_the_order_was_looked_at_and_what_comes_later_is_not_over",
    ),
    # --- what a watch skips
    *[
        _m(
            name,
            "entries are told without a look at their slots only behind the pin, and by the slots of then",
            f"metad_client.watch.stream:GroupStream.{function}",
            old,
            new,
            "unit/client/test_watch.py::test_what_a_group_may_write_is_known_from_the_pin_on",
        )
        for name, function, old, new in (
            ("no_look_before_the_pin", "writes_only", "index > self._held_from and ", ""),
            ("no_look_at_the_pin", "writes_only", "index > self._held_from", "index >= self._held_from"),
            ("no_look_at_all", "writes_only", "not self._held & ~slots", "True"),
            ("moves_before_the_pin_count", "moved", "if index > self._held_from:", "if True:"),
            ("moves_behind_the_pin_do_not_count", "moved", "if index > self._held_from:", "if False:"),
            ("a_pin_is_of_ever", "opened", "= pin.held, pin.index", "= pin.held, 0"),
        )
    ],
    # --- what peers may say
    *[
        _m(name, breaks, target, old, new, "unit/server/test_peers.py::" + test)
        for name, breaks, target, old, new, test in (
            (
                "terms_may_go_back",
                "terms grow within an append",
                "replicas:_check_records",
                "if not before <= term <= message.term or",
                "if not term <= message.term or",
                "test_what_no_replica_says_is_no_payload",
            ),
            (
                "snapshots_of_the_future",
                "a snapshot is of no later term than the leader",
                "replicas:decode_payload",
                "isinstance(message, Snapshot) and message.index_term > message.term",
                "False",
                "test_what_no_replica_says_is_no_payload",
            ),
            (
                "any_term_is_believed",
                "a term that is too far ahead is not believed",
                "replicas:Replicas.receive",
                "message.term > group.term + TERM_JUMP_MAX",
                "False",
                "test_a_term_far_ahead_is_not_believed",
            ),
        )
    ],
    # --- what a replica may say of itself
    *[
        _m(name, breaks, target, old, new, "unit/raft/test_freshness.py::" + test)
        for name, breaks, target, old, new, test in (
            (
                "removed_leaders_are_level",
                "a leader that is being removed does not know what is acknowledged",
                "reads:Reads.led_until_s",
                " or not self._state.is_voter",
                "",
                "test_a_leader_that_has_given_up_its_lease_or_is_being_removed_grows_older",
            ),
            (
                "leaders_without_a_lease_are_level",
                "a leader that has given up its lease does not know what is acknowledged",
                "reads:Reads.led_until_s",
                " or self._lease_given_up",
                "",
                "test_a_leader_that_has_given_up_its_lease_or_is_being_removed_grows_older",
            ),
            (
                "words_of_old_leaders_count",
                "a word of an earlier leader makes nobody level",
                "reads:Freshness._look",
                "if term != state.term:",
                "if False:",
                "test_a_word_of_an_earlier_leader_makes_nobody_level",
            ),
            (
                "kept_entries_are_verified",
                "entries that were kept behind a snapshot are not verified",
                "follower:Follower.snapshot_installed",
                "self._verified = max(self._verified, message.index)",
                "self._verified = log.last_index",
                "test_what_follows_a_snapshot_is_not_agreed_upon_because_it_was_kept",
            ),
        )
    ],
    # --- the values before
    _m(
        "values_before_an_import_are_told",
        "an import ends what was seen of the values before",
        "metad.watch.log_reader:Seen.passed_by",
        "if changes.entry.origin == Origin.MIGRATION and len(changes.entry):",
        "if False:",
        _STREAMS + "test_an_import_ends_what_was_seen_of_the_values_before",
    ),
    # --- who was here before
    _m(
        "each_greeting_has_a_sync_of_its_own",
        "all who greet while a sync runs share the next",
        "metad.node.lives:Lives.remember",
        "if not self._syncing:",
        "if True:",
        _LIVES + "test_a_peer_that_dials_again_while_the_disk_is_slow_waits_for_two_syncs_at_most",
    ),
    # --- room on the disk
    _m(
        "log_of_an_earlier_life_counts_as_empty",
        "a log is not taken for shorter than it is",
        "metad.node.disk.checkpoints:Checkpoints.make_room",
        "None if any(log.has_earlier for log in logs) else ",
        "",
        _DISK + "test_nothing_is_said_of_a_log_whose_bytes_are_not_known",
    ),
    _m(
        "full_disk_keeps_its_reserve",
        "a node whose disk is full gives its reserve up for what makes room",
        "metad.node.disk.checkpoints:DiskRoom._measure",
        "use.free_bytes < mark // _FULL_PART and ",
        "False and ",
        _DISK + "test_a_full_disk_gives_the_reserve_up_and_keeps_it_before_anything_grows",
    ),
    _m(
        "growth_comes_before_the_reserve",
        "the reserve is made anew before anything that grows is taken",
        "metad.node.disk.checkpoints:DiskRoom._room",
        " - self._missing_bytes",
        "",
        _DISK + "test_a_full_disk_gives_the_reserve_up_and_keeps_it_before_anything_grows",
    ),
    _m(
        "status_tells_of_the_last_look",
        "the status says what the node goes by",
        "metad.node.disk.checkpoints:DiskRoom.status",
        "min(use.free_bytes, self._room())",
        "use.free_bytes",
        _DISK + "test_what_the_status_says_is_what_the_node_goes_by",
    ),
    _m(
        "snapshot_is_begun_in_vain",
        "a snapshot that found too little room is not begun again before there is more",
        "metad.raft.snapshots.transfer:SnapshotReceiver._refusal",
        "self._needs.get(group, 0)",
        "0",
        _SNAPSHOTS + "test_a_snapshot_that_finds_too_little_room_is_refused_and_not_begun_again_before_there_is_enough",
    ),
    _m(
        "snapshot_without_room_for_its_copy",
        "a snapshot is complete only if it can be installed",
        "metad.raft.snapshots.transfer:SnapshotReceiver._on_end",
        "incoming.end is None and self._lacks_room(incoming, message.bytes)",
        "False",
        _SNAPSHOTS + "test_a_snapshot_for_whose_copy_there_is_no_room_is_refused_at_its_end",
    ),
    # --- what is shared
    _m(
        "nothing_is_taken_back",
        "who holds less takes back what one that holds more can lend",
        "metad_wire.policy.fair_room:FairRoom._make_room",
        "self._lent < missing",
        "True",
        _ROOM + "test_what_can_be_taken_back_fills_the_room_and_others_get_it_back",
    ),
    _m(
        "what_is_kept_fills_the_room",
        "what cannot be taken back leaves as much free as its party holds",
        "metad_wire.policy.fair_room:FairRoom._missing",
        "0 if party is None else party.held",
        "0",
        _ROOM + "test_what_cannot_be_taken_back_leaves_as_much_as_its_party_holds",
    ),
    _m(
        "many_connections_keep_more_than_one_holder",
        "a holder with all of its connections leaves room free",
        "metad_wire.policy.fair_room:FairRoom._missing",
        "holder and source is not None",
        "False",
        _ROOM + "test_with_however_many_connections_a_holder_keeps_an_eighth_free",
    ),
    _m(
        "connections_take_back_as_if_each_were_a_holder",
        "a holder that has less takes back what one that has more lends, however many connections hold that",
        "metad_wire.policy.fair_room:FairRoom._lender",
        "other.lenders.richer(0, None)",
        "other.lenders.richer(source_after, None), None",
        _ROOM + "test_with_however_many_connections_a_holder_takes_back_no_more_than_its_share",
    ),
    _m(
        "a_silent_snapshot_keeps_its_room",
        "a snapshot of which nothing is taken makes room for another",
        "metad.node.watches.watches:Watches._end_silent",
        "silent_s < _SILENT_S",
        "True",
        "unit/server/test_watches.py::test_a_snapshot_that_nobody_takes_makes_room_for_another",
    ),
    _m(
        "each_new_connection_has_a_turn_of_the_loop",
        "what all connections ask for in a turn of the loop is bounded",
        "metad_wire.transport.fair_share:FairShare.has_left",
        "self.left >",
        "True or self.left >",
        _TURNS + "test_reads_of_a_crowd_share_turns",
    ),
    _m(
        "what_goes_ahead_costs_nothing",
        "heartbeats count to what a turn of the loop does",
        "metad.server.connection:Connection._take_in",
        "count / _CUT_FRAMES + ahead, (now() - begun_s) / _SLICE_S",
        "0.0, 0.0",
        _TURNS + "test_heartbeats_of_a_crowd_count_to_a_turn",
    ),
    _m(
        "the_status_waits_behind_long_reads",
        "small requests go before large ones",
        "metad.server.connection:Connection._ranked",
        "if small",
        "if False",
        _TURNS + "test_the_status_goes_before_a_crowds_long_reads",
    ),
    _m(
        "a_holder_has_a_turn_for_each_connection",
        "holders take turns of the loop, and then the connections of each",
        "metad_wire.transport.fair_share:FairShare.take",
        "_Worker(work, holder)",
        "_Worker(work, '')",
        "unit/wire/test_fair_share.py::test_holders_take_turns_however_many_workers_each_has",
    ),
    _m(
        "what_one_proof_lets_go_on_goes_on_at_once",
        "what many wait for is answered in slices",
        "metad_wire.policy.slices:Slices.now",
        "self._pieces or self._is_full",
        "False",
        "unit/server/test_steps.py::test_writes_in_a_lost_group_are_told_in_slices",
    ),
    _m(
        "a_turn_is_forgotten_with_its_request",
        "what a request is worth beyond its turn is owed",
        "metad_wire.policy.fair_queue:_owe",
        "left < 0",
        "False",
        _QUEUE + "test_turns_are_worth_bytes_as_they_are_worth_items",
    ),
    _m(
        "bytes_weigh_nothing",
        "turns are worth bytes as well as items",
        "metad_wire.policy.fair_queue:weight_of",
        "max(items, size * SHARE_ITEMS // SHARE_BYTES)",
        "items",
        _QUEUE + "test_turns_are_worth_bytes_as_they_are_worth_items",
    ),
    _m(
        "names_are_nobodys",
        "the next leader knows who has registered what",
        "metad.control.brokers.brokers:Brokers._count",
        "record.registered_by",
        "''",
        _BROKERS + "test_who_takes_all_names_that_it_can_leaves_others_theirs",
    ),
    _m(
        "ended_names_wait_for_a_day",
        "a name that its owner or an administrator ends is free at once",
        "metad.control.brokers.fencing:to_forget",
        "record.freed or ",
        "",
        _BROKERS + "test_a_name_that_somebody_has_ended_makes_room_at_once",
    ),
    _m(
        "a_brokers_certificate_speaks_for_all",
        "the holder of a broker's certificate speaks for that broker only",
        "metad.node.requests.bound_names:BoundNames.check",
        "principal.role is Role.BROKER and principal.name != broker",
        "False",
        _BOUND + "test_a_brokers_certificate_binds_its_name",
    ),
    _m(
        "a_bound_name_is_free",
        "nobody else speaks for a broker that has registered with its certificate",
        "metad.node.requests.bound_names:BoundNames.check",
        "bound and bound != principal.uri",
        "False",
        _BOUND + "test_a_brokers_certificate_binds_its_name",
    ),
    _m(
        "orders_are_nobodys",
        "who orders to end tenants shares the room for orders",
        "metad.state.cluster.tenant_ends:_evaluate_order",
        "ordered_by=command.holder",
        "ordered_by=''",
        _TENANTS + "test_who_gives_all_orders_that_it_can_leaves_others_theirs",
    ),
    # --- rates
    _m(
        "calm_times_lower_the_measure",
        "what is answered in calm times is a lower bound only",
        "metad_wire.policy.rates:ServiceRate._end_window",
        "if self.pressed and took_s <= _WINDOW_MAX_S and lasts and items:",
        "if items:",
        _RETURNS + "test_calm_times_can_only_raise_the_measure",
    ),
    _m(
        "the_onset_of_refusals_sets_the_measure",
        "the second in which a crowd is turned away says nothing of the time after it",
        "metad_wire.policy.rates:ServiceRate._end_window",
        "self.since_s - self.onset_s >= _ONSET_S",
        "True",
        _RETURNS + "test_the_moment_in_which_a_crowd_is_turned_away_says_nothing_of_the_time_after_it",
    ),
    _m(
        "the_past_is_never_forgotten",
        "a rate forgets the past by its age",
        "metad_wire.policy.rates:Rate.with_stretch",
        "math.exp(-lasted_s / self.memory_s)",
        "1.0",
        _RATE + "test_standing_still_lowers_the_rate_while_it_lasts",
        _RETURNS + "test_times_with_refusals_set_the_measure",
    ),
)


_survivors = {mutant.name for mutant in UNIT_MUTANTS}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have a test run once with each bug that it is to find."""
    bugs = [mutant for mutant in UNIT_MUTANTS if metafunc.definition.nodeid.endswith(mutant.scenarios)]
    metafunc.parametrize("bug", bugs, indirect=True, ids=[mutant.name for mutant in bugs])


@pytest.fixture(autouse=True)
def bug(request: pytest.FixtureRequest) -> Iterator[None]:
    """It is in the code before anything else of the test is made."""
    with planted(request.param):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Function, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note which bug was found."""
    if call.when == "call" and call.excinfo is not None:
        found = item.callspec.params["bug"]
        assert isinstance(found, Mutant)
        _survivors.discard(found.name)
    yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which bugs live."""
    terminalreporter.write_line(f"mutants that survive: {', '.join(sorted(_survivors)) or 'none'}")
