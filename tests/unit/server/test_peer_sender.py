"""What is sent to peers, by the links that there are."""

from __future__ import annotations

from metad.control.host import Done
from metad.node.calls.peer_sender import PeerSender
from metad_wire.connection.frame import FrameDecoder, FrameType
from metad_wire.connection.peer import PEER_FRAME_BYTES_MAX, Channel
from metad_wire.errors import MetadError, NotLeaderError
from metad_wire.messages import PeerLink


class FakeLink:
    def __init__(self, peer: str, *, up: bool = True) -> None:
        self.peer = peer
        self.up = up
        self.decoder = FrameDecoder(PEER_FRAME_BYTES_MAX)
        self.called: list[int] = []

    def send(self, data: bytes) -> None:
        self.decoder.feed(data)

    def call(self, method: int, payload: bytes, done: Done) -> None:
        self.called.append(method)
        done(payload)

    def status(self) -> PeerLink:
        return PeerLink(self.peer, "tcp", self.up, 0)

    def sent(self) -> tuple[FrameType, int, bytes]:
        frame = self.decoder.next()
        assert frame is not None
        return FrameType(frame.type), frame.method, frame.payload


def test_raft_and_snapshots_go_by_links_of_their_own() -> None:
    outbound, link, bulk = PeerSender(), FakeLink("n2"), FakeLink("n2")
    outbound.add("n2", link, bulk=False)
    outbound.add("n2", bulk, bulk=True)
    outbound.send("n2", b"raft")
    outbound.send_bulk("n2", b"part")
    assert link.sent() == (FrameType.PEER, Channel.RAFT, b"raft")
    assert bulk.sent() == (FrameType.PEER, Channel.SNAPSHOT, b"part")
    assert [status.node_id for status in outbound.statuses()] == ["n2"]


def test_what_has_no_link_is_lost_and_a_request_says_so() -> None:
    outbound, answers = PeerSender(), list[bytes | MetadError]()
    outbound.send("n2", b"")
    outbound.send_bulk("n2", b"")
    outbound.call("n2", 1, b"", answers.append)
    outbound.add("n2", FakeLink("n2", up=False), bulk=False)
    outbound.call("n2", 1, b"", answers.append)
    outbound.remove("n2", bulk=False)
    outbound.call("n2", 1, b"", answers.append)
    assert [type(answer) for answer in answers] == [NotLeaderError] * 3
    link = FakeLink("n2")
    outbound.add("n2", link, bulk=False)
    outbound.call("n2", 7, b"asked", answers.append)
    assert (link.called, answers[-1]) == ([7], b"asked")
