"""What programs that this process starts inherit of its signals."""

from __future__ import annotations

import signal
import threading
from typing import Final

_TOLD: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def default_for_children() -> None:
    """Let children begin with the default action of the signals that end a program. A shell has what it puts into the
    background ignore them, and whatever ignores a signal hands that on; a handler is not handed on. So this process
    goes on to ignore them, by a handler. A hang-up that is ignored, as by nohup, is meant for children, too."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _TOLD:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignored)


def _ignored(number: int, frame: object) -> None:
    """As before."""
