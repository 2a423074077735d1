"""What a replica keeps in memory of a group's state beside the engine, and how it stays true.

A table's module brings the parts that its commands and reads need: a cache, an index, a listener. :mod:`..registry`
finds them, and :mod:`..machine` tells them what happens to the rows they name.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from ...config import Config
from ...storage.engine import Engine

Writes = dict[bytes, bytes | None]
"""Key -> value; None deletes."""


class Origin(enum.IntEnum):
    """Why an entry was written. A part of the log's format."""

    CLIENT = 0
    MIGRATION = 1
    """A step of a slot move. Imported rows were written before, in another group, and dropped rows live on there."""
    EXPIRY = 2
    """The time of something has come."""
    CONTROLLER = 3
    """A change of the cluster map."""


Shared = TypeVar("Shared")


class NodeMemory:
    """The memory that parts of several groups of a node share."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._shared: dict[Callable[[Config], object], object] = {}

    def shared(self, make: Callable[[Config], Shared]) -> Shared:
        """What ``make`` returns. It is called once per node."""
        if make not in self._shared:
            self._shared[make] = make(self.config)
        return cast("Shared", self._shared[make])


class PartContext(NamedTuple):
    """What a part is made with."""

    group: bytes
    """The group's prefix."""
    engine: Engine
    memory: NodeMemory
    clock: Callable[[], float]
    """Monotonic, in seconds."""
    initial_slots: bytes
    """A bit map of the slots that the group was made with."""


class StatePart:
    """The base of all parts. Each group has its own, made with a :class:`PartContext`. A method that a part does not
    override does nothing."""

    rows: tuple[int, ...] = ()
    """Bytes behind the group's prefix: the part hears of every write to these rows. Entries hold such writes apart from
    all others, so a row of which logs hold entries already needs a new ``ENTRY_FORMAT`` to be heard of."""

    def __init__(self, context: PartContext) -> None:
        """Parts that need something of the context take it here."""

    def load(self) -> None:
        """Build the memory from the engine: the node has started, or a snapshot has replaced the state."""

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        """On the leader: a command makes these writes to one of the rows. Its entry ``index`` is not committed yet."""

    def overwritten(self, writes: Writes) -> None:
        """On the leader: a slot move makes these writes, to rows of any table."""

    def stage(self, index: int, origin: Origin, writes: Writes) -> bool | None:
        """Entry ``index`` is committed and makes these writes to one of the rows. The engine does not have them yet. A
        part that returns True hears by :meth:`applied` when it has."""

    def applied(self) -> None:
        """The engine has everything that was staged."""

    def forget(self) -> None:
        """This replica leads no longer. What was evaluated and not staged may never be committed, and others write rows
        from now on."""


Part = TypeVar("Part", bound=StatePart)


class Parts(dict[type[StatePart], Any]):
    """The parts of one group, by their class."""

    def __init__(self, kinds: Iterable[type[StatePart]], context: PartContext) -> None:
        super().__init__({kind: kind(context) for kind in kinds})
        self.hearing: dict[int, list[StatePart]] = {}
        """Row -> the parts that hear of it."""
        for part in self.values():
            for row in part.rows:
                self.hearing.setdefault(row, []).append(part)

    if TYPE_CHECKING:  # a command gets its parts this way, so it is the dictionary's own method

        def __getitem__(self, kind: type[Part]) -> Part: ...
