"""An event loop in virtual time, and processes that share it.

Nothing waits: where no callback is ready, time jumps to the next timer. No thread and no socket exists, so what runs on
it is the same in every run. Each callback takes a microsecond, so that whoever spins does not stop the clock.

A :class:`Process` is everything that was begun in its context, however indirectly: tasks, timers, callbacks. It may be
paused, and killed in the middle of whatever it does, without any code of its own running.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, NoReturn

CALLBACK_S = 1e-6
"""How long each callback takes."""
_TIDY_FROM = 256  # cancelled timers


class StuckError(RuntimeError):
    """Nothing will ever happen again, and somebody waits for it."""


class Process:
    """A simulated process. What runs in :attr:`context` belongs to it."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._loop = loop
        self._backlog: list[asyncio.Handle] = []
        loop.processes.append(self)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have the process do something."""
        return self._loop.create_task(work, context=self.context)

    def kill(self) -> None:
        """Nothing of it happens any more; nothing is told."""
        self.alive = False
        self._backlog.clear()

    def pause(self, seconds: float) -> None:
        """It gets no CPU for a while, and then does what it has missed."""
        if self.alive and not self.paused:
            self.paused = True
            self._loop.call_later(seconds, self._resume, context=self._loop.outside)

    def _resume(self) -> None:
        self.paused = False
        backlog, self._backlog = self._backlog, []
        self._loop.again(backlog)

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether a callback of it may run now."""
        if self.alive and not self.paused:
            return True
        if self.alive:
            self._backlog.append(handle)
        return False


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Handle(asyncio.TimerHandle):
    __slots__ = ("process",)

    def __init__(
        self, when: float, callback: Callable[..., Any], args: Any, loop: VirtualLoop, context: Context | None
    ) -> None:
        if context is None:
            context = copy_context()
        super().__init__(when, callback, args, loop, context)
        self.process = context.get(PROCESS)


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module."""

    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.callbacks = 0
        """That have run."""
        self.callbacks_max = 0
        """More than that is an endless loop; 0: no bound."""
        self.errors: list[dict[str, Any]] = []
        """What escaped from callbacks of living processes."""
        self.processes: list[Process] = []
        self.outside = copy_context()
        self.outside.run(PROCESS.set, None)
        self._soon: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._asked = 0
        self._cancelled = 0
        self._over = False
        self.set_exception_handler(_escaped)

    @staticmethod
    def running() -> VirtualLoop:
        """The loop that the caller runs on."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    # --- what asyncio asks of a loop ---------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = _Handle(self.now, callback, args, self, context)
        if not self._over:
            self._soon.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(when, callback, args, self, context)
        if not self._over:
            self._asked += 1
            heapq.heappush(self._timers, (when, self._asked, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> NoReturn:  # type: ignore[override]
        raise StuckError("a simulation has no threads")

    def run_in_executor(self, *_: Any, **__: Any) -> NoReturn:  # type: ignore[override]
        raise StuckError("a simulation has no threads")

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Any = None,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.append(task)
        return task

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Somebody has let go of a generator that has not ended. That of a process that was killed never runs again."""
        process = PROCESS.get()
        if not self._over and process is not None and process.alive:
            self.create_task(agen.aclose())

    def _timer_handle_cancelled(self, handle: Any) -> None:
        self._cancelled += 1
        if self._cancelled > _TIDY_FROM and self._cancelled * 2 > len(self._timers):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _run_once(self) -> None:
        soon, timers = self._soon, self._timers
        if not soon and not self._stopping:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
                self._cancelled -= 1
            if not timers:
                raise StuckError(f"nothing happens after {self.now:.3f} s")
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            soon.append(heapq.heappop(timers)[2])
        for _ in range(len(soon)):
            handle = soon.popleft()
            if handle.cancelled() or (handle.process is not None and not handle.process.admits(handle)):
                continue
            self.now += CALLBACK_S
            self.callbacks += 1
            handle._run()
        if self.callbacks_max and self.callbacks > self.callbacks_max:
            raise StuckError(f"{self.callbacks} callbacks, and still at {self.now:.3f} s")

    def _write_to_self(self) -> None:
        """Nobody sleeps in a system call."""

    # --- processes ---------------------------------------------------------------------------------------

    def again(self, handles: list[Any]) -> None:
        """What was held back is due now."""
        self._soon.extend(handle for handle in handles if not handle.cancelled())

    def escaped(self, context: dict[str, Any]) -> None:
        """An exception that nobody has caught."""
        if not self._over:
            self.errors.append(context)

    def abandon(self) -> None:
        """The run is over: let go of everything that never ended, and hear nothing more of it."""
        self._over = True
        for process in self.processes:
            process.kill()
            for task in process.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    try:
                        task.get_coro().close()
                    except Exception as error:  # noqa: BLE001 - code that was to run in another world
                        self.errors.append({"message": "abandoned", "exception": error})
            process.tasks.clear()
        self._soon.clear()
        self._timers.clear()
        self.close()


def _escaped(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualLoop)
    loop.escaped(context)
