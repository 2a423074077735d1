"""Slots move between groups in steps, each of which may come twice, late, from who is out of date, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import Group, contents
from wire_strategies import values_of

from metad.config import Config, DedupeConfig, StorageConfig
from metad.state.core.entry import decode_entry
from metad.state.core.part import NodeMemory, PartContext
from metad.state.core.slot_assignment import ALL_SLOTS, HeldSlots, moves_key, pack, unpack
from metad.state.core.verb import Command, Verb
from metad.state.core.view import MISSING, HeadCache, RowCache
from metad.state.machine import Known, Machine
from metad.state.registry import VERBS
from metad.storage import keys
from metad.storage.memory import MemoryEngine
from metad_wire import messages as m
from metad_wire.cluster import (
    METADATA,
    SLOTS,
    ClusterMap,
    GroupCommand,
    GroupRecord,
    GroupReply,
    StoreMap,
    slot_bits,
    slots_count,
    slots_in,
)
from metad_wire.errors import ConflictError, IdentityExpiredError, MetadError, StaleRouteError
from metad_wire.method import METHODS, METHODS_BY_NAME, By, Lane
from metad_wire.methods import (
    BETWEEN_NODES,
    CLUSTER_STORE,
    GROUP_COMMAND,
    KV_DELETE,
    KV_GET,
    KV_PUT,
    KV_SCAN,
    KV_TRANSACT,
    SESSION_DISCONNECT,
    SESSION_GET,
    SESSION_LIST,
    SESSION_TAKEOVER,
    Method,
    encode,
)
from metad_wire.tables.session import SESSION
from metad_wire.watch import MarkerStep, SlotMarker
from sim.naming import kind_of

ALL = range(SLOTS)
NOW_MS = 1_700_000_000_000
NAMES = st.sampled_from(["", "a", "b", "c"])
MOVING = range(0, SLOTS, 2)  # half of them


def names(moving: bool, count: int = 3) -> list[str]:
    """Namespaces whose slots move, or do not."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        name = f"n{number}"
        if (slot_of(name) in MOVING) == moving:
            found.append(name)
        number += 1
    return found


def slot_of(namespace: str) -> int:
    rows = VERBS[KV_GET.code].rows(KV_GET.body([m.KvKey(namespace, "k")]))
    return int(rows.crcs[0]) % SLOTS


class Pair:
    """A source that holds every slot, and a target that holds none."""

    def __init__(self) -> None:
        self.source = Group("data", 0, DedupeConfig())
        self.target = Group("data", 1, DedupeConfig(), initial_slots=slot_bits(()))
        self.batch = 0

    def step(self, group: Group, step: str, **fields: Any) -> int:
        """The group's revision then. Raises MetadError."""
        (revision,) = self.ask(group, step, **fields).revisions
        return int(revision.index)

    def ask(self, group: Group, step: str, *, move: int = 1, attempt: int = 1, **fields: Any) -> GroupReply:
        """Raises MetadError."""
        fields.setdefault("slots", slot_bits(MOVING))
        body = GroupCommand(step, move, attempt, **fields)
        reply: GroupReply = do(group, GROUP_COMMAND, body)
        return reply

    def rows(self, group: Group, slots: Iterable[int] = MOVING) -> dict[bytes, bytes]:
        """A group's rows in some slots, as they are imported."""
        wanted = set(slots)
        found = {}
        for key, value in contents(group.engine):
            if key.startswith(group.prefix) and keys.slot_of_key(key[3:]) in wanted:
                found[key[3:]] = value
        return found

    def move(self, move: int = 1, *, back: bool = False) -> None:
        """All of a move that nothing disturbs."""
        source, target = (self.target, self.source) if back else (self.source, self.target)
        self.step(target, "open", move=move)
        self.step(target, "drop", move=move, rows=self.rows(target))  # what an earlier move has left
        self.step(target, "import", move=move, batch=1, rows=self.rows(source))
        sealed = self.step(source, "seal", move=move)
        self.step(target, "adopt", move=move, batch=2, revision=sealed)
        self.step(source, "close", move=move)


def do(group: Group, method: Method[Any, Any], body: Any, identity: m.Identity | None = None, lag: int = 0) -> Any:
    """The reply to one command, in an entry of its own. Raises MetadError."""
    verb = VERBS[method.code]
    rows = verb.rows(body)
    command = Command(method, body, rows)
    (outcome,) = group.propose([(command, identity)], NOW_MS)
    group.apply(len(group.in_flight) - lag)
    if isinstance(outcome, Known):
        assert identity is not None
        return method.decode_reply(group.machine.recall(outcome.index, command, identity))
    if isinstance(outcome, MetadError):
        raise outcome
    return method.decode_reply(outcome)


def read(group: Group, method: Method[Any, Any], body: Any) -> Any:
    """As the node reads. Raises MetadError."""
    verb = VERBS[method.code]
    rows = verb.rows(body)
    group.machine.slots.check(rows)
    assert verb.read is not None
    return method.decode_reply(encode(verb.read(group.machine.reader, Command(method, body, rows))))


def put(group: Group, namespace: str, value: bytes = b"v", identity: m.Identity | None = None, lag: int = 0) -> Any:
    return do(group, KV_PUT, m.KvPut([m.KvPutItem(namespace, "k", value)]), identity, lag)


def held(group: Group) -> set[int]:
    """By leader and follower alike."""
    slots = unpack(group.machine.holding.slots)
    if not group.in_flight:
        assert group.machine.holding == group.follower.holding
    return {slot for slot in ALL if slots[slot]}


# --- a move ----------------------------------------------------------------------------------------------


def test_a_slot_is_held_by_one_group_or_none_at_every_step_and_rows_arrive_once() -> None:
    pair = Pair()
    moving, staying = names(True), names(False)
    for name in (*moving, *staying):
        put(pair.source, name, name.encode())
    whole = set(ALL)
    pair.step(pair.target, "open")
    pair.step(pair.target, "import", batch=1, rows=pair.rows(pair.source))
    assert (held(pair.source), held(pair.target)) == (whole, set())
    with pytest.raises(StaleRouteError):
        read(pair.target, KV_GET, KV_GET.body([m.KvKey(moving[0], "k")]))
    pair.step(pair.source, "seal")
    assert (held(pair.source), held(pair.target)) == (whole - set(MOVING), set())
    pair.step(pair.target, "adopt", batch=2)
    assert (held(pair.source), held(pair.target)) == (whole - set(MOVING), set(MOVING))
    pair.step(pair.source, "close")
    assert pair.source.machine.holding.sealed_move == 0
    for name in moving:
        (record,) = read(pair.target, KV_GET, KV_GET.body([m.KvKey(name, "k")])).found
        assert (record.value, record.version) == (name.encode(), 1)
        put(pair.target, name)
        for refused in (lambda name=name: put(pair.source, name), lambda name=name: scan(pair.source, name)):
            with pytest.raises(StaleRouteError):
                refused()
    for name in staying:
        put(pair.source, name)
        with pytest.raises(StaleRouteError):
            put(pair.target, name)
    for group in (pair.source, pair.target):
        assert contents(group.engine) == contents(group.follower_engine)


def scan(group: Group, namespace: str) -> Any:
    return read(group, KV_SCAN, m.KvScan(namespace))


def test_versions_go_on_where_slots_come_back_to() -> None:
    """What a group remembers of rows it once had is worth nothing after they were written elsewhere."""
    pair = Pair()
    name = names(True)[0]
    assert put(pair.source, name).versions == [1]
    pair.move()
    for version in (2, 3):
        assert put(pair.target, name).versions == [version]
    pair.move(2, back=True)
    assert put(pair.source, name).versions == [4]


def test_a_batch_with_one_item_elsewhere_is_refused_whole() -> None:
    pair = Pair()
    pair.move()
    stays, goes = names(False)[0], names(True)[0]
    both = m.KvPut([m.KvPutItem(stays, "k", b"v"), m.KvPutItem(goes, "k", b"v")])
    with pytest.raises(StaleRouteError):
        do(pair.source, KV_PUT, both)
    assert read(pair.source, KV_GET, KV_GET.body([m.KvKey(stays, "k")])).found == [None]


def test_sealed_slots_are_refused_from_the_entry_on_that_seals_them_not_only_once_it_is_applied() -> None:
    pair = Pair()
    (name,) = names(True, 1)
    verb = VERBS[GROUP_COMMAND.code]
    seal = GroupCommand("seal", 1, 1, slots=slot_bits(MOVING))
    rows = verb.rows(seal)
    pair.source.propose([(Command(GROUP_COMMAND, seal, rows), None)], NOW_MS)
    with pytest.raises(StaleRouteError):
        put(pair.source, name, lag=9)
    with pytest.raises(StaleRouteError):
        scan(pair.source, name)


def test_an_entry_that_is_applied_does_not_undo_what_a_later_one_says() -> None:
    pair = Pair()
    (name,) = names(True, 1)
    for step, move in (("seal", 1), ("unseal", 1), ("seal", 2)):
        body = GroupCommand(step, move, 1, slots=slot_bits(MOVING))
        rows = VERBS[GROUP_COMMAND.code].rows(body)
        pair.source.propose([(Command(GROUP_COMMAND, body, rows), None)], NOW_MS)
    for _ in range(3):
        pair.source.apply(1)
        with pytest.raises(StaleRouteError):
            scan(pair.source, name)
    assert held(pair.source) == set(ALL) - set(MOVING)


# --- revisions -------------------------------------------------------------------------------------------


def record_of(group: Group, namespace: str) -> m.Kv:
    (record,) = read(group, KV_GET, KV_GET.body([m.KvKey(namespace, "k")])).found
    assert isinstance(record, m.Kv)
    return record


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 9)),
            st.tuples(st.sampled_from(["move", "unseal", "restart", "delete"]), st.just(0)),
        ),
        max_size=25,
    )
)
def test_revisions_of_a_key_and_of_a_group_only_grow_whatever_moves(steps: list[tuple[str, int]]) -> None:
    """A moved key must not look older than it was, however short the log of the group that it comes to."""
    pair = Pair()
    (name,), (stays,) = names(True, 1), names(False, 1)
    keys_seen, groups_seen, version = {name: 0, stays: 0}, {"data-0": 0, "data-1": 0}, 0
    here = pair.source
    move = 1

    def wrote(group: Group, key: str, reply: Any) -> None:
        (revision,) = reply.revisions
        assert revision.index > groups_seen[group.name]
        assert revision.index > keys_seen[key]
        groups_seen[group.name] = keys_seen[key] = revision.index

    for what, times in steps:
        if what == "put":
            for _ in range(times):
                reply = put(here, name)
                version += 1
                assert reply.versions == [version]
                wrote(here, name, reply)
                assert record_of(here, name).mod_revision == keys_seen[name]
                wrote(pair.source, stays, put(pair.source, stays))
        elif what == "delete" and version:
            wrote(here, name, do(here, KV_DELETE, m.KvDelete([m.KvDeleteItem(name, "k")])))
            version = 0
        elif what == "move":
            pair.move(move, back=here is pair.target)
            move += 1
            here = pair.target if here is pair.source else pair.source
            if version:
                assert record_of(here, name).mod_revision == keys_seen[name], "a move is no write"
        elif what == "unseal":
            pair.step(here, "seal", move=move)
            pair.step(here, "unseal", move=move)
        else:
            bases = [group.machine.holding.base for group in (pair.source, pair.target)]
            for group in (pair.source, pair.target):
                group.restart()
            assert bases == [group.machine.holding.base for group in (pair.source, pair.target)]
    for group in (pair.source, pair.target):
        assert group.machine.holding == group.follower.holding


def together(group: Group, *bodies: Any) -> list[int]:
    """Commands in as few entries as they take; the revision of each."""
    commands: list[tuple[Command[Any], m.Identity | None]] = []
    for body in bodies:
        method: Method[Any, Any] = KV_PUT if isinstance(body, m.KvPut) else GROUP_COMMAND
        rows = VERBS[method.code].rows(body)
        commands.append((Command(method, body, rows), None))
    outcomes: list[Any] = []
    while len(outcomes) < len(commands):
        outcomes += group.propose(commands[len(outcomes) :], NOW_MS)
        group.apply(1)
    return [
        command.method.decode_reply(outcome).revisions[0].index
        for (command, _), outcome in zip(commands, outcomes, strict=True)
    ]


def test_steps_of_a_move_share_no_entry_with_clients_and_revisions_grow_from_the_seal_to_the_adoption() -> None:
    pair = Pair()
    (name,) = names(True, 1)
    for _ in range(7):
        put(pair.source, name)
    pair.step(pair.target, "open")
    write = m.KvPut([m.KvPutItem(name, "k", b"v")])
    seal = GroupCommand("seal", 1, 1, slots=slot_bits(MOVING))
    assert together(pair.source, write, seal) == [8, 9]
    adopt = GroupCommand("adopt", 1, 1, batch=1, slots=slot_bits(MOVING), revision=9)
    early = GroupCommand("drop", 1, 1)
    assert together(pair.target, early, adopt, write) == [2, 10, 11]


def test_an_adoption_that_comes_twice_raises_revisions_once() -> None:
    pair = Pair()
    pair.step(pair.target, "open")
    assert pair.step(pair.target, "adopt", batch=1, revision=405) == 406
    with pytest.raises(ConflictError, match="is done"):
        pair.step(pair.target, "adopt", batch=1, revision=9_000)
    pair.target.restart()
    assert pair.step(pair.target, "close", move=1) == 408
    assert pair.target.machine.holding.base == pair.target.follower.holding.base == 404


def test_an_adoption_raises_the_time_of_the_log_and_begins_an_amnesty() -> None:
    pair = Pair()
    group = pair.target
    pair.step(group, "open")
    sealed = pair.ask(pair.source, "seal")
    assert sealed.now_ms == NOW_MS
    group.now_s += 100.0
    assert group.machine.time.next(NOW_MS + 100_000, group.now_s) == NOW_MS + 100_000
    assert group.machine.time.past_ms(group.now_s) == NOW_MS + 100_000
    adopt = GroupCommand("adopt", 1, 1, batch=1, slots=slot_bits(MOVING), sealed_ms=NOW_MS + 700_000)
    rows = VERBS[GROUP_COMMAND.code].rows(adopt)
    group.propose([(Command(GROUP_COMMAND, adopt, rows), None)], NOW_MS + 100_000)
    group.apply(1)
    for machine in (group.machine, group.follower):
        assert machine.time.newest_ms == NOW_MS + 700_000
    assert group.machine.time.past_ms(group.now_s) == 0
    with pytest.raises(ConflictError):  # a second time
        pair.step(group, "adopt", batch=1, sealed_ms=NOW_MS + 900_000)
    assert group.machine.time.newest_ms == NOW_MS + 700_000


def test_an_adoption_that_is_never_applied_raises_nothing() -> None:
    pair = Pair()
    group = pair.target
    pair.step(group, "open")
    adopt = GroupCommand("adopt", 1, 1, batch=1, slots=slot_bits(MOVING), revision=405)
    rows = VERBS[GROUP_COMMAND.code].rows(adopt)
    group.propose([(Command(GROUP_COMMAND, adopt, rows), None)], NOW_MS)
    assert group.machine.holding.base == 404
    group.lose()
    assert pair.step(group, "close") == 2
    assert pair.step(group, "adopt", batch=1, revision=405) == 406


# --- markers, and the moves that brought slots -----------------------------------------------------------


def marker_of(group: Group) -> SlotMarker | None:
    """Of the newest entry."""
    return decode_entry(group.name, group.last, group.log[-1]).marker


def brought(group: Group) -> dict[int, set[int]]:
    """By leader and follower alike."""
    parts = [machine.parts[HeldSlots] for machine in (group.machine, group.follower)]
    assert parts[0].brought == parts[1].brought
    return {move: set(slots_in(bits)) for move, bits in parts[0].brought.items()}


def test_only_steps_after_which_a_group_holds_other_slots_have_a_marker() -> None:
    pair = Pair()
    bits = slot_bits(MOVING)
    put(pair.source, names(True, 1)[0])
    assert marker_of(pair.source) is None
    seen: list[tuple[str, SlotMarker | None]] = []

    def step(group: Group, step: str, **fields: Any) -> None:
        with contextlib.suppress(ConflictError):
            pair.step(group, step, move=9, **fields)
        seen.append((step, marker_of(group)))

    step(pair.target, "open")
    step(pair.target, "drop", rows=dict.fromkeys(pair.rows(pair.source)))
    step(pair.target, "import", batch=1, rows=pair.rows(pair.source))
    step(pair.source, "unseal", other=1)  # nothing is sealed
    step(pair.source, "seal", other=1)
    step(pair.source, "seal", other=1)  # it is done
    step(pair.source, "unseal", other=1)
    step(pair.source, "seal", other=1)
    step(pair.target, "adopt", batch=9, other=0, sealed_index=7)  # out of turn
    step(pair.target, "adopt", batch=2, other=0, sealed_index=7)
    step(pair.target, "open")
    step(pair.source, "close")
    sealed, unsealed = SlotMarker(MarkerStep.SEALED, 9, bits, 1), SlotMarker(MarkerStep.UNSEALED, 9, bits)
    assert seen == [
        ("open", None),
        ("drop", None),
        ("import", None),
        ("unseal", None),
        ("seal", sealed),
        ("seal", None),
        ("unseal", unsealed),
        ("seal", sealed),
        ("adopt", None),
        ("adopt", SlotMarker(MarkerStep.ADOPTED, 9, bits, 0, 7)),
        ("open", None),
        ("close", None),
    ]


def test_a_step_says_the_index_of_its_entry() -> None:
    pair = Pair()
    pair.step(pair.target, "open")
    assert pair.ask(pair.target, "adopt", batch=1, revision=405).index == 2
    reply = pair.ask(pair.target, "open", move=2, slots=slot_bits([1]))
    assert (reply.index, reply.revisions) == (3, [m.Revision("data-1", 407)])


def test_a_group_knows_which_move_brought_each_slot_until_it_is_closed() -> None:
    pair = Pair()
    whole, moving = set(ALL), set(MOVING)
    assert (brought(pair.source), brought(pair.target)) == ({0: whole}, {})
    pair.move(5)
    assert (brought(pair.source), brought(pair.target)) == ({0: whole - moving}, {5: moving})
    back = set(range(0, SLOTS, 4))
    for group, step, more in (
        (pair.source, "open", {}),
        (pair.target, "seal", {}),
        (pair.source, "adopt", {"batch": 1}),
    ):
        pair.step(group, step, move=8, slots=slot_bits(back), **more)
    assert brought(pair.source) == {0: whole - moving, 8: back}
    assert brought(pair.target) == {5: moving}, "what is sealed counts"
    pair.step(pair.target, "close", move=8)
    assert brought(pair.target) == {5: moving - back}
    for group in (pair.source, pair.target):
        before = brought(group)
        group.restart()
        assert brought(group) == before
        assert contents(group.engine) == contents(group.follower_engine)


def test_what_is_evaluated_and_not_applied_is_not_held_yet() -> None:
    pair = Pair()
    seal = GroupCommand("seal", 4, 1, slots=slot_bits(MOVING))
    pair.source.propose([(Command(GROUP_COMMAND, seal, VERBS[GROUP_COMMAND.code].rows(seal)), None)], NOW_MS)
    part = pair.source.machine.parts[HeldSlots]
    assert (part.held, part.sealed, part.sealed_move) == (ALL_SLOTS, b"", 0)
    assert pair.source.machine.holding.sealed_move == 4
    pair.source.apply(1)
    assert (set(slots_in(part.held)), part.sealed, part.sealed_move) == (set(ALL) - set(MOVING), seal.slots, 4)


def test_slots_that_an_older_version_adopted_count_as_made_with_the_group() -> None:
    pair = Pair()
    pair.move(5)
    key = moves_key(pair.target.prefix)
    for engine in (pair.target.engine, pair.target.follower_engine):
        engine.write({key: None})
    pair.target.restart()
    pair.target.follower = pair.target._machine(pair.target.follower_engine)
    assert brought(pair.target) == {0: set(MOVING)}
    pair.move(6, back=True)
    pair.move(7)
    assert brought(pair.target) == {7: set(MOVING)}


# --- refused steps ---------------------------------------------------------------------------------------


def test_an_attempt_voids_every_earlier_one() -> None:
    pair = Pair()
    pair.step(pair.target, "open", attempt=5)
    for attempt in (4, 5):
        with pytest.raises(ConflictError):
            pair.step(pair.target, "open", attempt=attempt)
    pair.step(pair.target, "import", attempt=5, batch=1, rows={})
    pair.step(pair.target, "open", attempt=6)
    for step in ("import", "adopt"):
        with pytest.raises(ConflictError, match="another attempt"):
            pair.step(pair.target, step, attempt=5, batch=2)
    assert held(pair.target) == set()
    pair.step(pair.target, "adopt", attempt=6, batch=1)
    for step in ("import", "adopt"):
        with pytest.raises(ConflictError, match="is done"):
            pair.step(pair.target, step, attempt=7, batch=2)
    assert pair.ask(pair.target, "open", attempt=7).adopted
    assert held(pair.target) == set(MOVING)


def test_a_move_that_was_overtaken_by_a_later_one_begins_no_more() -> None:
    pair = Pair()
    pair.step(pair.target, "open", move=2)
    pair.step(pair.target, "adopt", move=2, batch=1)
    with pytest.raises(ConflictError):
        pair.step(pair.target, "open", move=1, attempt=9)


def test_a_move_back_waits_until_the_move_before_is_closed_and_undoes_no_delete() -> None:
    """The source's leader was lost before it closed move 1: its rows of the sealed slots are still there."""
    pair = Pair()
    kept, deleted = names(True, 2)
    for name in (kept, deleted):
        put(pair.source, name)
    pair.step(pair.target, "open")
    pair.step(pair.target, "import", batch=1, rows=pair.rows(pair.source))
    sealed = pair.step(pair.source, "seal")
    pair.step(pair.target, "adopt", batch=2, revision=sealed)
    do(pair.target, KV_DELETE, m.KvDelete([m.KvDeleteItem(deleted, "k")]))
    with pytest.raises(ConflictError, match="sealed by move 1"):
        pair.step(pair.source, "open", move=2)
    pair.step(pair.source, "close")
    pair.move(2, back=True)
    records = read(pair.source, KV_GET, KV_GET.body([m.KvKey(kept, "k"), m.KvKey(deleted, "k")])).found
    assert [record is not None for record in records] == [True, False]


def test_an_attempt_is_for_slots_that_the_target_does_not_hold() -> None:
    pair = Pair()
    with pytest.raises(ConflictError, match="held already"):
        pair.step(pair.source, "open")
    assert pair.source.machine.holding.opened_move == 0


def test_an_attempt_brings_rows_of_its_own_slots_only() -> None:
    """Whoever sends the rows: a group takes none of a slot that is not meant, and adopts no slot without its rows."""
    pair = Pair()
    moving, staying = names(True, 1)[0], names(False, 1)[0]
    for name in (moving, staying):
        put(pair.source, name)
    pair.step(pair.target, "open")
    with pytest.raises(ConflictError, match="not of this attempt"):
        pair.step(pair.target, "import", batch=1, rows=pair.rows(pair.source, ALL))
    assert pair.rows(pair.target, ALL) == {}
    assert pair.target.machine.holding.opened_batch == 0
    for step in ("import", "adopt"):
        with pytest.raises(ConflictError, match="not of this attempt"):
            pair.step(pair.target, step, batch=1, slots=slot_bits(ALL))
    pair.step(pair.target, "import", batch=1, rows=pair.rows(pair.source))
    pair.step(pair.target, "adopt", batch=2)
    assert held(pair.target) == set(MOVING)


def test_a_verb_that_writes_rows_of_slots_must_name_them() -> None:
    lists = next(method for method in SESSION.methods if method not in SESSION.routed)
    writes = Method(0x7FFF, "session.wipe", lists.body, m.WriteReply, Lane.RECORDS, mutates=True, by=By.GROUP)
    try:
        with pytest.raises(TypeError, match=r"session\.wipe: a verb that writes rows of slots names those rows"):
            Verb(writes, SESSION, evaluate=lambda view, command: m.WriteReply([], []))
    finally:
        del METHODS[writes.code], METHODS_BY_NAME[writes.name]


WRITING = [verb.method for verb in VERBS.values() if verb.evaluate and verb.method.code not in BETWEEN_NODES]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(WRITING).flatmap(lambda method: st.tuples(st.just(method), values_of(method.body, NAMES))))
def test_every_command_of_a_client_names_the_slots_of_the_rows_that_it_writes(
    request: tuple[Method[Any, Any], Any],
) -> None:
    """What a group holds is looked up for what a command names: unnamed, it could write rows that have moved away."""
    method, body = request
    group = Group(kind_of(method), 0, DedupeConfig())
    try:
        rows = VERBS[method.code].rows(body)
    except MetadError:
        return
    group.propose([(Command(method, body, rows), None)], NOW_MS)
    named = {int(crc) % SLOTS for crc in rows.crcs}
    for writes in group.in_flight[-1][2]:
        slots = {keys.slot_of_key(key[keys.GROUP_PREFIX_BYTES :]) for key in writes} - {None}
        assert slots <= named, method


def test_batches_come_in_order_and_a_repeated_one_changes_nothing() -> None:
    pair = Pair()
    (name,) = names(True, 1)
    put(pair.source, name, b"old")
    old = pair.rows(pair.source)
    put(pair.source, name, b"new")
    pair.step(pair.target, "open")
    for step in ("import", "adopt"):
        with pytest.raises(ConflictError, match="batch 2 follows 0"):
            pair.step(pair.target, step, batch=2)
    pair.step(pair.target, "import", batch=1, rows=old)
    pair.step(pair.target, "import", batch=2, rows=pair.rows(pair.source))
    pair.step(pair.target, "import", batch=1, rows=old)  # the network's copy
    pair.step(pair.source, "seal")
    pair.step(pair.target, "adopt", batch=3)
    (record,) = read(pair.target, KV_GET, KV_GET.body([m.KvKey(name, "k")])).found
    assert (record.value, record.version) == (b"new", 2)


def test_a_source_seals_once_and_only_what_it_has() -> None:
    pair = Pair()
    with pytest.raises(ConflictError, match="not all"):
        pair.step(pair.target, "seal")
    pair.step(pair.source, "seal")
    for move in (1, 2):
        with pytest.raises(ConflictError, match="sealed by move 1"):
            pair.step(pair.source, "seal", move=move)


def test_slots_come_back_if_the_move_is_given_up_and_never_after_it_is_closed() -> None:
    pair = Pair()
    pair.step(pair.source, "seal")
    for step in ("unseal", "close"):
        pair.step(pair.source, step, move=7)  # not this one
        assert held(pair.source) == set(ALL) - set(MOVING)
    pair.step(pair.source, "unseal")
    pair.step(pair.source, "unseal")
    assert held(pair.source) == set(ALL)
    pair.step(pair.source, "seal", attempt=2)
    pair.step(pair.source, "close", attempt=2)
    for step in ("unseal", "close"):
        pair.step(pair.source, step, attempt=2)
        assert held(pair.source) == set(ALL) - set(MOVING)


def test_a_step_nobody_knows() -> None:
    with pytest.raises(ConflictError, match="no step"):
        Pair().step(Group("data", 0, DedupeConfig()), "leap")


# --- rows ------------------------------------------------------------------------------------------------


def test_a_sweep_drops_the_rows_of_foreign_slots_and_no_others() -> None:
    pair = Pair()
    for name in (*names(True), *names(False)):
        put(pair.source, name)
    takeover(pair.source, "b1", *[f"c{i}" for i in range(20)])
    everything = dict.fromkeys(pair.rows(pair.source, ALL))
    pair.step(pair.source, "drop", move=0, attempt=0, rows=everything)
    assert set(pair.rows(pair.source, ALL)) == set(everything), "it holds them all"
    pair.step(pair.source, "seal")
    pair.step(pair.source, "drop", move=0, attempt=0, rows=everything)
    assert set(pair.rows(pair.source, ALL)) == set(everything), "it may have to take them back"
    pair.step(pair.source, "close")
    pair.step(pair.source, "drop", move=0, attempt=0, rows=everything)
    left = {key for key in everything if keys.slot_of_key(key) not in MOVING}
    assert set(pair.rows(pair.source, ALL)) == left
    assert left
    assert contents(pair.source.engine) == contents(pair.source.follower_engine)


def test_while_rows_are_imported_only_their_attempt_sweeps_and_only_before_its_first() -> None:
    pair = Pair()
    for name in names(True):
        put(pair.source, name)
    rows = pair.rows(pair.source)
    garbage = dict.fromkeys(rows)
    pair.step(pair.target, "open", attempt=1)
    pair.step(pair.target, "import", attempt=1, batch=1, rows=rows)
    with pytest.raises(ConflictError, match="being imported"):
        pair.step(pair.target, "drop", attempt=1, rows=garbage)
    pair.step(pair.target, "open", attempt=2)
    for move, attempt in ((1, 1), (0, 0), (2, 2)):
        with pytest.raises(ConflictError, match="being imported"):
            pair.step(pair.target, "drop", move=move, attempt=attempt, rows=garbage)
    pair.step(pair.target, "drop", attempt=2, rows=garbage)
    assert pair.rows(pair.target) == {}
    pair.step(pair.target, "import", attempt=2, batch=1, rows=rows)
    pair.step(pair.target, "adopt", attempt=2, batch=2)
    pair.step(pair.target, "drop", attempt=1, rows=garbage)  # late, and nothing of it is foreign
    assert pair.rows(pair.target) == rows


def takeover(group: Group, broker: str, *clients: str) -> Any:
    return do(group, SESSION_TAKEOVER, m.SessionTakeover(broker, 1, [m.SessionTakeoverItem("t", c) for c in clients]))


def listed(group: Group) -> set[str]:
    return {session.client_id for session in read(group, SESSION_LIST, m.SessionList()).found}


def test_lists_hide_rows_of_slots_that_are_not_the_groups() -> None:
    pair = Pair()
    clients = {f"c{i}" for i in range(200)}
    takeover(pair.source, "b1", *clients)
    pair.step(pair.target, "open")
    pair.step(pair.target, "import", batch=1, rows=pair.rows(pair.source))
    assert (listed(pair.source), listed(pair.target)) == (clients, set())
    pair.step(pair.source, "seal")
    with pytest.raises(StaleRouteError):
        listed(pair.source)  # or nobody would list what is on its way
    pair.step(pair.target, "adopt", batch=2)
    pair.step(pair.source, "close")
    assert listed(pair.source) | listed(pair.target) == clients
    assert not listed(pair.source) & listed(pair.target)
    assert listed(pair.target)
    assert len(pair.rows(pair.source, ALL)) == 2 * len(clients), "the rows are still here"


def test_groups_that_share_the_memory_of_owners_may_differ_about_a_session() -> None:
    """An import, or a replica that lags, tells of an owner that was; its group's alone must believe it."""
    memory, engine = NodeMemory(Config()), MemoryEngine()
    groups = [Group("data", ordinal, DedupeConfig()) for ordinal in range(2)]
    machines = [Machine(group.group_id, engine, memory, clock=group.clock, wall_ms=group.wall_ms) for group in groups]
    for group, machine, broker in zip(groups, machines, ("new", "old"), strict=True):
        group.machine, group.engine = machine, engine
        takeover(group, broker, "c")
    gone = m.SessionDisconnect("new", 1, [m.SessionDisconnectItem("t", "c", 60)])
    assert do(groups[0], SESSION_DISCONNECT, gone).errors == []
    (session,) = read(groups[0], SESSION_GET, SESSION_GET.body([m.SessionKey("t", "c")])).found
    assert (session.broker, session.connected) == ("new", False)


# --- retries, and what is in flight ----------------------------------------------------------------------


def test_a_retry_of_what_was_done_before_the_move_is_answered_and_not_sent_on_to_be_done_twice() -> None:
    pair = Pair()
    (name,) = names(True, 1)
    identity = m.Identity(7, 1, 1)
    first = put(pair.source, name, b"v", identity)
    pair.move()
    assert put(pair.source, name, b"v", identity) == first
    with pytest.raises(StaleRouteError):
        put(pair.source, name, b"v", m.Identity(7, 2, 2))


def test_a_retry_does_not_read_again_what_has_moved_away() -> None:
    """What is left of the rows is old, or gone: the retry used to be answered with it."""
    pair = Pair()
    (name,) = names(True, 1)
    identities = [m.Identity(7, seq, 1) for seq in (1, 2, 3)]
    transact = m.KvTransact([m.KvTransaction(name, [], [m.KvOperation("k", b"v")], reads=["k"])])
    blind = m.KvTransact([m.KvTransaction(name, [], [m.KvOperation("k", b"w")])])
    client = next(f"c{i}" for i in range(99) if session_slot(f"c{i}") in MOVING)
    restore = m.SessionTakeover("b", 1, [m.SessionTakeoverItem("t", client)], restore=True)
    asked = [(KV_TRANSACT, transact), (SESSION_TAKEOVER, restore), (KV_TRANSACT, blind)]
    first = [do(pair.source, *each, identity) for each, identity in zip(asked, identities, strict=True)]
    again = [do(pair.source, *each, identity) for each, identity in zip(asked, identities, strict=True)]
    assert again[0].results[0].records[0].value == b"w", "as of now"
    pair.move()
    put(pair.target, name, b"newer")
    for each, identity in zip(asked[:2], identities, strict=False):
        with pytest.raises(IdentityExpiredError):
            do(pair.source, *each, identity)
    assert do(pair.source, *asked[2], identities[2]) == first[2], "there is nothing to read again"


def session_slot(client_id: str) -> int:
    rows = VERBS[SESSION_GET.code].rows(SESSION_GET.body([m.SessionKey("t", client_id)]))
    return int(rows.crcs[0]) % SLOTS


def test_what_was_evaluated_and_will_never_be_applied_does_not_count() -> None:
    pair = Pair()
    (name,) = names(True, 1)
    seal = GroupCommand("seal", 1, 1, slots=slot_bits(MOVING))
    rows = VERBS[GROUP_COMMAND.code].rows(seal)
    group = pair.source
    group.propose([(Command(GROUP_COMMAND, seal, rows), None)], NOW_MS)
    assert held(group) == set(ALL) - set(MOVING)
    group.lose()
    assert held(group) == set(ALL)
    put(group, name)


def test_a_new_life_holds_what_the_last_one_did() -> None:
    pair = Pair()
    pair.step(pair.source, "seal")
    pair.source.restart()
    assert held(pair.source) == set(ALL) - set(MOVING)
    assert pair.source.machine.holding.sealed_move == 1


def test_bit_maps() -> None:
    slots = [0, 1, 7, 8, 1000, SLOTS - 1]
    bits = slot_bits(slots)
    assert slots_in(bits) == slots
    assert slots_count(bits) == len(slots)
    assert pack(unpack(bits)) == bits
    assert not unpack(b"").any()


# --- steps in any order ----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=20))
def test_movers_that_keep_to_the_order_never_make_two_groups_hold_a_slot(steps: list[int]) -> None:
    """Each attempt does what :class:`metad.control.migration._Move` does, cut short and interleaved at random."""
    pair = Pair()
    (name,) = names(True, 1)
    moving = set(MOVING)
    movers: dict[int, list[str]] = {}
    newest = 0
    for attempt in steps:
        at = movers.setdefault(attempt, [])
        plan = ["open", "unseal", "import", "seal", "adopt"]
        if len(at) >= len(plan):
            continue
        step = plan[len(at)]
        if step in ("unseal", "seal") and attempt < newest:
            at += plan  # it leads no longer
            continue
        try:
            if step in ("unseal", "seal"):
                pair.step(pair.source, step, attempt=attempt)
            elif step == "import":
                pair.step(pair.target, step, attempt=attempt, batch=1, rows=pair.rows(pair.source))
            elif pair.ask(pair.target, step, attempt=attempt, batch=2 if step == "adopt" else 0).adopted:
                at += plan  # only the map is still to be told
                continue
        except ConflictError:
            at += plan
            continue
        at.append(step)
        if step == "open":
            newest = max(newest, attempt)
        assert not held(pair.source) & held(pair.target)
        for group in (pair.source, pair.target):
            with contextlib.suppress(StaleRouteError):
                put(group, name)
    assert held(pair.source) | held(pair.target) | moving == set(ALL)


# --- the cache of rows -----------------------------------------------------------------------------------

KEYS = [f"k{i}" for i in range(6)]
VALUES = st.sampled_from([b"", b"v", b"x" * 300, b"y" * 5_000])


def config_of(*, row_cache_bytes: int) -> Config:
    return Config(storage=StorageConfig(row_cache_bytes=row_cache_bytes))


def context(memory: NodeMemory, group: bytes) -> PartContext:
    return PartContext(group, MemoryEngine(), memory, lambda: 0.0, ALL_SLOTS)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from(KEYS), VALUES),
            st.tuples(st.just("puts"), st.sampled_from(KEYS), VALUES),
            st.tuples(st.just("delete"), st.sampled_from(KEYS), st.none()),
            st.tuples(st.just("transact"), st.sampled_from(KEYS), VALUES),
            st.tuples(st.just("takeover"), st.sampled_from(KEYS), st.none()),
            st.tuples(st.just("apply"), st.just(""), st.none()),
            st.tuples(st.just("demote"), st.just(""), st.none()),
        ),
        max_size=60,
    )
)
def test_cached_rows_are_what_the_engine_and_the_entries_in_flight_say(
    steps: list[tuple[str, str, bytes | None]],
) -> None:
    group = Group("data", 0, DedupeConfig())
    group.machine = Machine(
        group.group_id,
        group.engine,
        NodeMemory(config_of(row_cache_bytes=4_000)),
        clock=group.clock,
        wall_ms=group.wall_ms,
    )
    model: dict[str, tuple[bytes, int]] = {}
    for what, key, value in steps:
        version = model[key][1] if key in model else 0
        if what == "put":
            assert value is not None
            reply = do(group, KV_PUT, m.KvPut([m.KvPutItem("n", key, value, version)]), lag=3)
            assert reply.versions == [version + 1]
            model[key] = (value, version + 1)
        elif what == "puts":  # unconditional, by columns, and two of one key, which go one by one
            assert value is not None
            for names in (KEYS, [key, key]):
                reply = do(group, KV_PUT, m.KvPut([m.KvPutItem("n", name, value) for name in names]), lag=3)
                for name, version in zip(names, reply.versions, strict=True):
                    assert version == (model[name][1] if name in model else 0) + 1
                    model[name] = (value, version)
        elif what == "delete":
            reply = do(group, KV_DELETE, m.KvDelete([m.KvDeleteItem("n", key)]), lag=3)
            assert bool(reply.errors) == (key not in model)
            model.pop(key, None)
        elif what == "transact":
            compare = m.KvCompare(key, version)
            body = m.KvTransact([m.KvTransaction("n", [compare], [m.KvOperation(key, value)], [], [key])])
            (result,) = do(group, KV_TRANSACT, body, lag=3).results
            assert result.succeeded
            assert value is not None
            model[key] = (value, version + 1)
        elif what == "takeover":
            do(group, SESSION_TAKEOVER, m.SessionTakeover("b", 1, [m.SessionTakeoverItem("n", key)]), lag=3)
        elif what == "apply":
            group.apply(1)
        else:  # it leads no longer; what was in flight is committed by the next leader, which is this one again
            group.machine.parts[HeadCache].forget()
            group.apply(len(group.in_flight))
        heads = group.machine.parts[HeadCache]
        assert max(len(heads._young), len(heads._old)) * 192 <= 2_000 + 6_000
    group.apply(len(group.in_flight))
    for key in KEYS:
        (record,) = read(group, KV_GET, KV_GET.body([m.KvKey("n", key)])).found
        assert (None if record is None else (record.value, record.version)) == model.get(key)
    assert contents(group.engine) == contents(group.follower_engine)


def test_rows_that_grow_are_counted() -> None:
    """Small rows first, each then replaced by a large one: the bound is of bytes and holds."""
    cache = RowCache(context(NodeMemory(config_of(row_cache_bytes=8 * 1024 * 1024)), b"g"))
    for value in (b"", b"x" * 100_000):
        for number in range(300):
            cache.add({b"k%d" % number: value})
    held_bytes = sum(len(v or b"") for rows in (cache._young, cache._old) for v in rows.values())
    assert 1_000_000 < held_bytes <= 9 * 1024 * 1024


def test_groups_share_the_memory_of_rows() -> None:
    memory = NodeMemory(config_of(row_cache_bytes=100_000))
    busy, quiet = RowCache(context(memory, b"a")), RowCache(context(memory, b"b"))
    quiet.add({b"k": b"v"})
    for number in range(90):
        busy.add({b"%03d" % number: b"x" * 300})
    assert busy.get(b"000") == b"x" * 300, "a group alone may have nearly all of it"
    assert quiet.get(b"k") == b"v"
    for number in range(10_000):
        busy.add({b"%05d" % number: b"x" * 300})
    assert quiet.get(b"k") is MISSING, "what nobody asks for makes room in every group"
    held = sum(len(k) + len(v or b"") for rows in (busy._young, busy._old) for k, v in rows.items())
    assert 40_000 < held < 100_000
    assert RowCache(context(memory, b"a")).get(b"09999") is MISSING


@pytest.mark.parametrize("mine", [range(256), ()])
def test_metadata_0_is_made_with_the_slots_that_the_first_map_gives_it(mine: Iterable[int]) -> None:
    """A first map of before gave it none in so many words: it had all."""
    group = Group("metadata", 0, DedupeConfig())
    assert held(group) == set(ALL)
    record = GroupRecord(*METADATA, ["n1"], ["n1"], initial_slots=slot_bits(mine) if mine else b"")
    for version in (1, 2):
        reply = do(group, CLUSTER_STORE, StoreMap(version - 1, ClusterMap(version, [], [record], {})))
        assert not reply.errors
        assert held(group) == set(mine or ALL)
        if mine:
            do(group, GROUP_COMMAND, GroupCommand("seal", 10_000 * version, 1, slots=slot_bits([100 + version])))
            do(group, GROUP_COMMAND, GroupCommand("close", 10_000 * version))
            mine = sorted(held(group))
    group.restart()
    assert held(group) == set(mine or ALL)
