"""Bugs to plant where something crosses from one log to another, whose time is another one, and in what goes on beside
slots that move. Each names the scenarios of :mod:`sim.nodes.scenarios` that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

CALENDAR_MUTANTS: tuple[Mutant, ...] = (
    _m(
        "a_fence_says_the_time_of_its_log",
        "a group counts a fence from its age",
        "metad.state.cluster.fences:Fences.raised",
        "item.at_ms if item.age_ms is None else max(1, view.now_ms - item.age_ms)",
        "item.at_ms",
        "a_dead_brokers_sessions_last_as_long_in_every_group",
    ),
    _m(
        "a_fence_is_as_old_as_a_calendar_says",
        "the age of a fence is by the log that has written it",
        "metad.control.brokers.brokers:Brokers._tell",
        "aged(fences, self._log_ms())",
        "aged(fences, self._log_ms() + 3_600_000)",
        "a_dead_brokers_sessions_last_as_long_in_every_group",
    ),
    _m(
        "carried_fences_say_the_time_of_the_source",
        "an adoption brings fences with their age",
        "metad.state.cluster.fences:Fences.carried",
        "aged(found, now_ms)",
        "found",
        "a_fence_that_comes_with_slots_is_as_old",
    ),
    _m(
        "rows_move_with_their_times",
        "the mover puts the times in rows ahead by what the target's log is ahead",
        "metad.control.migration:_Migration._import",
        "slot_migration.translated(rows, self._ahead_ms)",
        "rows",
        "what_moves_lasts_as_long_where_it_comes_to",
    ),
    _m(
        "retained_messages_move_with_their_times",
        "every row with a time is put ahead",
        "metad.state.moving.slot_migration:translated",
        "elif value is not None and key[0] in TIMES:",
        "elif value is not None and key[0] in TIMES and key[0] != 0x40:",
        "what_moves_lasts_as_long_where_it_comes_to",
    ),
    _m(
        "what_is_due_moves_with_its_time",
        "the index of deadlines is that of the sessions that have come",
        "metad.state.moving.slot_migration:translated",
        "if key[0] == DUE:",
        "if False:",
        "what_moves_lasts_as_long_where_it_comes_to",
    ),
    _m(
        "the_target_takes_the_sources_time",
        "slots that come leave the time of the target's log alone",
        "metad.control.migration:_Migration._target",
        " 0,\n            [] if sealed is None else parts[F",
        " 0 if sealed is None else sealed.now_ms,\n            [] if sealed is None else parts[F",
        "what_moves_lasts_as_long_where_it_comes_to",
    ),
    _m(
        "each_batch_has_its_own_difference",
        "a row that is sent again, or deleted, is put ahead by the same",
        "metad.control.migration:_Migration._import",
        "slot_migration.translated(rows, self._ahead_ms)",
        "slot_migration.translated(rows, self._ahead_ms + 1_000 * self._batch)",
        "who_comes_and_goes_while_slots_move_has_one_deadline",
    ),
    _m(
        "a_log_follows_its_leaders_calendar",
        "a log goes about as fast as time does, whatever calendars say",
        "metad.state.machine:LogTime._time_ms",
        "max(self._anchor_ms + least_ms, min(float(calendar_ms), self._anchor_ms + most_ms))",
        "max(self._anchor_ms + least_ms, float(calendar_ms))",
        "a_calendar_that_is_set_ends_no_session",
    ),
    # --- beside slots that move
    _m(
        "a_pass_over_some_slots_counts_for_all",
        "a fence is swept for the slots that were looked at",
        "metad.state.ends.expiry:_evaluate_lose",
        "holding.slots == command.body.slots and ",
        "",
        "an_unseal_overtakes_the_end_of_a_pass",
    ),
    _m(
        "a_seal_in_flight_hides_deadlines",
        "what was passed beside a seal that never came to be is looked at again",
        "metad.node.chores.session_sweeps:DueSweep._begin",
        "machine.holding.slots, machine.holding.adopted_move",
        'b"", 0',
        "a_seal_that_is_lost_hides_no_deadline",
    ),
    _m(
        "foreign_leases_count",
        "leases of slots that are not held keep no other from ending",
        "metad.state.live.live:LiveRows.over",
        "if not held[self._slot_of(key) or 0]:",
        "if False:",
        "leases_that_came_early_keep_no_other_from_ending",
    ),
    _m(
        "a_listener_that_ends_hides_the_next",
        "who listens to a group hears every entry, whoever else ends meanwhile",
        "metad.node.replicas.driver:GroupDriver._stage",
        "tuple(self._listeners)",
        "self._listeners",
        "a_watch_that_ends_takes_no_write_from_a_move",
    ),
)
