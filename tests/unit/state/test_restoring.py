"""A backup is put into a group in steps, each of which may come twice, late, or not at all. Until the end nobody is
served, and nothing is lost that was there before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_rig import Group, contents

from metad.config import DedupeConfig
from metad.state.core.slot_assignment import RESTORES, HeldSlots, unpack
from metad.state.core.verb import Command
from metad.state.machine import Known
from metad.state.moving.restoring import KEPT_ROWS
from metad.state.registry import VERBS
from metad.storage import keys
from metad_wire import messages as m
from metad_wire.cluster import FenceItem, GroupCommand, slot_bits, slots_count
from metad_wire.errors import ConflictError, FencedError, MetadError, StaleRouteError
from metad_wire.methods import (
    GROUP_COMMAND,
    GROUP_FENCE,
    GROUP_RESTORE,
    KV_GET,
    KV_PUT,
    ROLE_LIST,
    ROLE_PUT,
    SESSION_GET,
    SESSION_TAKEOVER,
    Method,
    encode,
)
from metad_wire.operator.backup import Restore, Restored
from metad_wire.table import ROWS
from metad_wire.tables.access import Grant, Role, RoleList
from metad_wire.tables.broker import BROKER, FENCED, GONE, Broker

NOW_MS = 1_700_000_000_000


def made(kind: str = "data", ordinal: int = 0, **fields: Any) -> Group:
    return Group(kind, ordinal, DedupeConfig(), **fields)


def do(group: Group, method: Method[Any, Any], body: Any, now_ms: int = NOW_MS) -> Any:
    """Raises MetadError."""
    command = Command(method, body, VERBS[method.code].rows(body))
    (outcome,) = group.propose([(command, None)], now_ms)
    group.apply(len(group.in_flight))
    assert not isinstance(outcome, Known)
    if isinstance(outcome, MetadError):
        raise outcome
    return method.decode_reply(outcome)


def read(group: Group, method: Method[Any, Any], body: Any) -> Any:
    verb = VERBS[method.code]
    rows = verb.rows(body)
    group.machine.slots.check(rows)
    assert verb.read is not None
    return method.decode_reply(encode(verb.read(group.machine.reader, Command(method, body, rows))))


def step(group: Group, step: str, attempt: int = 1, backup: str = "b1", **fields: Any) -> Restored:
    found: Restored = do(group, GROUP_RESTORE, Restore(step, backup, attempt, **fields))
    return found


def rows_of(group: Group) -> dict[bytes, bytes]:
    """What a restore brings of a group."""
    found = {key[3:]: value for key, value in contents(group.engine) if key.startswith(group.prefix)}
    return {key: value for key, value in found.items() if keys.slot_of_key(key) is not None or key[0] in KEPT_ROWS}


def put(group: Group, count: int = 5) -> None:
    do(group, KV_PUT, KV_PUT.body([m.KvPutItem(f"n{i}", "k", b"v") for i in range(count)]))


def get(group: Group, count: int = 5) -> list[bytes | None]:
    reply = read(group, KV_GET, KV_GET.body([m.KvKey(f"n{i}", "k") for i in range(count)]))
    return [None if one is None else one.value for one in reply.found]


def restored(source: Group, target: Group, **end: Any) -> None:
    step(target, "begin")
    step(target, "rows", batch=1, rows=rows_of(source))
    step(target, "end", batch=2, **end)


def test_a_group_serves_nothing_before_the_end_and_all_of_it_behind_that() -> None:
    source, target = made(), made()
    put(source)
    assert not step(target, "check").done
    began = step(target, "begin")
    assert slots_count(began.slots) == 1024
    for group_reads in (lambda: get(target), lambda: put(target)):
        with pytest.raises(StaleRouteError, match="a backup is being put into the cluster"):
            group_reads()
    step(target, "rows", batch=1, rows=rows_of(source))
    with pytest.raises(StaleRouteError):
        get(target)
    assert step(target, "end", batch=2).done
    assert get(target) == [b"v"] * 5
    assert rows_of(target) == rows_of(source)
    assert contents(target.engine) == contents(target.follower_engine)


def test_a_group_with_records_is_left_alone() -> None:
    target = made()
    put(target, 1)
    for name in ("check", "begin"):
        with pytest.raises(ConflictError, match="records of table kv"):
            step(target, name)
    assert get(target, 1) == [b"v"]


def test_a_record_that_is_not_applied_yet_counts() -> None:
    target = made()
    body = KV_PUT.body([m.KvPutItem("n0", "k", b"v")])
    target.propose([(Command(KV_PUT, body, VERBS[KV_PUT.code].rows(body)), None)], NOW_MS)
    with pytest.raises(ConflictError, match="records of table kv"):
        step(target, "begin")


def test_a_new_attempt_drops_what_an_earlier_one_has_left_and_voids_it() -> None:
    source, target = made(), made()
    put(source, 700)
    step(target, "begin", 5)
    rows = rows_of(source)
    step(target, "rows", 5, batch=1, rows=rows)
    dropped = [step(target, "begin", 6).dropped for _ in range(3)]
    assert sum(dropped) == 700
    assert dropped[-1] == 0
    assert rows_of(target) == {}
    with pytest.raises(ConflictError, match="a later restore has taken its place"):
        step(target, "rows", 5, batch=2, rows=rows)
    with pytest.raises(ConflictError, match="a later restore has taken its place"):
        step(target, "begin", 5)
    with pytest.raises(ConflictError, match="a later restore has taken its place"):
        step(target, "end", 5, batch=2)
    step(target, "rows", 6, batch=1, rows=rows)
    step(target, "end", 6, batch=2)
    assert rows_of(target) == rows


def test_a_batch_that_comes_twice_counts_once_and_one_that_is_missing_is_missed() -> None:
    source, target = made(), made()
    put(source)
    step(target, "begin")
    one, *others = rows_of(source).items()
    with pytest.raises(ConflictError, match="batch 2 follows 0"):
        step(target, "rows", batch=2, rows=dict(others))
    step(target, "rows", batch=1, rows=dict([one]))
    step(target, "rows", batch=1, rows={one[0]: b"another"})
    assert rows_of(target) == dict([one])
    with pytest.raises(ConflictError, match="batch 3 follows 1"):
        step(target, "end", batch=3)
    with pytest.raises(ConflictError, match="was rows"):
        step(target, "end", batch=1)


def test_rows_of_other_slots_or_of_the_group_itself_are_refused() -> None:
    source, target = made(), made(initial_slots=slot_bits(range(512)))
    put(source, 50)
    step(target, "begin")
    with pytest.raises(ConflictError, match="which data-0 has not"):
        step(target, "rows", batch=1, rows=rows_of(source))
    own = keys.applied(b"abc")[3:]
    for key in (own, b"", b"\x0a line", b"\x10garbage", b"\xee"):
        with pytest.raises(ConflictError, match=r"is of no table|is no key"):
            step(target, "rows", batch=1, rows={key: b"v"})


def test_once_it_is_done_every_step_says_so_and_does_nothing() -> None:
    source, target = made(), made()
    put(source)
    restored(source, target)
    do(target, KV_PUT, KV_PUT.body([m.KvPutItem("n0", "k", b"new")]))
    before = rows_of(target)
    for name in ("check", "begin", "rows", "end", "cancel"):
        assert step(target, name, 9, batch=1, rows={b"x": b"y"}).done
    assert rows_of(target) == before
    with pytest.raises(ConflictError, match="was restored from backup b1"):
        step(target, "begin", backup="b2")


def test_one_that_is_given_up_leaves_an_empty_group_that_serves() -> None:
    source, target = made(), made()
    put(source, 10)
    step(target, "begin")
    step(target, "rows", batch=1, rows=rows_of(source))
    with pytest.raises(ConflictError, match="is being restored from backup b1"):
        step(target, "cancel", backup="b2")
    while step(target, "cancel").dropped:
        pass
    assert rows_of(target) == {}
    assert get(target) == [None] * 5
    put(target, 1)
    step(target, "cancel")
    assert get(target, 1) == [b"v"]


def test_no_slots_move_into_or_out_of_a_group_meanwhile() -> None:
    target = made(initial_slots=slot_bits(range(512)))
    step(target, "begin")
    for name, slots in (("open", range(512, 600)), ("seal", range(100))):
        with pytest.raises(ConflictError, match="sealed"):
            do(target, GROUP_COMMAND, GroupCommand(name, 10_000, 1, slots=slot_bits(slots)))
    moving = made(initial_slots=slot_bits(range(512)))
    do(moving, GROUP_COMMAND, GroupCommand("seal", 10_000, 1, slots=slot_bits(range(100))))
    with pytest.raises(ConflictError, match="are moving"):
        step(moving, "begin")


def test_a_later_move_may_take_the_slots_away() -> None:
    """The number that seals a group meanwhile is above those of all moves, and leaves no trace."""
    source, target = made(), made()
    put(source)
    restored(source, target)
    holding = target.machine.holding
    assert (holding.sealed, holding.sealed_move) == (b"", 0)
    assert max(target.machine.parts[HeldSlots].brought) < RESTORES
    do(target, GROUP_COMMAND, GroupCommand("seal", 10_000, 1, slots=slot_bits(range(100))))
    assert unpack(target.machine.holding.slots).sum() == 1024 - 100


def test_revisions_go_on_above_those_of_the_backup() -> None:
    source, target = made(), made()
    put(source)
    restored(source, target, revision=5_000)
    do(target, KV_PUT, KV_PUT.body([m.KvPutItem("n0", "k", b"new")]))
    (found,) = read(target, KV_GET, KV_GET.body([m.KvKey("n0", "k")])).found
    assert found.mod_revision > 5_000
    assert found.create_revision < 10


def test_all_lives_of_brokers_are_over() -> None:
    source, target = made(), made()
    do(source, SESSION_TAKEOVER, SESSION_TAKEOVER.body("b1", 7, [m.SessionTakeoverItem("t", "c")]))
    restored(source, target, fences=[FenceItem("b1", 8, 0, 0)])
    (session,) = read(target, SESSION_GET, SESSION_GET.body([m.SessionKey("t", "c")])).found
    assert not session.connected
    with pytest.raises(FencedError):
        do(target, SESSION_TAKEOVER, SESSION_TAKEOVER.body("b1", 7, [m.SessionTakeoverItem("t", "d")]))
    do(target, SESSION_TAKEOVER, SESSION_TAKEOVER.body("b1", 8, [m.SessionTakeoverItem("t", "d")]))


def test_a_fence_that_came_meanwhile_is_not_lowered() -> None:
    source, target = made(), made()
    put(source, 1)
    step(target, "begin")
    do(target, GROUP_FENCE, GROUP_FENCE.body([FenceItem("b1", 20)]))
    step(target, "rows", batch=1, rows=rows_of(source))
    step(target, "end", batch=2, fences=[FenceItem("b1", 8, 0, 0)])
    with pytest.raises(FencedError):
        do(target, SESSION_TAKEOVER, SESSION_TAKEOVER.body("b1", 19, [m.SessionTakeoverItem("t", "d")]))


def test_metadata_0_gets_what_is_in_no_slot_and_its_brokers_have_ended() -> None:
    source, target = made("metadata"), made("metadata")
    do(source, ROLE_PUT, ROLE_PUT.body([Role("r", [Grant(["read"])])]))
    names = {"alive": "active", "gone": GONE}
    brokers = {
        BROKER.rows["record"].to_bytes() + keys.text(name): encode(Broker(name, 7, state, 10_000, least_epoch=7))
        for name, state in names.items()
    }
    step(target, "begin")
    step(target, "rows", batch=1, rows=rows_of(source) | brokers)
    assert step(target, "end", batch=2).done
    assert [role.role for role in read(target, ROLE_LIST, RoleList()).found] == ["r"]
    found = {key: value for key, value in rows_of(target).items() if key[0] == BROKER.rows["record"]}
    records = [msgspec.msgpack.decode(value, type=Broker) for _, value in sorted(found.items())]
    assert [(one.broker, one.state, one.least_epoch, one.fenced, one.told) for one in records] == [
        ("alive", FENCED, 8, False, False),
        ("gone", GONE, 7, False, False),
    ]


def test_every_row_of_the_state_is_brought_or_is_named_here() -> None:
    """A table that is declared later is not forgotten."""
    left = {ROWS[row].name for row in ROWS if not ROWS[row].moves and row not in KEPT_ROWS}
    assert left == {"group", "cluster", "audit", "feature"}


def test_what_restarts_meanwhile_knows_how_far_it_is() -> None:
    source, target = made(), made()
    put(source)
    step(target, "begin")
    again = target._machine(target.engine)
    assert again.holding.sealed_move == RESTORES
    restore = again.parts[HeldSlots].restore
    assert restore is not None
    assert (restore.backup, restore.done_at) == ("b1", 0)
    step(target, "rows", batch=1, rows=rows_of(source))
    step(target, "end", batch=2)
    again = target._machine(target.engine)
    assert again.parts[HeldSlots].restored_at == target.last
    assert again.slots.holds_all
