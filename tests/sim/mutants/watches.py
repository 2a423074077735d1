"""Bugs to plant in watches: what servers stream, and how the SDK puts streams together. Each names the scenarios of
:mod:`sim.nodes.scenarios.watches` that find it."""

from __future__ import annotations

from .planting import Mutant
from .planting import one_edit as _m

WATCH_MUTANTS: tuple[Mutant, ...] = (
    # --- what a replica streams
    _m(
        "told_before_it_is_committed",
        "a stream reports only what is applied",
        "metad.node.watches.watches:WatchedReplica.applied",
        "self._driver.machine.applied",
        "self._log.last_index",
        "nothing_is_told_before_it_is_committed",
    ),
    Mutant(
        "border_to_live_skips_one",
        "a stream is live once it has looked at everything that is applied",
        (
            ("metad.watch.stream:Stream._end", "replica.applied if", "replica.applied - 1 if"),
            (
                "metad.watch.stream:Stream._advance",
                "self.position == replica.applied",
                "self.position + 1 == replica.applied",
            ),
        ),
        ("catching_up_meets_what_is_written_meanwhile",),
    ),
    _m(
        "falls_behind_by_one_more",
        "what a live stream cannot hold it reads from the log, all of it",
        "metad.watch.stream:Stream._fall_behind",
        "self.position = index - 1",
        "self.position = index",
        "reader_that_stops_holds_up_nobody_and_misses_nothing",
    ),
    _m(
        "credit_is_lost",
        "a stream uses as much credit as it sends",
        "metad.watch.stream:Stream._send",
        "self.credit -= len(payload)",
        "self.credit -= 2 * len(payload)",
        "reader_that_stops_holds_up_nobody_and_misses_nothing",
    ),
    _m(
        "entries_of_a_frame_are_swapped",
        "entries come in the order of the log",
        "metad.watch.frames:entries",
        "else pending",
        "else list(pending)[::-1]",
        "hot_key_is_written_by_many_at_once",
    ),
    _m(
        "stream_begins_one_entry_too_early",
        "a stream goes on behind what it has brought",
        "metad_client.watch.stream:GroupStream.resume_index",
        "self.items[-1].index if self.items else position",
        "max(0, (self.items[-1].index if self.items else position) - 1)",
        "node_that_ends_hands_its_watchers_over",
        "watch_over_leaders_that_die",
    ),
    _m(
        "mark_is_one_entry_ahead",
        "a mark says how far the stream is",
        "metad.watch.stream:Stream.mark",
        "index = self.floor",
        "index = self.floor + 1",
        "marks_promise_that_nothing_older_follows",
    ),
    _m(
        "entry_in_two_halves",
        "an entry is in one event",
        "metad.watch.stream:Stream._send_entries",
        "taken = [first]",
        "taken = [first]\n    if len(first.changes) > 1:\n        room = 0\n"
        "        pending.appendleft((0, first._replace(changes=first.changes[1:])))\n"
        "        taken = [first._replace(changes=first.changes[:1])]",
        "hot_key_is_written_by_many_at_once",
    ),
    Mutant(
        "cut_log_is_passed_over",
        "a replica that lacks entries says so",
        (
            ("metad.watch.stream:Stream.open", "wanted < replica.base", "False"),
            (
                "metad.watch.stream:Stream._read_log",
                "if self.position < replica.base:",
                "self.position = max(self.position, replica.base)\n    if False:",
            ),
        ),
        ("watch_over_a_log_that_was_cut",),
    ),
    # --- where a stream begins
    _m(
        "begins_at_a_followers_now",
        "a pin has everything that was acknowledged before it was asked for",
        "metad.node.watches.watches:WatchedReplica.read_index",
        "ask_read_index(self._driver, self._peers.call, done)",
        "done(self._driver.machine.applied)",
        "image_begins_at_what_was_acknowledged",
        "cut_does_not_take_a_watch_back",
    ),
    _m(
        "pin_is_taken_before_it_is_applied",
        "a replica begins a stream once it has applied what the leader has proven",
        "metad.watch.stream:Stream.prove",
        "self.awaited = max(self.awaited, index)",
        "pass",
        "image_waits_for_a_replica_that_lags",
    ),
    _m(
        "cut_takes_any_pin",
        "a watch goes back only where the group's leader itself is behind",
        "metad_client.watch.streams:Streams.opening",
        "self._flags, self.progress_ms, True, len(self._turn))",
        "self._flags, self.progress_ms, not stream.cut, len(self._turn))",
        "cut_does_not_take_a_watch_back",
    ),
    _m(
        "token_names_groups_in_vain",
        "every group that a token names is found, or its slots are a gap",
        "metad_client.watch.streams:Streams.changed",
        "for group in list(self._unfound):",
        "for group in ():",
        "token_names_a_group_that_the_node_does_not_know",
    ),
    # --- snapshots
    _m(
        "snapshot_of_no_moment",
        "all rows of a snapshot are as they were at one index",
        "metad.node.watches.watches:WatchedReplica.pin",
        "return self._state.pin(self.prefix, after_prefix(self.prefix))",
        "state = self._state\n    return type('Now', (), {'scan': lambda _, *how: state.scan(*how), 'close': str})()",
        "snapshot_is_of_one_moment",
    ),
    _m(
        "rows_twice",
        "a row is in a snapshot once",
        "metad.watch.frames:PinnedRows.next",
        'found[-1][0] + b"\\0"',
        "found[-1][0]",
        "snapshot_is_of_one_moment",
    ),
    # --- what passes, and what it is
    _m(
        "prefix_without_its_end",
        "a field is the whole field, not its beginning",
        "metad.watch.filters:_interests",
        "table.key_of(filter.fields)",
        "table.key_of(filter.fields)[: None if filter.prefix else -2]",
        "filters_let_through_what_they_say",
    ),
    _m(
        "changed_for_created",
        "a change says whether the record is new",
        "metad.watch.changes:EntryChanges.change",
        "_CREATED if revisions.create_revision == revisions.mod_revision",
        "_CHANGED if revisions.create_revision == revisions.mod_revision",
        "hot_key_is_written_by_many_at_once",
    ),
    _m(
        "previous_is_what_is_written",
        "the previous value is the one from before the entry",
        "metad.watch.hub:Hub._find_previous",
        "with_previous(change, self._before(changes, change))",
        "with_previous(change, change[3])",
        "previous_values_are_known_while_a_watch_is_current",
    ),
    _m(
        "writes_share_an_entry",
        "an entry has one write per row, so no version is lost",
        "metad.state.machine:Machine.evaluate",
        "if (not coalesces and not unwritten(view.writes)) or (heard and _meet(heard, view.heard)):",
        "if False:",
        "hot_key_is_written_by_many_at_once",
    ),
    # --- tokens
    _m(
        "token_is_one_entry_ahead",
        "a token says up to where its batch goes",
        "metad_client.watch.streams:Streams.where",
        "(dict(position.indexes), self._packed[kind])",
        "({group: index + 1 for group, index in position.indexes.items()}, self._packed[kind])",
        "watch_goes_on_at_a_token",
    ),
    _m(
        "owner_before_hears_nothing",
        "a broker hears of sessions that others take from it",
        "metad.watch.changes:EntryChanges.brokers",
        "{broker_of(value), broker_of(self.owner_before(key))}",
        "{broker_of(value)}",
        "sessions_come_and_go",
    ),
    # --- how streams are put together: tests/unit/client/test_watch_position.py has a bug for each clause of the rules
    _m(
        "seal_counts_everywhere",
        "a seal counts for slots that are read from the group",
        "metad_client.watch.position:Position.read",
        "_RULES.get(marker.step)",
        "{**_RULES, 1: lambda group, move, reader: Reader(group, reader.move, move)}.get(marker.step)",
        "source_is_pinned_before_a_move_and_the_target_behind_it",
    ),
    _m(
        "adoption_does_not_wait",
        "an adoption waits until the source is read up to its seal",
        "metad_client.watch.position:Position.waits",
        "marker is not None",
        "False",
        "source_is_late_where_the_target_is_not",
    ),
    _m(
        "lowest_move_wins",
        "a slot is read from the group to which the highest move has brought it",
        "metad_client.watch.position:_by_move",
        "return offer[0].move",
        "return -offer[0].move",
        "source_is_pinned_before_a_move_and_the_target_behind_it",
    ),
    _m(
        "old_adoption_takes_slots_back",
        "an adoption changes nothing of slots that a later move has brought",
        "metad_client.watch.position:Position.read",
        "_RULES.get(marker.step)",
        "{**_RULES, 3: lambda group, move, reader: Reader(group, move) if reader.sealed == move else "
        "_missing(reader, move)}.get(marker.step)",
        "group_between_two_moves_is_pinned_before_them",
    ),
    _m(
        "cut_loses_nothing",
        "what was read from a group whose log is cut is missing",
        "metad_client.watch.position:_lost",
        "Reader(NOBODY, reader.move) if reader.group == group else reader",
        "reader",
        "watch_over_a_log_that_was_cut",
    ),
    _m(
        "gap_is_not_announced",
        "what is lost is said",
        "metad_client.watch.streams:Streams._take_cut",
        'self._batch("gap", stream, slots=gap) if gap else True',
        "True",
        "watch_over_a_log_that_was_cut",
    ),
    _m(
        "new_group_begins_now",
        "a group that a token does not name is read from its beginning",
        "metad_client.watch.streams:Streams.opening",
        "WatchOpen(filters, index, ",
        "WatchOpen(filters, index or None, ",
        "group_is_added_while_watched",
    ),
)
