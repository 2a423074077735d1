"""Holds every request between its caller and a connection: waiting, in flight, or about to be retried.

The way of a call: :meth:`Dispatcher.submit` -> (waiting) -> a node's connection -> answered, or failed and then
retried, until its deadline. All of it happens in callbacks: a request costs no task and no timer of its own.

A call concerns one group, and goes to the node that the client believes to lead it. The dispatcher decides what happens
to a call after each event. Each component knows one thing: :mod:`.router` where a call goes, :mod:`.leaders` which node
leads, :mod:`.discovery` how to find out, :class:`.router.Sender` how an attempt is sent and which nodes do not answer,
:mod:`.calls.retries` when the next one is and when time is up, :mod:`.reports` who is told about it.

A client has a :class:`Home`: one process, one thread, one event loop. A call from anywhere else would wait for an
answer that only that place can give, so it is refused at once. This is the only module that checks it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from metad_wire.cluster import MapReply
from metad_wire.connection.frame import FRAME_BYTES_MAX, HANDSHAKE_BYTES_MAX, HEADER_BYTES
from metad_wire.methods import AHEAD, WATCH_OPEN, Lane, Method
from metad_wire.program.forks import Process
from metad_wire.tables.table import PlainTable

from ..errors import (
    CancelledError,
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    FencedError,
    ForeignCallError,
    ForkedError,
    IdentityExpiredError,
    InternalError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
    StaleRouteError,
    TooEarlyError,
    another,
)
from ..observer import Observer
from ..options import Options
from .calls.call import ENVELOPE_BYTES_MAX, Call, Events, GivenIdentity, Life, Meter
from .calls.call_queue import Backlog
from .calls.retries import Deadlines, Retries
from .calls.retry import deadline_error, lost
from .discovery import Discovery
from .leaders import Leaders
from .node_connection import NodeConnection
from .nodes import NodeQueue, Nodes
from .reports import Reports, log
from .router import ANY, SUSPECT_S, Nearest, Router, Routes, Sender, Suspects
from .states import States

_FORKED = (
    "the client belongs to the process that made it, and this is a fork of that process: connect anew after a fork, or "
    'start processes with multiprocessing\'s "spawn"; nothing was done'
)
_FOREIGN = (
    "a client belongs to the event loop that it was made in, and was called {}: make one there, or share a "
    "metad_client.blocking client between threads; nothing was done"
)
_ENDING = "the interpreter shuts down, and the client's thread runs no more: close the client before; nothing was done"


class Home:
    """The event loop that runs now, its thread and its process."""

    def __init__(self) -> None:
        self._process = Process()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def check(self) -> None:
        """Raise ForkedError or ForeignCallError if the caller is not in this event loop."""
        # Two loops never run in one thread at once. To ask which one runs would be a system call.
        if threading.get_ident() != self._thread or not self._loop.is_running() or not self._process.is_here:
            raise self._error()

    def check_process(self) -> None:
        """Raise ForkedError in a fork: for what any thread may read."""
        check_process(self._process)

    def _error(self) -> MetadError:
        if not self._process.is_here:
            return ForkedError(_FORKED)
        if self._loop.is_closed():
            where = "after that loop was closed"
        elif not self._loop.is_running():
            where = "while that loop did not run"
        else:
            where = "in another one"
        return ForeignCallError(_FOREIGN.format(where))


def check_process(process: Process) -> None:
    """Raise ForkedError in a fork of a process, ForeignCallError while the interpreter shuts down: threads run no more
    then."""
    if not process.is_here:
        raise ForkedError(_FORKED)
    if sys.is_finalizing():
        raise ForeignCallError(_ENDING)


_UNOPENED = 'the client is not opened: enter it with "async with", or await its open(); nothing was done'
_CLOSED = "the client is closed; nothing was done"
_CLOSED_UNANSWERED = "the client was closed before the answer came"

REDIRECTS_MAX = 2
"""Consecutive attempts that follow a hint at once. Hints that lead in circles wait like other retries."""

BODY_BYTES_MIN = HANDSHAKE_BYTES_MAX - HEADER_BYTES - ENVELOPE_BYTES_MAX
"""Every server takes bodies of this size."""


class Follower(Protocol):
    """What has streams of its own over the client's connections: a watch."""

    progress_ms: int
    """How often the servers say how current it is; 0: they do not."""
    level_at: float | None
    """What it has delivered lacks nothing that was acknowledged before this time of the loop; None: not known yet."""

    def changed(self) -> None:
        """A node was connected, could not be, or is no longer; or there is a newer map."""

    def closed(self) -> None:
        """The client is closed."""

    def fail(self, error: MetadError) -> None:
        """It cannot go on."""


class Dispatcher:
    """The calls of one client. It listens to the connections that carry them."""

    def __init__(
        self, options: Options, rng: random.Random, observer: Observer | None = None, *, by_quic: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        self.home = Home()
        self.reports = Reports(loop, observer)
        self.requests = 0
        self.answers = 0
        self.turned_away = 0
        self.meters: defaultdict[str, Meter] = defaultdict(Meter)
        """By verb, which are as many as the protocol has."""
        self.batches: defaultdict[str, int] = defaultdict(int)
        """Kind -> batches of watches that were delivered."""
        self.resumes = 0
        """Streams of watches that went on after an interruption."""
        self.options = options
        self.rng = rng
        self._loop = loop
        self._closed = False
        self._life: Life | None = None  # in whose name writes are made
        self._refusal = _UNOPENED  # why no call is accepted; empty: they are
        # Calls that are due have waited longest: they go first.
        self._retries = Retries(loop, options, rng, lambda due: self._router.route(reversed(due), first=True))
        self.backlog = Backlog(options.waiting_max, options.waiting_bytes_max, self._retries)
        self.nodes = Nodes(self.backlog)
        self.routes = Routes(by_quic=by_quic)
        self._leaders = Leaders()
        self._suspects = Suspects(loop, self.nodes, self.seek)
        self.sender = Sender(loop, rng, self._suspects)
        self._nearest = Nearest(loop, options.region, self.nodes, self._leaders, self.routes, self._suspects, rng)
        self._router = Router(
            self.nodes, self._leaders, self.routes, self.sender, self.backlog, rng, self.seek, self._nearest
        )
        self._deadlines = Deadlines(loop, self._calls, self._expire)
        self.states = States(loop, options.lost_after_s, self._led, self._ask_who_leads, self.reports.state_changed)
        self.followers: dict[Follower, None] = {}
        self.asked: asyncio.Future[None] = loop.create_future()
        """Ends with the first answer to the question for the map, or when that question fails."""
        self._discovery = Discovery(
            loop,
            self.nodes,
            self.routes,
            self._router,
            self.sender,
            self._suspects,
            self._deadlines.alarm,
            self._learn,
            self.asked,
            self._give_up,
        )

    # --- callers ---

    def live(self, life: Life) -> None:
        """Make every write from now on in the name of this life, in place of an earlier one."""
        self._life = life

    def check(self) -> None:
        """Raise :class:`ForeignCallError` if the caller is elsewhere than the client, :class:`ClosedError` if that is
        not open."""
        self.home.check()
        if self._refusal:
            raise ClosedError(self._refusal, outcome_known=True)

    def submit(
        self,
        method: Method[Any, Any],
        body: bytes,
        deadline: float,
        group: str | None = ANY,
        *,
        node: str = "",
        once: bool = False,
        version: int | None = None,
        identity: GivenIdentity | None = None,
        items: int = 0,
        begun: float | None = None,
        freshness_ms: int = 0,
    ) -> Call:
        """Send or queue a request for one group, or for one node; its ``future`` ends with the reply or a MetadError.
        ``once``: end it rather than send it again if it may have been done. ``version`` is the version of the map that
        named the group, if that is not the current one. ``identity``: of a write, if the program has named it.
        ``items``: how many it has, and ``begun``: since when its caller waits, if not since now; both are counted.
        ``freshness_ms``: of a read that the nearest replica may answer which can prove that it is no older.

        What goes ahead (:data:`metad_wire.methods.AHEAD`) waits for nothing else that waits, and some of the window is
        kept free for it. For a heartbeat there is always room: a client has one life, whose heartbeats come one after
        the other.

        Raises OverloadedError if too many calls wait already, ClosedError on a client that is not open.
        """
        if self._refusal:
            self.check()
        if version is None:
            version = self.routes.version
        now = self._loop.time()
        call = Call(method, body, deadline, self._loop.create_future(), group, node, version, once, items, freshness_ms)
        call.meter, call.begun = self.meters[method.name], now if begun is None else begun
        ahead = method.code in AHEAD
        try:
            if self._life is not None and method.mutates:
                self._life.check()
                call.in_name_of(self._life.owner, self._life.requires)
            if identity is not None:
                call.identities, call.seq, call.first_sent = identity, identity.take(), now
            queue = self._router.queue_of(call)
            connection = None
            if queue is not None and (ahead or not queue.waiting):
                connection = queue.open_for(len(body), ahead=ahead)
            if connection is None and method.lane is not Lane.HEARTBEATS:
                self.backlog.check(len(body))
        except MetadError as error:
            call.ended(error.name)
            raise
        self.requests += 1
        if self.reports.observer is not None:
            self.reports.watch(call)
        if connection is not None:
            self.sender.send(connection, call)
        elif not self._moved(call):
            self._router.route([call], first=ahead)
        if deadline < self._deadlines.alarm.at:
            self._deadlines.alarm.set(deadline)
        return call

    def wait_for_map(self, method: Method[Any, Any], deadline: float) -> Call:
        """Wait until the groups of a method's items are known: the future ends with None or with a MetadError. Nothing
        is sent. Raises the errors of :meth:`submit`."""
        self.check()
        call = Call(method, b"", deadline, self._loop.create_future(), None)
        call.meter, call.begun = self.meters[method.name], self._loop.time()  # which counts it if it fails
        try:
            self.backlog.check(0)
        except MetadError as error:
            call.ended(error.name)
            raise
        self._router.park(call)
        self._deadlines.alarm.set(deadline)
        return call

    def open_stream(self, queue: NodeQueue, body: bytes, group: str, events: Events, deadline: float) -> Call | None:
        """Ask a node for a stream of a group's changes. The call is sent once, and not retried. None if the node takes
        no requests now."""
        connection = queue.open_for(len(body))
        if connection is None:
            return None
        call = Call(
            WATCH_OPEN, body, deadline, self._loop.create_future(), group, queue.node, internal=True, events=events
        )
        self.sender.send(connection, call)
        self._deadlines.alarm.set(deadline)
        return call

    def follow(self, follower: Follower) -> None:
        """Tell a watch what it has to know, until it is forgotten."""
        self.check()
        self.followers[follower] = None

    def forget(self, follower: Follower) -> None:
        """The watch has ended."""
        self.followers.pop(follower, None)

    def leader(self, group: str) -> str:
        """The node that is believed to lead a group; empty if none is."""
        return self._leaders.by_group.get(group, "")

    def abandon(self, call: Call) -> None:
        """The caller no longer waits. An attempt in flight is cancelled at the server."""
        self._suspects.give_up(call)
        call.release()
        call.ended("abandoned")
        call.future.cancel()  # also one that has an error already, which nobody asks for

    @property
    def body_bytes_max(self) -> int:
        """The largest body of a request that the server takes."""
        connection = self.nodes.any_up()
        frame_bytes_max = FRAME_BYTES_MAX if connection is None else connection.frame_bytes_max
        return frame_bytes_max - HEADER_BYTES - ENVELOPE_BYTES_MAX

    # --- the client and its connection manager ---

    @property
    def returning(self) -> int:
        """Requests that wait for the time at which a node lets them come back."""
        return sum(call.has_slot for call in self._retries.calls())

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return sum(len(connection.calls()) for connection in list(self.nodes.connections))

    def open(self) -> None:
        """Accept calls, which wait until a node is connected. Raises ClosedError if the dispatcher is closed."""
        if self._closed:
            self.check()
        self._refusal = ""

    def attach(self, connection: NodeConnection, instead_of: NodeConnection | None = None) -> bool:
        """Send new requests for the node that has greeted by this connection from now on. The connection that it
        replaces, ``instead_of``, closes once it is answered. False if the connection is not wanted."""
        queue = self.nodes.attach(connection, instead_of) if not self._closed and connection.can_send(0) else None
        if queue is None:
            return False
        self.reports.connected(queue.node, connection.endpoint, connection.via)
        if self.routes.map is None:  # another server at the same place: the old one is gone
            self._follow({queue.node: ""})
        self._router.release()
        self.sender.send_waiting(queue)
        if instead_of is not None:
            instead_of.leave()
        elif self.routes.map is None or queue.connects > 1 or not self._router.has_leaders():
            self.seek(at_once=True)
        self.states.up()
        self._tell_followers(lambda follower: follower.changed())
        return True

    def unreachable(self, queue: NodeQueue, obstacle: MetadError) -> None:
        """A node could not be connected to."""
        queue.unreachable(obstacle)
        self.reports.unreached(f"node {queue.node}", obstacle)
        self._give_up()
        self.seek()
        self._tell_followers(lambda follower: follower.changed())

    def seek(self, *, at_once: bool = False) -> None:
        """Ask for the map and the leaders soon: the known ones may be out of date."""
        self._discovery.seek(at_once=at_once)

    def hang_up(self) -> None:
        """Close the current connections. The connection manager opens new ones."""
        for _, connection in self.nodes.up():
            connection.abort()

    def close(self) -> list[NodeConnection]:
        """End every call with :class:`ClosedError` and accept no more. Returns the connections, which are closing."""
        if self._closed:
            return []
        self._closed, self._refusal = True, _CLOSED
        self._retries.close()
        self._deadlines.alarm.cancel()
        self._discovery.close()
        self._suspects.close()
        for call in self._calls():
            if call.unanswered:
                call.fail(ClosedError("" if call.method.changes else _CLOSED_UNANSWERED))
            else:
                call.fail(ClosedError(_CLOSED, outcome_known=True))
        self.states.close()
        self._tell_followers(lambda follower: follower.closed())
        connections = list(self.nodes.connections)
        for connection in connections:
            connection.close()
        return connections

    def _tell_followers(self, tell: Callable[[Follower], None]) -> None:
        for follower in list(self.followers):
            try:
                tell(follower)
            except Exception as error:  # noqa: BLE001 - others and the client go on
                log.exception("a watch has failed")
                follower.fail(InternalError(f"the watch has failed: {error!r}"))

    # --- connections: their ConnectionListener ---

    def answered(self, call: Call, payload: bytes) -> None:
        self.answers += not call.internal
        self._suspects.heard(call.connection)
        if call.probes:
            self._lead(call.group or ANY, call.probes)
            self._router.release()
        if call.whole is not None:
            call.spent()
            return
        try:
            reply = call.method.decode_reply(payload)
        except InvalidRequestError as error:  # the reply is malformed, which is not the fault of the caller's request
            call.fail(InternalError(str(error)))
            return
        call.succeed(reply)

    def failed(self, connection: NodeConnection, call: Call, error: MetadError) -> None:
        """The peer answered with an error: retry now or later, here or elsewhere, or tell the caller."""
        self._suspects.heard(connection)
        if call.internal:
            call.fail(error)
            return
        self.answers += 1
        if isinstance(error, FencedError) and self._life is not None:
            self._life.hurry()
        if isinstance(error, CancelledError | DeadlineExceededError) and not call.in_doubt:
            error = another(error, outcome_known=True)  # a server answers so only what it has not begun
        self.turned_away += isinstance(error, OverloadedError)
        queue = self.nodes.connections[connection]
        call.refused(queue.node, error)
        if call.future.done():
            call.release()
        elif isinstance(error, TooEarlyError) and not call.was_early:
            call.was_early = True
            self._router.to_front(call, queue)  # the handshake is over by now
        elif call.is_near and error.retryable and (leader := self._nearest.refused(call, queue)) is not None:
            self.reports.redirected(call, queue.node, leader.node)
            self._router.to_front(call, leader)
        elif call.spends(error):
            self._router.to_front(call, queue)
        elif not self._redirect(call, error, queue) and not self._moved(call, error):
            self._again(call, error)
            if call.astray or call.stale:
                self.seek()

    def retired(self, connection: NodeConnection, error: MetadError | None) -> None:
        """A connection takes no new requests: they go to the next leader, or wait."""
        if self._life is not None:
            self._life.hurry()
        queue = self.nodes.connections.get(connection)
        if queue is None or queue.connection is not connection:
            return
        queue.disconnect(error)
        self.reports.disconnected(queue.node, connection.endpoint, None if self._closed else error)
        if self.nodes.any_up() is None:
            self.routes.doubt()
            self.states.down()
        self._give_up()
        self._router.reroute(call for call in queue.waiting if not call.node)
        self.seek(at_once=True)  # a node that stops in order has handed over its groups by then
        self._tell_followers(lambda follower: follower.changed())

    def lost(self, connection: NodeConnection, calls: list[Call], error: MetadError) -> None:
        """A connection has ended. A retry with the same identity finds out whether its calls were carried out."""
        self.nodes.connections.pop(connection, None)
        self._suspects.heard(connection)
        for call in calls:
            if call.internal:
                call.fail(lost(error))
            else:
                call.lost()
                self._again(call, lost(error))
        self._give_up()

    def heard(self, connection: NodeConnection) -> None:
        self._suspects.heard(connection)

    def ready(self, connection: NodeConnection) -> None:
        queue = self.nodes.connections.get(connection)
        if queue is not None and queue.waiting:
            self.sender.send_waiting(queue)

    # --- retries ---

    def _again(self, call: Call, error: MetadError) -> None:
        if call.future.done():
            call.release()
            return
        call.obstructed(error, in_doubt=not error.outcome_known)
        final = error if call.once and not error.outcome_known else self._retries.schedule(call, error)
        if final is not None:
            call.fail(self._explained(call, error, final))
        else:
            self.reports.retried(call, error)
            if call.turned_away is not None and call.has_slot:
                call.turned_away()

    def _explained(self, call: Call, error: MetadError, final: MetadError) -> MetadError:
        """The end of a call, told by the state of its group where that says more than what one node answered last, and
        by the name of its table, of which nodes know the number."""
        table = call.method.table
        if isinstance(table, PlainTable) and isinstance(final, NotFoundError):
            return another(final, text=final.message.replace(f"table {table.number}:", f"table {table.name}:"))
        # No other end is retold: a lost connection leaves the outcome open, and must still say so.
        if not call.group or not isinstance(final, DeadlineExceededError):
            return final
        leaderless = self._router.leaderless(call.group)
        if leaderless is None or not isinstance(error, NotLeaderError | ConnectionLostError):
            return final
        return deadline_error(call, leaderless)

    def _moved(self, call: Call, error: MetadError | None = None) -> bool:
        """End a call whose group does not hold its items, once there is a newer map than the one that named the group.
        The group has checked that it did not do the call before, so the items are sent as other writes.

        If the group was removed, they are so, too, but not where an attempt may have been carried out, of which
        ``error`` is the answer: nobody can say any more whether it was."""
        if call.stale and self.routes.version > call.version:
            call.fail(StaleRouteError(), moved=True)
            return True
        if call.carrier is not None or call.future.done() or not self.routes.has_removed(call.group):
            return False
        if call.is_in_doubt or (call.method.changes and error is not None and not error.outcome_known):
            call.obstructed(error or call.obstacle or StaleRouteError(), in_doubt=True)
            call.fail(IdentityExpiredError(f"{call.group} was removed, and an attempt may have been carried out"))
        else:
            call.fail(StaleRouteError(), moved=True)
        return True

    def _give_up(self, *, led: bool = False) -> None:
        """End what no node answers before the client is changed. ``led`` is that of :meth:`.router.Router.refusal`."""
        if not self._router.has_refusals:
            return
        for call in self._calls():
            if call.carrier is None and not call.future.done():
                refusal = self._router.refusal(call, led=led)
                if refusal is not None:
                    call.fail(refusal)
        refusal = self._router.refusal()
        if refusal is not None:
            self._tell_followers(lambda follower: follower.fail(refusal))

    def refused(self, nodes: Iterable[str]) -> MetadError | None:
        """Why none of these nodes accepts this client; None while one may."""
        return self._router.refused(nodes)

    def _expire(self, call: Call) -> None:
        """The deadline has passed."""
        self._suspects.give_up(call)
        obstacle = call.obstacle or self._router.obstacle(call)
        late = deadline_error(call, obstacle)
        call.fail(late if obstacle is None else self._explained(call, obstacle, late))

    def _calls(self) -> list[Call]:
        in_flight = [call for connection in self.nodes.connections for call in connection.calls()]
        waiting = [call for queue in self.nodes.queues.values() for call in queue.waiting]
        parked = [call for calls in self._router.parked.values() for call in calls]
        return [*in_flight, *parked, *waiting, *self._retries.calls()]

    # --- leaders ---

    def _led(self) -> dict[str, bool]:
        """By kind of groups: whether all of them have a leader that is connected and answers."""
        known = self.routes.map
        led: dict[str, bool] = {}
        for group in () if known is None else known.groups:
            queue = self._router.leading(group.group_id.name)
            answers = queue is not None and queue.connection not in self._suspects.connections
            led[group.kind] = led.get(group.kind, True) and answers
        return led

    def _ask_who_leads(self) -> None:
        """Also while nothing is called: those that are left may have no quorum, and be the last to know."""
        if any(queue.connection is None for queue in self.nodes.queues.values()):
            self.seek()

    def _redirect(self, call: Call, error: MetadError, queue: NodeQueue) -> bool:
        """If a node does not lead the call's group, take its hint. True if the call is under way to another."""
        group, hint, now = call.group, error.leader, self._loop.time()
        if not group or not isinstance(error, NotLeaderError):
            return False
        refuted = self._leaders.refuted(group, hint, now)
        self._leaders.refuse(group, queue.node, now)
        if self._leaders.forget(group, queue.node):
            if hint in self.nodes.queues and hint != queue.node and not refuted:
                self._lead(group, hint)
            elif hint and hint not in self.nodes.queues:
                self.seek(at_once=True)
            self._router.reroute(waiting for waiting in queue.waiting if waiting.group == group)
        leader = self._router.leading(group)
        if leader is None or leader is queue or call.redirects >= REDIRECTS_MAX:
            return False
        call.redirected(error)
        self.reports.redirected(call, queue.node, leader.node)
        self._router.to_front(call, leader)
        return True

    def _lead(self, group: str, node: str) -> None:
        """Believe that this node leads the group."""
        before = self.nodes.queues.get(self._leaders.by_group.get(group, ""))
        if self._leaders.learn(group, node):
            if (queue := self.nodes.queues.get(node)) is not None:
                queue.named.set()
            if before is not None:
                self._router.reroute(call for call in before.waiting if call.group == group)
            self._retries.hurry(group, node)

    def _learn(self, queue: NodeQueue, reply: MapReply) -> None:
        """Take a node's answer about the map and the leaders."""
        if self.routes.learn(reply):
            self._leaders.prefer(self.routes.preferred())
            self._follow(self.routes.endpoints)
            for call in self._retries.calls():
                self._moved(call)
            for group in filter(self.routes.has_removed, list(self._router.parked)):
                for call in list(self._router.parked[group]):
                    self._moved(call)
            self._tell_followers(lambda follower: follower.changed())
        now = self._loop.time()
        queue.told(reply.leaders.keys())
        for group, node in reply.leaders.items():
            # A node is believed about itself; about another node only if that one has not just refused.
            if node in self.nodes.queues and (node == queue.node or not self._leaders.refuted(group, node, now)):
                self._lead(group, node)
            elif self._leaders.by_group.get(group) == queue.node != node:  # it leads no longer
                self._leaders.forget(group, queue.node)
                self._router.reroute(waiting for waiting in queue.waiting if waiting.group == group)
        if queue.connection not in self._suspects.connections:
            self._take_back()
        self._give_up(led=True)

    def _follow(self, nodes: dict[str, str]) -> None:
        """Use these nodes and no other."""
        for queue in self.nodes.follow(nodes):
            if queue.connection is not None:
                queue.connection.leave()
            for call in list(queue.waiting):
                call.fail(NotFoundError(f"{queue.node} is no member of the cluster"))

    def _take_back(self) -> None:
        """Take back calls that have long been unanswered by nodes that no longer lead their group. Such a node may have
        done them, or may still; the identity makes it one write."""
        now = self._loop.time()
        # a connection that leaves ends with its last call
        for connection, queue in list(self.nodes.connections.items()):
            for call in connection.calls() if connection in self._suspects.connections else ():
                late = not call.internal and now - call.sent >= SUSPECT_S
                leader = self._router.leading(call.group) if call.group and late else None
                if leader is not None and leader is not queue and not call.once:
                    call.withdraw()
                    call.lost()
                    self.reports.redirected(call, queue.node, leader.node)
                    self._router.to_front(call, leader)
