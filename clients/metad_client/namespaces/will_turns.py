"""Waits for this broker's turn to claim wills.

The leader of each group gives turns: to one broker at a time, when there is something to claim. So there is one request
under way in each group, which is answered when it is this broker's turn, and is made anew when it has waited for long.
A turn that comes while the broker does something else is kept here: if it was too long ago, another broker has had one
since, and a claim finds what that one has left.
"""

from __future__ import annotations

import asyncio

from metad_wire import methods
from metad_wire.tables.will import WILL_WAIT_MS_MAX, WillWait

from ..errors import DeadlineExceededError, MetadError, StaleRouteError
from ..requests.requests import Requests

_ANSWER_S = 5.0
"""The answer to a wait that is over comes within this, or the group is asked again."""


_GROUPS_S = 1.0
"""How often to look whether the client knows of other groups."""


class Turns:
    """Those of one broker."""

    def __init__(
        self,
        requests: Requests,
        broker: str,
        broker_epoch: int,
        tenant: str | None,
        poll_s: float,
        deadline_s: float | None,
    ) -> None:
        self._requests = requests
        self._broker = broker
        self._broker_epoch = broker_epoch
        self._tenant = tenant
        self._wait_s = min(poll_s, WILL_WAIT_MS_MAX / 1000)
        self._deadline_s = deadline_s
        self._waits: dict[str, asyncio.Task[bytes]] = {}

    async def next(self) -> dict[str, bytes]:
        """Wait until it is this broker's turn. Returns in which groups, and behind which cursor there is something to
        claim. Raises MetadError: FencedError once this life of the broker is over."""
        while True:
            try:
                groups = await self._requests.groups(methods.WILL_WAIT, self._deadline_s)
            except DeadlineExceededError:
                continue  # nobody answers
            for group in self._waits.keys() - groups:
                self._waits.pop(group).cancel()
            for group in groups:
                if group not in self._waits:
                    self._waits[group] = asyncio.create_task(self._wait(group))
            done, _ = await asyncio.wait(
                self._waits.values(), timeout=min(self._wait_s, _GROUPS_S), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                over = [group for group, wait in self._waits.items() if wait in done]
                return {group: self._waits.pop(group).result() for group in over}

    async def close(self) -> None:
        """Wait no more."""
        waits = [*self._waits.values()]
        self._waits.clear()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _wait(self, group: str) -> bytes:
        """Wait for a turn in a group."""
        loop = asyncio.get_running_loop()
        asked = WillWait(self._broker, self._broker_epoch, max(1, round(1000 * self._wait_s)), self._tenant)
        while True:
            again_s = loop.time() + self._wait_s
            try:
                reply = await self._requests.one(methods.WILL_WAIT, asked, self._wait_s + _ANSWER_S, group=group)
                if reply.claimable:
                    return reply.cursor
            except StaleRouteError:
                continue  # a newer map is there; the slots may be in a group that is new
            except MetadError as error:
                if not (error.retryable or isinstance(error, DeadlineExceededError)):
                    raise
            await asyncio.sleep(again_s - loop.time())  # after an error
