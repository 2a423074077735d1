"""Links between nodes that delay, lose, duplicate and reorder messages, break and are cut.

Between any two nodes there is a connection, as TCP gives it: what is sent on it arrives in order and without a gap, or
the connection is over. Losing one message, cutting a direction or the end of a process dooms it: what is in flight that
way is lost, and whatever is sent that way later. Each end is told at a time of its own; until then the other way still
works, as on a half-open connection. A new one, with a new number, is made when both ends know and both ways are open.
Until then each end dials again and again, and is refused where the other process is dead, or where a firewall rejects.

A *silent* link is no such connection: messages vanish, come twice or overtake each other and nobody is told. Its cuts
lose what is sent while they last, so one way may stay cut for ever. Links that duplicate or reorder are silent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from .clock import Clock

Node = int | str
Range = tuple[float, float]
"""Seconds, from and to; drawn evenly."""

_NONE: Final = 0  # the number of no connection


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two nodes. Probabilities are per message."""

    delay: Range = (0.0002, 0.002)
    loss: float = 0.0
    duplication: float = 0.0
    reorder: float = 0.0
    """A reordered message may be overtaken: its delay is drawn from ``reorder_delay``, and nothing waits for it."""
    reorder_delay: Range = (0.0, 0.05)
    silent: bool = False

    @property
    def connected(self) -> bool:
        """Whether a loss ends a connection."""
        return not (self.silent or self.duplication or self.reorder)


@dataclass(slots=True)
class Statistics:
    """``sent + duplicated`` is ``delivered + lost + unconnected`` and what is in flight."""

    sent: int = 0
    sent_bytes: int = 0
    delivered: int = 0
    lost: int = 0
    """By chance, by a cut, with a broken connection or a node that was gone."""
    unconnected: int = 0
    """Sent by who knew that there was no connection."""
    duplicated: int = 0
    reordered: int = 0
    connections: int = 0
    disconnections: int = 0
    """Ends that were told."""
    deliveries: Counter[tuple[Node, Node]] = field(default_factory=Counter)
    """By (source, destination)."""


class _Process:
    """One life of a node."""

    __slots__ = ("connected", "disconnected", "receive", "refused")

    def __init__(
        self,
        receive: Callable[[Node, bytes], object],
        connected: Callable[[Node], object],
        disconnected: Callable[[Node], object],
        refused: Callable[[Node], object],
    ) -> None:
        self.receive = receive
        self.connected = connected
        self.disconnected = disconnected
        self.refused = refused


class _Way:
    """From one node to another."""

    __slots__ = ("cut", "doomed", "epoch", "fifo", "link", "number", "rejects")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.cut = False
        self.rejects = False  # a firewall answers who dials this way that nobody listens
        self.epoch = 0  # what was sent in an earlier one is lost
        self.fifo = 0.0  # when the last message in order arrives
        self.number = _NONE  # the connection as the source knows it
        self.doomed = False  # that connection delivers nothing this way any more


class SimNetwork:
    """All nodes and the links between them. ``noticed`` is how long an end takes to learn that its connection is over,
    ``reconnected`` how long a new one takes once it is possible, ``redialled`` when the next dial in vain is answered.
    ``seed`` is of those dials alone, so that nothing else depends on how many there are."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        link: Link | None = None,
        *,
        noticed: Range = (0.001, 0.3),
        reconnected: Range = (0.001, 0.1),
        redialled: Range = (0.005, 0.4),
        seed: int = 0,
    ) -> None:
        self.statistics = Statistics()
        self._clock = clock
        self._rng = rng
        self._link = link or Link()
        self._noticed = noticed
        self._reconnected = reconnected
        self._processes: dict[Node, _Process | None] = {}  # None: attached once, and gone
        self._ways: dict[tuple[Node, Node], _Way] = {}
        self._connections = _NONE
        self._redialled = redialled
        self._dials = random.Random(seed)

    @property
    def nodes(self) -> list[Node]:
        """All that were ever attached, in that order."""
        return list(self._processes)

    def attach(
        self,
        node: Node,
        receive: Callable[[Node, bytes], object],
        connected: Callable[[Node], object] = lambda _: None,
        disconnected: Callable[[Node], object] = lambda _: None,
        refused: Callable[[Node], object] = lambda _: None,
    ) -> None:
        """A process starts. ``connected`` is called once per peer that is there, a little later: nothing is received
        and what is sent goes nowhere before. A silent link calls it too, and never ``disconnected``. ``refused`` is
        called for each dial in vain that is answered, after a connection was lost."""
        if self._processes.get(node) is not None:
            raise ValueError(f"node {node!r} is attached already")
        self._processes[node] = _Process(receive, connected, disconnected, refused)
        for peer in self._peers(node):
            if not self._silent(node, peer):
                self._tell(peer, node)  # it may know the life before
            self._connect_soon(node, peer)

    def detach(self, node: Node) -> None:
        """The process is gone, with all that it was to receive. None of its callbacks is called again."""
        self._alive(node)
        self._processes[node] = None
        for peer in self._peers(node):
            to, back = self._way(node, peer), self._way(peer, node)
            back.epoch += 1
            to.number = _NONE
            if self._silent(node, peer):
                continue
            back.doomed = True
            self._tell(peer, node)

    def send(self, src: Node, dst: Node, payload: bytes) -> bool:
        """Send a message. False where the source knows that there is no connection; True says nothing."""
        self._alive(src)
        way, statistics, rng = self._way(src, dst), self.statistics, self._rng
        link = way.link
        statistics.sent += 1
        statistics.sent_bytes += len(payload)
        if way.number == _NONE:
            statistics.unconnected += 1
            return False
        if way.cut or way.doomed:
            statistics.lost += 1
            return True
        if link.loss and rng.random() < link.loss:
            statistics.lost += 1
            if not self._silent(src, dst):
                self._doom(src, dst)
            return True
        if link.reorder and rng.random() < link.reorder:
            statistics.reordered += 1
            arrives = self._clock.now + rng.uniform(*link.reorder_delay)
        else:
            arrives = way.fifo = max(self._clock.now + rng.uniform(*link.delay), way.fifo)
        self._deliver_at(arrives, way, src, dst, payload)
        if link.duplication and rng.random() < link.duplication:
            statistics.duplicated += 1
            self._deliver_at(self._clock.now + rng.uniform(*link.delay), way, src, dst, payload)
        return True

    def is_connected(self, node: Node, peer: Node) -> bool:
        """As ``node`` knows it."""
        return self._way(node, peer).number != _NONE

    # --- what a test does to it --------------------------------------------------------------------------

    def shape(self, link: Link, src: Node | None = None, dst: Node | None = None) -> None:
        """Set how messages travel from now on, from a node, to a node, or, where None, everywhere. It is for the nodes
        that are there; others get what was set for everywhere. Connections and what is in flight stay as they are."""
        if src is None and dst is None:
            self._link = link
        for way_src, way_dst in self._pairs():
            way = self._way(way_src, way_dst)
            if src in (None, way_src) and dst in (None, way_dst):
                way.link = link
        for way_src, way_dst in self._pairs():
            way, back = self._way(way_src, way_dst), self._way(way_dst, way_src)
            if self._silent(way_src, way_dst):
                continue
            if way.cut:
                self._doom(way_src, way_dst)
            if way.number != back.number:  # a silent link outlives a process, a connection does not
                self._tell(way_src, way_dst)

    def reject(self, src: Node, dst: Node) -> None:
        """A firewall cuts the connection of two nodes, and answers one that dials the other that nobody listens. Both
        live."""
        self.cut_both(src, dst)
        self._way(src, dst).rejects = True

    def cut(self, src: Node, dst: Node) -> None:
        """Cut one way."""
        way = self._way(src, dst)
        if way.cut:
            return
        way.cut = True
        if self._silent(src, dst):
            way.epoch += 1
        else:
            self._doom(src, dst)

    def cut_both(self, one: Node, other: Node) -> None:
        """Cut both ways."""
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, node: Node) -> None:
        """Cut a node off from all others."""
        for peer in self._peers(node):
            self.cut_both(node, peer)

    def partition(self, *groups: Iterable[Node]) -> None:
        """Cut everything between nodes of different groups; nodes that are not named are one more group, nodes that
        come later are in none. Cuts that are there stay."""
        group_of = {node: number for number, group in enumerate(groups) for node in group}
        for src, dst in self._pairs():
            if group_of.get(src) != group_of.get(dst):
                self.cut(src, dst)

    def reset(self, one: Node, other: Node) -> None:
        """End a connection; a new one follows where nothing is cut."""
        if not self._silent(one, other):
            self._doom(one, other)
            self._doom(other, one)

    def heal(self, one: Node | None = None, other: Node | None = None) -> None:
        """Undo the cuts between two nodes, of one, or all."""
        for (src, dst), way in self._ways.items():
            if way.cut and (one is None or one in (src, dst)) and (other is None or other in (src, dst)):
                way.cut = way.rejects = False
                self._connect_soon(src, dst)

    # --- connections -------------------------------------------------------------------------------------

    def _doom(self, src: Node, dst: Node) -> None:
        """A connection has a gap this way: its end is to come."""
        way, back = self._way(src, dst), self._way(dst, src)
        way.epoch += 1
        if way.doomed:
            return
        way.doomed = True
        if not back.doomed:  # else they are going to be told
            self._tell(src, dst)
            self._tell(dst, src)

    def _tell(self, node: Node, peer: Node) -> None:
        """Tell one end, some time later, that the connection it knows now is over."""
        number = self._way(node, peer).number
        if number != _NONE:
            self._clock.call_later(self._rng.uniform(*self._noticed), lambda: self._told(node, peer, number))

    def _told(self, node: Node, peer: Node, number: int) -> None:
        way = self._way(node, peer)
        process = self._processes.get(node)
        if way.number != number or process is None:
            return
        way.number = _NONE
        back = self._way(peer, node)
        back.epoch += 1
        back.doomed = True
        self.statistics.disconnections += 1
        self._connect_soon(node, peer)
        process.disconnected(peer)
        self._dial_again(process, node, peer)

    def _dial_again(self, process: _Process, node: Node, peer: Node) -> None:
        def dial() -> None:
            way = self._way(node, peer)
            if self._processes.get(node) is not process or way.number != _NONE:
                return
            if self._processes.get(peer) is None or way.rejects:
                process.refused(peer)
            self._dial_again(process, node, peer)

        self._clock.call_later(self._dials.uniform(*self._redialled), dial)

    def _connect_soon(self, one: Node, other: Node) -> None:
        if self._connectable(one, other):
            self._clock.call_later(self._rng.uniform(*self._reconnected), lambda: self._connect(one, other))

    def _connectable(self, one: Node, other: Node) -> bool:
        to, back = self._way(one, other), self._way(other, one)
        if self._processes.get(one) is None or self._processes.get(other) is None or to.cut or back.cut:
            return False
        if self._silent(one, other):
            return to.number == _NONE or back.number == _NONE
        return to.number == back.number == _NONE

    def _connect(self, one: Node, other: Node) -> None:
        if not self._connectable(one, other):
            return  # whatever prevents it asks again when it is over
        self._connections += 1
        self.statistics.connections += 1
        ends = [(node, peer) for node, peer in ((one, other), (other, one)) if self._way(node, peer).number == _NONE]
        for node, peer in ((one, other), (other, one)):
            way = self._way(node, peer)
            way.number = self._connections
            way.doomed = False
            way.fifo = 0.0
        for node, peer in ends:
            process = self._processes[node]
            if process is not None:
                process.connected(peer)

    def _silent(self, one: Node, other: Node) -> bool:
        return not (self._way(one, other).link.connected and self._way(other, one).link.connected)

    # --- messages ----------------------------------------------------------------------------------------

    def _deliver_at(self, time: float, way: _Way, src: Node, dst: Node, payload: bytes) -> None:
        epoch = way.epoch

        def arrive() -> None:
            process = self._processes[dst]
            if way.epoch != epoch or process is None:
                self.statistics.lost += 1
                return
            self.statistics.delivered += 1
            self.statistics.deliveries[src, dst] += 1
            process.receive(src, payload)

        self._clock.call_at(time, arrive)

    def _way(self, src: Node, dst: Node) -> _Way:
        way = self._ways.get((src, dst))
        if way is None:
            if src == dst:
                raise ValueError(f"node {src!r} has no link to itself")
            way = self._ways[src, dst] = _Way(self._link)
        return way

    def _pairs(self) -> Iterator[tuple[Node, Node]]:
        nodes = self.nodes
        return ((src, dst) for src in nodes for dst in nodes if src != dst)

    def _peers(self, node: Node) -> list[Node]:
        return [peer for peer in self._processes if peer != node]

    def _alive(self, node: Node) -> None:
        if self._processes.get(node) is None:
            raise ValueError(f"node {node!r} is not attached")
