"""A retried write happens once: the replies of recent identified writes, kept in the state they changed.

Each entry that held identified writes leaves one row: the (client, seq, reply) of each, and a digest of what was asked.
A client's next write says up to where it has its answers (``low``); a row all of whose replies have been received is
deleted by the entry that learns of it. So in the steady state the window holds what is in flight, not what ever was.

The window is bounded. Past the bound a client that holds most of it gives up its oldest writes although it did not
confirm them, and a *mark* remembers up to which number: a retry at or below it cannot be told from a write that never
happened, and is refused as ``identity_expired`` instead of being done twice. So a client that confirms nothing harms
itself only. Clients are kept by how much they hold, doubling from level to level, so that nothing here looks at all of
them: a client gives up something while no other holds more than twice as much.

Clients are bounded, too. If one goes whose mark is still needed, each replica notes when it learned that, by its own
monotonic clock: for as long as a retry of a client that it does not know may be older than that, it is refused. Nothing
here compares the clocks of two machines.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

import msgspec

from metad_wire.errors import IdentityExpiredError, InvalidRequestError
from metad_wire.messages import Identity
from metad_wire.methods import encode
from metad_wire.tables.cluster import GROUP

from ...storage import keys
from ..core.part import Origin, PartContext, StatePart, Writes

CLIENTS_MAX = 65_536
"""Clients whose ``low`` is remembered while nothing of theirs is in the window. A client is one SDK instance."""

RETRY_DELAY_S_MAX: Final = 5.0
"""A retry states its age as it leaves the client, and counts here from when it arrived; this much more may have gone by
on the way. Without the allowance a retry could look younger than the first attempt it repeats."""
_DRIFT: Final = 0.1
"""How much slower the client's clock may run than this node's."""

_LOAD_ROWS = 1_000
_IDENTITY_BYTES = 32
"""Of an identity that is remembered, beside its reply."""
_SMALL: Final = 4_096
"""Clients that hold less than one of so many parts of the window's bound are alike: few move between levels."""
_LEVELS: Final = 2 + _SMALL.bit_length()
"""Of what a client may hold: nothing, little, then by doubling up to the whole window."""
_GIVEN_UP: Final = 64
"""A client that must give up something gives up one of so many of its writes at a time."""
_MARKS: Final = b"\xff" * 8
"""Behind every row of the window, in front of a client's id."""


class Remembered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One identified write in a row."""

    client_id: int
    seq: int
    reply: bytes
    low: int = 0
    """What the client had confirmed then, so that whoever leads next refuses late copies too."""
    digest: int = 0
    """Of method and body: the identity is good for this request only. 0: not known."""


class DedupeRow(msgspec.Struct, frozen=True, array_like=True):
    """The row an entry leaves."""

    unused: int
    remembered: list[Remembered]


_decode_row = msgspec.msgpack.Decoder(DedupeRow).decode


class _Client:
    __slots__ = ("bytes", "client_id", "level", "low", "mark", "seqs", "since_s")

    def __init__(self, client_id: int, since_s: float) -> None:
        self.client_id = client_id
        self.low = 0
        self.mark = 0
        """Writes up to here were given up although they were not confirmed."""
        self.seqs: OrderedDict[int, tuple[int, int, int]] = OrderedDict()  # seq -> index of the row, bytes, digest
        """In the order in which they came. The oldest goes first, and a plain dict would look for its first key behind
        all those that are gone."""
        self.bytes = 0
        self.level = 0
        self.since_s = since_s


def check_digest(first: int, again: int) -> None:
    """Raise InvalidRequestError where an identity comes with another request than the first time."""
    if first and again and first != again:
        raise InvalidRequestError("this identity was used for another request: each request needs its own seq")


_STATE, _DEDUPE = GROUP.rows["state"], GROUP.rows["dedupe"]


class DedupeWindow(StatePart):
    """The identities of one group, in memory; the replies are in the engine."""

    rows = (_STATE, _DEDUPE)

    def __init__(self, context: PartContext) -> None:
        config = context.memory.config.dedupe
        self._prefix = keys.table_prefix(context.group, _DEDUPE)
        self._forgotten_key = keys.table_prefix(context.group, _STATE) + b"forgotten"  # a client, with its mark
        self._engine = context.engine
        self._identities_max = config.identities_max
        self._reply_bytes_max = config.reply_bytes_max
        self._clock = context.clock
        self._reset()

    def _reset(self) -> None:
        self._clients: dict[int, _Client] = {}
        self._levels: list[OrderedDict[int, _Client]] = [OrderedDict() for _ in range(_LEVELS)]  # by what they hold
        self._rows: dict[int, tuple[int, ...]] = {}  # by entry: client, seq, client, seq. Numbers take the least memory
        self._left: dict[int, int] = {}  # of rows from which some identities are gone: how many are left
        self._live = 0
        self._bytes = 0
        self._recorded: set[int] = set()  # entries that were made here and are not applied
        self._making: list[Remembered] = []  # of the entry that is made
        self._forgot: list[int] = []  # clients that were forgotten with their marks, which is not on the disk yet
        self._forgot_s: float | None = None  # when this replica learned that a client was forgotten with its mark

    def __len__(self) -> int:
        return self._live

    def load(self) -> None:
        self._reset()
        if self._engine.get(self._forgotten_key) is not None:
            self._learn_forgotten()
        begin, end = self._prefix, keys.after_prefix(self._prefix)
        while True:
            found = self._engine.scan(begin, end, _LOAD_ROWS)
            for key, value in found:
                self._learn(key, value)
            if len(found) < _LOAD_ROWS:
                return
            begin = found[-1][0] + b"\0"

    # --- what entries say --------------------------------------------------------------------------------

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        if self._forgotten_key in writes:
            self._learn_forgotten()
        elif index in self._recorded:  # all of it is known
            self._recorded.remove(index)
        else:
            for key, value in writes.items():
                if key.startswith(self._prefix):
                    self._learn(key, value)

    def forget(self) -> None:
        if self._recorded:
            self.load()

    def _learn(self, key: bytes, value: bytes | None) -> None:
        """Take note of a row written (None: deleted) by an applied entry. What is known already changes nothing."""
        suffix = key[len(self._prefix) :]
        if suffix.startswith(_MARKS):
            if value is not None:
                self._learn_mark(int.from_bytes(suffix[len(_MARKS) :], "big"), int.from_bytes(value, "big"))
            return
        index = int.from_bytes(suffix, "big")
        if value is None:
            self._drop(index)
        elif index not in self._rows:
            made = _decode_row(value).remembered
            for one in made:
                client = self._clients.get(one.client_id) or self._new_client(one.client_id)
                client.low = max(client.low, one.low)
                self._hold(client, index, one)
            self._count(index, made)
            self._forgot.clear()  # the leader's entry says it, if it is so there, too

    def _learn_forgotten(self) -> None:
        """Take note that a client was forgotten whose mark was still needed."""
        self._forgot_s = self._clock()

    def _learn_mark(self, client_id: int, mark: int) -> None:
        client = self._clients.get(client_id) or self._new_client(client_id)
        client.mark = max(client.mark, mark)
        for seq in [seq for seq in client.seqs if seq <= mark]:
            self._give_up(client, seq)

    # --- looking up --------------------------------------------------------------------------------------

    def lookup(self, identity: Identity, digest: int = 0, arrived_s: float | None = None) -> int | None:
        """The index of the entry that did this write, None if it is new. ``arrived_s`` is when the request reached this
        node (None: now). Raises IdentityExpiredError if it is unknowable, InvalidRequestError if the identity is
        another request's."""
        client = self._clients.get(identity.client_id)
        if client is not None:
            known = client.seqs.get(identity.seq)
            if known is not None:
                check_digest(known[2], digest)
                return known[0]
            if identity.seq < client.low:
                # Its answer was received long ago: this is a copy that was stuck on a connection given up since.
                raise IdentityExpiredError("this write was answered before; a late copy is not done again")
            if identity.seq <= client.mark:
                raise IdentityExpiredError("this client has more unconfirmed writes than are remembered")
        forgot_s = self._forgot_s
        if identity.age_ms and forgot_s is not None and (client is None or client.since_s >= forgot_s):
            age_s = RETRY_DELAY_S_MAX + identity.age_ms / 1000 * (1 + _DRIFT)
            if (self._clock() if arrived_s is None else arrived_s) - age_s <= forgot_s:
                raise IdentityExpiredError(
                    f"first sent {identity.age_ms} ms ago, which is further back than is remembered"
                )
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

    # --- making an entry ---------------------------------------------------------------------------------

    def remember(self, index: int, identity: Identity, digest: int, reply: bytes) -> None:
        """Entry ``index``, which is being made, does this write. :meth:`record` follows once it is complete."""
        client_id = identity.client_id
        made = Remembered(client_id, identity.seq, reply, identity.low, digest)
        self._making.append(made)
        self._hold(self._clients.get(client_id) or self._new_client(client_id), index, made)  # a repetition meets it

    def record(self, index: int, heard: dict[int, Writes]) -> None:
        """Add entry ``index``'s row, if it has remembered anything, and the deletions it makes possible to the entry's
        writes."""
        made, self._making = self._making, []
        if not made:
            return
        self._recorded.add(index)
        writes: Writes = {}
        if self._forgot:  # the row comes first: a client may be forgotten, and be new again, in one entry
            heard.setdefault(_STATE, {})[self._forgotten_key] = b""
            writes.update(dict.fromkeys(map(self._mark_key, self._forgot)))
            self._forgot = []
        heard[_DEDUPE] = writes
        writes[self._prefix + keys.u64(index)] = encode(DedupeRow(0, made))
        self._count(index, made)
        clients = self._clients
        for one in made:
            if one.low > clients[one.client_id].low:
                self._acknowledge(one.client_id, one.low, writes)
        if self._live > self._identities_max or self._bytes > self._reply_bytes_max:
            self._make_room(index, writes)

    def _count(self, index: int, made: list[Remembered]) -> None:
        self._rows[index] = tuple([number for one in made for number in (one.client_id, one.seq)])
        self._live += len(made)
        self._bytes += sum([_IDENTITY_BYTES + len(one.reply) for one in made])

    def _acknowledge(self, client_id: int, low: int, writes: Writes) -> None:
        client = self._clients[client_id]
        client.low = low
        seqs = client.seqs
        # Pipelined writes arrive nearly in order: stop at the first that is not confirmed.
        while seqs and (seq := next(iter(seqs))) < low:
            self._delete_if_empty(self._give_up(client, seq), writes)
        if client.mark and client.mark < low:
            client.mark = 0
            writes[self._mark_key(client_id)] = None

    def _make_room(self, newest: int, writes: Writes) -> None:
        """Those that hold most give up their oldest in turn, until the window is within its bounds."""
        bound: list[_Client] = []
        while self._live > self._identities_max or self._bytes > self._reply_bytes_max:
            level = next((level for level in reversed(self._levels[1:]) if level), None)
            if level is None:
                break
            client_id, client = next(iter(level.items()))
            oldest = list(islice(client.seqs, max(1, len(client.seqs) // _GIVEN_UP)))
            # What this entry does is remembered in any case.
            given_up = [seq for seq in oldest if client.seqs[seq][0] != newest]
            if not given_up:
                del level[client_id]
                bound.append(client)
                continue
            level.move_to_end(client_id)
            for seq in given_up:
                self._delete_if_empty(self._give_up(client, seq), writes)
            client.mark = max(client.mark, *given_up)
            writes[self._mark_key(client_id)] = keys.u64(client.mark)
        for client in bound:
            self._levels[client.level][client.client_id] = client

    def _mark_key(self, client_id: int) -> bytes:
        return self._prefix + _MARKS + keys.u64(client_id)

    # --- memory ------------------------------------------------------------------------------------------

    def _hold(self, client: _Client, index: int, made: Remembered) -> None:
        """A client has one identity more in the window."""
        size = _IDENTITY_BYTES + len(made.reply)
        client.seqs[made.seq] = (index, size, made.digest)
        client.bytes += size
        self._place(client)

    def _give_up(self, client: _Client, seq: int) -> int:
        """Forget one identity; the index of its row."""
        index, size, _ = client.seqs.pop(seq)
        client.bytes -= size
        self._place(client)
        self._bytes -= size
        self._live -= 1
        self._left[index] = self._left.get(index, len(self._rows[index]) // 2) - 1
        return index

    def _place(self, client: _Client) -> None:
        """Put a client among those that hold as much as it does now."""
        level, count = 0, len(client.seqs)
        if count:
            share = max(count / self._identities_max, client.bytes / self._reply_bytes_max)
            level = min(_LEVELS - 1, 1 + int(share * _SMALL).bit_length())
        if level != client.level:
            self._levels[client.level].pop(client.client_id, None)
            client.level = level
            self._levels[level][client.client_id] = client

    def _delete_if_empty(self, index: int, writes: Writes) -> None:
        if not self._left[index]:
            del self._rows[index], self._left[index]
            writes[self._prefix + keys.u64(index)] = None

    def _drop(self, index: int) -> None:
        row = self._rows.get(index, ())
        for client_id, seq in zip(row[::2], row[1::2], strict=True):
            client = self._clients.get(client_id)
            if client is not None and (known := client.seqs.get(seq)) is not None and known[0] == index:
                self._give_up(client, seq)
        self._rows.pop(index, None)
        self._left.pop(index, None)

    def _new_client(self, client_id: int) -> _Client:
        if len(self._clients) >= CLIENTS_MAX:
            self._forget_idle_client()
        client = self._clients[client_id] = self._levels[0][client_id] = _Client(client_id, self._clock())
        return client

    def _forget_idle_client(self) -> None:
        """Make room for one client: the one that has had nothing in the window for longest goes, if there is one. Its
        ``low`` goes with it. Where it has a mark, that is noted; the next entry made here notes it on the disk, too.
        Every replica has this bound."""
        if not self._levels[0]:
            return
        client_id, client = self._levels[0].popitem(last=False)
        del self._clients[client_id]
        if client.mark:
            self._learn_forgotten()
            self._forgot.append(client_id)
