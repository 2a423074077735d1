"""What the HTTP port of a machine shows: that of all workers together. Each has a socket of its own, which only their
supervisor may open. It asks all at the same time, so whoever stands still costs a bounded wait and hides nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from metad_wire.errors import OverloadedError, PermissionDeniedError

from .http_port import ASKER, LOOP_S, Asker, Page, Readiness
from .metrics import merged, page_of_missing

_WITHIN_S: Final = LOOP_S + 0.5
"""A worker says by itself, after :data:`LOOP_S`, that its loop does not answer."""
_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a page: with 1,000 groups it has some 10 MB."""


class _Answer(NamedTuple):
    status: int
    """0: there is none."""
    content_type: str
    text: str


class ShowsWorkers:
    """Asks the workers that run."""

    within_s = _WITHIN_S + 0.5

    def __init__(self, sockets: Callable[[], Mapping[str, str]]) -> None:
        """``sockets``: node id -> path of its socket, or empty while it does not run."""
        self._sockets = sockets

    async def readiness(self, asker: Asker) -> Readiness:
        """Find what any of them is not ready for."""
        checks: dict[str, str] = {}
        for node, answer in (await self._all("/readyz?verbose", asker, "")).items():
            lines = [line for line in answer.text.splitlines() if line.startswith(("[+] ", "[-] "))]
            if not lines:
                checks[node] = answer.text.strip()
            for line in lines:
                name, _, why = line[4:].partition(": ")
                checks[f"{node} {name}"] = why if line.startswith("[-]") else ""
        return Readiness(checks)

    async def metrics(self, asker: Asker, accept: str) -> Page:
        """Read what each shows. Raises OverloadedError if none answers."""
        answers = await self._all("/metrics", asker, accept)
        there = {node: answer for node, answer in answers.items() if answer.status == 200}
        if not there:
            raise OverloadedError("no worker answers")
        return partial(_page, there, answers.keys() - there.keys(), accept)

    async def _all(self, target: str, asker: Asker, accept: str) -> dict[str, _Answer]:
        """By node id. Raises PermissionDeniedError."""
        sockets = self._sockets()
        head = [f"GET {target} HTTP/1.0", f"Accept: {accept}"]
        if asker.principal is not None:
            head.append(f"{ASKER}: {asker.principal.uri} {asker.host}")
        request = "\r\n".join([*head, "", ""]).encode()
        answers = await asyncio.gather(*(_ask(path, request) for path in sockets.values()))
        for answer in answers:
            if answer.status == 403:
                raise PermissionDeniedError(answer.text.strip())
        return dict(zip(sockets, answers, strict=True))


def _page(there: Mapping[str, _Answer], missing: Iterable[str], accept: str) -> tuple[bytes, str]:
    pages = {node: answer.text for node, answer in there.items()}
    if missing:
        pages[""] = page_of_missing(missing, accept)
    return merged(pages).encode(), next(iter(there.values())).content_type


async def _ask(path: str, request: bytes) -> _Answer:
    """What one worker says."""
    if not path:
        return _Answer(0, "", "the process does not run")
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_WITHIN_S):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(request)
            answer = await reader.read(_BYTES_MAX)
            while more := await reader.read(_BYTES_MAX - len(answer)):
                answer += more
    except TimeoutError:
        return _Answer(0, "", f"the process did not answer within {_WITHIN_S} s")
    except OSError as error:
        return _Answer(0, "", f"the process does not answer: {error.strerror or error}")
    finally:
        if writer is not None:
            writer.transport.abort()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    status = first.split(" ", 2)[1:2]
    if not status or not status[0].isdigit() or len(body) != int(fields.get("content-length", "-1")):
        return _Answer(0, "", "the process has ended in the middle of its answer")
    return _Answer(int(status[0]), fields.get("content-type", ""), body.decode())
