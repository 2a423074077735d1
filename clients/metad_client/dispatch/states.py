"""Whether the client reaches the cluster, as kazoo's users know it: CONNECTED, SUSPENDED, LOST."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from .reports import log


class ClientState(enum.Enum):
    """What a program may rely on."""

    CONNECTED = "connected"
    """A node takes requests."""
    SUSPENDED = "suspended"
    """No node takes requests now. Calls wait for one, and what watches and images show grows old."""
    LOST = "lost"
    """No node has taken requests for ``Options.lost_after_s``, or none ever has, or the client is closed. The program
    should act as if others had gone on without it. The client tries to reach a node all the same."""


Listener = Callable[[ClientState], None]


class States:
    """The state of one client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lost_after_s: float) -> None:
        self.state = ClientState.LOST
        self._loop = loop
        self._lost_after_s = lost_after_s
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[Listener] = []
        self._alone_from_s: float | None = loop.time()  # None: a node takes requests

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell the listener of each change of the state. Returns what ends that."""
        self._listeners.append(listener)

        def forget() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return forget

    @property
    def alone_s(self) -> float:
        """For how long no node has taken requests."""
        return 0.0 if self._alone_from_s is None else self._loop.time() - self._alone_from_s

    def up(self) -> None:
        """A node takes requests."""
        self._alone_from_s = None
        self._stop()
        self._change(ClientState.CONNECTED)

    def down(self) -> None:
        """No node takes requests."""
        self._alone_from_s = self._loop.time()
        if self.state is ClientState.CONNECTED:
            self._timer = self._loop.call_later(self._lost_after_s, self._change, ClientState.LOST)
            self._change(ClientState.SUSPENDED)

    def close(self) -> None:
        """The client is closed."""
        self._stop()
        self._change(ClientState.LOST)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _change(self, state: ClientState) -> None:
        if state is self.state:
            return
        self.state = state
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception:  # noqa: BLE001 - the program's own
                log.exception("a listener of the client's state has failed")
