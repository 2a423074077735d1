"""The way of a request: decoded, weighed, and begun at the group that it names.

Reads go on in :mod:`.reads`; writes queue at their group's driver (:mod:`..replicas.driver`) until the loop's turn
(:mod:`.scheduler`).

A digest binds an identity to the first request that used it. A retry repeats a request byte by byte except its deadline
and its identity, which stand in front. So the bytes after them are digested as they came, without encoding anything
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from zlib import crc32

from metad_wire import messages as m
from metad_wire.cluster import METADATA, GroupCommand, ReadIndexReply
from metad_wire.connection.session import FEATURES
from metad_wire.errors import (
    DrainingError,
    MetadError,
    OverloadedError,
    TooLargeError,
    UnknownMethodError,
    UnknownOutcomeError,
    UnsupportedError,
)
from metad_wire.messages import CHANGE_BYTES_MAX, LISTING_BYTES_MAX, Feature
from metad_wire.methods import (
    BROKER_GET,
    BROKER_LIST,
    GROUP_COMMAND,
    METHODS,
    READ_INDEX,
    READS,
    WILL_WAIT,
    Body,
    By,
    For,
    Head,
    Lane,
    Method,
    Reply,
    encode,
)
from metad_wire.policy.fair_room import FairRoom, Place, holder_of
from metad_wire.policy.rates import FULL_ITEMS
from metad_wire.policy.returns import Returns
from metad_wire.refused import Refused
from metad_wire.table import ANY_KIND
from metad_wire.tables.table import DECLARED

from ... import log_events
from ...config import LimitsConfig
from ...control.host import Done, Source
from ...errors import DiskFullError
from ...logs import event
from ...state.core.limits import reply_limit
from ...state.core.verb import Command
from ...state.registry import CONTROL, VERBS
from ..environment import Environment
from ..health import Health
from ..meters import trace_id_of
from ..replicas.driver import GroupDriver, Work
from ..replicas.groups import Groups
from .admission import HEADLESS_BYTES, ITEM_BYTES, REQUEST_BYTES, WAITED_S, Gate, InFlightBudget
from .near import answer_read_index
from .permissions import AUDITED, Permissions
from .quotas import Wanted
from .reads import PIECE_ROWS, Reads, failed
from .scheduler import Scheduler

_OTHER: Final = 1 << 30  # not an integer: points behind any payload
_INTEGER_BYTES: Final = tuple(
    1 if first < 0x80 else {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}.get(first, _OTHER) for first in range(256)
)
"""By the first byte of a msgpack value: its length, if it is an integer from 0 on."""
_IDENTITY: Final = 0x94  # an array of 4
_SHORT: Final = 1024  # shorter payloads are cheaper to copy than to view


def digest_of(method: Method[Any, Any], request: m.Request[Any], payload: bytes | None) -> int:
    """The digest of a decoded request with an identity: 32 bits, never 0. ``payload`` is its encoded form, if any."""
    if payload is not None:
        # Runs once per write. Skips the array's header, the deadline, the identity's header and its four numbers.
        length = _INTEGER_BYTES
        try:
            at = 1 + length[payload[1]]
            if payload[at] == _IDENTITY:
                at += 1
                at += length[payload[at]]
                at += length[payload[at]]
                at += length[payload[at]]
                at += length[payload[at]]
                if at < len(payload):
                    end = len(payload) - _trace_bytes(request)  # what repeats it may be of another trace
                    rest = payload[at:end] if len(payload) < _SHORT else memoryview(payload)[at:end]
                    return crc32(rest, method.code) or 1
        except IndexError:
            pass
    # It was never encoded, or by a foreign client in another way than ours do.
    return crc32(encode((request.body, request.group)), method.code) or 1


def _trace_bytes(request: m.Request[Any]) -> int:
    """What the context of a trace takes at the end of a request."""
    return len(encode(request.trace)) if type(request) is m.Traced and request.trace else 0


_REGISTERED: Final = int(Feature.REGISTERED)
_WAITING_BYTES_MAX: Final = 12 * 1024 * 1024  # of requests that wait for a turn, counted as those in flight are
_CONTROL_ITEMS: Final = 8  # what a request about the node or the cluster takes while it waits, as items of others
_LENT: Final = READS | {BROKER_GET.code, BROKER_LIST.code}
"""Of these, those that only read: others that need the room may have it back."""
_AGAIN_MS: Final = 1_000
Control = Callable[[Method[Any, Any], Any, Done, float, Source | None], None]
"""Answers what is about the node or the cluster, and reached the node at this time, from this source. May raise
MetadError."""
Sweep = Callable[[GroupDriver, GroupCommand, Done], None]
"""Has the group's leader drop what has moved away. May raise MetadError."""
Wait = Callable[[GroupDriver, Work], None]
"""Answers a request later, when it is its turn or its deadline has passed. May raise MetadError."""


class Requests:
    """Every request of this node, whoever asks."""

    def __init__(
        self,
        groups: Groups,
        scheduler: Scheduler,
        reads: Reads,
        budget: InFlightBudget,
        returns: Returns,
        gate: Gate,
        environment: Environment,
        health: Health,
        *,
        limits: LimitsConfig,
        control: Control,
        sweep: Sweep,
        wait: Wait,
        permissions: Permissions,
    ) -> None:
        self.draining = False
        """Whether writes to groups that this node leads are refused."""
        self.precedence = scheduler.precedence
        """What is small goes before what is not."""
        self.meters = groups.meters
        self._groups = groups
        self._permissions = permissions
        self._quotas = permissions.quotas
        self._scheduler = scheduler
        self._reads = reads
        self._budget = budget
        self._returns = returns
        self._gate = gate
        self._environment = environment
        self._health = health
        self.deadline_default_ms = limits.deadline_default_ms
        self._reply_bytes_max = reply_limit(limits.frame_bytes_max)
        self._control = control
        self._sweep = sweep
        self._wait = wait
        self._tables = permissions.tables
        self._waiting = FairRoom(
            "bytes of requests that wait for a turn", _WAITING_BYTES_MAX, ends="the time that the request waits"
        )

    @property
    def spent(self) -> int:
        """What the reads begun here have cost so far, in rows looked at."""
        return self._reads.spent

    def drain(self) -> None:
        """Refuse writes to groups that this node leads, from now on."""
        self.draining = True

    # --- callers -----------------------------------------------------------------------------------------

    def submit(
        self,
        method: int,
        payload: bytes,
        done: Done,
        *,
        administers: bool = True,
        waited_s: float = 0.0,
        source: Source | None = None,
    ) -> Work | None:
        """Begin a client's request whose payload is still encoded, and which has waited here already. Never raises:
        what is wrong with it goes to ``done``. Returns what :meth:`cancel` takes. ``administers``: the client may
        change the cluster. Each ``source`` has its fair share of a group."""
        row = METHODS.get(method)
        if row is None or row.whose is For.NODES:
            done(UnknownMethodError(f"no method {method:#06x}"))
            return None
        if row.whose is For.ADMINS and not administers and not self._permissions.enforced:
            done(self._permissions.no_administrator(row, source))
            return None
        if row.mutates and len(payload) > CHANGE_BYTES_MAX:  # before it is decoded, which takes as much again
            done(TooLargeError(f"a request that writes is at most {CHANGE_BYTES_MAX} bytes: send it in parts"))
            return None
        if not row.mutates and row.item is None and len(payload) > LISTING_BYTES_MAX:
            done(TooLargeError(f"a request that names no items is at most {LISTING_BYTES_MAX} bytes"))
            return None
        if source is not None and row.lane >= Lane.RECORDS and (self._gate.strained or waited_s >= WAITED_S):
            try:
                self._gate.look(row, payload, waited_s, source, self.deadline_default_ms)
            except OverloadedError as error:
                done(error)
                return None
        if source is not None and len(payload) > HEADLESS_BYTES and row.item is not None:
            try:
                self._look_for_room(row, payload, source)
            except OverloadedError as error:
                done(error)
                return None
        return self._attempt(row, payload, len(payload), done, waited_s, source)

    def _look_for_room(self, method: Method[Any, Any], payload: bytes, source: Source) -> None:
        """Raise OverloadedError for a long request that finds no room, before its items are decoded: that would take
        as long as doing it. It takes its room as soon as it is decoded, for exactly what it is."""
        head = method.decode_head(payload)
        if head is None or not (method.mutates or head.items > PIECE_ROWS):
            return  # whoever decodes it says what is wrong, or it is answered at once
        now_s, take_back = self._environment.now(), None if method.mutates else _ignore
        size = len(payload) + ITEM_BYTES * head.items + REQUEST_BYTES
        place = self._budget.take(source, size, head.items, now_s, head.identity, take_back)
        self._budget.let_go(place)

    def turn_away(self, method: int, payload: bytes, source: Source) -> MetadError:
        """The error for a client's request that found no room to wait until it can begin."""
        row = METHODS.get(method)
        if row is None or row.whose is For.NODES:
            return UnknownMethodError(f"no method {method:#06x}")
        return self._gate.turn_away(row, payload, source)

    def submit_peer(self, method: int, payload: bytes, done: Done) -> None:
        """Begin the request of another node, which may do what clients may not."""
        row = METHODS.get(method)
        if row is None:
            done(UnknownMethodError(f"no method {method:#06x}"))
        else:
            self._attempt(row, payload, len(payload), done)

    def request(self, method: Method[Body, Any], body: Body, done: Done, *, group: str = "") -> None:
        """Begin a request from inside the process, to a group or to the cluster itself."""
        asked = m.Request(0, None, body, group)
        # What is done with records of a declared table is found by its number, as it comes over the wire.
        self._attempt(
            method, encode(asked) if method.table is DECLARED and method.code not in VERBS else asked, 0, done
        )

    async def call(
        self, method: Method[Body, Reply], body: Body, *, group: str = "", identity: m.Identity | None = None
    ) -> Reply:
        """Do a request from inside the process. Raises :class:`MetadError`."""
        answer: asyncio.Future[bytes | MetadError] = asyncio.get_running_loop().create_future()
        self._attempt(method, m.Request(0, identity, body, group), 0, set_result(answer))
        result = await answer
        if isinstance(result, MetadError):
            raise result
        return method.decode_reply(result)

    def cancel(self, work: Work) -> None:
        """Do not begin it; if it has begun it runs on. Either way the request is answered."""
        work.cancelled = True

    def note_slow(
        self, method: int, size: int, took_s: float, result: bytes | MetadError, client: str, work: Work | None
    ) -> None:
        """Keep a client's request that took long, and say so in the log."""
        group = tenant = identity = ""
        items, queued_s, applying_s = 1, 0.0, took_s
        if work is not None:
            command, entry, identified = work.command, work.entry, work.identity
            tenant, items = command.tenant.decode(errors="replace"), command.items
            if identified is not None:
                identity = f"{identified.client_id}:{identified.seq}"
            if entry is None:
                queued_s = took_s
            elif command.arrived_s is not None:
                group = entry.group
                queued_s, applying_s = entry.begun_s - command.arrived_s, entry.applying_s - command.arrived_s
        name, outcome = self.meters.name_of(method), "done" if isinstance(result, bytes) else result.name
        self.meters.slow_count += 1
        took_us, queued_us, applying_us = (round(max(0.0, part_s) * 1e6) for part_s in (took_s, queued_s, applying_s))
        trace_id, who = self.meters.trace_id, (client, tenant, group, outcome, identity)
        parts_us = took_us, queued_us, applying_us
        self.meters.slow.append(
            m.SlowRequest(self._environment.wall_ms(), name, *who, items, size, *parts_us, trace_id)
        )
        took_ms, queued_ms = round(took_s * 1000), round(queued_s * 1000)
        event(
            log_events.SLOW_REQUEST,
            method=name,
            client=client,
            group=group or None,
            took_ms=took_ms,
            queued_ms=queued_ms,
            outcome=outcome,
            trace=trace_id or None,
        )

    def gone(self, source: Source) -> None:
        """A connection has ended."""
        self._gate.gone(source)

    # --- what is done with each --------------------------------------------------------------------------

    def _attempt(
        self,
        method: Method[Any, Any],
        request: bytes | m.Request[Any],
        size: int,
        done: Done,
        waited_s: float = 0.0,
        source: Source | None = None,
    ) -> Work | None:
        self._items = 1
        try:
            return self._begin(method, request, size, done, waited_s, source)
        except Exception as error:  # noqa: BLE001 - told to whoever asked, and logged
            why = failed(method.name, error, self._health)
            if source is not None:
                self.meters.turned_away(why.name, self._items)
            done(why)
        return None

    def _begin(
        self,
        method: Method[Any, Any],
        asked: bytes | m.Request[Any],
        size: int,
        done: Done,
        waited_s: float,
        source: Source | None,
    ) -> Work | None:
        payload: bytes | None = None
        refused: Refused | None = None
        verb = VERBS.get(method.code)
        if isinstance(asked, m.Request):
            request = asked
        else:
            payload = asked
            if verb is None and method.table is DECLARED:
                verb, filled = self._tables.verb(method, asked)
                method, size = verb.method, size + filled
            request, refused = method.decode_what_fits(asked)
        if request.requires & ~FEATURES:
            raise UnsupportedError(
                f"the request requires features {request.requires & ~FEATURES:#x}, which this node lacks"
            )
        body = request.body
        done = self._note(method, request, done)
        if source is not None and (source.principal is not None or method.code in AUDITED):
            body, refused, done = self._permissions.begin(method, request, refused, source, done, size)
        if method.code in CONTROL:
            self._begin_control(method, body, size, done, self._environment.now() - waited_s, source)
            return None
        if isinstance(self._health.failure, DiskFullError):
            raise DrainingError(f"the node waits for room on its disk: {self._health.failure}")
        if self._health.failure is not None:
            raise UnknownOutcomeError("the node has stopped; its log says why")
        if method is READ_INDEX:
            driver = self._groups.named(request.group, ANY_KIND)
            answer_read_index(driver, lambda to: done(encode(ReadIndexReply(to)) if isinstance(to, int) else to))
            return None
        assert verb is not None, method.name
        if method.by is By.METADATA:
            driver = self._groups.drivers[METADATA]
        else:
            driver = self._groups.named(request.group, verb.table.kind)
        if method is GROUP_COMMAND and body.step == "sweep":
            self._sweep(driver, body, done)
            return None
        near = request.freshness_ms > 0 and self._reads.is_near(driver, method, request)
        arrived_s = (now_s := self._environment.now()) - waited_s
        deadline_s = arrived_s + (request.deadline_ms or self.deadline_default_ms) / 1000
        if source is not None and driver.waiting_items >= FULL_ITEMS and (method.mutates or method.lane is Lane.SCANS):
            head = Head(request.deadline_ms, request.identity, request.group, self._items, verb.tenant(body))
            self._gate.check(driver, method.lane, head, source, deadline_s, now_s, waited_s)
            self._gate.took(source)
        if source is not None and self._quotas.known.by_subject:
            wanted = Wanted(verb, size, request.body, partial(self._permissions.scopes, method, body))
            body, refused = self._quotas.admit(driver, wanted, body, refused, request.identity, source, near=near)
        command = verb.command(body, size, refused, self._reply_bytes_max)
        self.meters.begun(command, refused, source, request.life, now_s)
        held, command.arrived_s = size + ITEM_BYTES * command.items, arrived_s
        if method is WILL_WAIT and body.wait_ms:
            until_s = min(deadline_s, arrived_s + body.wait_ms / 1000)
            return self._begin_wait(driver, command, held + REQUEST_BYTES, until_s, done, source)
        if verb.read is not None:
            self._reads.begin(driver, verb, command, held, deadline_s, done, source, near=near)
            return None
        if self.draining and driver.group.is_leader:  # otherwise it says who leads
            raise DrainingError
        command.life, command.registered = request.life, bool(request.requires & _REGISTERED)
        command.vouch = self._permissions.vouch(source) if self._permissions.enforced else None
        command.holder = holder_of(source)
        if request.identity is not None:
            command.digest = digest_of(method, request, payload)
        budget, items = self._budget, command.items
        try:
            if self._returns.promised and driver.group.is_leader:
                self._returns.check(request.identity, now_s)
            place = budget.take(source, held + REQUEST_BYTES, items, now_s, request.identity)
        except OverloadedError:
            driver.not_keeping_up(now_s)
            raise

        def answer(outcome: bytes | MetadError) -> None:
            budget.give(place, items)
            done(outcome)

        # From here on nothing may raise: the request would be answered twice.
        if source is not None:
            self._gate.admitted[method.lane] += 1
        work = Work(command, request.identity, deadline_s, answer, source)
        self._scheduler.submit(driver, work, now_s)
        return work

    def _note(self, method: Method[Any, Any], request: m.Request[Any], done: Done) -> Done:
        """Note what a request asks for, should it be refused, and of which trace it is, until it is answered."""
        self._items = len(request.body.items) if method.item is not None else 1
        trace_id = trace_id_of(request)
        return self.meters.of_trace(trace_id, done) if trace_id else done

    def _begin_wait(
        self, driver: GroupDriver, command: Command[Any], held: int, until_s: float, done: Done, source: Source | None
    ) -> Work:
        place: Place | None = None

        def answer(outcome: bytes | MetadError) -> None:
            nonlocal place
            if place is not None:
                self._waiting.give(place)
                place = None
                done(outcome)

        work = Work(command, None, until_s, answer, source)

        def take_back() -> None:
            work.cancelled = True
            answer(_too_many_wait())

        place = self._waiting.take(holder_of(source), held, take_back, source=source)
        if place is None:
            raise _too_many_wait()
        try:
            self._wait(driver, work)
        except BaseException:
            self._waiting.give(place)
            raise
        return work

    def _begin_control(
        self, method: Method[Any, Any], body: Any, size: int, done: Done, arrived_s: float, source: Source | None
    ) -> None:
        """Have what is about the node or the cluster answered. What clients ask counts until then, for it may wait."""
        if source is None:
            self._control(method, body, done, arrived_s, None)
            return
        held = size + ITEM_BYTES * (_CONTROL_ITEMS + (len(body.items) if method.item is not None else 0))
        place: Place | None = None

        def answer(outcome: bytes | MetadError) -> None:
            nonlocal place
            if place is not None:
                self._budget.give(place, 0)
                place = None
                done(outcome)

        take_back = (lambda: answer(_too_many_wait())) if method.code in _LENT else None
        place = self._budget.take(source, held, 1, self._environment.now(), take_back=take_back)
        try:
            self._control(method, body, answer, arrived_s, source)
        except MetadError as error:
            answer(error)
        except BaseException:
            if place is not None:
                self._budget.give(place, 0)
                place = None
            raise


def _ignore() -> None:
    """Nothing is taken back while it is held."""


def _too_many_wait() -> OverloadedError:
    return OverloadedError("too many requests wait on this node", retry_after_ms=_AGAIN_MS, retry_jitter_ms=_AGAIN_MS)


def set_result(answer: asyncio.Future[bytes | MetadError]) -> Done:
    """Ends a future with an answer, unless nobody waits for it any more."""

    def done(result: bytes | MetadError) -> None:
        if not answer.done():
            answer.set_result(result)

    return done
