"""Bugs to plant in how the states of replicas are compared and replaced."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

_COMPARISONS = "metad.node.chores.comparisons:"

COMPARISON_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "who_answers_first_is_right",
        "a quorum of voters says who is right",
        _COMPARISONS + "judge",
        ">= configuration.quorum()",
        ">= 1",
        "leader_with_a_wrong_state_hands_over",
        "without_a_majority_nothing_is_replaced",
    ),
    _m(
        "states_of_different_entries_are_compared",
        "replicas are compared as they are with the same entry",
        _COMPARISONS + "Comparisons._sum_up",
        "if applied == body.index:",
        "if True:",
        "wrong_state_is_replaced_while_others_write",
    ),
    _m(
        "the_mark_of_a_snapshot_is_compared",
        "what belongs to a replica alone is not compared",
        _COMPARISONS + "sum_up",
        "row[0] == mark",
        "False",
        "what_belongs_to_a_replica_alone_is_not_compared",
    ),
    _m(
        "wrong_state_is_applied_to",
        "a replica whose state is wrong applies nothing until it is replaced",
        _COMPARISONS + "Comparisons.rebuild",
        "driver.install()",
        "pass",
        "replica_goes_on_when_its_leader_is_gone",
    ),
    _m(
        "snapshot_of_what_is_applied_is_no_news",
        "a wrong state is replaced though the log lacks nothing",
        "follower:Follower.on_snapshot",
        "(self._rebuilds and message.index >= state.applied)",
        "False",
        "wrong_state_is_replaced",
    ),
    _m(
        "wrong_leader_leads_on",
        "a leader whose own state is wrong hands over",
        _COMPARISONS + "Comparisons._hand_over",
        "group.transfer(member)",
        "pass",
        "leader_with_a_wrong_state_hands_over",
    ),
    _m(
        "replica_waits_for_a_dead_leader",
        "a replica whose state is wrong goes on if its leader is gone",
        _COMPARISONS + "Comparisons._look_after_rebuilding",
        "self._go_on(driver)",
        "pass",
        "replica_goes_on_when_its_leader_is_gone",
    ),
)
