"""Runs coroutines so that SIGTERM ends a command in good order: servers killed, directories removed, what was done
printed, exit code 143.

Outside of an event loop, a plain signal handler that raises an exception would do. Inside of one the exception may come
up in the middle of a transport's callback, where loops report it and continue.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
EXIT_TERMINATED = 128 + signal.SIGTERM


def exit_on_sigterm() -> None:
    """From now on SIGTERM raises SystemExit, outside of :func:`run_async`."""
    signal.signal(signal.SIGTERM, _terminated)


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Like ``asyncio.run``; SIGTERM cancels it and then raises SystemExit. In another thread than the main one, which
    alone can hear signals, it is ``asyncio.run``."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    terminated, before = False, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL

    async def cancelled_by_sigterm() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        loop.add_signal_handler(signal.SIGTERM, cancel)
        try:
            return await main
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)

    try:
        return asyncio.run(cancelled_by_sigterm())
    except asyncio.CancelledError:
        if terminated:
            sys.exit(EXIT_TERMINATED)
        raise


def _terminated(_signal: int, _frame: object) -> NoReturn:
    sys.exit(EXIT_TERMINATED)
