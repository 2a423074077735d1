"""What goes on in a group beside slots that move: sweeps, leases and watches, whatever overtakes what."""

from __future__ import annotations

from typing import Any
from unittest import mock

from metad.config import ExpiryConfig
from metad.node.chores.session_sweeps import DueSweep, LostSweep
from metad.node.requests.requests import Requests
from metad.state.core.entry import Entry
from metad.watch.hub import Hub
from metad_client import Client, SessionDisconnectItem, SessionProperties, SessionTakeoverItem
from metad_wire.cluster import MOVES_OF_A_MAP, SLOTS, FenceItem, GroupCommand, GroupFence, GroupId, slot_bits
from metad_wire.errors import NotReplicaError
from metad_wire.key import text2
from metad_wire.methods import GROUP_COMMAND, GROUP_FENCE, encode
from metad_wire.tables.lease import LEASE

from ..cluster import DATA
from .scene import Scene, scenario

_OTHER = GroupId("data", 1)
_NOBODYS = 10**6 * MOVES_OF_A_MAP
"""A move of which no map has heard: no mover goes on with it."""
_CLIENTS = [f"device-{number}" for number in range(30)]
_FOREIGN = 1_500


def step(scene: Scene, group: GroupId, name: str, slots: set[int], **fields: Any) -> None:
    """Have a group take a step of a move that is in no map."""
    lead = scene.lead(group)
    assert lead.node is not None
    assert lead.process is not None
    body = GroupCommand(name, _NOBODYS, 1, slots=slot_bits(slots), **fields)
    task = lead.process.start(lead.node.requests.call(GROUP_COMMAND, body, group=group.name))
    assert scene.run_until(task.done, 5.0)
    task.result()


@scenario
def an_unseal_overtakes_the_end_of_a_pass() -> None:
    """The leader looks at half of the sessions while the slots of the others are sealed. Its note that all is done
    waits in the queue, and the slots come back."""
    expiry = ExpiryConfig(amnesty_ms=500)
    with Scene(expiry=expiry) as scene:
        items = [SessionTakeoverItem("acme", name, properties=SessionProperties(3)) for name in _CLIENTS]
        scene.ask(scene.one, lambda client: client.sessions.takeover_many("b", 1, items)).raise_for_error()
        lead = scene.lead(DATA)
        assert lead.node is not None
        driver, requests, loop = lead.node.drivers[DATA], lead.node.requests, scene.loop
        notes: list[Any] = []

        class Slow:
            """Requests of a sweep: what ends a pass waits."""

            def request(self, method: Any, body: Any, *more: Any, **how: Any) -> None:
                if body.swept:
                    notes.append(body)
                    loop.call_later(2.0, lambda: Requests.request(requests, method, body, *more, **how))
                else:
                    requests.request(method, body, *more, **how)

        sweep = next(each for each in lead.node.sweeps._chores[driver] if isinstance(each, LostSweep))
        half = set(range(0, SLOTS, 2))
        step(scene, DATA, "seal", half, other=1)
        with mock.patch.object(sweep, "_requests", Slow()):
            scene.at(lead, GROUP_FENCE, GroupFence([FenceItem("b", 2, age_ms=0)]))
            assert scene.run_until(lambda: bool(notes), 2.0)
            step(scene, DATA, "unseal", half)
            scene.run(2.5)
        scene.run(8.0)
        found = scene.ask(scene.two, _listed)
        assert found == [], f"these never end: {found}"


@scenario
def a_seal_that_is_lost_hides_no_deadline() -> None:
    """The leader is cut off with the seal in flight, and passes what is overdue in those slots. Another leads for a
    moment, in which nothing has passed, and then the first one again."""
    expiry = ExpiryConfig(amnesty_ms=3_000, batch_sessions=2, sessions_per_s=2)
    with Scene(expiry=expiry) as scene:
        items = [SessionTakeoverItem("acme", name, properties=SessionProperties(1)) for name in _CLIENTS]
        gone = [SessionDisconnectItem("acme", name) for name in _CLIENTS]
        scene.ask(scene.one, lambda client: client.sessions.takeover_many("b", 1, items)).raise_for_error()
        scene.ask(scene.one, lambda client: client.sessions.disconnect_many("b", 1, gone)).raise_for_error()
        assert scene.run_until(lambda: len(scene.ask(scene.two, _listed)) < len(_CLIENTS), 10.0)
        lead = scene.lead(DATA)
        assert lead.node is not None
        assert lead.process is not None
        sweep = next(each for each in lead.node.sweeps._chores[lead.node.drivers[DATA]] if isinstance(each, DueSweep))
        scene.isolate(lead.name)
        seal = GroupCommand("seal", _NOBODYS, 1, slots=slot_bits(set(range(SLOTS))), other=1)
        lost = lead.process.start(lead.node.requests.call(GROUP_COMMAND, seal, group=DATA.name))
        scene.run(0.01)
        assert not lead.process.context.run(sweep.begin, 100, lambda _: None), "there is something that it holds"
        assert scene.run_until(lambda: scene.leader(DATA) not in (None, lead), 5.0)
        scene.network.heal()
        scene.transfer(lead.name)
        assert scene.run_until(lost.done, 5.0)
        assert lost.exception() is not None
        assert scene.ask(scene.two, _listed), "nothing was left to be done"
        assert scene.run_until(lambda: not scene.ask(scene.two, _listed), 40.0), "some never end"


async def _listed(client: Client) -> list[str]:
    return [session.client_id async for session in client.sessions.list("acme")]


@scenario
def leases_that_came_early_keep_no_other_from_ending() -> None:
    """More of them than a leader looks at, in slots that are on their way, and over long ago."""
    with Scene(data=2) as scene:
        theirs = scene.slots_of(DATA.ordinal)
        rows: dict[bytes, bytes | None] = {}
        for number in range(100_000):
            namespace = f"n{number}"
            key = text2(namespace, "lease")
            if LEASE.slot_of(key) in theirs:
                row = (namespace, "lease", 500, "", b"", 1, 1, 1, 0, 0)
                rows[bytes((LEASE.rows["lease"],)) + key] = encode(row)
            if len(rows) == _FOREIGN:
                break
        step(scene, _OTHER, "open", theirs)
        step(scene, _OTHER, "import", theirs, batch=1, rows=rows)
        scene.run(8.0)  # whoever has begun to lead gives them some seconds
        own = next(name for number in range(100_000) if LEASE.slot_of(text2(name := f"m{number}", "")) not in theirs)

        async def grant(client: Client) -> None:
            await client.leases.grant(own, 1_000, "mine")

        async def is_there(client: Client) -> bool:
            return await client.leases.get(own, "mine") is not None

        scene.ask(scene.one, grant)
        assert scene.ask(scene.one, is_there)
        assert scene.run_until(lambda: not scene.ask(scene.two, is_there), 10.0), "it never ends"


@scenario
def a_watch_that_ends_takes_no_write_from_a_move() -> None:
    """While rows are copied, the streams of the source's leader end in the middle of an entry."""
    with Scene(nodes=1, data=2) as scene:
        lead = scene.lead(DATA)
        assert lead.node is not None
        assert lead.process is not None
        driver, stage = lead.node.drivers[DATA], Hub.stage
        ended: list[int] = []
        done: list[str] = []
        mine = scene.slots_of(DATA.ordinal)
        names = [name for number in range(4_000) if LEASE.slot_of(text2(name := f"n{number}", "")) in mine]

        def end(hub: Hub, entry: Entry) -> None:
            if len(driver._listeners) > 1 and hub.replica.name == DATA.name and hub.streams and not ended:
                ended.append(hub.replica.applied)
                hub.end(NotReplicaError("they end"))
            else:
                stage(hub, entry)

        async def watch(client: Client) -> None:
            async for _ in client.watch("kv"):
                pass

        async def write(client: Client) -> None:
            for name in names:
                await client.kv.put(name, "k", b"v")
                done.append(name)

        with mock.patch.object(Hub, "stage", end):
            watching = [scene.begin(client, watch) for client in (scene.one, scene.two)]
            scene.run(0.5)
            writing = scene.begin(scene.one, write)
            scene.run(0.2)
            scene.move(DATA.ordinal, _OTHER.ordinal)
            assert ended, "no stream has ended beside the mover"
            for task in (*watching, writing):
                task.cancel()
            scene.run(0.5)

        async def lacking(client: Client) -> list[str]:
            return [name for name in done if await client.kv.get(name, "k") is None]

        found = scene.ask(scene.two, lacking, 60.0)
        assert found == [], f"acknowledged, and lost in the move: {found}"
