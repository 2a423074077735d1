"""A node that says what its CPU time was spent on: ``python -m metad_perf.cost.sampler serve …`` is ``metad serve …``.

A timer on the CPU clock of the thread that runs the loop interrupts it after each millisecond of work, and the frames
of that moment say the stage. So waiting for a core counts as nothing, which a look from outside takes for work. Other
threads have their own clocks: the one that syncs the log, those of RocksDB. With SIGUSR2 the node writes a
:class:`Spent` to the file that the environment names.

What is interrupted in C is seen when that has ended, so a long call counts for the function that made it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import msgspec

from metad.cli import main

FILE: Final = "METAD_PERF_SPENT"
"""The environment's name of the file."""
_TICK_NS: Final = 1_000_000
_SIGEV_THREAD_ID: Final = 4
_CLOCK_THREAD_CPUTIME_ID: Final = 3
_PAD_INTS: Final = 12

REST: Final = "rest"
STAGES: Final = ("frames", "decode", "route", "evaluate", "log", "peers", "apply", "writes", "flush", "answers", REST)
"""Of a node, in the order of a request."""
PLACES: Final[dict[str, dict[str, str]]] = {
    "metad_wire/method.py": {"decode": "decode", "_decode": "decode"},
    "metad/server/connection.py": {
        "_answer": "answers",
        "_flush": "answers",
        "_fitting": "answers",
        "_handle": "route",
        "": "frames",
    },
    "metad/server/network.py": {"": "frames"},
    "metad/server/peers/": {"": "peers"},
    "metad/node/calls/": {"": "peers"},
    "metad/node/requests/requests.py": {"answer": "answers", "": "route"},
    "metad/node/requests/permissions.py": {"": "route"},
    "metad/node/requests/quotas.py": {"": "route"},
    "metad/node/requests/admission.py": {"": "route"},
    "metad/node/requests/reads.py": {"": "evaluate"},
    "metad/node/requests/scheduler.py": {"_apply": "writes", "submit": "route"},
    "metad/node/replicas/driver.py": {
        "stage": "apply",
        "finish": "answers",
        "_propose": "evaluate",
        "_make_entry": "evaluate",
        "submit": "route",
    },
    "metad/state/machine.py": {"evaluate": "evaluate", "stage": "apply"},
    "metad/storage/log.py": {"": "log"},
    "metad/raft/log/": {"": "log"},
    "metad/raft/": {"": "peers"},
}
"""By file or folder: the beginning of a function's name, and the stage. The innermost frame that is here says it."""
_THREADS: Final = {"metad-fsync": "log", "rocksdb": "flush"}


class Spent(msgspec.Struct, frozen=True):
    """CPU time since the start."""

    number: int
    """Of this report, from 1."""
    ticks: dict[str, int]
    """Of the loop's thread, by stage; some a second."""
    loop_s: float
    threads_s: dict[str, float]
    """Of the others, by stage."""


@functools.cache
def place(code: CodeType) -> str | None:
    """The stage that a function belongs to; None: that of its caller."""
    for where, functions in PLACES.items():
        if where in code.co_filename:
            return next((stage for begin, stage in functions.items() if code.co_name.startswith(begin)), None)
    return None


class _Sampler:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._ticks: Counter[str] = Counter()
        self._written = 0

    def tick(self, _: int, frame: FrameType | None) -> None:
        """The timer's signal."""
        stage = None
        while frame is not None and (stage := place(frame.f_code)) is None:
            frame = frame.f_back
        self._ticks[stage or REST] += 1

    def write(self, _: int, __: FrameType | None) -> None:
        """The signal that asks."""
        self._written += 1
        spent = Spent(self._written, dict(self._ticks), time.thread_time(), _others_s())
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(spent))
        new.replace(self._path)


def _others_s() -> dict[str, float]:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) == threading.main_thread().native_id:
            continue
        text = (task / "stat").read_text(encoding="ascii")
        fields = text[text.rindex(")") + 2 :].split()
        name = names.get(int(task.name), text[text.index("(") + 1 : text.rindex(")")])
        stage = next((stage for begin, stage in _THREADS.items() if name.startswith(begin)), REST)
        found[stage] += (int(fields[11]) + int(fields[12])) * tick_s
    return found


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_int * _PAD_INTS),
    )


class _Interval(ctypes.Structure):
    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


def _begin() -> None:
    """Interrupt this thread after each tick of its own CPU time. Raises OSError."""
    system = ctypes.CDLL(None, use_errno=True)
    event = _SignalEvent(None, signal.SIGPROF, _SIGEV_THREAD_ID, threading.get_native_id())
    timer, every = ctypes.c_void_p(), _Interval(0, _TICK_NS, 0, _TICK_NS)
    if system.timer_create(_CLOCK_THREAD_CPUTIME_ID, ctypes.byref(event), ctypes.byref(timer)) or system.timer_settime(
        timer, 0, ctypes.byref(every), None
    ):
        raise OSError(ctypes.get_errno(), "the CPU timer of a thread")


if __name__ == "__main__":
    sampler = _Sampler(Path(os.environ[FILE]))
    signal.signal(signal.SIGPROF, sampler.tick)
    signal.signal(signal.SIGUSR2, sampler.write)
    _begin()
    sys.exit(main())
