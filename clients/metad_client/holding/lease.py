"""A lease that the program holds: granted, kept alive, given back."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from metad_wire.messages import KvKey

from ..errors import ClosedError, DeadlineExceededError, InvalidRequestError, MetadError, NotFoundError
from ..namespaces.kv import KeyValue
from ..namespaces.leases import Leases
from ..watch.watch import Watch
from . import lock as locks
from .belief import LeaseState
from .kept_alive import KeptAlive
from .lock import Lock

_TTL_S_MIN, _TTL_S_MAX = 0.5, 24 * 3600.0
_DEADLINE_S_MIN = 0.1


class OpenWatch(Protocol):
    """Opens a watch of one key, with the record as it is."""

    def __call__(self, key: KvKey) -> Watch: ...


class HeldLease:
    """A lease that is kept alive by itself until it is closed::

        async with m.hold("jobs", ttl_s=10, holder="worker-7") as lease:
            await m.kv.put("jobs", "worker/7", b"here", lease=lease.name)  # gone when the program is
            async with await lease.lock("nightly") as lock:
                work(fence=lock.token)

    Look at :attr:`state` before each use: after SUSPENDED the lease may be CONNECTED again, after LOST it is over, and
    what was attached to it is gone or about to be.
    """

    def __init__(
        self,
        leases: Leases,
        kv: KeyValue,
        open_watch: OpenWatch,
        namespace: str,
        *,
        ttl_s: float,
        holder: str,
        attributes: bytes,
        now: Callable[[], float],
    ) -> None:
        if not isinstance(ttl_s, int | float) or not _TTL_S_MIN <= ttl_s <= _TTL_S_MAX:
            raise InvalidRequestError(f"ttl_s: expected {_TTL_S_MIN} to {_TTL_S_MAX:.0f}, got {ttl_s!r}")
        self.namespace: Final = namespace
        self._leases = leases
        self._kv = kv
        self._open_watch = open_watch
        self._ttl_s = float(ttl_s)
        self._holder = holder
        self._attributes = attributes
        self._now = now
        self._name = ""
        self._lost = asyncio.Event()
        self._alive = KeptAlive(
            self._ttl_s, now, self._speak, self._lost.set, told=LeaseState.CONNECTED, name="metad-lease"
        )
        self._turns: dict[str, asyncio.Lock] = {}  # of locks: the tasks of one holder take turns
        self._undoing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<HeldLease {self.namespace}/{self._name}>"

    @property
    def name(self) -> str:
        """Of the lease: what ``kv.put(..., lease=)`` takes. Empty until it is granted."""
        return self._name

    @property
    def state(self) -> LeaseState:
        """What may be believed now: look before each use."""
        return self._alive.state

    def on_state(self, listener: Callable[[LeaseState], None]) -> Callable[[], None]:
        """Call ``listener`` with each new :attr:`state`, as soon as it is noticed, in the client's own thread. Returns
        what ends that."""
        return self._alive.on_state(listener)

    async def opened(self) -> Self:
        """Have the lease granted, and begin to keep it alive. Raises a MetadError."""
        if self._alive.belief is not None:
            return self
        sent_s = self._now()
        self._name = await self._leases.grant(
            self.namespace, math.ceil(self._ttl_s * 1000), holder=self._holder, attributes=self._attributes
        )
        self._alive.begin(sent_s)
        return self

    async def lost(self) -> None:
        """Wait until the lease is LOST."""
        await self._lost.wait()

    async def close(self) -> None:
        """Give the lease back: its keys are deleted. Safe to call again. A lease that cannot be given back ends when
        its time is over."""
        self._alive.stop()
        for task in self._undoing:
            task.cancel()
        if self._alive.lose():
            with contextlib.suppress(NotFoundError, ClosedError):
                await self._leases.revoke(self.namespace, self._name, deadline_s=self._deadline_s)

    async def __aenter__(self) -> Self:
        return await self.opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- locks -------------------------------------------------------------------------------------------

    async def lock(self, key: str, value: bytes = b"", *, timeout_s: float | None = None) -> Lock:
        """Wait until no other has the key, and have it: a lock, or the lead of an election. ``value`` is what others
        read of it. Raises DeadlineExceededError after ``timeout_s``, NotFoundError if the lease is over."""
        turn = self._turns.setdefault(key, asyncio.Lock())
        try:
            async with asyncio.timeout(timeout_s):
                await turn.acquire()
                try:
                    record = await locks.acquired(self._kv, self._open_watch, self.namespace, key, value, self._name)
                except BaseException as error:
                    self._give_up(key, turn)
                    if isinstance(error, NotFoundError):
                        self._alive.lose()
                    raise
        except TimeoutError:
            raise DeadlineExceededError(f"others have had {key} for {timeout_s} s", outcome_known=True) from None
        return Lock(self, self._kv, turn, record)

    def _give_up(self, key: str, turn: asyncio.Lock) -> None:
        """The caller waits no longer. It may have the key already, unknown to it: then it is given back."""

        async def undo() -> None:
            try:
                with contextlib.suppress(MetadError):
                    await locks.given_up(self._kv, self.namespace, key, self._name)
            finally:
                turn.release()

        task = asyncio.get_running_loop().create_task(undo(), name="metad-lock")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    # --- alive -------------------------------------------------------------------------------------------

    @property
    def _deadline_s(self) -> float:
        return max(_DEADLINE_S_MIN, self._ttl_s)

    async def _speak(self, sent_s: float) -> None:
        try:
            ttl_ms = await self._leases.keep_alive(self.namespace, self._name, deadline_s=self._deadline_s / 2)
        except MetadError:
            return  # the next tick speaks again, and doubts meanwhile
        self._alive.answered(sent_s, ttl_ms / 1000)
