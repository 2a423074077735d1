"""Request identities: they record which writes of this client are unanswered, so that a retried write happens once.
Pure.

A server remembers the answers of a client's writes from ``low`` on, so ``low`` must not pass a write that may still be
retried. A number is taken when a write is first sent and released when its caller has an outcome.
"""

from __future__ import annotations

from metad_wire.messages import Identity


class IdentitySource:
    """The identities of one client's lifetime. ``client_id`` is a random u64."""

    def __init__(self, client_id: int) -> None:
        self.client_id = client_id
        self._next = 1
        self._low = 1
        self._unanswered: set[int] = set()

    @property
    def low(self) -> int:
        """The lowest unanswered number, or the next one if all are answered."""
        # Each number is stepped over once in the client's life, so this is constant time, amortised.
        low, unanswered = self._low, self._unanswered
        while low < self._next and low not in unanswered:
            low += 1
        self._low = low
        return low

    def take(self) -> int:
        """A number for a write that is about to be sent for the first time."""
        seq = self._next
        self._next = seq + 1
        self._unanswered.add(seq)
        return seq

    def release(self, seq: int) -> None:
        """The write will not be sent again."""
        self._unanswered.discard(seq)

    def identity(self, seq: int, age_ms: int) -> Identity:
        """The identity that travels with the write. ``age_ms`` is 0 on the first attempt only."""
        return Identity(self.client_id, seq, self.low, age_ms)


class GivenIdentity(IdentitySource):
    """The identity of one write that its program has named, so that another process can repeat the write. ``age_ms``:
    for how long it may have been tried already; 0: it was not."""

    def __init__(self, client_id: int, seq: int, low: int, age_ms: int = 0) -> None:
        super().__init__(client_id)
        self._seq = seq
        self._low = low
        self._age_ms = age_ms

    def take(self) -> int:
        """Its number."""
        return self._seq

    def release(self, seq: int) -> None:
        """Somebody may repeat it yet."""

    def identity(self, seq: int, age_ms: int) -> Identity:
        """The identity that travels with the write."""
        return Identity(self.client_id, seq, self._low, age_ms + self._age_ms)
