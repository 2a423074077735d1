"""Other work beside the failover: every verb at an even pace, from before the brokers die until all is done.

The load is an open loop: a request is due at its time whatever happened to the others, and its latency counts from
then. So each sample belongs to the moment at which it was due, and the same run tells what was before and what during.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from metad_client import Client, Options

from ..load.loop import Budget, Source, drive
from ..load.measure import epoch_now
from ..load.prepare import fill_sessions, prepare
from ..load.worker import REQUEST_DEADLINE_S
from ..load.workload import VERBS, Settings
from ..report import output
from ..target import open_client

MEASURED: Final = ("kv.put", "kv.get", "session.get", "session.update", "offset.commit")
"""All but session.takeover, which the failover itself is made of."""
_KEYS = 10_000
_VALUE_BYTES = 200
_IN_FLIGHT = 64  # of a verb: an election holds up so many
_FOREVER_S = 86_400.0
_SECOND_NS = 1_000_000_000
WINDOW_S: Final = 5.0
"""500 samples of a verb at the default pace."""


class Sample(NamedTuple):
    """A request of one item: when it was due by the machine's monotonic clock, and how long it took."""

    due_ns: int
    took_ns: int


class Window(NamedTuple):
    """A span of the machine's monotonic clock."""

    begin_ns: int
    end_ns: int


class Work(msgspec.Struct, frozen=True):
    """What was done so far: the samples of each verb, and its failures by name."""

    samples: dict[str, list[Sample]]
    failures: dict[str, dict[str, int]]


class Begin(msgspec.Struct, frozen=True):
    """Go on from now on with so many requests a second of each verb."""

    rate: float


class End(msgspec.Struct, frozen=True):
    """Stop. The reply: :class:`Work`."""


class _Noted:
    """A source whose failures are counted here, because its loop is cut off in the end."""

    def __init__(self, source: Source, failures: dict[str, int]) -> None:
        self._source = source
        self._failures = failures

    def batch(self) -> Any:
        return self._source.batch()

    async def send(self, batch: Any) -> Sequence[str]:
        failed = await self._source.send(batch)
        for name in failed:
            self._failures[name] = self._failures.get(name, 0) + 1
        return failed


class Foreground:
    """The role of the process."""

    def __init__(self, client: Client, epoch: int) -> None:
        self._client = client
        self._epoch = epoch
        self._work = Work({verb: [] for verb in MEASURED}, {verb: {} for verb in MEASURED})
        self._tasks: list[asyncio.Task[Any]] = []

    async def carry_out(self, order: Any) -> Any:
        match order:
            case Begin(rate):
                self._tasks = [asyncio.create_task(self._drive(verb, rate)) for verb in MEASURED]
                return None
            case End():
                await self.stop()
                return self._work
        raise TypeError(f"no order {order!r}")

    async def stop(self) -> None:
        """End the load. Raises what ended it earlier."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for one in ended:
            if isinstance(one, Exception):
                raise one

    async def _drive(self, verb: str, rate: float) -> None:
        source = VERBS[verb](self._client, _settings(verb, self._epoch))
        with contextlib.suppress(asyncio.CancelledError):
            await drive(
                _Noted(source, self._work.failures[verb]),
                batch=1,
                in_flight=_IN_FLIGHT,
                budget=Budget(seconds=_FOREVER_S),
                note=partial(_note, self._work.samples[verb]),
                interval_ns=1e9 / rate,
            )


@asynccontextmanager
async def open_foreground(target: str) -> AsyncIterator[Foreground]:
    """The role: what it needs is there once it is open."""
    options = Options(deadline_s=REQUEST_DEADLINE_S, client_name="foreground")
    async with open_client(target, options) as client:
        epoch = epoch_now()
        await fill_sessions(client, epoch, _KEYS, _VALUE_BYTES, lambda _: None)
        await prepare(client, _settings("kv.get", epoch), lambda _: None)
        made = Foreground(client, epoch)
        try:
            yield made
        finally:
            await made.stop()


def _settings(verb: str, epoch: int) -> Settings:
    return Settings(verb=verb, batch=1, keys=_KEYS, value_bytes=_VALUE_BYTES, epoch=epoch)


def _note(samples: list[Sample], took_ns: int) -> None:
    samples.append(Sample(time.monotonic_ns() - took_ns, took_ns))


# --- what is told of it ---


def p99_ms(samples: Iterable[Sample], within: Callable[[int], bool]) -> float:
    """Of those that were due then; 0 if there are none."""
    took = sorted(sample.took_ns for sample in samples if within(sample.due_ns))
    return took[min(len(took) - 1, int(0.99 * len(took)))] / 1e6 if took else 0.0


def compared(
    samples: Mapping[str, Sequence[Sample]], before: Window, during: Window, without: Sequence[Window]
) -> dict[str, dict[str, float]]:
    """Of each verb: its p99 before, during (but for some windows) and the ratio of both; and its p99 during all of it.

    The first two are medians of windows of :data:`WINDOW_S`: where the machine itself stands still for a moment, that
    is the p99 of one window, and of all the time together it would be the p99 too.
    """
    windows_before = parts(before, WINDOW_S)
    windows_during = [one for one in parts(during, WINDOW_S) if not any(_meet(one, other) for other in without)]

    def median_ms(one: Sequence[Sample], windows: Sequence[Window]) -> float:
        return statistics.median([p99_ms(one, partial(_holds, window)) for window in windows] or [0.0])

    def told(one: Sequence[Sample]) -> dict[str, float]:
        p99_before, p99_during = median_ms(one, windows_before), median_ms(one, windows_during)
        return {
            "p99_ms_before": p99_before,
            "p99_ms_during": p99_during,
            "p99_ratio": output.ratio(p99_during, p99_before),
            "p99_ms_with_leader_kill": p99_ms(one, partial(_holds, during)),
        }

    return {verb: told(one) for verb, one in samples.items()}


def parts(window: Window, length_s: float) -> list[Window]:
    """The whole windows of this length in it, from its beginning; itself if it is shorter."""
    length_ns = round(length_s * _SECOND_NS)
    begins = range(window.begin_ns, window.end_ns - length_ns + 1, length_ns)
    return [Window(begin_ns, begin_ns + length_ns) for begin_ns in begins] or [window]


def curve(samples: Mapping[str, Sequence[Sample]], window: Window) -> list[dict[str, float]]:
    """The p99 of each verb in milliseconds, in each second of the window."""

    def in_second(begin_ns: int) -> dict[str, float]:
        second = Window(begin_ns, begin_ns + _SECOND_NS)
        return {verb: p99_ms(one, lambda due: _holds(second, due)) for verb, one in samples.items()}

    return [in_second(begin_ns) for begin_ns in range(window.begin_ns, window.end_ns, _SECOND_NS)]


def _meet(one: Window, other: Window) -> bool:
    return one.begin_ns < other.end_ns and other.begin_ns < one.end_ns


def _holds(window: Window, due_ns: int) -> bool:
    return window.begin_ns <= due_ns < window.end_ns
