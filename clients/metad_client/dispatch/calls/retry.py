"""Decides whether and when a failed attempt is retried, and otherwise which error the caller gets. Pure.

Reads and writes are retried alike: a write carries an identity, so it happens once however often it is sent.
"""

from __future__ import annotations

import random

from metad_wire.policy import Backoff, RetryBudget

from ...errors import ConnectionLostError, DeadlineExceededError, MetadError, OverloadedError
from .call import Call


def lost(error: MetadError) -> ConnectionLostError:
    """The end of a connection as its calls see it: whatever the cause, another connection may answer them."""
    return error if isinstance(error, ConnectionLostError) else ConnectionLostError(str(error))


class SharedBudget:
    """The retries that all calls of a client may make together. Times are of the event loop's clock, in seconds."""

    def __init__(self, policy: RetryBudget) -> None:
        self._policy = policy
        self._clock_us = 0

    def due(self, wanted: float) -> float:
        """When a retry that is wanted at ``wanted`` may be made."""
        return max(wanted, self._policy.reserve_us(round(wanted * 1e6), self._clock_us)[0] / 1e6)

    def take(self, wanted: float) -> None:
        """Count a retry that will be made."""
        _, self._clock_us = self._policy.reserve_us(round(wanted * 1e6), self._clock_us)


def verdict(
    call: Call,
    error: MetadError,
    now: float,
    backoff: Backoff,
    rng: random.Random,
    budget: SharedBudget | None = None,
) -> float | MetadError:
    """The time of the next attempt, or the error that ends the call.

    A call that another node may do waits until its deadline, even if its own next attempt would be later: the wait ends
    early once a leader is known (:meth:`.retries.Retries.hurry`). Any other call ends as soon as no attempt fits, with
    the time at which it may come back if the server gave it one. A retry to which a server invited the call takes no
    token of the budget, and waits for none: it would miss its slot, which nobody else gets.
    """
    if not error.retryable:
        # "Nothing was done" holds for one attempt only.
        return deadline_error(call, None) if isinstance(error, DeadlineExceededError) and call.in_doubt else error
    if error.retry_after_ms and backoff.retry_after == "honour":
        due = now + backoff.returning_s(error.retry_after_ms, error.retry_jitter_ms, rng)
        if isinstance(error, OverloadedError):
            budget = None
    else:
        due = now + backoff.delay_s(max(0, call.attempts - 1), rng)
    wanted = due
    if budget is not None:
        due = budget.due(wanted)
    if due < call.deadline:
        if budget is not None:
            budget.take(wanted)
        return due
    if call.group and call.astray:
        return due
    # No attempt fits before the deadline. An error that says "nothing was done" is worth more than a timeout,
    # but only if no earlier attempt is in doubt.
    if error.outcome_known and not call.in_doubt:
        return error
    late = deadline_error(call, error)
    late.retry_after_ms, late.retry_jitter_ms = error.retry_after_ms, error.retry_jitter_ms
    return late


def deadline_error(call: Call, cause: MetadError | None) -> DeadlineExceededError:
    """The error of a caller whose time is up; ``cause`` is the last known obstacle."""
    name, known = call.method.name, True
    # What the last attempt did is not what all of them did.
    why = "" if cause is None else f" ({str(cause).removesuffix('.').removesuffix('; nothing was done')})"
    if call.attempts == 0:
        text = f"{name}: the deadline passed before it could be sent{why}; nothing was done"
    elif not call.method.changes:
        text = f"{name}: the deadline passed without an answer{why}"
    elif call.unanswered:
        known = False
        text = f"{name}: the deadline passed without an answer{why}; the write may have happened"
    else:
        text = f"{name}: the deadline passed{why}; the write did not happen"
    error = DeadlineExceededError(text, outcome_known=known)
    error.__cause__ = cause
    return error
