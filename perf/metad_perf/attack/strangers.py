"""The loop of all attacks by strangers, who try again and again to be admitted; each attack supplies the meeting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from metad_wire.transport.credentials import TlsFiles

from .peer import Outcome


def strangers(kinds: Sequence[TlsFiles], until_s: float, meet: Callable[[TlsFiles], int]) -> Outcome:
    """Try each kind of certificate in turn, each at least once; none may be admitted. ``meet`` shakes hands, sends
    HELLO, and returns the number of welcomes and answers it got."""
    tried = let_in = 0
    while time.monotonic() < until_s or tried < len(kinds):
        let_in += meet(kinds[tried % len(kinds)])
        tried += 1
    return Outcome(tried, f"{let_in} were let in" if let_in else "")
