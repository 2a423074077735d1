"""Slots that move under writes, on a real node that dies at every step of the way and begins again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from server_rig import Rig

from metad.control import migration
from metad.errors import StorageError
from metad.node.calls.leader_calls import LeaderCalls, MigrationSteps
from metad.raft.log.journal import REGULAR
from metad.state.cluster.fences import Fences
from metad.state.cluster.tenant_ends import TenantEnds
from metad.state.core.entry import decode_entry
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import SLOTS, GroupId, slots_in
from metad_wire.errors import (
    ConflictError,
    ConnectionLostError,
    InternalError,
    MetadError,
    NotLeaderError,
    StaleRouteError,
    TooLargeError,
    UnknownOutcomeError,
)
from metad_wire.methods import (
    CLUSTER_ADD_GROUP,
    CLUSTER_MAP,
    CLUSTER_REBALANCE,
    GROUP_COMMAND,
    GROUP_FENCE,
    KV_GET,
    KV_PUT,
    SESSION_DISCONNECT,
    SESSION_END_TENANT,
    SESSION_LIST,
    SESSION_TAKEOVER,
    Method,
    encode,
)
from metad_wire.tables.kv import KV
from metad_wire.watch import MarkerStep, SlotMarker

NAMESPACES = [f"n{i}" for i in range(24)]
CLIENTS = [f"c{i}" for i in range(24)]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_ROWS", 16)
    monkeypatch.setattr(migration, "_SHORT_TAIL", 3)
    monkeypatch.setattr(migration, "_AGAIN_S", 0.01)
    monkeypatch.setattr("metad.control.controller.RECONCILE_S", 0.02)


class Scenario:
    """One data group becomes two. A write goes out around every step of the mover, and the node dies at one of them."""

    def __init__(self, cut: int, *, after: bool) -> None:
        self.rig = Rig(groups={"offset": 1, "data": 1})
        self.cut = cut
        self.after = after
        self.steps: list[str] = []
        self.killed = False
        self.kv: dict[str, tuple[bytes, int]] = {}
        self.revisions: dict[str, int] = {}  # of the last write of each key
        self.owners: dict[str, str] = {}
        self.fenced = 0  # from which epoch on a broker may write, as the source has answered last
        self.number = itertools.count(1)

    async def run(self) -> None:
        await self.rig.open()
        for name in NAMESPACES:
            await self.put(name)
        await self.takeover("b0", CLIENTS)
        await self.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))
        self.hook()
        await self.rebalance()
        async with asyncio.timeout(120):
            while self.killed or self.moving():
                if self.killed:
                    self.killed = False
                    await self.rig.open()
                    self.hook()
                await asyncio.sleep(0)
                if not self.killed:
                    self.rig.step()
                    await asyncio.sleep(0.001)
        await self.check()
        await self.rig.close()

    async def ask(self, method: Method[Any, Any], body: Any, identity: m.Identity | None = None) -> Any:
        """Raises MetadError."""
        answer = self.rig.send(method, body, identity)
        await self.rig.settle()
        if isinstance(answer.results[0], MetadError):
            raise answer.results[0]
        return answer.reply(method)

    async def rebalance(self) -> None:
        while True:
            try:
                await self.ask(CLUSTER_REBALANCE, c.Rebalance())
            except ConflictError:
                await asyncio.sleep(0.001)
            else:
                return

    def moving(self) -> bool:
        known = self.rig.node.map
        work = self.rig.node.migrations
        return bool(known is None or known.moves or work._tasks or work._sweeps)

    def hook(self) -> None:
        node = self.rig.node
        plain: Callable[..., Coroutine[Any, Any, Any]] = node.requests.call

        async def call(method: Method[Any, Any], body: Any, **more: Any) -> Any:
            step = body.step if method is GROUP_COMMAND else "moved"
            self.steps.append(step)
            await self.write()
            if step == "seal":
                number = next(self.number)
                fence = c.GroupFence([c.FenceItem("zombie", number)])
                await plain(GROUP_FENCE, fence, group="data-0")
                self.fenced = number
            if len(self.steps) == self.cut and not self.after:
                self.kill()
            reply = await plain(method, body, **more)
            if len(self.steps) == self.cut:
                self.kill()
            await self.write()
            return reply

        node.requests.call = call  # type: ignore[method-assign, assignment]

    def kill(self) -> None:
        self.rig.node.migrations.stop()
        self.rig.kill()
        self.killed = True
        raise asyncio.CancelledError

    async def write(self) -> None:
        if self.killed:
            raise asyncio.CancelledError
        number = next(self.number)
        with contextlib.suppress(StaleRouteError):
            await self.put(NAMESPACES[number % len(NAMESPACES)])
        with contextlib.suppress(StaleRouteError):
            await self.takeover(f"b{number % 3}", [CLIENTS[number % len(CLIENTS)]])
        with contextlib.suppress(StaleRouteError):
            await self.check_list()
        with contextlib.suppress(StaleRouteError):
            await self.disconnect(CLIENTS[number % 7])

    async def put(self, name: str) -> None:
        number = next(self.number)
        value, (_, version) = str(number).encode(), self.kv.get(name, (b"", 0))
        identity = m.Identity(1, number, number)
        body = m.KvPut([m.KvPutItem(name, "k", value, version)])
        reply = await self.ask(KV_PUT, body, identity)
        assert (reply.errors, reply.versions) == ([], [version + 1])
        self.kv[name] = (value, version + 1)
        (revision,) = reply.revisions
        assert revision.index > self.revisions.get(name, 0), "a key's revisions only grow, whatever moves"
        self.revisions[name] = revision.index

    async def takeover(self, broker: str, clients: list[str]) -> None:
        kept = m.SessionProperties(3_600)  # while the client is away
        items = [m.SessionTakeoverItem("t", client, False, kept) for client in clients]
        body = m.SessionTakeover(broker, 1, items)
        reply = await self.ask(SESSION_TAKEOVER, body)
        assert reply.errors == []
        for client, previous in zip(clients, reply.previous, strict=True):
            before = None if previous < 0 else reply.owners[previous].broker
            assert before == self.owners.get(client)
            self.owners[client] = broker

    async def disconnect(self, client: str) -> None:
        body = m.SessionDisconnect(self.owners[client], 1, [m.SessionDisconnectItem("t", client)])
        assert (await self.ask(SESSION_DISCONNECT, body)).errors == []

    async def check_list(self) -> None:
        """At one moment, of all groups."""
        known = self.rig.node.map
        ordinals = set(c.unpack_slots(known.slots["data"])) if known is not None else {0}
        answers = [
            self.rig.send(SESSION_LIST, m.SessionList(), group=GroupId("data", ordinal).name) for ordinal in ordinals
        ]
        await self.rig.settle()
        for answer in answers:
            if isinstance(answer.results[0], MetadError):
                raise answer.results[0]
        sessions = [session for answer in answers for session in answer.reply(SESSION_LIST).found]
        assert sorted((s.client_id, s.broker) for s in sessions) == sorted(self.owners.items())

    async def check(self) -> None:
        records = [(await self.ask(KV_GET, KV_GET.body([m.KvKey(name, "k")]))).found[0] for name in NAMESPACES]
        assert {r.namespace: (r.value, r.version) for r in records} == self.kv
        assert {r.namespace: r.mod_revision for r in records} == self.revisions
        await self.check_list()
        self.check_markers()
        self.check_fences()
        drivers = self.rig.node.drivers
        held = [set(slots_in(drivers[GroupId("data", ordinal)].machine.holding.slots)) for ordinal in (0, 1)]
        assert not held[0] & held[1]
        assert held[0] | held[1] == set(range(SLOTS))
        assert abs(len(held[0]) - len(held[1])) <= 1
        assert all(drivers[GroupId("data", ordinal)].machine.holding.sealed_move == 0 for ordinal in (0, 1))
        known = (await self.ask(CLUSTER_MAP, c.MapRequest())).map
        slots = c.unpack_slots(known.slots["data"])
        assert [slot for slot in range(SLOTS) if slots[slot]] == sorted(held[1])
        # It still moves: back, and again.
        await self.ask(CLUSTER_REBALANCE, c.Rebalance())

    def check_fences(self) -> None:
        """The target has the source's fences, though nobody has told it of them."""
        for ordinal in (0, 1):
            fences = self.rig.node.drivers[GroupId("data", ordinal)].machine.parts[Fences]
            assert [(item.broker, item.least_epoch) for item in fences.carried(0)] == [("zombie", self.fenced)]

    def check_markers(self) -> None:
        """The target's log says where, in that of the source, the slots were sealed for the last time."""
        source, target = self.markers(0), self.markers(1)
        (adoption,) = target.values()
        assert (adoption.step, adoption.other) == (MarkerStep.ADOPTED, 0)
        last = max(source)
        assert adoption.sealed_index == last
        assert source[last] == SlotMarker(MarkerStep.SEALED, adoption.move, adoption.slots, 1)
        assert [marker.step for marker in source.values()] == [
            MarkerStep.UNSEALED if number % 2 else MarkerStep.SEALED for number in range(len(source))
        ]

    def markers(self, ordinal: int) -> dict[int, SlotMarker]:
        """By their index in a group's log."""
        log = self.rig.node.drivers[GroupId("data", ordinal)].group.log
        assert log.base_index == 0
        records: list[bytes] = []
        while len(records) < log.last_index:  # a part is on the disk, and a part in memory
            records += log.records(len(records) + 1, 1 << 20, log.last_index + 1)
        found: dict[int, SlotMarker] = {}
        for index, record in enumerate(records, 1):
            marker = decode_entry("data", index, record).marker if record[8] == REGULAR else None
            if marker is not None:
                found[index] = marker
        return found


async def test_every_step_happens_and_writes_meet_all_of_them() -> None:
    scenario = Scenario(0, after=False)
    await scenario.run()
    assert set(scenario.steps) == {"open", "sweep", "import", "seal", "adopt", "close", "moved", "drop"}
    assert scenario.steps.count("import") > 5
    assert scenario.steps.count("open") == 1


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("cut", range(1, 25))
async def test_a_node_that_dies_at_any_step_loses_and_doubles_nothing(cut: int, after: bool) -> None:
    scenario = Scenario(cut, after=after)
    await scenario.run()


async def test_two_deaths() -> None:
    """The second in the attempt that cleans up behind the first."""
    for second in (2, 3, 5, 8):
        scenario = Scenario(12, after=True)
        plain = scenario.kill

        def kill(scenario: Scenario = scenario, plain: Any = plain, second: int = second) -> None:
            if scenario.cut == 12:
                scenario.cut = len(scenario.steps) + second
            plain()

        scenario.kill = kill  # type: ignore[method-assign]
        await scenario.run()


class Asked:
    """What an attempt asks of its node, which leads the source no longer. A target answers that nothing is adopted."""

    def __init__(self, drivers: Any) -> None:
        self.drivers = drivers
        self.steps: list[str] = []

    async def ask_here(self, group: GroupId, command: c.GroupCommand) -> c.GroupReply:
        self.steps.append(command.step)
        raise NotLeaderError

    async def ask_group(self, group: GroupId, command: c.GroupCommand, *, patient: bool = False) -> c.GroupReply:
        self.steps.append(command.step)
        assert group.name == "data-1", "the source's steps are its leader's own"
        assert patient == (command.step == "sweep"), "it looks at all rows of the target"
        return c.GroupReply([], [])

    async def ask_metadata(self, body: c.Moved) -> None:
        raise AssertionError("it is not done")


class Written(Asked):
    """The same, while somebody writes during each import."""

    def __init__(self, drivers: Any, write: Callable[[], None]) -> None:
        super().__init__(drivers)
        self._write = write

    async def ask_group(self, group: GroupId, command: c.GroupCommand, *, patient: bool = False) -> c.GroupReply:
        if command.step == "import":
            self._write()
        return await super().ask_group(group, command, patient=patient)


async def test_who_lost_the_lead_seals_nothing_at_its_successor() -> None:
    """Guards the source's steps: one that is passed on seals slots whose newest rows the copying node has not seen."""
    rig = Rig(groups={"offset": 1, "data": 1})
    node = await rig.open()
    host = Asked(node.drivers)
    move = c.SlotMove(1, "data", 0, 1, b"\xff" * 128)
    driver = node.drivers[GroupId("data", 0)]
    attempt = migration._Migration(host, move, driver, driver.group.term, 1)
    with pytest.raises(NotLeaderError):
        await attempt.run()
    assert host.steps == ["open", "sweep", "seal"]
    assert not driver._listeners
    attempt = migration._Migration(host, move, driver, driver.group.term - 1, 2)
    with pytest.raises(MetadError, match="another led"):
        await attempt.run()
    assert host.steps[3:] == ["open", "sweep"]
    await rig.close()


@pytest.mark.parametrize("text", ["adopted", "move 1 is done"])
async def test_only_the_reply_says_that_a_target_has_adopted_and_no_error_text_does(text: str) -> None:
    """Guards the end of a move: the words of an error of another node, which may be of another version, decided."""
    rig = Rig(groups={"offset": 1, "data": 1})
    node = await rig.open()
    asked: list[str] = []

    class Host:
        drivers = node.drivers
        refusal: MetadError | None = None

        async def ask_here(self, group: GroupId, command: c.GroupCommand) -> c.GroupReply:
            asked.append(command.step)
            return c.GroupReply([m.Revision("data-0", 7)], [])

        async def ask_group(self, group: GroupId, command: c.GroupCommand, *, patient: bool = False) -> c.GroupReply:
            asked.append(command.step)
            if self.refusal is not None:
                raise self.refusal
            return c.GroupReply([], [], adopted=True)

        async def ask_metadata(self, body: c.Moved) -> None:
            asked.append("moved")

    move, driver, host = c.SlotMove(1, "data", 0, 1, b"\xff" * 128), node.drivers[GroupId("data", 0)], Host()
    await migration._Migration(host, move, driver, driver.group.term, 1).run()
    assert asked == ["open", "moved", "close"]
    host.refusal = ConflictError(text)
    with pytest.raises(ConflictError):
        await migration._Migration(host, move, driver, driver.group.term, 2).run()
    assert asked[3:] == ["open"]
    await rig.close()


async def test_a_move_that_the_map_knows_no_more_is_not_tried_again() -> None:
    rig = Rig(groups={"offset": 1, "data": 1})
    node = await rig.open()
    tries = 0

    class Host:
        drivers = node.drivers

        async def ask_here(self, group: GroupId, command: c.GroupCommand) -> c.GroupReply:
            raise AssertionError("it was not opened")

        async def ask_group(self, group: GroupId, command: c.GroupCommand, *, patient: bool = False) -> c.GroupReply:
            nonlocal tries
            tries += 1
            raise ConflictError("attempt 9 of move 2 was opened")

        async def ask_metadata(self, body: c.Moved) -> None: ...

    work = migration.Migrations(Host())
    move = c.SlotMove(1, "data", 0, 1, b"\xff" * 128)
    slots = {"data": c.pack_slots([0] * SLOTS)}
    ordered = c.ClusterMap(1, [], [], slots, [move])
    work.follow(ordered)
    while tries < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    attempts = dict(work._attempts)
    work.follow(c.ClusterMap(2, [], [], slots))
    while work._tasks:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    work.follow(ordered)
    await asyncio.sleep(0.005)
    assert work._attempts[1] > attempts[1], "attempts only grow"
    work.stop()
    await rig.close()


# --- sweeps --------------------------------------------------------------------------------------------------


def swept(driver: Any, *, ready: bool = True) -> Any:
    """A replica with the state of this one."""
    group = driver.group
    raft = SimpleNamespace(group_id=group.group_id, prefix=group.prefix, name=group.name, ready=ready)
    return SimpleNamespace(group=raft, machine=driver.machine)


def work_of(node: Any) -> migration.Migrations:
    """What sweeps replicas of a node that holds all of its slots, so there is nothing to ask for."""
    return migration.Migrations(SimpleNamespace(drivers=node.drivers))  # type: ignore[arg-type]


async def some_rows(rig: Rig) -> Any:
    """Write several pages. Returns the replica that has them."""
    for name in NAMESPACES:
        await rig.ask(KV_PUT, m.KvPut([m.KvPutItem(name, str(number), b"v") for number in range(5)]))
    return rig.node.drivers[GroupId("data", 0)]


async def all_over(work: migration.Migrations) -> None:
    while work._sweeps:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_later_sweep_of_a_group_ends_an_earlier_one() -> None:
    """Guards a node that holds millions of rows: each attempt of a move began a sweep, and the last one ran on."""
    rig = Rig(groups={"offset": 1, "data": 1})
    await rig.open()
    driver = await some_rows(rig)
    work, outcomes = work_of(rig.node), dict[int, "MetadError | None"]()
    for attempt in (1, 2):
        work.sweep(driver, c.GroupCommand("sweep", 1, attempt), partial(outcomes.__setitem__, attempt))
        await asyncio.sleep(0)  # it looks at a page
    assert not outcomes
    await all_over(work)
    assert isinstance(outcomes[1], ConflictError)
    assert outcomes[2] is None
    assert [*outcomes] == [1, 2], "the first one ended early"
    await rig.close()


async def test_a_sweep_ends_with_the_lead_of_its_node() -> None:
    rig = Rig(groups={"offset": 1, "data": 1})
    await rig.open()
    driver = swept(await some_rows(rig))
    work, outcomes = work_of(rig.node), list["MetadError | None"]()
    work.sweep(driver, c.GroupCommand("sweep", 1, 1), outcomes.append)
    await asyncio.sleep(0)
    driver.group.ready = False
    await all_over(work)
    (outcome,) = outcomes
    assert isinstance(outcome, NotLeaderError)
    await rig.close()


async def test_a_sweep_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked for it waits as long as it takes."""
    rig = Rig(groups={"offset": 1, "data": 1})
    await rig.open()
    driver = await some_rows(rig)

    def fail(*_: Any) -> None:
        raise StorageError("the disk")

    monkeypatch.setattr(migration, "_pages", fail)
    work, outcomes = work_of(rig.node), list["MetadError | None"]()
    work.sweep(driver, c.GroupCommand("sweep", 1, 1), outcomes.append)
    await all_over(work)
    (outcome,) = outcomes
    assert isinstance(outcome, InternalError)
    await rig.close()


async def test_who_is_patient_waits_for_an_answer_until_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the sweep of a target with millions of rows, which takes longer than other requests may."""
    monkeypatch.setattr("metad.node.calls.leader_calls._ANSWER_S", 0)
    calls: list[Callable[[bytes | MetadError], None]] = []
    group = GroupId("data", 1)
    leaders = LeaderCalls(
        "a",
        SimpleNamespace(drivers={}, elsewhere=lambda _: SimpleNamespace(leader="b")),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(now=lambda: 0.0),  # type: ignore[arg-type]
        SimpleNamespace(call=lambda node, code, payload, done: calls.append(done)),  # type: ignore[arg-type]
    )
    steps = MigrationSteps(SimpleNamespace(drivers={}), leaders)  # type: ignore[arg-type]
    with pytest.raises(UnknownOutcomeError):
        await steps.ask_group(group, c.GroupCommand("import", 1))
    for answer in (encode(c.GroupReply([], [], index=7)), ConnectionLostError("b is lost")):
        waits = asyncio.ensure_future(steps.ask_group(group, c.GroupCommand("sweep", 1), patient=True))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waits.done()
        calls[-1](answer)
        if isinstance(answer, MetadError):
            with pytest.raises(ConnectionLostError):
                await waits
        else:
            assert (await waits).index == 7


# --- the tail ------------------------------------------------------------------------------------------------


async def test_a_tail_is_sent_while_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound that each write breaks, every page is followed by a tail; the newest rows are there in the end."""
    monkeypatch.setattr(migration, "_TAIL_BYTES", 0)
    scenario = Scenario(0, after=False)
    await scenario.run()
    assert scenario.steps.count("open") == 1


async def test_a_tail_is_bounded_while_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the memory of the source: whatever was written in the minutes of a copy was kept, with its values."""
    bound, written = 40_000, 10_000
    monkeypatch.setattr(migration, "_TAIL_BYTES", bound)
    rig = Rig(groups={"offset": 1, "data": 1})
    await rig.open()
    driver = await some_rows(rig)
    ((key, _), *_) = next(migration._pages(driver, min(KV.rows.values())))
    kept: list[int] = []

    def write() -> None:
        if len(kept) < 50:
            attempt._note([{driver.group.prefix + key + b"%d" % len(kept): bytes(written)}])  # type: ignore[arg-type]
        kept.append(sum(len(value or b"") for value in attempt._tail.values()))

    host = Written(rig.node.drivers, write)
    move = c.SlotMove(1, "data", 0, 1, b"\xff" * 128)
    attempt = migration._Migration(host, move, driver, driver.group.term, 1)
    with pytest.raises(NotLeaderError):  # the rows are copied
        await attempt.run()
    assert written < max(kept) <= bound + written
    assert len(kept) > 2 * bound / written
    await rig.close()


async def test_no_attempt_begins_with_more_orders_to_end_tenants_than_an_adoption_can_bring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the slots, which nobody has between a seal and an adoption that is refused."""
    monkeypatch.setattr("metad.state.cluster.tenant_ends.CARRIED_BYTES_MAX", 100)
    rig = Rig(groups={"offset": 1, "data": 1})
    node = await rig.open()
    host = Asked(node.drivers)
    move, driver = c.SlotMove(1, "data", 0, 1, b"\xff" * 128), node.drivers[GroupId("data", 0)]
    body = m.SessionEndTenant("t", True)
    reply = await rig.ask(SESSION_END_TENANT, body)
    assert reply.errors == []
    assert driver.machine.parts[TenantEnds].carried()
    with pytest.raises(TooLargeError):
        await migration._Migration(host, move, driver, driver.group.term, 1).run()
    assert host.steps == ["open"]
    await rig.close()


@pytest.mark.parametrize("rows", [migration._SHORT_TAIL + 1, 3])
async def test_a_move_ends_under_writers_that_are_faster_than_it(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the end of a move: it sent tails for as long as each was longer than a few hundred rows, whatever came
    meanwhile, and took a few rows of megabytes for a short tail."""
    monkeypatch.setattr(migration, "_SHORT_TAIL_BYTES", 100_000)
    rig = Rig(groups={"offset": 1, "data": 1})
    await rig.open()
    driver = await some_rows(rig)
    ((key, _), *_) = next(migration._pages(driver, min(KV.rows.values())))

    def write() -> None:
        prefix = driver.group.prefix + key
        attempt._note([{prefix + b"%d" % n: bytes(50_000) for n in range(rows)}])  # type: ignore[arg-type]

    host = Written(rig.node.drivers, write)
    move = c.SlotMove(1, "data", 0, 1, b"\xff" * 128)
    attempt = migration._Migration(host, move, driver, driver.group.term, 1)
    with pytest.raises(NotLeaderError):
        await attempt.run()
    assert host.steps[-1] == "seal"
    assert host.steps.count("seal") == 1
    assert host.steps.count("import") > 2
    await rig.close()
