"""Attacks of insiders on records, remembered identities and elections. Over TLS; some on three nodes, so that entries
are replicated. Each docstring says what the attack must not achieve; the caller checks after each that the node lives,
still leads in the same term and has answered the good client.

Random requests are generated from the types of a method's body: mostly allowed, a few not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import msgspec
from msgspec import inspect

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import (
    IdentityExpiredError,
    InternalError,
    MetadError,
    UnknownOutcomeError,
)
from metad_wire.messages import TRANSACTION_ITEMS_MAX
from metad_wire.methods import METHODS, By, For, Method
from metad_wire.tables.cluster import GROUP

from .insider import GoneError, Insider, leader_of
from .peer import CROWD_BROKER, Outcome, Target, group_of, payload_of, request

_TEXTS = ("", "a", "b", "k0", "large", "crowd", "\0", "é" * 7, "x" * 300)
_NUMBERS = (0, 1, 2, 7, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**63))
_ITEMS_MAX = 4
_NONE_SHARE = 0.3


def methods_of_records(*, mutating: bool) -> list[Method[Any, Any]]:
    """Every method that changes records, or every method about records."""
    return [
        one
        for one in METHODS.values()
        if one.by is By.GROUP and one.whose is not For.NODES and one.table is not GROUP
        if one.mutates or not mutating
    ]


def methods_of_brokers() -> list[Method[Any, Any]]:
    """Every method of the registry of brokers that is for clients."""
    return [one for one in METHODS.values() if one.name.startswith("broker.") and one.whose is For.CLIENTS]


def random_body(rng: random.Random, method: Method[Any, Any]) -> Any:
    """A random body of the method, in the form that MessagePack decodes: a list."""
    return _made(rng, inspect.type_info(method.body))


def _made(rng: random.Random, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _made(rng, kind.type)
    if isinstance(kind, inspect.StructType):
        return [_made(rng, field.type) for field in kind.fields]
    if isinstance(kind, inspect.UnionType):
        some = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        may_lack = len(some) < len(kind.types)
        return None if may_lack and rng.random() < _NONE_SHARE else _made(rng, rng.choice(some))
    if isinstance(kind, inspect.ListType):
        return [_made(rng, kind.item_type) for _ in range(rng.randrange(_ITEMS_MAX))]
    if isinstance(kind, inspect.DictType):
        return {_made(rng, kind.key_type): _made(rng, kind.value_type) for _ in range(rng.randrange(_ITEMS_MAX))}
    if isinstance(kind, inspect.IntType):
        least = -(2**63) if kind.ge is None else kind.ge
        most = 2**63 - 1 if kind.le is None else kind.le
        return rng.choice([least, most, *[number for number in _NUMBERS if least <= number <= most]])
    if isinstance(kind, inspect.StrType):
        return rng.choice(_TEXTS)[: kind.max_length]
    if isinstance(kind, inspect.LiteralType):
        return rng.choice(kind.values)
    if isinstance(kind, inspect.BytesType):
        return rng.randbytes(rng.choice((0, 1, 128, 2_000)))
    if isinstance(kind, inspect.BoolType):
        return rng.random() < 0.5
    return None


def encoded(body: Any, *, identity: Any = None, deadline_ms: int = 0, group: str = "") -> bytes:
    """The payload of a REQUEST with this body."""
    return msgspec.msgpack.encode([deadline_ms, identity, body, group])


_ANSWER_S = 10.0  # for requests that take longer than most
_KEYS = 4_020
_VALUE_BYTES = 4_096
_IDENTITIES_MORE = 70_000  # more than a group remembers
_LONG_NAME = "n" * 4_000
_TRANSACTIONS = m.BATCH_ITEMS_MAX // (TRANSACTION_ITEMS_MAX + 1)
_REFUSED_ITEMS = m.BATCH_ITEMS_MAX
_GENERATIONS = (2**63 - 1, 2**53 - 1)  # the first exceeds the allowed maximum
_HONEST_AGE_MS = 100


def reused_identities(target: Target, until_s: float) -> Outcome:
    """Every method that writes, with an identity that another body and another method used before. Each must be
    answered, and none may report a write that was not done."""
    rng = random.Random(4)
    writers = methods_of_records(mutating=True)
    tried = false = unanswered = 0
    with Insider(target) as insider:
        _fill_sessions(insider)
        while time.monotonic() < until_s or tried < len(writers) ** 2:
            client_id = random.getrandbits(64)  # of this time only, unlike the bodies
            for seq, (first, second) in enumerate([(a, b) for a in writers for b in writers], 1):
                tried += 1
                identity = [client_id, seq, 1, 0]
                answers = [
                    _answer(insider, one, encoded(random_body(rng, one), identity=identity, group=group_of(one)))
                    for one in (first, second)
                ]
                unanswered += answers.count("")
                if insider.ended:
                    return Outcome(tried, f"hung up after {first.name} and {second.name} with one identity")
                if time.monotonic() >= until_s and tried >= len(writers) ** 2:
                    break
            false += _false_done(insider, client_id, seq + 1)
            unanswered += _restored(insider, client_id, seq + 2)
    problems = [f"{false} were told of a write that was not done"] if false else []
    problems += [f"{unanswered} were not answered, or with a bug"] if unanswered else []
    return Outcome(tried, "; ".join(problems))


def _fill_sessions(insider: Insider) -> None:
    items = [m.SessionTakeoverItem("reused", f"c{n}", False, m.SessionProperties(1, b"p")) for n in range(10)]
    insider.ask(methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))


def _answer(insider: Insider, method: Method[Any, Any], payload: bytes) -> str:
    """The kind of the answer; empty: none, or a bug."""
    try:
        insider.ask_encoded(method, payload)
    except InternalError:
        return ""
    except MetadError as error:
        return error.name
    except GoneError:
        return ""
    return "done"


def _false_done(insider: Insider, client_id: int, seq: int) -> bool:
    """Whether a put to another key under a known identity is reported as done although it is not."""
    identity = m.Identity(client_id, seq, 1)
    first, second = f"a{seq}-{client_id}", f"b{seq}-{client_id}"
    insider.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("reused", first, b"1")]), identity=identity)
    try:
        reply = insider.ask(methods.KV_PUT, m.KvPut([m.KvPutItem("reused", second, b"2")]), identity=identity)
    except MetadError:
        return False
    found = insider.ask(methods.KV_GET, methods.KV_GET.body([m.KvKey("reused", second)])).found[0]
    return not reply.errors and found is None


def _restored(insider: Insider, client_id: int, seq: int) -> bool:
    """Whether a takeover that restores, under the identity of one with fewer items, stays unanswered."""
    identity = m.Identity(client_id, seq, 1)
    for count in (1, 3):
        items = [m.SessionTakeoverItem("reused", f"c{n}") for n in range(count)]
        body = m.SessionTakeover("b", 2, items, True)
        payload = payload_of(methods.SESSION_TAKEOVER, body, 0, identity)
        if not _answer(insider, methods.SESSION_TAKEOVER, payload):
            return True
    return False


def random_bodies(target: Target, until_s: float) -> Outcome:
    """Random bodies for every method about records and brokers, with and without identities, groups and deadlines. Each
    must be answered, and none with a bug."""
    rng = random.Random(5)
    made = methods_of_records(mutating=False) + methods_of_brokers()
    tried = bugs = 0
    with Insider(target) as insider:
        while time.monotonic() < until_s or tried < len(made):
            method = made[tried % len(made)]
            tried += 1
            identity = [rng.randrange(4), rng.randrange(1, 100), rng.randrange(1, 50), rng.choice((0, 0, 1, 10**6))]
            payload = encoded(
                random_body(rng, method),
                identity=identity if method.mutates and rng.random() < 0.7 else None,
                deadline_ms=1 if method is methods.WILL_WAIT else rng.choice((0, 0, 1, 2**32 - 1)),  # it would wait
                group=rng.choice((*[group_of(method)] * 4, "", "data-0", "offset-1", "metadata-0", "nonsense")),
            )
            bugs += not _answer(insider, method, payload)
            if insider.ended:
                return Outcome(tried, f"hung up after {method.name}")
    return Outcome(tried, f"{bugs} were not answered, or with a bug" if bugs else "")


class _Witness:
    """An honest client that writes to the same group, and whose retries must still be recognised."""

    def __init__(self, insider: Insider, namespace: str) -> None:
        self._insider = insider
        self._namespace = namespace
        self._client_id = random.getrandbits(64)
        self._seq = 1
        self._body = m.KvPut([m.KvPutItem(namespace, f"witness-{self._client_id}", b"once")])
        self._begun_s = time.monotonic()
        self._reply = self._ask(self._body, 1, 0)

    def _ask(self, body: m.KvPut, seq: int, age_ms: int) -> m.KvPutReply:
        identity = m.Identity(self._client_id, seq, 1, age_ms)
        return self._insider.ask(methods.KV_PUT, body, identity=identity, wait_s=_ANSWER_S)

    def problem(self) -> str:
        """What goes wrong with a retry of a write that was done, and of one that was not; empty: nothing."""
        age_ms = 1 + round(1e3 * (time.monotonic() - self._begun_s))
        try:
            if self._ask(self._body, 1, age_ms) != self._reply:
                return "an honest client's retry was answered with something else"
            self._seq += 1
            fresh = m.KvPut([m.KvPutItem(self._namespace, f"fresh-{self._client_id}-{self._seq}", b"once")])
            self._ask(fresh, self._seq, _HONEST_AGE_MS)
        except IdentityExpiredError as error:
            return f"an honest client's retry: {error.name}"
        except GoneError:
            return "an honest client's retry was not answered"
        return ""


def identity_window(target: Target, until_s: float) -> Outcome:
    """Small transactions that write nothing and read 3 MiB each, under identities that are never confirmed. Another
    client's retry must still be told from a new write."""
    reads = [f"k{n}" for n in range(3)]
    body = m.KvTransact([m.KvTransaction("large", [], [], [], reads)])
    return _against_window(target, until_s, "large", methods.KV_TRANSACT, body, in_flight=1)


def unmoving_low(target: Target, until_s: float) -> Outcome:
    """Writes of one key, by a client that never confirms answers: each needs a log entry of its own. Another client
    must not wait for them, and its retry must still be told from a new write."""
    body = m.KvPut([m.KvPutItem("unmoving", "k", b"v")])
    return _against_window(
        target, until_s, "unmoving", methods.KV_PUT, body, in_flight=2_000, at_least=_IDENTITIES_MORE
    )


def refused_items(target: Target, until_s: float) -> Outcome:
    """Batches of updates of sessions whose owner has the longest name: 10 KB ask for 280 KB of refusals, which are
    remembered. Another client's retry must still be told from a new write."""
    items = [m.SessionUpdateItem("crowd", "c0", m.SessionProperties())] * _REFUSED_ITEMS
    body = m.SessionUpdate("nobody", 1, items)
    return _against_window(target, until_s, "crowd", methods.SESSION_UPDATE, body, in_flight=20)


def _against_window(
    target: Target,
    until_s: float,
    namespace: str,
    method: Method[Any, Any],
    body: m.Message,
    *,
    in_flight: int,
    at_least: int = 1,
) -> Outcome:
    """The witness writes to a namespace; if that is in another group than the attacked one, another client shares its
    node."""
    client_id = random.getrandbits(64)
    with Insider(target) as insider:
        witnesses = [_Witness(insider, name) for name in {namespace, "large", "unmoving", "w0", "w1", "w2"}]
        with Insider(target) as flooding:

            def one(number: int) -> bytes:
                payload = payload_of(method, body, 0, m.Identity(client_id, number, 1))
                return request(number, method.code, payload)

            flooding.flood(one, until_s, in_flight=in_flight, at_least=at_least)
            tried = flooding.sent
        problems = {problem for witness in witnesses if (problem := witness.problem())}
    return Outcome(tried, "; ".join(sorted(problems)))


def highest_generation(target: Target, until_s: float) -> Outcome:
    """Commits of the highest accepted generation to groups of other clients. An operator must be able to see that, and
    to reset the generation."""
    tried = fenced = 0
    with Insider(target) as insider:
        while time.monotonic() < until_s or tried < 1:
            tried += 1
            group = f"g{random.getrandbits(64)}"
            for generation in _GENERATIONS:
                item = ["highest", group, "t", 0, 1, generation]
                _answer(insider, methods.OFFSET_COMMIT, encoded([[item]], group=group_of(methods.OFFSET_COMMIT)))
            (now,) = insider.ask(
                methods.OFFSET_GENERATIONS, m.OffsetGenerations([m.ConsumerGroup("highest", group)])
            ).generations
            reset = m.OffsetResetGenerations([m.GenerationReset("highest", group, now)])
            insider.ask(methods.OFFSET_RESET_GENERATIONS, reset)
            again = m.OffsetCommitItem("highest", group, "t", 0, 2, 1)
            fenced += bool(insider.ask(methods.OFFSET_COMMIT, m.OffsetCommit([again])).errors)
            fenced += now not in _GENERATIONS
    return Outcome(tried, f"{fenced} groups are fenced for ever" if fenced else "")


def cluster_changes(target: Target, until_s: float) -> Outcome:
    """Every method that changes the cluster, called by a plain client: records of 15 MB, malformed names and addresses,
    many groups, leadership transfers. All must be refused, and the map must not change."""
    tried = done = 0
    with Insider(target) as insider:
        before = _map(insider)
        joins = [
            c.NodeRecord("big-1", "x" * 15_000_000, ""),
            c.NodeRecord("big-2", "", "y" * 15_000_000),
            *(c.NodeRecord(name, "169.254.169.254:80", "169.254.169.254:80") for name in ("", "\n", "n" * 5_000)),
        ]
        asked: list[tuple[Method[Any, Any], m.Message]] = [(methods.CLUSTER_JOIN, c.Join(node)) for node in joins]
        asked += [(methods.CLUSTER_ADD_GROUP, c.AddGroup(kind)) for kind in ("data", "offset") * 8]
        asked += [(methods.CLUSTER_TRANSFER, c.Transfer("data-0", node.node_id)) for node in before.nodes]
        asked += [(methods.CLUSTER_REBALANCE, c.Rebalance())]
        asked += [(methods.CLUSTER_LEAVE, c.Leave(node.node_id)) for node in before.nodes]
        asked += [(methods.CLUSTER_STORE, c.StoreMap(before.version, before)), (methods.CLUSTER_MOVED, c.Moved(1))]
        asked += [(methods.GROUP_COMMAND, c.GroupCommand("open", 1))]
        asked += [(methods.GROUP_FENCE, c.GroupFence([c.FenceItem("anybody", 1 << 40)]))]
        while time.monotonic() < until_s or tried < len(asked):
            method, body = asked[tried % len(asked)]
            tried += 1
            try:
                insider.ask(method, body, wait_s=_ANSWER_S)
            except MetadError:
                continue
            done += 1
        after = _map(insider)
    problems = [f"{done} were done"] if done else []
    if (after.nodes, after.groups, after.moves) != (before.nodes, before.groups, before.moves):
        problems.append(f"the map has {len(after.nodes)} nodes and {len(after.groups)} groups")
    return Outcome(tried, "; ".join(problems))


def _map(insider: Insider) -> c.ClusterMap:
    reply = insider.ask(methods.CLUSTER_MAP, c.MapRequest(), wait_s=_ANSWER_S)
    assert reply.map is not None
    return reply.map


# --- on three nodes --------------------------------------------------------------------------------------


def amplified_transactions(target: Target, until_s: float) -> Outcome:
    """Transactions with a few bytes per read, of records whose namespace has 4,000: 60 KB ask for a reply of 3.6 MB,
    which an entry remembers. Each must be answered in time, and other clients served."""
    name = _LONG_NAME
    reads = ["k"] * TRANSACTION_ITEMS_MAX
    body = m.KvTransact([m.KvTransaction(name, [], [m.KvOperation("w", b"")], [], reads)] * _TRANSACTIONS)
    small = m.KvPut([m.KvPutItem(name, "k", b"")])
    return _at_leader(target, until_s, small, methods.KV_TRANSACT, lambda: body)


def large_puts(target: Target, until_s: float) -> Outcome:
    """Batches of new keys with 4 KB each: as large as a frame, and as large as a write may be. Each must be answered in
    time, and other clients served."""
    value = bytes(_VALUE_BYTES)
    sizes = cycle((_KEYS, m.CHANGE_BYTES_MAX // (_VALUE_BYTES + 200)))

    def body() -> m.KvPut:
        first = random.getrandbits(64)
        return m.KvPut([m.KvPutItem("batches", f"{first}-{n}", value) for n in range(next(sizes))])

    return _at_leader(target, until_s, m.KvPut([m.KvPutItem("batches", "k", b"")]), methods.KV_PUT, body)


def replicated_refusals(target: Target, until_s: float) -> Outcome:
    """Batches of updates of sessions that belong to a broker with the longest name: refusals are remembered, so they
    travel in the entry. Each must be answered in time, and other clients served."""
    takeover = m.SessionTakeover(CROWD_BROKER, 1, [m.SessionTakeoverItem("crowd", "c0")])
    items = [m.SessionUpdateItem("crowd", "c0", m.SessionProperties())] * _REFUSED_ITEMS
    body = m.SessionUpdate("nobody", 1, items)
    return _at_leader(target, until_s, takeover, methods.SESSION_UPDATE, lambda: body, first=methods.SESSION_TAKEOVER)


def _at_leader(
    target: Target,
    until_s: float,
    small: m.Message,
    method: Method[Any, Any],
    body: Callable[[], m.Message],
    *,
    first: Method[Any, Any] = methods.KV_PUT,
) -> Outcome:
    """Ask the leader of the group for more than it can replicate, under a new identity each time, and again if the
    outcome is unknown, as the SDK does."""
    tried = 0
    client_id = random.getrandbits(64)
    try:
        insider = leader_of(target, first, small)
        with insider:
            while time.monotonic() < until_s or not tried:
                tried += 1
                payload = payload_of(method, body(), 0, m.Identity(client_id, tried, tried))
                try:
                    insider.ask_encoded(method, payload, wait_s=_ANSWER_S)
                except UnknownOutcomeError as error:
                    return Outcome(tried, f"cost the group its leader: {error}")
                except MetadError:
                    continue
        leader_of(target, first, small).close()
    except GoneError as error:
        return Outcome(tried, str(error))
    return Outcome(tried)
