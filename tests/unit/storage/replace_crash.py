"""A process that dies at the n-th step of replacing a range, for test_replace.py. Run as a program, for RocksDB must
not be opened before a fork: KIND WORK, where WORK/parts holds the parts and WORK/seed a store to begin with.

Every system call that matters and every call into RocksDB is a step; the process dies before it, and, in another life,
behind it. What is left of life n is WORK/<n>. Prints how many lives there were.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rocksdict

from metad.config import StorageConfig
from metad.storage import rocks
from metad.storage.rocks import RocksEngine, Shared, log_options, state_options

MIB = 1024 * 1024
BEGIN, END = b"b", b"c"
ON_TOP: dict[bytes, bytes | None] = {b"b\0mark": b"1"}
DB_STEPS = ("write", "flush", "ingest_external_file")
SYSTEM_STEPS = ("fsync", "rename", "link", "unlink", "rmdir", "mkdir")


def open_engine(kind: str, path: Path) -> RocksEngine:
    options = log_options if kind == "rocks_wal" else state_options
    shared = Shared(StorageConfig(block_cache_bytes=8 * MIB, memtable_bytes=16 * MIB))
    return RocksEngine(path, options(shared), wal=kind == "rocks_wal")


class Mortal:
    """Counts steps and dies at the n-th."""

    def __init__(self, life: int) -> None:
        self.left = life

    def step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.step()
            result = function(*arguments, **named)
            self.step()
            return result

        return call


class WatchedDb:
    """An Rdict whose calls are steps."""

    def __init__(self, db: Any, mortal: Mortal) -> None:
        self._db = db
        for name in DB_STEPS:
            setattr(self, name, mortal.watched(getattr(db, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def watch(mortal: Mortal) -> None:
    real = rocksdict.Rdict

    def opened(*arguments: Any, **named: Any) -> WatchedDb:
        return WatchedDb(real(*arguments, **named), mortal)

    rocks.r.Rdict = opened  # type: ignore[assignment,misc,attr-defined]
    for name in SYSTEM_STEPS:
        setattr(os, name, mortal.watched(getattr(os, name)))


def in_child(life: Callable[[], None]) -> bool:
    """Whether it lived to its end."""
    child = os.fork()
    if child == 0:
        try:
            life()
        except BaseException as error:  # noqa: BLE001 - reported by the parent
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if status:
        raise SystemExit(f"a life ended with {status}")
    return True


def main() -> None:
    kind, work = sys.argv[1], Path(sys.argv[2])
    parts: list[bytes | Path] = sorted((work / "parts").iterdir())

    def replace(path: Path, steps: int) -> None:
        engine = open_engine(kind, path)
        mortal = Mortal(steps)
        engine._db = WatchedDb(engine._db, mortal)
        watch(mortal)
        engine.replace(BEGIN, END, parts, ON_TOP)

    def recover(path: Path, steps: int) -> None:
        watch(Mortal(steps))
        open_engine(kind, path)

    life = 0
    finished = False
    while not finished:
        path = work / str(life)
        shutil.copytree(work / "seed", path)
        finished = in_child(lambda: replace(path, life))  # noqa: B023 - called at once
        if life % 5 == 0:
            # And it dies again while it puts right what it finds: each time one step later, until it comes through.
            again = 0
            while not in_child(lambda: recover(path, again)):  # noqa: B023
                again += 1
        life += 1
    print(life)


if __name__ == "__main__":
    main()
