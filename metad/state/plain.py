"""Plain tables: records that are put, read, deleted and listed by their key, and have a version to compare.

A plain table needs nothing but its declaration. On disk a record is what a read returns, so a read copies bytes and
decodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from metad_wire import messages as m
from metad_wire.errors import ConflictError, InvalidRequestError, MetadError, NotFoundError
from metad_wire.key import text_prefix
from metad_wire.methods import encode
from metad_wire.table import Table

from ..storage import keys
from .rows import NO_ROWS, Numbers, Rows, crcs_of, partition
from .tables import (
    Command,
    GroupPage,
    Reader,
    Verb,
    by_position,
    looked_at,
    merge_get,
    merge_list,
    merge_writes,
    mismatch,
    read_page,
    read_records,
    refuse_writes,
)
from .view import Head, Missing, View

EncodeRow = Callable[[Any, int, int, int], bytes]
"""(item of a put, its version, its create revision, revision) -> its row."""
EncodeRows = Callable[[Sequence[Any], Sequence[int], Sequence[int], int], list[bytes]]
"""The same of many items."""


class _Row(m.Message, frozen=True):
    """A row's numbers, without making objects of the rest. See :class:`metad_wire.messages.TableRecord`."""

    record: msgspec.Raw
    version: int
    create_revision: int
    mod_revision: int


_decode_row = msgspec.msgpack.Decoder(_Row).decode


def _encode_row(item: m.TablePutItem[Any], version: int, create_revision: int, revision: int) -> bytes:
    return encode((item.record, version, create_revision, revision))


class Plain:
    """What the methods of one plain table do.

    ``encode_row`` and ``decode_row``, which yields the numbers of a row, are given by a table whose rows are of another
    shape than :class:`metad_wire.messages.TableRecord`. ``encode_rows`` may be given where a call per row is too slow.
    """

    def __init__(
        self,
        table: Table[Any],
        encode_row: EncodeRow = _encode_row,
        decode_row: Callable[[bytes], Any] = _decode_row,
        encode_rows: EncodeRows | None = None,
    ) -> None:
        self.table = table
        (self.row,) = table.rows.values()
        self._encode_row = encode_row
        self._encode_rows = encode_rows or self.general_encode_rows
        self._decode_row = decode_row

    def general_encode_rows(
        self, items: Sequence[Any], versions: Sequence[int], created: Sequence[int], revision: int
    ) -> list[bytes]:
        """The rows of many items, one by one."""
        return [self._encode_row(*row, revision) for row in zip(items, versions, created, strict=True)]

    def prefix(self, group: bytes) -> bytes:
        """What the keys of all records of a group begin with."""
        return keys.table_prefix(group, self.row)

    def head(self, view: View, key: bytes) -> Head | None:
        """The numbers of a record as a command must believe them; None where there is no record."""
        if key in view.head_writes:
            return view.head_writes[key]
        head = view.rows.heads.get(key)
        return self._read_head(view, key) if isinstance(head, Missing) else head

    def _read_head(self, view: View, key: bytes) -> Head | None:
        """Of a row that is not remembered."""
        value = view.get(key)
        head = None
        if value is not None:
            row = self._decode_row(value)
            head = (row.version, row.create_revision)
        view.rows.heads.add({key: head})
        return head

    def next_head(self, view: View, key: bytes) -> Head:
        """The numbers of a record once it is written again, which the caller does."""
        current = self.head(view, key)
        head = view.head_writes[key] = (1, view.revision) if current is None else (current[0] + 1, current[1])
        return head

    def evaluate_put(self, view: View, command: Command[Any]) -> Any:
        """Write records. The reply is one of versions."""
        rows = command.rows
        written = list(map(self.prefix(view.group).__add__, rows.keys))
        revisions = [m.Revision(view.name, view.revision)]
        if len(set(written)) < len(written) or [i.expected_version for i in rows.items].count(None) < len(written):
            errors, versions = self._put_in_turn(view, rows, written)
            return command.method.reply(revisions, errors, versions)
        # Different keys and no conditions, as nearly always: by columns. 100,000 puts a second pass here.
        revision, heads = view.revision, view.rows.heads.get_many(written)
        known = [
            self._read_head(view, written[at]) if isinstance(head, Missing) else head for at, head in enumerate(heads)
        ]
        versions = [1 if head is None else head[0] + 1 for head in known]
        created = [revision if head is None else head[1] for head in known]
        view.writes = dict(zip(written, self._encode_rows(rows.items, versions, created, revision), strict=True))
        view.head_writes = dict(zip(written, zip(versions, created, strict=True), strict=True))
        return command.method.reply(revisions, [], versions)

    def _put_in_turn(self, view: View, rows: Rows, written: list[bytes]) -> tuple[list[m.ItemError], list[int]]:
        errors: list[m.ItemError] = []
        versions: list[int] = []
        for (position, item, _), key in zip(rows, written, strict=True):
            if item.expected_version is not None:
                current = self.head(view, key)
                if item.expected_version != (current[0] if current else 0):
                    errors.append(_conflict(position, current))
                    versions.append(0)
                    continue
            version, created = self.next_head(view, key)
            versions.append(version)
            view.writes[key] = self._encode_row(item, version, created, view.revision)
        return errors, versions

    def evaluate_delete(self, view: View, command: Command[Any]) -> m.WriteReply:
        """Delete records."""
        prefix = self.prefix(view.group)
        errors: list[m.ItemError] = []
        for position, item, suffix in command.rows:
            key = prefix + suffix
            current = self.head(view, key)
            if current is None:
                errors.append(m.ItemError(position, NotFoundError.code))
            elif item.expected_version is not None and item.expected_version != current[0]:
                errors.append(_conflict(position, current))
            else:
                view.writes[key] = view.head_writes[key] = None
        return m.WriteReply([m.Revision(view.name, view.revision)], errors)

    def read_get(self, reader: Reader, command: Command[Any]) -> list[msgspec.Raw | None]:
        """Records by position."""
        return read_records(reader, command, self.row)

    def split_list(self, body: m.TableList, slots: Numbers) -> dict[int, Rows]:
        """The group that has all records that are asked for, or every group. Raises InvalidRequestError."""
        table, fields = self.table, body.fields
        if len(fields) > len(table.key):
            raise InvalidRequestError(f"{len(fields)} fields, the key of a {table.name} has {len(table.key)}")
        for number, value in enumerate(fields):
            if isinstance(value, str) != table.is_text(number):
                raise InvalidRequestError(f"{table.key[number]} is {'text' if table.is_text(number) else 'a number'}")
        if body.prefix and (len(fields) == len(table.key) or not table.is_text(len(fields))):
            raise InvalidRequestError("a prefix needs a field of text behind the fields that are given")
        routing = len(table.routing)
        if len(fields) < routing:
            return dict.fromkeys(body.page.groups or set(slots.tolist()), NO_ROWS)
        crcs = crcs_of([table.key_of(fields[:routing])])
        return looked_at(body.page, partition([body], [b""], crcs, slots))

    def read_list(self, reader: Reader, command: Command[m.TableList]) -> GroupPage:
        """A page of records."""
        body = command.body
        return read_page(reader, command, self.row, self.table.key_of(body.fields) + text_prefix(body.prefix))


def verbs_of(table: Table[Any]) -> tuple[Verb[Any, Any], ...]:
    """The verbs of a plain table, from its declaration alone."""
    declared = table.plain
    if declared is None:
        return ()
    plain = Plain(table)
    return (
        Verb(declared.get, table, merge=merge_get(declared.get.reply), read=plain.read_get),
        Verb(
            declared.put,
            table,
            merge=merge_put(declared.put.reply),
            evaluate=plain.evaluate_put,
            refuse=refuse_put(declared.put.reply),
        ),
        Verb(declared.delete, table, merge=merge_writes, evaluate=plain.evaluate_delete, refuse=refuse_writes),
        Verb(
            declared.list,
            table,
            split=plain.split_list,
            merge=merge_list(declared.list.reply),
            read=plain.read_list,
        ),
    )


def merge_put(reply: type[Any]) -> Callable[[Any, list[tuple[Rows, Any]]], Any]:
    """Merge for a reply of versions by position."""

    def merge(body: Any, parts: list[tuple[Rows, Any]]) -> Any:
        plain = merge_writes(body, parts)
        return reply(plain.revisions, plain.errors, by_position([(rows, part.versions) for rows, part in parts]))

    return merge


def refuse_put(reply: type[Any]) -> Callable[[Any, Rows, MetadError], Any]:
    """Refuse for a reply of versions by position."""
    return lambda body, rows, error: reply([], refuse_writes(body, rows, error).errors, [0] * len(rows))


def _conflict(position: int, current: Head | None) -> m.ItemError:
    return mismatch(position, ConflictError, "version", current[0] if current else 0)
