"""The client for code without asyncio: a background thread runs the event loop, and this module is a thin portal to it.

::

    from metad_client import blocking

    with blocking.connect("metad://127.0.0.1:7420") as m:
        m.kv.put("config", "greeting", b"hello")
        for record in m.kv.scan("config"):
            print(record.key)

There is no second copy of the API: every attribute is looked up on the async client. A coroutine becomes a blocking
call, an async iterator becomes an iterator, and a namespace becomes another portal. Names, arguments, results and
errors do not change. Several threads may use one client; their single calls then share requests.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from metad_wire.transport import Transport

from . import client
from .errors import ClosedError
from .namespaces.facade import Facade
from .options import Options

T = TypeVar("T")

# Records of a listing fetched at each switch between the threads: a switch costs about 50 µs.
CHUNK_RECORDS = 256


class Portal:
    """A thread that runs an event loop, and a way to run coroutines in it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="metad-client", daemon=True)

    def start(self) -> None:
        """Start the thread; return once its loop runs."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Cancel what still runs there; return once the thread has ended."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. An interrupt (Ctrl-C) cancels it."""
        if self._loop is None:
            coroutine.close()
            raise ClosedError("the client is closed; nothing was done")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._ready.set()
        await self._stopping.wait()


class Namespace:
    """The blocking face of one object that lives in the portal's loop."""

    def __init__(self, portal: Portal, target: Any) -> None:
        self._portal = portal
        self._target = target

    def __repr__(self) -> str:
        return f"<blocking {type(self._target).__name__}>"

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._target) if not name.startswith("_")]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute = getattr(self._target, name)
        if isinstance(attribute, Facade):
            return Namespace(self._portal, attribute)
        if not callable(attribute):
            return attribute
        face = _face(self._portal, attribute)
        setattr(self, name, face)  # looked up once
        return face


class BlockingClient(Namespace):
    """An opened client; :meth:`close` or leaving ``with`` closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what is pending with ClosedError and hang up. Safe to call again."""
        try:
            self._portal.run(self._target.close())
        except ClosedError:
            return
        finally:
            self._portal.stop()


def connect(
    url: str,
    options: Options | None = None,
    *,
    transport: Transport | None = None,
    rng: random.Random | None = None,
) -> BlockingClient:
    """Open a client; arguments and errors are those of :func:`metad_client.connect`, but it is opened at once."""

    async def opened() -> client.Client:
        return await client.connect(url, options, transport=transport, rng=rng).open()

    portal = Portal()
    portal.start()
    try:
        return BlockingClient(portal, portal.run(opened()))
    except BaseException:
        portal.stop()
        raise


def _face(portal: Portal, function: Callable[..., Any]) -> Callable[..., Any]:
    """The blocking form of a method, by what kind it is."""
    if inspect.isasyncgenfunction(function):

        def face(*args: Any, **kwargs: Any) -> Any:
            return _iterate(portal, function(*args, **kwargs))

    elif inspect.iscoroutinefunction(function):

        def face(*args: Any, **kwargs: Any) -> Any:
            return portal.run(function(*args, **kwargs))

    else:

        def face(*args: Any, **kwargs: Any) -> Any:
            async def call() -> Any:
                return function(*args, **kwargs)

            result = portal.run(call())
            return Namespace(portal, result) if isinstance(result, Facade) else result

    face.__name__, face.__doc__ = function.__name__, function.__doc__
    return face


def _iterate(portal: Portal, records: AsyncIterator[T]) -> Iterator[T]:
    async def chunk() -> list[T]:
        part: list[T] = []
        async for record in records:
            part.append(record)
            if len(part) == CHUNK_RECORDS:
                break
        return part

    while part := portal.run(chunk()):
        yield from part
