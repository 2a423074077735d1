"""The clock that leases rest on counts the time during which the machine was suspended, and what a callback raises is
told."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from metad.node.environment import AsyncEnvironment, Queue


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


async def test_what_a_callback_raises_is_told() -> None:
    environment = AsyncEnvironment()
    told: list[str] = []
    all_told = asyncio.Event()

    def caught(error: Exception) -> None:
        told.append(str(error))
        if len(told) == 3:
            all_told.set()

    environment.catch(caught)

    def fails(name: str) -> None:
        raise ValueError(name)

    environment.call_soon(partial(fails, "soon"))
    environment.call_at(environment.now(), partial(fails, "at"))
    environment.beside(lambda: None, lambda _: fails("beside"))
    await all_told.wait()
    assert sorted(told) == ["at", "beside", "soon"]
    environment.close()


async def test_a_peer_that_greets_does_not_wait_for_a_flush() -> None:
    """Guards a node that starts again: it was let in only once those that it greeted had flushed their state."""
    environment = AsyncEnvironment()
    flushed, synced = threading.Event(), asyncio.Event()
    environment.beside(lambda: flushed.wait(10) and None, lambda _: None)
    environment.beside(lambda: None, lambda _: synced.set(), Queue.SYNCS)
    await synced.wait()
    assert not flushed.is_set()
    flushed.set()
    environment.close()


async def test_a_closed_environment_begins_nothing_and_tells_nobody() -> None:
    """Guards a node that is told to end while it starts: a sync that was over then began the next one, which is a bug
    in the log."""
    environment = AsyncEnvironment()
    told: list[object] = []
    environment.catch(told.append)
    environment.beside(lambda: None, lambda error: environment.beside(lambda: told.append("work"), told.append))
    environment.close()
    environment.beside(lambda: told.append("work"), told.append)
    await asyncio.sleep(0.05)
    assert not told
