"""The clock that leases rest on counts the time during which the machine was suspended."""

from __future__ import annotations

import asyncio
import time

import pytest

from metad.node.environment import AsyncEnvironment


async def test_the_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = AsyncEnvironment()
    real, suspended_s = time.clock_gettime, 0.0

    def clock_gettime(clock: int) -> float:
        return real(clock) + (suspended_s if clock == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    before_s = environment.now()
    suspended_s = 3_600.0
    assert environment.now() - before_s >= 3_600.0
    environment.close()


async def test_timers_are_of_the_same_clock() -> None:
    environment = AsyncEnvironment()
    called: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    due_s = environment.now() + 0.01
    environment.call_at(due_s, lambda: called.set_result(environment.now()))
    assert await called >= due_s - 0.001  # loops count milliseconds
    environment.close()
