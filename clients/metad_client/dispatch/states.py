"""Whether the client reaches the cluster, as kazoo's users know it: CONNECTED, SUSPENDED, LOST; and the same for each
kind of groups: whether all of them have a leader that answers, which only a quorum gives. A client that reaches all
nodes and calls nothing does not ask: it hears with its next call that nodes are cut off from each other."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from typing import Final

from .reports import log

_LOOK_S: Final = 0.5
_ASK_S: Final = 2.0
"""How often a node is asked who leads, one after the other, while a node cannot be reached."""
_UNLED_S: Final = 1.0
"""A kind is SUSPENDED when one of its groups has had no leader for so long. An election is over by then."""


class ClientState(enum.Enum):
    """What a program may rely on."""

    CONNECTED = "connected"
    """Nodes take requests, and every group has a leader that answers."""
    SUSPENDED = "suspended"
    """No node takes requests now, or some group has no leader that answers: a quorum is away. Calls wait, and what
    watches and images show grows old."""
    LOST = "lost"
    """No node has taken requests for ``Options.lost_after_s``, or none ever has, or the client is closed. The program
    should act as if others had gone on without it. The client tries to reach a node all the same."""


Listener = Callable[[ClientState], None]


class States:
    """The state of one client."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lost_after_s: float,
        led: Callable[[], Mapping[str, bool]],
        ask: Callable[[], None],
        tell: Callable[[ClientState, Mapping[str, ClientState]], None],
    ) -> None:
        """``led``: for each kind of groups that is known, whether all of them have a leader that answers. ``ask``: find
        out. ``tell``: of each change."""
        self.state = ClientState.LOST
        self.kinds: dict[str, ClientState] = {}
        """By kind of groups: ``metadata``, ``data``, ``offset``."""
        self._led, self._ask, self._tell = led, ask, tell
        self._unled: dict[str, float] = {}  # kind -> since when
        self._asked_s = loop.time()
        self._looking: asyncio.TimerHandle | None = None
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
        if self._alone_from_s is not None:
            self._alone_from_s = None
            self._unled.clear()
        self._stop()
        self.look()

    def look(self) -> None:
        """Compare what is known of the groups, and do so again and again while a node takes requests."""
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._loop.call_later(_LOOK_S, self.look)
        now_s, led = self._loop.time(), self._led()
        self._unled = {kind: self._unled.get(kind, now_s) for kind, is_led in led.items() if not is_led}
        if now_s - self._asked_s >= _ASK_S:
            self._asked_s = now_s
            self._ask()
        away = {kind for kind, since_s in self._unled.items() if now_s - since_s >= _UNLED_S}
        kinds = {kind: ClientState.SUSPENDED if kind in away else ClientState.CONNECTED for kind in led}
        self._change(ClientState.SUSPENDED if away else ClientState.CONNECTED, kinds)

    def down(self) -> None:
        """No node takes requests."""
        self._alone_from_s = self._loop.time()
        if self.state is not ClientState.LOST:
            self._stop()
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
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _change(self, state: ClientState, kinds: dict[str, ClientState] | None = None) -> None:
        if kinds is None:
            kinds = dict.fromkeys(self.kinds, state)
        before, self.state = self.state, state
        is_news, self.kinds = (state, kinds) != (before, self.kinds), kinds
        if is_news:
            self._tell(state, kinds)
        if state is before:
            return
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception:  # noqa: BLE001 - the program's own
                log.exception("a listener of the client's state has failed")
