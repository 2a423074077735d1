"""Asks the nodes for the map, and who leads: one question at a time, however many calls wait for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from metad_wire.cluster import MapReply, MapRequest
from metad_wire.methods import CLUSTER_MAP, encode

from ..errors import UnknownMethodError
from .call import Call
from .deadlines import Deadlines
from .node_queue import NodeQueue
from .nodes import Nodes
from .router import Router
from .routes import Routes
from .sender import Sender
from .suspects import Suspects

# While calls wait for a leader the nodes are asked this often, at first and at last: an election takes a second or so,
# an answer costs a node microseconds.
SEEK_MIN_S = 0.02
SEEK_MAX_S = 0.25
PROBE_AFTER_SEEKS = 5
# A node that has not answered by then is not asked again before the others.
SEEK_DEADLINE_S = 1.0


class Discovery:
    """``learn`` is given each answer, and the queue of the node that gave it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        nodes: Nodes,
        routes: Routes,
        router: Router,
        sender: Sender,
        suspects: Suspects,
        deadlines: Deadlines,
        learn: Callable[[NodeQueue, MapReply], None],
    ) -> None:
        self.asked: asyncio.Future[None] = loop.create_future()
        """Ends with the first answer, or when the first question ends without one."""
        self._loop = loop
        self._nodes = nodes
        self._routes = routes
        self._router = router
        self._sender = sender
        self._suspects = suspects
        self._deadlines = deadlines
        self._learn = learn
        self._timer: asyncio.TimerHandle | None = None
        self._question: Call | None = None  # in flight
        self._seeks = 0  # questions in a row after which calls still wait
        self._asked_at: dict[str, float] = {}  # node -> when it was asked last
        self._closed = False

    def seek(self, *, at_once: bool = False) -> None:
        """Ask soon: the fewer questions in a row have helped nobody, the sooner."""
        if self._closed or self._question is not None:
            return
        if self._timer is not None:
            if not at_once:
                return
            self._timer.cancel()
        delay_s = 0.0 if at_once else min(SEEK_MAX_S, SEEK_MIN_S * 2.0 ** min(self._seeks, 8))
        self._timer = self._loop.call_later(delay_s, self._ask)

    def close(self) -> None:
        """Ask no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self._timer = None
        up = [queue for queue in self._nodes.up() if queue.open_for(0)]
        if not up:
            return  # the next node to be connected is asked
        suspects, asked_at = self._suspects.connections, self._asked_at
        queue = min(up, key=lambda queue: (queue.connection in suspects, asked_at.get(queue.node, 0.0)))
        now = self._loop.time()
        self._asked_at = {node: at for node, at in asked_at.items() if node in self._nodes.queues} | {queue.node: now}
        body = encode(MapRequest(self._routes.wanted))
        self._question = question = Call(
            CLUSTER_MAP, body, now + SEEK_DEADLINE_S, self._loop.create_future(), internal=True
        )
        self._seeks += 1
        question.future.add_done_callback(partial(self._told, queue))
        assert queue.connection is not None
        self._sender.send(queue.connection, question)
        self._deadlines.alarm.set(question.deadline)

    def _told(self, queue: NodeQueue, answer: asyncio.Future[MapReply]) -> None:
        self._question = None
        error = None if answer.cancelled() else answer.exception()  # which counts as seen from here on
        if self._closed or answer.cancelled():
            return
        if error is None:
            self._learn(queue, answer.result())
        elif isinstance(error, UnknownMethodError) and self._routes.map is None:
            self._routes.stand_alone()
        self._router.release()
        if self._seeks >= PROBE_AFTER_SEEKS:
            self._router.probe()
        if not self.asked.done():
            self.asked.set_result(None)
        if self._router.has_leaders():
            self._seeks = 0
        elif not self._routes.alone:
            self.seek()
