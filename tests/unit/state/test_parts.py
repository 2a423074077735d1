"""A part that only this test knows is told everything that happens to its rows, and nobody else's code names it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from state_rig import Group

import metad.state
from metad.config import DedupeConfig, RaftConfig, StorageConfig
from metad.state import machine as machine_module
from metad.state.core.part import Origin, PartContext, StatePart, Writes
from metad.state.core.verb import Command
from metad.state.machine import Machine
from metad.state.registry import PARTS, VERBS
from metad.storage import keys
from metad_wire import messages as m
from metad_wire.cluster import SLOTS, GroupCommand, GroupId, slot_bits
from metad_wire.methods import GROUP_COMMAND, KV_DELETE, KV_PUT, KV_TRANSACT, METHODS
from metad_wire.tables import TABLES
from metad_wire.tables.kv import KV
from sim.nodes.scenarios import Scene

NOW_MS = 1_700_000_000_000
ROW = KV.rows["record"]
STATE = Path(metad.state.__file__).parent


class CountRecords(StatePart):
    """An index that counts the key-value records of a group, with those in flight."""

    rows = (ROW,)

    def __init__(self, context: PartContext) -> None:
        self._prefix = keys.table_prefix(context.group, ROW)
        self._engine = context.engine
        self._in_flight: list[Writes] = []
        self.told: list[tuple[Any, ...]] = []
        self.applied_count = -1

    def load(self) -> None:
        found = self._engine.scan(self._prefix, keys.after_prefix(self._prefix), 10_000)
        self._keys = {key for key, _ in found}
        self.told.append(("load", len(found)))

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        assert all(key.startswith(self._prefix) for key in writes)
        self._in_flight.append(writes)
        self.told.append(("evaluated", index, origin, len(writes)))

    def stage(self, index: int, origin: Origin, writes: Writes) -> bool:
        assert all(key.startswith(self._prefix) for key in writes)
        self._in_flight = self._in_flight[1:]
        self._write(self._keys, writes)
        self.told.append(("stage", index, origin, len(writes)))
        return True

    def applied(self) -> None:
        self.applied_count = len(self._keys)

    def forget(self) -> None:
        self._in_flight = []
        self.told.append(("forget",))

    @staticmethod
    def _write(known: set[bytes], writes: Writes) -> None:
        for key, value in writes.items():
            if value is None:
                known.discard(key)
            else:
                known.add(key)

    def count(self) -> int:
        known = set(self._keys)
        for writes in self._in_flight:
            self._write(known, writes)
        return len(known)


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "PARTS", (*PARTS, CountRecords))


def counter(machine: Machine) -> CountRecords:
    return machine.parts[CountRecords]


def put(*names: str) -> m.KvPut:
    return m.KvPut([m.KvPutItem("space", name, b"v") for name in names])


def propose(group: Group, *bodies: Any) -> None:
    commands: list[tuple[Command[Any], m.Identity | None]] = []
    for body in bodies:
        method = next(method for method in METHODS.values() if method.body is type(body) and method.mutates)
        rows = VERBS[method.code].rows(body)
        commands.append((Command(method, body, rows), None))
    outcomes = group.propose(commands, NOW_MS)
    assert all(isinstance(outcome, bytes) for outcome in outcomes), outcomes


def test_it_is_told_what_is_evaluated_and_what_is_applied() -> None:
    group = Group("data", 0, DedupeConfig())
    leader, follower = counter(group.machine), counter(group.follower)
    transaction = m.KvTransaction("space", [], [m.KvOperation("a", None), m.KvOperation("d", b"v")])
    propose(group, put("a", "b"), put("c"))
    propose(group, put("b", "e"), m.KvTransact([transaction]))
    propose(group, m.KvDelete([m.KvDeleteItem("space", n) for n in "be"]), m.KvDelete([m.KvDeleteItem("space", "no")]))
    assert (leader.count(), leader.applied_count, follower.count()) == (2, -1, 0)
    group.apply(3)
    assert (leader.count(), leader.applied_count) == (follower.count(), follower.applied_count) == (2, 2)
    client = Origin.CLIENT
    evaluated = [("evaluated", index, client, count) for index, count in ((1, 2), (1, 1), (2, 2), (2, 2), (3, 2))]
    staged = [("stage", 1, client, 3), ("stage", 2, client, 4), ("stage", 3, client, 2)]
    assert leader.told == [("load", 0), *evaluated, *staged]
    assert follower.told == [("load", 0), *staged]


def test_a_command_that_is_refused_is_not_told() -> None:
    group = Group("data", 0, DedupeConfig())
    wrong = m.KvTransact([m.KvTransaction("space", [], [m.KvOperation("a", bytes(1 << 20))] * 3)])
    rows = VERBS[KV_TRANSACT.code].rows(wrong)
    (outcome,) = group.propose([(Command(KV_TRANSACT, wrong, rows), None)], NOW_MS)
    assert not isinstance(outcome, bytes)
    assert counter(group.machine).told == [("load", 0)]


def test_it_forgets_what_may_never_be_applied() -> None:
    group = Group("data", 0, DedupeConfig())
    propose(group, put("a"))
    group.apply(1)
    propose(group, put("b"))
    assert counter(group.machine).count() == 2
    group.machine.forget()
    assert counter(group.machine).count() == 1
    assert counter(group.machine).told[-1] == ("forget",)


def test_a_new_life_loads_it_and_replays_what_is_missing() -> None:
    group = Group("data", 0, DedupeConfig())
    propose(group, put("a", "b"))
    group.apply(1)
    propose(group, put("c"))
    group.restart()
    restarted = counter(group.machine)
    assert restarted.told == [("load", 2), ("stage", 2, Origin.CLIENT, 1)]
    assert restarted.count() == 3


def test_rows_that_move_are_told_as_such() -> None:
    source = Group("data", 0, DedupeConfig())
    target = Group("data", 1, DedupeConfig(), initial_slots=slot_bits(()))
    propose(source, put("a", "b"))
    source.apply(1)
    slots = slot_bits(range(SLOTS))
    records = source.engine.scan(keys.table_prefix(source.prefix, ROW), b"\xff", 10)
    moved: Writes = {key[3:]: value for key, value in records}
    for step, rows in (("open", {}), ("import", moved)):
        propose(target, GroupCommand(step, 1, 1, int(step == "import"), slots, rows))
    propose(source, GroupCommand("seal", 1, 1, 0, slots))
    propose(source, GroupCommand("close", 1, 1, 0, slots))
    propose(source, GroupCommand("drop", 0, 0, 0, b"", dict.fromkeys(moved)))
    source.apply(3)
    target.apply(2)
    moving = Origin.MIGRATION
    assert counter(target.machine).told == [("load", 0), ("evaluated", 2, moving, 2), ("stage", 2, moving, 2)]
    assert counter(target.follower).told == [("load", 0), ("stage", 2, moving, 2)]
    assert counter(source.follower).told[1:] == [("stage", 1, Origin.CLIENT, 2), ("stage", 4, moving, 2)]
    assert [counter(group.machine).count() for group in (source, target)] == [0, 2]


def test_commands_of_two_origins_share_no_entry() -> None:
    group = Group("data", 0, DedupeConfig())
    seal = GroupCommand("seal", 1, 1, 0, slot_bits([1]))
    commands: list[tuple[Command[Any], m.Identity | None]] = []
    for method, body in ((KV_PUT, put("a")), (KV_DELETE, m.KvDelete([m.KvDeleteItem("space", "a")]))):
        rows = VERBS[method.code].rows(body)
        commands.append((Command(method, body, rows), None))
    rows = VERBS[GROUP_COMMAND.code].rows(seal)
    commands.insert(1, (Command(GROUP_COMMAND, seal, rows), None))
    origins: list[Origin] = []
    while commands:
        taken = group.propose(commands, NOW_MS)
        origins.append(group.in_flight[-1][2].origin)
        del commands[: len(taken)]
    assert origins == [Origin.CLIENT, Origin.MIGRATION, Origin.CLIENT]


def test_on_nodes_that_lose_the_lead_die_get_snapshots_and_move_slots() -> None:
    raft = RaftConfig(election_timeout_ms=300, heartbeat_ms=50, sleep_after_ms=500, log_cache_bytes=1)
    with Scene(storage=StorageConfig(engine="memory", log_retained_bytes=500), raft=raft) as scene:

        def part(name: str, ordinal: int = 0) -> CountRecords:
            node = scene.nodes[name].node
            assert node is not None
            return counter(node.drivers[GroupId("data", ordinal)].machine)

        first = scene.lead().name
        second, late = (name for name in scene.nodes if name != first)
        assert scene.put(scene.one, "a", b"1") == 1
        assert {("evaluated", Origin.CLIENT, 1), ("stage", Origin.CLIENT, 1)} <= kinds(part(first))
        scene.transfer(second)
        assert part(first).told[-1] == ("forget",)

        scene.isolate(late)
        before = part(late)
        scene.catch_up_by_snapshot()
        assert part(late) is not before
        assert part(late).told[0] == ("load", part(late).count()) == ("load", 21)

        scene.nodes[first].crash()
        scene.nodes[first].start()
        scene.require_settled(20.0)
        assert part(first).told[0][0] == "load"
        assert part(first).count() == 21

        for number in range(60):  # one namespace is one slot
            scene.ask(scene.one, lambda client, number=number: client.kv.put(f"space{number}", "k", b"v"))
        scene.ask(scene.one, lambda client: client.cluster.add_group("data"))
        scene.require_settled(20.0)
        scene.ask(scene.one, lambda client: client.cluster.rebalance())
        scene.require_settled(30.0)
        scene.run(2.0)
        moved = {part(name, 1).count() for name in scene.nodes}
        assert len(moved) == 1
        assert moved != {0}
        assert {part(name).count() for name in scene.nodes} == {81 - moved.pop()}
        for name in scene.nodes:
            migrated = {told[0] for told in kinds(part(name, 1)) if told[0] != "load"}
            assert migrated <= {"evaluated", "stage", "forget"}
            assert not [told for told in kinds(part(name, 1)) if Origin.CLIENT in told]
            assert [told for told in kinds(part(name)) if told[:2] == ("stage", Origin.MIGRATION)], "dropped rows"


def kinds(part: CountRecords) -> set[tuple[Any, ...]]:
    """What it was told, without the indexes of entries."""
    return {(told[0], *told[2:]) for told in part.told}


# --- what View and Machine know --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["core/entry", "machine", "core/part", "core/view"])
def test_no_table_is_named(name: str) -> None:
    """Only the registry brings tables together: the rest hears of rows, and of commands."""
    tree = ast.parse((STATE / f"{name}.py").read_text(encoding="utf-8"))
    imported: set[str] = set()
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported |= {node.module} if node.module else {alias.name for alias in node.names}
            imported |= {node.module.rpartition(".")[2]} if node.module and node.level else set()
        elif isinstance(node, ast.Name | ast.Attribute):
            named.add(node.id if isinstance(node, ast.Name) else node.attr)
    tables = {"metad_wire.tables", *(f"metad_wire.tables.{table}" for table in TABLES)}
    bringing = {"cluster", "kv", "offsets", "owners", "slot_migration", "restoring", "plain", "sessions"}
    assert not imported & (tables | bringing)
    words = {"session", "owner", "offset", "kv", "map_key"}
    assert not {each for each in named if any(word in each.lower() for word in words)}
