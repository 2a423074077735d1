"""Brokers that wait for their turns to claim wills: one of them hears of a will at once, and no will is left where the
leader changes, slots move, or a broker does not use its turn or dies with what it has claimed."""

from __future__ import annotations

from typing import Any, Final

from metad.config import ExpiryConfig
from metad_client import Client, SessionProperties, Will
from metad_wire.methods import WILL_WAIT
from metad_wire.tables.will import WillWait

from ..cluster import DATA, SimClient
from .scene import Scene, scenario

_AMNESTY_S: Final = 1.0
_AT_ONCE_S: Final = 0.3
"""A will is published so soon after it is due: the looks at all wills are rarer."""
_BY_AND_BY_S: Final = 3.0
"""The same where nobody tells of it."""
_LONG_S: Final = 60.0


class Stage(Scene):
    """A scene with brokers that publish wills."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(1, **{"expiry": ExpiryConfig(amnesty_ms=int(1000 * _AMNESTY_S)), **settings})
        self.published: list[str] = []

    def publisher(self, broker: str) -> SimClient:
        """A broker begins to publish wills."""
        sim = self.client()

        async def publish(client: Client) -> None:
            async for taken in client.wills.due(broker, 1, poll_s=_LONG_S):
                self.published.append(taken.key.client_id)

        self.begin(sim, publish)
        self.run(_AMNESTY_S)
        return sim

    def go(self, name: str) -> None:
        """A client comes, and goes without a word: its will is due."""

        async def go(client: Client) -> None:
            properties = SessionProperties(600, b"", Will("gone"))
            await client.sessions.takeover("b0", 1, "t", name, properties=properties)
            await client.sessions.disconnect("b0", 1, "t", name)

        self.ask(self.one, go, 20.0)

    def require(self, *names: str, within_s: float = _AT_ONCE_S) -> None:
        """These wills are published, each once, the last of them soon."""
        self.run_until(lambda: len(self.published) >= len(names), within_s)
        assert sorted(self.published) == sorted(names), f"{self.published} are published, not {names}"


@scenario
def a_will_is_published_at_once_by_one_broker_whoever_leads() -> None:
    """A leader hands over, and one is killed, with brokers that wait."""
    with Stage() as scene:
        for broker in ("b1", "b2", "b3"):
            scene.publisher(broker)
        names = [f"device-{number}" for number in range(5)]
        for count, name in enumerate(names, 1):
            scene.go(name)
            scene.require(*names[:count])
            scene.run(0.3)  # so that the looks at all wills come at other moments
        leader = scene.lead(DATA).name
        scene.transfer(next(name for name in scene.nodes if name != leader))
        scene.run(_AMNESTY_S)
        scene.go("b")
        scene.require(*names, "b")
        scene.lead(DATA).crash(power=True)
        scene.lead(DATA)
        scene.run(2 * _AMNESTY_S)
        scene.go("c")
        scene.require(*names, "b", "c")


@scenario
def a_broker_that_does_not_use_its_turn_is_passed_over() -> None:
    """It has waited the longest, and does nothing when it is told."""
    with Stage() as scene:
        scene.run(_AMNESTY_S)
        hung = scene.client()

        async def wait(client: Client) -> bool:
            asked = WillWait("hung", 1, int(1000 * _LONG_S))
            reply = await client.wills._requests.one(WILL_WAIT, asked, 2 * _LONG_S, group="data-0")
            return reply.claimable

        told = scene.begin(hung, wait)
        scene.run(0.2)
        scene.publisher("b1")
        scene.go("a")
        scene.require("a")
        assert told.done(), "it was not its turn"


@scenario
def what_a_dead_broker_has_claimed_is_published_where_its_slots_have_moved_to() -> None:
    """Nobody tells of claims that are over, nor of wills that come with slots."""
    with Stage(data=2) as scene:
        scene.move(1, 0)
        scene.run(_AMNESTY_S)
        names = [f"device-{number}" for number in range(10)]
        for name in names:
            scene.go(name)
        claimed = scene.ask(scene.two, lambda client: client.wills.claim("dead", 1, lease_s=6.0))
        assert len(claimed) == len(names)
        scene.publisher("b1")
        scene.run(2.0)
        scene.move(0, 1)
        assert scene.published == []
        scene.run(6.0)
        scene.require(*names, within_s=_BY_AND_BY_S)
