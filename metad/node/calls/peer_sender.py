"""What this node sends to its peers, by whatever connection to each of them is up."""

from __future__ import annotations

from typing import Protocol

from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.connection.peer import Channel
from metad_wire.errors import NotLeaderError
from metad_wire.messages import PeerLink

from ...control.host import Done


class Link(Protocol):
    """A connection to a peer that this node dials."""

    up: bool

    def send(self, data: bytes) -> None:
        """Write a frame, if the connection is up."""

    def call(self, method: int, payload: bytes, done: Done) -> None:
        """Send a request; ``done`` takes the answer."""

    def status(self) -> PeerLink:
        """How the connection is."""


class PeerSender:
    """The links to all peers. Per peer there is one for Raft and requests, and one for snapshots."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._bulk: dict[str, Link] = {}

    def add(self, peer: str, link: Link, *, bulk: bool) -> None:
        """Send to the peer by this link from now on; snapshots, if ``bulk``."""
        (self._bulk if bulk else self._links)[peer] = link

    def remove(self, peer: str, *, bulk: bool) -> None:
        """Send no more by this link."""
        del (self._bulk if bulk else self._links)[peer]

    def statuses(self) -> list[PeerLink]:
        """How the links for Raft and requests are, by peer."""
        return [link.status() for _, link in sorted(self._links.items())]

    def send(self, peer: str, payload: bytes) -> None:
        """Send Raft messages. They may get lost."""
        link = self._links.get(peer)
        if link is not None:
            link.send(encode_frame(FrameType.PEER, payload, 0, Channel.RAFT))

    def send_bulk(self, peer: str, payload: bytes) -> None:
        """Send a piece of a snapshot. It may get lost."""
        link = self._bulk.get(peer)
        if link is not None:
            link.send(encode_frame(FrameType.PEER, payload, 0, Channel.SNAPSHOT))

    def call(self, peer: str, method: int, payload: bytes, done: Done) -> None:
        """Send a request; ``done`` takes the answer, or why there is none."""
        link = self._links.get(peer)
        if link is None or not link.up:
            done(NotLeaderError(f"not connected to {peer}"))
        else:
            link.call(method, payload, done)
