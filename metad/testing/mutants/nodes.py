"""Bugs to plant above the replicas: in evaluation, identities, caches, reads, slot moves, and the SDK. Each
names the scenarios of :mod:`metad.testing.nodes.scenarios` that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

NODE_MUTANTS: tuple[Mutant, ...] = (
    # --- exactly once
    _m(
        "retries_are_done_again",
        "a retry finds what its first attempt did",
        "metad.state.machine:Machine.evaluate",
        "known = self.dedupe.lookup(identity, command.digest, command.arrived_s)",
        "known = None",
        "retry_happens_once",
    ),
    _m(
        "identities_are_not_replicated",
        "the next leader knows the identities",
        "metad.state.dedupe:DedupeWindow.stage",
        "self._learn(key, value)",
        "pass",
        "retry_at_the_next_leader_happens_once",
    ),
    _m(
        "retry_under_another_identity",
        "all attempts of a write carry one identity",
        "metad_client.dispatch.call:Call.attempt",
        "if self.identities is None:",
        "if True:",
        "retry_happens_once",
    ),
    _m(
        "snapshot_without_identities",
        "who gets a snapshot knows the identities in it",
        "metad.state.dedupe:DedupeWindow.load",
        "self._learn(key, value)",
        "pass",
        "retry_at_a_leader_that_got_a_snapshot_happens_once",
    ),
    _m(
        "followers_do_not_learn_how_far_back",
        "followers learn how far back the window reaches",
        "metad.state.dedupe:DedupeWindow._learn_mark",
        "client.mark = max(client.mark, mark)",
        "pass",
        "next_leader_knows_how_far_back_it_remembers",
    ),
    _m(
        "given_up_without_a_mark",
        "what is given up unconfirmed leaves a mark",
        "metad.state.dedupe:DedupeWindow._make_room",
        "client.mark = max(client.mark, *given_up)",
        "pass",
        "next_leader_knows_how_far_back_it_remembers",
    ),
    # --- items that are refused
    _m(
        "bad_key_fails_the_request",
        "an item whose key is too long fails alone",
        "metad.state.tables:Verb.command",
        "if faults := self._faults(body, rows, size):",
        "if faults := self._faults(body, rows, size):\n        raise InvalidRequestError(str(faults))",
        "bad_items_fail_alone",
    ),
    _m(
        "bad_type_fails_the_request",
        "an item with a field of a wrong type fails alone",
        "metad_wire.method:Method.decode_what_fits",
        "if self.item is None:",
        "if True:",
        "bad_items_fail_alone",
    ),
    _m(
        "bad_text_fails_the_call",
        "an item that cannot be encoded fails alone",
        "metad_client.requests.requests:Requests._cut",
        """wrong = wrong_items(method, chunk)
                if""",
        """wrong = {}
                if""",
        "bad_items_fail_alone",
    ),
    _m(
        "refused_items_shift_the_others",
        "an answer is of the item at its position",
        "metad_wire.refused:Refused.widened",
        "zip(self._places, column, strict=True)",
        "enumerate(column)",
        "bad_items_fail_alone",
    ),
    _m(
        "positions_of_a_request_for_those_of_the_call",
        "the position of an error is that in the caller's batch",
        "metad_client.results:_Errors.by_position",
        "piece.where[item.index]",
        "item.index",
        "bad_items_fail_alone",
    ),
    _m(
        "stale_by_hearsay",
        "only a group says that it does not hold a slot",
        "metad.node.groups:Groups.elsewhere",
        'return NotLeaderError(f"this node knows',
        "raise __import__('metad_wire.errors', fromlist=['errors']).StaleRouteError(f\"this node knows",
        "who_knows_no_such_group_does_not_speak_for_it",
    ),
    _m(
        "unknown_members_are_not_looked_up",
        "who was away asks the others about members it does not know",
        "metad.server.peers.peers:Peers.met",
        "if self._strangers()",
        "if False",
        "who_was_away_hears_of_a_leader_that_joined_meanwhile",
    ),
    # --- answers
    _m(
        "answer_before_commit",
        "a write is answered once it is committed",
        "metad.node.driver:GroupDriver._propose",
        "self._in_flight.append(entry)",
        "self._in_flight.append(entry); [w.answer(o) for w, o in zip(works, proposal.outcomes)]; "
        "entry.works, entry.outcomes = [], []",
        "write_waits_for_the_quorum",
    ),
    _m(
        "answer_before_durable",
        "what is committed is durable",
        "metad.raft.writer:LogWriter.flush",
        "self.number += 1",
        "self.number += 1; self.durable = self.number - 1; [each.synced(self.durable) for each in listeners]",
        "answered_writes_survive_the_power",
    ),
    _m(
        "log_is_cut_behind_what_is_applied",
        "the log is cut behind what a power failure leaves of the state",
        "metad.node.checkpoints:Checkpoints.make",
        "for driver, through in applied.items():",
        "for driver, through in ((driver, driver.machine.applied) for driver in applied):",
        "log_is_cut_behind_what_is_flushed",
    ),
    # --- what a leader remembers
    _m(
        "unapplied_writes_are_believed",
        "who leads no longer forgets what was in flight",
        "metad.state.machine:Machine.forget",
        "self._view.forget()",
        "pass",
        "what_was_lost_is_not_believed",
    ),
    _m(
        "rows_are_remembered",
        "who leads no longer forgets the rows it has read",
        "metad.state.row_cache:_Generations.forget",
        "self._young, self._old = {}, {}",
        "pass",
        "what_others_wrote_is_known",
    ),
    _m(
        "owners_are_remembered",
        "a snapshot takes the place of what memory knew",
        "metad.state.owners:SessionOwners.load",
        "self.cache.clear()",
        "pass",
        "snapshot_replaces_what_memory_knew",
    ),
    _m(
        "installing_holds_up_the_others",
        "a group that cannot apply does not keep the others from it",
        "metad.node.observer:Observer.committed",
        " and not driver.installing",
        "",
        "others_go_on_while_a_snapshot_is_installed",
    ),
    # --- reads
    _m(
        "read_without_proof",
        "a read waits until it is certain who leads",
        "metad.node.reads:Reads.begin",
        "if driver.group.may_read() and not",
        "if not",
        "cut_off_leader_does_not_answer_reads",
    ),
    # --- slots that move
    _m(
        "source_is_not_sealed",
        "slots are sealed before the rest is sent",
        "metad.control.migration:_Migration.run",
        'await self._source("seal")',
        "0",
        "slots_move_while_clients_write",
    ),
    _m(
        "source_says_no_revision",
        "a key's revisions only grow, whatever moves",
        "metad.control.migration:_Migration.run",
        "revision=sealed",
        "revision=0",
        "slots_move_while_clients_write",
    ),
    _m(
        "adopted_before_the_tail",
        "the target adopts slots when it has all rows",
        "metad.control.migration:_Migration.run",
        """await self._send_tail()
        self._batch += 1""",
        "self._batch += 1",
        "slots_move_while_clients_write",
    ),
    _m(
        "rows_written_meanwhile_are_not_sent",
        "what is written while rows are copied is copied again",
        "metad.control.migration:_Migration._note",
        "self._tail[behind] = value",
        "pass",
        "slots_move_while_clients_write",
    ),
    _m(
        "foreign_slots_are_written",
        "a group refuses writes to slots that it does not hold",
        "metad.state.machine:Machine.evaluate",
        "if not slots.holds_all and not",
        "if False and not",
        "slots_move_while_clients_write",
        "slots_move_while_leaders_die",
    ),
    _m(
        "foreign_slots_are_read",
        "a group refuses reads of slots that it does not hold",
        "metad.state.slot_assignment:SlotAssignment.check",
        "if self.holds_all:",
        "if True:",
        "slots_move_while_clients_write",
        "slots_move_while_leaders_die",
    ),
    # --- nodes that leave
    _m(
        "removed_before_replaced",
        "a healthy replica stays until the group has as many copies as it should have",
        "metad.control.upkeep:due_changes",
        "changes(now, record.replicas,",
        "changes(now, [each for each in record.replicas if each in seen.reachable],",
        "healthy_replica_stays_while_its_replacement_is_down",
    ),
    _m(
        "who_has_left_lives_on",
        "a node that may not hear that it has left asks the others",
        "metad.control.departure:Departure.asks",
        "if member or",
        "if True or",
        "who_has_left_ends",
    ),
    # --- regions
    _m(
        "regions_are_not_looked_at",
        "the first groups are spread over regions",
        "metad.control.decisions:first_map",
        "groups, regions=regions)",
        "groups)",
        "any_region_may_die",
    ),
    # --- nodes that end
    _m(
        "ends_without_a_word",
        "a node that ends hands over what it leads",
        "metad.node.handover:Handover._give",
        "group.transfer(target)",
        "pass",
        "a_node_that_ends_hands_over_first",
    ),
)
