"""A process of brokers that must not suffer: registered with short leases, with sessions and wills, through the SDK.

Their clients do nothing but keep the lives alive, so a heartbeat that is late was held up by the cluster, and its
latency counts from when it was due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from metad_client import (
    BrokerLife,
    Client,
    LifeState,
    Observer,
    Options,
    SessionDisconnectItem,
    SessionProperties,
    SessionTakeoverItem,
    Will,
)
from metad_client.broker_life import BEATS
from metad_client.observer import Ended
from metad_wire import methods

from ..commands import Overload
from ..report.histogram import Latencies
from ..target import open_client
from .plan import GUARD_TENANT

_FAR_S = 86_400
_DEADLINE_S = 60.0


class Attach(msgspec.Struct, frozen=True):
    """The sessions come, and half of them go away again."""


class Phase(msgspec.Struct, frozen=True):
    """Heartbeats count as of this phase from now on."""

    name: str


class Look(msgspec.Struct, frozen=True):
    """The reply: :class:`Seen`."""


class Beats(msgspec.Struct, frozen=True):
    """Heartbeats of a phase: how many, how many failed, and their latencies, an encoded histogram."""

    count: int
    failed: int
    latencies: bytes


class Seen(msgspec.Struct, frozen=True):
    """Heartbeats by phase; brokers by the state of their life, as the SDK sees it now; how often
    a life was suspended."""

    beats: dict[str, Beats]
    states: dict[str, int]
    suspended: int
    lives: dict[str, int]
    """Name and epoch."""


class Pulse(Observer):
    """The heartbeats of one broker. The SDK sends one each quarter of the lease; the next is due then, even if the
    one before was still under way."""

    def __init__(self, lease_s: float, note: Any) -> None:
        self._interval_s = lease_s / BEATS
        self._note = note
        self._due_s: float | None = None

    def ended(self, event: Ended) -> None:
        if event.verb != methods.BROKER_HEARTBEAT.name:
            return
        now_s = time.monotonic()
        begun_s = now_s - event.seconds
        due_s = begun_s if self._due_s is None else min(self._due_s, begun_s)
        self._due_s = begun_s + self._interval_s
        self._note(now_s - due_s, event.outcome == "ok")


class Broker(NamedTuple):
    """One of the process."""

    client: Client
    life: BrokerLife


class Guard:
    """The role of the process."""

    def __init__(self, measurement: Overload) -> None:
        self._measurement = measurement
        self._brokers: list[Broker] = []
        self._phase = "preparation"
        self._latencies: dict[str, Latencies] = {}
        self._counts: dict[str, list[int]] = {}
        self._suspended = 0

    async def begin(self, stack: AsyncExitStack, target: str) -> None:
        """The brokers begin their lives."""
        for n in range(self._measurement.brokers):
            name = broker_name(n)
            pulse = Pulse(self._measurement.lease_s, self._note)
            options = Options(deadline_s=_DEADLINE_S, client_name=name)
            client = await stack.enter_async_context(open_client(target, options, pulse))
            life = await client.brokers.register(name, lease_s=self._measurement.lease_s)
            life.on_state(self._state)
            self._brokers.append(Broker(client, life))

    def _note(self, seconds: float, ok: bool) -> None:
        self._latencies.setdefault(self._phase, Latencies()).note(round(seconds * 1e9))
        counts = self._counts.setdefault(self._phase, [0, 0])
        counts[0] += 1
        counts[1] += not ok

    def _state(self, state: LifeState) -> None:
        self._suspended += state is LifeState.SUSPENDED

    async def carry_out(self, order: Any) -> Any:
        match order:
            case Attach():
                await asyncio.gather(*(self._attach(n, one) for n, one in enumerate(self._brokers)))
                return None
            case Phase(name):
                self._phase = name
                return None
            case Look():
                return self._look()
        raise TypeError(f"no order {order!r}")

    async def _attach(self, n: int, broker: Broker) -> None:
        life, sessions = broker.life, broker.client.sessions
        connected, away = names_of(self._measurement, n)
        for names, delay_s in ((connected, 0), (away, _FAR_S // 2)):
            properties = [
                SessionProperties(_FAR_S, b"guarded", Will(f"died/{name}", b"no", delay_s=delay_s)) for name in names
            ]
            items = [
                SessionTakeoverItem(GUARD_TENANT, name, True, one) for name, one in zip(names, properties, strict=True)
            ]
            (await sessions.takeover_many(life.broker, life.epoch, items)).raise_for_error()
        gone = [SessionDisconnectItem(GUARD_TENANT, name, _FAR_S) for name in away]
        (await sessions.disconnect_many(life.broker, life.epoch, gone)).raise_for_error()

    def _look(self) -> Seen:
        states: dict[str, int] = {}
        for one in self._brokers:
            states[one.life.state.value] = states.get(one.life.state.value, 0) + 1
        beats = {
            phase: Beats(self._counts[phase][0], self._counts[phase][1], latencies.encode())
            for phase, latencies in self._latencies.items()
        }
        return Seen(beats, states, self._suspended, {one.life.broker: one.life.epoch for one in self._brokers})


def broker_name(n: int) -> str:
    """Of the n-th broker."""
    return f"guard-{n}"


def names_of(measurement: Overload, n: int) -> tuple[Sequence[str], Sequence[str]]:
    """The clients of the n-th broker: those that stay connected, and those that are away."""
    each = measurement.sessions // measurement.brokers
    names = [f"guard-{n}-{number}" for number in range(each)]
    return names[: each // 2], names[each // 2 :]


def left(measurement: Overload) -> dict[str, tuple[bool, str]]:
    """Every client, whether it is connected, and its broker."""
    return {
        client: (connected, broker_name(n))
        for n in range(measurement.brokers)
        for clients, connected in zip(names_of(measurement, n), (True, False), strict=True)
        for client in clients
    }


@asynccontextmanager
async def open_guard(target: str, measurement: Overload) -> AsyncIterator[Guard]:
    """The role of a process."""
    async with AsyncExitStack() as stack:
        guard = Guard(measurement)
        await guard.begin(stack, target)
        yield guard
