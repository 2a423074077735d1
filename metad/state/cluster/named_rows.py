"""Records of ``metadata-0`` that have one name each, and of which every node knows all by its copy: plans, roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from metad_wire import messages as m
from metad_wire.cluster import METADATA
from metad_wire.errors import MetadError, QuotaExceededError
from metad_wire.methods import Method, encode
from metad_wire.table import Table

from ...storage import keys
from ...storage.engine import Engine
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.verb import Command, Reader, Verb, read_keys, read_list, written
from ..core.view import View

GROUP = keys.group_prefix(METADATA)
Record = TypeVar("Record", bound=m.Message)
Step = Callable[[View, Any, Any], Any]
"""(view, item, the record that its name has) -> the record that it is to have; None: none. Raises MetadError for the
item."""


class NamedRows(Generic[Record]):
    """The records of a table. There are ``most`` at most."""

    def __init__(self, table: Table[Record], record: type[Record], most: int) -> None:
        ((_, self.row),) = table.rows.items()
        self._table = table
        self._field = table.key[0]
        self.most = most
        self.prefix = keys.table_prefix(GROUP, self.row)
        self.decode = msgspec.msgpack.Decoder(record).decode

    def name_of(self, key: bytes) -> str:
        """Of the record of a key."""
        (name,) = self._table.fields_of(key[len(self.prefix) :], 1)
        return str(name)

    def key_of(self, item: Any) -> bytes:
        """Of the record that an item names."""
        return self.prefix + keys.text(getattr(item, self._field))

    def get(self, view: View, name: str) -> Record | None:
        """Return a record; None if there is none."""
        stored = view.get(self.prefix + keys.text(name))
        return None if stored is None else self.decode(stored)

    def scan(self, engine: Engine) -> Iterator[tuple[str, Record]]:
        """All that are stored, by name."""
        for key, value in engine.scan(self.prefix, keys.after_prefix(self.prefix), self.most):
            yield self.name_of(key), self.decode(value)

    def all(self, view: View) -> list[Record]:
        """All as they are in this entry."""
        found = [view.get(key) for key in view.keys_under(self.row, self.prefix, self.most)]
        return [self.decode(value) for value in found if value is not None]

    def evaluate(self, step: Step, view: View, command: Command[m.Items[Any]]) -> m.WriteReply:
        """Take the step of each item. The ones that it refuses change nothing, and are errors of the reply."""
        errors: list[m.ItemError] = []
        writes = view.writes_of(self.row)
        before: int | None = None
        more = 0
        for position, item in enumerate(command.body.items):
            key = self.key_of(item)
            stored = view.get(key)
            known = None if stored is None else self.decode(stored)
            try:
                changed = step(view, item, known)
                if known is None and changed is not None:
                    before = len(view.keys_under(self.row, self.prefix, self.most)) if before is None else before
                    if before + more >= self.most:
                        raise QuotaExceededError(
                            f"there are {self.most} {self._table.name}s, which is all that are kept"
                        )
            except MetadError as error:
                errors.append(m.ItemError(position, error.code, error.message))
                continue
            more += (changed is not None) - (known is not None)
            if changed is None or changed != known:
                writes[key] = None if changed is None else encode(changed)
        return written(view, errors)

    def _read(self, reader: Reader, command: Command[Any]) -> m.GetReply[Any]:
        return read_keys(reader, command, [self.key_of(item) for item in command.body.items])

    def writes(self, method: Method[Any, Any], step: Step, *, grows: bool = False) -> Verb[Any, Any]:
        """What is done for a method that writes."""
        return Verb(method, self._table, evaluate=partial(self.evaluate, step), grows=grows)

    def gets(self, method: Method[Any, Any]) -> Verb[Any, Any]:
        """What is done for one that reads keys."""
        return Verb(method, self._table, read=self._read)

    def lists(self, method: Method[Any, Any]) -> Verb[Any, Any]:
        """What is done for one that lists."""
        return Verb(method, self._table, read=partial(read_list, row=self.row))


class KnownRows(StatePart):
    """Tells the node of the records in entries of ``metadata-0``."""

    named: ClassVar[NamedRows[Any]]

    def __init__(self, context: PartContext) -> None:
        self._engine = context.engine
        self._is_metadata = context.group == GROUP

    def know(self, name: str, record: Any) -> None:
        """A record is so now; None: there is none."""
        raise NotImplementedError

    def known(self) -> Iterable[str]:
        """The names that the node knows."""
        raise NotImplementedError

    def load(self) -> None:
        if self._is_metadata:
            found = dict(self.named.scan(self._engine))
            for name in {*self.known()} - found.keys():
                self.know(name, None)
            for name, record in found.items():
                self.know(name, record)

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        for key, value in writes.items():
            self.know(self.named.name_of(key), None if value is None else self.named.decode(value))
