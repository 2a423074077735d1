"""What goes on behind whoever asked for it, because nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..dispatch.reports import log

T = TypeVar("T")


class Behind:
    """Work that gives back what nobody has. It ends with the client, whose requests it makes."""

    def __init__(self, of: object, name: str) -> None:
        self._of = of
        self._name = name  # of the tasks
        self._tasks: set[asyncio.Task[Any]] = set()

    def go_on(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do it, and log why if it fails. Who is cancelled begins nothing new: what may have to be given back goes
        on behind it from the start."""
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def over(self) -> None:
        """Wait until all of it has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("%r could not give back what it was not to have: %r", self._of, error)
