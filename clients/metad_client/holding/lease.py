"""A lease that the program holds: granted, kept alive, given back."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Protocol, Self

from metad_wire.messages import Kv, KvKey

from ..dispatch.reports import log
from ..errors import ClosedError, DeadlineExceededError, InvalidRequestError, MetadError, NotFoundError
from ..namespaces.kv import KeyValue
from ..namespaces.leases import Leases
from ..requests.behind import Behind
from ..watch.watch import Watch
from .belief import LeaseState
from .kept_alive import KeptAlive
from .lock import Attempt, Lock, Turns

_TTL_S_MIN, _TTL_S_MAX = 0.5, 24 * 3600.0
_DEADLINE_S_MIN = 0.1
_AGAIN_S_MIN, _AGAIN_S_MAX = 0.2, 5.0
"""How long to wait before a key that could not be freed is tried again."""


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
        self._turns = Turns()
        self._opening = asyncio.Lock()
        self._closed = False
        self._behind = Behind(self, "metad-lease")

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
        """Have the lease granted, and begin to keep it alive. If this is cancelled, a lease that was granted by then is
        given back. Raises a MetadError, ClosedError if it was closed."""
        async with self._opening:
            if self._alive.belief is None:
                unwanted = asyncio.Event()
                granting = self._behind.go_on(self._grant(unwanted))
                try:
                    await asyncio.shield(granting)
                except asyncio.CancelledError:
                    unwanted.set()
                    if self._alive.belief is not None:  # in this very moment
                        self._behind.go_on(self.close())
                    raise
        return self

    async def _grant(self, unwanted: asyncio.Event) -> None:
        sent_s = self._now()
        name = await self._leases.grant(
            self.namespace, math.ceil(self._ttl_s * 1000), holder=self._holder, attributes=self._attributes
        )
        if self._closed or unwanted.is_set():
            await self._leases.revoke(self.namespace, name, deadline_s=self._deadline_s)
            raise ClosedError("the lease was closed while it was granted")
        self._name = name
        self._alive.begin(sent_s)

    async def lost(self) -> None:
        """Wait until the lease is LOST."""
        await self._lost.wait()

    async def close(self) -> None:
        """Give the lease back: its keys are deleted. Safe to call again. A lease that cannot be given back ends when
        its time is over."""
        self._closed = True
        self._alive.stop()
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
        read of it. Raises DeadlineExceededError after ``timeout_s``, NotFoundError once the lease is over. What is
        under way then is given back: the key may be taken for a moment more."""
        if timeout_s is not None and (not isinstance(timeout_s, int | float) or not timeout_s > 0):
            raise InvalidRequestError(f"timeout_s: expected more than 0, or None, got {timeout_s!r}")
        if not isinstance(key, str):
            raise InvalidRequestError(f"key: expected str, got {type(key).__name__}")
        if self._alive.belief is None:
            raise InvalidRequestError("the lease is not granted yet: enter it, or await opened() first")
        attempt = Attempt(self._kv, self._open_watch, self.namespace, key, value, self._name)
        taking = self._behind.go_on(self._take(key, attempt))
        over = asyncio.get_running_loop().create_task(self._lost.wait(), name="metad-lock")
        try:
            await asyncio.wait({taking, over}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if taking.done() and (lock := taking.result()) is not None:
                return lock
        except asyncio.CancelledError:
            if taking.done() and not taking.cancelled() and not taking.exception() and (lock := taking.result()):
                self._behind.go_on(self._free(lock, None))
            raise
        finally:
            over.cancel()
            if attempt.is_putting:
                attempt.is_wanted = False  # what was sent is done, whoever waits no longer for the answer
            else:
                taking.cancel()
        if over.done():
            raise NotFoundError(f"lease {self._name} is over")
        if attempt.is_putting:
            raise DeadlineExceededError(f"no answer within {timeout_s} s whether {key} is free", outcome_known=False)
        raise DeadlineExceededError(f"others have had {key} for {timeout_s} s", outcome_known=True)

    async def _take(self, key: str, attempt: Attempt) -> Lock | None:
        """Have the key; None if nobody wants it any more by then, and it was given back."""
        await self._turns.take(key)
        looks = False  # whether somebody goes on to look for it
        lock: Lock | None = None
        try:
            lock = self._lock(await attempt.won())
        except NotFoundError:
            self._alive.lose()
            raise
        except MetadError as error:
            looks = attempt.is_putting and not error.outcome_known
            if looks:
                self._behind.go_on(self._look_for(key, attempt))
            raise
        finally:
            if lock is None and not looks:
                self._turns.give(key)
        if attempt.is_wanted:
            return lock
        await self._free(lock, None)
        return None

    async def _look_for(self, key: str, attempt: Attempt) -> None:
        """Give back a key that may have been put."""
        record = None
        try:
            record = await attempt.found()
        finally:
            if record is None:
                self._turns.give(key)
        if record is not None:
            await self._free(self._lock(record), None)

    def _lock(self, record: Kv) -> Lock:
        return Lock(self, self._kv, record, lambda: self._turns.give(record.key))

    def _free_soon(self, lock: Lock, deadline_s: float | None) -> asyncio.Future[None]:
        """See :class:`.lock.Holder`."""
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._behind.go_on(self._free(lock, deadline_s, tried))
        return tried

    async def _free(self, lock: Lock, deadline_s: float | None, tried: asyncio.Future[None] | None = None) -> None:
        """Delete the key of a lock, as often as it takes. ``tried`` is told how the first attempt ended."""
        again_s = _AGAIN_S_MIN
        try:
            while self.state is not LeaseState.LOST:
                error = await _outcome(lock._delete(deadline_s=deadline_s))
                if tried is not None and not tried.done():
                    tried.set_result(None) if error is None else tried.set_exception(error)
                if error is None or isinstance(error, ClosedError):
                    return
                log.info("%r cannot be released, and is tried again: %s", lock, error)
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, _AGAIN_S_MAX)
        finally:
            lock._freed()
            if tried is not None and not tried.done():  # the lease is over, and its keys are deleted
                tried.set_result(None)

    # --- alive -------------------------------------------------------------------------------------------

    @property
    def _deadline_s(self) -> float:
        return max(_DEADLINE_S_MIN, self._ttl_s)

    async def _speak(self, sent_s: float) -> None:
        try:
            ttl_ms = await self._leases.keep_alive(self.namespace, self._name, deadline_s=self._deadline_s)
        except MetadError:
            return  # the next tick speaks again, and doubts meanwhile
        self._alive.answered(sent_s, ttl_ms / 1000)


async def _outcome(work: Coroutine[Any, Any, None]) -> MetadError | None:
    try:
        await work
    except MetadError as error:
        return error
    return None
