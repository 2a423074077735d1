"""What a command sees while it is evaluated: its own writes, over those in flight, over the applied state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from metad_wire.errors import TooLargeError
from metad_wire.watch import SlotMarker

from ...storage.engine import Engine
from ...storage.keys import GROUP_PREFIX_BYTES, after_prefix
from .entry import Replaced
from .limits import LOOKED_AT_BYTES_MAX, SCANNED_ROW_BYTES, check_reply
from .part import Origin, Parts, Writes
from .row_cache import MISSING, Missing, Overlay, RowCache

# Keys per call of the engine: more saves nothing. While values are long it is few, so that what is too much is noticed
# before it adds up.
_CHUNK_KEYS, _CHUNK_KEYS_LONG = 32, 4
_LONG_BYTES = 16 * 1024


def in_chunks(engine: Engine, keys: Sequence[bytes]) -> Iterator[tuple[list[bytes | None], int]]:
    """The values of these keys, in order, some at a time, and how many bytes they are."""
    at, count = 0, _CHUNK_KEYS_LONG
    while at < len(keys):
        chunk = engine.get_many(keys[at : at + count])
        size = sum([len(value) for value in chunk if value is not None])
        yield chunk, size
        at += count
        count = _CHUNK_KEYS if size < _LONG_BYTES else _CHUNK_KEYS_LONG


class View:
    """Passed to ``evaluate``. A command gets the writes it has made to a row, to add to them, from :meth:`writes_of`.
    ``now_ms`` is the log's time, ``past_ms`` that by which deadlines are judged: it is 0 while nothing has passed, see
    :mod:`.log_time`. ``index`` is the entry's, and ``revision`` the group's once the entry is applied."""

    __slots__ = (
        "_engine",
        "_hearing",
        "_overlay",
        "_overlays",
        "_rows",
        "beside",
        "ended",
        "group",
        "grown",
        "heard",
        "index",
        "looked_at",
        "marker",
        "name",
        "no_room",
        "now_ms",
        "on_accept",
        "overlays",
        "parts",
        "past_ms",
        "replaced",
        "revision",
        "row_cache",
        "writes",
    )

    def __init__(self, name: str, group: bytes, engine: Engine, parts: Parts) -> None:
        self.name = name
        self.group = group
        self.parts = parts
        self._engine = engine
        self._rows = parts[RowCache]
        self._overlay = Overlay()
        self.overlays = [self._overlay]
        """All that there are."""
        self._hearing = parts.hearing
        self._overlays: dict[int, Overlay] = {}  # of rows that a part hears of, once a command has written one
        self.no_room = ""
        """Why nothing may be written that takes more room than what was there; empty if there is room."""
        self.now_ms = 0
        self.past_ms = 0
        self.index = 0
        self.revision = 0
        self.looked_at = 0
        """Bytes of rows that the command has read from the engine."""
        self.marker: SlotMarker | None = None
        """Set by a step of a slot move after which the group holds other slots."""
        self.begin(False)

    def begin(self, row_cache: bool) -> None:
        """A command is evaluated next. ``row_cache``: the rows it reads and writes are in the row cache."""
        self.row_cache = row_cache
        self.writes: Writes = {}
        """To rows that no part hears of."""
        self.heard: dict[int, Writes] = {}
        """The other writes, by row."""
        self.on_accept: list[Callable[[], None]] = []
        """Called once the command is a part of the entry: until then it may be refused."""
        self.grown = 0
        """What the command changes, in bytes, if it says so itself."""
        self.beside = 0
        """What it changes in rows that :func:`.limits.change_estimate` does not expect."""
        self.ended = 0
        """Bytes of its deletions of what belongs to sessions that end."""
        self.replaced: dict[int, Replaced] | None = None
        """What the writes to some rows replace: see :meth:`replaces`."""

    # --- what a command does -----------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value a command must believe in."""
        value = self._known(key)
        if isinstance(value, Missing):
            value = self._engine.get(key)
            self._look_at(0 if value is None else len(value))
            if self.row_cache:
                self._rows.read(key, value)
        return value

    def get_many(self, keys: list[bytes], bytes_max: int) -> list[bytes | None]:
        """:meth:`get` of several, which costs less. Raises TooLargeError if the rows that are read take more than
        ``bytes_max`` together."""
        size = 0
        found, missed = self._known_of(keys)
        read: list[bytes | None] = []
        for chunk, chunk_bytes in in_chunks(self._engine, keys if found is None else [keys[at] for at in missed]):
            size += chunk_bytes
            check_reply(size, bytes_max)
            self._look_at(chunk_bytes)
            read += chunk
        if found is None:
            return read
        for value, at in zip(read, missed, strict=True):
            found[at] = value
        return found

    def _known_of(self, keys: list[bytes]) -> tuple[list[bytes | None] | None, list[int]]:
        """:meth:`_known` of several: their values, and the positions of those that need a look at the engine. No values
        if all need one, as nearly always in a storm."""
        rows = {key[GROUP_PREFIX_BYTES] for key in keys}
        writes = [self.writes] if self.heard.keys().isdisjoint(rows) else []
        if self.row_cache or not writes or not self._overlays.keys().isdisjoint(rows):
            known = list(map(self._known, keys))
        else:
            writes = [one for one in (self.writes, *self._overlay.generations()) if not one.keys().isdisjoint(keys)]
            if not writes:
                return None, []
            known = [MISSING] * len(keys)
            for one in writes:
                known = [
                    one.get(key, MISSING) if value is MISSING else value for key, value in zip(keys, known, strict=True)
                ]
        missed = [at for at, value in enumerate(known) if value is MISSING]
        return [None if isinstance(value, Missing) else value for value in known], missed

    def _known(self, key: bytes) -> bytes | Missing | None:
        """What needs no look at the engine."""
        value: bytes | Missing | None = self.writes.get(key, MISSING)
        if value is MISSING and self.heard:
            value = self.heard.get(key[GROUP_PREFIX_BYTES], self.writes).get(key, MISSING)
        if value is MISSING and self.row_cache:
            value = self._rows.get(key)
        if value is MISSING:
            value = self._overlays.get(key[GROUP_PREFIX_BYTES], self._overlay).get(key)
        return value

    def _look_at(self, size: int) -> None:
        self.looked_at += size
        if self.looked_at > LOOKED_AT_BYTES_MAX:
            raise TooLargeError(
                f"the records of this request take over {LOOKED_AT_BYTES_MAX} bytes: ask for fewer at once"
            )

    def scan(
        self, begin: bytes, end: bytes, limit: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes | None]], bool]:
        """The next applied rows of a table's row, with the values a command must believe in, None where an entry in
        flight deletes one; and whether there are no more. What only an entry in flight adds is not found yet."""
        found = self._engine.scan(begin, end, limit, bytes_max)
        size = sum([len(key) + len(value) for key, value in found])
        self._look_at(size + len(found) * SCANNED_ROW_BYTES)
        is_last = len(found) < limit and size < bytes_max
        young, old = self.in_flight(begin[GROUP_PREFIX_BYTES])
        if not young and not old:
            return [*found], is_last
        return [(key, young.get(key, old.get(key, value))) for key, value in found], is_last

    def keys_under(self, row: int, prefix: bytes, limit: int) -> list[bytes]:
        """The keys of a row that begin so and have a value, before the command; ``limit`` of them at most."""
        young, old = self.in_flight(row)
        scanned = self._engine.scan(prefix, after_prefix(prefix), limit)
        self._look_at(sum([SCANNED_ROW_BYTES + len(key) + len(value) for key, value in scanned]))
        found = dict.fromkeys([key for key, _ in scanned], True)
        for writes in (old, young):
            for key, value in writes.items():
                if key.startswith(prefix):
                    found[key] = value is not None
        return [key for key, there in found.items() if there][:limit]

    def keys_with(self, prefix: bytes, limit: int) -> list[bytes]:
        """The keys of one row that start with ``prefix``, in order. The caller knows that the engine has at most
        ``limit``."""
        found = {key for key, _ in self._engine.scan(prefix, after_prefix(prefix), limit, LOOKED_AT_BYTES_MAX)}
        self._look_at(len(found) * SCANNED_ROW_BYTES)
        row = prefix[GROUP_PREFIX_BYTES]
        young, old = self.in_flight(row)
        for writes in (old, young, self.heard.get(row, self.writes)):
            for key, value in writes.items():
                if key.startswith(prefix):
                    (found.discard if value is None else found.add)(key)
        return sorted(found)

    def in_flight(self, row: int) -> tuple[Writes, Writes]:
        """The writes of earlier commands to a row, and perhaps to others: look in the first, then in the second."""
        return self._overlays.get(row, self._overlay).generations()

    def writes_of(self, row: int) -> Writes:
        """The command's writes to a row, and perhaps to others; the command adds to them."""
        return self.heard.setdefault(row, {}) if row in self._hearing else self.writes

    def write(self, row: int, writes: Writes) -> None:
        """Make writes to a row to which the command has made none; the dictionary is the view's from now on."""
        if row in self._hearing:
            self.heard[row] = writes
        elif self.writes:
            self.writes.update(writes)
        else:
            self.writes = writes

    def replaces(self, row: int, values: list[bytes | None], found: dict[bytes | None, None] | None = None) -> None:
        """Say what the command's writes to a row replace: see :class:`Replaced`. Either every verb that writes the row
        says it or none does. Both are the entry's from now on."""
        self.replaced = {row: Replaced(values, dict.fromkeys(values) if found is None else found)}

    def overwrite(self, rows: Writes) -> None:
        """Write rows of any table as they are; their keys are without the group's prefix."""
        group = self.group
        for key, value in rows.items():
            self.writes_of(key[0])[group + key] = value
        for part in self.parts.values():
            for writes in (self.writes, *self.heard.values()):
                part.overwritten(writes)

    # --- what becomes of it ------------------------------------------------------------------------------

    def accept(self, index: int, origin: Origin) -> None:
        """The command is a part of entry ``index``."""
        if self.writes:
            self._overlay.add(index, self.writes)
            if self.row_cache:
                self._rows.add(self.writes)
        for row, writes in self.heard.items():
            if not writes:
                continue
            if row not in self._overlays:
                self._overlays[row] = Overlay()
                self.overlays.append(self._overlays[row])
            self._overlays[row].add(index, writes)
            if self.row_cache:
                self._rows.add(writes)
            for part in self._hearing[row]:
                part.evaluated(index, origin, writes)
        for accepted in self.on_accept:
            accepted()

    def forget(self) -> None:
        """What is in flight may never be applied."""
        for overlay in self.overlays:
            overlay.clear()
