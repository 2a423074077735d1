"""Snapshots of groups, from the wish of a leader to the state of a follower.

A leader whose log no longer holds what a peer lacks asks for a snapshot (``Observer.snapshot_wanted``). The group's key
range is exported as of its applied index, streamed (:mod:`.transfer`), and announced to the peer by Raft's own
:class:`..messages.Snapshot`, which says index, term and configuration. The peer then replaces its range with the parts
and, in the same atomic step, writes the *mark*: those three, as the announcement said them, under a key of the range.
So the mark never travels in the parts (one that the sender has from a snapshot of its own is overwritten), and state
and mark cannot disagree, whenever the peer dies: after the replacement its log may still be the old one, and
:func:`restore_log` puts it behind the mark.

Without I/O, like :mod:`..replicas`: whoever drives it brings clock and network, and a thread for the replacement.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from metad_wire.method import MALFORMED

from ... import formats, log_events
from ...errors import DamagedStoreError, StorageError
from ...logs import event
from ...storage import keys
from ...storage.engine import Engine, Export
from ..base import NEVER, UnsafeStateError
from ..log.journal import RaftLog
from ..messages import Configuration, Snapshot
from ..replica import RaftGroup
from ..replicas import PeerProtocolError
from ..roles.leadership import Sending
from .staging import Staging
from .transfer import AnyStreamMessage, PartReply, SnapshotReceiver, SnapshotSender, StreamLimits

MARK_FORMAT: Final = formats.SNAPSHOT_MARK.writes


class SnapshotMark(msgspec.Struct, frozen=True, array_like=True):
    """The newest snapshot that was installed: the log goes on behind ``index``."""

    format: int
    index: int
    term: int
    configuration: Configuration


_encode = msgspec.msgpack.Encoder().encode
_decode_mark = msgspec.msgpack.Decoder(SnapshotMark).decode
_decode = msgspec.msgpack.Decoder(AnyStreamMessage).decode


def read_mark(engine: Engine, prefix: bytes) -> SnapshotMark | None:
    """The mark in a group's state; None where no snapshot was ever installed."""
    stored = engine.get(keys.snapshot_mark(prefix))
    if stored is None:
        return None
    try:
        mark = _decode_mark(stored)
    except msgspec.DecodeError as error:
        raise DamagedStoreError(
            f"the snapshot mark of group {prefix.hex()} in state/ is unreadable ({error})"
        ) from None
    if mark.format != MARK_FORMAT:
        raise StorageError(
            formats.refusal(f"the snapshot mark of group {prefix.hex()}", formats.SNAPSHOT_MARK, mark.format)
        )
    return mark


def restore_log(log: RaftLog, engine: Engine) -> bool:
    """Finish what a crash between :func:`replace_state` and ``RaftLog.restart`` has interrupted; whether there was
    something to finish. To be called with every log before its group is opened, or compared with its state."""
    mark = read_mark(engine, log.prefix)
    if mark is None or mark.index <= log.base_index:
        return False
    if log.term_at(mark.index) == mark.term:
        return False  # the log reaches as far and agrees: it may keep what is before the mark
    log.restart(mark.index, mark.term, mark.configuration)
    return True


def replace_state(engine: Engine, prefix: bytes, message: Snapshot, parts: Sequence[bytes | Path]) -> None:
    """Put a snapshot in place of a group's state, with its mark, durably and atomically. Blocks: call it in a thread.
    The group must neither be read nor applied to meanwhile, and its machine must be made anew afterwards. Raises what
    :meth:`metad.storage.engine.Engine.replace` raises."""
    mark = SnapshotMark(MARK_FORMAT, message.index, message.index_term, message.configuration)
    engine.replace(prefix, keys.after_prefix(prefix), parts, {keys.snapshot_mark(prefix): _encode(mark)})
    applied = applied_index(engine, prefix)
    if applied != message.index:
        raise UnsafeStateError(f"a snapshot of {prefix.hex()} said to end with {message.index} ends with {applied}")


def applied_index(engine: Engine, prefix: bytes) -> int:
    """Of the last entry in a group's state."""
    stored = engine.get(keys.applied(prefix))
    return 0 if stored is None else int.from_bytes(stored, "big")


def _any_size(_: int) -> bool:
    """Memory has room for any snapshot."""
    return True


class _Transfer:
    """A snapshot that a leader wants a peer to have."""

    def __init__(self, group: RaftGroup, peer: str, not_before_s: float, *, rebuilds: bool = False) -> None:
        self.group = group
        self.peer = peer
        self.not_before_s = not_before_s
        self.rebuilds = rebuilds  # the peer's state is wrong, and its log lacks nothing
        self.sender: SnapshotSender | None = None
        self.message: Snapshot | None = None  # once the parts are being read
        self.begun_s = 0.0
        self.told = False  # the group knows that the peer has them all
        self.give_up_s = NEVER  # what the peer has it must have installed by then

    @property
    def streaming(self) -> bool:
        return self.sender is not None and not self.sender.over

    @property
    def wanted(self) -> bool:
        """Whether the leader still is one and waits for it."""
        progress = self.group.peers.get(self.peer)
        waits = self.rebuilds or (progress is not None and progress.sending is Sending.SNAPSHOT)
        return self.group.is_leader and progress is not None and waits


class Snapshots:
    """All snapshots that a node sends and receives.

    ``schedule`` asks for a :meth:`tick` soon; ``transmit`` takes a payload for a peer, and may lose it; ``receives``
    says whether the node has a replica of a group, ``has_room`` whether its disk has room for so many bytes;
    ``broken`` is told when the state cannot be read.
    """

    def __init__(
        self,
        engine: Engine,
        staging: Staging,
        *,
        clock: Callable[[], float],
        schedule: Callable[[], None],
        transmit: Callable[[str, bytes], None],
        receives: Callable[[bytes], bool],
        has_room: Callable[[int], bool] = _any_size,
        broken: Callable[[StorageError], None],
        rng: random.Random,
        limits: StreamLimits = StreamLimits(),  # noqa: B008 - immutable
    ) -> None:
        self._engine = engine
        self._now = clock
        self._schedule = schedule
        self._transmit = transmit
        self._broken = broken
        self._rng = rng
        self._limits = limits
        self._transfers: dict[tuple[bytes, str], _Transfer] = {}
        self._retry_s: dict[tuple[bytes, str], float] = {}  # of those that failed, when they may be tried again
        self._receiver = SnapshotReceiver(staging, limits, receives=receives, has_room=has_room, send=self._send)

    # --- sending -----------------------------------------------------------------------------------------

    def wanted(self, group: RaftGroup, peer: str) -> None:
        """Get the peer a snapshot; then ``group.snapshot_streamed`` or ``group.snapshot_failed``."""
        at = group.prefix, peer
        transfer = self._transfers.get(at)
        if transfer is not None and transfer.message is not None and transfer.message.index < group.log.base_index:
            self._forget(transfer, "the log goes on behind a newer one")
            transfer = None
        if transfer is None:
            self._transfers[at] = _Transfer(group, peer, self._retry_s.get(at, -NEVER))
        else:
            transfer.told = transfer.rebuilds = False  # it is being streamed, or has been since an earlier term
        self._schedule()

    def rebuild(self, group: RaftGroup, peer: str) -> None:
        """Get a peer a snapshot whose state is wrong, although its log lacks nothing. Whoever wants that looks later
        whether it has helped."""
        at = group.prefix, peer
        if at not in self._transfers:
            self._transfers[at] = _Transfer(group, peer, self._retry_s.get(at, -NEVER), rebuilds=True)
            self._schedule()

    def rebuilt(self, group: RaftGroup, peer: str) -> None:
        """The state of a peer is as it should be."""
        transfer = self._transfers.get((group.prefix, peer))
        if transfer is not None and transfer.rebuilds:
            self._forget(transfer, "the state is right")

    def receives(self, group: RaftGroup) -> bool:
        """Whether a snapshot of the group comes, or is there."""
        return self._receiver.receives(group.prefix)

    def tick(self, now: float) -> float:
        """Do a slice of what there is to do: some 2 ms for each peer that is sent something. Returns when to be called
        although nothing happens."""
        self._retry_s = {at: retry_s for at, retry_s in self._retry_s.items() if retry_s > now}
        for transfer in list(self._transfers.values()):
            if not transfer.wanted:
                self._forget(transfer, "not wanted any more")
            elif transfer.sender is not None:
                self._advance(transfer, transfer.sender, now)
        due_s = self._begin(now)
        for transfer in self._transfers.values():
            if transfer.sender is not None:
                ready = now + self._limits.rest_s if transfer.sender.ready else NEVER
                due_s = min(due_s, ready, transfer.sender.deadline_s, transfer.give_up_s)
        self._receiver.tick(now)
        return min(due_s, self._receiver.deadline_s)

    def _begin(self, now: float) -> float:
        """Begin what may be begun, in the order of the wishes. Returns when the next may be."""
        due_s = NEVER
        busy = {transfer.peer for transfer in self._transfers.values() if transfer.streaming}
        for transfer in self._transfers.values():
            if transfer.sender is not None or transfer.peer in busy or len(busy) >= self._limits.sending_max:
                continue
            if transfer.not_before_s > now:
                due_s = min(due_s, transfer.not_before_s)
                continue
            busy.add(transfer.peer)
            transfer.begun_s = now
            transfer.sender = SnapshotSender(
                transfer.group.prefix,
                f"{self._rng.getrandbits(64):016x}",
                lambda transfer=transfer: self._export(transfer),  # type: ignore[misc]
                lambda message, peer=transfer.peer: self._send(peer, message),  # type: ignore[misc]
                self._limits,
                now,
            )
        return due_s

    def _export(self, transfer: _Transfer) -> Export:
        """The state of this moment, and what Raft has to say about it."""
        group, log = transfer.group, transfer.group.log
        assert transfer.sender is not None
        index = applied_index(self._engine, group.prefix)
        term = log.term_at(index)
        if term is None:
            raise UnsafeStateError(f"{group.name}: the state ends with {index}, the log begins at {log.base_index}")
        transfer.message = Snapshot(group.term, index, term, log.configuration_at(index), transfer.sender.stream)
        return self._engine.export(group.prefix, keys.after_prefix(group.prefix), self._limits.part_bytes)

    def _advance(self, transfer: _Transfer, sender: SnapshotSender, now: float) -> None:
        try:
            sender.step(now)
        except StorageError as error:
            self._fail(transfer, "the state cannot be read")
            self._broken(error)
            return
        sender.tick(now)
        if sender.failure is not None:
            self._fail(transfer, sender.failure)
        elif now >= transfer.give_up_s:
            self._fail(transfer, "not installed in time")
        elif sender.complete and not transfer.told:
            assert transfer.message is not None
            transfer.told = True
            transfer.give_up_s = now + self._limits.install_timeout_s
            event(
                log_events.SNAPSHOT_SENT,
                group=transfer.group.name,
                peer=transfer.peer,
                index=transfer.message.index,
                seconds=round(now - transfer.begun_s, 3),
            )
            if transfer.rebuilds:
                transfer.group.order_rebuilding(transfer.peer, transfer.message)
            else:
                transfer.group.snapshot_streamed(transfer.peer, transfer.message)
            transfer.group.wake()

    def _fail(self, transfer: _Transfer, why: str) -> None:
        self._retry_s[transfer.group.prefix, transfer.peer] = self._now() + self._limits.retry_s
        event(log_events.SNAPSHOT_NOT_SENT, group=transfer.group.name, peer=transfer.peer, reason=why)
        self._forget(transfer, why)
        transfer.group.snapshot_failed(transfer.peer, why)

    def _forget(self, transfer: _Transfer, why: str) -> None:
        self._transfers.pop((transfer.group.prefix, transfer.peer), None)
        if transfer.sender is not None:
            transfer.sender.abandon(why)

    def held_index(self, group: RaftGroup) -> int | None:
        """A peer that is getting a snapshot needs the log behind this index: one that was compacted further would have
        it get the next snapshot, and so forever."""
        indexes = [
            transfer.message.index
            for transfer in self._transfers.values()
            if transfer.group is group and transfer.message is not None
        ]
        return min(indexes, default=None)

    # --- receiving ---------------------------------------------------------------------------------------

    def receive(self, peer: str, payload: bytes) -> None:
        """A payload from a peer. Raises PeerProtocolError where it is none."""
        try:
            message = _decode(payload)
        except MALFORMED as error:
            raise PeerProtocolError(f"unreadable: {error}") from None
        now = self._now()
        if not isinstance(message, PartReply):
            self._receiver.on_message(peer, message, now)
            self._schedule()  # what nobody continues is dropped by a tick
            return
        transfer = self._transfers.get((message.group, peer))
        if transfer is not None and transfer.sender is not None and transfer.sender.stream == message.stream:
            transfer.sender.on_reply(message, now)
            self._schedule()

    def install(self, group: RaftGroup, message: Snapshot) -> list[bytes | Path] | None:
        """The parts of an announced snapshot, for :func:`replace_state`; then call :meth:`installed`. None where there
        is nothing to do: the stream is being installed already, or it is not here, and its sender begins again."""
        if not self._receiver.has(group.prefix, message.stream) and group.leader is not None:
            self._send(group.leader, PartReply(group.prefix, message.stream, 0, False, "no such stream"))
        return self._receiver.take(group.prefix, message.stream)

    def installed(self, group: RaftGroup, message: Snapshot) -> None:
        """The parts are needed no more, whether they were installed or not."""
        self._receiver.release(group.prefix, message.stream)

    # --- what else happens -------------------------------------------------------------------------------

    def peer_lost(self, peer: str) -> None:
        """What was on its way to and from this node is lost."""
        for transfer in [transfer for transfer in self._transfers.values() if transfer.peer == peer]:
            self._fail(transfer, "the connection was lost")
        self._receiver.peer_lost(peer)

    def group_closed(self, group: RaftGroup) -> None:
        """The node has no replica of this group any more."""
        for transfer in [transfer for transfer in self._transfers.values() if transfer.group is group]:
            self._forget(transfer, "the replica is gone")
        self._receiver.group_closed(group.prefix)

    def close(self) -> None:
        """Stop sending. To be called before the engine is closed."""
        for transfer in list(self._transfers.values()):
            self._forget(transfer, "the node stops")

    def _send(self, peer: str, message: AnyStreamMessage) -> None:
        self._transmit(peer, _encode(message))
