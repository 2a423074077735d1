"""Once a group has fenced a broker's life, its log has no entry of that life any more, whatever the life writes."""

from __future__ import annotations

from typing import Any

import pytest
from state_rig import Group, contents

from metad.config import DedupeConfig
from metad.state.cluster.fences import Fence, Fences
from metad.state.core.part import Origin
from metad.state.core.slot_assignment import ALL_SLOTS
from metad.state.core.verb import Command
from metad.state.machine import Known
from metad.state.registry import VERBS
from metad.storage import keys
from metad_wire import messages as m
from metad_wire.cluster import SLOTS, FenceItem, GroupCommand, GroupFence, SessionLose, slot_bits
from metad_wire.errors import FencedError, MetadError
from metad_wire.families.assignment import PARTITIONS
from metad_wire.methods import (
    GROUP_COMMAND,
    GROUP_FENCE,
    KV_PUT,
    OFFSET_COMMIT,
    SESSION_DELETE,
    SESSION_DISCONNECT,
    SESSION_LOSE,
    SESSION_TAKEOVER,
    SESSION_UPDATE,
    Method,
)

NOW_MS = 1_700_000_000_000
KEY = m.SessionKey("t", "c")


def group(kind: str = "data", ordinal: int = 0, **fields: Any) -> Group:
    return Group(kind, ordinal, DedupeConfig(), **fields)


def command(method: Method[Any, Any], body: Any, life: m.Owner | None = None) -> Command[Any]:
    made = VERBS[method.code].command(body)
    made.life = life
    return made


def do(
    on: Group, method: Method[Any, Any], body: Any, life: m.Owner | None = None, *, apply: bool = True, **asked: Any
) -> Any:
    (outcome,) = on.propose([(command(method, body, life), asked.get("identity"))], NOW_MS)
    if apply:
        on.apply(len(on.in_flight))
    if isinstance(outcome, MetadError):
        raise outcome
    return outcome


def fence(on: Group, *items: tuple[str, int], apply: bool = True) -> None:
    do(on, GROUP_FENCE, GroupFence([FenceItem(broker, epoch, NOW_MS) for broker, epoch in items]), apply=apply)


def adopt(on: Group, carried: list[FenceItem]) -> None:
    """All slots come."""
    slots = slot_bits(range(SLOTS))
    do(on, GROUP_COMMAND, GroupCommand("open", 1, 1, 0, slots))
    do(on, GROUP_COMMAND, GroupCommand("adopt", 1, 1, 1, slots, revision=9, fences=carried))


def put(name: str = "n") -> m.KvPut:
    return m.KvPut([m.KvPutItem(name, "k", b"v")])


def take(broker: str, epoch: int) -> m.SessionTakeover:
    return m.SessionTakeover(broker, epoch, [m.SessionTakeoverItem("t", "c")])


def fences(on: Group) -> Fences:
    return on.machine.parts[Fences]


def test_an_entry_that_raises_fences_counts_once_however_many_brokers_it_names() -> None:
    one = group()
    fence(one, ("b1", 3), ("b2", 7))
    fence(one, ("b1", 2), ("b2", 7))  # raises none
    do(one, KV_PUT, put())
    assert fences(one).entries == 1
    fence(one, ("b1", 2), ("b2", 8))
    assert fences(one).entries == 2


# --- what a fenced life may do ---------------------------------------------------------------------------

NAMED_BY_THE_BODY = [
    (SESSION_TAKEOVER, lambda epoch: take("b1", epoch)),
    (
        SESSION_UPDATE,
        lambda epoch: m.SessionUpdate("b1", epoch, [m.SessionUpdateItem("t", "c", m.SessionProperties())]),
    ),
    (SESSION_DISCONNECT, lambda epoch: m.SessionDisconnect("b1", epoch, [m.SessionDisconnectItem("t", "c", 60)])),
    (SESSION_DELETE, lambda epoch: m.SessionDelete([m.SessionDeleteItem("t", "c")], "b1", epoch)),
]


@pytest.mark.parametrize(("method", "body"), NAMED_BY_THE_BODY, ids=[method.name for method, _ in NAMED_BY_THE_BODY])
def test_session_verbs_are_refused_by_the_life_in_their_body(method: Method[Any, Any], body: Any) -> None:
    one = group()
    do(one, SESSION_TAKEOVER, take("b1", 3))
    fence(one, ("b1", 3))
    with pytest.raises(FencedError, match="epoch 2 of broker 'b1' is over") as raised:
        do(one, method, body(2))
    assert raised.value.current == 3
    do(one, method, body(3))


def test_a_zombie_does_not_steal_a_session_from_another_broker() -> None:
    """It could: its own newer life had registered, and the session was another broker's."""
    one = group()
    do(one, SESSION_TAKEOVER, take("b1", 1))
    fence(one, ("b1", 2))
    do(one, SESSION_TAKEOVER, take("b2", 1))
    before = contents(one.engine)
    with pytest.raises(FencedError):
        do(one, SESSION_TAKEOVER, take("b1", 1))
    assert [row for row in contents(one.engine) if row[0] != before[0][0]] == before[1:], "but for the applied index"


def test_other_writes_are_refused_by_the_life_in_the_head_of_the_request() -> None:
    data, offset = group(), group("offset")
    commit = m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 0, 1)])
    for on, method, body in ((data, KV_PUT, put()), (offset, OFFSET_COMMIT, commit)):
        fence(on, ("b1", 5))
        with pytest.raises(FencedError):
            do(on, method, body, m.Owner("b1", 4))
        do(on, method, body, m.Owner("b1", 5))
        do(on, method, body, m.Owner("b2", 1))
        do(on, method, body)


def test_head_and_body_are_both_looked_at() -> None:
    one = group()
    fence(one, ("b1", 5))
    with pytest.raises(FencedError):
        do(one, SESSION_TAKEOVER, take("b2", 1), m.Owner("b1", 4))
    with pytest.raises(FencedError):
        do(one, SESSION_TAKEOVER, take("b1", 4), m.Owner("b2", 1))


def test_who_never_registers_is_never_fenced() -> None:
    one = group()
    fence(one, ("b1", 5))
    do(one, SESSION_TAKEOVER, take("b2", 1))
    assert fences(one).allows("b2", 0)
    assert fences(one).of("b2") is None


def test_a_request_is_refused_as_a_whole_and_others_of_its_entry_are_not() -> None:
    one = group()
    fence(one, ("b1", 2))
    commands: list[Any] = [(command(SESSION_TAKEOVER, take("b1", 1)), None), (command(KV_PUT, put()), None)]
    refused, done = one.propose(commands, NOW_MS)
    assert isinstance(refused, FencedError)
    assert isinstance(done, bytes)


def test_a_retry_of_what_was_done_before_the_fence_hears_that_it_was_done() -> None:
    one = group()
    identity = m.Identity(7, 1, 1)
    first = command(KV_PUT, put(), m.Owner("b1", 1))
    one.propose([(first, identity)], NOW_MS)
    one.apply(1)
    fence(one, ("b1", 2))
    (outcome,) = one.propose([(first, identity)], NOW_MS)
    assert isinstance(outcome, Known)


# --- what else a fence says ------------------------------------------------------------------------------


def tell(on: Group, *items: FenceItem, apply: bool = True) -> None:
    do(on, GROUP_FENCE, GroupFence([*items]), apply=apply)


def row(on: Group, broker: str = "b1") -> Fence:
    found = fences(on).of(broker)
    assert found is not None
    return found


def writes(on: Group) -> int:
    """Rows that the last entry wrote."""
    return sum(map(len, (on.in_flight[-1][2].writes, *on.in_flight[-1][2].heard.values())))


def test_the_greater_pair_counts_and_each_other_epoch_by_itself() -> None:
    one = group("metadata")
    tell(one, FenceItem("b1", 5, NOW_MS, live=True, unclean_epoch=2, quiet_epoch=5))
    assert fences(one).life("b1") == 5
    tell(one, FenceItem("b1", 6, NOW_MS + 7, unclean_epoch=1, quiet_epoch=4))
    assert row(one) == Fence(6, NOW_MS + 7, 0, False, 2, 5)
    assert fences(one).life("b1") is None
    assert not fences(one).quiet("b1", 5), "fenced is not quiet"
    assert fences(one).quiet("b1", 4)
    tell(one, FenceItem("b1", 3, NOW_MS + 9, live=True, unclean_epoch=3, quiet_epoch=6))
    assert row(one) == Fence(6, NOW_MS + 7, 0, False, 3, 6), "an older life that lived is not alive again"
    assert fences(one).quiet("b1", 5)
    assert [fences(one).clean("b1", epoch) for epoch in (2, 3, 6)] == [False, True, True]


def test_a_registration_may_have_the_least_epoch_of_the_death_before() -> None:
    one = group("metadata")
    tell(one, FenceItem("b1", 6, NOW_MS, quiet_epoch=6))
    tell(one, FenceItem("b1", 6, NOW_MS + 7, live=True, quiet_epoch=6), apply=False)
    assert writes(one) == 1
    assert row(one) == Fence(6, NOW_MS, 0, True, 0, 6), "the lives below are over since the death"
    assert not fences(one).applied_of_all()["b1"].live
    one.apply(1)
    assert fences(one).of_all() == fences(one).applied_of_all() == {"b1": row(one)}
    tell(one, FenceItem("b1", 6, NOW_MS + 9, quiet_epoch=6))
    assert fences(one).life("b1") == 6, "what comes late is no death"


def test_nothing_is_known_of_a_broker_without_a_fence() -> None:
    one = fences(group("metadata"))
    assert not one.clean("b1", 0)
    assert not one.quiet("b1", 0)
    assert one.life("b1") is None


def test_what_says_nothing_new_writes_nothing() -> None:
    one = group("metadata")
    items = [FenceItem("b1", 6, NOW_MS, live=True, unclean_epoch=2, quiet_epoch=5), FenceItem("b1", 4, 1)]
    tell(one, *items)
    tell(one, *items, FenceItem("b1", 6, NOW_MS + 5, unclean_epoch=1), apply=False)
    assert writes(one) == 0


def test_all_of_a_fence_is_carried_and_merged() -> None:
    source, target = group(), group(ordinal=1, initial_slots=slot_bits(()))
    tell(source, FenceItem("b1", 5, NOW_MS, live=True, quiet_epoch=3), FenceItem("b2", 9, NOW_MS, unclean_epoch=8))
    tell(target, FenceItem("b1", 4, NOW_MS, unclean_epoch=4, quiet_epoch=4), FenceItem("b2", 2, NOW_MS, live=True))
    adopt(target, fences(source).carried(NOW_MS))
    assert (row(target).values, row(target, "b2").values) == ((5, True, 4, 4), (9, False, 8, 0))
    assert target.follower.parts[Fences].of("b1") == row(target)


# --- whose partitions were gone through ------------------------------------------------------------------


def step(on: Group, items: list[FenceItem], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note that the partitions were gone through, in an entry of its own."""
    with monkeypatch.context() as patch:
        patch.setattr(Fences, "raised", Fences.stepped)
        do(on, GROUP_FENCE, GroupFence(items))


def test_a_fence_is_stepped_until_it_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    one = group("metadata")
    tell(one, FenceItem("b1", 5, NOW_MS, live=True, quiet_epoch=5), FenceItem("b2", 2, NOW_MS))
    items = fences(one).unstepped()
    assert [item.broker for item in items] == ["b1", "b2"], "a first life counts as well"
    step(one, items, monkeypatch)
    assert fences(one).unstepped() == []
    assert fences(one).applied_of("b1") == row(one) == Fence(5, NOW_MS, 0, True, 0, 5, (5, True, 0, 5))
    one.restart()
    assert fences(one).unstepped() == []
    tell(one, FenceItem("b1", 5, NOW_MS, live=True, quiet_epoch=5), FenceItem("b2", 2, NOW_MS, quiet_epoch=2))
    assert [item.values for item in fences(one).unstepped()] == [(2, False, 0, 2)]
    step(one, [items[1]], monkeypatch)
    assert len(fences(one).unstepped()) == 1, "it was gone through for what the fence said before"


def test_slots_that_come_are_gone_through_and_swept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = group(ordinal=1, initial_slots=slot_bits(()))
    tell(one, FenceItem("b1", 5, NOW_MS), FenceItem("b2", 5, NOW_MS), FenceItem("b3", 5, NOW_MS))
    step(one, fences(one).unstepped()[1:], monkeypatch)
    adopt(one, [FenceItem("b2", 5, NOW_MS, quiet_epoch=5)])
    assert len(fences(one).unstepped()) == 3
    assert row(one, "b2") == Fence(5, NOW_MS, 0, False, 0, 5)


# --- forgotten -------------------------------------------------------------------------------------------


def forget(on: Group, *items: tuple[str, int], apply: bool = True) -> list[int]:
    """The positions of those that stay."""
    body = GroupFence([], [FenceItem(broker, epoch) for broker, epoch in items])
    reply = GROUP_FENCE.decode_reply(do(on, GROUP_FENCE, body, apply=apply))
    return [error.index for error in reply.errors]


def registered(on: Group, broker: str, epoch: int) -> Any:
    commit = m.OffsetCommit([m.OffsetCommitItem("t", "g", "topic", 0, 1)])
    method, body = (KV_PUT, put()) if on.machine.name == "data-0" else (OFFSET_COMMIT, commit)
    made = command(method, body, m.Owner(broker, epoch))
    made.registered = True
    (outcome,) = on.propose([(made, None)], NOW_MS)
    on.apply(len(on.in_flight))
    return outcome


def swept(on: Group, broker: str, epoch: int) -> None:
    do(on, SESSION_LOSE, SessionLose([], [FenceItem(broker, epoch)], slots=ALL_SLOTS))


def test_a_registered_life_whose_broker_is_forgotten_is_over() -> None:
    for on in (group("offset"), group()):
        fence(on, ("b1", 5), ("b2", 2))
        assert isinstance(registered(on, "b1", 5), bytes)
        if on.machine.name == "data-0":
            swept(on, "b1", 5)
        assert forget(on, ("b1", 5)) == []
        assert fences(on).of("b1") is None is fences(on).applied_of("b1")
        assert on.follower.parts[Fences].of("b1") is None
        with pytest.raises(FencedError, match="forgotten"):
            raise registered(on, "b1", 4)
        assert fences(on).of("b2") == Fence(2, NOW_MS)
    assert forget(group(), ("unknown", 3)) == []


def test_the_last_fence_that_goes_leaves_registered_lives_over() -> None:
    one = group("offset")
    fence(one, ("b1", 5))
    forget(one, ("b1", 5))
    assert not fences(one)
    assert isinstance(registered(one, "b1", 5), FencedError)


def test_a_fence_stays_that_was_raised_since_or_has_sessions_that_look_connected() -> None:
    one = group()
    fence(one, ("b1", 5), ("b2", 2), ("b3", 7))
    swept(one, "b1", 5)
    swept(one, "b3", 7)
    fence(one, ("b3", 8))
    swept(one, "b3", 8)
    assert forget(one, ("b1", 5), ("b2", 2), ("b3", 7)) == [1, 2]
    assert fences(one).of("b1") is None
    assert fences(one).of("b2") == Fence(2, NOW_MS)
    assert fences(one).of("b3") == Fence(8, NOW_MS, 8)


def test_forgetting_counts_from_the_entry_on_and_may_be_lost() -> None:
    one = group("offset")
    fence(one, ("b1", 5))
    forget(one, ("b1", 5), apply=False)
    assert fences(one).of("b1") is None
    assert fences(one).applied_of("b1") == Fence(5, NOW_MS)
    one.machine.forget()
    assert fences(one).of("b1") == Fence(5, NOW_MS)


def test_a_fence_that_is_raised_behind_a_forgetting_in_flight_stays() -> None:
    one = group("offset")
    fence(one, ("b1", 5))
    forget(one, ("b1", 5), apply=False)
    fence(one, ("b1", 9), apply=False)
    one.apply(1)
    assert fences(one).of("b1") == Fence(9, NOW_MS)
    assert fences(one).applied_of("b1") is None
    one.apply(1)
    assert fences(one).applied_of("b1") == Fence(9, NOW_MS)


def named(broker: str) -> bytes:
    """The key of a row of the index of partitions by replica, for some resource of some tenant."""
    fields = PARTITIONS.indexes["by_replica"].header + keys.text(broker)
    return b"\x61" + fields + keys.text2("t", "r") + len(fields).to_bytes(2, "big") + b"\x02"


def test_a_fence_stays_while_a_partition_names_the_broker() -> None:
    slots = slot_bits([keys.slot_of_key(named("b1")) or 0])
    one = group("metadata", 1, initial_slots=slot_bits(()))
    fence(one, ("b", 5), ("b1", 5), ("b11", 5))
    do(one, GROUP_COMMAND, GroupCommand("open", 1, 1, 0, slots))
    do(one, GROUP_COMMAND, GroupCommand("import", 1, 1, 1, slots, {named("b1"): b""}), apply=False)
    assert forget(one, ("b1", 5), apply=False) == [0], "what is in flight names it"
    one.apply(2)
    assert forget(one, ("b", 5), ("b1", 5), ("b11", 5)) == [1]
    do(one, GROUP_COMMAND, GroupCommand("import", 1, 1, 2, slots, {named("b1"): None}), apply=False)
    assert forget(one, ("b1", 5), apply=False) == [0], "the entry may never be applied"
    one.apply(2)
    assert forget(one, ("b1", 5)) == []
    assert not fences(one)


def test_the_fence_of_a_life_that_lives_stays() -> None:
    """It may have the very epoch of the death that was to be forgotten."""
    one = group("metadata")
    tell(one, FenceItem("b1", 5, NOW_MS, live=True))
    assert forget(one, ("b1", 5)) == [0]


# --- in flight, lost, loaded -----------------------------------------------------------------------------


def test_a_fence_counts_from_the_entry_on_that_raises_it_and_no_read_sees_it_before_it_is_applied() -> None:
    one = group()
    fence(one, ("b1", 2), apply=False)
    with pytest.raises(FencedError):
        do(one, SESSION_TAKEOVER, take("b1", 1), apply=False)
    assert fences(one).of("b1") == Fence(2, NOW_MS)
    assert fences(one).applied_of("b1") is None
    assert fences(one).carried(NOW_MS) == []
    one.apply(1)
    assert fences(one).applied_of("b1") == Fence(2, NOW_MS)
    assert one.follower.parts[Fences].of("b1") == one.follower.parts[Fences].applied_of("b1") == Fence(2, NOW_MS)


def test_a_fence_that_may_never_be_applied_is_forgotten() -> None:
    one = group()
    fence(one, ("b1", 2))
    fence(one, ("b1", 3), ("b2", 9), apply=False)
    assert not fences(one).allows("b2", 8)
    one.machine.forget()
    assert fences(one).of("b1") == Fence(2, NOW_MS)
    assert fences(one).allows("b2", 8)


def test_an_entry_that_is_applied_does_not_lower_what_a_later_one_raises() -> None:
    one = group()
    fence(one, ("b1", 2), apply=False)
    fence(one, ("b1", 3), apply=False)
    one.apply(1)
    assert fences(one).of("b1") == Fence(3, NOW_MS)
    assert fences(one).applied_of("b1") == Fence(2, NOW_MS)
    one.apply(1)
    assert fences(one).of("b1") == fences(one).applied_of("b1") == Fence(3, NOW_MS)


def test_a_fence_is_only_raised() -> None:
    one = group()
    fence(one, ("b1", 5))
    fence(one, ("b1", 4), ("b1", 5))
    assert fences(one).of("b1") == Fence(5, NOW_MS)
    fence(one, ("b1", 6), ("b1", 8), ("b1", 7))
    assert fences(one).of("b1") == Fence(8, NOW_MS)


def test_a_new_life_of_the_node_knows_the_fences() -> None:
    one = group()
    many = [(f"b{number}", number + 1) for number in range(1_000)]
    fence(one, *many)
    fence(one, ("with\0zero", 7), ("b1", 9))
    fence(one, ("b2", 50), apply=False)
    one.restart()
    assert len(fences(one).carried(NOW_MS)) == 1_001
    for broker, epoch in (("b1", 9), ("b2", 50), ("with\0zero", 7), ("b999", 1_000)):
        assert fences(one).of(broker) == Fence(epoch, NOW_MS)
    assert set(one.follower.parts[Fences].carried(NOW_MS)) == set(fences(one).carried(NOW_MS))


def test_a_fence_has_an_entry_without_writes_of_clients() -> None:
    one = group()
    raised = command(GROUP_FENCE, GroupFence([FenceItem("b1", 2, NOW_MS)]))
    commands: list[Any] = [
        (command(KV_PUT, put()), None),
        (raised, None),
        (command(SESSION_TAKEOVER, take("b1", 1)), None),
    ]
    origins, outcomes = [], []
    while commands:
        taken = one.propose(commands, NOW_MS)
        origins.append(one.in_flight[-1][2].origin)
        outcomes += taken
        del commands[: len(taken)]
    assert origins == [Origin.CLIENT, Origin.CONTROLLER, Origin.CLIENT]
    assert [isinstance(outcome, FencedError) for outcome in outcomes] == [False, False, True]


# --- slot moves ------------------------------------------------------------------------------------------


def test_an_adoption_takes_over_the_higher_of_both_fences() -> None:
    source, target = group(), group(ordinal=1, initial_slots=slot_bits(()))
    fence(source, ("b1", 5), ("b2", 2))
    fence(target, ("b2", 4), ("b3", 3))
    do(source, GROUP_COMMAND, GroupCommand("seal", 1, 1, 0, slot_bits(range(SLOTS))))
    adopt(target, fences(source).carried(NOW_MS))
    assert {item.broker: item.least_epoch for item in fences(target).carried(NOW_MS)} == {"b1": 5, "b2": 4, "b3": 3}
    assert target.in_flight == target.in_flight.__class__()
    with pytest.raises(FencedError):
        do(target, SESSION_TAKEOVER, take("b1", 4))
    assert contents(target.engine) == contents(target.follower_engine)
