"""HTTP/1.1 as far as etcd's JSON gateway needs it: a request with a body, and an answer that is whole or goes on.

Anything that goes wrong on the way is a :class:`~.source.SourceError`. The next endpoint is tried where one does not
answer; all requests only read, so each may be sent again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from .source import SourceError

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one answer, or of one message of a stream: a page of rows is asked to be far smaller."""
_LINE_BYTES_MAX: Final = 64 * 1024
_HEADERS_MAX: Final = 100


class TooLongError(SourceError):
    """An answer is longer than fits."""


class Answer(NamedTuple):
    """A whole one."""

    status: int
    body: bytes


class Endpoint(NamedTuple):
    """Where a gateway is."""

    host: str
    port: int
    tls: bool

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Read ``http://HOST:PORT`` or ``https://HOST:PORT``. Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"not as in http://HOST:2379: {url}")
        return cls(parts.hostname, parts.port or 2379, parts.scheme == "https")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection:
    """One connection, one request at a time."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoint = endpoint
        self._reader = reader
        self._writer = writer

    async def ask(self, path: str, body: bytes, token: str) -> tuple[int, dict[str, str]]:
        """Send a request; the status and the headers of the answer, whose body is to be read next."""
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._endpoint}", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(body)}", *([f"Authorization: {token}"] if token else [])]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._writer.drain()
        words = (await self._line()).split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise SourceError(f"{self._endpoint} does not speak HTTP")
        headers: dict[str, str] = {}
        left = _HEADERS_MAX
        while line := await self._line():
            left -= 1
            if left < 0:
                raise SourceError(f"{self._endpoint} sends too many headers")
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        return int(words[1]), headers

    async def pieces(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """The body of the answer, as it comes."""
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await self._line()).partition(b";")[0] or b"0", 16):
                if size > BODY_BYTES_MAX:
                    raise TooLongError(f"{self._endpoint} sends over {BODY_BYTES_MAX} bytes at once")
                yield await self._reader.readexactly(size)
                await self._line()
            while await self._line():
                pass
        else:
            left = int(headers.get("content-length", "0"))
            while left:
                piece = await self._reader.read(min(left, _LINE_BYTES_MAX))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(piece)
                yield piece

    async def body(self, headers: dict[str, str]) -> bytes:
        """All of it."""
        parts: list[bytes] = []
        size = 0
        async for piece in self.pieces(headers):
            size += len(piece)
            if size > BODY_BYTES_MAX:
                raise TooLongError(f"{self._endpoint} answers over {BODY_BYTES_MAX} bytes")
            parts.append(piece)
        return b"".join(parts)

    async def close(self) -> None:
        """Close it; what was not read is lost."""
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _line(self) -> bytes:
        line = await self._reader.readuntil(b"\n")
        return line.rstrip(b"\r\n")


class Gateway:
    """The endpoints of one cluster."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._endpoints = [*endpoints]
        self._tls = tls
        self._timeout_s = timeout_s
        self._kept: Connection | None = None
        self.token = ""
        """What a request is authorized by."""

    async def ask(self, path: str, body: bytes) -> Answer:
        """A whole answer. Raises SourceError where no endpoint gives one in time."""
        failure = ""
        for _ in range(len(self._endpoints) + 1):  # once more: a kept connection may have been closed meanwhile
            try:
                async with asyncio.timeout(self._timeout_s):
                    connection = self._kept or await self._connected()
                    self._kept = connection
                    status, headers = await connection.ask(path, body, self.token)
                    answer = Answer(status, await connection.body(headers))
                if headers.get("connection") == "close":
                    await self.close()
                return answer
            except SourceError:
                await self.close()
                raise
            except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
                failure = self._failed(error)
                await self.close()
        raise SourceError(failure)

    async def stream(self, path: str, body: bytes) -> AsyncIterator[bytes]:
        """The lines of an answer that goes on, each as it comes. Raises SourceError, also where it ends."""
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connected()
        except OSError as error:
            raise SourceError(self._failed(error)) from None
        try:
            async with asyncio.timeout(self._timeout_s):
                status, headers = await connection.ask(path, body, self.token)
            if status != 200:
                async with asyncio.timeout(self._timeout_s):
                    yield await connection.body(headers)
                return
            waiting = bytearray()
            async for piece in connection.pieces(headers):
                waiting += piece
                *lines, rest = waiting.split(b"\n")
                for line in lines:
                    yield bytes(line)
                waiting = bytearray(rest)
                if len(waiting) > BODY_BYTES_MAX:
                    raise SourceError(f"a message of the watch has over {BODY_BYTES_MAX} bytes")
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            raise SourceError(self._failed(error)) from None
        finally:
            await connection.close()

    async def close(self) -> None:
        """Close the kept connection."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.close()

    async def _connected(self) -> Connection:
        at = self._endpoints[0]
        tls = (self._tls or ssl.create_default_context()) if at.tls else None
        reader, writer = await asyncio.open_connection(at.host, at.port, ssl=tls, limit=_LINE_BYTES_MAX)
        return Connection(at, reader, writer)

    def _failed(self, error: Exception) -> str:
        """What went wrong; the next endpoint is asked from now on."""
        at = self._endpoints[0]
        self._endpoints = [*self._endpoints[1:], at]
        if isinstance(error, TimeoutError):
            return f"{at} does not answer within {self._timeout_s:g} s"
        if isinstance(error, asyncio.IncompleteReadError):
            return f"{at} closed the connection"
        return f"{at}: {getattr(error, 'strerror', None) or error}"
