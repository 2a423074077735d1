"""Turns async methods into blocking ones, for the interpreter and for the type checker.

``put = Call(KeyValue.put)`` in the body of a :class:`Twin` is all that a method needs: ParamSpec carries the names,
defaults and types of the parameters over, so that there is no second copy of a signature. So is ``hold = Call(
Client.hold, HeldLease)`` for one that gives something which has a twin itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from ..errors import ClosedError
from .portal import Portal

P = ParamSpec("P")
T = TypeVar("T")
Target = TypeVar("Target")

# Records of a listing fetched at each switch between the threads: a switch costs about 50 µs.
CHUNK_RECORDS = 256


class Twin:
    """The blocking face of one object that lives in the portal's loop."""

    def __init__(self, portal: Portal, target: object) -> None:
        self._portal = portal
        self._target = target

    def __repr__(self) -> str:
        return f"<blocking {type(self._target).__name__}>"

    def blocking(
        self, name: str, verb: Callable[..., Any], twin: Callable[[Portal, Any], Any] | None
    ) -> Callable[..., Any]:
        """The target's method ``verb`` as a call that waits for the result, or for what ``twin`` makes of it; kept, so
        that it is made once."""
        portal, waits = self._portal, inspect.iscoroutinefunction(verb)
        bound: Callable[..., Any] = MethodType(verb, self._target)

        @functools.wraps(bound)
        def face(*args: Any, **kwargs: Any) -> Any:
            result = portal.run(bound(*args, **kwargs)) if waits else portal.call(bound, *args, **kwargs)
            return result if twin is None else twin(portal, result)

        self.__dict__[name] = face
        return face

    def iterating(self, name: str, verb: Callable[..., AsyncIterator[T]], chunk: int) -> Callable[..., Iterator[T]]:
        """The target's method ``verb`` as an iterator."""
        portal = self._portal
        bound: Callable[..., AsyncIterator[T]] = MethodType(verb, self._target)

        @functools.wraps(bound)
        def face(*args: Any, **kwargs: Any) -> Iterator[T]:
            return _iterate(portal, bound(*args, **kwargs), chunk)

        self.__dict__[name] = face
        return face


class _Method:
    """What methods of a :class:`Twin` have in common: their name, and what help() shows."""

    def __init__(self, verb: Callable[..., object]) -> None:
        self.__doc__ = verb.__doc__
        self._shown = verb

    def __repr__(self) -> str:
        return f"<blocking {self._shown.__name__}{inspect.signature(self._shown)}>"

    def __set_name__(self, owner: type[Twin], name: str) -> None:
        self._name = name


class Call(_Method, Generic[P, T]):
    """A method of a :class:`Twin`: the method ``verb`` of its target, called in the loop and waited for there if it is
    async, as a call that blocks. ``twin`` makes the blocking face of what it gives."""

    @overload
    def __init__(self, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None: ...
    @overload
    def __init__(self, verb: Callable[Concatenate[Any, P], T]) -> None: ...
    @overload
    def __init__(
        self, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, Target]], twin: Callable[[Portal, Target], T]
    ) -> None: ...
    @overload
    def __init__(self, verb: Callable[Concatenate[Any, P], Target], twin: Callable[[Portal, Target], T]) -> None: ...
    def __init__(self, verb: Callable[..., Any], twin: Callable[[Portal, Any], Any] | None = None) -> None:
        super().__init__(verb)
        self.verb = verb
        self._twin = twin

    @overload
    def __get__(self, instance: None, owner: type[Twin]) -> Self: ...
    @overload
    def __get__(self, instance: Twin, owner: type[Twin]) -> Callable[P, T]: ...
    def __get__(self, instance: Twin | None, owner: type[Twin]) -> Self | Callable[P, T]:
        return self if instance is None else instance.blocking(self._name, self.verb, self._twin)


def forgetting(portal: Portal, forget: Callable[[], None]) -> Callable[[], None]:
    """What ends that a listener is told, from any thread, also once the client is closed."""

    def face() -> None:
        with contextlib.suppress(ClosedError):
            portal.call(forget)

    return face


class Listing(_Method, Generic[P, T]):
    """A method of a :class:`Twin`: the async iterator ``verb`` of its target, as an iterator. ``chunk``: how many
    records may be fetched ahead of the program."""

    def __init__(self, verb: Callable[Concatenate[Any, P], AsyncIterator[T]], *, chunk: int = CHUNK_RECORDS) -> None:
        super().__init__(verb)
        self.verb = verb
        self._chunk = chunk

    @overload
    def __get__(self, instance: None, owner: type[Twin]) -> Self: ...
    @overload
    def __get__(self, instance: Twin, owner: type[Twin]) -> Callable[P, Iterator[T]]: ...
    def __get__(self, instance: Twin | None, owner: type[Twin]) -> Self | Callable[P, Iterator[T]]:
        return self if instance is None else instance.iterating(self._name, self.verb, self._chunk)


def _iterate(portal: Portal, records: AsyncIterator[T], count: int) -> Iterator[T]:
    async def chunk() -> list[T]:
        part: list[T] = []
        async for record in records:
            part.append(record)
            if len(part) == count:
                break
        return part

    while part := portal.run(chunk()):
        yield from part
