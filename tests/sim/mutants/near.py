"""Bugs to plant where a replica answers that does not lead. Each names the scenarios of :mod:`sim.nodes.scenarios` that
find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

NEAR_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "near_reads_without_a_proof",
        "a replica that does not lead answers what it can prove",
        "metad.node.requests.near:NearReads.check",
        "if driver.installing or max(ages_s) * (1 + self._drift) > wanted_s:",
        "if driver.installing:",
        "a_follower_that_is_cut_off_answers_only_what_may_be_that_old",
    ),
    _m(
        "leaders_of_old_prove",
        "who says how far a group is has proven that it leads",
        "metad.node.requests.near:answer_read_index",
        "driver.group.read(proven)",
        "proven(True)",
        "a_leader_that_leads_no_more_proves_nothing",
    ),
    _m(
        "proofs_count_from_their_answer",
        "a proof is as old as the question",
        "metad.node.requests.near:NearReads._ask",
        "partial(proof.answered, now)",
        "lambda index: (setattr(proof, 'asked', self._now()), proof.answered(proof.asked, index))",
        "a_proof_is_as_old_as_its_question",
    ),
    _m(
        "proofs_outlive_a_clock_that_stood_still",
        "a proof is given up when clocks have come apart",
        "metad.node.requests.near:Moment.age_s",
        "return passed_s if abs(passed_s - by_calendar_s) <= APART_S else inf",
        "return passed_s",
        "a_proof_is_given_up_when_a_clock_stood_still",
    ),
    _m(
        "near_reads_of_slots_that_left",
        "a replica answers for slots that it holds, whether it leads or not",
        "metad.node.requests.reads:Reads._read",
        "if verb.table.moves:",
        "if verb.table.moves and driver.group.is_leader:",
        "a_follower_answers_only_for_slots_that_it_holds",
    ),
    _m(
        "proofs_of_what_is_not_applied",
        "a proof counts once the replica has applied what it is about",
        "metad.node.requests.near:_Proof.look",
        "self.driver.machine.applied >= self.coming[1]",
        "True",
        "a_follower_that_has_not_applied_what_was_committed_proves_nothing",
    ),
    _m(
        "questions_for_ever",
        "nobody asks for proofs when nobody reads",
        "metad.node.requests.near:NearReads._ask_again",
        "now.monotonic_s > proof.wanted_until_s or ",
        "",
        "a_group_that_is_read_near_sleeps_when_nobody_reads",
    ),
)
