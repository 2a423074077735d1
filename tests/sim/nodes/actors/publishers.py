"""Programs that retain messages, and some that look for them by filter. Each topic is a register, which the judge of
linearizability looks at, whether it was read by its name or by a filter."""

from __future__ import annotations

from metad_client import Client
from metad_judge.linearizability import Kind, Operation

from ..cluster import SimClient
from .actor import Actor

_TENANT = "retains"
_LONG_S = 1_000  # no run lasts so long
_TOPICS = ("a/1/x", "a/2/x", "a/2/x/y", "b")
_FILTERS = {"a/+/x": _TOPICS[:2], "a/#": _TOPICS[:3], "#": _TOPICS, "b": _TOPICS[3:], "+/2/x/+": _TOPICS[2:3]}


class Publisher(Actor):
    """One such program."""

    async def live(self, sim: SimClient, client: Client) -> None:
        """See Actor."""
        while not self.quiet:
            kinds: list[Kind] = ["put", "put", "delete", "get"]
            kind = self._rng.choice(kinds)
            if self.chance(0.4):
                await self._match(client)
            else:
                await self._one(client, kind, self._rng.choice(_TOPICS))
            await self.pause(0.02, 0.2)

    def _note(
        self, topic: str, kind: Kind, argument: str | None, result: str | None, asked: int, *, answered: bool
    ) -> None:
        history = self._cluster.history
        returned = history.now() if answered else None
        history.operations.append(Operation(("retained", topic), kind, argument, result, asked, returned))

    async def _one(self, client: Client, kind: Kind, topic: str) -> None:
        asked, retained = self._cluster.history.now(), client.retained
        if kind == "get":
            outcome, found = await self.ask(f"get {topic}", retained.get(_TENANT, topic))
            if outcome == "done":
                value = None if found is None else found.payload.decode()
                self._note(topic, "get", None, value, asked, answered=True)
            return
        text = self.unique() if kind == "put" else None
        payload = b"" if text is None else text.encode()
        lasts_s = _LONG_S if self.chance(0.3) else None
        # It may be killed before it hears, so it is noted before it is done.
        history = self._cluster.history
        position = len(history.operations)
        self._note(topic, kind, text, None, asked, answered=False)
        noted = history.operations[position]
        outcome, _ = await self.ask(
            f"{kind} {topic} {text}", retained.put(_TENANT, topic, payload, expiry_interval_s=lasts_s)
        )
        if outcome != "unknown":
            history.operations.remove(noted)
        if outcome == "done":
            self._note(topic, kind, text, None, asked, answered=True)

    async def _match(self, client: Client) -> None:
        filter_ = self._rng.choice([*_FILTERS])
        asked, found = self._cluster.history.now(), dict.fromkeys(_FILTERS[filter_], "")

        async def matched() -> None:
            async for message in client.retained.match(_TENANT, filter_, page_size=self._rng.choice([1, 2, 1000])):
                found[message.topic] = message.payload.decode()

        outcome, _ = await self.ask(f"match {filter_}", matched())
        if outcome == "done":
            for topic, value in found.items():
                self._note(topic, "get", None, value or None, asked, answered=True)
