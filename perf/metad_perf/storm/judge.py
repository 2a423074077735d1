"""Whether a session is what it must be, when its client comes back and in the end. Pure.

Columns of a batch are compared as a whole first: a batch in which all is right costs one comparison of lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from metad_wire.messages import Owner

GONE: Final = "gone"
"""There is no session, although nothing has ended it."""
DAMAGED: Final = "damaged"
"""Its properties, subscriptions or messages are not those that were stored."""
WRONG_OWNER: Final = "wrong_owner"
"""It belongs, or belonged before, to another life of a broker than it must."""
NOT_ENDED: Final = "not_ended"
"""It was to end, and is there."""
EXAMPLES: Final = 5


class Verdict(msgspec.Struct, frozen=True):
    """Sessions that are wrong, by what is wrong, and some of them in words."""

    faults: dict[str, int] = {}
    examples: list[str] = []

    def plus(self, other: Verdict) -> Verdict:
        """Both."""
        return Verdict(dict(Counter(self.faults) + Counter(other.faults)), [*self.examples, *other.examples][:EXAMPLES])


class Found(msgspec.Struct, frozen=True):
    """A session as it was found. ``stored``: its payload, filters and messages; None if there is no session."""

    owner: Owner | None
    stored: object


class Judge:
    """Counts each client at most once."""

    def __init__(self) -> None:
        self._wrong: dict[int, str] = {}
        self._examples: list[str] = []

    def batch(
        self,
        numbers: Sequence[int],
        owners: Sequence[Sequence[Owner]],
        stored: Sequence[object],
        found: Sequence[Found],
        when: str,
    ) -> None:
        """Clients with the owners that are right for them, what must be stored, and what was found."""
        for number, right, must, is_ in zip(numbers, owners, stored, found, strict=True):
            if is_.owner is None or is_.stored is None:
                self._note(number, GONE, f"client {number} {when}: its session is gone")
            elif is_.owner not in right:
                self._note(number, WRONG_OWNER, f"client {number} {when}: owned by {is_.owner}, not one of {right}")
            elif is_.stored != must:
                self._note(number, DAMAGED, f"client {number} {when}: stored is {is_.stored!r:.200}, not {must!r:.200}")

    def not_ended(self, number: int) -> None:
        """The session of this client was to end, and is there."""
        self._note(number, NOT_ENDED, f"client {number} at the end: its session was to end")

    def verdict(self) -> Verdict:
        """What was wrong."""
        return Verdict(dict(Counter(self._wrong.values())), self._examples)

    def _note(self, number: int, fault: str, text: str) -> None:
        if number not in self._wrong:
            self._wrong[number] = fault
            if len(self._examples) < EXAMPLES:
                self._examples.append(text)
