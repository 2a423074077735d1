"""A retried write happens once: the replies of recent identified writes, kept in the state they changed.

Each entry that held identified writes leaves one row: its time and the (client, seq, reply) of each. A client's next
write says up to where it has its answers (``low``); a row all of whose replies have been received is deleted by the
entry that learns of it. So in the steady state the window holds what is in flight, not what ever was.

The window is bounded. Past the bound the oldest rows go although nobody confirmed them, and the time of the newest
such row is remembered: a retry whose first attempt may be as old as that cannot be told from one that never
happened, and is refused as ``identity_expired`` instead of being done twice.
"""

from __future__ import annotations

import msgspec

from metad_wire.errors import IdentityExpiredError
from metad_wire.messages import Identity
from metad_wire.methods import encode

from ..storage import keys
from ..storage.engine import Engine
from .view import Writes

CLIENTS_MAX = 65_536
"""Clients whose ``low`` is remembered while nothing of theirs is in the window. A client is one SDK instance."""

RETRY_DELAY_MS_MAX = 5_000
"""A retry states its age as it leaves the client; this much more may have gone by, on the way and in queues, until it
is evaluated. Without the allowance a retry could look younger than the first attempt it repeats."""

_LOAD_ROWS = 1_000


class Remembered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One identified write in a row."""

    client_id: int
    seq: int
    reply: bytes
    low: int = 0
    """What the client had confirmed then, so that whoever leads next refuses late copies too."""


class DedupeRow(msgspec.Struct, frozen=True, array_like=True):
    """The row an entry leaves."""

    now_ms: int
    remembered: list[Remembered]


_decode_row = msgspec.msgpack.Decoder(DedupeRow).decode


class _Row:
    """What memory holds of a row: enough to find and to delete it."""

    __slots__ = ("identities", "live", "now_ms", "size")

    def __init__(self, now_ms: int, identities: list[tuple[int, int]], size: int) -> None:
        self.now_ms = now_ms
        self.identities = identities
        self.live = len(identities)
        self.size = size


class _Client:
    __slots__ = ("low", "seqs")

    def __init__(self) -> None:
        self.low = 0
        self.seqs: dict[int, int] = {}  # seq -> index of the row


class DedupeWindow:
    """The identities of one group, in memory; the replies are in the engine."""

    def __init__(self, group: bytes, engine: Engine, *, identities_max: int, reply_bytes_max: int) -> None:
        self._prefix = keys.table_prefix(group, keys.TABLE_DEDUPE)
        # u64 of the group's own table: behind every row of the window, so that a scan of it does not see it.
        self.forgotten_key = keys.table_prefix(group, keys.TABLE_GROUP) + b"forgotten_ms"
        self._engine = engine
        self._identities_max = identities_max
        self._reply_bytes_max = reply_bytes_max
        self._clients: dict[int, _Client] = {}
        self._rows: dict[int, _Row] = {}
        self._live = 0
        self._bytes = 0
        self._forgotten_ms = 0

    def __len__(self) -> int:
        return self._live

    def load(self) -> None:
        """Rebuild the memory from the engine, after a restart."""
        self._clients, self._rows, self._live, self._bytes = {}, {}, 0, 0
        stored = self._engine.get(self.forgotten_key)
        self._forgotten_ms = 0 if stored is None else int.from_bytes(stored, "big")
        begin, end = self._prefix, keys.after_prefix(self._prefix)
        while True:
            found = self._engine.scan(begin, end, _LOAD_ROWS)
            for key, value in found:
                self.learn(key, value)
            if len(found) < _LOAD_ROWS:
                return
            begin = found[-1][0] + b"\0"

    def learn(self, key: bytes, value: bytes | None) -> None:
        """Take note of a row written (None: deleted) by an applied entry. What is known already changes nothing."""
        index = int.from_bytes(key[len(self._prefix) :], "big")
        if value is None:
            self._drop(index)
        elif index not in self._rows:
            row = _decode_row(value)
            self._admit(index, row.now_ms, [(r.client_id, r.seq) for r in row.remembered], len(value))
            for remembered in row.remembered:
                client = self._clients[remembered.client_id]
                client.low = max(client.low, remembered.low)

    def learn_forgotten(self, value: bytes | None) -> None:
        """The same for the time of the newest row that was given up unconfirmed."""
        if value is not None:
            self._forgotten_ms = max(self._forgotten_ms, int.from_bytes(value, "big"))

    def lookup(self, identity: Identity, now_ms: int) -> int | None:
        """The index of the entry that did this write, None if it is new. Raises IdentityExpiredError if unknowable."""
        client = self._clients.get(identity.client_id)
        if client is not None:
            index = client.seqs.get(identity.seq)
            if index is not None:
                return index
            if identity.seq < client.low:
                # Its answer was received long ago: this is a copy that was stuck on a connection given up since.
                raise IdentityExpiredError("this write was answered before; a late copy of it is not done again")
        if (
            identity.age_ms
            and self._forgotten_ms
            and now_ms - identity.age_ms - RETRY_DELAY_MS_MAX <= self._forgotten_ms
        ):
            raise IdentityExpiredError(f"first sent {identity.age_ms} ms ago, which is further back than is remembered")
        return None

    def reply(self, index: int, identity: Identity) -> bytes:
        """The remembered reply of an applied entry. Raises IdentityExpiredError where it was confirmed meanwhile."""
        value = self._engine.get(self._prefix + keys.u64(index))
        if value is not None:
            for remembered in _decode_row(value).remembered:
                if remembered.seq == identity.seq and remembered.client_id == identity.client_id:
                    return remembered.reply
        # Between the look-up and now the client confirmed the answer on another connection: nobody waits for this one.
        raise IdentityExpiredError("this write was answered before")

    def record(self, index: int, now_ms: int, done: list[tuple[Identity, bytes]], writes: Writes) -> None:
        """Add entry ``index``'s row and the deletions it makes possible to the entry's writes."""
        value = encode(
            DedupeRow(
                now_ms, [Remembered(identity.client_id, identity.seq, reply, identity.low) for identity, reply in done]
            )
        )
        writes[self._prefix + keys.u64(index)] = value
        self._admit(index, now_ms, [(identity.client_id, identity.seq) for identity, _ in done], len(value))
        for identity, _ in done:
            self._acknowledge(identity, writes)
        if self._live > self._identities_max or self._bytes > self._reply_bytes_max:
            self._forget_oldest(index, writes)

    def _admit(self, index: int, now_ms: int, identities: list[tuple[int, int]], size: int) -> None:
        for client_id, seq in identities:
            client = self._clients.get(client_id)
            if client is None:
                client = self._clients[client_id] = _Client()
                if len(self._clients) > CLIENTS_MAX:
                    self._forget_idle_client(client_id)
            client.seqs[seq] = index
        self._rows[index] = _Row(now_ms, identities, size)
        self._live += len(identities)
        self._bytes += size

    def _acknowledge(self, identity: Identity, writes: Writes) -> None:
        client = self._clients.get(identity.client_id)
        if client is None or identity.low <= client.low:
            return
        client.low = identity.low
        seqs = client.seqs
        # Pipelined writes arrive nearly in order: stop at the first that is not confirmed.
        while seqs and (seq := next(iter(seqs))) < identity.low:
            index = seqs.pop(seq)
            self._live -= 1
            row = self._rows[index]
            row.live -= 1
            if not row.live:
                self._bytes -= row.size
                del self._rows[index]
                writes[self._prefix + keys.u64(index)] = None

    def _forget_oldest(self, newest: int, writes: Writes) -> None:
        while self._rows and (self._live > self._identities_max or self._bytes > self._reply_bytes_max):
            index = next(iter(self._rows))
            if index == newest:
                return
            self._forgotten_ms = max(self._forgotten_ms, self._rows[index].now_ms)
            self._drop(index)
            writes[self._prefix + keys.u64(index)] = None
            writes[self.forgotten_key] = keys.u64(self._forgotten_ms)

    def _drop(self, index: int) -> None:
        row = self._rows.pop(index, None)
        if row is None:
            return
        self._bytes -= row.size
        for client_id, seq in row.identities:
            client = self._clients.get(client_id)
            if client is not None and client.seqs.get(seq) == index:
                del client.seqs[seq]
                self._live -= 1

    def _forget_idle_client(self, newcomer: int) -> None:
        """Make room for one client: the oldest that has nothing in the window."""
        for client_id, client in self._clients.items():
            if not client.seqs and client_id != newcomer:
                del self._clients[client_id]
                return
