"""Where a storm is simulated: in processes of this machine, or by Spark. Both give the same digits.

One storm is a few passes of tasks that last seconds, and Spark needs some seconds to start and hundreds of megabytes to
be there. It pays where there is more to do, or more than one machine to do it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError

Runner = Literal["local", "spark"]
Asked = Literal["auto", "local", "spark"]
LOCAL_CLIENTS_MAX = 100_000_000
"""From so many clients on, a storm takes minutes, and a cluster is welcome."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The runner, and the reason in words."""

    runner: Runner
    why: str


def choose(
    asked: Asked, *, clients: int, storms: int = 1, master: str | None = None, connect: bool = False, submitted: bool
) -> Choice:
    """The runner of ``storms`` of so many ``clients`` each. ``master`` and ``connect``: what the command line says of
    Spark. ``submitted``: spark-submit started this process. Raises UsageError where ``local`` meets a flag of Spark."""
    if asked == "local":
        if master is not None or connect:
            raise UsageError("--runner local simulates without Spark: leave --master and --connect out")
        return Choice(runner="local", why="--runner says so")
    if asked == "spark":
        return Choice(runner="spark", why="--runner says so")
    if master is not None or connect:
        return Choice(runner="spark", why=f"{'--master' if master is not None else '--connect'} says so")
    if submitted:
        return Choice(runner="spark", why="spark-submit started it")
    if storms > 1:
        return Choice(runner="spark", why=f"there are {storms:,} storms")
    if clients >= LOCAL_CLIENTS_MAX:
        return Choice(runner="spark", why=f"there are {LOCAL_CLIENTS_MAX:,} clients or more")
    return Choice(runner="local", why=f"it is one storm of fewer than {LOCAL_CLIENTS_MAX:,} clients")
