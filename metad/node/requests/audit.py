"""What this node has to write to the audit trail: it waits here until ``metadata-0`` has it, and nobody waits for that.

Refusals are put together by principal, and written once a second: whoever asks again and again for what he may not
makes no more than a line a second. All that is written together is a batch. A batch has an identity, so it is not
written twice if it must be sent again. One batch is under way at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from metad_wire.errors import IdentityExpiredError, InvalidRequestError, MetadError, TooLargeError
from metad_wire.messages import Identity
from metad_wire.methods import AUDIT_NOTE
from metad_wire.tables.access import AuditEntry, AuditNote

from ...control.host import Done
from ..environment import Environment, Timer

LINES: Final = 1_000
"""Lines that wait here, about 0.5 MB: then the oldest goes, of the refusals if there are any."""
BATCH: Final = 100
"""Lines that are written together, at most."""
SOON_S: Final = 0.05
"""A line waits so long for others."""
REFUSALS_S: Final = 1.0
"""Refusals wait so long for others of the same principal."""
AGAIN_S: Final = 0.5
"""A batch that was not written is sent again after so long."""
ANSWER_S: Final = 10.0
"""The same where there is no answer."""
_LOST: Final = (IdentityExpiredError, InvalidRequestError, TooLargeError)
"""Sending it again would change nothing."""


class _Line:
    """One that waits."""

    __slots__ = ("entry", "since_s", "times")

    def __init__(self, entry: AuditEntry, since_s: float) -> None:
        self.entry = entry
        self.since_s = since_s
        self.times = entry.times


class _Batch:
    """Lines that are being written."""

    __slots__ = ("began_s", "identity", "lines")

    def __init__(self, lines: list[AuditEntry], identity: Identity, began_s: float) -> None:
        self.lines = lines
        self.identity = identity
        self.began_s = began_s


class AuditQueue:
    """The lines of one node. ``send`` sends an encoded ``audit.note`` to whoever leads ``metadata-0``."""

    def __init__(self, environment: Environment, send: Callable[[bytes, Done], None]) -> None:
        self._environment = environment
        self._send = send
        self._lines: deque[_Line] = deque()  # but for refusals
        self._refused: dict[str, _Line] = {}  # refusals by principal, or host
        self._due: deque[_Line] = deque()  # those that have waited long enough
        self._refusals_s = 0.0  # when the others have
        self._dropped = 0  # requests of which nothing was written
        self._client_id = 0
        self._seq = 0
        self._batch: _Batch | None = None
        self._attempt = 0
        self._timer: Timer | None = None
        self._due_s = 0.0  # when the timer is
        self._stopped = False

    def __len__(self) -> int:
        return self._waiting + (0 if self._batch is None else len(self._batch.lines))

    @property
    def _waiting(self) -> int:
        return len(self._lines) + len(self._refused) + len(self._due)

    def note(self, entry: AuditEntry) -> None:
        """Write a line soon."""
        self._lines.append(_Line(entry, self._environment.now()))
        self._keep_bound()
        self._look_at(self._environment.now() + SOON_S)

    def refused(self, entry: AuditEntry) -> None:
        """Write a line about a refusal within a second, one for all refusals of a principal in this time."""
        party, now_s = entry.who or entry.host, self._environment.now()
        if (known := self._refused.get(party)) is not None:
            known.times += 1
            return
        if not self._refused:
            self._refusals_s = now_s + REFUSALS_S
        self._refused[party] = _Line(entry, now_s)
        self._keep_bound()
        self._look_at(self._refusals_s)

    def stop(self) -> None:
        """Send nothing any more."""
        self._stopped = True
        self._attempt += 1
        if self._timer is not None:
            self._timer.cancel()

    def flush(self) -> None:
        """Do not wait for further lines: the node is about to end."""
        self._refusals_s = self._environment.now()
        self._look_at(self._refusals_s)

    # --- what waits --------------------------------------------------------------------------------------

    def _keep_bound(self) -> None:
        while self._waiting > LINES:
            if self._due:
                line = self._due.popleft()
            else:
                line = self._refused.pop(next(iter(self._refused))) if self._refused else self._lines.popleft()
            self._dropped += line.times

    def _look_at(self, when_s: float) -> None:
        """Look at this time, or before: whether anything is to be sent."""
        if self._stopped or self._batch is not None or (self._timer is not None and self._due_s <= when_s):
            return
        self._call_at(when_s, self._look)

    def _call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = when_s
        self._timer = self._environment.call_at(when_s, callback)

    def _look(self) -> None:
        self._timer = None
        now_s = self._environment.now()
        if now_s >= self._refusals_s:
            self._due += self._refused.values()
            self._refused = {}
        lines: list[AuditEntry] = []
        for waiting in (self._lines, self._due):
            while waiting and len(lines) < BATCH:
                lines.append(self._taken(waiting.popleft(), now_s))
        if lines:
            self._client_id = self._client_id or self._environment.rng.getrandbits(63)
            self._seq += 1
            self._batch = _Batch(lines, Identity(self._client_id, self._seq, self._seq), now_s)
            self._try()
        elif self._refused:
            self._look_at(self._refusals_s)

    def _taken(self, line: _Line, now_s: float) -> AuditEntry:
        dropped, self._dropped = self._dropped, 0
        waited_ms = round(1000 * (now_s - line.since_s))
        return msgspec.structs.replace(line.entry, times=line.times, waited_ms=waited_ms, dropped=dropped)

    # --- what is under way -------------------------------------------------------------------------------

    def _try(self) -> None:
        batch = self._batch
        assert batch is not None
        self._attempt += 1
        now_s = self._environment.now()
        age_ms = 0 if now_s == batch.began_s else int(1000 * (now_s - batch.began_s)) + 1
        identity = msgspec.structs.replace(batch.identity, age_ms=age_ms)
        # It is encoded again for each attempt, and is the same behind its identity.
        payload = AUDIT_NOTE.encode_request(AuditNote(batch.lines), identity=identity)
        self._call_at(now_s + ANSWER_S, self._try)
        self._send(payload, partial(self._answered, self._attempt))

    def _answered(self, attempt: int, answer: bytes | MetadError) -> None:
        if attempt != self._attempt or self._batch is None:
            return  # it was given up
        if isinstance(answer, MetadError) and not isinstance(answer, _LOST):
            self._call_at(self._environment.now() + AGAIN_S, self._try)
            return
        if isinstance(answer, MetadError):  # it may have been written nevertheless
            self._dropped += sum(line.times + line.dropped for line in self._batch.lines)
        self._batch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines or self._due:
            self._look_at(self._environment.now())
        elif self._refused:
            self._look_at(self._refusals_s)
