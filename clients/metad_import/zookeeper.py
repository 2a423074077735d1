"""ZooKeeper as a source. It has no history to watch from, so the subtree is read again and again: a walk reads the
children and the zxids of every znode, and only the data of those that have changed since are read.

kazoo works in threads of its own. Requests are sent many at a time, and a thread waits for their answers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from .source import BATCH_BYTES, BATCH_ROWS, Head, ImportFailedError, Row, SourceError

ZNODES_MAX: Final = 2_000_000
"""Of one subtree: a walk keeps the path and the zxid of each, some 300 bytes, as ZooKeeper itself keeps them all in
memory."""
_IN_FLIGHT: Final = 500
"""Requests that are sent before an answer is awaited."""
_SYSTEM: Final = "/zookeeper"
_SEQUENTIAL: Final = re.compile(r"\d{10}$")
_OPEN: Final = {("world", "anyone", 31)}


class ZooKeeper:
    """See :class:`.source.Source`. ``digest``: ``user:password``, empty for none; ``tls``: what kazoo takes."""

    kind = "zookeeper"
    keeps_history = False

    def __init__(self, hosts: str, path: str, timeout_s: float, digest: str = "", **tls: Any) -> None:
        logger = logging.getLogger(__name__)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False  # what goes wrong is said by errors
        auth = [("digest", digest)] if digest else None
        self._client = KazooClient(hosts=hosts, timeout=timeout_s, auth_data=auth, logger=logger, **tls)
        self._hosts, self._path, self._timeout_s = hosts, path, timeout_s
        self._walked: list[Row] = []
        self.identity = ""

    async def open(self) -> None:
        """See the Protocol."""

        def opened() -> None:
            self._client.start(self._timeout_s)
            root = self._client.exists(self._path)
            if root is None:
                raise ImportFailedError(f"there is no znode {self._path} in {self._hosts}")
            self.identity = f"{root.czxid:x}.{root.ctime:x}"

        await self._threaded(opened)

    async def close(self) -> None:
        """See the Protocol."""

        def closed() -> None:
            self._client.stop()
            self._client.close()

        await asyncio.to_thread(closed)

    async def head(self) -> Head:
        """See the Protocol: a walk, whose rows are the next that :meth:`rows` gives. ``revision`` is the highest zxid
        of a znode's data."""
        self._walked = await self._threaded(self._walk)
        kept = [row for row in self._walked if not row.fault]
        newest = max([row.revision for row in kept], default=0)
        return Head(len(kept), newest, newest)

    async def rows(self, head: Head, after: bytes, *, thorough: bool = False) -> AsyncIterator[list[Row]]:
        """See the Protocol."""
        rest = iter(row for row in self._walked if row.key > after)
        while rows := [*islice(rest, BATCH_ROWS)]:
            yield await self._threaded(partial(self._with_acls, rows)) if thorough else rows

    async def filled(self, rows: Sequence[Row]) -> list[Row | None]:
        """See the Protocol."""
        found: list[Row | None] = []
        for chunk in _chunks(rows):
            found += await self._threaded(partial(self._read, chunk))
        return found

    async def watch(self, after: int) -> None:
        """See the Protocol."""
        return

    async def left_ms(self, lease: int) -> int:
        """See the Protocol: ZooKeeper has no leases."""
        return 0

    async def _threaded(self, work: Callable[[], Any]) -> Any:
        try:
            return await asyncio.to_thread(work)
        except KazooTimeoutError:
            raise SourceError(f"ZooKeeper at {self._hosts} does not answer within {self._timeout_s:g} s") from None
        except AuthFailedError:
            raise SourceError(f"ZooKeeper at {self._hosts} refuses the user") from None
        except (KazooException, OSError) as error:
            why = f"{type(error).__name__.removesuffix('Error')} {error}".strip()
            raise SourceError(f"ZooKeeper at {self._hosts}: {why}") from None

    def _walk(self) -> list[Row]:
        """The rows of the whole subtree, in order, without their values."""
        self._client.sync(self._path)  # what others were told is done is seen
        rows: list[Row] = []
        waiting = [self._path]
        while waiting:
            some, waiting = waiting[-_IN_FLIGHT:], waiting[:-_IN_FLIGHT]
            for path, found in zip(
                some, self._asked(self._client.get_children_async, some, include_data=True), strict=True
            ):
                if isinstance(found, NoNodeError):
                    continue
                if isinstance(found, NoAuthError):
                    rows.append(Row(path.encode(), 0, None, 0, fault="no_access"))
                    continue
                children, stat = found
                rows.append(_row(path, stat))
                base = "" if path == "/" else path
                waiting += [child for name in children if (child := f"{base}/{name}") != _SYSTEM]
            if len(rows) + len(waiting) > ZNODES_MAX:
                raise ImportFailedError(f"{self._path} has over {ZNODES_MAX} znodes: import its parts one by one")
        rows.sort(key=lambda row: row.key)
        return rows

    def _read(self, rows: Sequence[Row]) -> list[Row | None]:
        read: list[Row | None] = []
        paths = [row.key.decode() for row in rows]
        for path, found in zip(paths, self._asked(self._client.get_async, paths), strict=True):
            if isinstance(found, NoNodeError):
                read.append(None)
            elif isinstance(found, NoAuthError):
                read.append(Row(path.encode(), 0, None, 0, fault="no_access"))
            else:
                read.append(_row(path, found[1], found[0] or b""))
        return read

    def _with_acls(self, rows: Sequence[Row]) -> list[Row]:
        paths = [row.key.decode() for row in rows]
        found: list[Row] = []
        for start in range(0, len(rows), _IN_FLIGHT):
            some = slice(start, start + _IN_FLIGHT)
            for row, acls in zip(rows[some], self._asked(self._client.get_acls_async, paths[some]), strict=True):
                hidden = isinstance(acls, Exception)
                if hidden or {(one.id.scheme, one.id.id, one.perms) for one in acls[0]} != _OPEN:
                    row = Row(row.key, row.revision, row.value, row.size, fault=row.fault, notes=(*row.notes, "acl"))
                found.append(row)
        return found

    def _asked(self, request: Callable[..., Any], paths: Sequence[str], **how: Any) -> list[Any]:
        """The answers about these paths; a znode that is gone or hidden has its error."""
        sent = [request(path, **how) for path in paths]
        answers: list[Any] = []
        for one in sent:
            try:
                answers.append(one.get(timeout=self._timeout_s))
            except (NoNodeError, NoAuthError) as error:
                answers.append(error)
        return answers


def _row(path: str, stat: Any, value: bytes | None = None) -> Row:
    fault = "ephemeral" if stat.ephemeralOwner else ""
    notes = ("sequential",) if _SEQUENTIAL.search(path) else ()
    return Row(path.encode(), stat.mzxid, value, stat.dataLength, fault=fault, notes=notes)


def _chunks(rows: Sequence[Row]) -> Iterable[list[Row]]:
    """The rows, so few at a time that their answers fit the memory."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        if chunk and (len(chunk) == _IN_FLIGHT or size + row.size > BATCH_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += row.size
    if chunk:
        yield chunk
