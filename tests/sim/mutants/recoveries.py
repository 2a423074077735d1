"""Bugs to plant where groups are recovered without a majority, each with the scenarios that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

_LOST = "groups_are_recovered_without_their_majority"
_MOVED = "slots_that_moved_are_held_by_one_group"

RECOVERY_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "the_oldest_log_takes_a_group_up",
        "the newest log that is left takes its group up",
        "metad.node.disk.recovery:_Left.__init__",
        "key=lambda each: each[:3], reverse=True",
        "key=lambda each: each[:3]",
        _LOST,
    ),
    _m(
        "recoveries_are_not_durable",
        "a recovery that was confirmed outlives the power",
        "metad.node.disk.recovery:carry_out",
        "here.writer.flush()",
        "pass",
        _LOST,
    ),
    _m(
        "a_recovered_cluster_has_its_old_id",
        "no node of before a recovery takes part in what comes of it",
        "metad.node.disk.recovery:carry_out",
        "cluster_id=plan.cluster,",
        "",
        _LOST,
    ),
    _m(
        "lost_nodes_keep_their_votes",
        "the node that takes a group up is its only voter",
        "metad.node.disk.recovery:carry_out",
        "Configuration((mine.node,))",
        "log.configuration",
        _LOST,
    ),
    _m(
        "groups_are_not_told_which_slots_they_hold",
        "groups that are taken up are told which slots they hold",
        "metad.node.disk.recovery:carry_out",
        "[] if change is None else list(_entries(here, log, change))",
        "[]",
        _MOVED,
    ),
    _m(
        "of_two_recoveries_both_remain",
        "of two recoveries of one cluster one ends for good",
        "metad_wire.cluster:ClusterName.supersedes",
        "self > other",
        "self.recovered > other.recovered",
        "of_two_recoveries_one_remains",
    ),
)
