"""A cluster to play scenarios in, and the list of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Self

from metad_client import Client
from metad_wire import messages as m
from metad_wire.cluster import METADATA, MOVES_OF_A_MAP, ClusterMap, GroupId, unpack_slots
from metad_wire.methods import Method

from ..cluster import DATA, Cluster, Settings, SimClient, SimNode

Scenario = Callable[[], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Put it on the list."""
    SCENARIOS[function.__name__] = function
    return function


class Scene(Cluster):
    """A cluster that stands, with one group of each kind."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        super().__init__(seed, Settings(**{"data": 1, "offset": 1, **settings}))
        self.one: SimClient
        self.two: SimClient

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.start()
            self.one, self.two = self.client(), self.client()
            self.ask(self.one, lambda client: client.cluster.map())
            self.ask(self.two, lambda client: client.cluster.map())
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self, client: SimClient, what: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
        """Have a client ask something; the task."""

        async def asked() -> Any:
            return await what(client.client or await client.open())

        return client.process.start(asked())

    def ask(self, client: SimClient, what: Callable[[Client], Coroutine[Any, Any, Any]], seconds: float = 10.0) -> Any:
        """The same, and wait for the answer. Raises it where it is an error."""
        task = self.begin(client, what)
        assert self.run_until(task.done, seconds), "there is no answer"
        return task.result()

    def put(self, client: SimClient, key: str, value: bytes, **how: Any) -> int:
        """Returns the version."""
        version: int = self.ask(client, lambda c: c.kv.put("space", key, value, **how))
        return version

    def get(self, client: SimClient, key: str) -> tuple[bytes, int] | None:
        """(value, version)"""
        found = self.ask(client, lambda c: c.kv.get("space", key))
        return None if found is None else (found.value, found.version)

    def lead(self, group: GroupId = DATA) -> SimNode:
        """The leader of a group, once there is one."""
        assert self.run_until(lambda: self.leader(group) is not None, 5.0)
        leader = self.leader(group)
        assert leader is not None
        return leader

    def at(self, sim: SimNode, method: Method[Any, Any], body: Any, identity: m.Identity | None = None) -> Any:
        """Ask a node itself, for the group of data."""
        assert sim.node is not None
        assert sim.process is not None
        task = sim.process.start(sim.node.requests.call(method, body, group="data-0", identity=identity))
        assert self.run_until(task.done, 5.0), "there is no answer"
        return task.result()

    def catch_up_by_snapshot(self) -> None:
        """Write so much while a node is isolated that it needs a snapshot, and let it have one."""
        for number in range(20):
            self.put(self.one, f"k{number}", b"." * 200)
        self.run(1.5)  # until its connections are given up, and what was sent on them with them
        self.network.heal()
        self.require_settled(20.0)
        assert self.snapshots, "no snapshot was needed"

    def transfer(self, to: str, group: GroupId = DATA) -> None:
        """Hand a group over."""
        self.ask(self.two, lambda c: c.cluster.transfer(group.name, to))

        def led() -> bool:
            leader = self.leader(group)
            node = None if leader is None else leader.node
            return leader is self.nodes[to] and node is not None and node.drivers[group].group.ready

        assert self.run_until(led, 10.0), f"{to} does not lead {group.name}"

    def isolate(self, name: str, *friends: SimClient) -> None:
        """Cut a node off from all but its friends."""
        near = {name, *(friend.name for friend in friends)}
        others = [*self.nodes, *(client.name for client in self.clients)]
        self.network.partition(sorted(near), [host for host in others if host not in near])

    # --- slots that move ---------------------------------------------------------------------------------

    @property
    def map(self) -> ClusterMap:
        """That of the leader of the metadata."""
        node = self.lead(METADATA).node
        assert node is not None
        assert node.map is not None
        return node.map

    def begin_move(self, source: int, target: int, slots: Iterable[int] | None = None, kind: str = "data") -> int:
        """Have the map say that slots go from one group to another: all that the source has, or some. Returns the
        number of the move."""
        assert self.run_until(lambda: not self.map.moves, 20.0), "other moves do not end"
        self.lead(METADATA)
        held = self.slots_of(source, kind)
        moving = held if slots is None else held & set(slots)
        assert moving, f"{kind}-{source} has none of them"
        return self.grant_move(source, target, moving, kind)

    def slots_of(self, ordinal: int, kind: str = "data") -> set[int]:
        """Those that a group has, by the map."""
        return {slot for slot, holder in enumerate(unpack_slots(self.map.slots[kind])) if holder == ordinal}

    def is_moved(self, number: int) -> bool:
        """Whether the map says that a move is done."""
        leader = self.leader(METADATA)
        known = None if leader is None or leader.node is None else leader.node.map
        return known is not None and known.version * MOVES_OF_A_MAP >= number and not known.moves

    def move(self, source: int, target: int, slots: Iterable[int] | None = None, kind: str = "data") -> None:
        """The same, and wait until it is done."""
        number = self.begin_move(source, target, slots, kind)
        assert self.run_until(lambda: self.is_moved(number), 20.0), f"move {number} does not end"

    def once_sealed(self, group: GroupId, what: Callable[[], None]) -> None:
        """Do something as soon as the leader of a group has applied that slots are sealed, and before anybody is told:
        the target has not adopted them."""
        before = self.written.sealed(group)

        def look(_: str, applied: GroupId, __: int) -> None:
            leader = self.leader(group)
            if applied == group and leader is not None and self.written.sealed(group) not in (0, before):
                self.on_applied.remove(look)
                self.loop.call_soon(what, context=self.loop.outside)

        self.on_applied.append(look)
