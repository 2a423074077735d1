"""What goes to one connected client: first what waited for it, then what comes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from metad_client import MetadError

from .envelope import Envelope
from .waiting import Found, Waiting, WaitingMessages

HELD_MAX: Final = 1_000
"""Messages that a client has not taken yet. Beyond it, those of QoS 0 are dropped, and the others wait in metad."""
IN_FLIGHT_MAX: Final = 20
"""Messages that a client has not acknowledged yet. The next one waits."""

log = logging.getLogger("metad_client.amqtt")

Send = Callable[[Envelope, Sequence[str]], Awaitable[object]]
"""Sends one message, which has these rows if it has waited, and returns once the client has acknowledged it. Raises if
the client does not."""


class Outbox:
    """Messages of one connection, in order. ``failed`` is called if the client does not acknowledge one. ``restored``:
    what has waited for it until now."""

    def __init__(
        self,
        client_id: str,
        send: Send,
        waiting: WaitingMessages,
        failed: Callable[[], None],
        restored: Found | None = None,
    ) -> None:
        self._client_id = client_id
        self._send = send
        self._waiting = waiting
        self._failed = failed
        self._held: deque[tuple[Envelope, asyncio.Future[bool]]] = deque()
        self._in_flight: set[asyncio.Future[bool]] = set()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._woken = asyncio.Event()
        self._emptier = asyncio.Event()
        self._restored = restored
        self._looks = restored is not None
        self._ended = False

    async def room(self) -> bool:
        """Wait until the client has taken half of what it may leave here. False if the connection has ended."""
        while len(self._held) > HELD_MAX // 2 and not self._ended:
            self._emptier.clear()
            await self._emptier.wait()
        return not self._ended

    def put(self, message: Envelope) -> asyncio.Future[bool]:
        """Send a message when its turn comes. The result is True once the client has it, and False if it was not sent
        or not acknowledged."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._ended or len(self._held) >= HELD_MAX:
            done.set_result(False)
        else:
            self._held.append((message, done))
            self._woken.set()
        return done

    def look(self) -> None:
        """Something waits in metad."""
        self._looks = True
        self._woken.set()

    def end(self) -> None:
        """No more is sent."""
        self._ended = True
        for done in [*self._in_flight, *(done for _, done in self._held)]:
            _resolve(done, False)
        self._held.clear()
        self._emptier.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                if self._looks:
                    self._looks = False
                    await self._deliver_waiting()
                elif self._held:
                    await self._room.acquire()
                    message, done = self._held.popleft()
                    self._emptier.set()
                    self._in_flight.add(done)
                    tasks.create_task(self._deliver(message, done))
                    await asyncio.sleep(0)  # what is begun first is written first
                else:
                    self._woken.clear()
                    await self._woken.wait()

    async def _deliver(self, message: Envelope, done: asyncio.Future[bool]) -> None:
        try:
            _resolve(done, await self._is_sent(message))
        finally:
            self._in_flight.discard(done)
            self._room.release()

    async def _is_sent(self, message: Envelope, waited: Sequence[str] = ()) -> bool:
        try:
            await self._send(message, waited)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - amqtt cancels what waits when a connection ends
            self._failed()
            return False
        return True

    async def _deliver_waiting(self) -> None:
        """Deliver what waits in metad. Each message stays there until the client has acknowledged it."""
        try:
            await self._deliver_all_waiting()
        except MetadError as error:
            log.warning("what waits for %s cannot be read: %s", self._client_id, error)
            self._failed()  # it gets it when it is back

    async def _deliver_all_waiting(self) -> None:
        while True:
            found = self._restored or await self._waiting.read(self._client_id)
            self._restored = None
            if found.rubbish:
                await self._waiting.remove(self._client_id, found.rubbish)
            for begin in range(0, len(found.messages), IN_FLIGHT_MAX):
                if not await self._are_sent(found.messages[begin : begin + IN_FLIGHT_MAX]):
                    return
            if not found.messages:
                return

    async def _are_sent(self, part: Sequence[Waiting]) -> bool:
        sent = await asyncio.gather(*(self._is_sent(one.message, one.names) for one in part))
        await self._waiting.remove(
            self._client_id,
            [name for one, is_sent in zip(part, sent, strict=True) if is_sent for name in one.names],
        )
        return all(sent)


def _resolve(done: asyncio.Future[bool], value: bool) -> None:
    if not done.done():
        done.set_result(value)
