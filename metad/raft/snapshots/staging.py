"""Where the parts of a snapshot wait until there are all of them and Raft says that they are to be installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from ...errors import StorageError, file_error

Done = Callable[[StorageError | None], None]
Beside = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""Does blocking work beside the loop, one such work after the other, then tells on the loop how it went."""


class Staging(Protocol):
    """Parts by stream and number. Nothing here outlives the process: a stream that it broke off begins again."""

    def put(self, stream: int, number: int, data: bytes, done: Done) -> None:
        """Keep a part, then call ``done``, with the error where that has failed. Parts are kept in the order of the
        calls."""

    def parts(self, stream: int, count: int) -> list[bytes | Path]:
        """Parts 1 to ``count``, which are kept."""

    def drop(self, stream: int) -> None:
        """Forget a stream."""


class MemoryStaging:
    """For tests, and for nodes without a disk."""

    def __init__(self) -> None:
        self.streams: dict[int, dict[int, bytes]] = {}

    def put(self, stream: int, number: int, data: bytes, done: Done) -> None:
        self.streams.setdefault(stream, {})[number] = data
        done(None)

    def parts(self, stream: int, count: int) -> list[bytes | Path]:
        kept = self.streams.get(stream, {})
        return [kept[number] for number in range(1, count + 1)]

    def drop(self, stream: int) -> None:
        self.streams.pop(stream, None)


class FileStaging:
    """Files in ``directory``, a directory each stream. What earlier lives have left there is removed.

    A file is synced not because it had to survive anything, but to take the disk's time bit by bit: else the log's
    fsyncs would one day wait until a gigabyte of parts is written.
    """

    def __init__(self, directory: Path, beside: Beside) -> None:
        self.directory = directory
        self._beside = beside
        try:
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(parents=True)
        except OSError as error:
            raise _failed(directory, error) from None

    def put(self, stream: int, number: int, data: bytes, done: Done) -> None:
        path = self._path(stream, number)

        def written(error: BaseException | None) -> None:
            if error is None:
                done(None)
            elif isinstance(error, OSError):
                done(_failed(path, error))
            else:
                raise error

        self._beside(partial(_write, path, data), written)

    def parts(self, stream: int, count: int) -> list[bytes | Path]:
        return [self._path(stream, number) for number in range(1, count + 1)]

    def drop(self, stream: int) -> None:
        # Behind what is still to be written there; what cannot be removed is removed by the next life.
        self._beside(partial(shutil.rmtree, self.directory / str(stream), ignore_errors=True), _ignore)

    def _path(self, stream: int, number: int) -> Path:
        return self.directory / str(stream) / f"{number:06}.part"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())


def _failed(path: Path, error: OSError) -> StorageError:
    return file_error(str(path), error)


def _ignore(_: BaseException | None) -> None:
    """A removal is over."""
