"""The way of a request: decoded, weighed, cut by groups, begun at each, and answered when all have.

Reads go on in :mod:`.reads`; writes queue at their groups' drivers (:mod:`.driver`) until the loop's turn
(:mod:`.turns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metad_wire import messages as m
from metad_wire.cluster import GroupCommand
from metad_wire.errors import (
    DrainingError,
    InvalidRequestError,
    MetadError,
    PermissionDeniedError,
    UnknownMethodError,
    UnknownOutcomeError,
    UnsupportedError,
)
from metad_wire.group import GroupId
from metad_wire.messages import CHANGE_BYTES_MAX
from metad_wire.methods import GROUP_COMMAND, METHODS, Body, For, Method, Reply, encode
from metad_wire.session import FEATURES

from ..state.registry import CONTROL, VERBS
from .digests import digest_of
from .driver import Work
from .environment import Environment
from .groups import Groups
from .health import Health
from .parts import Done, Gather, Replies, items_of
from .reads import Reads, failed
from .room import ITEM_BYTES, Room
from .turns import Turns

Control = Callable[[Method[Any, Any], Any, Done], None]
"""Answers what is about the node or the cluster. May raise MetadError."""
Sweep = Callable[[GroupCommand, Done], None]
"""Has the group's leader drop what has moved away. May raise MetadError."""


class Requests:
    """See the module."""

    def __init__(
        self,
        groups: Groups,
        turns: Turns,
        reads: Reads,
        replies: Replies,
        room: Room,
        environment: Environment,
        health: Health,
        *,
        deadline_default_ms: int,
        control: Control,
        sweep: Sweep,
    ) -> None:
        self.draining = False
        """Whether writes to groups that this node leads are refused."""
        self.busy = False
        """Whether reads of this turn of the loop have cost a slice of it already."""
        self.precedence = turns.precedence
        """What is small goes before what is not."""
        self._groups = groups
        self._turns = turns
        self._reads = reads
        self._replies = replies
        self._room = room
        self._environment = environment
        self._health = health
        self._deadline_default_ms = deadline_default_ms
        self._control = control
        self._sweep = sweep

    @property
    def spent(self) -> int:
        """What the reads begun here have cost so far, in rows looked at."""
        return self._reads.spent

    def drain(self) -> None:
        """Refuse writes to groups that this node leads, from now on."""
        self.draining = True

    def slice_spent(self) -> None:
        """Be :attr:`busy` until this turn of the loop is over."""
        if not self.busy:
            self.busy = True
            self._environment.call_soon(self._rest)

    def _rest(self) -> None:
        self.busy = False

    # --- callers -----------------------------------------------------------------------------------------

    def submit(
        self,
        method: int,
        payload: bytes,
        done: Done,
        *,
        administers: bool = True,
        waited_s: float = 0.0,
        source: object = None,
    ) -> list[Work]:
        """Begin a client's request whose payload is still encoded, and which has waited here already. Never raises:
        what is wrong with it goes to ``done``. Returns what :meth:`cancel` takes. ``administers``: the client may
        change the cluster. Each ``source`` has its fair share of a group."""
        row = METHODS.get(method)
        if row is None or row.whose is For.NODES:
            done(UnknownMethodError(f"no method {method:#06x}"))
            return []
        if row.whose is For.ADMINS and not administers:
            done(PermissionDeniedError(f"{row.name} is for administrators"))
            return []
        if row.mutates and len(payload) > CHANGE_BYTES_MAX:  # before it is decoded, which takes as much again
            done(InvalidRequestError(f"a request that writes is at most {CHANGE_BYTES_MAX} bytes: send it in parts"))
            return []
        return self._attempt(row, payload, len(payload), done, waited_s, source)

    def submit_peer(self, method: int, payload: bytes, done: Done) -> None:
        """The same for another node, which may do what clients may not."""
        row = METHODS.get(method)
        if row is None:
            done(UnknownMethodError(f"no method {method:#06x}"))
        else:
            self._attempt(row, payload, len(payload), done)

    def request(
        self,
        method: Method[Body, Any],
        body: Body,
        done: Done,
        *,
        identity: m.Identity | None = None,
        deadline_ms: int = 0,
        size_bytes: int = 0,
    ) -> None:
        """The same from inside the process. ``size_bytes`` counts against the limit on requests in flight."""
        self._attempt(method, m.Request(deadline_ms, identity, body), size_bytes, done)

    async def call(
        self,
        method: Method[Body, Reply],
        body: Body,
        *,
        identity: m.Identity | None = None,
        deadline_ms: int = 0,
        size_bytes: int = 0,
    ) -> Reply:
        """The same, awaited. Raises :class:`MetadError`."""
        answer: asyncio.Future[bytes | MetadError] = asyncio.get_running_loop().create_future()
        done = set_result(answer)
        self.request(method, body, done, identity=identity, deadline_ms=deadline_ms, size_bytes=size_bytes)
        result = await answer
        if isinstance(result, MetadError):
            raise result
        return method.decode_reply(result)

    def cancel(self, works: list[Work]) -> None:
        """What has not begun will not; the rest runs on. Either way the request is answered."""
        for work in works:
            work.cancelled = True

    # --- what is done with each --------------------------------------------------------------------------

    def _attempt(
        self,
        method: Method[Any, Any],
        request: bytes | m.Request[Any],
        size: int,
        done: Done,
        waited_s: float = 0.0,
        source: object = None,
    ) -> list[Work]:
        try:
            return self._begin(method, request, size, done, waited_s, source)
        except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
            done(failed(method.name, error, self._health))
        return []

    def _begin(
        self,
        method: Method[Any, Any],
        asked: bytes | m.Request[Any],
        size: int,
        done: Done,
        waited_s: float,
        source: object,
    ) -> list[Work]:
        payload, request = (None, asked) if isinstance(asked, m.Request) else (asked, method.decode_request(asked))
        body = request.body
        if request.requires & ~FEATURES:
            raise UnsupportedError(
                f"the request requires features {request.requires & ~FEATURES:#x}, which this node lacks"
            )
        if method.code in CONTROL:
            self._control(method, body, done)
            return []
        if self._health.failure is not None:
            raise UnknownOutcomeError("the node has stopped; its log says why")
        verb = VERBS[method.code]
        kind = verb.table.kind
        if method is GROUP_COMMAND:
            kind = body.kind
            if body.step == "sweep":
                self._sweep(body, done)
                return []
        slots = self._groups.slots(kind)
        held = size + ITEM_BYTES * items_of(verb.table, body, size)
        if request.group:
            slots = self._groups.slots_meant(kind, request.group)
        parts = verb.split(body, slots)
        now_s = self._environment.now()
        arrived_s = now_s - waited_s
        deadline_s = arrived_s + (request.deadline_ms or self._deadline_default_ms) / 1000
        if verb.read is not None:
            self._reads.begin(verb, body, parts, held, deadline_s, done, source)
            return []
        if self.draining and self._groups.lead_any(kind, parts):  # of others it says who leads them
            raise DrainingError
        if not parts:
            done(encode(verb.merge(body, [])))
            return []
        commands = [self._replies.part(verb, body, rows, len(parts), size) for rows in parts.values()]
        if request.identity is not None:
            digest = digest_of(method, request, payload)
            for command in commands:
                command.digest, command.arrived_s = digest, arrived_s
        self._room.take(held)
        # From here on nothing may raise: it would be answered twice, for every part that has begun answers as well.
        works: list[Work] = []
        gather = Gather(self._room, verb, body, len(parts), held, done)
        for ordinal, command in zip(parts, commands, strict=True):
            group = GroupId(kind, ordinal)
            driver = self._groups.drivers.get(group)
            answer = gather.answer_alone if len(parts) == 1 else gather.part(command.rows)
            if driver is None:
                answer(self._groups.elsewhere(group))
                continue
            work = Work(command, request.identity, deadline_s, answer, source)
            works.append(work)
            self._turns.submit(driver, work, now_s)
        self._turns.submitted()
        return works


def set_result(answer: asyncio.Future[bytes | MetadError]) -> Done:
    """Ends a future with an answer, unless nobody waits for it any more."""

    def done(result: bytes | MetadError) -> None:
        if not answer.done():
            answer.set_result(result)

    return done
