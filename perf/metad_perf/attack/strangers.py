"""Who may not come in tries to, again and again: the loop of all such attacks; how they meet the server is theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from metad_wire.transport.credentials import TlsFiles

from .peer import Outcome


def strangers(kinds: Sequence[TlsFiles], until_s: float, meet: Callable[[TlsFiles], int]) -> Outcome:
    """Nobody may be let in. Each kind once at least, in turn. ``meet`` shakes hands, says
    HELLO, and returns how many welcomes and answers it heard."""
    tried = let_in = 0
    while time.monotonic() < until_s or tried < len(kinds):
        let_in += meet(kinds[tried % len(kinds)])
        tried += 1
    return Outcome(tried, f"{let_in} were let in" if let_in else "")
