"""Slots that move under writes, on a real node that dies at every step of the way and begins again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from server_rig import Rig

from metad.control import migration
from metad.raft.journal import REGULAR
from metad.state.entry import decode_entry
from metad.state.fences import Fences
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import SLOTS, slots_in
from metad_wire.errors import ConflictError, MetadError, NotLeaderError, StaleRouteError
from metad_wire.group import GroupId
from metad_wire.methods import (
    CLUSTER_ADD_GROUP,
    CLUSTER_MAP,
    CLUSTER_REBALANCE,
    GROUP_COMMAND,
    GROUP_FENCE,
    KV_GET,
    KV_PUT,
    SESSION_DISCONNECT,
    SESSION_LIST,
    SESSION_TAKEOVER,
    Method,
)
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
        sessions = [session for answer in answers for session in answer.reply(SESSION_LIST).sessions]
        assert sorted((s.client_id, s.broker) for s in sessions) == sorted(self.owners.items())

    async def check(self) -> None:
        records = [(await self.ask(KV_GET, m.KvGet([m.KvKey(name, "k")]))).records[0] for name in NAMESPACES]
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
            assert [(item.broker, item.least_epoch) for item in fences.carried()] == [("zombie", self.fenced)]

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


async def test_who_lost_the_lead_seals_nothing_at_its_successor() -> None:
    """Guards the source's steps: one that is passed on seals slots whose newest rows the copying node has not seen."""
    rig = Rig(groups={"offset": 1, "data": 1})
    node = await rig.open()
    asked: list[str] = []

    class Host:
        drivers = node.drivers

        async def ask_here(self, group: GroupId, command: c.GroupCommand) -> c.GroupReply:
            asked.append(command.step)
            raise NotLeaderError

        async def ask_group(self, group: GroupId, command: c.GroupCommand) -> c.GroupReply:
            asked.append(command.step)
            assert group.name == "data-1", "the source's steps are its leader's own"
            return c.GroupReply([], [])

        async def ask_metadata(self, body: c.Moved) -> None:
            raise AssertionError("it is not done")

    move = c.SlotMove(1, "data", 0, 1, b"\xff" * 128)
    driver = node.drivers[GroupId("data", 0)]
    attempt = migration._Migration(Host(), move, driver, driver.group.term, 1)
    with pytest.raises(NotLeaderError):
        await attempt.run()
    assert asked == ["open", "sweep", "seal"]
    assert not driver._listeners
    attempt = migration._Migration(Host(), move, driver, driver.group.term - 1, 2)
    with pytest.raises(MetadError, match="another led"):
        await attempt.run()
    assert asked[3:] == ["open", "sweep"]
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

        async def ask_group(self, group: GroupId, command: c.GroupCommand) -> c.GroupReply:
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

        async def ask_group(self, group: GroupId, command: c.GroupCommand) -> c.GroupReply:
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
