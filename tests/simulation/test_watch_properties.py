"""The nine properties of a watch, each by its name: it holds in seeds and scenarios of whole nodes, with watchers that
are killed and resumed while slots move, leaders die and logs are cut; and a bug that breaks it is found and called by
its name. tests/e2e/test_watched_cluster.py has the same nine for real processes.
"""

from __future__ import annotations

import os

import pytest

from metad_judge.invariants import Violation
from sim.mutants.planting import planted
from sim.mutants.watches import WATCH_MUTANTS
from sim.nodes.scenarios import SCENARIOS
from simulate import run_seeds

SEED = int(os.environ.get("METAD_TEST_SEED", "0")) + 1_001
MUTANTS = {mutant.name: mutant for mutant in WATCH_MUTANTS}


LONG = pytest.mark.long


@pytest.mark.parametrize("at", [0, 1, 2, *(pytest.param(at, marks=LONG) for at in range(3, 9))])
def test_all_hold_in_a_seed(at: int) -> None:
    """One in three is wide. Each is judged by all nine."""
    (result,) = run_seeds([SEED + at], 3, "node", wide=at % 3 == 2)
    assert not result.violation, f"seed {result.seed}: {result.violation}"
    assert result.told, "no watcher was told anything"


def holds(rule: str, scenario: str, bug: str) -> None:
    """A scenario, which test_nodes.py runs without a bug, calls the bug by the rule's name."""
    with planted(MUTANTS[bug]), pytest.raises(Violation) as found:
        SCENARIOS[scenario]()
    assert found.value.rule == rule, found.value


def test_ordered() -> None:
    """Per key, and per group in total, changes come in the order of the log."""
    holds("ordered", "hot_key_is_written_by_many_at_once", "entries_of_a_frame_are_swapped")


def test_unique() -> None:
    """No change comes twice, also where a stream goes on at another replica."""
    holds("unique", "node_that_ends_hands_its_watchers_over", "stream_begins_one_entry_too_early")


def test_atomic() -> None:
    """The changes of an entry come together, and no token is between them."""
    holds("atomic", "hot_key_is_written_by_many_at_once", "entry_in_two_halves")


def test_reliable() -> None:
    """Nothing is missing between the beginning and the end, but where a gap is announced."""
    holds("reliable", "reader_that_stops_holds_up_nobody_and_misses_nothing", "falls_behind_by_one_more")


def test_resumable() -> None:
    """From a stored token exactly that follows which followed the batch that had it."""
    holds("resumable", "watch_goes_on_at_a_token", "token_is_one_entry_ahead")


def test_bookmarkable() -> None:
    """After a mark of progress nothing older follows."""
    holds("bookmarkable", "marks_promise_that_nothing_older_follows", "mark_is_one_entry_ahead")


def test_previous() -> None:
    """The previous value is the one that the row had."""
    holds("previous", "previous_values_are_known_while_a_watch_is_current", "previous_is_what_is_written")


def test_created() -> None:
    """A change says whether it has created the record."""
    holds("created", "hot_key_is_written_by_many_at_once", "changed_for_created")


def test_filter() -> None:
    """What the filter does not let pass does not come."""
    holds("filter", "filters_let_through_what_they_say", "prefix_without_its_end")
