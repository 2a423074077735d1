"""Slots of kind metadata: what is in them moves, and what is in none of them, which metadata-0 keeps, is served on."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

from metad.config import RaftConfig
from metad.control.controller import Controller
from metad_client import Client, ConflictError, NotLeaderError
from metad_judge.watch import Wanted
from metad_wire import messages as m
from metad_wire.cluster import METADATA, SLOTS, GroupId, slots_in
from metad_wire.families.mqtt import TOPIC_SETTINGS, TopicSettings

from ..cluster import Cluster, Settings, SimNode
from ..watchers import Mirror
from .moves import step
from .scene import Scene, scenario
from .watches import SMALL, Theatre

_ADDED = GroupId("metadata", 1)
_TENANTS = [f"tenant-{number}" for number in range(40)]


async def _put(client: Client, turn: int) -> None:
    """Each for the nth time."""
    items = [m.TablePutItem(TopicSettings(tenant, "t", attributes={"turn": str(turn)}), turn) for tenant in _TENANTS]
    (await client.table(TOPIC_SETTINGS).put_many(items)).raise_for_error()


async def _check(client: Client, turns: int) -> None:
    """All are there, as they were put last."""
    records = client.table(TOPIC_SETTINGS)
    found = {each.record.tenant: (each.record.attributes, each.version) async for each in records.list()}
    assert found == {tenant: ({"turn": str(turns - 1)}, turns) for tenant in _TENANTS}


@scenario
def what_is_in_no_slot_is_told_while_slots_of_kind_metadata_move() -> None:
    """Groups are added, slots are spread over them and go back, and leaders die. Watches of brokers and of the map hear
    all, and so does one of a table whose records move."""
    with Theatre(data=1) as scene:
        watchers = [scene.watch(Wanted("broker"), Wanted("cluster"), snapshot=snapshot) for snapshot in (False, True)]
        turns = 0
        told: dict[str, list[int]] = {}

        async def follow(client: Client) -> None:
            async for batch in await client.watch(TOPIC_SETTINGS).opened():
                for event in batch.events:
                    assert event.record is not None
                    told.setdefault(event.record.record.tenant, []).append(event.record.version)

        following = scene.begin(scene.client(), follow)
        scene.run(1.0)

        async def live(client: Client) -> None:
            nonlocal turns
            life = await client.brokers.register(f"b{turns % 3}")
            await _put(client, turns)
            turns += 1
            await life.end()

        for _ in range(2):
            scene.ask(scene.two, lambda c: c.cluster.add_group("metadata"))
            scene.require_settled(20.0)
            scene.ask(scene.one, live, 20.0)
            scene.ask(scene.two, lambda c: c.cluster.rebalance())
            scene.ask(scene.one, live, 20.0)
            assert scene.run_until(lambda: not scene.map.moves, 20.0)
            scene.kill_leader(METADATA)
            scene.ask(scene.one, live, 20.0)
            for sim in scene.nodes.values():
                if not sim.up:
                    sim.start()
            scene.require_settled(20.0)
        assert {len(scene.slots_of(ordinal, "metadata")) for ordinal in range(3)} == {SLOTS // 3, SLOTS // 3 + 1}
        scene.move(1, 0, kind="metadata")
        scene.ask(scene.one, live, 20.0)
        scene.ask(scene.two, lambda c: _check(c, turns), 20.0)
        scene.end()
        assert not following.done(), following.exception()
        assert told == {tenant: [*range(1, turns + 1)] for tenant in _TENANTS}
        assert not any(watcher.gaps for watcher in watchers), "nothing was cut"
        assert all(watcher.told > 4 * turns for watcher in watchers)


@scenario
def an_image_of_brokers_over_a_gap_in_another_group_of_kind_metadata() -> None:
    """The log of metadata-1 is cut while the image cannot be kept current. Brokers are in no slot, so a snapshot of the
    slots of that group says nothing of them."""
    with Theatre(
        data=1, storage=SMALL, raft=RaftConfig(election_timeout_ms=300, heartbeat_ms=50, log_cache_bytes=1)
    ) as scene:
        scene.ask(scene.one, lambda c: c.brokers.register("b1", lease_s=600))
        scene.ask(scene.two, lambda c: c.cluster.add_group("metadata"))
        scene.require_settled(20.0)
        scene.ask(scene.two, lambda c: c.cluster.rebalance())
        assert scene.run_until(lambda: not scene.map.moves, 20.0)
        mirror = Mirror(scene, "mirror", Wanted("broker"))
        mirror.begin()
        assert scene.run_until(lambda: mirror.caught_up, 20.0)
        assert mirror.client is not None
        held = scene.slots_of(1, "metadata")
        there = [each for each in _TENANTS if TOPIC_SETTINGS.slot_of(TOPIC_SETTINGS.key_of((each, "t"))) in held]

        def put(number: int) -> bool:
            settings = TopicSettings(there[0], "t", attributes={"turn": f"{number:0200}"})
            scene.ask(scene.two, lambda c: c.table(TOPIC_SETTINGS).put(settings))
            groups = [sim.node.drivers[_ADDED].group for sim in scene.nodes.values() if sim.node is not None]
            return all(group.log.base_index > before for group in groups)

        before = scene.written.known(_ADDED)
        put(0)  # the writer learns of the move, and writes nothing to metadata-0 from now on
        scene.run(1.0)
        scene.network.partition([mirror.client.name], [*scene.nodes])
        put(0)
        scene.run(12.0)  # until its connections are given up
        before = scene.written.known(_ADDED)
        assert any(map(put, range(60))), "the log is not cut"
        scene.network.heal()
        scene.run(1.0)
        scene.end()
        mirror.finish(10.0)


@scenario
def what_is_in_no_slot_is_read_and_written_while_slots_of_metadata_0_are_sealed() -> None:
    """Else no map could say that they have moved."""
    with Scene() as scene:
        half = set(range(1, SLOTS, 2))
        step(scene, METADATA, "seal", half, other=1)

        async def ask(client: Client) -> None:
            await client.tables.declare("notes", TopicSettings, key=("tenant", "topic"))
            assert [each.name async for each in client.tables.list()] == ["notes"]
            assert (await client.tables.open("notes")).name == "notes"
            life = await client.brokers.register("b1")
            assert [each.broker async for each in client.brokers.list()] == ["b1"]
            await life.end()
            await client.cluster.add_group("metadata")

        scene.ask(scene.one, ask, 5.0)
        step(scene, METADATA, "unseal", half)
        scene.ask(scene.two, partial(_put, turn=0))


@scenario
def metadata_0_has_the_slots_of_the_first_map_and_no_record_before() -> None:
    """Who asks it before there is a map is told to come again: it does not know yet which slots it will have. It may
    get the others later."""
    settings, put = Settings(metadata=2, data=1), TOPIC_SETTINGS.plain.put
    with Cluster(1, settings) as cluster, mock.patch.object(Controller, "_form"):  # it takes its time
        for sim in cluster.nodes.values():
            sim.start()

        def founder() -> SimNode | None:
            leader = cluster.leader(METADATA)
            ready = leader is not None and leader.node is not None and leader.node.drivers[METADATA].group.ready
            return leader if ready else None

        assert cluster.run_until(lambda: founder() is not None, 10.0)
        leader = founder()
        assert leader is not None
        items = [m.TablePutItem(TopicSettings(tenant, "early")) for tenant in _TENANTS]
        payload = put.encode_request(m.TablePut(TOPIC_SETTINGS.number, 5, items), group=METADATA.name)
        answers: list[Any] = []
        assert leader.node is not None
        assert leader.process is not None
        leader.process.context.run(leader.node.requests.submit, put.code, payload, answers.append)
        assert cluster.run_until(partial(bool, answers), 5.0), "there is no answer"
        assert isinstance(answers[0], NotLeaderError), "it was written in slots that go elsewhere"

    with Scene(metadata=2) as scene:
        assert scene.run_until(lambda: scene.leader(_ADDED) is not None, 5.0)
        scene.ask(scene.one, partial(_put, turn=0))
        for group in (METADATA, _ADDED):
            lead = scene.lead(group)
            assert lead.node is not None
            assert {*slots_in(lead.node.drivers[group].machine.holding.slots)} == scene.slots_of(
                group.ordinal, "metadata"
            )
        scene.move(1, 0, kind="metadata")
        assert len(scene.slots_of(0, "metadata")) == SLOTS
        scene.ask(scene.one, partial(_put, turn=1))
        for _ in range(20):
            try:
                scene.ask(scene.one, lambda c: c.cluster.rebalance())
            except ConflictError:  # another change was quicker
                scene.run(0.3)
                continue
            break
        assert scene.run_until(lambda: not scene.map.moves, 20.0)
        scene.ask(scene.two, lambda c: _check(c, 2), 20.0)
        scene.require_settled(20.0)
