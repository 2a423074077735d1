"""A broker's life knows by itself when the cluster may hold it for dead, and every write of its client is made in its
name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from metad_client import (
    BrokerLife,
    Client,
    ClosedError,
    FencedError,
    InvalidRequestError,
    LifeState,
    NotFoundError,
    NotLeaderError,
    Options,
    OverloadedError,
    connect,
)
from metad_client.broker_life import BEAT_S_MAX, BEATS, SUSPENDED_AFTER, Lease
from metad_wire import messages as m
from metad_wire.connection.session import AHEAD_BYTES
from metad_wire.errors import ConflictError
from metad_wire.tables import broker as b
from sim.nodes.scenarios import Scene

LEASE_S = 10.0


# --- the rule --------------------------------------------------------------------------------------------


def test_a_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    lease = Lease(LEASE_S, 100.0)
    assert lease.state(100.0 + SUSPENDED_AFTER * LEASE_S - 0.01) is LifeState.SERVING
    assert lease.state(100.0 + SUSPENDED_AFTER * LEASE_S) is LifeState.SUSPENDED
    lease.acknowledged(103.0, LEASE_S)
    lease.acknowledged(101.0, LEASE_S)
    assert lease.state(103.0 + SUSPENDED_AFTER * LEASE_S - 0.01) is LifeState.SERVING
    assert lease.state(103.0 + SUSPENDED_AFTER * LEASE_S) is LifeState.SUSPENDED


def test_a_lease_of_which_nothing_was_heard_suspends_its_life_and_never_ends_it() -> None:
    """Guards lives that ended by their own clock while the whole cluster was away, with the wills of all their
    clients."""
    lease = Lease(LEASE_S, 100.0)
    assert lease.state(100_000.0) is LifeState.SUSPENDED
    lease.acknowledged(99_999.0, LEASE_S)
    assert lease.state(100_000.0) is LifeState.SERVING


def test_a_life_that_was_lost_stays_lost_whatever_comes_later() -> None:
    lease = Lease(LEASE_S, 100.0)
    lease.end(FencedError("by the cluster"))
    assert lease.state(100.1) is LifeState.LOST
    lease.acknowledged(200.0, LEASE_S)
    assert lease.state(200.1) is LifeState.LOST
    lease.end(ConflictError("later"))
    assert isinstance(lease.over, FencedError)


def test_an_answer_from_before_a_suspension_renews_nothing() -> None:
    """The machine slept between a heartbeat and its answer."""
    lease = Lease(LEASE_S, 100.0)
    lease.acknowledged(102.0, LEASE_S)
    assert lease.state(170.0) is LifeState.SUSPENDED
    lease = Lease(LEASE_S, 100.0)
    lease.acknowledged(102.0, LEASE_S)
    assert lease.state(110.0) is LifeState.SUSPENDED


def test_the_cluster_may_grant_another_lease() -> None:
    lease = Lease(LEASE_S, 100.0)
    lease.acknowledged(101.0, 2.0)
    assert lease.state(102.4) is LifeState.SERVING
    assert lease.state(102.5) is LifeState.SUSPENDED


# --- with its client -------------------------------------------------------------------------------------


class Cluster:
    """A scripted server: registers, and answers heartbeats as the test says."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.slept_s = 0.0  # that the clock of the lease counts, and the loop does not
        self.epoch = 7
        self.alive = True
        self.fenced = False  # what writes hear
        self.error: m.ItemError | None = None
        self.beats = 0
        self.travels_s = 0.0  # of that clock, from when a heartbeat is sent until it is answered
        self.writes: list[Any] = []
        self.registered: list[b.BrokerRegister] = []
        server.answer = self.answer

    def answer(self, received: Any) -> None:
        body = received.body
        if isinstance(body, b.BrokerRegister):
            self.registered.append(body)
            received.reply(b.BrokerRegistered(self.epoch, body.lease_ms, []))
        elif isinstance(body, b.BrokerHeartbeat):
            self.beats += 1
            self.slept_s += self.travels_s
            if self.error is not None:
                received.reply(b.BrokerHeartbeatReply([0], ["fenced"], [self.error]))
            elif self.alive:
                received.reply(b.BrokerHeartbeatReply([int(LEASE_S * 1000)], ["active"]))
            else:
                received.fail(InvalidRequestError("not now"))
        elif isinstance(body, b.BrokerDrain | b.BrokerDeregister):
            received.reply(b.BrokerEnded(b.Broker(body.broker, body.broker_epoch, "gone", 1), ["data-0"]))
        elif self.fenced:
            received.fail(FencedError("epoch 9 is active"))
        else:
            if received.request.identity is not None:
                self.writes.append((received.request.life, received.request.requires))
            received.reply()

    def client(self, options: Options | None = None) -> Client:
        loop = asyncio.get_running_loop()
        return connect("metad://a", options, transport=self.server.transport, clock=lambda: loop.time() + self.slept_s)


@pytest.fixture
def cluster(scripted_server: Any) -> Cluster:
    return Cluster(scripted_server)


async def test_a_life_is_heard_of_again_at_once_when_a_connection_is_lost(cluster: Cluster) -> None:
    async with cluster.client() as m:
        await m.brokers.register("b1", lease_s=LEASE_S)
        await until(lambda: cluster.beats == 3)
        before, lost_s = cluster.beats, asyncio.get_running_loop().time()
        cluster.server.peers[-1].cut()
        await until(lambda: cluster.beats > before)
        assert asyncio.get_running_loop().time() - lost_s < LEASE_S / BEATS / 2


async def test_the_port_of_a_broker_is_registered(cluster: Cluster) -> None:
    async with cluster.client() as m:
        await m.brokers.register("b1", probe_port=1883)
        assert cluster.registered[-1].probe_port == 1883
        await m.brokers.life.end()  # type: ignore[union-attr]
        with pytest.raises(InvalidRequestError, match="probe_port"):
            await m.brokers.register("b2", probe_port=65_536)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):  # no time passes while it waits
        while not condition():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)


async def test_every_write_is_made_in_the_name_of_the_life_and_no_read_is(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.kv.put("ns", "k", b"v")
        life = await client.brokers.register(
            "b1", address="h:1", attributes={"a": "b"}, at_least_epoch=3, clean_epoch=2, sole=True
        )
        assert (life.broker, life.epoch, life.unfenced, life.state) == ("b1", 7, [], LifeState.SERVING)
        await client.kv.put("ns", "k", b"v")
        await client.kv.put_many([m.KvPutItem("ns", "k", b"v")])
        await client.sessions.takeover("b1", 7, "t", "c")
        await client.kv.get("ns", "k")
        assert client.brokers.life is life
    owner = m.Owner("b1", 7)
    assert cluster.writes == [(None, 0), *[(owner, int(m.Feature.LIVES | m.Feature.REGISTERED))] * 3]
    asked = cluster.registered[0]
    assert (asked.broker, asked.lease_ms, asked.address, asked.attributes, asked.at_least_epoch) == (
        "b1",
        10_000,
        "h:1",
        {"a": "b"},
        3,
    )
    assert (asked.clean_epoch, asked.sole) == (2, True)
    assert asked.registration, "a retry says what it is"


async def test_a_life_that_is_suspended_writes_on_and_one_that_is_lost_writes_nothing(cluster: Cluster) -> None:
    """The fence decides about writes, and the clock about what is served from memory."""
    async with cluster.client() as client:
        life = await client.brokers.register("b1")
        told: list[LifeState] = []
        forget = life.on_state(told.append)
        cluster.slept_s += 100 * LEASE_S
        assert life.state is LifeState.SUSPENDED
        await client.kv.put("ns", "k", b"v")
        cluster.error = m.ItemError(0, FencedError.code, "epoch 8 is active", 8)
        await life.lost()
        writes = len(cluster.writes)
        for write in (
            lambda: client.kv.put("ns", "k", b"v"),
            lambda: client.kv.put_many([m.KvPutItem("ns", "k", b"v")]),
        ):
            with pytest.raises(FencedError, match="epoch 7 of broker 'b1' is over") as raised:
                await write()
            assert raised.value.outcome_known
        assert len(cluster.writes) == writes
        assert await client.kv.get("ns", "k") is not None, "reads do no harm"
        assert isinstance(await life.lost(), FencedError)
        assert told == [LifeState.SUSPENDED, LifeState.LOST]
        forget()
        cluster.epoch, cluster.error = 8, None
        second = await client.brokers.register("b1")
        await client.kv.put("ns", "k", b"v")
        assert cluster.writes[-1][0] == second.owner == m.Owner("b1", 8)


async def test_a_heartbeat_counts_from_when_it_was_sent_however_long_its_answer_takes(cluster: Cluster) -> None:
    cluster.travels_s = 0.4 * LEASE_S
    async with cluster.client() as client:
        life = await client.brokers.register("b1", lease_s=LEASE_S)
        cluster.alive, cluster.travels_s = False, 0.0
        assert life.state is LifeState.SERVING
        cluster.slept_s += (SUSPENDED_AFTER - 0.35) * LEASE_S
        assert life.state is LifeState.SUSPENDED


async def test_heartbeats_go_on_by_themselves(cluster: Cluster) -> None:
    async with cluster.client() as client:
        life = await client.brokers.register("b1")
        await until(lambda: cluster.beats > 5)
        assert life.state is LifeState.SERVING
        cluster.alive = False
        await until(lambda: life.state is LifeState.SUSPENDED)
        cluster.alive = True
        await until(lambda: life.state is LifeState.SERVING)


async def test_a_life_goes_on_speaking_however_long_no_node_hears_it_and_resumes_at_once(cluster: Cluster) -> None:
    """Nodes that refuse, nodes that do not answer, and connections that end."""
    async with cluster.client() as client:
        life = await client.brokers.register("b1")
        told: list[LifeState] = []
        life.on_state(told.append)
        answer = cluster.server.answer
        for away in (lambda received: received.fail(NotLeaderError("nobody leads")), lambda _: None):
            cluster.server.answer = away
            await until(lambda: life.state is LifeState.SUSPENDED)
            await asyncio.sleep(60 * LEASE_S)
            assert life.state is LifeState.SUSPENDED
            cluster.server.peers[-1].cut()
            cluster.server.answer = answer
            resumed_s = asyncio.get_running_loop().time()
            await until(lambda: life.state is LifeState.SERVING)
            assert asyncio.get_running_loop().time() - resumed_s < BEAT_S_MAX + 1.0
        assert told == [LifeState.SUSPENDED, LifeState.SERVING] * 2
        assert life.epoch == 7


async def test_a_heartbeat_waits_behind_no_other_request_of_its_client(cluster: Cluster) -> None:
    """A broker that has more to write than the nodes take does not lose its life for it."""
    held: list[Any] = []
    cluster.server.window_bytes = 1  # one request at a time
    async with cluster.client(Options(waiting_max=5, deadline_s=1_000.0)) as client:
        life = await client.brokers.register("b1", lease_s=LEASE_S)
        answer = cluster.answer

        def slow(received: Any) -> None:
            if isinstance(received.body, m.KvPut):
                held.append(received)
            else:
                answer(received)

        cluster.server.answer = slow
        puts = [asyncio.create_task(client.kv.put_many([m.KvPutItem("ns", f"k{n}", b"v")])) for n in range(20)]
        await until(lambda: bool(held))
        refused = [put for put in puts if put.done()]
        assert {type(put.exception()) for put in refused} == {OverloadedError}, "there is no room for another request"
        puts = [put for put in puts if put not in refused]
        assert len(puts) >= 5
        for _ in puts:
            await until(lambda: bool(held))
            beats = cluster.beats
            await asyncio.sleep(LEASE_S / BEATS + 0.1)  # the next heartbeat is due, and nothing can be sent
            assert cluster.beats == beats
            held.pop().reply()
            await until(lambda before=beats: cluster.beats > before or bool(held))  # type: ignore[misc]
            assert cluster.beats > beats, "the next to be sent is the heartbeat"
            assert life.state is LifeState.SERVING
        await asyncio.gather(*puts)


async def test_some_of_the_window_is_kept_free_for_heartbeats(cluster: Cluster) -> None:
    held: list[Any] = []
    cluster.server.window_bytes = 16 * AHEAD_BYTES
    async with cluster.client(Options(deadline_s=1_000.0)) as client:
        life = await client.brokers.register("b1")
        answer = cluster.answer
        cluster.server.answer = lambda received: (
            held.append(received) if isinstance(received.body, m.KvPut) else answer(received)
        )
        puts = [asyncio.create_task(client.kv.put_many([m.KvPutItem("ns", "k", b"v")])) for _ in range(2_000)]
        await until(lambda: len(held) > 500)
        beats = cluster.beats
        await until(lambda: cluster.beats > beats + 3)
        assert life.state is LifeState.SERVING
        assert len(held) < len(puts), "the window was never full"
        cluster.server.answer = answer
        for received in held:
            received.reply()
        await asyncio.gather(*puts)


async def test_a_life_that_the_cluster_has_ended_is_lost_at_once(cluster: Cluster) -> None:
    async with cluster.client() as client:
        life = await client.brokers.register("b1")
        cluster.error = m.ItemError(0, ConflictError.code, "being decided")
        beats = cluster.beats
        await until(lambda: cluster.beats > beats)
        assert life.state is LifeState.SERVING
        cluster.error = m.ItemError(0, FencedError.code, "epoch 9 is active", 9)
        said_s = asyncio.get_running_loop().time()
        assert (await life.lost()).current == 9
        assert asyncio.get_running_loop().time() <= said_s + LEASE_S / BEATS, "with the first heartbeat that says so"
        with pytest.raises(FencedError):
            await client.kv.put("ns", "k", b"v")


async def test_a_life_whose_write_is_fenced_is_heard_of_at_once(cluster: Cluster) -> None:
    async with cluster.client() as client:
        life = await client.brokers.register("b1")
        await client.kv.put("ns", "k", b"v")
        cluster.error = m.ItemError(0, FencedError.code, "epoch 9 is active", 9)
        cluster.fenced = True
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(FencedError):
            await client.kv.put("ns", "k", b"v")
        await life.lost()
        assert asyncio.get_running_loop().time() < begun_s + 0.1


async def test_a_life_that_is_over_before_it_began_is_none(cluster: Cluster) -> None:
    cluster.error = m.ItemError(0, NotFoundError.code, "there is no such broker")
    async with cluster.client() as client:
        with pytest.raises(FencedError):
            await client.brokers.register("b1")
        assert client.brokers.life is None
        cluster.error = None
        await client.kv.put("ns", "k", b"v")
        assert cluster.writes == [(None, 0)]


async def test_a_client_has_one_life_at_a_time(cluster: Cluster) -> None:
    async with cluster.client() as client:
        life = await client.brokers.register("b1")
        with pytest.raises(InvalidRequestError, match="lives as broker 'b1'"):
            await client.brokers.register("b2")
        assert await life.end() == ["data-0"]
        assert life.state is LifeState.LOST
        with pytest.raises(FencedError, match="ended itself"):
            await client.kv.put("ns", "k", b"v")
        await client.brokers.register("b2")


async def test_a_client_registers_once_at_a_time(cluster: Cluster) -> None:
    async with cluster.client() as client:
        outcomes = await asyncio.gather(
            client.brokers.register("b1"), client.brokers.register("b2"), return_exceptions=True
        )
        assert isinstance(outcomes[0], BrokerLife)
        assert client.brokers.life is outcomes[0]
        assert isinstance(outcomes[1], InvalidRequestError)
        assert [asked.broker for asked in cluster.registered] == ["b1"]


@pytest.mark.parametrize("how", ["fails", "cancelled"])
async def test_a_register_that_fails_or_is_cancelled_lets_the_next_one_in(cluster: Cluster, how: str) -> None:
    async with cluster.client() as client:
        answer = cluster.answer
        cluster.server.answer = lambda received: received.fail(ConflictError("no")) if how == "fails" else None
        registering = asyncio.ensure_future(client.brokers.register("b1"))
        await cluster.server.requests(1)
        if how == "cancelled":
            registering.cancel()
        with pytest.raises((ConflictError, asyncio.CancelledError)):
            await registering
        assert client.brokers.life is None
        cluster.server.answer = answer
        assert (await client.brokers.register("b2")).state is LifeState.SERVING


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_life_that_nobody_has_is_ended(cluster: Cluster, how: str) -> None:
    """Guards lives whose registering is given up before, or as, their first heartbeat is answered."""
    ended: list[tuple[str, int]] = []

    def answer(received: Any) -> None:
        if isinstance(received.body, b.BrokerDeregister):
            ended.append((received.body.broker, received.body.broker_epoch))
        if isinstance(received.body, b.BrokerHeartbeat):
            held.append(received)
        else:
            cluster.answer(received)

    held: list[Any] = []
    async with cluster.client() as client:
        cluster.server.answer = answer
        registering = asyncio.ensure_future(client.brokers.register("b1"))
        await until(lambda: bool(held))
        if how == "cancelled":
            registering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await registering
            await until(lambda: bool(ended))
            assert ended == [("b1", 7)]
            await client.kv.put("ns", "k", b"v")
            assert cluster.writes == [(None, 0)]
        else:
            answered = client._dispatcher.answers
            cluster.answer(held[0])
            while client._dispatcher.answers == answered:  # noqa: ASYNC110 - one turn after another
                await asyncio.sleep(0)
            assert not registering.done()
            await client.close()
            with pytest.raises(ClosedError):
                await registering
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.brokers.life is None
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("life of broker", "metad"))]


async def test_closing_the_client_ends_the_heartbeats(cluster: Cluster) -> None:
    async with cluster.client() as client:
        life = await client.brokers.register("b1")
    assert life.state is LifeState.LOST
    assert isinstance(life.over, ClosedError)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("life of broker")]


# --- with a cluster --------------------------------------------------------------------------------------


def test_a_broker_that_is_cut_off_knows_it_before_it_is_fenced() -> None:
    """It serves nothing by then, hears of its end when it comes back, and writes nothing."""
    with Scene() as scene:
        one, two = scene.one, scene.two

        async def live(client: Client) -> BrokerLife:
            return await client.brokers.register("b1", lease_s=4.0)

        life = scene.ask(one, live)
        scene.run(10.0)
        assert life.state is LifeState.SERVING, "its heartbeats come through"
        for node in scene.nodes:
            scene.network.cut(one.name, node)
            scene.network.cut(node, one.name)
        states = {}

        def fenced() -> bool:
            found = scene.ask(two, lambda client: client.brokers.get("b1"), 20.0)
            states[found.state] = life.state
            return bool(found.state == "fenced")

        assert scene.run_until(fenced, 20.0)
        assert states["fenced"] is LifeState.SUSPENDED
        scene.network.heal()
        assert scene.run_until(lambda: life.state is LifeState.LOST, 5.0), "it resumes after its fence"
        with pytest.raises(FencedError):
            scene.ask(one, lambda client: client.kv.put("space", "a", b"1"), 20.0)
        second = scene.ask(one, live, 20.0)
        assert second.epoch > life.epoch
        scene.ask(one, lambda client: client.kv.put("space", "a", b"1"), 20.0)
        assert [record.broker for record in scene.ask(two, listed)] == ["b1"]


async def listed(client: Client) -> list[b.Broker]:
    return [record async for record in client.brokers.list("b", state="active")]
