"""Whose connection ends when what let it in counts no more: by time, without waiting."""

from __future__ import annotations

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from metad.server import serve
from metad.server.access import Authorities, Trust


def authorities(*names: str) -> Authorities:
    return Authorities({name.encode(): ((("CN", name),),) for name in names})


TWO, BOTH = authorities("2"), authorities("1", "2")


class Peer:
    """A connection that has shown a certificate."""

    def __init__(self, authorities: Authorities | None, admitted_s: float = 0.0, of: str = "1") -> None:
        self.trust = Trust()
        self.trust.authorities, self.trust.admitted_s = authorities, admitted_s
        self.trust.issuer = ((("CN", of),),)
        self.certificate_ends_s, self.jwt, self.credentials, self.principal = inf, None, b"", None
        self.asked_s = self.closed_s = inf
        self.clock: Any = None

    def goaway(self, why: str) -> None:
        self.asked_s = min(self.asked_s, self.clock.now_s)

    def close(self, error: Exception) -> None:
        self.closed_s = min(self.closed_s, self.clock.now_s)


class Node:
    """What the server's loop looks at: its time goes on by half a second with each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, authorities: Authorities, *peers: Peer) -> None:
        self.now_s = 1_000.0
        self.peers = list(peers)
        for peer in peers:
            peer.clock = self
        self.access = SimpleNamespace(
            accepted=(None, None), authorities=authorities, is_withdrawn=lambda credentials, jwt: False
        )
        permissions = SimpleNamespace(known=SimpleNamespace(changes=0), denies=lambda principal: False)
        environment = SimpleNamespace(wall_ms=lambda: self.now_s * 1_000)
        self.server: Any = SimpleNamespace(
            access=self.access,
            node=SimpleNamespace(environment=environment, permissions=permissions),
            _connections=self.peers,
        )
        self.until_s = self.now_s
        self.changes: list[tuple[float, Authorities | Peer]] = []
        monkeypatch.setattr(serve.asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        if not seconds:
            return
        if self.now_s >= self.until_s:
            raise asyncio.CancelledError
        while self.changes and self.changes[0][0] <= self.now_s:
            _, change = self.changes.pop(0)
            if isinstance(change, Peer):
                change.clock, change.trust.admitted_s = self, self.now_s
                self.peers.append(change)
            else:
                self.access.authorities = change
        self.now_s += seconds

    async def look(self, *changes: tuple[float, Authorities | Peer], seconds: float = 30.0) -> None:
        """Go on for so long. Each authorities, and each peer, come so much later than what is before them."""
        when_s = self.now_s
        for after_s, change in changes:
            when_s += after_s
            self.changes.append((when_s, change))
        self.until_s = when_s + seconds
        with pytest.raises(asyncio.CancelledError):
            await serve.Server._watch_principals(self.server)


async def test_an_authority_that_is_gone_takes_its_connections_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, stays, token = Peer(BOTH, of="1"), Peer(BOTH, of="2"), Peer(None)
    node = Node(monkeypatch, BOTH, gone, stays, token)
    await node.look((2.0, TWO))
    assert gone.asked_s < gone.closed_s <= 1_002 + 2 * serve._COME_AGAIN_S + 1
    assert stays.closed_s == stays.asked_s == token.closed_s == token.asked_s == inf


async def test_who_met_a_listener_that_did_not_know_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One had met a listener that knew of an authority before the node did, and others one that heard of its end
    later."""
    before, long_ago, soon, later = Peer(TWO, 999.0), Peer(TWO, 100.0, "2"), Peer(TWO), Peer(TWO)
    node = Node(monkeypatch, BOTH, before, long_ago)
    await node.look((2.0, TWO), (0.5, soon), (2.0, later))
    assert before.closed_s < soon.closed_s < inf
    assert later.closed_s < inf
    assert long_ago.closed_s == inf


async def test_a_certificate_that_ends_sooner_ends_its_connection_then(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Peer(BOTH)
    ends.certificate_ends_s = 1_003.0
    node = Node(monkeypatch, BOTH, ends)
    await node.look((2.0, TWO))
    assert ends.closed_s <= 1_003.5


async def test_all_connections_are_looked_at_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_AT_ONCE", 2)
    peers = [Peer(BOTH) for _ in range(7)]
    node = Node(monkeypatch, BOTH, *peers)
    await node.look((2.0, TWO))
    assert all(peer.closed_s < inf for peer in peers)
