"""A client in a process of its own, and in a network namespace if one is given: makes load when told, and measures it.

One process serves all cells, because starting Python takes longer than a cell. Over a pipe it gets an :class:`Order`
and sends :class:`Connected` and :class:`Answer`, or :class:`~metad_perf.load.worker.Failed` instead of either. A
request that fails is counted, not hidden.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from metad_client import Client, Options, connect
from metad_wire.errors import MetadError
from metad_wire.transport.tcp import install_uvloop

from ..errors import PerfError, WorkerError
from ..faults import netns
from ..load.loop import Budget, drive
from ..load.worker import Failed
from ..load.workload import VERBS, Settings
from ..report.histogram import Latencies
from ..spawn import client_processes
from .table import QUIC, TCP

_ANSWER_S = 120.0
_JOIN_S = 5.0
_DEADLINE_S = 60.0  # of a request: a longer one has failed, whatever the transport
_CONNECT_S = 30.0
_WARM_UP_S = 0.3  # plus so many round trips, for windows to open
_WARM_UP_ROUND_TRIPS = 8


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. ``url`` as the SDK takes it; ``rtt_ms`` is the path's, for the length of the warm-up;
    ``interval_ns`` between requests of an open loop, 0 for a closed one."""

    url: str
    options: Options
    settings: Settings
    in_flight: int
    seconds: float
    rtt_ms: float = 0.0
    interval_ns: float = 0


class Connected(msgspec.Struct, frozen=True):
    """The first answer has come, and the load begins."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements. ``latencies`` is an encoded histogram; ``connect_ms`` is the time to the first answer."""

    items: int
    failed: int
    seconds: float
    connect_ms: float
    latencies: bytes
    errors: dict[str, int]
    cpu_s: float
    transport: str
    """The transport in use at the end: ``tcp`` or ``quic``."""


class WanClient:
    """The parent's handle. Blocking. ``space``: the network namespace; empty: this one."""

    def __init__(self, space: str = "") -> None:
        context = client_processes()
        self._pipe, theirs = context.Pipe()
        self._url = ""
        self._process = context.Process(target=_main, args=(space, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, order: Order) -> None:
        """Returns once the client is connected and its load begins. Raises WorkerError if it cannot connect or has
        died."""
        self._url = order.url
        self._pipe.send(order)
        self._receive(_ANSWER_S, Connected)

    def end(self) -> Answer:
        """Wait for the measurements. Raises the errors of :meth:`begin`."""
        answer = self._receive(_ANSWER_S, Answer)
        assert isinstance(answer, Answer)
        return answer

    def _receive(self, timeout_s: float, kind: type) -> Any:
        try:
            if not self._pipe.poll(timeout_s):
                raise WorkerError(f"the client of {self._url} does not answer")
            answer = self._pipe.recv()
        except EOFError:
            raise WorkerError(f"the client of {self._url} died") from None
        if isinstance(answer, Failed):
            raise WorkerError(f"{self._url}: {answer.name}: {answer.message}")
        assert isinstance(answer, kind), answer
        return answer

    def stop(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(_JOIN_S)
        self._process.kill()
        self._process.join()


def _main(space: str, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    if space:
        netns.enter(space)
    install_uvloop()
    while True:
        try:
            order = pipe.recv()
        except (EOFError, ConnectionResetError):  # the parent has ended
            return
        answer: Answer | Failed
        try:
            answer = asyncio.run(_measure(order, lambda: pipe.send(Connected())))
        except (MetadError, PerfError, OSError, ValueError) as error:
            answer = Failed(getattr(error, "name", type(error).__name__), str(error))
        except ExceptionGroup as group:
            answer = Failed("bug", repr(group.exceptions[0]))
        with contextlib.suppress(BrokenPipeError):
            pipe.send(answer)


async def _measure(order: Order, connected: Callable[[], None]) -> Answer:
    begin = time.monotonic()
    async with connect(order.url, order.options) as client:
        await client.kv.get("wan", "first")
        connect_ms = 1e3 * (time.monotonic() - begin)
        connected()
        counted = _Counted(VERBS[order.settings.verb](client, order.settings))
        warm_up_s = _WARM_UP_S + _WARM_UP_ROUND_TRIPS * order.rtt_ms / 1e3
        loop = asyncio.get_running_loop()
        loop.call_later(warm_up_s, counted.begin)
        tally = await drive(
            counted,
            batch=order.settings.batch,
            in_flight=order.in_flight,
            budget=Budget(seconds=warm_up_s + order.seconds),
            note=counted.note,
            interval_ns=order.interval_ns,
        )
        return Answer(
            items=counted.items,
            failed=counted.failed,
            seconds=(tally.end_ns - counted.begin_ns) / 1e9,
            connect_ms=connect_ms,
            latencies=counted.latencies.encode(),
            errors=dict(counted.errors),
            cpu_s=time.process_time() - counted.cpu_s,
            transport=_transport(client),
        )


class _Counted:
    """A workload that counts the requests that begin after a given moment. The loop never falls idle between warming up
    and measuring, or windows would close again."""

    def __init__(self, workload: Any) -> None:
        self.batch = workload.batch
        self._workload = workload
        self.latencies = Latencies()
        self.items = self.failed = 0
        self.errors: Counter[str] = Counter()
        self.begin_ns = 0
        self.cpu_s = 0.0

    def begin(self) -> None:
        """Count from now on."""
        self.begin_ns = time.monotonic_ns()
        self.cpu_s = time.process_time()

    def note(self, latency_ns: int) -> None:
        """Record a request that has ended."""
        if self.begin_ns and time.monotonic_ns() - latency_ns >= self.begin_ns:
            self.latencies.note(latency_ns)

    async def send(self, batch: Any) -> Sequence[str]:
        counts = self.begin_ns > 0
        try:
            failed: Sequence[str] = await self._workload.send(batch)
        except MetadError as error:
            failed = [error.name] * len(batch)
        if counts:
            self.items += len(batch)
            self.failed += len(failed)
            self.errors.update(failed)
        return failed


def options_for(base: Options, settings: Settings, in_flight: int) -> Options:
    """Options of a client that sends every batch as one request, and gives up on none."""
    return msgspec.structs.replace(
        base,
        deadline_s=_DEADLINE_S,
        connect_timeout_s=_CONNECT_S,
        handshake_timeout_s=_CONNECT_S / 3,
        batch_items=settings.batch,
        waiting_max=max(10_000, 2 * in_flight),
        client_name="metad-perf wan",
    )


def _transport(client: Client) -> str:
    """The transport that reaches the node now."""
    via = next(iter(client.statistics().via.values()), "")
    return QUIC if via == "quic" else TCP
