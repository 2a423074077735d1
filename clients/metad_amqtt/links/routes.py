"""Who gets a message, and through which broker: an image of all subscriptions, which a watch keeps current."""

from __future__ import annotations

import random
from typing import NamedTuple

from metad_client.topics.subscribers import Subscribers

LifeKey = tuple[str, int]
"""A broker and its epoch."""


class Target(NamedTuple):
    """A client that gets a message, at this QoS at most."""

    client_id: str
    qos: int


class Owner(NamedTuple):
    """Where a client is."""

    life: LifeKey
    connected: bool


class Routes:
    """The image. It knows what has been acknowledged some milliseconds ago, so a client may have gone on since."""

    def __init__(self) -> None:
        self._subscribers: Subscribers[str, int] = Subscribers()
        self._owners: dict[str, Owner] = {}

    def __len__(self) -> int:
        return len(self._subscribers)

    def owner(self, client_id: str) -> Owner | None:
        """Where a client is; None if it has no session."""
        return self._owners.get(client_id)

    def show_owner(self, client_id: str, owner: Owner | None) -> None:
        """A client is somewhere else now. None: it has no session any more."""
        if owner is None:
            self._owners.pop(client_id, None)
        else:
            self._owners[client_id] = owner

    def show_filter(self, client_id: str, filter_: str, qos: int | None) -> None:
        """A client has subscribed, or not any more (None)."""
        if qos is None:
            self._subscribers.remove(filter_, client_id)
        else:
            self._subscribers.add(filter_, client_id, qos)

    def targets(self, topic: str) -> list[Target]:
        """Every client that gets a message of this topic, once, at the highest QoS of its filters that match. Of each
        shared subscription one client does, and a connected one if there is one."""
        found: dict[str, int] = {}
        matched = self._subscribers.match(topic)
        for client_id, qos in matched.subscribers:
            found[client_id] = max(qos, found.get(client_id, 0))
        for group in matched.groups:
            members = list(group.members)
            here = [one for one in members if (owner := self._owners.get(one)) is not None and owner.connected]
            chosen = random.choice(here or members)
            found[chosen] = max(group.members[chosen], found.get(chosen, 0))
        return [Target(client_id, qos) for client_id, qos in found.items()]
