"""What is closed with ``with``, and what is iterated over with ``for`` until it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

Part = TypeVar("Part")


class Closing(ABC):
    """Is closed at the end of a ``with``."""

    @abstractmethod
    def close(self) -> None:
        """End it. Safe to call again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Parts(Closing, Generic[Part]):
    """Gives its parts by :meth:`next`, and ends with None: the twin of :class:`metad_client.iterating.AsyncParts`."""

    @abstractmethod
    def next(self) -> Part | None:
        """The next part; None behind the last one."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Part:
        part = self.next()
        if part is None:
            raise StopIteration
        return part
