"""The turns of works that nobody waits for, and their pace.

They take what is left of the node and of its disk. Behind each turn all of them rest for several times as long as it
took until its batch was answered: so they are slow where the processor or the disk is busy, with whatever it is, and
need not know with what. Two limits hold on top of that: a number of sessions per second, however idle the node is, and
a turn about every second, however busy it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from ..environment import Environment, Timer
from .chore import Done

LOOK_S: Final = 0.25
"""How often :meth:`SweepTurns.look` is called."""
REST: Final = 4
"""In durations of a turn: what the others have of the node behind it."""
_REST_MIN_S: Final = 0.002
TURN_S: Final = 1.0
"""A look begins the next turn after this time, whatever the last one took, or still takes."""


class SweepWork(Protocol):
    """Something to do in batches."""

    def begin(self, room: int, done: Done) -> bool:
        """Do the next batch, of so many sessions at most, and call ``done`` once. False: there is nothing to do, and
        ``done`` is not called."""


class SweepTurns:
    """Those of a node: ``rate`` is in sessions per second, ``batch`` the sessions of a turn."""

    def __init__(self, rate: float, batch: int, environment: Environment) -> None:
        self._rate = rate
        self._room_max = max(batch, rate * LOOK_S)
        self._room_least = max(1.0, min(batch, rate * LOOK_S))
        """So much room is worth a turn."""
        self._environment = environment
        self._works: deque[SweepWork] = deque()
        self._turn = 0  # the number of the one that is under way, or rests
        self._begun_s: float | None = None  # when that began; None: nobody had anything to do
        self._room = self._room_max  # sessions that may be asked for now
        self._room_s = environment.now()
        self._timer: Timer | None = None

    def serve(self, works: Iterable[SweepWork]) -> None:
        """Let these take turns from now on."""
        self._works = deque(works)

    def look(self) -> None:
        """Begin a turn, unless one has begun not long ago."""
        if self._begun_s is None or self._environment.now() - self._begun_s >= TURN_S:
            self._take()

    def stop(self) -> None:
        """Let nobody have another turn before the next look."""
        self._turn += 1
        self._begun_s = None
        if self._timer is not None:
            self._timer.cancel()

    def _take(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._turn += 1
        now_s = self._environment.now()
        self._room = min(self._room + self._rate * (now_s - self._room_s), self._room_max)
        self._room_s = self._begun_s = now_s
        if (missing := self._room_least - self._room) > 0:
            self._timer = self._environment.call_at(now_s + max(_REST_MIN_S, missing / self._rate), self._take)
            return
        done = partial(self._done, self._turn)
        for _ in range(len(self._works)):
            work = self._works[0]
            self._works.rotate(-1)
            if work.begin(int(self._room), done):
                return
        self._begun_s = None

    def _done(self, turn: int, asked: int | None) -> None:
        self._room -= asked or 0
        if turn != self._turn or self._begun_s is None:
            return  # it took so long that the next one did not wait for it
        if asked is None:
            self._begun_s = None
            return
        now_s = self._environment.now()
        self._timer = self._environment.call_at(now_s + max(_REST_MIN_S, REST * (now_s - self._begun_s)), self._take)
