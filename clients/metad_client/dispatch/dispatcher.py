"""Every request between its caller and a connection: waiting for room, in flight, or about to be tried again.

The way of a call: :meth:`Dispatcher.submit` -> (waiting) -> :class:`NodeConnection` -> answered, or failed and then
a retry, until its deadline. All of it happens in callbacks: a request costs no task, and no timer of its own
(one sweep finds passed deadlines, one timer the next retry).

A call is about one group, and goes to the node that is believed to lead it. Each node has a lane of its own, so one
that is slow or gone holds up nobody else's calls. Where no reachable node is known to lead a group, its calls are
*parked* and the nodes are asked who does, one question at a time however many calls wait.

**A write happens once**, through any number of leaders: all its attempts carry one identity, and one group answers for
it, which remembers identities in its replicated state; the request names that group, so no other does it in its place.
Where slots have moved, a group that does not remember a write refuses it for good, and the items go on as other writes.
The identities of each group are a series of their own (a random client id, and numbers), so a group that cannot be
reached keeps no other from forgetting what was answered; and two series never meet.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from metad_wire.cluster import MapReply, MapRequest
from metad_wire.frame import FRAME_BYTES_MAX, HEADER_BYTES
from metad_wire.messages import Identity, Request, Welcome
from metad_wire.methods import CLUSTER_MAP, Method, encode

from ..errors import (
    ClosedError,
    DrainingError,
    FrameError,
    InvalidRequestError,
    MetadError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
    StaleRouteError,
    TooEarlyError,
    UnknownMethodError,
    UnknownOutcomeError,
)
from ..options import Options
from .call import Call
from .identity import IdentitySource
from .node_connection import NodeConnection
from .node_queue import NodeQueue
from .retry import RetryQueue, SharedBudget, deadline_error, lost, reply_of, verdict, worth_a_retry
from .routes import ANY, Routes

_CLOSED = "the client is closed; nothing was done"

# Array header, deadline, identity: 1 + 9 + 1 + 4 * 9 bytes at most, the name of a group, and what is required: a 0.
ENVELOPE_BYTES_MAX = 64
DEADLINE_MS_MAX = 0xFFFF_FFFF  # the field is a u32
# Deadlines are kept to within this: a sweep looks at every call, so sweeps must not follow each other at once.
SWEEP_INTERVAL_MIN_S = 0.01

# While somebody waits for a leader the nodes are asked this often, at first and at last: an election takes a second or
# so, an answer costs a node microseconds.
SEEK_MIN_S = 0.02
SEEK_MAX_S = 0.25
PROBE_AFTER_SEEKS = 5
# A node that has not said by then who leads is not asked again before the others.
SEEK_DEADLINE_S = 1.0
# A request unanswered for this long may be with a leader that is none any more: ask the others, who go on without it.
SUSPECT_S = 1.0
WATCH_S = 0.5
# A node that refused to lead a group is not believed to, on the word of others, for this long: they may be behind.
REFUSAL_S = 0.5
# Attempts in a row that follow a hint at once. Hints that go round in circles wait like other retries.
REDIRECTS_MAX = 2


class Dispatcher:
    """The calls of one client, and the lanes they go by. ``on_lanes`` is told of a change of ``lanes`` or the map."""

    def __init__(self, options: Options, rng: random.Random) -> None:
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._rng = rng
        self._budget = SharedBudget(options.retry_budget) if options.retry_budget is not None else None
        self._identities: dict[str | None, IdentitySource] = {}  # by group
        self.routes = Routes()
        self.lanes: dict[str, NodeQueue] = {}  # by node id
        self.on_lanes: Callable[[], None] = _nothing
        self.asked: asyncio.Future[None] = self._loop.create_future()
        """Ends with the first answer to the question for the map, or without one."""
        self._direct: dict[str | None, NodeQueue] = {}  # group -> its leader's lane, where that is up
        self._connections: set[NodeConnection] = set()  # those with calls that may be in flight, draining ones included
        self._parked: dict[str | None, OrderedDict[Call, None]] = {}  # by group: no lane is known to lead to its leader
        self._queued = 0  # parked, or waiting in lanes
        self._queued_bytes = 0
        self._refusals: dict[str, tuple[str, float]] = {}  # group -> who refused to lead it last, and when
        self._cluster_id = ""
        self._anew = True  # the next map is taken whatever its version: nobody is left who knows the last
        self._retrying = RetryQueue()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_at = math.inf
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_at = math.inf
        self._seek_timer: asyncio.TimerHandle | None = None
        self._seeks = 0  # in a row that left somebody waiting
        self._question: Call | None = None  # for the map, in flight
        self._watch_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.nodes_reached = 0  # nodes that were ever connected to
        self.requests = 0
        self.answers = 0
        self.retries = 0

    # --- callers ---

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
    ) -> Call:
        """Send or queue a request about one group, or for one node; its ``future`` ends with the reply or a MetadError.
        ``once``: end it, rather than send it again where it may have been done. ``version`` is of the map that named
        the group, where that is not the current one.

        Raises :class:`OverloadedError` where too many wait already, :class:`ClosedError` on a closed client.
        """
        if self._closed:
            raise ClosedError(_CLOSED)
        call = Call(method, body, deadline, self._loop.create_future(), group, node)
        call.once = once
        call.version = self.routes.version if version is None else version
        lane = self._lane_of(group) if not node else self.lanes.get(node)
        if (
            lane is not None
            and not lane.waiting
            and (connection := lane.connection) is not None
            and connection.can_send(len(body) + ENVELOPE_BYTES_MAX)
        ):
            self.requests += 1
            self._send(connection, call)
        else:
            self._check_room(len(body))
            self.requests += 1
            lane = self._place(call)
            if lane is not None:
                self._pump(lane)
        if deadline < self._sweep_at:
            self._arm_sweep(deadline)
        return call

    def hold(self, method: Method[Any, Any], deadline: float) -> Call:
        """Wait until the map is known: the future ends with None, or with a MetadError. Nothing is sent. Raises as
        :meth:`submit` does."""
        if self._closed:
            raise ClosedError(_CLOSED)
        self._check_room(0)
        call = Call(method, b"", deadline, self._loop.create_future(), None)
        self._park(call)
        self._seek()
        if deadline < self._sweep_at:
            self._arm_sweep(deadline)
        return call

    def abandon(self, call: Call) -> None:
        """The caller no longer waits. What is in flight is cancelled at the server."""
        carrier = call.carrier
        if carrier is not None:
            carrier.cancel(call)
        self._forget(call)
        call.future.cancel()

    @property
    def body_bytes_max(self) -> int:
        """The largest body of a request that the server takes."""
        lane = self._lane_of(ANY)
        connection = lane.connection if lane is not None else None
        frame_bytes_max = FRAME_BYTES_MAX if connection is None else connection.session.decoder.frame_bytes_max
        return frame_bytes_max - HEADER_BYTES - ENVELOPE_BYTES_MAX

    # --- lanes ---

    def attach(self, connection: NodeConnection) -> bool:
        """New requests to the node that has greeted go to this connection from now on. False where it is not wanted:
        the node has one, or is none of the cluster's while those are there."""
        welcome = connection.session.welcome
        assert welcome is not None
        if self._closed or not connection.can_send(0):
            return False
        anybody = any(lane.connection is not None for lane in self.lanes.values())
        lane = self.lanes.get(welcome.node_id)
        if anybody and (lane is None or self._is_foreign(welcome)):
            return False
        if lane is None:
            lane = self.lanes[welcome.node_id] = NodeQueue(welcome.node_id)
            if self.routes.map is None:  # another server at the same place: then the last one is no more
                for other in [other for other in self.lanes.values() if other is not lane]:
                    self._drop(other)
            self.on_lanes()
        elif lane.connection is not None:
            return False
        self._cluster_id = welcome.cluster_id or (self._cluster_id if anybody else "")
        lane.connection, lane.obstacle, lane.suspect = connection, None, False
        self.nodes_reached += not lane.connects
        lane.connects += 1
        lane.down.clear()
        connection.lane = lane
        self._connections.add(connection)
        self._release()
        self._pump(lane)
        if self.routes.map is None or lane.connects > 1 or not self._all_led():
            self._seek(at_once=True)
        return True

    def exchange(self, lane: NodeQueue, connection: NodeConnection) -> bool:
        """New requests to a node go to this connection instead of the one it has, which hangs up once it is answered.
        False where it is not wanted: it led elsewhere, or there is nothing to exchange any more."""
        welcome, old = connection.session.welcome, lane.connection
        assert welcome is not None
        if self._closed or old is None or not connection.can_send(0):
            return False
        if welcome.node_id != lane.node or self._is_foreign(welcome):
            return False
        lane.connection, lane.suspect = connection, False
        lane.connects += 1
        connection.lane = lane
        self._connections.add(connection)
        self._pump(lane)
        old.leave()
        return True

    def _is_foreign(self, welcome: Welcome) -> bool:
        """Whether this is a node of another cluster. One that is being formed has no name yet."""
        return bool(welcome.cluster_id and self._cluster_id) and welcome.cluster_id != self._cluster_id

    def refresh(self) -> None:
        """Ask for the map: something in it may have changed that nobody says by refusing."""
        self._seek(at_once=True)

    def hang_up(self) -> None:
        """End the connections that there are. Whoever keeps them makes others."""
        for lane in list(self.lanes.values()):
            if lane.connection is not None:
                lane.connection.abort()

    def unreachable(self, lane: NodeQueue, obstacle: MetadError) -> None:
        """A node could not be connected to."""
        lane.obstacle = obstacle
        self._seek()

    def _detach(self, lane: NodeQueue, obstacle: MetadError | None) -> None:
        """No connection takes requests for this node: they go to the next leader, or wait."""
        lane.connection, lane.obstacle = None, obstacle
        lane.down.set()
        self._direct = {group: direct for group, direct in self._direct.items() if direct is not lane}
        if all(other.connection is None for other in self.lanes.values()):
            self._anew = True
        self._move([call for call in lane.waiting if not call.node])
        self._seek(at_once=True)  # a node that ends in order has others lead by then

    def _drop(self, lane: NodeQueue) -> None:
        """The node is no member of the cluster any more."""
        self.lanes.pop(lane.node, None)
        connection = lane.connection
        if connection is not None:
            connection.leave()
        for call in list(lane.waiting):
            self._fail(call, NotFoundError(f"{lane.node} is no member of the cluster"))

    def _sync(self) -> None:
        """Have a lane for each node of the map."""
        nodes = self.routes.endpoints
        for lane in [lane for node, lane in self.lanes.items() if node not in nodes]:
            self._drop(lane)
        for node in nodes:
            if node not in self.lanes:
                self.lanes[node] = NodeQueue(node)
        self._direct.clear()
        self.on_lanes()

    def _lane_of(self, group: str | None) -> NodeQueue | None:
        """The lane to the group's leader, where one is known and up."""
        lane = self._direct.get(group)
        if lane is not None:
            return lane
        if group == ANY:
            lane = next((lane for lane in self.lanes.values() if lane.connection is not None), None)
        elif group is not None:
            lane = self.lanes.get(self.routes.leaders.get(group, ""))
        if lane is None or lane.connection is None:
            return None
        self._direct[group] = lane
        return lane

    # --- connections: the ConnectionListener of each ---

    def answered(self, call: Call, payload: bytes) -> None:
        """The reply has come."""
        self.answers += not call.internal
        future = call.future
        if call.probes:
            self._lead(call.group or ANY, call.probes)
            self._release()
        try:
            reply = reply_of(call.method, payload)
        except MetadError as error:
            self._fail(call, error)
            return
        if not future.done():
            if call.method.mutates and reply.errors and self._heals(call, reply):
                return
            future.set_result(reply)
        if call.seq:
            self._release_identity(call)

    def failed(self, connection: NodeConnection, call: Call, error: MetadError) -> None:
        """The peer answered with an error: try again, now or later, here or elsewhere, or tell the caller."""
        if call.internal:
            self._fail(call, error)
            return
        self.answers += 1
        call.astray = False
        call.probes = ""
        lane = connection.lane
        if isinstance(error, TooEarlyError) and lane is not None and not call.future.done():
            self._queue(lane.waiting, call, first=True)  # the handshake is over by now
            self._pump(lane)
        elif lane is None or not call.group or call.future.done():
            self._again(call, error)
        elif isinstance(error, NotLeaderError):
            call.astray = True
            call.refused_by = lane.node
            if self._redirected(call, error, lane):
                return
            self._again(call, error)
            self._seek()
        elif isinstance(error, StaleRouteError):
            # The group has looked whether it did this before, and had not: a newer map may send the items elsewhere,
            # as other writes.
            call.stale = True
            if not self._moved(call):
                self._again(call, error)
                self._seek()
        else:
            self._again(call, error)
            if isinstance(error, UnknownOutcomeError | DrainingError):
                call.astray = True
                call.refused_by = lane.node
                self._seek()

    def retired(self, connection: NodeConnection, error: MetadError | None) -> None:
        """A connection takes no new requests."""
        lane = connection.lane
        if lane is not None and lane.connection is connection:
            self._detach(lane, error)

    def lost(self, connection: NodeConnection, calls: list[Call], error: MetadError) -> None:
        """A connection has ended. Whether its calls were carried out is for a retry with the same identity to see."""
        self._connections.discard(connection)
        for call in calls:
            if call.internal:
                self._fail(call, lost(error))
            else:
                call.astray = True
                call.refused_by = ""
                self._again(call, lost(error))

    def ready(self, connection: NodeConnection) -> None:
        """There may be room for what waits."""
        lane = connection.lane
        if lane is not None and lane.waiting:
            self._pump(lane)

    # --- the client ---

    def close(self) -> list[NodeConnection]:
        """Every call ends with :class:`ClosedError`, and none is taken any more. Returns the connections, closing."""
        if self._closed:
            return []
        self._closed = True
        for timer in (self._retry_timer, self._sweep_timer, self._seek_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        for call in self._calls():
            sent = call.carrier is not None or call.in_doubt
            if call.carrier is not None:
                call.carrier.cancel(call)
            self._fail(call, ClosedError("" if sent else _CLOSED))
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        return connections

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return sum(len(connection.calls) for connection in self._connections)

    @property
    def waiting(self) -> int:
        """Requests that wait for room, for a leader, or for their next attempt."""
        return self._queued + len(self._retrying)

    # --- inside ---

    def _send(self, connection: NodeConnection, call: Call) -> None:
        now = self._loop.time()
        identity: Identity | None = None
        if call.method.mutates:
            age_ms = 0
            identities = call.identities
            if identities is None:
                identities = call.identities = self._identities_of(call.group)
                call.seq = identities.take()
                call.first_sent = now
            else:  # never 0 again: 0 says that no attempt came before
                age_ms = max(1, int((now - call.first_sent) * 1000))
            identity = identities.identity(call.seq, age_ms)
        if call.attempts:
            self.retries += 1
        call.attempts += 1
        call.sent = now
        deadline_ms = min(max(1, int((call.deadline - now) * 1000)), DEADLINE_MS_MAX)
        try:
            connection.send(call, encode(Request(deadline_ms, identity, msgspec.Raw(call.body), call.group or "")))
        except FrameError as error:  # over the limit of this server, which no retry changes
            self._fail(call, InvalidRequestError(f"{call.method.name}: {error}"))
        if self._watch_timer is None and len(self.lanes) > 1:
            self._watch_timer = self._loop.call_later(WATCH_S, self._watch)

    def _identities_of(self, group: str | None) -> IdentitySource:
        source = self._identities.get(group)
        if source is None:
            source = self._identities[group] = IdentitySource(self._rng.getrandbits(64))
        return source

    def _check_room(self, size_bytes: int) -> None:
        if self.waiting >= self._options.waiting_max:
            raise OverloadedError(f"{self.waiting} requests wait already in this client; nothing was done")
        if self._queued and self._queued_bytes + size_bytes > self._options.waiting_bytes_max:
            raise OverloadedError(f"{self._queued_bytes} bytes wait already in this client; nothing was done")

    def _place(self, call: Call, *, first: bool = False) -> NodeQueue | None:
        """Put a call where it belongs; the lane it waits in, for :meth:`_pump`."""
        call.probes = ""
        if call.node:
            lane = self.lanes.get(call.node)
            if lane is None:
                self._fail(call, NotFoundError(f"{call.node} is no member of the cluster"))
                return None
        else:
            lane = self._lane_of(call.group)
            if lane is None:
                self._park(call, first=first)
                self._seek()
                return None
        self._queue(lane.waiting, call, first=first)
        return lane

    def _move(self, calls: list[Call]) -> None:
        """Place calls again that wait where they do not belong any more; they stay in order."""
        lanes: set[NodeQueue] = set()
        for call in calls:
            self._unqueue(call)
            lane = self._place(call)
            if lane is not None:
                lanes.add(lane)
        for lane in lanes:
            self._pump(lane)

    def _park(self, call: Call, *, first: bool = False) -> None:
        parked = self._parked.get(call.group)
        if parked is None:
            parked = self._parked[call.group] = OrderedDict()
        self._queue(parked, call, first=first)

    def _release(self) -> None:
        """Let go what is parked and can be sent by now."""
        for group, parked in list(self._parked.items()):
            if group is None:
                for call in list(parked):
                    if self.routes.knows(call.method):
                        self._unqueue(call)
                        if not call.future.done():
                            call.future.set_result(None)
            elif self._lane_of(group) is not None:
                self._move(list(parked))

    def _pump(self, lane: NodeQueue) -> None:
        """Send what waits, as far as it fits."""
        waiting = lane.waiting
        while waiting:
            connection = lane.connection
            call = next(iter(waiting))
            if connection is None or not connection.can_send(len(call.body) + ENVELOPE_BYTES_MAX):
                return
            self._unqueue(call)
            self._send(connection, call)

    def _queue(self, queue: OrderedDict[Call, None], call: Call, *, first: bool = False) -> None:
        call.queue = queue
        queue[call] = None
        self._queued += 1
        self._queued_bytes += len(call.body)
        if first:
            queue.move_to_end(call, last=False)

    def _unqueue(self, call: Call) -> None:
        queue, call.queue = call.queue, None
        assert queue is not None
        del queue[call]
        self._queued -= 1
        self._queued_bytes -= len(call.body)
        if not queue and self._parked.get(call.group) is queue:
            del self._parked[call.group]

    def _again(self, call: Call, error: MetadError) -> None:
        if call.future.done():
            self._forget(call)
            return
        call.obstacle = error
        call.redirects = 0
        if not error.outcome_known:
            call.in_doubt = True
            if call.once:
                self._fail(call, error)
                return
        decision = verdict(call, error, self._loop.time(), self._options.backoff, self._rng, self._budget)
        if isinstance(decision, MetadError):
            self._fail(call, decision)
        else:
            self._retrying.push(decision, call)
            self._arm_retry()

    def _heals(self, call: Call, reply: Any) -> bool:
        """Whether the call is tried again for the sake of items that some group could not answer for."""
        error = worth_a_retry(call.method, reply)
        if error is None:
            return False
        decision = verdict(call, error, self._loop.time(), self._options.backoff, self._rng, self._budget)
        if isinstance(decision, MetadError):
            return False  # no time left: the reply says per item what is known
        call.obstacle = error
        call.in_doubt = True
        self._retrying.push(decision, call)
        self._arm_retry()
        return True

    def _fail(self, call: Call, error: MetadError) -> None:
        self._forget(call)
        if not call.future.done():
            call.future.set_exception(error)

    def _forget(self, call: Call) -> None:
        if call.seq:
            self._release_identity(call)
        if call.queue is not None:
            self._unqueue(call)

    def _release_identity(self, call: Call) -> None:
        assert call.identities is not None
        call.identities.release(call.seq)

    def _calls(self) -> list[Call]:
        in_flight = [call for connection in self._connections for call in connection.calls.values()]
        parked = [call for calls in self._parked.values() for call in calls]
        waiting = [call for lane in self.lanes.values() for call in lane.waiting]
        return [*in_flight, *parked, *waiting, *self._retrying.calls()]

    # --- who leads ---

    def _redirected(self, call: Call, error: NotLeaderError, lane: NodeQueue) -> bool:
        """A node does not lead the call's group: take its hint. True where the call is under way to another."""
        group, leaders, now = call.group, self.routes.leaders, self._loop.time()
        assert group
        refused_by, at_s = self._refusals.get(group, ("", 0.0))
        self._refusals[group] = (lane.node, now)
        if leaders.get(group, lane.node) == lane.node:
            leaders.pop(group, None)
            self._direct.pop(group, None)
            hint = error.leader
            if hint in self.lanes and hint != lane.node and not (hint == refused_by and now - at_s < REFUSAL_S):
                self._lead(group, hint)
            elif hint and hint not in self.lanes:
                self._seek(at_once=True)
            self._move([waiting for waiting in lane.waiting if waiting.group == group])
        leader = self._lane_of(group)
        if leader is None or leader is lane or call.redirects >= REDIRECTS_MAX:
            return False
        call.obstacle = error
        call.redirects += 1
        self._queue(leader.waiting, call, first=True)
        self._pump(leader)
        return True

    def _lead(self, group: str, node: str) -> None:
        """It is said that this node leads the group."""
        if self.routes.leaders.get(group) == node:
            return
        self.routes.leaders[group] = node
        before = self._direct.pop(group, None)
        if before is not None:
            self._move([call for call in before.waiting if call.group == group])
        # Those that were refused by others need not wait any longer. Only their target was wrong.
        now = self._loop.time()
        for call in self._retrying.calls():
            if call.group == group and call.astray and call.refused_by != node:
                self._retrying.push(now, call)
        self._arm_retry()

    def _moved(self, call: Call) -> bool:
        """End a call whose group does not hold its items, once there is a newer map than the one that said so."""
        if not call.stale or self.routes.version <= call.version:
            return False
        call.moved = True
        self._fail(call, StaleRouteError())
        return True

    def _all_led(self) -> bool:
        """Whether a leader that can be reached is known of all groups that calls wait for."""
        return not any(group != ANY for group in self._parked)

    def _seek(self, *, at_once: bool = False) -> None:
        """Ask for the map and the leaders, soon: the sooner, the shorter it has been asked in vain."""
        if self._closed or self._question is not None:
            return
        if self._seek_timer is not None:
            if not at_once:
                return
            self._seek_timer.cancel()
        delay_s = 0.0 if at_once else min(SEEK_MAX_S, SEEK_MIN_S * 2.0 ** min(self._seeks, 8))
        self._seek_timer = self._loop.call_later(delay_s, self._ask)

    def _ask(self) -> None:
        self._seek_timer = None
        lanes = [lane for lane in self.lanes.values() if lane.connection is not None and lane.connection.can_send(64)]
        if self._closed or not lanes:
            return  # whoever is connected next is asked
        lane = min(lanes, key=lambda lane: (lane.suspect, lane.asked_s))
        lane.asked_s = now = self._loop.time()
        assert lane.connection is not None
        body = encode(MapRequest(0 if self._anew else self.routes.version))
        question = Call(CLUSTER_MAP, body, now + SEEK_DEADLINE_S, self._loop.create_future())
        question.internal = True
        self._question = question
        self._seeks += 1
        question.future.add_done_callback(partial(self._told, lane))
        self._send(lane.connection, question)
        if question.deadline < self._sweep_at:
            self._arm_sweep(question.deadline)

    def _told(self, lane: NodeQueue, answer: asyncio.Future[MapReply]) -> None:
        self._question = None
        error = None if answer.cancelled() else answer.exception()  # which counts as seen from here on
        if self._closed or answer.cancelled():
            return
        if error is None:
            self._learn(lane, answer.result())
        elif isinstance(error, UnknownMethodError) and self.routes.map is None:
            self.routes.alone = True
        self._release()
        if self._seeks >= PROBE_AFTER_SEEKS:
            self._probe()
        if not self.asked.done():
            self.asked.set_result(None)
        if self._all_led():
            self._seeks = 0
        elif not self.routes.alone:
            self._seek()

    def _probe(self) -> None:
        """Nobody has named a leader for long: try one call of each such group on a node that may be it."""
        up = [lane for lane in self.lanes.values() if lane.connection is not None]
        for group, parked in list(self._parked.items()):
            if group is None or group in self.routes.leaders or not up:
                continue
            replicas = self.routes.replicas(group)
            lane = self._rng.choice([lane for lane in up if lane.node in replicas] or up)
            call = next(iter(parked))
            self._unqueue(call)
            call.probes = lane.node
            self._queue(lane.waiting, call)
            self._pump(lane)

    def _learn(self, lane: NodeQueue, reply: MapReply) -> None:
        if self.routes.learn(reply, anew=self._anew):
            self._anew = False
            self._sync()
            for call in self._retrying.calls():
                self._moved(call)
        now = self._loop.time()
        for group, node in reply.leaders.items():
            if node not in self.lanes:
                continue
            refused_by, at_s = self._refusals.get(group, ("", 0.0))
            if node == refused_by and node != lane.node and now - at_s < REFUSAL_S:
                continue
            self._lead(group, node)
        if not lane.suspect:
            self._pull()

    def _watch(self) -> None:
        """Look for lanes on which something has been unanswered for long."""
        self._watch_timer = None
        now = self._loop.time()
        busy = suspects = False
        for connection in self._connections:
            oldest = next(iter(connection.calls.values()), None)
            busy = busy or oldest is not None
            if connection.lane is not None:
                suspect = oldest is not None and now - oldest.sent >= SUSPECT_S
                connection.lane.suspect = suspect
                suspects = suspects or suspect
        if suspects:
            self._seek()
        if busy and len(self.lanes) > 1:
            self._watch_timer = self._loop.call_later(WATCH_S, self._watch)

    def _pull(self) -> None:
        """Take back what has long been unanswered by nodes that lead its group no longer. They may have done it, and
        may still; the identity makes it one write."""
        now = self._loop.time()
        for connection in self._connections:
            lane = connection.lane
            if lane is None or not lane.suspect:
                continue
            for call in list(connection.calls.values()):
                if not call.group or now - call.sent < SUSPECT_S:
                    continue
                leader = self._lane_of(call.group)
                if leader is not None and leader is not lane and not call.once:
                    connection.cancel(call)
                    call.carrier = None
                    call.in_doubt, call.probes = True, ""
                    self._queue(leader.waiting, call, first=True)
                    self._pump(leader)

    # --- timers ---

    def _arm_retry(self) -> None:
        due = self._retrying.next_due()
        if due is None:
            return
        if self._retry_timer is not None:
            if self._retry_at <= due:
                return
            self._retry_timer.cancel()
        # Kept here and not asked of the timer: for a time that has passed, uvloop returns a handle without one.
        self._retry_at = due
        self._retry_timer = self._loop.call_at(due, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        # The loop may call a little early, by its clock's resolution.
        now = max(self._loop.time(), self._retry_at)
        lanes: set[NodeQueue] = set()
        for call in reversed(self._retrying.pop_due(now)):
            call.stale = False  # perhaps the slots have come back
            lane = self._place(call, first=True)  # they have waited longest
            if lane is not None:
                lanes.add(lane)
        self._arm_retry()
        for lane in lanes:
            self._pump(lane)

    def _arm_sweep(self, deadline: float) -> None:
        self._sweep_at = deadline
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_timer = self._loop.call_at(max(deadline, self._loop.time() + SWEEP_INTERVAL_MIN_S), self._sweep)

    def _sweep(self) -> None:
        """End the calls whose deadline has passed."""
        self._sweep_timer, self._sweep_at = None, math.inf
        now = self._loop.time()
        earliest = math.inf
        for call in self._calls():
            if call.deadline > now:
                earliest = min(earliest, call.deadline)
                continue
            error = deadline_error(call, call.obstacle or self._obstacle(call))
            if call.carrier is not None:
                call.carrier.cancel(call)
            self._fail(call, error)
        if earliest < self._sweep_at:
            self._arm_sweep(earliest)

    def _obstacle(self, call: Call) -> MetadError | None:
        """Why a call was not even sent, as far as known."""
        if call.node:
            lane = self.lanes.get(call.node)
            return lane.obstacle if lane is not None else None
        if call.group is None and any(lane.connection is not None for lane in self.lanes.values()):
            return NotLeaderError("the cluster is being formed")
        leader = self.lanes.get(self.routes.leaders.get(call.group or "", ""))
        for lane in [leader] if leader is not None else self.lanes.values():
            if lane.connection is None and lane.obstacle is not None:
                return lane.obstacle
        return None if not call.group else NotLeaderError(f"no leader of {call.group} is known")


def _nothing() -> None:
    """Where nobody wants to be told."""
