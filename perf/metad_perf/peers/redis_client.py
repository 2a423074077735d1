"""A client of Redis: pipelined commands that are encoded before the clock starts.

A batch is one MSET or MGET. A session has two keys, one for its properties and one for its owner; a takeover is an
MSET of the owners and, sent with it, an MGET of the properties. A lapsing session is a key with an expiry.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from ..load.workload import ABSENT
from . import redis_wire as wire
from .peer import LAPSING_S, Answer, Call, Lifeless, Record
from .pipe import Pipe

CONNECTIONS_MAX = 4  # of each process; at most its calls in flight
_CONNECT_S = 10.0


class RedisClient(Lifeless):
    """See :class:`~metad_perf.peers.peer.Client`."""

    def __init__(self, pipes: Sequence[Pipe[wire.Reply]]) -> None:
        self._turns = itertools.cycle(pipes)

    def insert(self, records: Sequence[Record]) -> Call:
        """As put."""
        return self.put(records)

    def put(self, records: Sequence[Record]) -> Call:
        """MSET."""
        return self._call([_mset([(_key(key), value) for key, value in records])], len(records), _no_values)

    def get(self, keys: Sequence[str]) -> Call:
        """MGET."""
        return self._call([_mget([_key(key) for key in keys])], len(keys), _values)

    def delete(self, keys: Sequence[str]) -> Call:
        """DEL."""
        return self._call([wire.command(b"DEL", *[_key(key) for key in keys])], len(keys), _no_values)

    def create(self, sessions: Sequence[Record], owner: str) -> Call:
        """MSET of both keys."""
        records = [(_properties(name), value) for name, value in sessions]
        records += [(_owner(name), owner.encode()) for name, _ in sessions]
        return self._call([_mset(records)], len(sessions), _no_values)

    def take_over(self, sessions: Sequence[str], owner: str) -> Call:
        """MSET and MGET."""
        commands = [
            _mset([(_owner(name), owner.encode()) for name in sessions]),
            _mget([_properties(name) for name in sessions]),
        ]

        def read(replies: Sequence[wire.Reply]) -> Answer:
            values = _values(replies[1:]).values
            return Answer([ABSENT] * values.count(None), values)

        return self._call(commands, len(sessions), read)

    def owners(self, sessions: Sequence[str]) -> Call:
        """MGET."""
        return self._call([_mget([_owner(name) for name in sessions])], len(sessions), _values)

    def begin(self, sessions: Sequence[Record]) -> Call:
        """SET with EX, pipelined."""
        seconds = b"%d" % LAPSING_S
        commands = [wire.command(b"SET", _lapsing(name), value, b"EX", seconds) for name, value in sessions]
        return self._call(commands, len(sessions), _no_values)

    def alive(self, sessions: Sequence[str]) -> Call:
        """MGET."""
        return self._call([_mget([_lapsing(name) for name in sessions])], len(sessions), _values)

    def end(self, sessions: Sequence[str]) -> Call:
        """DEL."""
        return self._call([wire.command(b"DEL", *[_lapsing(name) for name in sessions])], len(sessions), _no_values)

    async def abandon(self) -> None:
        """Nobody renews the expiry anyway."""

    def _call(self, commands: Sequence[bytes], items: int, read: Callable[[Sequence[wire.Reply]], Answer]) -> Call:
        request, count = b"".join(commands), len(commands)

        async def call() -> Answer:
            replies = await next(self._turns).ask(request, count)
            if isinstance(replies, str):
                return Answer([replies] * items)
            failed = [f"redis {one}" for one in replies if isinstance(one, wire.Failed)]
            return Answer(failed * (items // count)) if failed else read(replies)

        return call


@asynccontextmanager
async def open_redis(endpoints: str, in_flight: int) -> AsyncIterator[RedisClient]:
    """Connections to the first endpoint."""
    host, _, port = endpoints.partition(",")[0].rpartition(":")
    loop = asyncio.get_running_loop()
    pipes: list[Pipe[wire.Reply]] = []
    try:
        async with asyncio.timeout(_CONNECT_S):
            for _ in range(max(1, min(CONNECTIONS_MAX, in_flight))):
                pipes.append((await loop.create_connection(lambda: Pipe(wire.cut), host, int(port)))[1])
        yield RedisClient(pipes)
    finally:
        for pipe in pipes:
            pipe.close()


def _no_values(_: Sequence[wire.Reply]) -> Answer:
    return Answer()


def _values(replies: Sequence[wire.Reply]) -> Answer:
    (found,) = replies
    assert isinstance(found, list), found
    return Answer(values=found)


def _mset(records: Sequence[tuple[bytes, bytes]]) -> bytes:
    return wire.commanded([b"MSET", *itertools.chain.from_iterable(records)])


def _mget(keys: Sequence[bytes]) -> bytes:
    return wire.command(b"MGET", *keys)


def _key(key: str) -> bytes:
    return f"k/{key}".encode()


def _properties(session: str) -> bytes:
    return f"s/{session}".encode()


def _owner(session: str) -> bytes:
    return f"o/{session}".encode()


def _lapsing(session: str) -> bytes:
    return f"l/{session}".encode()
