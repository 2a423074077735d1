"""Bugs to plant in the members of consumer groups. Each names the scenarios of :mod:`sim.nodes.scenarios`
that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

CONSUMER_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "members_are_not_heard",
        "a heartbeat keeps its member",
        "metad.state.live.live_consumers:LiveConsumers.beat",
        "self.renew(member, at_s)",
        "self._ttl_ms.get(member, 0)",
        "a_silent_member_is_sent_away_and_the_others_go_on",
    ),
    _m(
        "silent_members_stay",
        "a silent member is sent away",
        "metad.state.consumer.consumers:_send_away",
        "group.drop(member)",
        "pass",
        "a_silent_member_is_sent_away_and_the_others_go_on",
    ),
    _m(
        "nobody_is_told_of_the_gone",
        "a member that is gone begins a rebalance",
        "metad.state.consumer.consumer_groups:ChangedGroup.drop",
        "self.begin_rebalance()",
        "pass",
        "a_silent_member_is_sent_away_and_the_others_go_on",
    ),
    _m(
        "the_gone_commit",
        "only a member commits in the name of one",
        "metad.state.consumer.offsets:_is_member",
        "return view.get(key) is not None",
        "return True",
        "a_silent_member_is_sent_away_and_the_others_go_on",
    ),
    _m(
        "offsets_miss_the_next_generation",
        "the entry that begins a generation fences the commits of the one before",
        "metad.state.consumer.consumer_groups:ChangedGroup._begin_generation",
        "self._view.writes_of(GENERATION)[key] = encode(generation)",
        "pass",
        "a_silent_member_is_sent_away_and_the_others_go_on",
    ),
    _m(
        "generations_are_assigned_again",
        "a generation is assigned once",
        "metad.state.consumer.consumers:_assign",
        "if info.state != GroupState.ASSIGNING:",
        "if info.state == GroupState.JOINING:",
        "a_silent_member_is_sent_away_and_the_others_go_on",
    ),
    _m(
        "a_rebalance_waits_for_ever",
        "a member that does not join is sent away",
        "metad.state.consumer.consumers:_end_rebalance",
        "if member.joined <= info.generation:",
        "if False:",
        "a_member_that_does_not_join_is_waited_for_no_longer_than_it_takes",
    ),
    _m(
        "rebalances_end_early",
        "members have their time to join",
        "metad.state.live.live_consumers:LiveConsumers.learn",
        "self.last(key + TEXT_END, group.rebalance_ms, now_s)",
        "self.last(key + TEXT_END, group.rebalance_ms // 2, now_s)",
        "a_member_that_does_not_join_is_waited_for_no_longer_than_it_takes",
    ),
    _m(
        "an_assignment_is_waited_for_for_ever",
        "a leader that does not assign is sent away",
        "metad.state.consumer.consumers:_end_rebalance",
        "group.drop(leader)",
        "pass",
        "a_leader_that_does_not_assign_is_sent_away",
    ),
    _m(
        "members_of_no_leader",
        "members are heard of in groups of their kind",
        "metad.node.chores.leases:LeaseEnds._look_at",
        "_LASTING[group_id.kind]",
        "_LASTING['data']",
        "a_silent_member_is_sent_away_and_the_others_go_on",
    ),
    # --- groups that nobody uses
    Mutant(
        "groups_in_use_are_deleted",
        "a group is in use if one of its offsets is new",
        (
            ("metad.node.chores.group_expiry:GroupExpiry._look", "if any(", "if False and any("),
            (
                "metad.state.consumer.offsets:_is_unused",
                "since_ms <= before_ms and all(",
                "since_ms <= before_ms or all(",
            ),
        ),
        ("a_group_that_nobody_uses_is_deleted",),
    ),
    _m(
        "unused_groups_stay",
        "the leader looks for groups that nobody uses",
        "metad.node.chores.group_expiry:GroupExpiry._look",
        "return False, len(rows)",
        "return True, len(rows)",
        "a_group_that_nobody_uses_is_deleted",
    ),
    # --- members that live by themselves
    _m(
        "work_goes_on_without_an_answer",
        "a member stops when it may be none any more",
        "metad_client.holding.membership:Generation.is_current",
        "self._membership.state is LeaseState.CONNECTED",
        "True",
        "a_member_that_stands_still_stops_before_others_get_what_it_had",
    ),
    _m(
        "work_goes_on_through_a_rebalance",
        "a member stops when its group rebalances",
        "metad_client.holding.membership:Membership._rebalances",
        "return beat.state != GroupState.STABLE or beat.generation != current.number",
        "return False",
        "members_never_work_on_the_same",
    ),
)
