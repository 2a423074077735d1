"""Evidence that a broker is dead before its lease is over: its connection has ended, and its host refuses a new one.
Pure: time is an argument.

A process that dies takes its listeners with it, and its host then refuses whoever dials them. That is evidence and no
proof: a firewall that rejects looks the same. A fence of a living broker breaks nothing, but it costs that broker all
its clients. So the evidence counts only where all of this holds, and silence decides everywhere else:

- the broker has asked for it, with a port at its registration; and this very port was reached before, in this life, at
  the host that its heartbeats come from: what rejects always is no evidence;
- the peer has ended the connection that brought the heartbeats, not this node, and no other connection has brought any;
- for :data:`GRACE_S` nothing is heard of the life, and nobody connects from its host: who has only lost a connection
  is back by then;
- the dial is refused. No answer is none;
- the service was well all the while: this node turned nobody away and did not stand still, and has known the life for a
  whole lease as the leader, so that nobody is judged who could not reach it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

GRACE_S = 1.0
"""From the end of the connection to the dial. Clients whose brokers ask for this connect again at once."""
HEARD_S = 0.1
"""From the refusal to the end of the life, for heartbeats that have arrived and wait for their turn."""
DIALS_MAX = 64
"""At a time, to learn which ports can be reached. Who finds no room is dialled after a later heartbeat."""


class Answer(enum.Enum):
    """What comes of a dial."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The host says that nobody listens."""
    UNKNOWN = "unknown"
    """Nothing was heard, or the host could not be reached."""


class Dial(NamedTuple):
    """A life of a broker that is to be dialled. ``suspicion`` is the number of the one that the dial is about; 0: it is
    to learn whether the port can be reached."""

    broker: str
    epoch: int
    host: str
    port: int
    suspicion: int


class _Life:
    __slots__ = ("epoch", "from_s", "port", "reached", "refused_s", "sources", "suspected_s", "suspicion", "tried")

    def __init__(self, epoch: int, port: int, from_s: float) -> None:
        self.epoch = epoch
        self.port = port
        self.from_s = from_s
        self.sources: dict[object, str] = {}  # those that brought heartbeats and are up -> the host at the other end
        self.tried: object = None  # the source whose host was dialled last
        self.reached = ""  # the host whose port was reached
        self.suspicion = 0  # its number, 0: there is none
        self.suspected_s: float | None = None  # when the dial of this suspicion is due: it counts from then
        self.refused_s: float | None = None

    def trust(self) -> None:
        self.suspicion, self.suspected_s, self.refused_s = 0, None, None


class Evidence:
    """Of the lives that a leader of metadata-0 knows. A source is a client's connection."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._brokers: dict[object, set[str]] = {}  # by source
        self._suspected: dict[str, None] = {}
        self._suspicions = 0
        self._dials = 0

    def add(self, broker: str, epoch: int, port: int, from_s: float) -> None:
        """A life has begun, or begins to be known here. Before ``from_s`` no end of a connection counts."""
        self.remove(broker)
        if port:
            self._lives[broker] = _Life(epoch, port, from_s)

    def remove(self, broker: str) -> None:
        """A life is over."""
        life = self._lives.pop(broker, None)
        self._suspected.pop(broker, None)
        for source in () if life is None else life.sources:
            self._forget(source, broker)

    def heard(self, broker: str, source: object, host: str) -> Dial | None:
        """A heartbeat of a life came from a source at this host. Returns what to dial, to learn whether it can be."""
        life = self._lives.get(broker)
        if life is None:
            return None
        life.trust()
        self._suspected.pop(broker, None)
        life.sources[source] = host
        self._brokers.setdefault(source, set()).add(broker)
        if not host or life.tried == source or self._dials >= DIALS_MAX:
            return None
        life.tried = source
        if life.reached == host:
            return None
        self._dials += 1
        return Dial(broker, life.epoch, host, life.port, 0)

    def ended(self, source: object, *, by_peer: bool, now_s: float) -> None:
        """A source is down. ``by_peer``: the other end has closed it, or its host has reset it."""
        for broker in self._brokers.pop(source, ()):
            life = self._lives[broker]
            host = life.sources.pop(source)
            if by_peer and not life.sources and life.reached == host and now_s >= life.from_s:
                self._suspicions += 1
                life.suspicion, life.suspected_s = self._suspicions, now_s + GRACE_S
                self._suspected[broker] = None

    def came(self, host: str) -> None:
        """Somebody has connected from there: it may be who is suspected, and what it says may wait for its turn."""
        for broker in [broker for broker in self._suspected if self._lives[broker].reached == host]:
            self._lives[broker].trust()
            del self._suspected[broker]

    def excuse(self) -> None:
        """The service was not well: whoever is suspected may have tried to be heard."""
        for broker in self._suspected:
            self._lives[broker].trust()
        self._suspected.clear()

    def due(self, now_s: float) -> list[Dial]:
        """Whom to dial now, each once."""
        found = []
        for broker in self._suspected:
            life = self._lives[broker]
            if life.suspected_s is not None and now_s >= life.suspected_s:
                life.suspected_s = None
                found.append(Dial(broker, life.epoch, life.reached, life.port, life.suspicion))
        return found

    def answered(self, dial: Dial, answer: Answer, now_s: float) -> None:
        """A dial has ended."""
        if not dial.suspicion:
            self._dials -= 1
        life = self._lives.get(dial.broker)
        if life is None or life.epoch != dial.epoch:
            return
        if not dial.suspicion:
            if answer is Answer.ACCEPTED:
                life.reached = dial.host
        elif life.suspicion == dial.suspicion:  # or it was heard of meanwhile
            if answer is Answer.REFUSED:
                life.refused_s = now_s
            else:
                life.trust()
                self._suspected.pop(dial.broker, None)

    def over(self, now_s: float) -> list[str]:
        """Hand out the brokers whose lives are over, each once."""
        found = [
            broker
            for broker in self._suspected
            if (refused_s := self._lives[broker].refused_s) is not None and now_s >= refused_s + HEARD_S
        ]
        for broker in found:
            self._lives[broker].trust()
            del self._suspected[broker]
        return found

    def _forget(self, source: object, broker: str) -> None:
        brokers = self._brokers.get(source)
        if brokers is not None:
            brokers.discard(broker)
            if not brokers:
                del self._brokers[source]
