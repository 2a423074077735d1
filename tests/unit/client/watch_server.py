"""Scripted nodes that serve watches: a log for each group, and what each replica has of it."""

from __future__ import annotations

from typing import Any

import msgspec
from scripted import Nodes, Peer, Received, Server

from metad_wire import messages as m
from metad_wire.cluster import SLOTS, GroupId
from metad_wire.connection.frame import Frame
from metad_wire.errors import ErrorBody, LogCutError, MetadError
from metad_wire.methods import WATCH_OPEN, encode
from metad_wire.tables import TABLES
from metad_wire.watch import (
    Brought,
    ChangeKind,
    MarkerStep,
    SlotMarker,
    WatchChange,
    WatchCredit,
    WatchEntry,
    WatchEvents,
    WatchOpen,
    WatchOpened,
    WatchProgress,
    WatchRows,
)

KV = TABLES["kv"]
RECORD = KV.rows["record"]


def kv_key(key: str, namespace: str) -> bytes:
    return KV.key_of([namespace, key])


def bits(slots: Any) -> bytes:
    number = 0
    for slot in slots:
        number |= 1 << (SLOTS - 1 - slot)
    return number.to_bytes(SLOTS // 8, "big")


class OpenStream:
    """A stream that a client has opened."""

    def __init__(self, group: Group, received: Received, position: int) -> None:
        self.group = group
        self.received = received
        self.peer = received.peer
        self.id = received.request_id
        self.position = position
        self.credit = received.body.credit_bytes
        self.over = False

    @property
    def open(self) -> bool:
        return not self.over and not self.peer.gone and self.id in self.peer.session.streams

    def send(self, events: WatchEvents, *, last: bool = False) -> None:
        payload = encode(events)
        self.credit -= len(payload)
        self.peer.session.event(self.id, payload, last=last)
        self.over = last

    def end(self, error: MetadError) -> None:
        self.send(WatchEvents(self.position, ended=ErrorBody(error.code, error.message)), last=True)
        self.peer.flush()

    def serve(self, *, all_of_it: bool = False) -> None:
        """Send what there is, as far as there is credit: an entry in each event, or all in one."""
        if self.group.nodes.fills_events and self.open and self.credit > 0:
            begin, self.position = self.position, len(self.group.log)
            if entries := [e for e in self.group.log[begin:] if e.changes or e.marker is not None]:
                self.send(WatchEvents(self.position, entries))
        while self.open and self.position < len(self.group.log) and (self.credit > 0 or all_of_it):
            entry = self.group.log[self.position]
            self.position += 1
            assert entry.index == self.position
            self.send(WatchEvents(entry.index, [entry] if entry.changes or entry.marker is not None else []))
        self.peer.flush()


class Group:
    """One group of kind ``data``. ``held``: its slots by the move that brought them."""

    def __init__(self, nodes: WatchNodes, ordinal: int, slots: set[int]) -> None:
        self.nodes = nodes
        self.name = GroupId("data", ordinal).name
        self.ordinal = ordinal
        self.log: list[WatchEntry] = []
        self.base = 0  # the log begins behind it
        self.brought: dict[int, set[int]] = {0: slots}
        self.sealed: set[int] = set()
        self.sealed_move = 0
        self.rows: dict[bytes, bytes] = {}
        self.streams: list[OpenStream] = []

    @property
    def slots(self) -> set[int]:
        return set().union(*self.brought.values())

    def opened(self, received: Received) -> None:
        opening: WatchOpen = received.body
        if opening.position is not None and opening.position < self.base:
            received.fail(LogCutError("the log is cut"))
            return
        begin = len(self.log) if opening.position is None else opening.position
        pinned = opening.position is None or bool(opening.snapshot)
        leads = self.nodes.leaders.get(self.name) == received.peer.node
        proves = received.peer.node in self.nodes.proves
        said = self.said(pinned=pinned, leads=leads, proven=pinned and opening.proven and proves)
        received.peer.session.begin_stream(received.request_id, encode(said))
        stream = OpenStream(self, received, begin)
        self.streams.append(stream)
        stream.serve(all_of_it=bool(opening.snapshot))  # the rows are those of now
        if opening.snapshot and not self.nodes.holds_back_rows:
            self.send_rows(stream)

    def said(self, *, pinned: bool = True, leads: bool = False, proven: bool = False) -> WatchOpened:
        brought = [Brought(move, bits(slots)) for move, slots in self.brought.items() if slots]
        held, sealed = bits(self.slots - self.sealed), bits(self.sealed)
        revision = 10 * len(self.log)
        return WatchOpened(len(self.log), pinned, held, sealed, self.sealed_move, brought, leads, revision, proven)

    def send_rows(self, stream: OpenStream, *, done: bool = True) -> None:
        wanted = int.from_bytes(stream.received.body.snapshot, "big")
        found = sorted(
            (key, value) for key, value in self.rows.items() if wanted >> (SLOTS - 1 - (KV.slot_of(key) or 0)) & 1
        )
        columns = [WatchRows(RECORD, [key for key, _ in found], [value for _, value in found])] if found else []
        stream.send(WatchEvents(stream.position, rows=columns, snapshot_done=done))
        stream.peer.flush()

    @property
    def live(self) -> list[OpenStream]:
        return [stream for stream in self.streams if stream.open]

    def append(self, changes: list[WatchChange], marker: SlotMarker | None = None) -> int:
        index = len(self.log) + 1
        self.log.append(WatchEntry(index, index * 10, 1_700_000_000_000 + index, changes, marker))
        for stream in self.live:
            stream.serve()
        return index

    def put(self, key: str, value: bytes, namespace: str = "ns", *, version: int = 1) -> int:
        index = len(self.log) + 1
        record = encode(m.Kv(namespace, key, value, version, index * 10, index * 10))
        encoded = kv_key(key, namespace)
        kind = ChangeKind.CHANGED if encoded in self.rows else ChangeKind.CREATED
        self.rows[encoded] = record
        return self.append([WatchChange(RECORD, kind, encoded, record)])

    def delete(self, key: str, namespace: str = "ns") -> int:
        self.rows.pop(kv_key(key, namespace))
        return self.append([WatchChange(RECORD, ChangeKind.DELETED, kv_key(key, namespace))])

    def mark(self, behind_ms: int = 0) -> None:
        for stream in self.live:
            stream.send(WatchEvents(stream.position, progress=WatchProgress(behind_ms)))
            stream.peer.flush()

    # --- a move ---

    def seal(self, move: int, slots: set[int], target: Group) -> int:
        self.sealed, self.sealed_move = slots, move
        return self.append([], SlotMarker(MarkerStep.SEALED, move, bits(slots), target.ordinal))

    def adopt(self, move: int, slots: set[int], source: Group, sealed_index: int) -> int:
        self.brought[move] = slots
        for key in list(source.rows):
            if KV.slot_of(key) in slots:
                self.rows[key] = source.rows[key]
        return self.append([], SlotMarker(MarkerStep.ADOPTED, move, bits(slots), source.ordinal, sealed_index))

    def close_move(self) -> None:
        for move in self.brought:
            self.brought[move] -= self.sealed
        for key in list(self.rows):
            if KV.slot_of(key) in self.sealed:
                del self.rows[key]
        self.sealed, self.sealed_move = set(), 0
        self.append([])

    def move_to(self, target: Group, move: int, slots: set[int]) -> None:
        sealed_index = self.seal(move, slots, target)
        target.adopt(move, slots, self, sealed_index)
        self.close_move()


class WatchNodes(Nodes):
    """Three nodes with groups of kind ``data``, each with a replica everywhere. ``refusals``: what a node says to those
    who want to watch a group."""

    def __init__(self, server: Server, data: int = 2) -> None:
        super().__init__(server)
        self.place(data=data)
        self.groups = [
            Group(self, ordinal, {slot for slot in range(SLOTS) if slot * data // SLOTS == ordinal})
            for ordinal in range(data)
        ]
        self.refusals: dict[tuple[str, str], MetadError] = {}
        self.holds_back_rows = False
        self.proves = {"n1", "n2", "n3"}
        self.fills_events = False
        self.openings: list[tuple[str, str, int | None]] = []  # (node, group, position)
        server.granted = self.credited

    def answer(self, received: Received) -> None:
        if received.method is not WATCH_OPEN:
            super().answer(received)
            return
        node, group = received.peer.node, received.request.group
        self.openings.append((node, group, received.body.position))
        refusal = self.refusals.get((node, group)) or self.refusals.get((node, ""))
        if refusal is not None:
            received.fail(refusal)
            return
        found = next((each for each in self.groups if each.name == group), None)
        assert found is not None, f"nobody has {group}"
        found.opened(received)

    def credited(self, peer: Peer, frame: Frame) -> None:
        """A client grants credit."""
        for group in self.groups:
            for stream in group.live:
                if (stream.peer, stream.id) == (peer, frame.request_id):
                    stream.credit += msgspec.msgpack.decode(frame.payload, type=WatchCredit).bytes
                    stream.serve()

    @property
    def live(self) -> list[OpenStream]:
        return [stream for group in self.groups for stream in group.live]

    def group_with(self, namespace: str) -> Group:
        """The group that holds a namespace."""
        slot = KV.slot_of(kv_key("", namespace))
        return next(group for group in self.groups if slot in group.slots - group.sealed)


def slot_of(namespace: str) -> int:
    slot = KV.slot_of(kv_key("", namespace))
    assert slot is not None
    return slot
