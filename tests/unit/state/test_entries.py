"""What an entry says to those who follow the log: each version of a row, in an entry that writes it once; its revision;
which owners it replaces. And a command that is put off to the next entry leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import Group, command_of, contents
from wire_strategies import values_of

from metad.config import DedupeConfig
from metad.state.core.entry import Replaced
from metad.state.core.limits import PREVIOUS_BYTES_MAX
from metad.state.core.part import Origin
from metad.state.core.verb import Command
from metad.state.machine import Known
from metad.state.registry import VERBS
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import GroupCommand, slot_bits
from metad_wire.messages import Identity
from metad_wire.methods import BETWEEN_NODES, Method, encode
from metad_wire.tables.session import SESSION

NOW_MS = 1_700_000_000_000
OWNER = SESSION.rows["owner"]
Commands = list[tuple[Command[Any], Identity | None]]


def put(key: str, value: bytes = b"v") -> Command[Any]:
    return command_of(methods.KV_PUT, m.KvPut([m.KvPutItem("n", key, value)]))


def takeover(broker: str, epoch: int, *clients: str) -> Command[Any]:
    items = [m.SessionTakeoverItem("t", client) for client in clients]
    return command_of(methods.SESSION_TAKEOVER, m.SessionTakeover(broker, epoch, items))


def update(broker: str, *clients: str) -> Command[Any]:
    items = [m.SessionUpdateItem("t", client, m.SessionProperties(1, b"p")) for client in clients]
    return command_of(methods.SESSION_UPDATE, m.SessionUpdate(broker, 1, items))


def entries(group: Group, commands: list[Command[Any]], identities: list[Identity] | None = None) -> list[int]:
    """Propose all, as a driver does: how many commands each entry took."""
    given: Commands = [(command, identities[at] if identities else None) for at, command in enumerate(commands)]
    taken: list[int] = []
    while given:
        taken.append(len(group.propose(given, NOW_MS)))
        given = given[taken[-1] :]
    return taken


# --- once per entry --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commands", "taken"),
    [
        ([put("a"), put("b"), put("c")], [3]),
        ([put("a"), put("b"), put("a"), put("b")], [2, 2]),
        ([put("a"), put("a"), put("a")], [1, 1, 1]),
        ([takeover("b", 1, "x"), takeover("b", 1, "y"), takeover("c", 1, "z", "x")], [2, 1]),
        ([takeover("b", 1, "x", "y"), update("b", "x", "y"), takeover("b", 1, "y")], [1, 2]),
        ([put("a"), takeover("b", 1, "x"), put("a"), takeover("b", 1, "x")], [2, 2]),
        ([put("a"), command_of(methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", "a")])), put("b")], [1, 2]),
        # One that fails writes nothing, and needs no entry of its own.
        ([put("a"), command_of(methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", "a", 9)])), put("b")], [3]),
    ],
)
def test_a_command_that_writes_a_row_again_goes_into_the_next_entry(
    commands: list[Command[Any]], taken: list[int]
) -> None:
    assert entries(Group("data", 0, DedupeConfig()), commands) == taken


def test_commits_of_an_offset_share_an_entry_that_has_the_last() -> None:
    group = Group("offset", 0, DedupeConfig())

    def commit(offset: int, generation: int = 0, expected: int | None = None) -> Command[Any]:
        item = m.OffsetCommitItem("t", "g", "topic", 0, offset, generation, expected)
        return command_of(methods.OFFSET_COMMIT, m.OffsetCommit([item]))

    delete = command_of(methods.OFFSET_DELETE, m.Items([m.OffsetKey("t", "g", "topic", 0)]))
    assert entries(group, [commit(1), commit(2), commit(3, 5), commit(4, 4), commit(6, 5, 3), commit(7, 5, 3)]) == [6]
    assert entries(group, [commit(8, 6), delete, commit(9, 6), commit(10, 6)]) == [1, 1, 2]
    found = []
    while group.in_flight:
        group.apply(1)
        (fetched,) = methods.OFFSET_FETCH.decode_reply(encode(_fetched(group))).found
        found.append(None if fetched is None else (fetched.offset, fetched.generation))
    assert found == [(6, 5), (8, 6), None, (10, 6)]
    assert contents(group.engine) == contents(group.follower_engine)


def _fetched(group: Group) -> Any:
    read = VERBS[methods.OFFSET_FETCH.code].read
    assert read is not None
    return read(
        group.machine.reader,
        command_of(methods.OFFSET_FETCH, methods.OFFSET_FETCH.body([m.OffsetKey("t", "g", "topic", 0)])),
    )


def test_identities_of_an_entry_share_a_row_and_make_no_new_entry() -> None:
    group = Group("data", 0, DedupeConfig())
    identities = [Identity(client, 1, 0) for client in range(5)]
    assert entries(group, [put(f"{i}") for i in range(5)], identities) == [5]


def test_a_step_of_a_slot_move_is_alone_in_its_entry() -> None:
    group = Group("data", 0, DedupeConfig())
    steps = [GroupCommand(step, 1, 1, 0, slot_bits([1])) for step in ("seal", "seal", "unseal", "close")]
    commands = [command_of(methods.GROUP_COMMAND, step) for step in steps]
    assert entries(group, [put("a"), *commands, put("b"), put("c")]) == [1, 1, 1, 1, 1, 2]
    origins = [entry.origin for _, _, entry in group.in_flight]
    assert origins == [Origin.CLIENT, *[Origin.MIGRATION] * 4, Origin.CLIENT]


# --- what is put off -------------------------------------------------------------------------------------

NAMES = st.sampled_from(["", "a", "b"])
WRITES = [verb.method for verb in VERBS.values() if verb.evaluate and verb.method.code not in BETWEEN_NODES]


# Nearly all of them write: what the general strategy makes of these methods is mostly refused.
PUTS = st.builds(
    m.KvPut, st.lists(st.builds(m.KvPutItem, st.just("n"), NAMES, st.just(b"v"), st.none()), min_size=1, max_size=3)
)
CHANGES = st.builds(
    m.KvTransact,
    st.lists(
        st.builds(
            m.KvTransaction,
            st.just("n"),
            st.just([]),
            st.lists(st.builds(m.KvOperation, NAMES, st.none() | st.just(b"w")), min_size=1, max_size=2),
        ),
        min_size=1,
        max_size=2,
    ),
)
COMMITS = st.builds(
    m.OffsetCommit,
    st.lists(
        st.builds(m.OffsetCommitItem, st.just("t"), NAMES, NAMES, st.just(0), st.just(5), st.integers(0, 2)),
        min_size=1,
        max_size=3,
    ),
)
SPECIAL = {
    "data": st.one_of(st.tuples(st.just(methods.KV_PUT), PUTS), st.tuples(st.just(methods.KV_TRANSACT), CHANGES)),
    "offset": st.tuples(st.just(methods.OFFSET_COMMIT), COMMITS),
}


def batches_of(kind: str) -> st.SearchStrategy[list[list[tuple[tuple[Method[Any, Any], Any], bool]]]]:
    """Of a method of a group of this kind, a body, and whether it has an identity."""
    any_ = st.sampled_from([method for method in WRITES if VERBS[method.code].table.kind == kind]).flatmap(
        lambda method: st.tuples(st.just(method), values_of(method.body, NAMES))
    )
    return st.lists(st.lists(st.tuples(SPECIAL[kind] | any_, st.booleans()), min_size=1, max_size=6), max_size=6)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["data", "offset"]).flatmap(lambda kind: st.tuples(st.just(kind), batches_of(kind))),
    st.integers(0, 3),
)
def test_a_command_that_is_put_off_leaves_nothing_behind(batches: tuple[str, list[Any]], lag: int) -> None:
    """A group that is never asked for more than an entry takes writes the same log."""
    kind, bodies = batches
    asked, spared = (Group(kind, 0, DedupeConfig(identities_max=40)) for _ in range(2))
    seq = 0
    for batch in bodies:
        given: Commands = []
        for (method, body), identified in batch:
            if not getattr(body, "items", True):
                continue
            seq += identified
            given.append((command_of(method, body), Identity(1, seq, max(0, seq - 3)) if identified else None))
        while given:
            outcomes = asked.propose(given, NOW_MS)
            alike = spared.propose(given[: len(outcomes)], NOW_MS)
            assert list(map(told, outcomes)) == list(map(told, alike))
            given = given[len(outcomes) :]
            for group in (asked, spared):
                group.apply(len(group.in_flight) - lag)
    assert asked.log == spared.log
    for group in (asked, spared):
        group.apply(len(group.in_flight))
        assert contents(group.engine) == contents(group.follower_engine)


def told(outcome: Any) -> Any:
    if isinstance(outcome, Known):
        return outcome.index
    return outcome if isinstance(outcome, bytes) else (outcome.name, str(outcome))


# --- the revision ----------------------------------------------------------------------------------------


def test_an_entry_says_the_revision_that_its_records_have() -> None:
    group = Group("data", 1, DedupeConfig(), initial_slots=slot_bits(()))
    opened = GroupCommand("open", 1, 1, 0, slot_bits(range(1024)))
    adopted = GroupCommand("adopt", 1, 1, 1, slot_bits(range(1024)), revision=405)
    void = GroupCommand("adopt", 1, 1, 1, slot_bits(range(1024)), revision=9_000)
    steps = [command_of(methods.GROUP_COMMAND, step) for step in (opened, adopted, void)]
    entries(group, [*steps, put("a"), put("b"), put("a")])
    said = []
    while group.in_flight:
        said.append(group.in_flight[0][2].revision)
        group.apply(1)
        assert group.machine.revision == group.follower.revision == said[-1]
    assert said == [1, 406, 407, 408, 409]
    get = command_of(methods.KV_GET, methods.KV_GET.body([m.KvKey("n", "a"), m.KvKey("n", "b")]))
    read = VERBS[methods.KV_GET.code].read
    assert read is not None
    records = methods.KV_GET.decode_reply(encode(read(group.machine.reader, get))).found
    assert [record.mod_revision for record in records] == [409, 408]


# --- what is replaced ------------------------------------------------------------------------------------


VALUES = st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=40)


@given(VALUES, VALUES)
def test_each_value_that_is_replaced_is_said_once(values: list[bytes | None], unwritten: list[bytes | None]) -> None:
    replaced = Replaced(list(values), dict.fromkeys([*values, *unwritten]))
    assert_says(replaced, values)
    replaced.extend(Replaced(list(unwritten), dict.fromkeys(unwritten)))
    assert_says(replaced, [*values, *unwritten])


def test_any_number_of_values_may_be_replaced() -> None:
    values = [None, *[b"%d" % (number % 300) for number in range(1_000)]]
    assert_says(Replaced(list(values), dict.fromkeys(values)), values)


def assert_says(replaced: Replaced, values: list[bytes | None]) -> None:
    said = replaced.distinct()
    assert len(said) == len(set(values))
    if len(said) == 1:
        assert said == [(values[0] or b"", [])]
    else:
        placed = {at: value for value, positions in said for at in positions}
        assert [placed[at] for at in range(len(values))] == [value or b"" for value in values]
        assert all(positions == sorted(positions) for _, positions in said)
    assert len(encode(said)) <= replaced.size + 10 * len(said) + 5


SESSIONS = [method for method in WRITES if method.name.startswith("session.")]
BROKERS = st.sampled_from(["", "b", "c"])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from(SESSIONS).flatmap(
                lambda method: st.tuples(st.just(method), values_of(method.body, BROKERS))
            ),
            min_size=1,
            max_size=5,
        ),
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_each_write_of_an_owner_says_whom_it_replaces(
    batches: list[list[tuple[Method[Any, Any], Any]]], lag: int
) -> None:
    """Whatever is in flight: what a follower has before the entry is what the entry says."""
    group = Group("data", 0, DedupeConfig())

    def apply(count: int) -> None:
        for _ in range(count):
            entry = group.in_flight[0][2]
            before = [group.follower_engine.get(key) or b"" for key in entry.heard.get(OWNER, ())]
            assert entry.replaced(OWNER) == (before or None)
            group.apply(1)

    for batch in batches:
        entries(group, [command_of(method, body) for method, body in batch if getattr(body, "items", True)])
        apply(max(0, len(group.in_flight) - lag))
    apply(len(group.in_flight))


def test_owners_of_many_sessions_are_said_once_each() -> None:
    """A storm's entry must not grow by an owner for each of its sessions."""
    group = Group("data", 0, DedupeConfig())
    clients = [f"c{i}" for i in range(1_000)]
    entries(group, [takeover("old", 1, *clients[::2]), takeover("older", 1, *clients[1::2])])
    small = len(encode(group.in_flight[-1][2].previous))
    entries(group, [takeover("new", 1, *clients)])
    entry = group.in_flight[-1][2]
    old, older = (encode((True, broker, 1, 0)) for broker in ("old", "older"))
    assert entry.previous == {OWNER: [(old, list(range(0, 1_000, 2))), (older, list(range(1, 1_000, 2)))]}
    assert small < 20
    assert len(encode(entry.previous)) < 3_000
    entries(group, [takeover("newest", 1, *clients)])
    assert group.in_flight[-1][2].previous == {OWNER: [(encode((True, "new", 1, 0)), [])]}


def test_an_entry_is_full_by_what_it_replaces_too() -> None:
    """If each session had another broker with a long name, more bytes are replaced than written."""
    group = Group("data", 0, DedupeConfig())
    clients = [f"c{i}" for i in range(4_000)]
    for client in clients:
        entries(group, [takeover(client.rjust(m.BROKER_BYTES_MAX, "b"), 1, client)])
    group.apply(10_000)
    bodies = [m.SessionDelete([m.SessionDeleteItem("t", client) for client in clients[at::200]]) for at in range(200)]
    commands = [command_of(methods.SESSION_DELETE, body, 100) for body in bodies]
    (first, *_) = entries(group, commands)
    assert 50 < first < 100  # by what is written alone: some 120


def test_no_command_replaces_more_than_is_said() -> None:
    group = Group("data", 0, DedupeConfig())
    clients = [f"c{i}" for i in range(m.BATCH_ITEMS_MAX)]
    for number, client in enumerate(clients):
        entries(group, [takeover(client.rjust(m.BROKER_BYTES_MAX, "b"), 2**63 - 1 - number, client)])
    group.apply(10_000)
    entries(group, [takeover("b", 1, *clients)])
    assert PREVIOUS_BYTES_MAX * 0.9 < len(encode(group.in_flight[-1][2].previous)) < PREVIOUS_BYTES_MAX
