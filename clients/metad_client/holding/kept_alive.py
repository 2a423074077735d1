"""What is kept alive for a program: when to say that it lives, what may be believed of it, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from metad_wire.program.forks import Process

from ..dispatch.reports import log
from .belief import SPEAK, TICK, Belief, LeaseState

Listener = Callable[[LeaseState], None]

_DOUBT_S_MAX = 1.0
"""How often a holder in doubt says that it lives, at least: how soon it resumes, however long its time to live is."""


class KeptAlive:
    """A lease, or whatever else ends unless its holder is heard of. Nothing is believed before :meth:`begin`.

    ``speak`` says that the holder lives, and calls :meth:`answered`; it gets the time. ``lost`` is called before the
    listeners once nothing may be believed any more. ``told`` is the state that nobody is told of first.
    """

    def __init__(
        self,
        ttl_s: float,
        now: Callable[[], float],
        speak: Callable[[float], Coroutine[Any, Any, None]],
        lost: Callable[[], None],
        *,
        told: LeaseState,
        name: str,
    ) -> None:
        self._process = Process()
        self._ttl_s = ttl_s
        self._now = now
        self._speak = speak
        self._lost = lost
        self._told = told
        self._name = name  # of the tasks
        self._belief: Belief | None = None
        self._listeners: list[Listener] = []
        self._speaking: asyncio.Task[None] | None = None
        self._speak_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def belief(self) -> Belief | None:
        """Of what is held now."""
        return self._belief

    @property
    def state(self) -> LeaseState:
        """What may be believed now. What a process holds is not its forks'."""
        if not self._process.is_here:
            return LeaseState.LOST
        return LeaseState.SUSPENDED if self._belief is None else self._belief.state(self._now())

    def on_state(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each new state, as soon as it is noticed. Returns what ends that."""
        self._listeners.append(listener)

        def forget() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return forget

    def begin(self, sent_s: float) -> None:
        """It was given to whoever asked for it at this time."""
        self._belief = Belief(self._ttl_s, sent_s)
        self._speak_s = sent_s + SPEAK * self._ttl_s
        self._tick()

    def answered(self, sent_s: float, ttl_s: float) -> None:
        """What was said at this time was answered. ``ttl_s`` 0: it is not there any more."""
        assert self._belief is not None
        self._belief.answered(sent_s, ttl_s, self._now())
        self._tell()

    def lose(self) -> bool:
        """It is over, or given back; whether it was not over before."""
        if self._belief is None:
            return False
        was = self.state
        self._belief.lose()
        self._tell()
        return was is not LeaseState.LOST

    def stop(self) -> None:
        """Say no more that the holder lives."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._speaking is not None:
            self._speaking.cancel()

    def forget(self) -> None:
        """Nothing is held, and nobody is told."""
        self.stop()
        self._belief = None

    def _tick(self) -> None:
        """Look: whether it is time to speak, and what is to be believed."""
        assert self._belief is not None
        now_s = self._now()
        self._belief.tick(now_s)
        self._tell()
        if self._told is LeaseState.LOST:
            self._timer = None
            return
        loop = asyncio.get_running_loop()
        suspended = self._told is LeaseState.SUSPENDED
        if (now_s >= self._speak_s or suspended) and (self._speaking is None or self._speaking.done()):
            self._speak_s = now_s + SPEAK * self._ttl_s
            self._speaking = loop.create_task(self._speak(now_s), name=self._name)
        again_s = TICK * self._ttl_s
        self._timer = loop.call_later(min(again_s, _DOUBT_S_MAX) if suspended else again_s, self._tick)

    def _tell(self) -> None:
        state = self.state
        if state is self._told:
            return
        self._told = state
        if state is LeaseState.LOST:
            self._lost()
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception:  # noqa: BLE001 - the program's own; what is held must live on
                log.exception("a listener of %s has failed", self._name)
