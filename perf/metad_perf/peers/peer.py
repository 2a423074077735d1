"""The seam of ``metad-perf compare``: what a system must offer to be measured beside metad.

A :class:`Peer` is the system's nodes: three of our own, or those of a running server. A :class:`Client` is one
process's connections to them. It makes :class:`Call` objects before the clock starts, encoded as far as the system's
protocol allows; to measure is to await them. One contract suite checks every peer against the real system
(``tests/contract/test_peers.py``).

**Words.** A *key* has a value. A *session* has properties, which are bytes, and an owner, which is a broker's name. A
*lapsing* session ends by itself when nobody has kept it alive for its time to live. A *batch* is what the system does
best with many items: one transaction if it has such, otherwise requests that are sent together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from ..errors import PerfError, UsageError
from ..spawn import cpu_s, rss_bytes

Record = tuple[str, bytes]
"""A key with its value, or a session with its properties."""
LAPSING_S = 5
"""Time to live of lapsing sessions."""
CALL_TIMEOUT_S = 30.0
"""A call that takes longer has failed."""


class Answer(msgspec.Struct, frozen=True):
    """What came back. ``failed`` names why, once for each item that failed. ``values`` are by position of the call's
    items if the call reads; None: there is no such record."""

    failed: Sequence[str] = ()
    values: Sequence[bytes | None] = ()
    before: Sequence[bytes | None] = ()
    """Who owned each session before a takeover, by position, where the system says so."""


Call = Callable[[], Awaitable[Answer]]
"""Sends its request and waits for the answer. It may be awaited again and again, but not twice at once. Failures are in
the answer, lost connections included; nothing is raised for them."""


class PeerError(PerfError):
    """A peer answered what its protocol does not allow, or no connection can be made."""

    name = "peer"


class MissingError(UsageError):
    """A peer is not installed."""


class Client(Protocol):
    """One process's connections. Each method makes a call for a batch of items; a batch of one is a single request. A
    batch names no item twice."""

    def insert(self, records: Sequence[Record]) -> Call:
        """Write keys that do not exist."""

    def put(self, records: Sequence[Record]) -> Call:
        """Write keys that exist, without a condition."""

    def get(self, keys: Sequence[str]) -> Call:
        """Read keys; the answer has their values."""

    def delete(self, keys: Sequence[str]) -> Call:
        """Delete keys that exist."""

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """Store sessions that do not exist, with their properties and their owner."""

    def enter(self, owner: str) -> Call:
        """Begin a life of a broker with this client. What the life has taken over, an earlier one of the same broker
        cannot take from it, where the system is ``fenced`` (:class:`~metad_perf.peers.catalog.Kind`)."""

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """Make ``owner``, which has entered, the owner of sessions that exist; the answer has their properties and,
        where the system is ``fenced``, who owned them before. No other call may change an owner half."""

    def owners(self, sessions: Sequence[str]) -> Call:
        """Read who owns these sessions; the answer has their names."""

    def begin(self, sessions: Sequence[Record]) -> Call:
        """Store lapsing sessions that do not exist."""

    def alive(self, sessions: Sequence[str]) -> Call:
        """Read lapsing sessions; the answer has their properties."""

    def end(self, sessions: Sequence[str]) -> Call:
        """End lapsing sessions that exist."""

    async def abandon(self) -> None:
        """Stop to keep alive what this client began; it ends after :data:`LAPSING_S`, or soon after that. The client
        can do nothing more."""


class Peer(Protocol):
    """The nodes of a system."""

    def start(self) -> None:
        """Start the nodes and return when they can serve. Raises ServerError."""

    def endpoints(self) -> str:
        """What a client connects to: host:port of every node, separated by commas, the leader first if there is one."""

    def settings(self) -> dict[str, object]:
        """What a reader must know of the running system: its version, number of nodes, whether an answered write is on
        disk, flags."""

    def cpu_us(self) -> int:
        """User and system time of all nodes so far; 0 if it cannot be known."""

    def rss_bytes(self) -> int:
        """Memory of all nodes now; 0 if it cannot be known."""

    def kill_leader(self) -> None:
        """SIGKILL to the node that leads. Raises UsageError if the nodes are not ours."""

    def stop(self) -> None:
        """End the nodes in good order if possible, and in any case."""


OpenClient = Callable[[str, int], AbstractAsyncContextManager[Client]]
"""Opens a client of the endpoints; the number tells how many calls are in flight at most."""
MakePeer = Callable[[Path], Peer]
"""Makes a peer whose nodes keep their data in that directory."""


class Lifeless:
    """Base of a client whose brokers need not enter: no epoch is checked, or each takeover names it."""

    def enter(self, owner: str) -> Call:
        """Nothing."""
        return _nothing


async def _nothing() -> Answer:
    return Answer()


async def checked(call: Call) -> Answer:
    """The answer of a call that must not fail. Raises PeerError."""
    answer = await call()
    if answer.failed:
        raise PeerError(f"{len(answer.failed)} items failed: {answer.failed[0]}")
    return answer


class Endpoints:
    """A running system that we neither started nor may end; ``pids`` of its processes, if they are known."""

    def __init__(self, endpoints: str, pids: Sequence[int] = ()) -> None:
        self._endpoints, self._pids = endpoints, pids

    def start(self) -> None:
        """It runs."""

    def endpoints(self) -> str:
        """As they were given."""
        return self._endpoints

    def settings(self) -> dict[str, object]:
        """What was said of it; nobody has looked at its durability."""
        return {"endpoints": self._endpoints, "nodes": self._endpoints.count(",") + 1}

    def cpu_us(self) -> int:
        """Of the processes that are known."""
        return round(1e6 * cpu_s(self._pids))

    def rss_bytes(self) -> int:
        """Of the processes that are known."""
        return rss_bytes(self._pids)

    def kill_leader(self) -> None:
        """Not ours to kill."""
        raise UsageError("only nodes that compare has started can be killed")

    def stop(self) -> None:
        """It goes on."""


@asynccontextmanager
async def opened(open_client: OpenClient, endpoints: str, in_flight: int = 1) -> AsyncIterator[Client]:
    """A client, for short work."""
    async with open_client(endpoints, in_flight) as client:
        yield client
