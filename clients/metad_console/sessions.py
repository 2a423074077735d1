"""Who looks: a session for each browser that signed in, with a client of the cluster of its own, in memory only.

A session ends when its person signs out, when no page of it was open for a while, or with the console. Then its client
is closed, and its pages are over.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from metad_client import Client, MetadError, Options, connect
from metad_client.errors import ClosedError
from metad_wire.transport.credentials import TlsFiles

from .polling import Poll

SESSIONS_MAX: Final = 32
"""Each has a connection to every node, and a poll each second."""
PAGES_MAX: Final = 32
"""Open pages of one session, those included that were left some seconds ago: each has its listing in memory."""
IDLE_S: Final = 900.0
"""Without an open page, a session lasts for so long: a person comes back from lunch to the sign-in."""
AGE_S: Final = 43_200.0
"""And no session lasts longer than a working day."""
OPENING_MAX: Final = 4
"""Sign-ins at the same time: who guesses tokens waits for the others."""
AGAIN_S: Final = 1.0
"""After a client could not be opened, the next attempt waits for so long."""
WRONG_S: Final = 1.0
"""A sign-in that failed takes at least this long."""


class TooManyError(Exception):
    """There is no room for another session."""


class Session:
    """One person's client, opened by the first who needs it, and what is polled for the pages."""

    def __init__(self, url: str, options: Options, metadctl: Sequence[str], *, may_write: bool, own: bool) -> None:
        self.key = secrets.token_urlsafe(32)
        self.metadctl = tuple(metadctl)
        """How a command line begins that does the same as this session."""
        self.may_write = may_write
        self.is_own = own
        """The identity that the console was started with, instead of one that signed in."""
        self.principal = ""
        self.pages: dict[str, Callable[[], None]] = {}
        """Open pages by id: what ends each."""
        self.began_s = self.used_s = time.monotonic()
        self.tls = options.tls
        self.poll = Poll(self.client, lambda: bool(self.pages))
        self._url, self._options = url, options
        self._client: Client | None = None
        self._lock = asyncio.Lock()
        self._failed_s = -AGAIN_S
        self._error: MetadError | None = None
        self._is_closed = False

    async def client(self) -> Client:
        """The client, opened if it is not yet. Raises MetadError, and ClosedError once the session is over."""
        if self._client is not None and not self._is_closed:
            return self._client
        async with self._lock:
            if self._is_closed:
                raise ClosedError("you are signed out")
            if self._client is not None:
                return self._client
            if self._error is not None and time.monotonic() < self._failed_s + AGAIN_S:
                raise self._error
            try:
                client = await connect(self._url, self._options).open()
                self._client = client
            except MetadError as error:
                self._failed_s, self._error = time.monotonic(), error
                raise
            return client

    def opened(self, page: str, end: Callable[[], None]) -> None:
        """A page is built. ``end`` is called if the session is over before the page is."""
        self.pages[page] = end
        self.used_s = time.monotonic()
        self.poll.wake()

    def left(self, page: str) -> None:
        """A page was closed."""
        self.pages.pop(page, None)
        self.used_s = time.monotonic()

    def is_over(self, now_s: float) -> bool:
        """Whether it is to end: it is too old, or nobody has used it for long."""
        if self.is_own:
            return False
        return now_s > self.began_s + AGE_S or (not self.pages and now_s > self.used_s + IDLE_S)

    async def close(self) -> None:
        """End the pages, and hang up."""
        self._is_closed = True
        for end in list(self.pages.values()):
            end()
        self.pages.clear()
        await self.poll.close()
        async with self._lock:
            client, self._client = self._client, None
        if client is not None:
            await client.close()


class Sessions:
    """All sessions of the console. ``signs_in``: people have sessions of their own; otherwise there is one, for all."""

    def __init__(self, url: str, options: Options, metadctl: Sequence[str], *, may_write: bool, signs_in: bool) -> None:
        self._url, self._options, self._metadctl = url, options, metadctl
        self._may_write = may_write
        self._sessions: dict[str, Session] = {}
        self._opening = 0
        self.own = None if signs_in else Session(url, options, metadctl, may_write=may_write, own=True)
        """The session of everybody, where nobody signs in."""

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str) -> Session | None:
        """The session of a cookie."""
        found = self._sessions.get(key)
        if found is not None and found.is_over(time.monotonic()):
            return None  # the sweep closes it
        return found

    async def sign_in(self, token: bytes) -> Session:
        """A new session for the holder of a token. Raises MetadError if the cluster does not take it, and TooManyError.

        The certificate that the console may have of its own is not shown: the session is the holder's."""
        if self._opening >= OPENING_MAX:
            raise TooManyError("Others sign in at the moment. Try again.")
        begin_s = time.monotonic()
        self._opening += 1
        try:
            session = await self._signed_in(token)
        except MetadError:
            await asyncio.sleep(max(0.0, begin_s + WRONG_S - time.monotonic()))
            raise
        finally:
            self._opening -= 1
        await self.sweep()
        if len(self._sessions) >= SESSIONS_MAX:
            await session.close()
            raise TooManyError(f"{SESSIONS_MAX} people are signed in, and there is no room for more.")
        self._sessions[session.key] = session
        return session

    async def _signed_in(self, token: bytes) -> Session:
        tls = self._options.tls
        options = msgspec.structs.replace(
            self._options,
            credentials=token,
            credentials_file="",
            tls=None if tls is None else TlsFiles(certificate="", key="", ca=tls.ca),
        )
        session = Session(self._url, options, self._metadctl, may_write=self._may_write, own=False)
        try:
            client = await session.client()
            session.principal = (await client.principals.may()).principal
        except BaseException:
            await session.close()
            raise
        return session

    async def end(self, key: str) -> None:
        """Sign out. Nothing happens if there is no such session."""
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.close()

    async def sweep(self) -> None:
        """End the sessions that nobody uses any more."""
        now_s = time.monotonic()
        for key in [key for key, session in self._sessions.items() if session.is_over(now_s)]:
            await self.end(key)

    async def close(self) -> None:
        """End them all."""
        for key in list(self._sessions):
            await self.end(key)
        if self.own is not None:
            await self.own.close()
