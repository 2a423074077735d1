"""Bugs to plant in what fences brokers: the gate of a group, what carries and keeps fences, and the registry. Each
names the scenarios of :mod:`metad.testing.nodes.scenarios` that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

BROKER_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "lives_that_are_over_write",
        "a group refuses what is asked in the name of a life that is over",
        "metad.state.machine:Machine.evaluate",
        "if fenced and (",
        "if False and (",
        "a_zombie_steals_nothing_once_its_next_life_is_registered",
    ),
    _m(
        "the_life_in_the_head_is_ignored",
        "a write that names no broker in its body is made in the name of one as well",
        "metad.node.requests:Requests._begin",
        "command.life = request.life",
        "pass",
        "the_life_in_the_head_of_a_request_counts",
    ),
    _m(
        "the_life_in_the_body_is_ignored",
        "a write of sessions is made in the name of the broker in its body",
        "metad.state.tables:Verb.life",
        "if self.names_life",
        "if False",
        "a_zombie_steals_nothing_once_its_next_life_is_registered",
    ),
    _m(
        "fences_stay_behind",
        "an adoption carries the fences of the source",
        "metad.control.migration:_Migration._target",
        "self._driver.machine.parts[Fences].carried()",
        "[]",
        "a_zombie_writes_nothing_in_slots_that_moved_to_a_new_group",
    ),
    _m(
        "fences_are_not_loaded",
        "who gets a snapshot knows the fences in it",
        "metad.state.fences:Fences.load",
        "self._applied.update({",
        "dict({",
        "who_gets_a_snapshot_knows_the_fences",
    ),
    _m(
        "acknowledged_without_being_told",
        "a fence is everywhere only once every group has written it",
        "metad.control.brokers:Brokers._tell",
        "await self._host.fence(group, GroupFence(fences))",
        "await asyncio.sleep(0)",
        "a_zombie_steals_nothing_once_its_next_life_is_registered",
    ),
    _m(
        "a_new_leader_forgets_fences",
        "a new leader goes on with the fences that some group may lack",
        "metad.control.brokers:Brokers._begin_reign",
        "self._learn(record)",
        "self._learn(msgspec.structs.replace(record, fenced=True))",
        "the_next_leader_goes_on_with_a_fence",
    ),
    _m(
        "silence_is_no_end",
        "who is silent for its lease is fenced",
        "metad.control.brokers:Brokers._tick",
        "silent = self._lives.due(self._running_s() - _GRACE_S)",
        "silent = []",
        "a_silent_broker_is_fenced_and_one_that_is_heard_of_is_not",
    ),
    _m(
        "heartbeats_do_not_count",
        "who is heard of lives on",
        "metad.control.brokers:Brokers._beat",
        "self._lives.heard(beat.broker, at_s)",
        "pass",
        "a_silent_broker_is_fenced_and_one_that_is_heard_of_is_not",
    ),
    _m(
        "who_is_forgotten_may_write",
        "a registered life without a fence is over",
        "metad.state.fences:Fences.refusal",
        "if registered and",
        "if False and",
        "a_zombie_of_a_broker_that_is_forgotten_writes_nothing",
    ),
    _m(
        "forgotten_before_the_sweep",
        "a fence stays while sessions look connected that are its business",
        "metad.state.fences:Fences.forgotten",
        "(has_sessions and fence.swept_epoch < fence.least_epoch)",
        "False",
        "a_broker_whose_sessions_are_not_swept_is_not_forgotten",
    ),
    _m(
        "the_living_are_forgotten",
        "who lives is not forgotten",
        "metad.control.brokers:to_forget",
        "record.state not in b.LIVE and ",
        "",
        "a_zombie_of_a_broker_that_is_forgotten_writes_nothing",
    ),
    _m(
        "no_amnesty_of_a_new_leader",
        "a new leader gives everybody a whole lease",
        "metad.control.brokers:Brokers._begin_lease",
        "self._running_s())",
        "record.registered_ms / 1000 - self._clock.wall_ms() / 1000 + self._running_s())",
        "a_new_leader_fences_nobody_who_could_not_reach_it",
    ),
)
