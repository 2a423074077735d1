"""A node that comes back with an older copy of its data directory is refused, as one with a foreign one is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from peer_rig import Stranger, node

from metad.config import load_config
from metad.errors import DamagedStoreError
from metad.node.disk.stores import pair_stores
from metad.node.environment import AsyncEnvironment, Queue
from metad.node.health import Health
from metad.node.lives import _KEY, Life, Lives
from metad.storage.log import LogStore
from metad.storage.memory import MemoryEngine
from metad_wire.connection.frame import FrameType
from metad_wire.errors import HandshakeError
from sim.memory import MemoryTransport
from waiting import until


class Disk(MemoryEngine):
    """Counts its syncs, and what they did not cover is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1


def lives(disk: MemoryEngine) -> Lives:
    return Lives(LogStore(disk), AsyncEnvironment(), Health())


async def remember(known: Lives, name: str, life: Life, members: Sequence[str] = "abc") -> None:
    done = asyncio.Event()
    known.remember(name, life, list(members), done.set)
    async with asyncio.timeout(120):
        await done.wait()


def test_every_start_is_a_new_life_of_the_data_directory() -> None:
    config = load_config(None, {"storage": {"engine": "memory"}})
    log, state = MemoryEngine(), MemoryEngine()
    begun = [pair_stores(config, LogStore(log), state).identity for _ in range(3)]
    assert [identity.life for identity in begun] == [1, 2, 3]
    assert len({identity.incarnation for identity in begun}) == 3
    assert len({identity.store_id for identity in begun}) == 1


async def test_a_lower_life_and_the_same_one_begun_again_are_refused_over_restarts_too() -> None:
    disk = Disk()
    await remember(lives(disk), "b", Life("s", 7, "x"))
    assert disk.syncs == 1
    for known in (lives(disk), lives(disk)):
        known.check("b", Life("s", 7, "x"))
        known.check("b", Life("s", 8, "y"))
        known.check("c", Life("s", 1, "y"))
        known.check("b", Life("another directory, of which the map decides", 1, "y"))
        for older in (Life("s", 6, "x"), Life("s", 7, "y"), Life("s", 1, "")):
            with pytest.raises(HandshakeError, match=r"older copy of its data directory.*metadctl replace"):
                known.check("b", older)


async def test_what_is_known_already_costs_nothing() -> None:
    disk = Disk()
    known = lives(disk)
    for _ in range(3):
        await remember(known, "b", Life("s", 7, "x"))
    assert disk.syncs == 1


async def test_a_connection_of_an_earlier_life_that_is_not_over_yet_brings_nothing_back() -> None:
    disk = Disk()
    known = lives(disk)
    await remember(known, "b", Life("s", 7, "x"))
    await remember(known, "b", Life("s", 8, "y"))
    await remember(known, "b", Life("s", 7, "x"))
    for each in (known, lives(disk)):
        with pytest.raises(HandshakeError):
            each.check("b", Life("s", 7, "x"))


async def test_a_life_that_was_refused_takes_the_place_of_none() -> None:
    # Once wrong: a refused copy was remembered when the map changed, then let in, and acknowledged writes were lost.
    disk = Disk()
    known = lives(disk)
    await remember(known, "b", Life("s", 7, "x"))
    await remember(known, "b", Life("s", 7, "y"))
    for each in (known, lives(disk)):
        each.check("b", Life("s", 7, "x"))
        with pytest.raises(HandshakeError):
            each.check("b", Life("s", 7, "y"))


async def test_before_the_map_is_known_no_life_is_forgotten() -> None:
    # A node that has just started does not know its members yet, and they greet it.
    network = MemoryTransport()
    async with node(network) as server:
        lives_of = server.node.lives
        await remember(lives_of, "joined later", Life("s", 7, "x"), members=["joined later"])
        server.node.groups.map = None
        peer = await Stranger.dial(network)
        assert (await peer.greet(server, life=3, incarnation="x")).type == FrameType.WELCOME
        with pytest.raises(HandshakeError):
            lives_of.check("joined later", Life("s", 6, "w"))


async def test_a_life_is_durable_before_the_peer_is_welcomed() -> None:
    network = MemoryTransport()
    async with node(network) as server:
        held: list[object] = []
        beside = server.node.environment.beside
        server.node.environment.beside = lambda work, done, queue=None: held.append((work, done))  # type: ignore[method-assign]
        peer = await Stranger.dial(network)
        greeting = asyncio.create_task(peer.greet(server, life=3, incarnation="x"))
        await until(lambda: held)
        assert not peer.frames
        server.node.environment.beside = beside  # type: ignore[method-assign]
        work, done = held.pop()  # type: ignore[misc]
        work()
        done(None)
        assert (await greeting).type == FrameType.WELCOME
        again = await Stranger.dial(network)
        assert (await again.greet(server, life=3, incarnation="x")).type == FrameType.WELCOME


async def test_an_older_copy_is_refused_whoever_dials() -> None:
    network = MemoryTransport()
    async with node(network) as server:
        peer = await Stranger.dial(network)
        assert (await peer.greet(server, life=3, incarnation="x")).type == FrameType.WELCOME
        for life, incarnation in ((2, "x"), (3, "y")):
            older = await Stranger.dial(network)
            await older.greet(server, life=life, incarnation=incarnation)
            assert "older copy of its data directory" in await older.refused()
        newer = await Stranger.dial(network)
        assert (await newer.greet(server, life=4, incarnation="z")).type == FrameType.WELCOME
        # What a peer says in its WELCOME is held to the same.
        with pytest.raises(HandshakeError, match="older copy"):
            server.peers.check(server.node.identity.cluster_id, "b", Life("store of b", 3, "x"))


async def test_strangers_are_not_remembered() -> None:
    disk = Disk()
    known = lives(disk)
    for number in range(100):
        await remember(known, f"stranger {number}", Life("s", 1, "x"))
    assert disk.get(_KEY) is None
    await remember(known, "a", Life("s", 1, "x"))
    await remember(known, "b", Life("s", 1, "x"), members="b")
    assert len(disk.get(_KEY) or b"") < 40, "who is no member any more is forgotten"


async def test_a_peer_of_an_older_version_counts_no_lives() -> None:
    disk = Disk()
    known = lives(disk)
    await remember(known, "b", Life("s", 7, "x"))
    known.check("b", Life("s", 0, ""))
    await remember(known, "b", Life("s", 0, ""))
    with pytest.raises(HandshakeError):
        known.check("b", Life("s", 6, "x"))


async def test_lives_that_cannot_be_read_stop_the_start() -> None:
    disk = Disk()
    disk.write({_KEY: b"\xc1"})
    with pytest.raises(DamagedStoreError, match="unreadable"):
        lives(disk)


async def test_a_peer_that_dials_again_while_the_disk_is_slow_waits_for_two_syncs_at_most() -> None:
    """Each greeting had a sync of its own, in a queue that grew faster than a slow disk worked: nobody was welcomed in
    time any more."""
    disk, environment = Disk(), HeldBack()
    known = Lives(LogStore(disk), environment, Health())
    welcomed: list[int] = []
    for number in range(100):
        known.remember("b" if number % 2 else "c", Life("s", 7, "x"), list("abc"), partial(welcomed.append, number))
    assert len(environment.orders) == 1
    environment.carry_out()
    assert welcomed == [0], "what came behind the order to sync waits for the next"
    known.remember("b", Life("s", 8, "y"), list("abc"), partial(welcomed.append, 100))
    environment.carry_out()
    assert welcomed == [*range(100)]
    environment.carry_out()
    assert welcomed == [*range(101)]
    assert not environment.orders
    assert disk.syncs == 3


class HeldBack(AsyncEnvironment):
    """Work beside the loop is done when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []

    def beside(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None], queue: Queue = Queue.FLUSHES
    ) -> None:
        self.orders.append((work, done))

    def carry_out(self) -> None:
        work, done = self.orders.pop(0)
        work()
        done(None)
