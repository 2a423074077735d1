"""Which lives of the other nodes this one has heard of, durably: an older copy of a data directory must be noticed.

A node that comes back with what it had earlier has forgotten votes it gave and writes it acknowledged; let in, it helps
to elect a leader that lacks them. So each start counts the life of the data directory up and draws an incarnation, both
durable before anything is sent, and the node says them in its greeting. Whoever is greeted keeps the newest pair before
it goes on. A lower life, or the same one with another incarnation, is a copy that was put back.

What this cannot tell apart is a copy of a directory that was in use: it looks like one that was started again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from metad_wire.errors import HandshakeError

from ..errors import JOIN_ANEW, DamagedStoreError
from ..storage import keys
from ..storage.log import LogStore
from .environment import Environment, Queue
from .health import Health

_KEY = keys.STORE_PREFIX + b"lives"


class Life(NamedTuple):
    """One start of a node, on one data directory."""

    store_id: str
    number: int
    """0: of a version that does not count them."""
    incarnation: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Life]).decode


class Lives:
    """The newest of each node. Raises DamagedStoreError where they cannot be read."""

    def __init__(self, log: LogStore, environment: Environment, health: Health) -> None:
        self._log = log
        self._environment = environment
        self._health = health
        stored = log.engine.get(_KEY)
        try:
            self._newest = {} if stored is None else _decode(stored)
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"raft/: the record of other nodes' lives is unreadable ({error})") from None
        self._durable = dict(self._newest)
        self._waiting: list[Callable[[], None]] = []  # until the next sync is over
        self._syncing = False

    @property
    def names(self) -> Collection[str]:
        """Of whom a life is known."""
        return self._newest.keys()

    def store_of(self, node_id: str) -> str:
        """The data directory that a node had when it was heard of last; empty if it never was."""
        known = self._newest.get(node_id)
        return "" if known is None else known.store_id

    def check(self, node_id: str, life: Life) -> None:
        """Raise HandshakeError where this node was here in a newer life."""
        known = self._newer(node_id, life)
        if known is not None:
            raise HandshakeError(
                f"{node_id!r} runs on an older copy of its data directory (life {life.number}, and life {known.number} "
                f"was here): it has forgotten what it promised since. {JOIN_ANEW}"
            )

    def _newer(self, node_id: str, life: Life) -> Life | None:
        """The life that is known of this data directory where ``life`` is neither that nor one behind it."""
        known = self._newest.get(node_id)
        if known is None or known.store_id != life.store_id or not life.number:
            return None
        older = life.number < known.number or (life.number == known.number and life.incarnation != known.incarnation)
        return known if older else None

    def remember(self, node_id: str, life: Life, members: Collection[str], then: Callable[[], None]) -> None:
        """Call ``then`` once this life is durably known; at once, where it is already or need not be. Only the lives of
        ``members`` are kept, so strangers cannot make them many: who is no member yet has promised nothing."""
        stays = node_id not in members or self._newer(node_id, life) is not None
        if not life.number or stays or self._durable.get(node_id) == life:
            then()
            return
        if self._newest.get(node_id) != life:
            self._newest = {name: kept for name, kept in self._newest.items() if name in members} | {node_id: life}
            self._log.engine.write({_KEY: _encode(self._newest)})
        self._waiting.append(then)
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        """Make durable what is known. One sync runs at a time, and all who come meanwhile share the next: a peer that
        dials again while a slow disk makes it wait would otherwise add to what it waits for."""
        self._syncing = True
        newest = self._newest
        waiting, self._waiting = self._waiting, []

        def synced(error: BaseException | None) -> None:
            self._syncing = False
            if error is not None:
                self._health.stop_for(error)
                return
            self._durable.update(newest)
            if self._waiting:
                self._sync()
            for then in waiting:
                then()

        self._environment.beside(self._log.engine.sync, synced, Queue.SYNCS)
