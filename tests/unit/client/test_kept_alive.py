"""When a holder speaks, and whom it tells what: by the loop's clock, which the test turns."""

from __future__ import annotations

import asyncio
import logging

import pytest

from metad_client import LeaseState
from metad_client.holding.kept_alive import KeptAlive

TTL_S = 10.0


class Held:
    """Something held, by a clock of its own; the loop's timers are of no matter."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.spoken: list[float] = []
        self.lost = 0
        self.heard: list[LeaseState] = []
        self.alive = KeptAlive(
            TTL_S, lambda: self.now_s, self.speak, self.end, told=LeaseState.CONNECTED, name="of-a-test"
        )
        self.alive.on_state(self.heard.append)

    async def speak(self, now_s: float) -> None:
        self.spoken.append(now_s)

    def end(self) -> None:
        self.lost += 1

    async def until(self, end_s: float, answered: bool = True) -> None:
        """Let time pass, a tick at a time."""
        while self.now_s < end_s:
            self.now_s += 1.0
            self.alive._tick()
            spoken = len(self.spoken)
            await asyncio.sleep(0)
            if answered and len(self.spoken) > spoken:
                self.alive.answered(self.spoken[-1], TTL_S)


async def test_a_holder_that_is_answered_stays_connected_and_speaks_three_times_in_a_time_to_live() -> None:
    held = Held()
    assert held.alive.state is LeaseState.SUSPENDED
    held.alive.begin(held.now_s)
    await held.until(130.0)
    held.alive.stop()
    assert held.heard == []
    assert held.spoken == [103.0 + 3 * n for n in range(10)]


async def test_a_holder_that_is_not_answered_is_told_once_of_each_state_and_speaks_in_doubt() -> None:
    held = Held()
    held.alive.begin(held.now_s)
    await held.until(120.0, answered=False)
    assert held.heard == [LeaseState.SUSPENDED]
    assert held.lost == 0
    assert held.spoken == [103.0, *(106.0 + n for n in range(15))], "it goes on, however long nobody answers"
    await held.until(130.0)
    assert held.heard == [LeaseState.SUSPENDED, LeaseState.CONNECTED]
    held.alive.answered(held.now_s, 0.0)
    assert held.heard[2:] == [LeaseState.LOST]
    assert held.lost == 1
    assert not held.alive.lose()


async def test_what_is_forgotten_may_begin_anew() -> None:
    held = Held()
    held.alive.begin(held.now_s)
    assert held.alive.lose()
    held.alive.forget()
    assert held.alive.state is LeaseState.SUSPENDED
    held.alive.begin(held.now_s)
    held.alive.stop()
    assert held.heard == [LeaseState.LOST, LeaseState.CONNECTED]


async def test_a_listener_that_fails_takes_nothing_from_what_is_held(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()

    def fail(_: LeaseState) -> None:
        raise ZeroDivisionError("of the program")

    forget = held.alive.on_state(fail)
    second: list[LeaseState] = []
    held.alive.on_state(second.append)
    held.alive.begin(held.now_s)
    with caplog.at_level(logging.ERROR, "metad_client"):
        await held.until(120.0, answered=False)
        held.alive.answered(held.now_s, 0.0)
    assert held.heard == second == [LeaseState.SUSPENDED, LeaseState.LOST]
    assert caplog.text.count("a listener of of-a-test has failed") == 2
    forget()
    forget()
