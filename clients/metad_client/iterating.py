"""What is iterated over with ``async for`` until it ends, and is closed with ``async with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

Part = TypeVar("Part", covariant=True)


class AsyncParts(ABC, Generic[Part]):
    """Gives its parts by :meth:`next`, and ends with None."""

    @abstractmethod
    async def next(self) -> Part | None:
        """The next part; None behind the last one."""

    @abstractmethod
    async def close(self) -> None:
        """End it. Safe to call again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Part:
        part = await self.next()
        if part is None:
            raise StopAsyncIteration
        return part
