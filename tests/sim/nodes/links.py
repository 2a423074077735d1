"""A network on the virtual loop that keeps the contract of :mod:`metad_wire.transport`: connections with delay, that
are cut (both ways or one), slow, and reset when nothing was heard for long; hosts that vanish without a word.

What is written on a way that is cut is kept and goes on when the way is whole again, as TCP would repeat it, unless the
sender loses patience first. The news that a connection is over travels like everything else, and is lost like it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

from metad_wire.transport import Handler, Listener, StreamHandler, join_endpoint

from .loop import PROCESS, Process, VirtualLoop

_HIGH_WATER_BYTES = 1024 * 1024
_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Wire:
    """How a network behaves. Seconds."""

    delay: tuple[float, float] = (0.0001, 0.001)
    slow_chance: float = 0.0
    """Of a chunk: it, and all behind it, come late."""
    slow: tuple[float, float] = (0.05, 0.5)
    patience: tuple[float, float] = (1.0, 10.0)
    """How long a sender repeats what gets no acknowledgement before it gives the connection up."""
    resume: tuple[float, float] = (0.0, 0.3)
    """How long after a cut the next repetition comes."""


class SimStream:
    """One end of a connection."""

    def __init__(self, network: SimNetwork, host: str, peer_host: str, context: Context, rng: random.Random) -> None:
        self._network = network
        self._loop = network.loop
        self.host = host
        self.peer_host = peer_host
        self.context = context
        self.process: Process | None = context.get(PROCESS)
        self._rng = rng
        self.handler: StreamHandler | None = None
        self.peer: SimStream | None = None
        # Towards this end: (when it arrives, what), b"" is the end.
        self._coming: deque[tuple[float, bytes]] = deque()
        self._coming_bytes = 0
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._writer_paused = False  # this end was told to pause
        self._closing = False
        self._lost = False
        self._reset = False
        self._impatient: asyncio.TimerHandle | None = None

    # --- the stream --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        peer = self.peer
        if self._closing or peer is None or not data:
            return
        if peer._closing:
            self._answered_by_nobody()
            return
        for start in range(0, len(data), _CHUNK_BYTES):
            self._send(bytes(data[start : start + _CHUNK_BYTES]))
        peer._coming_bytes += len(data)
        if peer._coming_bytes > _HIGH_WATER_BYTES and not self._writer_paused:
            self._writer_paused = True
            if self.handler is not None:
                self.handler.pause_writing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._coming and not self._lost:
            self._look_at(self._coming[0][0])

    def close(self) -> None:
        if not self._closing:
            self._send(b"")
            self._lose(None)

    def abort(self) -> None:
        if not self._lost:
            if self.peer is not None:
                self._tell_peer()
            self._lose(None)

    def get_write_buffer_size(self) -> int:
        return 0 if self.peer is None else self.peer._coming_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.peer_host, 1) if name == "peername" else default

    # --- on the way --------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        peer, network = self.peer, self._network
        assert peer is not None
        due = max(self._loop.now + network.delay_s(self.host, self.peer_host, self._rng), peer._last_due)
        peer._last_due = due
        peer._coming.append((due, data))
        if len(peer._coming) == 1:
            peer._look_at(due)

    def _look_at(self, due: float) -> None:
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._deliver, context=self.context)

    def mend(self) -> None:
        """The way to this end is whole again: what was cut off on it follows."""
        if self._coming and not self._lost and not self._network.is_cut(self.peer_host, self.host):
            again = self._loop.now + self._rng.uniform(*self._network.wire.resume)
            self._coming = deque((max(due, again), data) for due, data in self._coming)
            self._last_due = max(self._last_due, again)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._look_at(self._coming[0][0])

    def _deliver(self) -> None:
        self._timer = None
        handler, peer = self.handler, self.peer
        if handler is None or peer is None or self._closing:
            return
        if self._coming and self._network.is_cut(self.peer_host, self.host):
            peer._lose_patience()
            return
        while self._coming and self._reading and not self._closing:
            due, data = self._coming[0]
            if due > self._loop.now:
                self._look_at(due)
                break
            self._coming.popleft()
            if not data:
                handler.eof_received()
                self.close()
                return
            self._coming_bytes -= len(data)
            try:
                handler.data_received(data)
            except BaseException:
                self.abort()  # as asyncio does: a handler that fails loses its connection
                raise
        if peer._writer_paused and self._coming_bytes <= _HIGH_WATER_BYTES // 4 and not self._closing:
            self._loop.call_soon(peer._drained, context=peer.context)

    def _drained(self) -> None:
        peer = self.peer
        if self._writer_paused and peer is not None and peer._coming_bytes <= _HIGH_WATER_BYTES // 4:
            self._writer_paused = False
            if self.handler is not None and not self._closing:
                self.handler.resume_writing()

    # --- the end -----------------------------------------------------------------------------------------

    def _lose_patience(self) -> None:
        """What this end has sent is not acknowledged."""
        if self._impatient is None and not self._closing:
            after = self._rng.uniform(*self._network.wire.patience)
            self._impatient = self._loop.call_later(after, self._give_up, context=self.context)

    def _give_up(self) -> None:
        self._impatient = None
        peer = self.peer
        if self._closing or peer is None:
            return
        if not peer._closing and not self._network.is_cut(self.host, self.peer_host):
            return  # it goes on
        self._lose(TimeoutError("the peer does not answer"))

    def _answered_by_nobody(self) -> None:
        """There is no connection at the other end."""
        network = self._network
        if network.is_down(self.peer_host) or network.is_cut(self.host, self.peer_host):
            self._lose_patience()
        else:
            delay = network.delay_s(self.host, self.peer_host, self._rng)
            self._loop.call_later(delay, self._turned_away, context=self.context)

    def _turned_away(self) -> None:
        if self._network.is_cut(self.peer_host, self.host):
            self._lose_patience()
        else:
            self.reset()

    def _tell_peer(self) -> None:
        """This connection is over, and what is on its way is dropped."""
        peer, network = self.peer, self._network
        assert peer is not None
        peer._coming.clear()
        peer._coming_bytes = 0
        if not peer._closing and not network.is_cut(self.host, self.peer_host):
            delay = network.delay_s(self.host, self.peer_host, self._rng)
            self._loop.call_later(delay, peer.reset, context=peer.context)

    def reset(self) -> None:
        """The peer says that there is no connection."""
        if not self._closing:
            self._lose(ConnectionResetError("the peer has gone"))

    def _lose(self, exc: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._coming.clear()
        for timer in (self._timer, self._impatient):
            if timer is not None:
                timer.cancel()
        self._loop.call_soon(self._told, exc, context=self.context)

    def _told(self, exc: Exception | None) -> None:
        self._lost = True
        self._network.forget(self)
        if self.handler is not None:
            self.handler.connection_lost(exc)

    def vanish(self) -> None:
        """The process of this end is no more."""
        self._closing = self._lost = True
        self._coming.clear()
        self._network.forget(self)


class SimNetwork:
    """All hosts. :meth:`transport` is one host's way into it."""

    def __init__(self, loop: VirtualLoop, wire: Wire | None = None, seed: int = 0) -> None:
        self.loop = loop
        self.wire = wire or Wire()
        self.connections = 0
        self._seed = seed
        self._listeners: dict[tuple[str, int], _SimListener] = {}
        self._streams: dict[SimStream, None] = {}
        self._cut: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        self._slowed: dict[tuple[str, str], float] = {}
        self._next_port = 1
        self._rng = random.Random(seed)

    def transport(self, host: str) -> SimTransport:
        """For the processes on a host."""
        return SimTransport(self, host)

    # --- faults ------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Nothing of one host reaches the other."""
        self._cut.add((source, target))

    def partition(self, side: list[str], other: list[str]) -> None:
        """No host of one side and one of the other reach each other."""
        for one in side:
            for two in other:
                self._cut |= {(one, two), (two, one)}

    def heal(self) -> None:
        """Every way is whole, and as quick as ever."""
        self._cut.clear()
        self._slowed.clear()
        for stream in list(self._streams):
            stream.mend()

    def slow(self, source: str, target: str, factor: float) -> None:
        """One way takes this many times as long."""
        self._slowed[source, target] = factor

    def reset(self, one: str, other: str) -> None:
        """Break all connections between two hosts; both ends are told."""
        for stream in list(self._streams):
            if {stream.host, stream.peer_host} == {one, other}:
                stream.reset()

    def reject(self, host: str, port: int) -> None:
        """From now on a host refuses whoever dials a port, as a firewall does, or a process that is no more."""
        self._listeners.pop((host, port), None)

    def crash(self, process: Process, host: str, *, silently: bool) -> None:
        """A process ends. ``silently``: its host goes with it, and says nothing to anybody until :meth:`boot`."""
        process.kill()
        if silently:
            self._down.add(host)
        for address in [a for a, listener in self._listeners.items() if listener.process is process]:
            del self._listeners[address]
        for stream in [stream for stream in self._streams if stream.process is process]:
            if not silently and stream.peer is not None:
                stream._tell_peer()
            stream.vanish()

    def boot(self, host: str) -> None:
        """The host is there again."""
        self._down.discard(host)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing of one host reaches the other."""
        return (source, target) in self._cut or target in self._down

    def is_down(self, host: str) -> bool:
        """Whether a host is silent."""
        return host in self._down

    # --- of the streams ----------------------------------------------------------------------------------

    def delay_s(self, source: str, target: str, rng: random.Random) -> float:
        """Of the next chunk."""
        wire = self.wire
        delay = rng.uniform(*wire.delay)
        if wire.slow_chance and rng.random() < wire.slow_chance:
            delay += rng.uniform(*wire.slow)
        return delay * self._slowed.get((source, target), 1.0)

    def forget(self, stream: SimStream) -> None:
        """It is over."""
        self._streams.pop(stream, None)

    def _listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> _SimListener:
        if port == 0:
            while (host, self._next_port) in self._listeners:
                self._next_port += 1
            port, self._next_port = self._next_port, self._next_port + 1
        if (host, port) in self._listeners:
            raise OSError(f"{host}:{port} is in use")
        listener = self._listeners[host, port] = _SimListener(self, host, port, factory)
        return listener

    async def _dial(
        self, source: str, host: str, port: int, factory: Callable[[], Handler], timeout_s: float
    ) -> Handler:
        loop = self.loop
        self.connections += 1
        rng = random.Random(f"{self._seed}/{source}/{host}/{self.connections}")
        dialled: asyncio.Future[Handler] = loop.create_future()
        context = copy_context()

        def arrive() -> None:
            if self.is_cut(source, host):
                return  # nobody answers
            listener = self._listeners.get((host, port))
            delay = self.delay_s(host, source, rng)
            if listener is None:
                loop.call_later(delay, refused, context=context)
                return
            ours = SimStream(self, source, host, context, rng)
            theirs = SimStream(self, host, source, listener.context, random.Random(rng.getrandbits(64)))
            ours.peer, theirs.peer = theirs, ours
            loop.call_later(delay, made, ours, context=context)
            ours._last_due = loop.now + delay
            loop.call_soon(accept, theirs, listener, context=listener.context)

        def accept(theirs: SimStream, listener: _SimListener) -> None:
            self._streams[theirs] = None
            theirs.handler = listener.factory()
            theirs.handler.connection_made(theirs)

        def refused() -> None:
            if not dialled.done() and not self.is_cut(host, source):
                dialled.set_exception(ConnectionRefusedError(f"nobody listens on {host}:{port}"))

        def made(ours: SimStream) -> None:
            peer = ours.peer
            assert peer is not None
            if dialled.done() or self.is_cut(host, source):
                ours.abort()
                return
            self._streams[ours] = None
            ours.handler = handler = factory()
            dialled.set_result(handler)
            ours.handler.connection_made(ours)
            if peer._closing and not ours._coming:
                ours.reset()

        loop.call_later(self.delay_s(source, host, rng), arrive, context=loop.outside)
        async with asyncio.timeout(timeout_s):
            return await dialled


class SimTransport:
    """Implements :class:`metad_wire.transport.Transport`."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept connections. Raises OSError where the address is taken."""
        return self._network._listen(host, port, factory)

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        """Connect. Raises ConnectionRefusedError where nobody listens, TimeoutError where nobody answers."""
        return await self._network._dial(self._host, host, port, factory, timeout_s)


class _SimListener:
    def __init__(self, network: SimNetwork, host: str, port: int, factory: Callable[[], StreamHandler]) -> None:
        self._network = network
        self._address = (host, port)
        self.factory = factory
        self.context = copy_context()
        self.process = self.context.get(PROCESS)

    @property
    def endpoint(self) -> str:
        return join_endpoint(*self._address)

    async def close(self) -> None:
        if self._network._listeners.get(self._address) is self:
            del self._network._listeners[self._address]
