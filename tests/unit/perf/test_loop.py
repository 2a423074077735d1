"""The load loop on a clock that jumps: nothing here takes time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence

import pytest

from metad_perf.load.loop import Budget, Tally, drive
from metad_perf.report.histogram import Latencies
from metad_wire.errors import OverloadedError

MS = 1_000_000


class JumpingTime:
    """A clock that moves only when :meth:`run` finds everybody waiting, and then to whoever is next."""

    def __init__(self) -> None:
        self._now_ns = 1_000 * MS
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def now_ns(self) -> int:
        return self._now_ns

    async def sleep_until_ns(self, due_ns: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (due_ns, self._count, future))
        await future

    async def run(self, work: asyncio.Task[Tally]) -> Tally:
        """Move on until the work is done."""
        while not work.done():
            for _ in range(10):  # let everybody who can run come to a stop
                await asyncio.sleep(0)
            if self._sleepers and not work.done():
                due_ns, _, future = heapq.heappop(self._sleepers)
                self._now_ns = max(self._now_ns, due_ns)
                future.set_result(None)
        return work.result()


class Server:
    """Takes ``takes_ns(n)`` for the n-th request; counts what is in flight."""

    def __init__(self, time: JumpingTime, takes_ns: Callable[[int], int], failed: Sequence[str] = ()) -> None:
        self._time = time
        self._takes_ns = takes_ns
        self._failed = failed
        self.sent_ns: list[int] = []
        self.in_flight = 0
        self.in_flight_max = 0

    def batch(self) -> int:
        return len(self.sent_ns)

    async def send(self, batch: int) -> Sequence[str]:
        number = len(self.sent_ns)
        self.sent_ns.append(self._time.now_ns())
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        await self._time.sleep_until_ns(self._time.now_ns() + self._takes_ns(number))
        self.in_flight -= 1
        return self._failed


async def _drive(
    time: JumpingTime, server: Server, budget: Budget, *, in_flight: int = 1, interval_ns: float = 0, batch: int = 1
) -> tuple[Tally, Latencies]:
    latencies = Latencies()
    work = asyncio.create_task(
        drive(
            server,
            batch=batch,
            in_flight=in_flight,
            budget=budget,
            note=latencies.note,
            interval_ns=interval_ns,
            time=time,
        )
    )
    return await time.run(work), latencies


async def test_closed_loop_sends_when_answered() -> None:
    time = JumpingTime()
    server = Server(time, lambda _: 10 * MS)
    tally, latencies = await _drive(time, server, Budget(requests=20), in_flight=4)
    assert tally.requests == latencies.count == 20
    assert server.in_flight_max == 4
    assert tally.end_ns - tally.begin_ns == 50 * MS
    assert latencies.percentile_ms(50) == pytest.approx(10, rel=1e-3)


async def test_closed_loop_stops_at_its_time() -> None:
    time = JumpingTime()
    tally, _ = await _drive(time, Server(time, lambda _: 10 * MS), Budget(seconds=0.1))
    assert tally.requests == 10


async def test_open_loop_keeps_its_rate_whatever_the_server_does() -> None:
    time = JumpingTime()
    server = Server(time, lambda _: 3 * MS)
    tally, latencies = await _drive(time, server, Budget(requests=100), in_flight=8, interval_ns=1 * MS)
    begin_ns = tally.begin_ns
    assert server.sent_ns == [begin_ns + n * MS for n in range(100)]
    assert server.in_flight_max in (3, 4)  # the one that ends when another is due may still count
    assert latencies.max_ms() == pytest.approx(3, rel=1e-3)


async def test_open_loop_charges_a_stall_to_every_request_it_delays() -> None:
    """Coordinated omission: one stall of 100 ms on one connection delays a hundred requests that were due in it."""
    time = JumpingTime()
    server = Server(time, lambda n: 100 * MS if n == 0 else 0)
    _, latencies = await _drive(time, server, Budget(requests=200), in_flight=1, interval_ns=1 * MS)
    assert latencies.percentile_ms(75) == pytest.approx(50, rel=0.05)
    assert latencies.max_ms() == pytest.approx(100, rel=1e-3)


async def test_a_closed_loop_would_have_omitted_them() -> None:
    time = JumpingTime()
    server = Server(time, lambda n: 100 * MS if n == 0 else 1 * MS)
    _, latencies = await _drive(time, server, Budget(requests=200), in_flight=1)
    assert latencies.percentile_ms(99) == pytest.approx(1, rel=1e-3)


async def test_open_loop_stops_at_its_time() -> None:
    time = JumpingTime()
    tally, _ = await _drive(time, Server(time, lambda _: 0), Budget(seconds=0.05), in_flight=4, interval_ns=1 * MS)
    assert tally.requests == 50


async def test_failed_items_are_counted_by_name() -> None:
    time = JumpingTime()
    server = Server(time, lambda _: MS, failed=["not_owner", "fenced"])
    tally, _ = await _drive(time, server, Budget(requests=5), batch=10)
    assert tally.failed == 10
    assert dict(tally.errors) == {"not_owner": 5, "fenced": 5}


async def test_a_failed_request_fails_all_its_items() -> None:
    class Refusing(Server):
        async def send(self, batch: int) -> Sequence[str]:
            await super().send(batch)
            raise OverloadedError

    time = JumpingTime()
    tally, latencies = await _drive(time, Refusing(time, lambda _: MS), Budget(requests=3), batch=10)
    assert tally.failed == 30
    assert dict(tally.errors) == {"overloaded": 30}
    assert latencies.count == 3


async def test_a_loop_without_an_end_is_refused() -> None:
    time = JumpingTime()
    with pytest.raises(ValueError, match="budget"):
        await _drive(time, Server(time, lambda _: 0), Budget())
