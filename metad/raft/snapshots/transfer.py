"""A snapshot's way from one node to another: numbered parts, few of them unacknowledged, verified and staged.

Beside the Raft channel, which a gigabyte would hold up. A stream is begun, which the receiver may refuse; then its
parts follow, and its end, which says what all of them were. What is lost or arrives damaged is sent again, what arrives
twice is acknowledged twice. Knows neither network nor disk nor what the parts hold.

::

    sender                          receiver
    Begin(group, stream)      ->
                              <-    PartReply(staged=0)
    Part(1), Part(2)          ->
                              <-    PartReply(staged=1)     each once it is staged
    Part(3)                   ->
    ...
    End(parts, bytes, crc32)  ->
                              <-    PartReply(staged=n, complete=True)

Either side gives up by saying so: Abandon, or PartReply(refused=why).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from metad_wire.text.fields import U32, U63

from ...errors import StorageError
from ...storage.engine import PART_BYTES, Export
from ..base import NEVER
from ..replicas import PeerProtocolError
from .staging import Staging

MIB: Final = 1024 * 1024
STREAM_ID_CHARACTERS_MAX: Final = 64


class StreamLimits(NamedTuple):
    """Of all streams of a node. Seconds and bytes."""

    part_bytes: int = PART_BYTES
    window: int = 2
    """Messages of a stream without an answer. Two keep the network busy while the receiver's disk works."""
    sending_max: int = 2
    """Streams sent at a time, one per peer at most: each holds back what the store has overwritten since it began."""
    resend_s: float = 10.0
    timeout_s: float = 30.0
    """A peer that stages nothing for this long is given up."""
    rest_s: float = 0.001
    """Between two slices of work (some 2 ms each), for everything else the node does."""
    retry_s: float = 1.0
    """Between a stream that failed and the next to that peer; and how soon a begin is sent again."""
    install_timeout_s: float = 60.0
    """A peer that has not installed by then begins again. If it is only slow, it refuses the new stream meanwhile."""
    stale_s: float = 90.0
    """A stream that is neither continued nor installed for this long is dropped."""
    streams_per_peer_max: int = 4
    """Received from one peer, those that wait to be installed included."""
    staged_bytes_max: int = 64 * 1024 * MIB
    """Of all staged parts together."""


class StreamMessage(msgspec.Struct, frozen=True, array_like=True):
    """Base of every message. Arrays grow at their end only."""

    group: bytes
    """Group prefix."""
    stream: str
    """Chosen by the sender, at most 64 characters, never reused."""


class Begin(StreamMessage, frozen=True, tag=1):
    """May I send you a snapshot of this group?"""


class Part(StreamMessage, frozen=True, tag=2):
    """The number-th part, from 1 on, and its checksum."""

    number: U63
    """1 for the first."""
    crc32: U32
    """CRC-32 of ``data``; a part that does not match is treated as lost."""
    data: bytes


class End(StreamMessage, frozen=True, tag=3):
    """There were so many parts of so many bytes together; ``crc32`` is of the parts' checksums, each 4 bytes
    big-endian."""

    parts: U63
    """Number of parts."""
    bytes: U63
    """Sum of their sizes."""
    crc32: U32
    """CRC-32 of the parts' ``crc32`` values, each as u32, big-endian."""


class PartReply(StreamMessage, frozen=True, tag=4):
    """Parts 1 to ``staged`` are staged. ``complete``: and there are no more. ``refused``: why the stream is over."""

    staged: U63
    """Parts 1 to this are on the receiver's disk."""
    complete: bool = False
    """All parts of the stream are."""
    refused: str = ""
    """Why the stream has ended; empty: it has not."""


class Abandon(StreamMessage, frozen=True, tag=5):
    """The sender has given up."""


AnyStreamMessage = Begin | Part | End | PartReply | Abandon


class _Sum:
    """What :class:`End` says of the parts, as they come."""

    def __init__(self) -> None:
        self.parts = 0
        self.bytes = 0
        self.crc32 = 0

    def add(self, data: bytes, checksum: int) -> None:
        self.parts += 1
        self.bytes += len(data)
        self.crc32 = crc32(checksum.to_bytes(4, "big"), self.crc32)

    def agrees(self, end: End) -> bool:
        return (self.parts, self.bytes, self.crc32) == (end.parts, end.bytes, end.crc32)


class SnapshotSender:
    """One stream to one peer. ``open_parts`` is called once the peer wants it. Over when :attr:`complete`, or when
    :attr:`failure` says why it will not be."""

    def __init__(
        self,
        group: bytes,
        stream: str,
        open_parts: Callable[[], Export],
        send: Callable[[AnyStreamMessage], None],
        limits: StreamLimits,
        now: float,
    ) -> None:
        self.group = group
        self.stream = stream
        self.complete = False
        self.failure: str | None = None
        self._open_parts = open_parts
        self._parts: Export | None = None
        self._send = send
        self._limits = limits
        self._sum = _Sum()
        self._ended = False
        self._unanswered: deque[tuple[int, AnyStreamMessage]] = deque()  # by number; 0 is the begin
        self._waiting_s = now  # since when for the next answer
        self._resend_s = now
        self._post(0, Begin(group, stream), now)

    @property
    def over(self) -> bool:
        """Nothing more will happen."""
        return self.complete or self.failure is not None

    @property
    def ready(self) -> bool:
        """Whether :meth:`step` has something to do."""
        waiting = self._unanswered
        if self.over or self._ended or len(waiting) >= self._limits.window:
            return False
        return not waiting or waiting[0][0] != 0

    @property
    def deadline_s(self) -> float:
        """When :meth:`tick` has."""
        if self.over or not self._unanswered:
            return NEVER
        return min(self._waiting_s + self._limits.timeout_s, self._resend_s)

    def step(self, now: float) -> None:
        """One slice of work: some 2 ms. Raises StorageError where the parts cannot be read."""
        if not self.ready:
            return
        if self._parts is None:
            self._parts = self._open_parts()
        data = next(self._parts, None)
        if data is None:
            self._ended = True
            total = self._sum
            end = End(self.group, self.stream, total.parts, total.bytes, total.crc32)
            self._post(total.parts + 1, end, now)
        elif data:
            checksum = crc32(data)
            self._sum.add(data, checksum)
            number = self._sum.parts
            self._post(number, Part(self.group, self.stream, number, checksum, data), now)

    def on_reply(self, reply: PartReply, now: float) -> None:
        """The peer's answer. Raises PeerProtocolError where it is none to what was sent."""
        if self.failure is not None:
            return
        if reply.refused:  # be it a complete one, that it does not have any more
            self._fail(reply.refused)
            return
        if self.complete:
            return
        if not 0 <= reply.staged <= self._sum.parts or (reply.complete and not self._ended):
            raise PeerProtocolError(f"acknowledges part {reply.staged} of {self._sum.parts}")
        waiting = self._unanswered
        while waiting and (waiting[0][0] <= reply.staged or reply.complete):
            waiting.popleft()
            self._waiting_s = now
            self._resend_later(now)
        self.complete = reply.complete
        if self.complete:
            self._close()

    def tick(self, now: float) -> None:
        """Send again what is not answered, or give up."""
        if now < self.deadline_s:
            return
        if now >= self._waiting_s + self._limits.timeout_s:
            self.abandon(f"no answer for {self._limits.timeout_s:g} s")
            return
        self._resend_later(now)
        for _, message in self._unanswered:
            self._send(message)

    def abandon(self, why: str) -> None:
        """Give up and say so to the peer, which may have all of it and wait for the order to install it."""
        if self.failure is None:
            self._fail(why)
            self._send(Abandon(self.group, self.stream))

    def _post(self, number: int, message: AnyStreamMessage, now: float) -> None:
        if not self._unanswered:
            self._waiting_s = now
        self._unanswered.append((number, message))
        if len(self._unanswered) == 1:
            self._resend_later(now)
        self._send(message)

    def _resend_later(self, now: float) -> None:
        beginning = bool(self._unanswered) and self._unanswered[0][0] == 0
        self._resend_s = now + (self._limits.retry_s if beginning else self._limits.resend_s)

    def _fail(self, why: str) -> None:
        self.failure = why
        self._close()

    def _close(self) -> None:
        self._unanswered.clear()
        if self._parts is not None:
            self._parts.close()


NO_ROOM: Final = "the disk has too little room for a snapshot"


class _Incoming:
    """A stream that is being received, or waits to be installed."""

    def __init__(self, peer: str, group: bytes, stream: str, number: int, now: float) -> None:
        self.peer = peer
        self.group = group
        self.stream = stream
        self.number = number  # for the staging: nothing that a peer says becomes the name of a file
        self.sum = _Sum()  # of what was taken
        self.staged = 0
        self.end: End | None = None
        self.complete = False
        self.installing = False
        self.heard_s = now


class SnapshotReceiver:
    """All streams to this node. ``receives`` says whether it has a replica of a group, ``has_room`` whether its disk
    has room for so many bytes more; ``send`` answers a peer.

    A snapshot takes its size twice, because it is installed from a copy. Its size is not known before its end. One that
    found no room is taken again once there is room for twice what had come of it, so that it does not fill the disk
    again and again in vain."""

    def __init__(
        self,
        staging: Staging,
        limits: StreamLimits,
        *,
        receives: Callable[[bytes], bool],
        has_room: Callable[[int], bool],
        send: Callable[[str, AnyStreamMessage], None],
    ) -> None:
        self._staging = staging
        self._limits = limits
        self._receives = receives
        self._has_room = has_room
        self._needs: dict[bytes, int] = {}  # bytes of room, by group, of snapshots that found too little
        self._send = send
        self._streams: dict[tuple[bytes, str], _Incoming] = {}
        self._number = 0

    @property
    def staged_bytes(self) -> int:
        """Of all streams together."""
        return sum(incoming.sum.bytes for incoming in self._streams.values())

    @property
    def deadline_s(self) -> float:
        """When :meth:`tick` has something to do."""
        heard = [incoming.heard_s for incoming in self._streams.values() if not incoming.installing]
        return min(heard) + self._limits.stale_s if heard else NEVER

    def on_message(self, peer: str, message: Begin | Part | End | Abandon, now: float) -> None:
        """From a peer. Raises PeerProtocolError where no sender sends it."""
        if len(message.stream) > STREAM_ID_CHARACTERS_MAX:
            raise PeerProtocolError("the name of a stream is too long")
        incoming = self._streams.get((message.group, message.stream))
        if isinstance(message, Abandon):
            if incoming is not None and incoming.peer == peer and not incoming.installing:
                self._drop(incoming)
        elif incoming is not None and incoming.peer == peer:
            incoming.heard_s = now
            if isinstance(message, Part):
                self._on_part(incoming, message)
            elif isinstance(message, End):
                self._on_end(incoming, message)
            else:
                self._answer(incoming)
        elif isinstance(message, Begin) and incoming is None:
            self._on_begin(peer, message, now)
        else:
            self._refuse(peer, message.group, message.stream, "no such stream")

    def _on_begin(self, peer: str, message: Begin, now: float) -> None:
        # A sender has one stream per group: an older one of it is over.
        for other in [i for i in self._streams.values() if i.group == message.group and i.peer == peer]:
            if not other.installing:
                self._drop(other)
        why = self._refusal(peer, message.group)
        if why is not None:
            self._refuse(peer, message.group, message.stream, why)
            return
        self._number += 1
        incoming = _Incoming(peer, message.group, message.stream, self._number, now)
        self._streams[message.group, message.stream] = incoming
        self._answer(incoming)

    def _refusal(self, peer: str, group: bytes) -> str | None:
        streams = self._streams.values()
        if not self._receives(group):
            return "no replica of this group is here"
        if any(incoming.installing for incoming in streams if incoming.group == group):
            return "another snapshot of this group is being installed"
        if sum(incoming.peer == peer for incoming in streams) >= self._limits.streams_per_peer_max:
            return "too many streams"
        if self.staged_bytes >= self._limits.staged_bytes_max:
            return "too many bytes are staged"
        if not self._has_room(self._needs.get(group, 0)):
            return NO_ROOM
        return None

    def _lacks_room(self, incoming: _Incoming, size: int) -> bool:
        """Whether there is no room for so many bytes more of a snapshot; then it is given up."""
        if self._has_room(size):
            return False
        self._needs[incoming.group] = 2 * (incoming.sum.bytes + size)
        self._give_up(incoming, NO_ROOM)
        return True

    def _on_part(self, incoming: _Incoming, message: Part) -> None:
        taken = incoming.sum.parts
        if message.number < 1:
            raise PeerProtocolError(f"part {message.number} of a snapshot")
        if incoming.end is not None and message.number > incoming.end.parts:
            raise PeerProtocolError(f"part {message.number} behind the end of a snapshot")
        if message.number <= taken or message.number > taken + 1 or crc32(message.data) != message.crc32:
            # A repetition, a gap, or damaged: what is missing is sent again.
            self._answer(incoming)
            return
        if message.number - incoming.staged > self._limits.window:
            return  # no sender of ours does this, and memory is bounded
        if self.staged_bytes + len(message.data) > self._limits.staged_bytes_max:
            self._give_up(incoming, "too many bytes are staged")
            return
        if self._lacks_room(incoming, len(message.data)):
            return
        incoming.sum.add(message.data, message.crc32)
        self._staging.put(incoming.number, message.number, message.data, partial(self._staged, incoming))

    def _staged(self, incoming: _Incoming, error: StorageError | None) -> None:
        if self._streams.get((incoming.group, incoming.stream)) is not incoming:
            return  # dropped meanwhile
        if error is not None:
            self._give_up(incoming, str(error))
            return
        incoming.staged += 1
        self._finish(incoming)

    def _on_end(self, incoming: _Incoming, message: End) -> None:
        if incoming.end is not None and incoming.end != message:
            raise PeerProtocolError("a snapshot with two ends")
        if message.parts < incoming.sum.parts:
            raise PeerProtocolError("a snapshot that ends before its last part")
        # One that overtook a part is not kept: it will come again with the part.
        if message.parts == incoming.sum.parts:
            if not incoming.sum.agrees(message):
                self._give_up(incoming, "the parts are not those that were sent")
                return
            if incoming.end is None and self._lacks_room(incoming, message.bytes):
                return
            self._needs.pop(incoming.group, None)
            incoming.end = message
        self._finish(incoming)

    def _finish(self, incoming: _Incoming) -> None:
        incoming.complete = incoming.end is not None and incoming.staged == incoming.end.parts
        self._answer(incoming)

    def has(self, group: bytes, stream: str) -> bool:
        """Whether a stream is here, be it not complete yet or being installed."""
        return (group, stream) in self._streams

    def receives(self, group: bytes) -> bool:
        """Whether any stream of a group is here."""
        return any(incoming.group == group for incoming in self._streams.values())

    def take(self, group: bytes, stream: str) -> list[bytes | Path] | None:
        """The parts of a complete stream, to be installed: it stays until :meth:`release`. None where there is no such
        stream, or it was taken before."""
        incoming = self._streams.get((group, stream))
        if incoming is None or not incoming.complete or incoming.installing:
            return None
        incoming.installing = True
        return self._staging.parts(incoming.number, incoming.staged)

    def release(self, group: bytes, stream: str) -> None:
        """It is installed, or never will be."""
        incoming = self._streams.get((group, stream))
        if incoming is not None:
            self._drop(incoming)

    def peer_lost(self, peer: str) -> None:
        """Nothing will follow what it has sent."""
        self._drop_where(lambda incoming: incoming.peer == peer)

    def group_closed(self, group: bytes) -> None:
        """The node has no replica of it any more."""
        self._drop_where(lambda incoming: incoming.group == group)

    def tick(self, now: float) -> None:
        """Drop what nobody continues."""
        self._drop_where(lambda incoming: now >= incoming.heard_s + self._limits.stale_s)

    def _drop_where(self, over: Callable[[_Incoming], bool]) -> None:
        for incoming in [incoming for incoming in self._streams.values() if over(incoming)]:
            if not incoming.installing:
                self._drop(incoming)

    def _drop(self, incoming: _Incoming) -> None:
        del self._streams[incoming.group, incoming.stream]
        self._staging.drop(incoming.number)

    def _give_up(self, incoming: _Incoming, why: str) -> None:
        self._drop(incoming)
        self._refuse(incoming.peer, incoming.group, incoming.stream, why)

    def _answer(self, incoming: _Incoming) -> None:
        reply = PartReply(incoming.group, incoming.stream, incoming.staged, incoming.complete)
        self._send(incoming.peer, reply)

    def _refuse(self, peer: str, group: bytes, stream: str, why: str) -> None:
        self._send(peer, PartReply(group, stream, 0, False, why))
