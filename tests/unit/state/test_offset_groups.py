"""The listing of consumer groups: each once, in order, in pages of bounded work, whatever their offsets are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import Rig

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, slot_bits
from metad_wire.errors import StaleRouteError
from metad_wire.tables.offset import KnownGroup, OffsetGroups

NAMES = st.text(st.sampled_from("ab\0é/"), min_size=1, max_size=3)


def commit(rig: Rig, *items: m.OffsetCommitItem) -> None:
    assert rig.write(methods.OFFSET_COMMIT, m.OffsetCommit(list(items))).errors == []


def page(
    rig: Rig, prefix: str = "", limit: int = 1_000, cursor: bytes = b"", **more: object
) -> m.ListReply[KnownGroup]:
    body = OffsetGroups("t", prefix, page=m.Page(limit, cursor), **more)  # type: ignore[arg-type]
    reply: m.ListReply[KnownGroup] = rig.read(methods.OFFSET_GROUPS, body)
    return reply


def found(rig: Rig, prefix: str = "", limit: int = 1_000) -> list[KnownGroup]:
    """All groups, page by page."""
    rig.settle()
    groups: list[KnownGroup] = []
    cursor = b""
    while True:
        reply = page(rig, prefix, limit, cursor)
        assert len(reply.found) <= limit
        assert reply.cursor > cursor or not reply.cursor
        groups += reply.found
        cursor = reply.cursor
        if not cursor:
            return groups


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, st.tuples(st.integers(0, 3), st.integers(0, 2))), st.integers(1, 4), NAMES)
def test_groups_are_listed_once_in_order(groups: dict[str, tuple[int, int]], limit: int, prefix: str) -> None:
    """With offsets, with a generation alone, with both; and not those of other tenants."""
    rig = Rig("offset")
    expected: dict[str, int] = {}
    for name, (offsets, generation) in groups.items():
        items = [m.OffsetCommitItem("t", name, "topic", at, 5, generation) for at in range(offsets)]
        others = [m.OffsetCommitItem(tenant, name, "topic", 0, 5, 9) for tenant in ("s", "t\0", "t!")]
        commit(rig, *items, *others)
        if not offsets and generation:
            rig.write(methods.OFFSET_RESET_GENERATIONS, m.OffsetResetGenerations([m.GenerationReset("t", name, 0, 2)]))
            expected[name] = 2
        elif offsets:
            expected[name] = generation
    assert found(rig, "", limit) == [KnownGroup("t", name, expected[name]) for name in sorted(expected)]
    assert [one.group for one in found(rig, prefix, limit)] == [
        name for name in sorted(expected) if name.startswith(prefix)
    ]
    for name in expected:
        wanted = [other for other in sorted(expected) if other > name]
        assert [one.group for one in page(rig, after=name).found] == wanted


def test_a_group_of_many_offsets_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("offset")
    for group in range(200):
        commit(rig, *(m.OffsetCommitItem("t", f"g{group:03}", "topic", at, 1, 1) for at in range(20)))
    rig.settle()
    engine, looks = rig.group.engine, []

    class Counting:
        def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
            looks.append(limit)
            return engine.scan(begin, end, limit)

        get_many = staticmethod(engine.get_many)

    monkeypatch.setattr(rig.group.machine.reader, "engine", Counting())
    first = page(rig)
    assert 50 < len(first.found) < 70
    assert first.cursor
    assert looks == [1] * len(looks)
    assert len(looks) <= 130
    assert [one.group for one in found(rig)] == [f"g{group:03}" for group in range(200)]


def test_slots_that_are_not_held_are_refused_or_left_out() -> None:
    rig = Rig("offset")
    commit(rig, *(m.OffsetCommitItem("t", f"g{group}", "topic", 0, 1) for group in range(60)))
    rig.settle()
    rig.group.initial_slots = slot_bits(range(500))
    rig.group.machine = rig.group._machine(rig.group.engine)
    held = page(rig).found
    assert 10 < len(held) < 50
    assert page(rig, slots=slot_bits(range(500))).found == held
    with pytest.raises(StaleRouteError):
        page(rig, slots=slot_bits(range(SLOTS)))


@pytest.mark.parametrize("cursor", [b"\0", b"\xff" * 9, b"t\0\x01", b"t\0\x02", b"a", b"t\0\x01g\0\x02"])
def test_a_cursor_of_nobody_leads_to_nobody_elses_groups(cursor: bytes) -> None:
    rig = Rig("offset")
    commit(rig, *(m.OffsetCommitItem(tenant, "g", "topic", 0, 1) for tenant in ("s", "t", "u")))
    rig.settle()
    assert {one.tenant for one in page(rig, cursor=cursor).found} <= {"t"}
