"""The registry of brokers at work, on a metadata group in memory, groups that answer when the test says so, and a clock
that the test moves."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metad.config import Config
from metad.control.brokers import brokers as module
from metad.control.brokers import fencing
from metad.control.brokers.brokers import AT_LEAST_EPOCH_MAX, Brokers
from metad.control.brokers.evidence import GRACE_S as REDIAL_S
from metad.control.brokers.evidence import Answer
from metad.control.brokers.fencing import Fencing
from metad.raft.log.journal import REGULAR, record
from metad.state.cluster.brokers import read_brokers
from metad.state.cluster.fences import Fence
from metad.state.cluster.tenant_ends import ORDERS_BYTES_MAX
from metad.state.core.entry import decode_entry
from metad.state.core.part import NodeMemory
from metad.state.live.liveness import RESUME_S
from metad.state.machine import Machine
from metad.state.registry import VERBS
from metad.storage import keys
from metad.storage.memory import MemoryEngine
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import METADATA, ClusterMap, FenceItem, GroupFence, GroupId, GroupRecord
from metad_wire.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    MetadError,
    NoRoomError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
    QuotaExceededError,
    TooLargeError,
    UnknownOutcomeError,
)
from metad_wire.methods import BROKER_CHANGE, CLUSTER_STORE, METHODS, encode
from metad_wire.tables import broker as b
from metad_wire.tables.broker import Broker
from metad_wire.transport.credentials import Principal, Role

DATA, OFFSET = GroupId("data", 0), GroupId("offset", 0)
LEASE_S = 10.0
LOOKS_S = 0.2
"""Two looks end a life."""


class World:
    """A node that leads metadata-0, as its registry of brokers sees it."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.now_s = 1_000.0
        self.timers: list[SimpleNamespace] = []
        self.engine = MemoryEngine()
        self.machine = Machine(METADATA, self.engine, NodeMemory(Config()), clock=self.now, wall_ms=self.wall_ms)
        self.last = 0
        self.group = SimpleNamespace(ready=True, term=1, leader="n1", read=self.read)
        self.no_room = ""
        driver = SimpleNamespace(group=self.group, machine=self.machine, no_room=lambda: self.no_room)
        self.drivers: Any = {METADATA: driver}
        self.proven = True
        self.reads: list[Callable[[bool], None]] = []
        self.broken: MetadError | None = None
        self.held: list[Callable[[], None]] | None = None
        self.changes: list[b.BrokerChange] = []
        self.dark: set[GroupId] = set()
        self.fences: dict[GroupId, list[list[FenceItem]]] = {}
        self.forgotten: dict[GroupId, list[list[str]]] = {}
        self.unswept: set[str] = set()
        self.answers: list[Answer] = []
        """To dials, in order; then nobody answers."""
        self.dials: list[tuple[str, int]] = []
        self.map = ClusterMap(0, [], [], {})
        self.store_map("metadata", "offset", "data")
        self.stood_still = False
        self.brokers = Brokers(self, self, self, self.look)

    # --- what the registry needs of the node ---

    def now(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1_000)

    def look(self, _: float) -> None:
        if self.stood_still:
            self.stood_still = False
            self.brokers.overslept()

    def call_at(self, when_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        timer = SimpleNamespace(when_s=when_s, callback=callback)
        timer.cancel = lambda: self.timers.remove(timer) if timer in self.timers else None
        self.timers.append(timer)
        return timer

    def read(self, done: Callable[[bool], None]) -> None:
        done(True) if self.proven else self.reads.append(done)

    def change(self, body: b.BrokerChange, done: Any) -> None:
        def write() -> None:
            self.changes.append(body)
            done(self.broken or self.write(BROKER_CHANGE, body))

        write() if self.held is None else self.held.append(write)

    async def fence(self, group: GroupId, body: GroupFence) -> m.WriteReply:
        await asyncio.sleep(0)
        if group in self.dark:
            raise NotLeaderError("nobody leads it")
        if body.items:
            self.fences.setdefault(group, []).append(body.items)
        if body.forget:
            self.forgotten.setdefault(group, []).append([item.broker for item in body.forget])
        errors = [m.ItemError(at, 203) for at, item in enumerate(body.forget) if item.broker in self.unswept]
        return m.WriteReply([], errors)

    def dial(self, host: str, port: int, done: Callable[[Answer], None]) -> None:
        self.dials.append((host, port))
        if self.answers:
            done(self.answers.pop(0))

    # --- what the test does ---

    def write(self, method: Any, body: Any) -> Any:
        self.last += 1
        commands: list[Any] = [(VERBS[method.code].command(body), None)]
        proposal = self.machine.evaluate(commands, self.last, int(self.now_s * 1000))
        batches: list[Any] = []
        entry = decode_entry("metadata-0", self.last, record(1, REGULAR, proposal.payload))
        self.machine.stage(self.last, entry, batches)
        self.engine.write(*batches)
        self.machine.staged()
        return proposal.outcomes[0]

    def store_map(self, *kinds: str) -> None:
        """Groups of these kinds, numbered."""
        groups = [GroupRecord(kind, kinds[:at].count(kind), ["n1"], ["n1"]) for at, kind in enumerate(kinds)]
        following = ClusterMap(self.map.version + 1, [], groups, {})
        assert isinstance(self.write(CLUSTER_STORE, c.StoreMap(self.map.version, following)), bytes)
        self.map = following

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def pass_s(self, seconds: float, *, late: bool = False) -> None:
        """Time passes. ``late``: the node does not run meanwhile."""
        end_s = self.now_s + seconds
        if late:
            self.now_s, self.stood_still = end_s, True
        while True:
            due = min((timer for timer in self.timers if timer.when_s <= end_s), key=lambda t: t.when_s, default=None)
            if due is None:
                break
            self.now_s = max(self.now_s, due.when_s)
            self.timers.remove(due)
            due.callback()
            await self.settle()
        self.now_s = end_s

    def begin(self, body: Any, arrived_s: float | None = None, source: Any = None) -> list[Any]:
        """The answers so far, decoded."""
        answers: list[Any] = []
        method = next(one for one in METHODS.values() if one.body is type(body))

        def done(result: bytes | MetadError) -> None:
            answers.append(result if isinstance(result, MetadError) else method.decode_reply(result))

        try:
            self.brokers.handle(body, done, self.now_s if arrived_s is None else arrived_s, source)
        except MetadError as error:
            answers.append(error)
        return answers

    async def ask(self, body: Any, arrived_s: float | None = None, source: Any = None) -> Any:
        """Raises MetadError."""
        answers = self.begin(body, arrived_s, source)
        await self.settle()
        (answer,) = answers
        if isinstance(answer, MetadError):
            raise answer
        return answer

    async def register(self, name: str, **fields: Any) -> int:
        registered = await self.ask(b.BrokerRegister(name, **fields))
        assert registered.unfenced == []
        epoch: int = registered.broker_epoch
        return epoch

    async def beat(
        self, name: str, epoch: int, arrived_s: float | None = None, source: Any = None, load: int = 0
    ) -> str:
        """The state that the broker is in, or the name of the error."""
        reply = await self.ask(b.BrokerHeartbeat([b.BrokerBeat(name, epoch, load)]), arrived_s, source)
        if reply.errors:
            assert reply.leases_ms == [0]
            return {201: "fenced", 200: "not_found", 203: "conflict"}[reply.errors[0].code]
        assert reply.leases_ms == [10_000]
        return str(reply.states[0])

    def known(self, name: str) -> Broker:
        return self.brokers._records[name]

    def fenced(self, group: GroupId) -> dict[str, int]:
        """The fences that a group was told."""
        found: dict[str, int] = {}
        for items in self.fences.get(group, []):
            for item in items:
                found[item.broker] = max(item.least_epoch, found.get(item.broker, 0))
        return found

    def told(self, group: GroupId, name: str) -> tuple[int, bool, int, int] | None:
        """What a group was told of a broker, merged."""
        told = [item for items in self.fences.get(group, []) for item in items if item.broker == name]
        return functools.reduce(FenceItem.merged, told).values if told else None

    def lead_anew(self) -> None:
        """Another leadership begins."""
        self.group.term += 1
        self.brokers.follow(self.map)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)


# --- registration ----------------------------------------------------------------------------------------


async def test_a_registration_is_answered_once_every_group_has_the_fence() -> None:
    world = World()
    world.dark = {OFFSET}
    answers = world.begin(b.BrokerRegister("b1", address="h:1"))
    await world.settle()
    assert (answers, world.fenced(DATA)) == ([], {"b1": 2})
    assert world.known("b1").state == "registered"
    world.dark = set()
    await world.settle()
    assert answers == [b.BrokerRegistered(2, 10_000, [])]
    assert world.fenced(OFFSET) == {"b1": 2}
    assert world.fenced(METADATA) == {"b1": 2}
    assert world.known("b1").state == "active"


async def test_a_group_without_a_quorum_is_named_and_fenced_when_it_is_back() -> None:
    world = World()
    world.store_map("metadata", "offset", "data", "data")
    world.dark = {GroupId("data", 1)}
    answers = world.begin(b.BrokerRegister("b1", wait_ms=2_000))
    await world.pass_s(1.9)
    assert answers == []
    await world.pass_s(0.2)
    assert answers == [b.BrokerRegistered(3, 10_000, ["data-1"])]
    assert await world.beat("b1", 3) == "registered"
    world.dark = set()
    await world.settle()
    assert await world.beat("b1", 3) == "active"


async def test_a_group_that_is_added_meanwhile_is_fenced_before_the_answer() -> None:
    world = World()
    world.dark = {OFFSET}
    answers = world.begin(b.BrokerRegister("b1"))
    await world.settle()
    world.store_map("metadata", "offset", "data", "data")
    world.dark = {GroupId("data", 1)}
    await world.settle()
    assert (answers, world.fenced(OFFSET)) == ([], {"b1": 2})
    world.dark = set()
    await world.settle()
    assert answers == [b.BrokerRegistered(2, 10_000, [])]
    assert world.fenced(GroupId("data", 1)) == {"b1": 2}


async def test_a_group_that_is_added_while_the_end_is_noted_is_fenced_too() -> None:
    world = World()
    world.held = []
    answers = world.begin(b.BrokerRegister("b1"))
    world.held.pop()()
    await world.settle()
    assert len(world.held) == 1, "all groups have it, and that is to be noted"
    world.store_map("metadata", "offset", "data", "data")
    world.dark = {GroupId("data", 1)}
    note, world.held = world.held[0], None
    note()
    await world.settle()
    assert (answers, world.known("b1").fenced) == ([], False)
    world.dark = set()
    await world.settle()
    assert answers == [b.BrokerRegistered(2, 10_000, [])]
    assert world.fenced(GroupId("data", 1)) == {"b1": 2}


async def test_only_new_names_are_refused_while_the_disks_are_short_of_room() -> None:
    world = World()
    epoch = await world.register("b1")
    world.no_room = "the disk of n1 is nearly full"
    with pytest.raises(NoRoomError, match="n1"):
        await world.register("b2")
    assert await world.register("b1") > epoch


async def test_each_registration_is_a_new_life_and_the_one_before_is_over() -> None:
    world = World()
    first, second = await world.register("b1"), await world.register("b1")
    assert second > first
    assert await world.beat("b1", first) == "fenced"
    assert await world.beat("b1", second) == "active"
    assert world.fenced(DATA) == {"b1": second}
    assert await world.register("b1", at_least_epoch=500) == 500


async def test_fences_of_many_brokers_share_a_request() -> None:
    world = World()
    world.dark = {DATA}
    answers = [world.begin(b.BrokerRegister(f"b{number}")) for number in range(20)]
    await world.settle()
    world.dark = set()
    await world.settle()
    assert all(len(answer) == 1 for answer in answers)
    assert [len(items) for items in world.fences[DATA]] == [20]


@pytest.mark.parametrize(
    "wrong",
    [
        {"broker": ""},
        {"broker": "x" * 257},
        {"lease_ms": 499},
        {"lease_ms": 3_600_001},
        {"address": "x" * 1_025},
        {"attributes": {"a": "x" * 17_000}},
        {"at_least_epoch": AT_LEAST_EPOCH_MAX + 1},
    ],
)
async def test_a_registration_that_breaks_a_bound_is_refused(wrong: dict[str, Any]) -> None:
    world = World()
    with pytest.raises(InvalidRequestError):
        await world.ask(b.BrokerRegister(**{"broker": "b1", **wrong}))
    assert not world.changes


async def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_BYTES_MAX", 4 * fencing.NAME_BYTES)
    world = World()
    for name in ("b1", "b2"):  # their owners have ended them, but their fences are still known
        await world.register(name)
        await world.ask(b.BrokerFence(name))
    await world.register("b3")
    with pytest.raises(ConflictError, match="cannot be forgotten yet"):
        await world.register("b4" * 60)
    await world.register("b4")
    await world.register("b3")


async def test_a_long_name_takes_room_for_the_fence_that_every_group_carries() -> None:
    """An adoption of slots carries all of them in one entry, which also has orders to end tenants."""
    for name in ("b", "b" * 30, "b" * 256, "é" * 128):
        row = (
            len(encode(Fence(2**62, 2**62, 0, True, 2**62, 2**62))) + keys.GROUP_PREFIX_BYTES + 1 + len(keys.text(name))
        )
        count = fencing.NAMES_BYTES_MAX // fencing.bytes_of(name, 0)
        assert count > 4_096
        assert count * row < m.CHANGE_BYTES_MAX - 2 * ORDERS_BYTES_MAX


@pytest.fixture
def few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "FORGET_FROM", 3 * fencing.NAME_BYTES)
    monkeypatch.setattr(fencing, "AT_ONCE_MAX", 2)


async def ended(world: World, *names: str) -> None:
    for name in names:
        await world.register(name, lease_ms=500)
        await world.pass_s(RESUME_S + 1.0)  # its lease is over, and what a new leader gives


DAY_S = fencing.FORGET_AFTER_MS / 1000


@pytest.mark.usefixtures("few_names")
async def test_who_ended_long_ago_makes_room_for_new_names_the_first_that_ended_first() -> None:
    world = World()
    await ended(world, "a", "b", "c")
    await world.register("new")
    await world.settle()
    assert not world.forgotten, "nobody ended a day ago"
    await world.pass_s(DAY_S)
    epoch = await world.register("new", lease_ms=3_600_000)
    await world.settle()
    assert world.forgotten == {METADATA: [["a", "b"]], DATA: [["a", "b"]], OFFSET: [["a", "b"]]}
    assert sorted(read_brokers(world.engine)) == ["c", "new"] == sorted(world.brokers._records)
    assert await world.register("a") > epoch, "the entry's index has grown"


@pytest.mark.usefixtures("few_names")
async def test_nobody_is_forgotten_whom_a_group_must_keep() -> None:
    world = World()
    await ended(world, "a", "b", "c")
    await world.pass_s(DAY_S)
    world.unswept = {"a"}
    await world.register("new")
    await world.settle()
    assert sorted(read_brokers(world.engine)) == ["a", "c", "new"]
    assert world.brokers._taken.sizes.keys() == {"a", "c", "new"}


@pytest.mark.usefixtures("few_names")
@pytest.mark.parametrize("comes_between", ["a dark group", "another map", "a registration"])
async def test_forgetting_begins_again_after(comes_between: str) -> None:
    world = World()
    await ended(world, "a", "b", "c")
    await world.pass_s(DAY_S)
    if comes_between == "a dark group":
        world.dark = {DATA}
        world.begin(b.BrokerRegister("c", wait_ms=1))
        await world.settle()
    else:
        world.held = []
        world.begin(b.BrokerRegister("c"))
        await world.settle()
        while len(world.held) < 2:
            await world.settle()
        held, world.held = world.held, None
        if comes_between == "another map":
            world.store_map("metadata", "offset", "data", "data")
        else:
            held.insert(0, lambda: world.write(BROKER_CHANGE, b.BrokerChange([_again("a"), _again("b")])))
        for write in held:
            write()
    await world.settle()
    assert {"a", "b"} <= read_brokers(world.engine).keys()
    world.dark = set()
    if comes_between != "a registration":
        world.begin(b.BrokerRegister("new"))
        await world.settle()
        assert sorted(read_brokers(world.engine)) == ["c", "new"]


@pytest.mark.usefixtures("few_names")
@pytest.mark.parametrize("by", ["its owner", "an administrator"])
async def test_a_name_that_somebody_has_ended_makes_room_at_once(by: str) -> None:
    world = World()
    await ended(world, "silent")
    for name in ("a", "b"):
        epoch = await world.register(name)
        end = b.BrokerDeregister(name, epoch) if by == "its owner" else b.BrokerFence(name)
        await world.ask(end)
    assert list(world.brokers._places) == ["silent"], "the others take no room any more"
    if by == "an administrator":
        await world.register("new")
        await world.settle()
        assert {"a", "b"} <= read_brokers(world.engine).keys(), "they may serve for as long as their leases run"
        await world.pass_s(LEASE_S - 1.0)
        await world.beat("new", world.known("new").broker_epoch)
        await world.pass_s(2.0)
    await world.register("new")
    await world.settle()
    assert sorted(read_brokers(world.engine)) == ["new", "silent"]


class Holder:
    """The connection of a client whose certificate names it, from one host for all."""

    host = "10.0.0.7"

    def __init__(self, name: str) -> None:
        self.principal = Principal(Role.CLIENT, name)
        self.holder = self.principal.uri


async def test_who_takes_all_names_that_it_can_leaves_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_BYTES_MAX", 16 * fencing.NAME_BYTES)
    world = World()

    async def fill(holder: str, **fields: Any) -> int:
        count = 0
        while True:
            (answer,) = world.begin(
                b.BrokerRegister(f"{holder}-{count}", wait_ms=0, **fields), source=Holder(holder)
            ) or [0]
            await world.settle()
            if isinstance(answer, QuotaExceededError):
                return count
            count += 1

    assert await fill("hog") == 8
    assert world.known("hog-0").registered_by == "metad://client/hog"
    assert await fill("other") == 4
    assert await fill("large", attributes={"a": "x" * 2_000}) == 1, "names count with what they bring"
    again = await world.ask(b.BrokerRegister("hog-0"), source=Holder("hog"))
    assert again.broker_epoch, "a name that there is begins its next life"
    await world.ask(b.BrokerFence("hog-1"))
    assert await fill("more") == 1
    world.brokers._end_leadership()
    world.brokers.follow(world.map)
    with pytest.raises(QuotaExceededError, match="fence"):  # the next leader knows who has registered what
        await world.ask(b.BrokerRegister("hog-new"), source=Holder("hog"))


def _again(name: str) -> b.BrokerStep:
    return b.BrokerStep("register", name, 0, b.BrokerRegister(name))


async def test_names_are_bounded_also_while_many_register_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the bound: names whose registrations were being written did not count."""
    monkeypatch.setattr(module, "NAMES_BYTES_MAX", 8 * fencing.NAME_BYTES)
    world = World()
    for name in ("x1", "x2", "x3", "x4"):
        await world.register(name)
        await world.ask(b.BrokerFence(name))
    world.held = []
    answers = [
        world.begin(b.BrokerRegister(name), source=Holder(holder))
        for name, holder in (("b1", "a"), ("b1", "a"), ("b2", "a"), ("b3", "a"), ("b4", "c"), ("b5", "c"))
    ]
    held, world.held = world.held, None
    for write in held:
        write()
    await world.settle()
    refused = [isinstance(answer, ConflictError) for (answer,) in answers]
    assert refused == [False, False, False, False, False, True]


async def test_a_name_that_was_not_written_takes_no_room() -> None:
    world = World()
    world.broken = UnknownOutcomeError("")
    with pytest.raises(UnknownOutcomeError):
        await world.ask(b.BrokerRegister("b1"))
    assert world.brokers._taken.total == 0


async def test_few_changes_of_one_broker_are_under_way_at_a_time() -> None:
    """Each takes an entry of its own: 100,000 of them once kept the node from saying that a broker is over."""
    world = World()
    epoch = await world.register("b1")
    world.held = []
    answers = [world.begin(b.BrokerRegister("b1")) for _ in range(module._ASKED_MAX)]
    for more in (b.BrokerRegister("b1"), b.BrokerDrain("b1", epoch), b.BrokerDeregister("b1", epoch)):
        (refused,) = world.begin(more)
        assert isinstance(refused, OverloadedError)
        assert refused.retry_after_ms
    other = world.begin(b.BrokerRegister("b2"))
    held, world.held = world.held, None
    assert len(held) == module._ASKED_MAX + 1
    for write in held:
        write()
    await world.settle()
    assert all(isinstance(answer, b.BrokerRegistered) for (answer,) in [*answers, other])
    assert await world.register("b1") > epoch
    assert not world.brokers._asked


async def test_no_registration_uses_up_the_epochs_of_a_name() -> None:
    """Guards the bound: after two registrations with the greatest number the node could not read its own records."""
    world = World()
    first = await world.register("b1", at_least_epoch=AT_LEAST_EPOCH_MAX)
    assert first == AT_LEAST_EPOCH_MAX
    await world.ask(b.BrokerDeregister("b1", first))
    assert await world.register("b1", at_least_epoch=AT_LEAST_EPOCH_MAX) == first + 1


# --- silence ---------------------------------------------------------------------------------------------


async def test_a_lease_counts_from_the_answer_to_the_registration() -> None:
    world = World()
    world.dark = {DATA}
    answers = world.begin(b.BrokerRegister("b1", wait_ms=9_000))
    await world.pass_s(9.1)
    assert answers[0].unfenced == ["data-0"]
    await world.pass_s(LEASE_S - 0.5)
    assert world.known("b1").state == "registered"
    await world.pass_s(1.0)
    assert world.known("b1").state == "fenced"


async def test_who_waits_for_its_registration_is_not_silent() -> None:
    """A slow group takes longer than the lease."""
    world = World()
    world.dark = {DATA}
    answers = world.begin(b.BrokerRegister("b1", wait_ms=60_000))
    await world.pass_s(3.0 * LEASE_S)
    assert (answers, world.known("b1").state) == ([], "registered")
    world.dark = set()
    await world.settle()
    assert answers[0].unfenced == []
    await world.pass_s(LEASE_S - 0.5)
    assert world.known("b1").state == "active"
    await world.pass_s(1.0)
    assert world.known("b1").state == "fenced"


async def test_a_heartbeat_of_an_earlier_life_keeps_no_later_one_alive() -> None:
    world = World()
    first = await world.register("b1")
    await world.register("b1")
    for _ in range(4):
        await world.pass_s(LEASE_S / 3)
        assert await world.beat("b1", first) == "fenced"
    assert world.known("b1").state == "fenced"


async def test_the_lease_of_a_new_life_is_its_own() -> None:
    world = World()
    await world.register("b1", lease_ms=1_000)
    await world.register("b1", lease_ms=60_000)
    await world.pass_s(50.0)
    assert world.known("b1").state == "active"


async def test_an_answer_that_waits_no_longer_names_a_group_also_if_only_the_note_is_missing() -> None:
    """Whoever reads that no group is named may rely on the fence, also in groups that were added since."""
    world = World()
    notes: list[Callable[[], None]] = []
    change = world.change

    def held(body: b.BrokerChange, done: Any) -> None:
        if body.steps[0].step == "fenced":
            notes.append(lambda: change(body, done))
        else:
            change(body, done)

    world.change = held  # type: ignore[method-assign]
    answers = world.begin(b.BrokerRegister("b1", wait_ms=1_000))
    await world.pass_s(1.1)
    assert notes
    assert world.fenced(DATA) == world.fenced(OFFSET) == {"b1": answers[0].broker_epoch}
    assert answers[0].unfenced == ["metadata-0"]


async def test_who_is_silent_for_its_lease_is_fenced_with_one_write_in_every_group() -> None:
    world = World()
    for name in ("b1", "b2", "b3"):
        await world.register(name)
    world.fences.clear()
    changes = len(world.changes)
    await world.pass_s(LEASE_S - 0.2)
    assert await world.beat("b3", world.known("b3").broker_epoch) == "active"
    await world.pass_s(0.2 + LOOKS_S)
    assert {name: world.known(name).state for name in ("b1", "b2", "b3")} == {
        "b1": "fenced",
        "b2": "fenced",
        "b3": "active",
    }
    assert [len(change.steps) for change in world.changes[changes:]] == [2, 2], "the end, and that all groups know"
    assert [[item.broker for item in items] for items in world.fences[DATA]] == [["b1", "b2"]]
    assert [len(items) for items in world.fences[OFFSET]] == [2]
    epoch = world.known("b1").broker_epoch
    assert world.fenced(DATA)["b1"] == epoch + 1
    assert await world.beat("b1", epoch) == "fenced"


async def test_heartbeats_write_nothing_and_count_from_their_arrival() -> None:
    world = World()
    epoch = await world.register("b1")
    changes = len(world.changes)
    for _ in range(10):
        await world.pass_s(LEASE_S - 1)
        assert await world.beat("b1", epoch, arrived_s=world.now_s - 0.5) == "active"
    assert len(world.changes) == changes
    await world.pass_s(LEASE_S - 0.5 - 0.05)
    assert world.known("b1").state == "active"
    await world.pass_s(0.3)
    assert world.known("b1").state == "fenced"


async def test_a_heartbeat_that_waited_for_its_turn_counts_although_the_lease_is_over_by_now() -> None:
    world = World()
    epoch = await world.register("b1")
    arrived_s = world.now_s + LEASE_S - 0.01
    await world.pass_s(LEASE_S + 0.05)
    assert await world.beat("b1", epoch, arrived_s) == "active"
    await world.pass_s(LEASE_S - 1)
    assert world.known("b1").state == "active"


async def test_heartbeats_of_no_life_are_refused() -> None:
    world = World()
    epoch = await world.register("b1")
    assert await world.beat("nobody", 1) == "not_found"
    assert await world.beat("b1", epoch + 1) == "fenced"
    assert await world.beat("b1", epoch - 1) == "fenced"


async def test_a_life_whose_end_is_being_written_is_not_told_that_it_lives() -> None:
    world = World()
    epoch = await world.register("b1")
    world.held = []
    await world.pass_s(LEASE_S + LOOKS_S + 0.1)
    assert len(world.held) == 1
    assert await world.beat("b1", epoch) == "conflict"
    write, world.held = world.held[0], None
    write()
    assert await world.beat("b1", epoch) == "fenced"


@pytest.mark.parametrize(
    "noted", [b.BrokerStep("fenced", "b1", 2), b.BrokerStep("drain", "b1", 2)], ids=lambda s: s.step
)
async def test_what_is_noted_of_a_life_meanwhile_does_not_take_its_end_back(noted: b.BrokerStep) -> None:
    world = World()
    world.dark = {DATA}
    world.begin(b.BrokerRegister("b1", wait_ms=1_000))
    world.held = []
    await world.pass_s(1.0 + LEASE_S + LOOKS_S + 0.1)
    (expire,), world.held = world.held, None
    world.brokers._change([noted], lambda *_: None)
    assert await world.beat("b1", 2) == "conflict"
    expire()
    assert await world.beat("b1", 2) == "fenced"


async def test_an_end_that_could_not_be_written_is_none() -> None:
    world = World()
    epoch = await world.register("b1")
    world.broken = UnknownOutcomeError("")
    await world.pass_s(LEASE_S + LOOKS_S + 0.1)
    assert await world.beat("b1", epoch) == "active"
    await world.pass_s(LEASE_S + LOOKS_S + 0.1)
    world.broken = None
    assert world.known("b1").state == "active"
    await world.pass_s(LEASE_S + LOOKS_S + 0.1)
    assert world.known("b1").state == "fenced", "it is tried again, without a heartbeat"


async def test_a_life_that_begins_while_the_end_of_the_last_one_is_written_lives_on() -> None:
    world = World()
    await world.register("b1")
    world.held = []
    await world.pass_s(LEASE_S + LOOKS_S + 0.1)
    (expire,), world.held = world.held, None
    epoch = await world.register("b1")
    expire()
    await world.settle()
    assert await world.beat("b1", epoch) == "active"
    await world.pass_s(LEASE_S + LOOKS_S + 0.1)
    assert world.known("b1").state == "fenced"


# --- who serves on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", ["a registration", "an administrator"])
async def test_who_is_ended_while_its_lease_runs_is_quiet_in_every_group_a_lease_later(over: str) -> None:
    world = World()
    first = await world.register("b1")
    assert world.told(DATA, "b1") == (first, True, 0, first)
    await world.pass_s(LEASE_S - 1.0)
    if over == "a registration":
        second = await world.register("b1", lease_ms=60_000, clean_epoch=first)
    else:
        await world.ask(b.BrokerFence("b1"))
        second = first + 1
    ended = (second, over == "a registration", 0)
    assert world.told(DATA, "b1") == (*ended, first)
    await world.pass_s(LEASE_S - LOOKS_S)
    assert world.told(DATA, "b1") == (*ended, first), "its last heartbeat may have been acknowledged just before"
    await world.pass_s(2 * LOOKS_S)
    assert [world.told(group, "b1") for group in (METADATA, OFFSET, DATA)] == [(*ended, second)] * 3
    assert world.known("b1").told
    assert len(world.brokers._serving) == len(world.brokers._fencing) == 0


async def test_who_has_stopped_is_quiet_with_the_fence() -> None:
    world = World()
    epoch = await world.register("b1")
    await world.pass_s(LEASE_S + 2 * LOOKS_S)
    assert world.told(DATA, "b1") == (epoch + 1, False, 0, epoch + 1), "it was silent"
    again = await world.register("b1", clean_epoch=epoch)
    assert world.told(DATA, "b1") == (again, True, 0, again)
    unclean = await world.register("b1", sole=True, registration=11)
    assert world.told(DATA, "b1") == (unclean, True, unclean, unclean)


async def test_a_life_that_begins_with_the_epoch_of_the_death_before_is_told() -> None:
    world = World()
    epoch = await world.register("b1", at_least_epoch=500)
    await world.ask(b.BrokerDeregister("b1", epoch))
    assert await world.register("b1") == epoch + 1
    assert world.told(DATA, "b1") == (501, True, 501, 501)
    assert world.known("b1").told


async def test_a_new_leader_waits_for_a_whole_lease_until_a_life_is_quiet() -> None:
    world = World()
    first = await world.register("b1")
    await world.register("b1", lease_ms=60_000)
    for _ in range(3):
        await world.pass_s(LEASE_S - 1.0)
        world.lead_anew()
    await world.pass_s(LEASE_S - LOOKS_S)
    assert world.known("b1").quiet_epoch == first
    await world.pass_s(2 * LOOKS_S)
    assert world.known("b1").quiet_epoch > first


async def test_a_leader_that_stood_still_waits_for_a_whole_lease_until_a_life_is_quiet() -> None:
    world = World()
    first = await world.register("b1")
    await world.register("b1", lease_ms=60_000)
    await world.pass_s(20.0, late=True)
    await world.pass_s(LEASE_S - LOOKS_S)
    assert world.known("b1").quiet_epoch == first
    await world.pass_s(3 * LOOKS_S)
    assert world.known("b1").quiet_epoch > first


async def test_the_next_leader_tells_what_is_quiet() -> None:
    world = World()
    first = await world.register("b1")
    second = await world.register("b1", lease_ms=60_000)
    world.dark = {OFFSET}
    await world.pass_s(LEASE_S + 1.0)
    assert world.told(DATA, "b1") == (second, True, second, second)
    assert world.told(OFFSET, "b1") == (second, True, second, first)
    assert (world.known("b1").fenced, world.known("b1").told) == (True, False)
    world.dark = set()
    world.lead_anew()
    await world.settle()
    assert world.told(OFFSET, "b1") == world.told(DATA, "b1")
    assert world.known("b1").told


async def test_what_is_quiet_is_written_again_if_it_was_not() -> None:
    world = World()
    first = await world.register("b1")
    await world.register("b1", lease_ms=60_000)
    world.broken = UnknownOutcomeError("lost")
    await world.pass_s(LEASE_S + 1.0)
    assert world.known("b1").quiet_epoch == first
    world.broken = None
    await world.pass_s(1.0)
    assert world.known("b1").quiet_epoch > first


async def test_lives_that_follow_each_other_fast_become_quiet_as_well() -> None:
    world = World()
    epochs = []
    for _ in range(12):
        epochs.append(await world.register("b1"))
        await world.pass_s(LEASE_S / 4)
    assert epochs[4] <= world.known("b1").quiet_epoch < epochs[8]
    await world.ask(b.BrokerDeregister("b1", epochs[-1]))
    await world.pass_s(2 * LEASE_S + 1.0)
    assert world.known("b1").quiet_epoch == epochs[-1] + 1
    assert world.timers == []


# --- nobody is fenced because the service was slow -----------------------------------------------------


async def test_leases_stand_still_while_the_node_does_not_run() -> None:
    world = World()
    epoch = await world.register("b1")
    await world.pass_s(LEASE_S - 1)
    await world.pass_s(60.0, late=True)
    assert world.known("b1").state == "active"
    assert await world.beat("b1", epoch) == "active"
    await world.pass_s(LEASE_S - 0.5)
    assert world.known("b1").state == "active"
    await world.pass_s(1.0)
    assert world.known("b1").state == "fenced", "its clock goes on"


async def test_who_is_suspected_of_silence_before_a_standstill_has_a_whole_lease() -> None:
    world = World()
    await world.register("b1")
    while not world.brokers._silence._proven:
        await world.pass_s(0.05)
    await world.pass_s(60.0, late=True)
    await world.pass_s(LEASE_S - 0.5)
    assert world.known("b1").state == "active"
    await world.pass_s(1.0)
    assert world.known("b1").state == "fenced"


async def test_what_is_heard_before_the_late_tick_counts_for_one_lease() -> None:
    """An event loop may look at what has come before its timers: the time that was lost must not count, too."""
    world = World()
    epoch = await world.register("b1")
    await world.pass_s(1.0)
    world.now_s += 60.0
    world.stood_still = True
    assert await world.beat("b1", epoch) == "active"
    await world.pass_s(LEASE_S - 0.5)
    assert world.known("b1").state == "active"
    await world.pass_s(1.0)
    assert world.known("b1").state == "fenced"


async def test_what_came_before_the_node_stood_still_counts_from_when_it_came() -> None:
    world = World()
    epoch = await world.register("b1")
    await world.pass_s(LEASE_S - 1)
    arrived_s = world.now_s
    await world.pass_s(60.0, late=True)
    assert await world.beat("b1", epoch, arrived_s) == "active"
    await world.pass_s(LEASE_S - 0.5)
    assert world.known("b1").state == "active"
    await world.pass_s(1.0)
    assert world.known("b1").state == "fenced"


async def test_a_new_leader_gives_everybody_a_whole_lease_and_goes_on_with_fences() -> None:
    world = World()
    await world.register("b1")
    await world.pass_s(LEASE_S - 1)
    world.dark = {OFFSET}
    pending = world.begin(b.BrokerRegister("b2"))
    await world.settle()
    world.group.ready = False
    world.brokers.follow(world.map)
    assert isinstance(pending[0], NotLeaderError)
    with pytest.raises(NotLeaderError):
        await world.ask(b.BrokerList())
    await world.pass_s(50.0)
    assert (world.timers, world.fenced(OFFSET)) == ([], {"b1": 2})
    world.group.ready, world.group.term, world.dark = True, 2, set()
    world.brokers.follow(world.map)
    await world.settle()
    assert world.known("b2").state == "active"
    assert world.fenced(OFFSET) == {"b1": 2, "b2": world.known("b2").broker_epoch}
    await world.pass_s(LEASE_S - 0.5)
    assert world.known("b1").state == "active"
    await world.pass_s(1.0)
    assert world.known("b1").state == "fenced"


async def test_a_leader_that_leads_again_without_having_noticed_the_other_one_begins_anew() -> None:
    world = World()
    await world.register("b1")
    await world.pass_s(LEASE_S - 1)
    world.group.term = 3
    await world.pass_s(2.0)
    assert world.known("b1").state == "active"


async def test_a_heartbeat_is_acknowledged_only_by_who_certainly_leads() -> None:
    world = World()
    epoch = await world.register("b1")
    world.proven = False
    for ok, outcome in ((False, NotLeaderError), (True, b.BrokerHeartbeatReply)):
        answers = world.begin(b.BrokerHeartbeat([b.BrokerBeat("b1", epoch)]))
        assert answers == []
        world.reads.pop()(ok)
        assert isinstance(answers[0], outcome)


async def test_what_comes_while_the_lead_is_proven_counts() -> None:
    world = World()
    epoch = await world.register("b1")
    world.proven = False
    answers = world.begin(b.BrokerHeartbeat([b.BrokerBeat("b1", epoch)]))
    await world.ask(b.BrokerFence("b1"))
    world.reads.pop()(True)
    assert answers[0].leases_ms == [0]


# --- other ends, and reads -----------------------------------------------------------------------------


async def test_an_administrator_ends_a_life_in_all_groups() -> None:
    world = World()
    epoch = await world.register("b1")
    world.dark = {DATA}
    answers = world.begin(b.BrokerFence("b1"))
    await world.settle()
    assert answers == []
    world.dark = set()
    await world.settle()
    assert (answers[0].broker.state, answers[0].unfenced) == ("fenced", [])
    assert world.fenced(DATA) == {"b1": epoch + 1}
    assert (await world.ask(b.BrokerFence("b1", epoch))).broker.state == "fenced"
    with pytest.raises(NotFoundError):
        await world.ask(b.BrokerFence("nobody"))


async def test_a_life_that_loads_may_be_silent_until_it_serves() -> None:
    world = World()
    epoch = await world.register("b1", loading_ms=600_000)
    await world.pass_s(60.0)
    assert world.known("b1").state == "loading", "its lease was over long ago"
    assert await world.beat("b1", epoch) == "loading"
    assert (await world.ask(b.BrokerServe("b1", epoch))).broker.state == "active"
    await world.pass_s(LEASE_S - 1.0)
    assert world.known("b1").state == "active"
    await world.pass_s(1.0 + 2 * LOOKS_S)
    assert world.known("b1").state == "fenced", "its lease counts again"
    with pytest.raises(FencedError):
        await world.ask(b.BrokerServe("b1", epoch))


async def test_who_was_not_heard_of_for_most_of_its_lease_is_named() -> None:
    world = World()
    epoch = await world.register("b1")
    await world.pass_s(0.5 * LEASE_S)
    assert (await world.ask(b.BrokerGet(["b1"]))).brokers[0].silent_ms == 0
    await world.pass_s(0.3 * LEASE_S)
    shown = (await world.ask(b.BrokerGet(["b1"]))).brokers[0]
    assert shown.silent_ms == pytest.approx(800 * LEASE_S, abs=200)
    await world.beat("b1", epoch)
    assert (await world.ask(b.BrokerGet(["b1"]))).brokers[0].silent_ms == 0


async def test_a_life_that_loads_for_too_long_ends_unless_it_is_heard_of() -> None:
    world = World()
    await world.register("silent", loading_ms=30_000)
    heard = await world.register("heard", loading_ms=30_000)
    await world.pass_s(29.0)
    assert await world.beat("heard", heard) == "loading"
    await world.pass_s(1.0 + 2 * LOOKS_S)
    assert [world.known(name).state for name in ("silent", "heard")] == ["fenced", "loading"]
    world.brokers._end_leadership()
    world.brokers.follow(world.map)
    await world.pass_s(29.0)
    assert world.known("heard").state == "loading", "a new leader counts anew"


@pytest.mark.parametrize("kind", module.ABOUT_BROKERS, ids=lambda kind: kind.__name__)
async def test_every_request_about_brokers_has_an_answer(kind: Any) -> None:
    """One had none, for it was missing in a list."""
    world = World()
    epoch = await world.register("b1")
    fields = {"broker": "b1", "broker_epoch": epoch, "brokers": ["b1"], "beats": [b.BrokerBeat("b1", epoch)]}
    assert await world.ask(kind(**{name: fields[name] for name in kind.__struct_fields__ if name in fields}))


def test_a_load_has_the_class_of_its_size_and_keeps_it_while_it_is_near() -> None:
    assert [module.load_class(load, 0) for load in (0, 1, 2, 3, 4, 1_000, 2**32 - 1)] == [0, 1, 2, 2, 3, 10, 32]
    assert [module.load_class(load, 10) for load in (383, 384, 512, 1_023, 1_279, 1_280)] == [9, 10, 10, 10, 10, 11]
    assert module.load_class(0, 1) == 0
    for known in range(33):
        for load in (1, 2, 3, 5, 1_000, 2**31, 2**32 - 1):
            found = module.load_class(load, known)
            assert module.load_class(load, found) == found, "to look again changes nothing"
            assert 3 << found <= 8 * load < 10 << found


async def test_watchers_learn_the_class_of_a_load_and_not_each_load() -> None:
    world = World()
    epoch = await world.register("b1")

    async def beat(load: int) -> None:
        await world.ask(b.BrokerHeartbeat([b.BrokerBeat("b1", epoch, load)]))

    def written() -> list[int]:
        return [step.load_class for change in world.changes for step in change.steps if step.step == "load"]

    for load in (1_000, 1_001, 900, 1_200):
        await beat(load)
        await world.pass_s(1.0)
    assert written() == [10]
    assert read_brokers(world.engine)["b1"].load_class == 10
    for number in range(200):  # it flaps
        await beat(1 if number % 2 else 100_000)
        await world.pass_s(0.5)
    assert len(written()) <= 2 + 100.0 / module.LOAD_S
    await world.pass_s(module.LOAD_S / 2)
    await beat(70_000)
    await world.pass_s(module.LOAD_S / 2 + 1.0)
    assert written()[-1] == read_brokers(world.engine)["b1"].load_class == 17
    count = len(written())
    world.brokers._end_leadership()
    world.brokers.follow(world.map)
    await beat(70_001)
    await world.pass_s(2.0)
    assert len(written()) == count, "the next leader knows what is written"
    await world.ask(b.BrokerDeregister("b1", epoch))
    await world.pass_s(2 * module.LOAD_S)
    assert len(written()) == count


async def test_the_loads_of_a_large_fleet_are_written_many_at_once() -> None:
    world = World()
    epochs = {f"b{number}": await world.register(f"b{number}") for number in range(600)}
    world.changes.clear()
    for _ in range(3):
        await world.ask(b.BrokerHeartbeat([b.BrokerBeat(name, epoch, 9) for name, epoch in epochs.items()]))
        await world.pass_s(1.1)
    assert [len(change.steps) for change in world.changes] == [256, 256, 88]
    assert {record.load_class for record in read_brokers(world.engine).values()} == {4}


async def test_a_life_drains_and_ends_itself() -> None:
    world = World()
    epoch = await world.register("b1")
    assert (await world.ask(b.BrokerDrain("b1", epoch))).broker.state == "draining"
    assert await world.beat("b1", epoch) == "draining"
    ended = await world.ask(b.BrokerDeregister("b1", epoch))
    assert (ended.broker.state, ended.unfenced) == ("gone", [])
    assert world.fenced(OFFSET) == {"b1": epoch + 1}
    with pytest.raises(FencedError):
        await world.ask(b.BrokerDeregister("b1", epoch))
    changes = len(world.changes)
    await world.pass_s(2 * LEASE_S)
    assert len(world.changes) == changes, "it has no lease any more"
    assert world.timers == []


async def test_a_waiting_answer_is_given_when_the_wait_is_over() -> None:
    world = World()
    await world.register("b1")
    world.dark = {DATA, OFFSET}
    answers = world.begin(b.BrokerFence("b1", 0, 100))
    await world.pass_s(0.2)
    assert sorted(answers[0].unfenced) == ["data-0", "offset-0"]


async def test_brokers_are_listed_with_what_they_said_last() -> None:
    world = World()
    for name in ("c1", "b2", "b1"):
        await world.register(name)
    await world.beat("b2", world.known("b2").broker_epoch, load=7)
    await world.ask(b.BrokerFence("b1"))
    listed = await world.ask(b.BrokerList())
    assert [(each.broker, each.state, each.load) for each in listed.found] == [
        ("b1", "fenced", 0),
        ("b2", "active", 7),
        ("c1", "active", 0),
    ]
    assert [each.broker for each in (await world.ask(b.BrokerList("b", "active"))).found] == ["b2"]
    first = await world.ask(b.BrokerList(page=m.Page(2)))
    second = await world.ask(b.BrokerList(page=m.Page(2, first.cursor)))
    assert [each.broker for each in (*first.found, *second.found)] == ["b1", "b2", "c1"]
    assert (first.cursor, second.cursor) == (b"b2", b"")
    found = (await world.ask(b.BrokerGet(["c1", "nobody"]))).brokers
    assert [each and each.broker for each in found] == ["c1", None]


# --- which fences have yet to come where ---------------------------------------------------------------


def test_a_fence_is_everywhere_once_each_group_has_acknowledged_it_or_a_higher_one() -> None:
    fencing = Fencing()
    fencing.done(FenceItem("b1", 5))
    fencing.want(FenceItem("b1", 5))
    fencing.want(FenceItem("b1", 4))
    assert fencing.lacking(DATA) == [FenceItem("b1", 5)]
    fencing.acknowledged(DATA, [FenceItem("b1", 5)])
    assert (fencing.lacking(DATA), fencing.unfenced("b1", [DATA, OFFSET])) == ([], ["offset-0"])
    fencing.want(FenceItem("b1", 6))
    assert fencing.lacking(DATA) == [FenceItem("b1", 6)]
    fencing.acknowledged(DATA, [FenceItem("b1", 6)])
    fencing.acknowledged(OFFSET, [FenceItem("b1", 5)])
    assert fencing.everywhere([DATA, OFFSET]) == []
    fencing.acknowledged(OFFSET, [FenceItem("b1", 6)])
    fencing.acknowledged(OFFSET, [FenceItem("b1", 5)])
    assert fencing.everywhere([DATA, OFFSET]) == [FenceItem("b1", 6)]
    fencing.done(FenceItem("b1", 5))
    assert len(fencing) == 1
    fencing.done(FenceItem("b1", 6))
    assert (len(fencing), fencing.unfenced("b1", [DATA])) == (0, [])
    fencing.want(FenceItem("b1", 7))
    assert fencing.lacking(DATA) == [FenceItem("b1", 7)]


def test_a_group_has_a_fence_once_it_has_all_that_it_says() -> None:
    fencing = Fencing()
    for fence in (
        FenceItem("b1", 6, 1),
        FenceItem("b1", 6, 2, live=True),
        FenceItem("b1", 6, 1, live=True, unclean_epoch=6),
        FenceItem("b1", 6, 1, live=True, unclean_epoch=6, quiet_epoch=6),
    ):
        fencing.want(fence)
        (told,) = fencing.lacking(DATA)
        assert (told.values, told.at_ms) == (fence.values, 1)
        assert fencing.everywhere([DATA]) == []
        fencing.acknowledged(DATA, [told])
        assert (fencing.lacking(DATA), fencing.everywhere([DATA])) == ([], [told])
    assert fencing.unfenced("b1", [DATA, OFFSET]) == ["offset-0"]
    fencing.want(FenceItem("b1", 6, 1, quiet_epoch=3))
    assert fencing.everywhere([DATA]), "nothing of that is new"
    fencing.want(FenceItem("b1", 7, 5))
    assert fencing.lacking(DATA) == [FenceItem("b1", 7, 5, None, False, 6, 6)]


def test_a_request_has_room_for_a_thousand() -> None:
    fencing = Fencing()
    for number in range(1_500):
        fencing.want(FenceItem(f"b{number}", 1))
    first = fencing.lacking(DATA)
    fencing.acknowledged(DATA, first)
    assert [len(first), len(fencing.lacking(DATA)), len(fencing.everywhere([DATA]))] == [1_000, 500, 1_000]


async def test_answers_that_come_together_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the loop of the leader of metadata-0: with a thousand dead brokers it looked at each fence of each group
    once for each group that answered."""
    looks: list[int] = []
    monkeypatch.setattr(Fencing, "everywhere", lambda self, groups: looks.append(len(groups)) or [])
    answer = asyncio.Event()

    class Calls:
        async def fence(self, group: GroupId, body: GroupFence) -> None:
            await answer.wait()

    records = [SimpleNamespace(kind="data", group_id=GroupId("data", number)) for number in range(20)]
    reader = SimpleNamespace(now_ms=lambda: 0)
    leads = SimpleNamespace(group=SimpleNamespace(term=1, ready=True), machine=SimpleNamespace(reader=reader))
    groups: Any = SimpleNamespace(map=SimpleNamespace(groups=records, version=1), drivers={METADATA: leads})
    calls: Any = Calls()
    clock: Any = SimpleNamespace(now=lambda: 0.0)
    brokers = Brokers(clock, groups, calls, lambda _: None)
    brokers._term = 1
    brokers._fencing.want(FenceItem("b1", 2))
    brokers._go_on(groups.map)
    await asyncio.sleep(0)
    answer.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert 2 <= len(looks) <= 4
    assert not brokers._lanes


# --- evidence of a death ---------------------------------------------------------------------------------


class Source:
    """A connection of a client."""

    host = holder = "10.0.0.7"
    principal: Principal | None = None


async def probed(world: World, *answers: Answer) -> tuple[int, Source]:
    """A broker with a port that was reached, a lease ago. The dials to come end with these answers."""
    world.answers = [Answer.ACCEPTED, *answers]
    source = Source()
    epoch = await world.register("b1", probe_port=1883)
    for _ in range(3):
        assert await world.beat("b1", epoch, source=source) == "active"
        await world.pass_s(LEASE_S / 2)
    await world.beat("b1", epoch, source=source)
    assert world.dials == [("10.0.0.7", 1883)], "once"
    return epoch, source


async def test_a_broker_is_fenced_long_before_its_lease_is_over_if_its_port_refuses() -> None:
    world = World()
    epoch, source = await probed(world, Answer.REFUSED)
    world.brokers.ended(source, by_peer=True)
    await world.pass_s(REDIAL_S + 1.0)
    assert world.known("b1").state == b.FENCED
    assert world.fenced(DATA)["b1"] == epoch + 1
    assert world.dials == [("10.0.0.7", 1883)] * 2


@pytest.mark.parametrize("answer", [Answer.ACCEPTED, Answer.UNKNOWN])
async def test_a_broker_whose_port_does_not_refuse_has_its_lease(answer: Answer) -> None:
    world = World()
    _, source = await probed(world, answer)
    world.brokers.ended(source, by_peer=True)
    await world.pass_s(LEASE_S - 1.0)
    assert world.known("b1").state == b.ACTIVE
    await world.pass_s(2.0)
    assert world.known("b1").state == b.FENCED


async def test_who_is_suspected_while_the_node_stands_still_has_its_lease() -> None:
    world = World()
    epoch, source = await probed(world, Answer.REFUSED)
    world.brokers.ended(source, by_peer=True)
    await world.pass_s(3 * REDIAL_S, late=True)
    await world.pass_s(REDIAL_S - 0.3)
    assert len(world.dials) == 1, "who was not heard meanwhile has its time"
    assert await world.beat("b1", epoch, source=source) == "active"
    await world.pass_s(REDIAL_S + 1.0)
    assert world.known("b1").state == b.ACTIVE


async def test_who_may_have_been_turned_away_is_not_suspected() -> None:
    world = World()
    _, source = await probed(world, Answer.REFUSED)
    world.brokers.ended(source, by_peer=True)
    world.brokers.excuse()
    await world.pass_s(LEASE_S - 1.0)
    assert world.known("b1").state == b.ACTIVE


async def test_a_new_leader_has_no_evidence_for_a_whole_lease() -> None:
    world = World()
    epoch, source = await probed(world, Answer.ACCEPTED, Answer.REFUSED)
    world.group.term = 2
    await world.beat("b1", epoch, source=source)
    world.brokers.ended(source, by_peer=True)
    await world.pass_s(LEASE_S - 1.0)
    assert world.known("b1").state == b.ACTIVE


async def test_a_dial_of_an_earlier_leadership_says_nothing() -> None:
    world = World()
    epoch, source = await probed(world)
    late: list[Callable[[Answer], None]] = []
    world.brokers.ended(source, by_peer=True)
    world.dial = lambda host, port, done: late.append(done)  # type: ignore[method-assign]
    await world.pass_s(REDIAL_S + 0.2)
    world.group.term = 2
    await world.beat("b1", epoch)
    (done,) = late
    done(Answer.REFUSED)
    await world.pass_s(LEASE_S - 1.0)
    assert world.known("b1").state == b.ACTIVE


async def test_an_end_by_evidence_that_is_not_written_leaves_the_lease() -> None:
    world = World()
    epoch, source = await probed(world, Answer.REFUSED)
    world.brokers.ended(source, by_peer=True)
    world.broken = UnknownOutcomeError("lost")
    await world.pass_s(REDIAL_S + 1.0)
    world.broken = None
    assert await world.beat("b1", epoch) == "active"


async def test_an_answer_about_brokers_fits_a_frame() -> None:
    """A thousand times the name of a broker with the longest attributes were an answer of sixteen megabytes."""
    world = World()
    attributes = {f"{number:02}": "x" * 250 for number in range(64)}
    for name in ("b1", "b2"):
        asked = b.BrokerRegister(name, attributes=attributes)
        await world.ask(asked)
    with pytest.raises(TooLargeError):
        await world.ask(b.BrokerGet(["b1"] * 1_000))
    reply = await world.ask(b.BrokerGet(["b1", "nobody", "b2"]))
    assert [record and record.broker for record in reply.brokers] == ["b1", None, "b2"]
    assert len((await world.ask(b.BrokerGet(["nobody"] * 1_000))).brokers) == 1_000


def test_a_broker_is_loaded_from_when_its_load_was_too_much_until_it_is_not() -> None:
    loads = module._Loads()
    seen = []
    for now_s, load in ((1.0, 79), (2.0, 80), (5.0, 100), (6.0, 79), (7.0, 90)):
        loads.heard("b", load, now_s)
        seen.append(loads.loaded_ms("b", now_s + 1.0))
    assert seen == [0, 1_000, 4_000, 0, 1_000]
    loads.forget("b")
    assert loads.loaded_ms("b", 9.0) == 0
