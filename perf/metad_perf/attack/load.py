"""Attacks of insiders on the node's time and memory: requests that are cheap to send and expensive to answer, and very
many of others. Each must end in answers, or with the connection; other clients must still be served, which the caller
measures."""

from __future__ import annotations

import contextlib
import random
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from itertools import count

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.errors import MetadError
from metad_wire.messages import BATCH_ITEMS_MAX, TRANSACTION_ITEMS_MAX

from .insider import GoneError, Insider, cancel
from .peer import CROWD, CROWD_BROKER, HELLO, LARGE_KEYS, Outcome, Target, TlsPeer, payload_of, put, request

_MIB = 1024 * 1024
_UNREAD_TLS, _UNREAD_QUIC = 150, 24  # connections; a handshake of QUIC costs the attacker 20 ms
_ASKED_EACH = 4
_HELD = 400
_BATCH = 1_000
_FULL = 40  # requests at once, each with as many items as allowed
_LARGE_BATCH_BYTES = 14 * _MIB
_TRANSACTIONS = BATCH_ITEMS_MAX // TRANSACTION_ITEMS_MAX  # each with as many compares as allowed
_HOARDERS, _HOARDED_BYTES = 40, 700_000  # together more than the node accepts of unfinished frames
_HONEST_BATCHES = 3
_SLOWER_MAX = 5.0
_TRICKLED = 8  # connections that send one byte at a time

_GET_ALL = payload_of(methods.KV_GET, methods.KV_GET.body([m.KvKey("large", f"k{n}") for n in range(LARGE_KEYS)]))
_GET_SMALL = methods.KV_GET.body([m.KvKey("small", "k")])


def unread_replies(target: Target, until_s: float) -> Outcome:
    """Many connections that each ask for 8 MiB, several times, in 64 bytes, and read nothing. Memory must not grow with
    them, and clients that read must still be answered."""
    connections = _UNREAD_QUIC if target.transport == "quic" else _UNREAD_TLS
    with contextlib.ExitStack() as stack:
        opened = 0
        for _ in range(connections):
            with contextlib.suppress(OSError, GoneError):
                insider = stack.enter_context(Insider(target))
                insider.stop_reading()
                for _ in range(_ASKED_EACH):
                    insider.post(methods.KV_GET, _GET_ALL)
                opened += 1
        time.sleep(max(0.0, until_s - time.monotonic()))
        return Outcome(opened, _unserved(target))


def _unserved(target: Target) -> str:
    """What goes wrong for an honest client that connects now; empty: nothing."""
    try:
        with Insider(target) as insider:
            insider.ask(methods.KV_GET, _GET_SMALL)
    except (OSError, GoneError, MetadError) as error:
        return f"somebody honest was not served: {error!r}"
    return ""


def filtered_listings(target: Target, until_s: float) -> Outcome:
    """Listings that search twenty thousand sessions and match none."""
    asked = [
        payload_of(methods.SESSION_LIST, m.SessionList("crowd", "", "nobody", m.Page(1))),
        payload_of(methods.SESSION_LIST, m.SessionList(None, "", "nobody", m.Page(10_000))),
    ]
    return flood(target, until_s, [(methods.SESSION_LIST.code, one) for one in asked], in_flight=500)


def whole_listings(target: Target, until_s: float) -> Outcome:
    """Listings of all records, all pages at once, with megabytes of results."""
    sessions = payload_of(methods.SESSION_LIST, m.SessionList(page=m.Page(10_000)))
    records = payload_of(methods.KV_SCAN, m.KvScan("large", page=m.Page(10_000)))
    asked = [(methods.SESSION_LIST.code, sessions), (methods.KV_SCAN.code, records)]
    return flood(target, until_s, asked, in_flight=16)


def expensive_transactions(target: Target, until_s: float) -> Outcome:
    """Requests of 6 KB that compare a record of a MiB nine hundred times."""
    compares = [m.KvCompare("k0", 1)] * TRANSACTION_ITEMS_MAX
    body = m.KvTransact([m.KvTransaction("large", compares, [])] * _TRANSACTIONS)
    return flood(target, until_s, [(methods.KV_TRANSACT.code, payload_of(methods.KV_TRANSACT, body))], in_flight=_FULL)


def large_compares(target: Target, until_s: float) -> Outcome:
    """Transactions that write a MiB and compare with it, so that only the last byte decides."""
    almost = bytes(_MIB - 300)
    compares = [m.KvCompare("compared", None, almost)]
    body = m.KvTransact([m.KvTransaction("large", compares, [m.KvOperation("compared", almost)])] * 4)
    return flood(target, until_s, [(methods.KV_TRANSACT.code, payload_of(methods.KV_TRANSACT, body))], in_flight=4)


def largest_reads(target: Target, until_s: float) -> Outcome:
    """The largest possible replies, one after the other, all of them read."""
    return flood(target, until_s, [(methods.KV_GET.code, _GET_ALL)], in_flight=16)


def restores(target: Target, until_s: float) -> Outcome:
    """Takeovers of one broker after the other that restore the properties of as many sessions as a request may name."""
    items = [m.SessionTakeoverItem("crowd", f"c{n}") for n in range(min(CROWD, BATCH_ITEMS_MAX))]
    bodies = [m.SessionTakeover(broker, 1, items, True) for broker in ("x" * 256, CROWD_BROKER)]
    payloads = [payload_of(methods.SESSION_TAKEOVER, body) for body in bodies]
    return flood(target, until_s, [(methods.SESSION_TAKEOVER.code, one) for one in payloads], in_flight=_FULL)


def wide_reads(target: Target, until_s: float) -> Outcome:
    """Reads of as many records as a request may name: of missing keys, and of existing sessions."""
    keys = methods.KV_GET.body([m.KvKey("small", f"absent-{n}") for n in range(BATCH_ITEMS_MAX)])
    sessions = methods.SESSION_GET.body([m.SessionKey("crowd", f"c{n}") for n in range(min(CROWD, BATCH_ITEMS_MAX))])
    asked = [
        (methods.KV_GET.code, payload_of(methods.KV_GET, keys)),
        (methods.SESSION_GET.code, payload_of(methods.SESSION_GET, sessions)),
    ]
    return flood(target, until_s, asked, in_flight=_FULL)


def wide_writes(target: Target, until_s: float) -> Outcome:
    """Batches of as many different keys as a request may name, a few bytes each."""
    body = m.KvPut([m.KvPutItem("flood0", f"wide-{n}", b"v") for n in range(BATCH_ITEMS_MAX)])
    return flood(target, until_s, [(methods.KV_PUT.code, payload_of(methods.KV_PUT, body))], in_flight=_FULL)


def status_and_map(target: Target, until_s: float) -> Outcome:
    """Requests for the node's status and the whole map, again and again."""
    asked = [
        (methods.STATUS.code, payload_of(methods.STATUS, m.Status())),
        (methods.CLUSTER_MAP.code, payload_of(methods.CLUSTER_MAP, c.MapRequest())),
    ]
    return flood(target, until_s, asked)


def small_puts(target: Target, until_s: float) -> Outcome:
    """As many small writes as the window accepts."""
    payloads = [
        payload_of(methods.KV_PUT, m.KvPut([m.KvPutItem(f"flood{n % 8}", f"k{n}", b"v" * 40)])) for n in range(1_000)
    ]
    return flood(target, until_s, [(methods.KV_PUT.code, one) for one in payloads], in_flight=100_000)


def batches(target: Target, until_s: float) -> Outcome:
    """Batches of a thousand writes, sixteen at a time."""
    payloads = [
        payload_of(
            methods.KV_PUT, m.KvPut([m.KvPutItem(f"flood{n % 8}", f"k{n}-{k}", b"v" * 100) for n in range(_BATCH)])
        )
        for k in range(4)
    ]
    return flood(target, until_s, [(methods.KV_PUT.code, one) for one in payloads], in_flight=16)


def largest_batches(target: Target, until_s: float) -> Outcome:
    """Batches as large as frames may be, which are refused, and as large as writes may be, which are accepted."""
    asked = []
    for size in (_LARGE_BATCH_BYTES, m.CHANGE_BYTES_MAX - _MIB):
        items = [m.KvPutItem("batches", f"k{n}", bytes(size // _BATCH)) for n in range(_BATCH)]
        asked.append((methods.KV_PUT.code, payload_of(methods.KV_PUT, m.KvPut(items))))
    return flood(target, until_s, asked, in_flight=2)


def one_key(target: Target, until_s: float) -> Outcome:
    """Batches full of conditional writes of one key, nearly all of which conflict."""
    items = [m.KvPutItem("small", "contended", b"v", n % 7) for n in range(BATCH_ITEMS_MAX)]
    payload = payload_of(methods.KV_PUT, m.KvPut(items))
    return flood(target, until_s, [(methods.KV_PUT.code, payload)], in_flight=_FULL)


def hopeless_deadlines(target: Target, until_s: float) -> Outcome:
    """Writes and reads whose deadline ends a millisecond later."""
    payload = payload_of(methods.KV_PUT, m.KvPut([m.KvPutItem("hopeless", "k", b"v" * 1_000)]), 1)
    listing = payload_of(methods.SESSION_LIST, m.SessionList("crowd", "", "nobody", m.Page(1)), 1)
    asked = [(methods.KV_PUT.code, payload)] * 3 + [(methods.SESSION_LIST.code, listing)]
    return flood(target, until_s, asked, in_flight=5_000)


def cancelled_requests(target: Target, until_s: float) -> Outcome:
    """Writes that are cancelled at once, and cancellations of requests that do not exist."""
    payload = payload_of(methods.KV_PUT, m.KvPut([m.KvPutItem("cancelled", "k", b"v" * 1_000)]))

    def one(number: int) -> bytes:
        return request(number, methods.KV_PUT.code, payload) + cancel(number) + cancel(number + 1_000_000)

    return _flooded(target, until_s, one, in_flight=5_000)


def pings(target: Target, until_s: float) -> Outcome:
    """Pings without end. The server must answer them, or close the connection."""
    ping = encode_frame(FrameType.PING, methods.encode(m.Ping(1))) * 500
    with Insider(target) as insider:
        tried = 0
        while time.monotonic() < until_s and not insider.ended:
            insider.say(ping)
            tried += 500
            time.sleep(0.001)
        return Outcome(tried, _unserved(target))


def many_connections(target: Target, until_s: float) -> Outcome:
    """Hundreds of simultaneous connections, all admitted, which send requests and stay; then all again. An honest
    client must still be admitted."""
    tried = 0
    with contextlib.ExitStack() as stack:
        while time.monotonic() < until_s and tried < _HELD:
            with contextlib.suppress(OSError, GoneError):
                insider = stack.enter_context(Insider(target))
                insider.post(methods.KV_GET, payload_of(methods.KV_GET, _GET_SMALL))
                tried += 1
        time.sleep(max(0.0, until_s - time.monotonic()))
        return Outcome(tried, _unserved(target))


def comings_and_goings(target: Target, until_s: float) -> Outcome:
    """Connections that are admitted, ask for something large, and close before the answer."""
    tried = 0
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError, GoneError), Insider(target) as insider:
            for _ in range(_ASKED_EACH):
                insider.post(methods.KV_GET, _GET_ALL)
            tried += 1
    return Outcome(tried, _unserved(target))


def single_bytes(target: Target, until_s: float) -> Outcome:
    """Requests sent one byte at a time, each in a TLS record of its own, on several connections at once."""
    frame = request(1, methods.KV_GET.code, payload_of(methods.KV_GET, _GET_SMALL))
    tried = 0
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(TlsPeer(target, target.good)) for _ in range(_TRICKLED)]
        for peer in peers:
            peer.send(HELLO)
            peer.read()
        while time.monotonic() < until_s or not tried:  # on a slow machine the connections take all the time
            for at in range(len(frame)):
                for peer in peers:
                    peer.send(frame[at : at + 1])
            tried += len(frame) * len(peers)
            for peer in peers:
                peer.read()
        silent = sum(peer.heard.responses == 0 for peer in peers)
    return Outcome(tried, f"{silent} were not answered" if silent else "")


def broken_frames(target: Target, until_s: float) -> Outcome:
    """Connections that are admitted and break the protocol at once, each in another way; each refusal is also logged.
    All must be closed."""
    rng = random.Random(6)
    ways: Sequence[Callable[[], bytes]] = (
        lambda: struct.pack(">IBBHQ", 5, FrameType.REQUEST, 0, 1, 1),
        lambda: HELLO,
        lambda: encode_frame(FrameType.PEER, b"x"),
        lambda: request(0, methods.KV_GET.code, _GET_ALL),
        lambda: request(1, methods.KV_PUT.code, put("small", "twice", b"v")) * 2,
        lambda: encode_frame(99, rng.randbytes(100)),
    )
    kept = tried = 0
    while time.monotonic() < until_s or tried < len(ways):
        with contextlib.suppress(OSError, GoneError), Insider(target) as insider:
            insider.say(ways[tried % len(ways)]())
            tried += 1
            hang_up_s = time.monotonic() + 5.0
            while not insider.ended and time.monotonic() < hang_up_s:
                insider.say(b"")
            kept += not insider.ended
    return Outcome(tried, f"{kept} were not hung up on" if kept else "")


def hoarded_frames(target: Target, until_s: float) -> Outcome:
    """Frames of 15 MiB on many connections, each begun and never ended, and begun again when the server closes the
    connection. An honest batch of 2 MB must not take many times as long as in peace."""
    begun = struct.pack(">IBBHQ", 15 * _MIB, FrameType.REQUEST, 0, methods.KV_PUT.code, 1) + bytes(_HOARDED_BYTES)
    batch = m.KvPut([m.KvPutItem("batches", f"h{n}", bytes(20_000)) for n in range(100)])
    tried = 0
    with Insider(target) as honest, contextlib.ExitStack() as stack:
        peace_s = statistics.median(_taken_s(honest, batch) for _ in range(_HONEST_BATCHES))
        held: list[Insider] = []
        taken_s: list[float] = []
        while time.monotonic() < until_s or len(taken_s) < _HONEST_BATCHES:
            held = [one for one in held if not one.ended]
            while len(held) < _HOARDERS:
                held.append(stack.enter_context(Insider(target)))
                held[-1].say(begun)
                tried += 1
            taken_s.append(_taken_s(honest, batch))
            for one in held:
                one.say(b"")  # notice whether the server closes it
        ratio = statistics.median(taken_s) / peace_s
    return Outcome(tried, f"an honest batch of 2 MB took {ratio:.0f} times as long" if ratio > _SLOWER_MAX else "")


def _taken_s(insider: Insider, batch: m.KvPut) -> float:
    begun_s = time.monotonic()
    insider.ask(methods.KV_PUT, batch, wait_s=30.0)
    return time.monotonic() - begun_s


def flood(target: Target, until_s: float, asked: Sequence[tuple[int, bytes]], *, in_flight: int = 1_000) -> Outcome:
    """Send these (method, payload) pairs in turn, as many at once as the window and ``in_flight`` allow."""
    turns = count()

    def one(number: int) -> bytes:
        method, payload = asked[next(turns) % len(asked)]
        return request(number, method, payload)

    return _flooded(target, until_s, one, in_flight=in_flight)


def _flooded(target: Target, until_s: float, one: Callable[[int], bytes], *, in_flight: int) -> Outcome:
    """Each request must be answered or the connection closed, and an honest client must be served."""
    with Insider(target) as insider:
        try:
            insider.flood(one, until_s, in_flight=in_flight)
        except GoneError as error:
            return Outcome(insider.sent, str(error))
        return Outcome(insider.sent, _unserved(target))
