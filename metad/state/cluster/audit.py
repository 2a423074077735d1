"""The audit trail: a row of ``metadata-0`` for each line, and which lines are kept.

Which line goes for a new one is decided when the command is evaluated, by what this part knows: of each kind the
numbers of the lines of each party. A party is a principal, or the host where nobody is identified. The parties of a
kind are held by how many lines they have, so nothing here looks at all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA
from metad_wire.methods import encode
from metad_wire.tables.access import AUDIT, KEPT, AuditEntry, AuditKind, AuditList, AuditNote

from ...storage import keys
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.verb import PAGE_BYTES_MAX, SCAN_ROWS_MAX, SPENT_BYTES, Command, Reader, Verb, written
from ..core.view import View

_ROW: Final = AUDIT.rows["line"]
_GROUP: Final = keys.group_prefix(METADATA)
_PREFIX: Final = keys.table_prefix(_GROUP, _ROW)
_LOAD_ROWS: Final = 1_000
TEXT_BYTES: Final = 1_024
"""Of each text of a line, at most, as UTF-8."""
_decode = msgspec.msgpack.Decoder(AuditEntry).decode


def _key(number: int) -> bytes:
    return _PREFIX + keys.text(f"{number:016x}")


def _number(key: bytes) -> int:
    return int(AUDIT.fields_of(key[len(_PREFIX) :], 1)[0], 16)


def bounded(text: str) -> str:
    """A text as a line may have it, of at most :data:`TEXT_BYTES` bytes: its begin, if it is longer."""
    return text.encode()[:TEXT_BYTES].decode(errors="ignore")


def _party(line: AuditEntry) -> str:
    """Who shares the room for lines with others."""
    return line.who or line.host


class _Ring:
    """The lines of one kind, by party."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lines: dict[str, deque[int]] = {}  # the oldest first
        self._sizes: dict[int, dict[str, None]] = {}  # how many lines -> the parties that have so many
        self._largest = 0
        self._total = 0

    @property
    def is_over(self) -> bool:
        """Whether there are more lines than are kept."""
        return self._total > self.most

    def oldest(self) -> tuple[int, str]:
        """The line that goes next, and its party: the oldest of a party that has the most."""
        party = next(iter(self._sizes[self._largest]))
        return self._lines[party][0], party

    def add(self, number: int, party: str, *, oldest: bool = False) -> None:
        """Take in a line. ``oldest``: one that was the party's oldest when it was dropped."""
        lines = self._lines.setdefault(party, deque())
        (lines.appendleft if oldest else lines.append)(number)
        self._resized(party, len(lines) - 1, len(lines))

    def drop(self, number: int, party: str) -> None:
        """The line is there no more. It is nearly always the oldest of its party."""
        lines = self._lines[party]
        if lines[0] == number:
            lines.popleft()
        elif lines[-1] == number:
            lines.pop()
        else:
            lines.remove(number)
        self._resized(party, len(lines) + 1, len(lines))
        if not lines:
            del self._lines[party]

    def _resized(self, party: str, before: int, after: int) -> None:
        self._total += after - before
        if before:
            del self._sizes[before][party]
            if not self._sizes[before]:
                del self._sizes[before]
        if after:
            self._sizes.setdefault(after, {})[party] = None
        self._largest = after if after > self._largest or self._largest not in self._sizes else self._largest


class _Lines:
    """All lines as of one state."""

    def __init__(self) -> None:
        self.newest = 0
        self.newest_ms = 0
        """No line is older than those before it."""
        self._rings: dict[AuditKind, _Ring] = {kind: _Ring(most) for kind, most in KEPT.items()}
        self._places: dict[int, tuple[AuditKind, str]] = {}

    def copy(self) -> _Lines:
        found = _Lines()
        for number, (kind, party) in self._places.items():
            found.add(number, kind, party)
        found.newest, found.newest_ms = self.newest, self.newest_ms
        return found

    def add(self, number: int, kind: AuditKind, party: str) -> None:
        if number not in self._places:
            self._places[number] = kind, party
            self._rings[kind].add(number, party)
            self.newest = max(self.newest, number)

    def take(self, writes: Writes) -> None:
        """An entry makes these writes."""
        for key, value in writes.items():
            number = _number(key)
            if value is not None:
                line = _decode(value)
                self.add(number, line.kind, _party(line))
                self.newest_ms = max(self.newest_ms, line.when_ms)
            elif (place := self._places.pop(number, None)) is not None:
                kind, party = place
                self._rings[kind].drop(number, party)

    def to_drop(self, lines: Sequence[AuditEntry]) -> list[int]:
        """The numbers of the lines that go for these, which get the next numbers. Nothing has changed when it returns:
        the command may yet be refused."""
        dropped: list[tuple[int, AuditKind, str]] = []
        for number, line in enumerate(lines, self.newest + 1):
            ring = self._rings[line.kind]
            ring.add(number, _party(line))
            while ring.is_over:
                oldest, party = ring.oldest()
                ring.drop(oldest, party)
                dropped.append((oldest, line.kind, party))
        for oldest, kind, party in reversed(dropped):
            self._rings[kind].add(oldest, party, oldest=True)
        for number, line in enumerate(lines, self.newest + 1):
            self._rings[line.kind].drop(number, _party(line))
        return [number for number, _, _ in dropped]


class AuditTrail(StatePart):
    """Which lines there are: in the applied state, and with what is in flight."""

    rows = (_ROW,)

    def __init__(self, context: PartContext) -> None:
        self._engine = context.engine
        self._is_metadata = context.group == _GROUP
        self._applied = self._newest = _Lines()
        self._evaluated: set[int] = set()  # entries in flight that were made here

    def load(self) -> None:
        self._applied = _Lines()
        begin, end = _PREFIX, keys.after_prefix(_PREFIX)
        while self._is_metadata:
            found = self._engine.scan(begin, end, _LOAD_ROWS)
            self._applied.take(dict(found))
            if len(found) < _LOAD_ROWS:
                break
            begin = found[-1][0] + b"\0"
        self._begin()

    def forget(self) -> None:
        if self._evaluated:
            self._begin()

    def _begin(self) -> None:
        self._newest = self._applied.copy()
        self._evaluated = set()

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        self._evaluated.add(index)
        self._newest.take(writes)

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        self._applied.take(writes)
        if index in self._evaluated:
            self._evaluated.remove(index)
        else:
            self._newest.take(writes)

    def write(self, view: View, lines: Sequence[AuditEntry]) -> None:
        """Let the command that is evaluated write lines. To be called once for a command."""
        if not lines:
            return
        writes, when_ms = view.writes_of(_ROW), max(view.calendar_ms, self._newest.newest_ms)
        for number, line in enumerate(lines, self._newest.newest + 1):
            dated = msgspec.structs.replace(line, id=f"{number:016x}", when_ms=when_ms)
            writes[_key(number)] = encode(dated)
        for number in self._newest.to_drop(lines):
            writes[_key(number)] = None


def _evaluate_note(view: View, command: Command[AuditNote]) -> m.WriteReply:
    view.parts[AuditTrail].write(view, command.body.lines)
    return written(view, [])


def _read_list(reader: Reader, command: Command[AuditList]) -> m.ListReply[AuditEntry]:
    body = command.body
    begin, end = _PREFIX, keys.after_prefix(_PREFIX)
    if body.newest_first:
        end = _PREFIX + body.page.cursor if body.page.cursor else end
        rows = reader.engine.scan_backwards(begin, end, SCAN_ROWS_MAX)
    else:
        begin = _PREFIX + body.page.cursor + b"\0" if body.page.cursor else begin
        rows = reader.engine.scan(begin, end, SCAN_ROWS_MAX)
    found: list[Any] = []
    size = looked_at = 0
    cursor = b""
    for key, value in rows:
        looked_at += len(value)
        line = _decode(value)
        if _ends(body, line.when_ms):
            cursor = b""
            break
        cursor = key[len(_PREFIX) :]
        if _is_wanted(body, line):
            found.append(msgspec.Raw(value))
            size += len(value)
            if len(found) >= body.page.limit or size >= PAGE_BYTES_MAX:
                break
    else:
        cursor = cursor if len(rows) == SCAN_ROWS_MAX else b""
    reader.spent += len(rows) + looked_at // SPENT_BYTES
    return m.ListReply(found, cursor)


def _ends(body: AuditList, when_ms: int) -> bool:
    """Whether no further line is wanted: their times never go back."""
    return when_ms < body.since_ms if body.newest_first else 0 < body.until_ms <= when_ms


def _is_wanted(body: AuditList, line: AuditEntry) -> bool:
    return (
        line.when_ms >= body.since_ms
        and (not body.until_ms or line.when_ms < body.until_ms)
        and body.who in ("", line.who)
        and body.kind in ("", line.kind)
        and line.method.startswith(body.method_prefix)
    )


VERBS = (
    Verb(methods.AUDIT_NOTE, AUDIT, evaluate=_evaluate_note, background=True, grows=False),
    Verb(methods.AUDIT_LIST, AUDIT, read=_read_list),
)
