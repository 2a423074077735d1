"""Tells the log and the observer what happens to connections and requests, and counts what is no request's end.

The logger is ``metad_client``, silent until the program configures logging. Connections are INFO, what goes wrong with
them WARNING, each request that is retried or redirected DEBUG. Requests' contents and credentials are never logged.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ..errors import MetadError
from ..observer import Begun, Connected, Disconnected, Ended, Observer, Redirected, Retried, StateChanged, Trace
from .calls.call import Call

log = logging.getLogger("metad_client")
log.addHandler(logging.NullHandler())  # without it, warnings of a program that configures no logging go to stderr

Event = TypeVar("Event")
Answer = TypeVar("Answer")


class Reports:
    """The reports of one client. ``observer`` is None if nobody observes: then a request costs one look at it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, observer: Observer | None) -> None:
        self.observer = observer
        self.disconnects = 0
        """Connections that were lost."""
        self.unreachable = 0
        """Attempts to connect that failed."""
        self._loop = loop
        self._failed: set[str] = set()  # methods of the observer that have raised an exception
        self._unreached: set[str] = set()  # nodes and endpoints whose trouble is logged

    # --- connections ---

    def connected(self, node: str, endpoint: str, via: str) -> None:
        """A node takes requests by a new connection."""
        self._unreached -= {f"node {node}", endpoint}
        log.info("connected to node %s at %s over %s", node, endpoint, via)
        if self.observer is not None:
            self._tell(self.observer.connected, Connected(node=node, endpoint=endpoint, via=via))

    def disconnected(self, node: str, endpoint: str, reason: MetadError | None) -> None:
        """A node takes no more requests."""
        if reason is None:
            log.info("the connection to node %s at %s has ended in order", node, endpoint)
        else:
            self.disconnects += 1
            log.warning("the connection to node %s at %s is lost: %s", node, endpoint, reason)
        if self.observer is not None:
            self._tell(self.observer.disconnected, Disconnected(node=node, endpoint=endpoint, reason=reason))

    def unreached(self, where: str, reason: MetadError) -> None:
        """A node or an endpoint could not be connected to. Only the first of consecutive failures is a warning."""
        self.unreachable += 1
        level = logging.DEBUG if where in self._unreached else logging.WARNING
        self._unreached.add(where)
        log.log(level, "cannot connect to %s: %s", where, reason)

    # --- requests ---

    def retried(self, call: Call, reason: MetadError) -> None:
        """There will be another attempt after a wait."""
        if call.meter is not None:
            call.meter.retries[reason.name] += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s of %s is tried again after attempt %d: %s", *_names(call), call.attempts, reason)
        if self.observer is not None:
            event = Retried(
                verb=call.method.name,
                group=call.group or "",
                items=call.items,
                attempts=call.attempts,
                reason=reason,
            )
            self._tell(self.observer.retried, event)

    def redirected(self, call: Call, left: str, to: str) -> None:
        """The next attempt is made at once, by another node."""
        if call.meter is not None:
            call.meter.redirects += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s of %s goes from node %s to node %s", *_names(call), left, to)
        if self.observer is not None:
            event = Redirected(verb=call.method.name, group=call.group or "", left=left, to=to)
            self._tell(self.observer.redirected, event)

    def state_changed(self, state: enum.Enum, kinds: Mapping[str, enum.Enum]) -> None:
        """The client, or a kind of groups, has another state."""
        if self.observer is not None:
            event = StateChanged(state=state.value, kinds={kind: one.value for kind, one in kinds.items()})
            self._tell(self.observer.state_changed, event)

    def watch(self, call: Call) -> None:
        """Tell the observer, which there must be, that the request begins, and how it ends."""
        assert self.observer is not None, "watch() was called without an observer"
        begun = Begun(verb=call.method.name, group=call.group or "")
        trace = self._tell(self.observer.began, begun)
        if trace is not None:
            call.trace = trace.context
        call.future.add_done_callback(partial(self._ended, call, self._loop.time(), trace))

    def _ended(self, call: Call, begun: float, trace: Trace | None, answer: asyncio.Future[Any]) -> None:
        error, refused = None, 0
        if answer.cancelled():
            outcome = "abandoned"
        elif (failure := answer.exception()) is None:
            outcome, refused = "ok", len(getattr(answer.result(), "errors", ()))
        else:
            error = failure if isinstance(failure, MetadError) else None
            outcome = error.name if error is not None else type(failure).__name__
        event = Ended(
            verb=call.method.name,
            group=call.group or "",
            seconds=self._loop.time() - begun,
            attempts=call.attempts,
            outcome=outcome,
            error=error,
            refused=refused,
        )
        assert self.observer is not None, "watch() was called without an observer"
        self._tell(self.observer.ended, event)
        if trace is not None:
            self._tell(trace.ended, event)

    # --- the observer ---

    def _tell(self, method: Callable[[Event], Answer], event: Event) -> Answer | None:
        try:
            return method(event)
        except Exception:
            name = method.__name__
            if name not in self._failed:
                self._failed.add(name)
                log.exception("the observer's %s() raised an exception; this is logged once", name)
            return None


def _names(call: Call) -> tuple[str, str]:
    return call.method.name, call.group or "the cluster"
