"""A life of a broker, as the program that lives it sees it: whether it may still serve.

The cluster ends a life that it has not heard of for its lease, and another broker then takes over its clients. So the
life must know by itself when that may happen. It counts from when a heartbeat that was acknowledged was *sent*, by a
clock that counts the time in which the machine is suspended, and compares whenever it is asked: a timer may come late.

The clock only suspends a life. While the cluster itself is away it fences nobody, and a life that was not fenced was
replaced by nobody. So a suspended life goes on sending heartbeats, and the next one that is acknowledged resumes it.
Only the cluster ends a life. :class:`Lease` is that rule, pure; :class:`BrokerLife` sends the heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import Callable

from metad_wire import methods
from metad_wire.messages import Feature, Owner
from metad_wire.tables import broker as b
from metad_wire.tables.broker import Broker
from metad_wire.text.fields import U32

from .dispatch.reports import log
from .errors import ClosedError, FencedError, MetadError, NotFoundError, error_of_item
from .requests.requests import Requests
from .requests.wrong import argument

BEATS = 4
"""Heartbeats in a lease."""
SUSPENDED_AFTER = 0.75
"""Of the lease: since the last heartbeat that was acknowledged was sent. The rest is for clocks that differ, and for
what is under way."""
BEAT_S_MAX = 1.0
"""How often a life that is suspended sends a heartbeat, at most: how soon it resumes."""


def counting_clock() -> float:
    """Seconds, the time in which the machine is suspended included where the system says it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LifeState(enum.Enum):
    """What a broker may rely on."""

    SERVING = "serving"
    """The cluster holds this life for alive."""
    SUSPENDED = "suspended"
    """No heartbeat was acknowledged lately: another broker may have the clients by now, or the cluster is away. Take no
    new clients, and serve nothing from memory; keep the connections, because the life may go on."""
    LOST = "lost"
    """The cluster has ended the life, or its program has. Close all clients, and register anew."""


Listener = Callable[[LifeState], None]


class Lease:
    """Whether a life may serve, by times of one clock."""

    def __init__(self, lease_s: float, sent_s: float) -> None:
        self.lease_s = lease_s
        self._sent_s = sent_s  # of the last heartbeat that was acknowledged
        self.over: MetadError | None = None
        """Why the life is over; None while it is not known to be."""
        self.obstacle: MetadError | None = None
        """Why the last heartbeat was not acknowledged; None if it was."""

    def acknowledged(self, sent_s: float, lease_s: float) -> None:
        """The heartbeat that was sent then was acknowledged with this lease: nobody has replaced the life. One that is
        lost stays lost."""
        if sent_s >= self._sent_s:
            self._sent_s, self.lease_s = sent_s, lease_s
            self.obstacle = None

    def end(self, error: MetadError) -> None:
        """The life is over."""
        if self.over is None:
            self.over = error

    def state(self, now_s: float) -> LifeState:
        """What the life may do now."""
        if self.over is not None:
            return LifeState.LOST
        is_late = now_s - self._sent_s >= SUSPENDED_AFTER * self.lease_s
        return LifeState.SUSPENDED if is_late else LifeState.SERVING


class BrokerLife:
    """A life that was registered with :meth:`Brokers.register`. It sends its heartbeats until it ends, is lost, or its
    client is closed, however long no node answers them. Every write of the client is made in its name; after it is
    lost, the client makes none::

        async with connect(url) as m:
            life = await m.brokers.register("broker-1", address="10.0.0.7:1883")
            await m.sessions.takeover(life.broker, life.epoch, "acme", "device-1")
            if life.state is LifeState.SUSPENDED:
                ...  # serve nothing from memory, and keep the clients' connections
            elif life.state is LifeState.LOST:
                ...  # close all clients
    """

    def __init__(
        self,
        requests: Requests,
        owner: Owner,
        lease: Lease,
        unfenced: list[str],
        clock: Callable[[], float],
    ) -> None:
        self._requests = requests
        self.owner = owner
        """Name and epoch, as requests name them."""
        self.broker = owner.broker
        self.epoch = owner.broker_epoch
        self.unfenced = unfenced
        """Groups in which an earlier life of the broker could still write when this one was registered. Empty: none."""
        # A group that has not heard of the broker yet would take its life for one that is forgotten.
        self.requires = int(Feature.LIVES if unfenced else Feature.LIVES | Feature.REGISTERED)
        """What its requests require of nodes."""
        self._load = 0
        self._lease = lease
        self._clock = clock
        self._told = LifeState.SERVING
        self._listeners: list[Listener] = []
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()

    def __repr__(self) -> str:
        return f"<life {self.epoch} of broker {self.broker!r}: {self.state.value}>"

    @property
    def state(self) -> LifeState:
        """Whether this life may serve, at this moment. Look whenever something is served from memory."""
        state = self._lease.state(self._clock())
        if state is not self._told:
            self._told = state
            for listener in list(self._listeners):
                try:
                    listener(state)
                except Exception:  # noqa: BLE001 - the program's own
                    log.exception("a listener of a broker's life has failed")
            if state is LifeState.LOST and not self._lost.done():
                self._lost.set_result(None)
        return state

    @property
    def over(self) -> MetadError | None:
        """Why the life is lost; None while it is not."""
        return self._lease.over if self.state is LifeState.LOST else None

    def on_state(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each new :attr:`state`, when it is noticed: by a look at :attr:`state`, or with a
        heartbeat. Returns what ends that."""
        self._listeners.append(listener)

        def forget() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return forget

    def report(self, load: int) -> None:
        """Say with each heartbeat from now on how loaded the broker is, in its own unit: 0 to 2**32 - 1. Raises
        InvalidRequestError."""
        argument("load", load, U32)
        self._load = load

    def check(self) -> None:
        """Raise FencedError if the life is lost: nothing was sent."""
        if self.state is LifeState.LOST:
            assert self._lease.over is not None
            raise FencedError(
                f"epoch {self.epoch} of broker {self.broker!r} is over: {self._lease.over}", outcome_known=True
            )

    async def lost(self) -> MetadError:
        """Wait until the life is lost; why."""
        await asyncio.shield(self._lost)
        assert self._lease.over is not None
        return self._lease.over

    async def serve(self, *, deadline_s: float | None = None) -> Broker:
        """Tell the others that this broker has loaded what it serves from; for a life that was registered with
        ``loading_s``. Raises FencedError if the life is over."""
        body = b.BrokerServe(self.broker, self.epoch)
        return (await self._requests.one(methods.BROKER_SERVE, body, deadline_s)).broker

    async def drain(self, *, deadline_s: float | None = None) -> Broker:
        """Tell the others that this broker wants no new clients. Raises FencedError if the life is over."""
        body = b.BrokerDrain(self.broker, self.epoch)
        return (await self._requests.one(methods.BROKER_DRAIN, body, deadline_s)).broker

    async def end(self, *, deadline_s: float | None = None) -> list[str]:
        """End the life: nothing is written in its name any more. Returns the groups that do not know yet. Ending one
        that is over does nothing."""
        self.stop(FencedError(f"epoch {self.epoch} of broker {self.broker!r} has ended itself"))
        try:
            ended = await self._requests.one(
                methods.BROKER_DEREGISTER, b.BrokerDeregister(self.broker, self.epoch), deadline_s
            )
        except FencedError:
            return []
        return ended.unfenced

    # --- heartbeats ---

    async def begin(self) -> None:
        """Send the first heartbeat, and then the others by itself. Raises the error of the first."""
        await self._beat(None)
        self.check()
        self._task = asyncio.create_task(self._run(), name=f"life of broker {self.broker}")

    def hurry(self) -> None:
        """Send the next heartbeat at once: a connection is lost, and the cluster may take that for the end; or a
        request was fenced, perhaps because the life is over."""
        self._hurried.set()

    def stop(self, error: MetadError) -> None:
        """Send no more heartbeats: the life is over."""
        self._lease.end(error)
        if self._task is not None:
            self._task.cancel()
        _ = self.state  # which tells the listeners

    def closed(self) -> None:
        """The client is closed. The cluster ends the life once its lease is over."""
        self.stop(ClosedError("the client was closed"))

    async def _run(self) -> None:
        while (state := self.state) is not LifeState.LOST:
            interval_s = self._lease.lease_s / BEATS
            if state is LifeState.SUSPENDED:
                interval_s = min(interval_s, BEAT_S_MAX)
            begun_s = self._clock()
            try:
                await self._beat(interval_s)
            except MetadError as error:  # the next one may come through
                if not error.retryable and self._lease.obstacle is None:
                    log.warning("a heartbeat of broker %r was refused: %s: %s", self.broker, error.name, error)
                self._lease.obstacle = error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, begun_s + interval_s - self._clock())):
                    await self._hurried.wait()
            self._hurried.clear()

    async def _beat(self, deadline_s: float | None) -> None:
        sent_s = self._clock()
        body = b.BrokerHeartbeat([b.BrokerBeat(self.broker, self.epoch, self._load)])
        reply = await self._requests.one(methods.BROKER_HEARTBEAT, body, deadline_s)
        if reply.leases_ms[0]:
            self._lease.acknowledged(sent_s, reply.leases_ms[0] / 1000)
            _ = self.state  # which tells the listeners
            return
        error = error_of_item(reply.errors[0])
        if isinstance(error, FencedError | NotFoundError):
            self._lease.end(error)
            _ = self.state  # which tells the listeners
