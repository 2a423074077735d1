"""Orders to end a tenant: what they end and what lives, how far the steps come, and what slot moves make of them."""

from __future__ import annotations

from typing import Any

import pytest
from state_rig import Group, Rig, command_of, contents
from sweep_rig import BATCH, World, do

from metad.config import DedupeConfig
from metad.node.chores.sweeps import TenantSweep
from metad.state.cluster.tenant_ends import ORDER_BYTES, ORDERS_BYTES_MAX, TenantEnds
from metad.state.core.slot_assignment import ALL_SLOTS, pack, unpack
from metad.state.core.verb import Command
from metad.state.core.view import NO_ROWS
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import InvalidRequestError, MetadError, NotLeaderError, StaleRouteError, TooLargeError
from metad_wire.tables.inflight import Inflight, InflightPut
from metad_wire.tables.retained import RetainedMatch, RetainedPut, RetainedPutItem
from metad_wire.tables.session import SESSION
from metad_wire.tables.subscription import Subscription, SubscriptionAdd
from metad_wire.tables.will import WillClaim, WillList

TenantWorld = World[TenantSweep]
NAMES = [f"c{number:02}" for number in range(25)]
WILL = m.Will("gone", b"bye", delay_s=10)


def come(
    group: Group, *names: str, broker: str = "b", clean: bool = False, restore: bool = False
) -> m.SessionTakeoverReply:
    items = [m.SessionTakeoverItem("t", name, clean, m.SessionProperties(60, b"p", WILL)) for name in names]
    reply: m.SessionTakeoverReply = do(
        group, methods.SESSION_TAKEOVER, m.SessionTakeover(broker, 1, items, restore, restore)
    )
    return reply


def go(group: Group, *names: str, broker: str = "b") -> None:
    items = [m.SessionDisconnectItem("t", name) for name in names]
    assert do(group, methods.SESSION_DISCONNECT, m.SessionDisconnect(broker, 1, items)).errors == []


def order(group: Group, *, wills: bool = True, retained: bool = False, slots: bytes = b"", tenant: str = "t") -> None:
    do(group, methods.SESSION_END_TENANT, m.SessionEndTenant(tenant, wills, retained, slots))


def read(group: Group, method: Any, body: Any) -> Any:
    rig = Rig()
    rig.group = group
    return rig.read(method, body)


def there(group: Group, tenant: str = "t") -> list[str]:
    return [one.client_id for one in read(group, methods.SESSION_LIST, m.SessionList(tenant)).found]


def endings(group: Group) -> list[m.TenantEnd]:
    found: list[m.TenantEnd] = read(group, methods.SESSION_ENDINGS, m.SessionEndings()).endings
    return found


def wills(group: Group) -> list[str]:
    return [one.client_id for one in read(group, methods.WILL_LIST, WillList("t")).found]


def rows_of_sessions(group: Group) -> list[bytes]:
    """The keys of owners, properties, filters, what is in flight, and of the counts of both."""
    prefix, rows = SESSION.key_of(("t",)), (0x10, 0x11, 0x12, 0x13, 0x17, 0x18)
    return [key for key, _ in contents(group.engine) if key[4:].startswith(prefix) and key[3] in rows]


def retain(group: Group, *topics: str) -> None:
    do(group, methods.RETAINED_PUT, RetainedPut([RetainedPutItem("t", topic, b"v") for topic in topics]))


def topics(group: Group) -> list[str]:
    return [one.topic for one in read(group, methods.RETAINED_MATCH, RetainedMatch("t", "#")).found]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> TenantWorld:
    made = World(TenantSweep, SESSION.rows["owner"], Rig().group, monkeypatch)
    come(made.group, *NAMES)
    go(made.group, *NAMES[::2])
    do(
        made.group,
        methods.SESSION_TAKEOVER,
        m.SessionTakeover("b", 1, [m.SessionTakeoverItem("s", "c"), m.SessionTakeoverItem("tt", "c")]),
    )
    return made


def test_all_sessions_of_the_tenant_end_in_batches_with_what_belongs_to_them(world: TenantWorld) -> None:
    group = world.group
    do(group, methods.SUBSCRIPTION_ADD, SubscriptionAdd("b", 1, [Subscription("t", NAMES[1], "a/#")]))
    do(group, methods.INFLIGHT_PUT, InflightPut("b", 1, [Inflight("t", NAMES[0], "1", b"v")]))
    retain(group, "a", "b")
    assert len(rows_of_sessions(group)) == 2 * len(NAMES) + 4
    order(group)
    assert len(endings(group)) == 1
    world.turns()
    assert [len(batch) for batch in world.asked] == [BATCH, BATCH, 5]
    assert there(group) == []
    assert there(group, "s") == there(group, "tt") == ["c"]
    assert wills(group) == NAMES
    assert topics(group) == ["a", "b"]
    assert endings(group) == []
    assert world.counts["ended"] == len(NAMES)
    assert rows_of_sessions(group) == []


def test_wills_are_dropped_with_those_that_are_due_already(world: TenantWorld) -> None:
    group = world.group
    come(group, NAMES[0], clean=True)
    do(group, methods.SESSION_DELETE, m.SessionDelete([m.SessionDeleteItem("t", NAMES[1])]))
    come(group, NAMES[2], clean=True)
    items = [m.SessionDisconnectItem("t", NAMES[2], expiry_interval_s=0)]
    do(group, methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, items))
    assert wills(group)
    do(group, methods.WILL_CLAIM, WillClaim("b", 1, 1_000))
    order(group, wills=False)
    come(group, "new")
    items = [m.SessionDisconnectItem("t", "new", expiry_interval_s=0)]
    do(group, methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, items))
    world.turns()
    assert there(group) == []
    assert wills(group) == ["new"]
    assert endings(group) == []


def test_retained_messages_of_before_the_order_go_if_it_says_so(world: TenantWorld) -> None:
    group = world.group
    retain(group, *[f"old/{number:02}" for number in range(30)], "kept")
    order(group, retained=True)
    retain(group, "kept", "new")
    world.turns()
    assert topics(group) == ["kept", "new"]
    assert endings(group) == []


def test_a_takeover_behind_the_order_finds_no_session_and_what_it_begins_lives(world: TenantWorld) -> None:
    group = world.group
    order(group)
    taken = come(group, NAMES[0], NAMES[1], "new", broker="b2", restore=True)
    assert taken.previous == [-1, -1, -1]
    assert taken.properties == [None, None, None]
    assert wills(group) == NAMES[:2]
    again = come(group, NAMES[0], broker="b3")
    assert again.previous == [0]
    go(group, NAMES[1], broker="b2")
    do(group, methods.SUBSCRIPTION_ADD, SubscriptionAdd("b3", 1, [Subscription("t", NAMES[0], "a/#")]))
    world.turns()
    assert there(group) == [*NAMES[:2], "new"]
    assert sorted(wills(group)) == NAMES
    order(group, wills=False)
    world.turns()
    assert there(group) == []


def test_a_takeover_drops_the_will_if_the_order_does(world: TenantWorld) -> None:
    order(world.group, wills=False)
    come(world.group, NAMES[0], NAMES[1])
    assert wills(world.group) == []
    world.turns()
    assert there(world.group) == NAMES[:2]


def test_behind_the_place_of_the_order_takeovers_are_as_ever(world: TenantWorld) -> None:
    group = world.group
    order(group)
    assert world.sweep.begin(1_000, world.done.append)
    assert there(group) == NAMES[BATCH:]
    come(group, NAMES[0])
    assert come(group, NAMES[0], broker="b2").previous == [0]
    world.turns()
    assert there(group) == [NAMES[0]]


def test_the_next_leader_goes_on_where_the_order_is(world: TenantWorld) -> None:
    group = world.group
    order(group)
    world.sweep.begin(1_000, world.done.append)
    (end,) = endings(group)
    assert (end.phase, end.sessions) == (0, BATCH)
    assert SESSION.fields_of(end.cursor, 2) == ["t", NAMES[BATCH - 1]]
    group.restart()
    for machine in (group.machine, group.follower):
        assert machine.parts[TenantEnds].carried() == [end]
    world.driver.machine = group.machine
    world.asked.clear()
    world.turns()
    assert [name for batch in world.asked for name in batch] == NAMES[BATCH:]
    assert there(group) == []


def test_a_step_from_elsewhere_does_nothing(world: TenantWorld) -> None:
    group = world.group
    order(group)
    (pending,) = group.machine.parts[TenantEnds].pending()
    item = c.SessionEndItem("t", NAMES[20])
    for row, phase, begin in ((b"x", 0, b""), (pending.row, 1, b""), (pending.row, 0, b"other")):
        body = c.SessionEndStep([item], row, phase, begin, b"", True)
        assert not do(group, methods.SESSION_END_STEP, body).done
    assert there(group) == NAMES
    assert len(endings(group)) == 1


def test_the_same_order_replaces_one_and_another_is_carried_out_behind_it(world: TenantWorld) -> None:
    group = world.group
    order(group)
    order(group)
    assert len(endings(group)) == 1
    order(group, wills=False)
    first, second = endings(group)
    assert first.publish_wills
    assert not second.publish_wills
    come(group, NAMES[0])
    assert NAMES[0] in wills(group), "the first order ended it"
    world.turns()
    assert there(group) == [NAMES[0]]
    assert endings(group) == []


def test_orders_are_bounded(world: TenantWorld) -> None:
    for number in range(ORDERS_BYTES_MAX // ORDER_BYTES):
        order(world.group, tenant=f"t{number}")
    rig = Rig()
    rig.group = world.group
    with pytest.raises(TooLargeError):
        rig.write(methods.SESSION_END_TENANT, m.SessionEndTenant("more", True))
    order(world.group, tenant="t7")
    with pytest.raises(InvalidRequestError):
        rig.write(methods.SESSION_END_TENANT, m.SessionEndTenant("t" * 5_000, True))
    with pytest.raises(InvalidRequestError):
        rig.write(methods.SESSION_END_TENANT, m.SessionEndTenant("t7", True, False, b"\xff"))


def test_who_gives_all_orders_that_it_can_leaves_others_theirs(world: TenantWorld) -> None:
    """22 KB of orders kept everybody else's out."""

    def fill(holder: str) -> int:
        for number in range(ORDERS_BYTES_MAX // ORDER_BYTES):
            body = m.SessionEndTenant(f"{holder}-{number}", True)
            command = Command(methods.SESSION_END_TENANT, body, NO_ROWS)
            command.holder = holder
            (outcome,) = world.group.propose([(command, None)], world.group.now_ms)
            world.group.apply(1)
            if isinstance(outcome, MetadError):
                assert isinstance(outcome, TooLargeError)
                return number
        raise AssertionError("all of them")

    assert fill("first") == ORDERS_BYTES_MAX // ORDER_BYTES // 2
    assert fill("second") == ORDERS_BYTES_MAX // ORDER_BYTES // 4


def test_orders_are_bounded_by_their_bytes_so_that_an_adoption_brings_them_all(world: TenantWorld) -> None:
    """Guards slot moves: an adoption that is too large for an entry was refused after the seal, each time."""
    source, rig = world.group, Rig()
    rig.group = source
    names = [f"{number:04096}" for number in range(ORDERS_BYTES_MAX // (2 * m.KEY_BYTES_MAX + 200) + 1)]
    for name in names[:-1]:
        order(source, tenant=name)
    with pytest.raises(TooLargeError):
        rig.write(methods.SESSION_END_TENANT, m.SessionEndTenant(names[-1], True))
    order(source, tenant=names[7])  # replaces one
    order(source, tenant="t")
    source.machine.parts[TenantEnds].check_carried()
    target = Group("data", 0, DedupeConfig(), initial_slots=bytes(len(ALL_SLOTS)))
    bring(source, target, 1, _half(source, NAMES))
    assert [end.tenant for end in endings(target)] == [end.tenant for end in endings(source)]


def test_orders_that_came_with_slots_count_when_one_is_made_and_when_they_move_on(
    world: TenantWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that gets slots from many has more of them than it may make."""
    source = world.group
    slots, others = _half(source, NAMES[::2]), _half(source, NAMES[1:2])
    order(source, tenant="n" * 3_000)
    target = Group("data", 0, DedupeConfig(), initial_slots=bytes(len(ALL_SLOTS)))
    bring(source, target, 1, slots)
    order(source, tenant="m" * 100)
    monkeypatch.setattr("metad.state.cluster.tenant_ends.ORDERS_BYTES_MAX", 6_300)
    monkeypatch.setattr("metad.state.cluster.tenant_ends.CARRIED_BYTES_MAX", 6_300)
    target.restart()
    rig = Rig()
    rig.group = target
    with pytest.raises(TooLargeError):
        rig.write(methods.SESSION_END_TENANT, m.SessionEndTenant("t", True))
    target.machine.parts[TenantEnds].check_carried()
    bring(source, target, 2, others)
    assert len(endings(target)) == 3
    with pytest.raises(TooLargeError):
        target.machine.parts[TenantEnds].check_carried()


def test_after_a_refusal_a_later_turn_goes_on(world: TenantWorld) -> None:
    order(world.group)
    world.refusal = NotLeaderError("")
    assert world.sweep.begin(1_000, world.done.append)
    world.refusal = TooLargeError("")
    world.sweep.begin(1_000, world.done.append)
    world.refusal = None
    world.asked.clear()
    world.turns()
    assert world.done[:2] == [None, BATCH]
    assert len(world.asked[0]) == BATCH // 2
    assert there(world.group) == []


# --- slots ---------------------------------------------------------------------------------------------------


def _half(group: Group, names: list[str]) -> bytes:
    """The slots of every other name."""
    mask = unpack(bytes(len(ALL_SLOTS)))
    _, crcs = SESSION.keys([m.SessionKey("t", name) for name in names])
    for crc in crcs:
        mask[crc & 1023] = True
    return pack(mask)


def step(group: Group, name: str, move: int, slots: bytes, **fields: Any) -> c.GroupReply:
    reply: c.GroupReply = do(group, methods.GROUP_COMMAND, c.GroupCommand(name, move, 1, slots=slots, **fields))
    return reply


def bring(source: Group, target: Group, move: int, slots: bytes) -> None:
    """Move slots."""
    step(target, "open", move, slots)
    sealed = step(source, "seal", move, slots)
    wanted = unpack(slots)
    rows: dict[bytes, bytes | None] = {}
    for key, value in contents(source.engine):
        behind = key[len(source.prefix) :]
        if key.startswith(source.prefix) and behind[0] in (0x10, 0x11, 0x15):
            begin = 10 if behind[0] == 0x15 else 1
            slot = SESSION.slot_of(behind[begin:])
            if slot is not None and wanted[slot]:
                rows[behind] = value
    step(target, "import", move, slots, batch=1, rows=rows)
    step(
        target,
        "adopt",
        move,
        slots,
        batch=2,
        revision=sealed.revisions[0].index,
        sealed_index=sealed.index,
        ends=source.machine.parts[TenantEnds].carried(),
    )
    step(source, "close", move, slots)


def test_an_order_goes_with_its_slots_and_no_step_is_taken_while_they_are_sealed(
    world: TenantWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = world.group
    target = Group("data", 0, DedupeConfig(), initial_slots=bytes(len(ALL_SLOTS)))
    order(source)
    world.sweep.begin(1_000, world.done.append)
    come(source, NAMES[24])
    slots = _half(source, NAMES[::2])
    step(source, "seal", 1, slots)
    assert not world.sweep.begin(1_000, world.done.append)
    step(source, "unseal", 1, slots)
    bring(source, target, 2, slots)
    come(target, NAMES[0], NAMES[22])
    world.turns()
    assert there(source) == []
    assert endings(source) == []
    (end,) = endings(target)
    assert end.slots == slots
    assert end.sessions == BATCH
    there_now = World(TenantSweep, SESSION.rows["owner"], target, monkeypatch)
    there_now.turns()
    assert there(target) == [NAMES[0], NAMES[22], NAMES[24]]
    assert endings(target) == []


def test_slots_that_come_back_are_no_more_those_of_the_old_order(world: TenantWorld) -> None:
    """The other group has carried it out for them, and what has come there since lives."""
    source = world.group
    target = Group("data", 0, DedupeConfig(), initial_slots=bytes(len(ALL_SLOTS)))
    order(source)
    slots = _half(source, NAMES[::2])
    bring(source, target, 1, slots)
    (pending,) = target.machine.parts[TenantEnds].pending()
    last = c.SessionEndStep(
        [c.SessionEndItem("t", name) for name in NAMES[::2]], pending.row, 0, b"", SESSION.key_of(("t", "z")), True
    )
    assert do(target, methods.SESSION_END_STEP, last).done
    come(target, NAMES[0])
    dropped = {key[len(source.prefix) :]: None for key, _ in contents(source.engine) if key[3] in (0x10, 0x11, 0x15)}
    step(source, "drop", 1, slots, rows=dropped)
    bring(target, source, 2, slots)
    world.turns()
    assert there(source) == [NAMES[0]]


def test_an_order_for_slots_that_are_elsewhere_is_refused_as_a_whole(world: TenantWorld) -> None:
    group = world.group
    slots = _half(group, NAMES[::2])
    step(group, "seal", 1, slots)
    rig = Rig()
    rig.group = group
    with pytest.raises(StaleRouteError):
        rig.write(methods.SESSION_END_TENANT, m.SessionEndTenant("t", True, False, ALL_SLOTS))
    assert group.machine.parts[TenantEnds].pending() == []
    order(group)
    (pending,) = group.machine.parts[TenantEnds].pending()
    assert pending.end.slots == pack(~unpack(slots))


@pytest.mark.parametrize("first", ["order", "others"])
def test_what_shares_the_entry_of_the_order_stays(world: TenantWorld, first: str) -> None:
    """Whoever wrote it did not wait for the order's answer, and it may have come behind it: what is told apart by the
    revision is of before, or it stays."""
    group = world.group
    retain(group, "old")
    ordered = command_of(methods.SESSION_END_TENANT, m.SessionEndTenant("t", False, True, b""))
    put = command_of(methods.RETAINED_PUT, RetainedPut([RetainedPutItem("t", "shares", b"v")]))
    come_now = command_of(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", "new")]))
    commands = [ordered, put, come_now] if first == "order" else [put, come_now, ordered]
    outcomes = group.propose([(command, None) for command in commands], group.now_ms)
    assert len(outcomes) == 3, "they share an entry"
    group.apply(1)
    world.turns()
    assert topics(group) == ["shares"]
    assert there(group) == (["new"] if first == "order" else [])
    assert endings(group) == []


def test_a_will_that_is_due_by_the_order_s_own_entry_stays(world: TenantWorld) -> None:
    group = world.group
    again = m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", NAMES[0], clean_start=True)])
    others = command_of(methods.SESSION_TAKEOVER, again)
    ordered = command_of(methods.SESSION_END_TENANT, m.SessionEndTenant("t", False, False, b""))
    assert len(group.propose([(others, None), (ordered, None)], group.now_ms)) == 2
    group.apply(1)
    world.turns()
    assert wills(group) == [NAMES[0]]
    assert there(group) == []


def test_nothing_is_read_while_a_snapshot_is_installed(world: TenantWorld) -> None:
    order(world.group)
    world.driver.installing = True
    begins = len(world.begins)
    assert world.turns() == 0
    assert (len(world.begins), world.asked) == (begins, [])


def test_no_step_is_taken_while_slots_are_sealed(world: TenantWorld) -> None:
    """What an adoption carries is as far as the source has ever come."""
    group = world.group
    order(group)
    (pending,) = group.machine.parts[TenantEnds].pending()
    do(group, methods.GROUP_COMMAND, c.GroupCommand("seal", 1, 1, slots=c.slot_bits([5])))
    items = [c.SessionEndItem("t", name) for name in NAMES[:3]]
    step = c.SessionEndStep(items, pending.row, 0, b"", SESSION.key_of(("t", NAMES[2])), False)
    assert not do(group, methods.SESSION_END_STEP, step).done
    assert endings(group)[0].cursor == b""
    do(group, methods.GROUP_COMMAND, c.GroupCommand("unseal", 1, 1, slots=c.slot_bits([5])))
    assert do(group, methods.SESSION_END_STEP, step).done
    assert endings(group)[0].cursor == step.cursor


def test_an_order_that_a_later_entry_has_changed_stays_as_that_says(world: TenantWorld) -> None:
    """Entries in flight are applied one by one: the first does not undo what the second says."""
    group = world.group
    do(group, methods.SESSION_END_TENANT, m.SessionEndTenant("t", True, False, b""), applied=False)
    ends = group.machine.parts[TenantEnds]
    (row,) = ends._newest
    step = c.SessionEndStep([], row, 0, b"", SESSION.key_of(("t", NAMES[2])), False)
    do(group, methods.SESSION_END_STEP, step, applied=False)
    group.apply(1)
    newest = ends.newest(row)
    assert newest is not None
    assert newest.end.cursor == step.cursor
    group.apply(1)
    assert ends._applied[row].end == newest.end


def test_a_session_at_the_place_of_the_order_was_looked_at_and_what_comes_later_is_not_over(world: TenantWorld) -> None:
    """Behind the phase of sessions, and up to the place to which it has come, no step comes any more."""
    group = world.group
    order(group, wills=False, retained=True)
    ends = group.machine.parts[TenantEnds]
    (pending,) = ends.pending()
    at = SESSION.key_of(("t", NAMES[2]))

    def over(name: str) -> bool:
        rows = command_of(methods.SESSION_GET, methods.SESSION_GET.body([m.SessionKey("t", name)])).rows
        return bool(ends.over(rows))

    assert over(NAMES[2])
    do(group, methods.SESSION_END_STEP, c.SessionEndStep([], pending.row, 0, b"", at, False))
    assert [over(name) for name in NAMES[1:4]] == [False, False, True]
    do(group, methods.SESSION_END_STEP, c.SessionEndStep([], pending.row, 0, at, b"", True))
    assert endings(group)[0].phase == 1
    assert not over(NAMES[3])
