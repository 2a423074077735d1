"""etcd as a source: its v3 API over the JSON gateway that every member serves on its client port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from .gateway import Gateway, TooLongError
from .source import BATCH_BYTES, BATCH_ROWS, Changes, CompactedError, Head, Row, SourceError

_FIRST_ROWS: Final = 50
"""Rows of the first page: nobody knows yet how large values are."""
_WAITING_MAX: Final = 16
"""Messages of a watch that wait to be copied; etcd sends about 2 MiB in one at most, and waits for us."""
_UNAUTHENTICATED: Final = 16
_COMPACTED: Final = "required revision has been compacted"
Reply = TypeVar("Reply")


class _Header(msgspec.Struct):
    cluster_id: int = 0
    revision: int = 0


class _Kv(msgspec.Struct):
    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0

    def row(self) -> Row:
        notes = ("lease",) if self.lease else ()
        return Row(self.key, self.mod_revision, self.value, len(self.value), self.lease, notes=notes)


class _Range(msgspec.Struct):
    header: _Header
    kvs: list[_Kv] = []
    more: bool = False
    count: int = 0


class _Ttl(msgspec.Struct):
    ttl: int = msgspec.field(default=0, name="TTL")


class _Token(msgspec.Struct):
    token: str = ""


class _Event(msgspec.Struct):
    kv: _Kv
    type: str = "PUT"


class _Watched(msgspec.Struct):
    header: _Header
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    fragment: bool = False
    events: list[_Event] = []


class _Fault(msgspec.Struct):
    error: Any = ""
    message: str = ""
    code: int = 0

    def text(self) -> str:
        if isinstance(self.error, dict):
            return str(self.error.get("message") or self.error)
        return self.message or str(self.error)


class _Message(msgspec.Struct):
    result: _Watched | None = None
    error: Any = None


def _decoder(kind: type[Reply]) -> msgspec.json.Decoder[Reply]:
    """The gateway writes 64-bit numbers as texts."""
    return msgspec.json.Decoder(kind, strict=False)


_range, _ttl, _token = _decoder(_Range), _decoder(_Ttl), _decoder(_Token)
_fault, _message = _decoder(_Fault), _decoder(_Message)


def prefix_end(prefix: bytes) -> bytes:
    """The first key above all that begin with a prefix, as etcd has it: a zero byte if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


class Etcd:
    """See :class:`.source.Source`. ``user`` and ``password``: empty where etcd has no authentication."""

    kind = "etcd"
    keeps_history = True

    def __init__(self, gateway: Gateway, prefix: str, user: str = "", password: str = "") -> None:
        self._gateway = gateway
        self._begin = prefix.encode() or b"\0"
        self._end = prefix_end(prefix.encode())
        self._user, self._password = user, password
        self.identity = ""

    async def open(self) -> None:
        """See the Protocol."""
        if self._user:
            await self._authenticate()
        found = await self._ask_range(count_only=True)
        self.identity = f"{found.header.cluster_id & 0xFFFF_FFFF_FFFF_FFFF:x}"

    async def close(self) -> None:
        """See the Protocol."""
        await self._gateway.close()

    async def head(self) -> Head:
        """See the Protocol. etcd reads all keys of the prefix for it."""
        found = await self._ask_range(limit=1, keys_only=True, sort_order="DESCEND", sort_target="MOD")
        newest = found.kvs[0].mod_revision if found.kvs else 0
        return Head(found.count, newest, found.header.revision)

    async def rows(self, head: Head, after: bytes, *, thorough: bool = False) -> AsyncIterator[list[Row]]:
        """See the Protocol."""
        begin = after + b"\0" if after else self._begin
        limit = _FIRST_ROWS
        while True:
            try:
                found = await self._ask_range(key=begin, limit=limit, revision=head.revision)
            except TooLongError:
                if limit == 1:
                    raise
                limit = max(1, limit // 10)
                continue
            if found.kvs:
                yield [kv.row() for kv in found.kvs]
                size = sum([len(kv.key) + len(kv.value) for kv in found.kvs])
                limit = max(1, min(BATCH_ROWS, 4 * limit, limit * BATCH_BYTES // max(1, size)))
                begin = found.kvs[-1].key + b"\0"
            if not found.more:
                return

    async def filled(self, rows: Sequence[Row]) -> list[Row | None]:
        """See the Protocol: pages come with values."""
        return [*rows]

    async def watch(self, after: int) -> EtcdWatch:
        """See the Protocol."""
        created = {
            "key": self._begin,
            "range_end": self._end,
            "start_revision": after + 1,
            "progress_notify": True,
            "fragment": True,
        }
        await self._ask_range(count_only=True)  # a stream cannot authenticate itself again
        body = msgspec.json.encode({"create_request": created})
        return EtcdWatch(self._gateway.stream("/v3/watch", body), after)

    async def left_ms(self, lease: int) -> int:
        """See the Protocol."""
        found = await self._ask("/v3/lease/timetolive", {"ID": str(lease)}, _ttl)
        return max(0, found.ttl) * 1_000

    async def _ask_range(self, key: bytes | None = None, **fields: Any) -> _Range:
        asked = {"key": self._begin if key is None else key, "range_end": self._end, **fields}
        return await self._ask("/v3/kv/range", asked, _range)

    async def _ask(self, path: str, body: dict[str, Any], decoder: msgspec.json.Decoder[Reply]) -> Reply:
        for again in (True, False):
            answer = await self._gateway.ask(path, msgspec.json.encode(body))
            if answer.status == 200:
                break
            fault = _refusal(answer.body)
            if again and self._user and fault.code == _UNAUTHENTICATED:  # a token lives for minutes
                await self._authenticate()
                continue
            raise _error(fault.text() or f"HTTP status {answer.status}")
        try:
            return decoder.decode(answer.body)
        except msgspec.MsgspecError as error:
            raise SourceError(f"etcd answers {path} with something else: {error}") from None

    async def _authenticate(self) -> None:
        self._gateway.token = ""
        body = msgspec.json.encode({"name": self._user, "password": self._password})
        answer = await self._gateway.ask("/v3/auth/authenticate", body)
        if answer.status != 200:
            raise SourceError(f"etcd refuses the user {self._user}: {_refusal(answer.body).text()}")
        self._gateway.token = _token.decode(answer.body).token


class EtcdWatch:
    """See :class:`.source.Watch`. A task reads ahead, so that what came while a batch was written is one batch."""

    def __init__(self, lines: AsyncIterator[bytes], after: int) -> None:
        self._lines = lines
        self._revision = after
        self._held: list[_Event] = []
        self._told: asyncio.Queue[_Watched | SourceError] = asyncio.Queue(_WAITING_MAX)
        self._reading = asyncio.create_task(self._read())

    async def next(self, idle_s: float) -> Changes | None:
        """See the Protocol."""
        try:
            async with asyncio.timeout(idle_s):
                told = [await self._told.get()]
        except TimeoutError:
            return None
        rows: dict[bytes, Row | None] = {}
        grown = events = 0
        while True:
            message = told.pop()
            if isinstance(message, SourceError):
                if not events:
                    raise message
                self._told.put_nowait(message)  # room was made; it is told next
                break
            for event in self._whole(message):
                deleted = event.type == "DELETE"
                rows.pop(event.kv.key, None)
                rows[event.kv.key] = None if deleted else event.kv.row()
                grown += -1 if deleted else event.kv.create_revision == event.kv.mod_revision
                events += 1
            size = sum([len(row.value or b"") for row in rows.values() if row is not None])
            if self._told.empty() or len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                break
            told.append(self._told.get_nowait())
        return Changes(rows, self._revision, grown, events)

    def _whole(self, message: _Watched) -> list[_Event]:
        """The events of a message, without those of a revision of which more may come behind it."""
        events = [*self._held, *message.events]
        newest = max([event.kv.mod_revision for event in events], default=message.header.revision)
        self._held = [event for event in events if event.kv.mod_revision == newest] if message.fragment else []
        self._revision = max(self._revision, newest - 1 if message.fragment else newest)
        return events[: len(events) - len(self._held)]

    async def close(self) -> None:
        """See the Protocol."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading

    async def _read(self) -> None:
        try:
            async with contextlib.aclosing(self._lines) as lines:  # type: ignore[type-var]
                async for line in lines:
                    if line.strip():
                        message = _watched(line)
                        if message is not None:
                            await self._told.put(message)
            await self._told.put(SourceError("etcd ended the watch"))
        except SourceError as error:
            await self._told.put(error)


def _watched(line: bytes) -> _Watched | None:
    """A message of a watch; None if it only says that the watch was created. Raises SourceError, CompactedError."""
    try:
        message = _message.decode(line)
    except msgspec.MsgspecError as error:
        raise SourceError(f"etcd's watch says something else: {error}") from None
    if message.result is None:
        raise _error(_refusal(line).text())
    told = message.result
    if told.compact_revision:
        raise CompactedError(f"etcd has dropped its history before revision {told.compact_revision}")
    if told.canceled:
        raise SourceError(f"etcd ended the watch: {told.cancel_reason}")
    if not told.events and line.find(b'"created":true') >= 0:
        return None  # what is behind comes next: its revision is not reached yet
    return told


def _refusal(body: bytes) -> _Fault:
    try:
        return _fault.decode(body)
    except msgspec.MsgspecError:
        return _Fault(error=body[:200].decode(errors="replace"))


def _error(text: str) -> SourceError:
    return (
        CompactedError(f"etcd has dropped the history: {text}") if _COMPACTED in text else SourceError(f"etcd: {text}")
    )
