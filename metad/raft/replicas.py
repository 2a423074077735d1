"""All groups of a node, and what they say to other nodes. Without I/O: whoever drives it brings clock and network.

One turn lets every group with something to do act, hands all their log writes to the disk at once, and sends each peer
one payload with everything all groups have for it; heartbeats of groups that beat together travel together.

A payload is a msgpack array of [group prefix, message]. It is checked before any rule of Raft sees it. The rules take
for granted that terms only grow within a log, and that numbers are what they count. A peer is another process, perhaps
of another version, perhaps not one of ours at all: what breaks this costs it its connection, and must not stop the node
that it was sent to.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Collection
from itertools import repeat
from typing import Final, Protocol

import msgspec

from metad_wire.method import MALFORMED

from .. import log_events
from ..logs import event
from ..storage.log import LogWriter
from .base import NEVER, GroupObserver, Timing, Traffic, UnsafeStateError
from .log.journal import CONFIGURATION, HEADER, REGULAR, RaftLog
from .messages import AnyMessage, Append, Configuration, Snapshot
from .replica import RaftGroup

TERM_JUMP_MAX: Final = 1 << 24
"""How far above its own a replica believes a term. A term is taken over before anything else and never taken back, so
one message of term 2**62 would leave a group no terms to elect in. The honest jump is the number of elections that a
replica has missed: 2**24, at the default timeout, are a hundred days in which its group does nothing but elect. Who
climbs to the last term in such steps has 2**39 of them to make."""

_decode = msgspec.msgpack.Decoder(list[tuple[bytes, AnyMessage]]).decode
_decode_configuration = msgspec.msgpack.Decoder(Configuration).decode


class PeerProtocolError(Exception):
    """A peer has sent what no node of this cluster sends."""


def decode_payload(payload: bytes) -> list[tuple[bytes, AnyMessage]]:
    """Messages, each with its group's prefix. Raises PeerProtocolError."""
    try:
        messages = _decode(payload)
        for _, message in messages:
            if isinstance(message, Append):
                _check_records(message)
            elif isinstance(message, Snapshot) and message.index_term > message.term:
                raise PeerProtocolError(f"a snapshot of term {message.index_term} in term {message.term}")
    except (*MALFORMED, struct.error) as error:
        raise PeerProtocolError(f"unreadable: {error}") from None
    return messages


def _check_records(message: Append) -> None:
    before = message.prev_term
    if before > message.term:
        raise PeerProtocolError(f"an append behind term {before} in {message.term}")
    plain = HEADER.pack(message.term, REGULAR)
    if all(map(bytes.startswith, message.records, repeat(plain))):  # as nearly all are, and not a loop of Python
        return
    for record in message.records:
        term, kind = HEADER.unpack_from(record)
        if not before <= term <= message.term or kind > CONFIGURATION:
            raise PeerProtocolError(f"a record of term {term} and kind {kind} behind term {before} in {message.term}")
        if kind == CONFIGURATION:
            _decode_configuration(record[HEADER.size :])
        before = term


PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Records of one payload, give or take one message."""

_encode = msgspec.msgpack.Encoder().encode


class Observer(GroupObserver[RaftGroup], Protocol):
    """The node: told when its groups change, and when they must stop."""

    def unsafe(self, error: UnsafeStateError) -> None:
        """A rule is broken: stop."""

    def drained(self) -> Collection[str]:
        """The nodes that are to lead nothing while others can."""


class Replicas:
    """The host of a node's groups. ``schedule`` asks for a :meth:`turn` soon, ``transmit`` takes a peer's payload,
    ``crowded`` says whether many requests wait on the node, ``shortage`` how its disk is."""

    def __init__(
        self,
        node_id: str,
        writer: LogWriter,
        observer: Observer,
        *,
        clock: Callable[[], float],
        calendar: Callable[[], float],
        schedule: Callable[[], None],
        transmit: Callable[[str, bytes], None],
        crowded: Callable[[], bool],
        shortage: Callable[[], int],
        timing: Timing,
        rng: random.Random,
    ) -> None:
        self.node_id = node_id
        self.groups: dict[bytes, RaftGroup] = {}
        self.connected: set[str] = set()
        self.timing = timing
        self.now = clock
        self.calendar = calendar
        self._writer = writer
        self._observer = observer
        self.crowded = crowded
        self.shortage = shortage
        self._schedule = schedule
        self._transmit = transmit
        self._rng = rng
        self._woken: dict[RaftGroup, None] = {}
        self._due_s = NEVER  # no deadline is earlier; while nothing but the woken act, it may be that of none
        self._traffic: dict[str, Traffic] = {}
        self._outbox: dict[str, list[tuple[bytes, AnyMessage]]] = {}
        self.committed = observer.committed
        self.role_changed = observer.role_changed
        self.configured = observer.configured
        self.snapshot_wanted = observer.snapshot_wanted
        self.install_snapshot = observer.install_snapshot

    def open(self, log: RaftLog, *, applied: int) -> RaftGroup:
        """Take a group's replica into the node."""
        group = RaftGroup(
            self.node_id,
            log,
            self,
            timing=self.timing,
            rng=random.Random(self._rng.getrandbits(64)),
            applied=applied,
        )
        self.groups[group.prefix] = group
        for peer in sorted(self.connected):
            group.peer_connected(peer)
        self.wake(group)
        return group

    def close(self, group: RaftGroup) -> None:
        """The node has no replica of this group any more."""
        del self.groups[group.prefix]
        self._woken.pop(group, None)
        for progress in group.peers.values():
            progress.forget()

    # --- the host's side of a group ----------------------------------------------------------------------

    def send(self, group: RaftGroup, peer: str, message: AnyMessage) -> None:
        """Goes out at the end of the turn."""
        if peer in self.connected:
            if not self._outbox:  # an fsync that was waited for is no turn
                self._schedule()
            self._outbox.setdefault(peer, []).append((group.prefix, message))

    def wake(self, group: RaftGroup) -> None:
        """Give it a turn soon."""
        if not self._woken:
            self._schedule()
        self._woken[group] = None

    def yields(self) -> bool:
        """See :class:`.base.Host`."""
        return self.node_id in self._observer.drained()

    def traffic(self, peer: str) -> Traffic:
        """See :class:`.base.Host`."""
        return self._traffic.setdefault(peer, Traffic())

    # --- driving -----------------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Let every group act for which it is time. Returns when to be called although nothing happens."""
        woken, groups = self._woken, list(self._woken)
        looks = now >= self._due_s
        if looks:
            groups = [group for group in self.groups.values() if group.deadline_s <= now or group in woken]
        try:
            for group in groups:
                woken.pop(group, None)
                group.turn()
        except UnsafeStateError as error:
            self._observer.unsafe(error)
            return NEVER
        deadlines = [group.deadline_s for group in (self.groups.values() if looks else groups)]
        self._due_s = min([NEVER if looks else self._due_s, *deadlines])
        self._writer.flush()
        self.flush()
        return now if woken else self._due_s

    def flush(self) -> None:
        """Send what the groups have for their peers."""
        outbox, self._outbox = self._outbox, {}
        for peer, messages in outbox.items():
            if peer not in self.connected:
                continue
            begin = size = 0
            for position, (_, message) in enumerate(messages):
                if isinstance(message, Append):
                    size += sum(map(len, message.records))
                    if size >= PAYLOAD_BYTES_MAX:
                        self._transmit(peer, _encode(messages[begin : position + 1]))
                        begin, size = position + 1, 0
            if begin < len(messages):
                self._transmit(peer, _encode(messages[begin:]))

    def receive(self, peer: str, payload: bytes) -> None:
        """A payload from a peer. Raises PeerProtocolError where it is none."""
        messages = decode_payload(payload)
        groups = self.groups
        try:
            for prefix, message in messages:
                group = groups.get(prefix)
                if group is None:
                    continue  # a replica that was removed here, or is yet to come, is just not there
                # One that does not know its group yet believes whatever term the group has come to.
                if message.term > group.term + TERM_JUMP_MAX and group.configuration.members:
                    event(
                        log_events.TERM_TOO_FAR_AHEAD,
                        group=group.name,
                        peer=peer,
                        term=message.term,
                        own=group.term,
                    )
                    continue
                group.receive(peer, message)
        except UnsafeStateError as error:
            self._observer.unsafe(error)

    def overslept(self) -> None:
        """The loop was blocked for longer than a heartbeat: what peers sent meanwhile is yet to be read, so nobody
        campaigns, or leads no longer, for lack of it."""
        now = self.now()
        for group in self.groups.values():
            group.excuse(now)

    def peer_connected(self, peer: str) -> None:
        """Payloads reach this node, in order."""
        self.connected.add(peer)
        for group in self.groups.values():
            group.peer_connected(peer)

    def peer_lost(self, peer: str) -> None:
        """They do not any more; what was on its way is lost."""
        self.connected.discard(peer)
        self._outbox.pop(peer, None)
        for group in self.groups.values():
            group.peer_lost(peer)

    def peer_refused(self, peer: str) -> None:
        """A peer that could be reached before cannot, and its host refuses to be dialled."""
        for group in self.groups.values():
            group.peer_refused(peer)
