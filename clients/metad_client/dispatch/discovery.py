"""Asks the nodes for the map and the leaders: one question at a time, however many calls wait for the answer.

A node that does not answer soon is not waited for: the next one is asked beside it, for it may stand still. Nodes that
leave requests unanswered are asked beside the others from the beginning. They may have come back, and know what the
others do not: a node without a replica of a group cannot tell who leads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from metad_wire.cluster import MapReply, MapRequest
from metad_wire.methods import CLUSTER_MAP, encode

from ..causes import stays
from ..errors import MetadError
from .calls.alarm import Alarm
from .calls.call import Call
from .node_connection import NodeConnection
from .nodes import NodeQueue, Nodes
from .router import Router, Routes, Sender, Suspects

# Interval of questions while calls wait for a leader: a part of the time for which they have waited, so that the
# question adds little to it, be it an election of 200 ms or of some seconds. An answer costs a node microseconds.
SEEK_MIN_S = 0.02
SEEK_MAX_S = 0.25
SEEK_PART = 1 / 6
PROBE_AFTER_S = 0.5
SEEK_DEADLINE_S = 1.0
"""A node that has not answered by then is suspect, and asked again."""
REFRESH_S = 10.0
"""Since the last answer, where no call lacks a leader: the client learns of nodes that have joined before those that it
knows are gone. An answer without a newer map has some tens of bytes."""


@dataclass(eq=False, slots=True)
class Discovery:
    """Passes each answer to ``learn``, with the queue of the node that answered. ``refused``: a node has answered that
    it does not tell this client the map, and will not. ``asked`` ends with the first answer,
    or when the first question ends without one."""

    loop: asyncio.AbstractEventLoop
    nodes: Nodes
    routes: Routes
    router: Router
    sender: Sender
    suspects: Suspects
    deadlines: Alarm
    learn: Callable[[NodeQueue, MapReply], None]
    asked: asyncio.Future[None]
    refused: Callable[[], None] = lambda: None
    timer: asyncio.TimerHandle | None = None
    refresh: asyncio.TimerHandle | None = None
    question: Call | None = None  # in flight
    began_s: float | None = None  # the first of consecutive questions after which calls still wait
    asked_at: dict[str, float] = field(default_factory=dict)  # node -> when it was asked last
    answered: set[str] = field(default_factory=set)  # nodes that have said who leads when they were asked last
    closed: bool = False

    def seek(self, *, at_once: bool = False) -> None:
        """Ask soon: the shorter consecutive questions have helped no call, the sooner."""
        if self.closed or self.question is not None:
            return
        if self.timer is not None:
            if not at_once:
                return
            self.timer.cancel()
        delay_s = 0.0 if at_once else min(SEEK_MAX_S, max(SEEK_MIN_S, SEEK_PART * self._sought_s()))
        self.timer = self.loop.call_later(delay_s, self._ask)

    def close(self) -> None:
        """Ask no more."""
        self.closed = True
        for timer in (self.timer, self.refresh):
            if timer is not None:
                timer.cancel()

    def _ask(self) -> None:
        self.timer = None
        up = [(queue, connection) for queue, connection in self.nodes.up() if queue.open_for(0)]
        if not up:
            return  # the next node that connects is asked
        suspects, now = self.suspects.connections, self.loop.time()
        self.asked_at = {node: at for node, at in self.asked_at.items() if node in self.nodes.queues}
        self.answered.intersection_update(self.asked_at)
        up.sort(
            key=lambda each: (
                each[1] in suspects and each[0].node not in self.answered,
                self._waits_for(each[0], now),
                self._asked_s(each[0]),
            )
        )
        if self.question is not None and self._waits_for(up[0][0], now):
            return  # each is asked already
        if self.began_s is None:
            self.began_s = now
        (queue, connection), *others = up
        self.question = self._question(queue, connection, now)
        self.timer = self.loop.call_later(SEEK_MAX_S, self._ask)  # the next node, unless there is an answer
        for queue, connection in others:
            if connection in suspects and now - self._asked_s(queue) >= SEEK_DEADLINE_S:
                self._question(queue, connection, now)

    def _asked_s(self, queue: NodeQueue) -> float:
        return self.asked_at.get(queue.node, 0.0)

    def _waits_for(self, queue: NodeQueue, now: float) -> bool:
        """Whether the node may still answer what it was asked last."""
        asked_s = self.asked_at.get(queue.node)
        return asked_s is not None and queue.node not in self.answered and now - asked_s < SEEK_DEADLINE_S

    def _question(self, queue: NodeQueue, connection: NodeConnection, now: float) -> Call:
        self.asked_at[queue.node] = now
        self.answered.discard(queue.node)
        body = encode(MapRequest(self.routes.wanted))
        question = Call(CLUSTER_MAP, body, now + SEEK_DEADLINE_S, self.loop.create_future(), internal=True)
        question.future.add_done_callback(partial(self._told, queue, question))
        self.sender.send(connection, question)
        self.deadlines.set(question.deadline)
        return question

    def _told(self, queue: NodeQueue, question: Call, answer: asyncio.Future[MapReply]) -> None:
        if question is self.question:
            self.question = None
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
        error = None if answer.cancelled() else answer.exception()  # reading the exception marks it as retrieved
        if self.closed or answer.cancelled():
            return
        if error is None:
            self.answered.add(queue.node)
            queue.map_refusal = None
            self.learn(queue, answer.result())
        elif isinstance(error, MetadError) and stays(error):
            queue.map_refusal = error
            self.refused()
        self.router.release()
        if self._sought_s() >= PROBE_AFTER_S:
            self.router.probe()
        if not self.asked.done():
            self.asked.set_result(None)
        if self.router.has_leaders():
            self.began_s = None
            if self.refresh is not None:
                self.refresh.cancel()
            self.refresh = self.loop.call_later(REFRESH_S, self.seek)
        else:
            self.seek()

    def _sought_s(self) -> float:
        """For how long questions have helped no call."""
        return 0.0 if self.began_s is None else self.loop.time() - self.began_s
