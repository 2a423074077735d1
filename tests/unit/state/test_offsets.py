"""The rules of consumer offsets: who may commit, what a compare-and-set sees, that a listing is complete."""

from __future__ import annotations

import pytest
from state_rig import Rig, contents, item_errors

from metad.storage.keys import table_prefix, text2
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.messages import OffsetCommitItem as Commit
from metad_wire.messages import OffsetKey as Key
from metad_wire.methods import encode
from metad_wire.tables.offset import OFFSET


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig("offset", lag=request.param)


def commit(rig: Rig, *items: Commit, monotonic: bool = False) -> dict[int, str]:
    return item_errors(rig.write(methods.OFFSET_COMMIT, m.OffsetCommit(list(items), monotonic)))


def item(
    offset: int, *, partition: int = 0, generation: int = 0, expected: int | None = None, topic: str = "t"
) -> Commit:
    return Commit("acme", "g", topic, partition, offset, generation, expected)


def fetch(rig: Rig, *keys: Key) -> list[m.Offset | None]:
    rig.settle()
    offsets: list[m.Offset | None] = rig.read(methods.OFFSET_FETCH, methods.OFFSET_FETCH.body(list(keys))).found
    return offsets


def value(rig: Rig, partition: int = 0, topic: str = "t") -> int | None:
    (offset,) = fetch(rig, Key("acme", "g", topic, partition))
    return None if offset is None else offset.offset


def test_a_commit_is_read_back_whole(rig: Rig) -> None:
    assert commit(rig, Commit("acme", "g", "t", 2**32 - 1, 2**63 - 1, 3, None, "metadata")) == {}
    assert fetch(rig, Key("acme", "g", "t", 2**32 - 1), Key("acme", "g", "t", 0)) == [
        m.Offset("acme", "g", "t", 2**32 - 1, 2**63 - 1, 3, rig.now_ms, "metadata"),
        None,
    ]


def test_the_last_commit_wins_and_may_go_back(rig: Rig) -> None:
    assert commit(rig, item(10), item(20), item(5)) == {}
    assert value(rig) == 5


def test_an_older_generation_is_fenced_for_the_whole_group(rig: Rig) -> None:
    assert commit(rig, item(1, generation=5)) == {}
    assert commit(rig, item(2, generation=4), item(2, partition=1, generation=5)) == {0: "fenced"}
    assert commit(rig, item(9, topic="other", partition=7, generation=4)) == {0: "fenced"}
    assert (value(rig), value(rig, 1), value(rig, 7, "other")) == (1, 2, None)


def test_a_higher_generation_fences_what_follows_in_the_same_batch(rig: Rig) -> None:
    assert commit(rig, item(1, generation=4), item(2, generation=5), item(3, generation=4), item(4, generation=5)) == {
        2: "fenced"
    }
    assert value(rig) == 4


def test_a_generation_is_written_only_when_it_grows(rig: Rig) -> None:
    # It would double what a commit writes.
    for generation in (5, 5, 6):
        commit(rig, item(1, generation=generation))
    entries = rig.group.log
    assert [entry.count(b"\x21acme\0\x01g") for entry in entries] == [1, 0, 1]


def generations(rig: Rig, *names: str) -> list[int]:
    rig.settle()
    groups = [m.ConsumerGroup("acme", name) for name in names]
    found: list[int] = rig.read(methods.OFFSET_GENERATIONS, m.OffsetGenerations(groups)).generations
    return found


def reset(rig: Rig, *items: m.GenerationReset) -> dict[int, str]:
    return item_errors(rig.write(methods.OFFSET_RESET_GENERATIONS, m.OffsetResetGenerations(list(items))))


def test_generations_can_be_read_by_position(rig: Rig) -> None:
    for i in range(40):
        assert commit(rig, Commit("acme", f"g{i}", "t", 0, 1, i)) == {}
    assert generations(rig, *(f"g{i}" for i in range(45))) == [*range(40), *[0] * 5]


@pytest.mark.parametrize("to", [0, 3])
def test_a_generation_that_fences_everybody_can_be_reset(rig: Rig, to: int) -> None:
    """One commit of the highest generation there is fenced its group for ever."""
    assert commit(rig, item(1, generation=m.GENERATION_MAX)) == {}
    assert commit(rig, item(2, generation=m.GENERATION_MAX - 1)) == {0: "fenced"}
    assert reset(rig, m.GenerationReset("acme", "g", m.GENERATION_MAX, to)) == {}
    assert commit(rig, item(2, generation=to)) == {}
    if to:
        assert commit(rig, item(3, generation=to - 1)) == {0: "fenced"}
    assert generations(rig, "g") == [to]
    rows = [key for key, _ in contents(rig.group.engine) if key[3] == OFFSET.rows["generation"]]
    assert len(rows) == bool(to), "no row is left of what was reset to none"


def test_a_generation_is_reset_only_from_what_it_is(rig: Rig) -> None:
    commit(rig, item(1, generation=5), Commit("acme", "other", "t", 0, 1, 7))
    reset_to = m.GenerationReset
    assert reset(rig, reset_to("acme", "g", 4), reset_to("acme", "other", 7, 6), reset_to("acme", "none", 1)) == {
        0: "conflict",
        2: "conflict",
    }
    assert generations(rig, "g", "other", "none") == [5, 6, 0]
    assert reset(rig, reset_to("acme", "g", 5, 2), reset_to("acme", "g", 2, 9), reset_to("acme", "g", 5)) == {
        2: "conflict"
    }
    assert reset(rig, reset_to("acme", "none", 0, 3), reset_to("acme", "none", 3, 3)) == {}
    assert generations(rig, "g", "none") == [9, 3]


def test_a_generation_that_one_batch_sets_and_resets_leaves_no_write_if_there_was_none() -> None:
    rig = Rig(lag=1)
    commit(rig, item(1, generation=5))
    reset_to = m.GenerationReset
    both = [reset_to("acme", name, generation, to) for name, generation, to in (("g", 5, 0), ("none", 0, 3))]
    assert reset(rig, *both, reset_to("acme", "g", 0, 2), reset_to("acme", "g", 2), reset_to("acme", "none", 3)) == {}
    writes = rig.group.in_flight[-1][2].writes
    assert [(key[3], value) for key, value in writes.items()] == [(OFFSET.rows["generation"], None)]
    assert generations(rig, "g", "none") == [0, 0]


def test_a_generation_over_the_bound_is_refused_and_an_old_row_of_it_can_be_reset(rig: Rig) -> None:
    """Rows from before there was a bound go up to 2^63-1."""
    over = m.OffsetCommit([item(1, generation=m.GENERATION_MAX + 1)])
    assert item_errors(rig.write(methods.OFFSET_COMMIT, over)) == {0: "invalid_item"}
    group = rig.group
    row = {table_prefix(group.prefix, OFFSET.rows["generation"]) + text2("acme", "g"): encode(2**63 - 1)}
    group.engine.write(row)
    group.follower_engine.write(row)
    assert generations(rig, "g") == [2**63 - 1]
    assert commit(rig, item(1, generation=m.GENERATION_MAX)) == {0: "fenced"}
    assert reset(rig, m.GenerationReset("acme", "g", 2**63 - 1)) == {}
    assert commit(rig, item(1)) == {}


def test_generations_of_other_groups_do_not_fence(rig: Rig) -> None:
    commit(rig, item(1, generation=5))
    assert commit(rig, Commit("acme", "g2", "t", 0, 1, 1), Commit("acme2", "g", "t", 0, 1, 1)) == {}


def test_a_generation_outlives_the_offsets(rig: Rig) -> None:
    commit(rig, item(1, generation=5))
    assert item_errors(rig.write(methods.OFFSET_DELETE, m.Items([Key("acme", "g", "t", 0)]))) == {}
    assert commit(rig, item(1, generation=4)) == {0: "fenced"}


def test_compare_and_set(rig: Rig) -> None:
    assert commit(rig, item(1, expected=0)) == {0: "conflict"}
    assert commit(rig, item(1, expected=-1)) == {}
    assert commit(rig, item(2, expected=-1)) == {0: "conflict"}
    assert commit(rig, item(2, expected=-2)) == {0: "conflict"}
    assert commit(rig, item(2, expected=1), item(3, expected=2), item(4, expected=2)) == {2: "conflict"}
    assert value(rig) == 3


def test_a_failed_compare_does_not_raise_the_generation(rig: Rig) -> None:
    commit(rig, item(1, generation=1))
    assert commit(rig, item(2, generation=9, expected=7)) == {0: "conflict"}
    assert commit(rig, item(2, generation=1)) == {}


def test_monotonic_refuses_to_go_back_but_not_to_stay(rig: Rig) -> None:
    assert commit(rig, item(5), monotonic=True) == {}
    assert commit(rig, item(4), item(5), item(6), item(5), monotonic=True) == {
        0: "offset_regression",
        3: "offset_regression",
    }
    assert value(rig) == 6


def test_the_fence_is_looked_at_before_the_compare(rig: Rig) -> None:
    commit(rig, item(5, generation=2))
    assert commit(rig, item(4, generation=1, expected=9), monotonic=True) == {0: "fenced"}


def test_delete_forgets_and_says_what_was_not_there(rig: Rig) -> None:
    commit(rig, item(1), item(1, partition=1))
    keys = [Key("acme", "g", "t", 0), Key("acme", "g", "t", 2), Key("acme", "g", "t", 0)]
    assert item_errors(rig.write(methods.OFFSET_DELETE, m.Items(keys))) == {1: "not_found", 2: "not_found"}
    assert (value(rig), value(rig, 1)) == (None, 1)
    assert commit(rig, item(1, expected=-1)) == {}


def test_results_come_back_in_the_order_of_the_request(rig: Rig) -> None:
    commit(rig, *(Commit("acme", f"g{i}", "t", 0, i) for i in range(40)))
    found = fetch(rig, *(Key("acme", f"g{i}", "t", 0) for i in range(45)))
    assert [None if offset is None else offset.offset for offset in found] == [*range(40), *[None] * 5]


def test_a_key_that_is_too_long_refuses_its_item(rig: Rig) -> None:
    long = Commit("acme", "g", "x" * 4096, 0, 1), Commit("acme" * 1024, "g", "t", 0, 1)
    assert commit(rig, long[0], item(1), long[1]) == {0: "invalid_item", 2: "invalid_item"}
    assert value(rig) is not None
    rig.settle()
    groups = [m.ConsumerGroup("t", "g"), m.ConsumerGroup("t", "g" * 4096)]
    reply = rig.read(methods.OFFSET_GENERATIONS, m.OffsetGenerations(groups))
    assert (reply.generations, item_errors(reply)) == ([0, 0], {1: "invalid_item"})
    resets = [m.GenerationReset("t" * 4096, "g", 0, 5), m.GenerationReset("t", "g", 0, 5)]
    assert reset(rig, *resets) == {0: "invalid_item"}
    rig.settle()
    assert rig.read(methods.OFFSET_GENERATIONS, m.OffsetGenerations(groups[:1])).generations == [5]


TOPICS = ["", "\0", "a", "a\0", "a\0b", "ab", "b", "ü"]


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize("prefix", ["", "a", "a\0", "b", "zz"])
def test_a_listing_shows_each_offset_of_the_group_once(limit: int, prefix: str) -> None:
    rig = Rig("offset")
    items = [Commit("acme", "g", topic, partition, 1) for topic in TOPICS for partition in (0, 1, 256, 2**32 - 1)]
    noise = [Commit("acme", group, "a", 0, 1) for group in ("", "g\0", "g2", "f")] + [Commit("acm", "g", "a", 0, 1)]
    commit(rig, *noise, *items)
    found: list[tuple[str, int]] = []
    cursor = b""
    while True:
        reply = rig.read(methods.OFFSET_LIST, m.OffsetList("acme", "g", prefix, m.Page(limit, cursor)))
        assert len(reply.found) <= limit
        found += [(offset.topic, offset.partition) for offset in reply.found]
        cursor = reply.cursor
        if not cursor:
            break
    assert found == sorted(
        ((c.topic, c.partition) for c in items if c.topic.startswith(prefix)), key=lambda row: (row[0].encode(), row[1])
    )


@pytest.mark.parametrize("cursor", [b"\0", b"\xff" * 30, b"zzz\0\x01"])
def test_a_foreign_cursor_cannot_lead_out_of_the_group(cursor: bytes) -> None:
    rig = Rig("offset")
    commit(rig, *(Commit("acme", group, "a", 0, 1) for group in ("f", "g", "h")))
    reply = rig.read(methods.OFFSET_LIST, m.OffsetList("acme", "g", page=m.Page(10, cursor)))
    assert {offset.group for offset in reply.found} <= {"g"}
