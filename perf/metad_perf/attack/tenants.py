"""Attacks of an insider on another tenant. The insider has a certificate, a token, a role for its own tenant, and owns
the names of brokers that begin with its own. Each docstring says what it tries.

A request that shows or does what it must not has leaked. What it shows is judged by the bytes that come: every record
of the honest tenant has a secret in it. What it does is judged by the answer here, and by the site afterwards, which
reads all records of the honest tenant again.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from metad_wire import messages as m
from metad_wire import methods as w
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.errors import (
    FencedError,
    MetadError,
    NoRoomError,
    NotLeaderError,
    OverloadedError,
    PermissionDeniedError,
)
from metad_wire.families.core import TOPICS, Topic
from metad_wire.method import Method
from metad_wire.methods import encode
from metad_wire.tables import access as a
from metad_wire.tables import broker as b
from metad_wire.tables.lease import LeaseKey
from metad_wire.tables.retained import RetainedDeleteItem, RetainedKey, RetainedPutItem
from metad_wire.tables.sequence import SequenceKey
from metad_wire.tables.subscription import Subscription, SubscriptionKey
from metad_wire.tables.tenants import TenantsEnd
from metad_wire.tables.will import WillAcknowledge, WillClaim, WillKey, WillList, WillRelease, WillWait
from metad_wire.watch import WatchFilter, WatchOpen

from .insider import GoneError, Insider
from .peer import WAIT_S, Outcome, Target, TlsPeer, payload_of

HONEST, MALLORY = "honest", "mallory"
"""The tenants, and the names of their clients."""
DUE: Final = 10_000
"""Wills of the honest tenant that are due."""
_DENIED: Final = {PermissionDeniedError.code, FencedError.code}
_ALL_SLOTS: Final = b"\xff" * 128
_NOBODYS: Final = 2**62
"""An epoch that no registration gave."""
_LEASE_MS: Final = 3_600_000
_AGAIN_S: Final = 0.2
_NAMES: Final = 4_096
_BURST: Final = 200
_VALUE_BYTES: Final = 900 * 1024
_FULL_S: Final = 60.0
_HONEST_BROKER: Final = f"{HONEST}-broker"
_KV, _SESSION = m.KvKey(HONEST, "k0"), m.SessionKey(HONEST, "c0")

Ask = tuple[Method[Any, Any], Any]
"""A method and its body."""


class Crowd:
    """The insider's connections, one to each node; and what came of its requests."""

    def __init__(self, target: Target) -> None:
        self._stack = contextlib.ExitStack()
        self._insiders = _one_for_each(target, self._stack)
        self._leaders: dict[str, int] = {}
        self.tried = self.denied = self._done = 0
        self.problems: dict[str, None] = {}

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, method: Method[Any, Any], body: Any, group: str = "", life: m.Owner | None = None) -> Any:
        """Ask the node that answers this. Raises MetadError, GoneError."""
        payload = payload_of(method, body, group=group) if life is None else _in_a_name(method, body, life)
        until_s = time.monotonic() + 2 * WAIT_S
        at = self._leaders.get(group or method.name, 0)
        while True:
            try:
                answer = self._insiders[at].ask_encoded(method, payload)
            except (NotLeaderError, OverloadedError) as error:
                if time.monotonic() > until_s:
                    raise
                if isinstance(error, NotLeaderError):
                    at = (at + 1) % len(self._insiders)
                else:
                    time.sleep(_AGAIN_S)
            else:
                self._leaders[group or method.name] = at
                return answer

    def attempt(
        self,
        method: Method[Any, Any],
        body: Any,
        *,
        group: str = "",
        life: m.Owner | None = None,
        answers: bool = False,
    ) -> None:
        """Ask for what must be refused; ``answers``: or answered, with nothing of the honest tenant."""
        self.tried += 1
        try:
            reply = self.ask(method, body, group, life)
        except MetadError as error:
            if error.code in _DENIED:
                self.denied += 1
            else:
                self.problems[f"{method.name} was {error.name}: {error.message[:80]}"] = None
            return
        items = getattr(body, "items", ())
        codes = [error.code for error in getattr(reply, "errors", ())]
        if answers or (codes and len(codes) == len(items) and _DENIED.issuperset(codes)):
            self.denied += 1
        else:
            self._done += 1
            self.problems[f"{method.name} was done"] = None

    def names(self, until_s: float) -> int:
        """Register names until no more are given, or until then; how many were tried."""
        self.ask(w.BROKER_REGISTER, b.BrokerRegister(MALLORY, _LEASE_MS, wait_ms=0))
        leader = self._insiders[self._leaders[w.BROKER_REGISTER.name]]
        taken = 0
        while taken < _NAMES and (time.monotonic() < until_s or not taken):
            heard = leader.heard.responses + leader.heard.errors
            for number in range(taken, taken + _BURST):
                body = b.BrokerRegister(f"{MALLORY}-{number}", _LEASE_MS, wait_ms=0)
                leader.post(w.BROKER_REGISTER, payload_of(w.BROKER_REGISTER, body))
            taken += _BURST
            late_s = time.monotonic() + 4 * WAIT_S
            while leader.heard.responses + leader.heard.errors < heard + _BURST:
                if time.monotonic() > late_s:
                    raise GoneError("no answer in time")
                leader.say(b"")
        return taken

    def listen(self, for_s: float) -> None:
        """Take what comes to open watches."""
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            for insider in self._insiders:
                insider.say(b"")
            time.sleep(0.01)

    def outcome(self, problem: str = "") -> Outcome:
        """What came of everything."""
        shown = sum(insider.heard.leaks for insider in self._insiders)
        if shown:
            self.problems[f"{shown} frames showed records of another tenant"] = None
        told = "; ".join([*filter(None, [problem]), *self.problems])
        return Outcome(self.tried, told, min(self.denied, self.tried), self._done + shown)


def _one_for_each(target: Target, stack: contextlib.ExitStack) -> list[Insider]:
    """A connection to each node. On a machine that is busy a handshake of the attacker may come too late."""
    made: list[Insider] = []
    until_s = time.monotonic() + 4 * WAIT_S
    while len(made) < len(target.addresses):
        try:
            made.append(stack.enter_context(Insider(target, node=len(made))))
        except (OSError, GoneError):
            if time.monotonic() > until_s:
                raise
    return made


def _in_a_name(method: Method[Any, Any], body: Any, life: m.Owner) -> bytes:
    return method.encode_request(body, 0, None, "data-0", life=life)


def _again(target: Target, until_s: float, asks: Callable[[], Iterable[Ask]], group: str = "") -> Outcome:
    """Each once, and again until then. Each must be refused."""
    with Crowd(target) as crowd:
        while time.monotonic() < until_s or not crowd.tried:
            for method, body in asks():
                crowd.attempt(method, body, group=group if method.code in _GROUPS else "")
        return crowd.outcome()


_GROUPS: Final = {TOPICS.plain.get.code, TOPICS.plain.put.code, TOPICS.plain.delete.code, TOPICS.plain.list.code}
_GROUPS_OF_TABLES: Final = "metadata-0"


def wipes(target: Target, until_s: float) -> Outcome:
    """To end another tenant, and to delete and overwrite its records."""
    return _again(target, until_s, _wipes, _GROUPS_OF_TABLES)


def _wipes() -> Iterable[Ask]:
    life = MALLORY, 1
    yield w.SESSION_END_TENANT, m.SessionEndTenant(HONEST, False)
    yield w.SESSION_END_TENANT, m.SessionEndTenant(HONEST, True, True)
    yield w.TENANTS_END, TenantsEnd(HONEST)
    yield w.KV_DELETE, m.Items([m.KvDeleteItem(HONEST, f"k{number}") for number in range(10)])
    yield w.KV_PUT, m.KvPut([m.KvPutItem(HONEST, "k0", b"")])
    yield w.KV_TRANSACT, m.Items([m.KvTransaction(HONEST, [], [m.KvOperation("k0", None)])])
    yield w.SESSION_DELETE, m.SessionDelete([m.SessionDeleteItem(HONEST, "c0")])
    yield w.SESSION_TAKEOVER, m.SessionTakeover(*life, [m.SessionTakeoverItem(HONEST, "c0", True)])
    yield w.SUBSCRIPTION_REMOVE, w.SUBSCRIPTION_REMOVE.body(*life, [SubscriptionKey(HONEST, "c0", "f")])
    yield w.SUBSCRIPTION_ADD, w.SUBSCRIPTION_ADD.body(*life, [Subscription(HONEST, "c0", "#")])
    yield w.RETAINED_DELETE, m.Items([RetainedDeleteItem(HONEST, "t0")])
    yield w.RETAINED_PUT, m.Items([RetainedPutItem(HONEST, "t0", b"v")])
    yield w.OFFSET_DELETE, m.Items([m.OffsetKey(HONEST, "g", "t", 0)])
    yield w.OFFSET_DELETE_GROUPS, w.OFFSET_DELETE_GROUPS.body([m.ConsumerGroup(HONEST, "g")])
    yield w.OFFSET_COMMIT, w.OFFSET_COMMIT.body([m.OffsetCommitItem(HONEST, "g", "t", 0, 0)])
    yield w.LEASE_REVOKE, m.Items([LeaseKey(HONEST, "l")])
    yield w.SEQUENCE_DELETE, m.Items([SequenceKey(HONEST, "s")])
    yield (
        TOPICS.plain.delete,
        TOPICS.plain.delete.body(TOPICS.number, [m.TableDeleteItem(TOPICS.plain.key(HONEST, "t"))]),
    )
    yield TOPICS.plain.put, TOPICS.plain.put.body(TOPICS.number, 2, [m.TablePutItem(Topic(HONEST, "t"))])


def reads(target: Target, until_s: float) -> Outcome:
    """To read another tenant's records: by key, list, prefix, filter, count, watch and snapshot, from an old position
    of the log, by an image of one's own tenant, and by what waits."""
    with Crowd(target) as crowd:
        while time.monotonic() < until_s or not crowd.tried:
            for method, body in _reads():
                crowd.attempt(method, body, group=_GROUPS_OF_TABLES if method.code in _GROUPS else "")
            for filters in _watches():
                for how in ({"snapshot": _ALL_SLOTS}, {"position": 1}, {"position": 1, "flags": 2}):
                    crowd.attempt(w.WATCH_OPEN, WatchOpen(filters, **how), group="data-0")
            crowd.attempt(w.RETAINED_MATCH, w.RETAINED_MATCH.body(MALLORY, "#"), answers=True)
            crowd.attempt(w.KV_SCAN, w.KV_SCAN.body(MALLORY), answers=True)
            crowd.attempt(w.SESSION_LIST, m.SessionList(MALLORY), answers=True)
            crowd.attempt(w.SESSION_LIST, m.SessionList(MALLORY, broker=_HONEST_BROKER), answers=True)
            mine = [WatchFilter(table, [MALLORY]) for table in ("kv", "session", "will", "retained")]
            crowd.attempt(w.WATCH_OPEN, WatchOpen(mine, snapshot=_ALL_SLOTS), group="data-0", answers=True)
            crowd.listen(_AGAIN_S)
        return crowd.outcome()


def _reads() -> Iterable[Ask]:
    yield w.KV_GET, w.KV_GET.body([_KV])
    yield w.KV_TRANSACT, m.Items([m.KvTransaction(HONEST, [], [], [], ["k0"])])
    yield w.KV_TRANSACT, m.Items([m.KvTransaction(HONEST, [m.KvCompare("k0", version=1)], [])])
    yield w.SESSION_GET, w.SESSION_GET.body([_SESSION])
    yield w.SUBSCRIPTION_GET, w.SUBSCRIPTION_GET.body([_SESSION])
    yield w.INFLIGHT_GET, w.INFLIGHT_GET.body([_SESSION])
    yield w.RETAINED_GET, w.RETAINED_GET.body([RetainedKey(HONEST, "t0")])
    yield w.OFFSET_FETCH, w.OFFSET_FETCH.body([m.OffsetKey(HONEST, "g", "t", 0)])
    for scope in (HONEST, HONEST[:-1]):
        for prefix in ("", "k"):
            yield w.KV_SCAN, w.KV_SCAN.body(scope, prefix)
            yield w.LEASE_LIST, w.LEASE_LIST.body(scope, prefix)
            yield w.SEQUENCE_LIST, w.SEQUENCE_LIST.body(scope, prefix)
        for filter_ in ("#", "+", "t0"):
            yield w.RETAINED_MATCH, w.RETAINED_MATCH.body(scope, filter_)
        yield w.OFFSET_LIST, w.OFFSET_LIST.body(scope, "g")
        yield w.OFFSET_GROUPS, w.OFFSET_GROUPS.body(scope)
    for tenant in (HONEST, None):
        yield w.SESSION_LIST, m.SessionList(tenant)
        yield w.SESSION_LIST, m.SessionList(tenant, "c", _HONEST_BROKER)
        yield w.SUBSCRIPTION_LIST, w.SUBSCRIPTION_LIST.body(tenant)
        yield w.WILL_LIST, WillList(tenant)
        yield w.WILL_WAIT, WillWait(MALLORY, 1, 0, tenant)
        yield w.SESSION_ENDINGS, w.SESSION_ENDINGS.body(tenant)
    yield w.SESSION_TAKEOVER, m.SessionTakeover(MALLORY, 1, [m.SessionTakeoverItem(HONEST, "c0")], True, True)
    yield TOPICS.plain.get, TOPICS.plain.get.body(TOPICS.number, [TOPICS.plain.key(HONEST, "t")])
    for fields in ([], [HONEST]):
        yield TOPICS.plain.list, TOPICS.plain.list.body(TOPICS.number, fields)
    yield w.BROKER_LIST, b.BrokerList()
    yield w.BROKER_GET, b.BrokerGet([_HONEST_BROKER])
    yield w.TENANTS_LIST, w.TENANTS_LIST.body()
    yield w.TENANTS_USE, w.TENANTS_USE.body(HONEST)
    yield w.STATUS, m.Status()


def _watches() -> Iterable[list[WatchFilter]]:
    for table in ("kv", "session", "subscription", "will", "retained", "lease"):
        yield [WatchFilter(table)]
        yield [WatchFilter(table, [HONEST])]
        yield [WatchFilter(table, [], HONEST[:2])]
        yield [WatchFilter(table, [MALLORY]), WatchFilter(table, [HONEST])]


def lives(target: Target, until_s: float) -> Outcome:
    """To end another broker's life: by registering its name, and by speaking as it."""
    return _again(target, until_s, _lives)


def _lives() -> Iterable[Ask]:
    yield w.BROKER_REGISTER, b.BrokerRegister(_HONEST_BROKER, wait_ms=0)
    yield w.BROKER_REGISTER, b.BrokerRegister(_HONEST_BROKER, at_least_epoch=_NOBODYS, sole=True, registration=1)
    for epoch in (0, 1, _NOBODYS):
        yield w.BROKER_HEARTBEAT, b.BrokerHeartbeat([b.BrokerBeat(_HONEST_BROKER, epoch)])
        yield w.BROKER_DEREGISTER, b.BrokerDeregister(_HONEST_BROKER, epoch, 0)
        yield w.BROKER_DRAIN, b.BrokerDrain(_HONEST_BROKER, epoch)
        yield w.BROKER_SERVE, b.BrokerServe(_HONEST_BROKER, epoch)
        yield w.BROKER_FENCE, b.BrokerFence(_HONEST_BROKER, epoch, 0)
        yield w.SESSION_TAKEOVER, m.SessionTakeover(_HONEST_BROKER, epoch, [m.SessionTakeoverItem(MALLORY, "c")])


def wills(target: Target, until_s: float) -> Outcome:
    """To claim ten thousand wills of others, as a broker that lives; to say that they are published."""
    with Crowd(target) as crowd:
        epoch = _registered(crowd)
        keys = [WillKey(HONEST, f"w{number}", "") for number in range(m.BATCH_ITEMS_MAX)]
        while time.monotonic() < until_s or not crowd.tried:
            for tenant in (HONEST, None):
                claim = WillClaim(MALLORY, epoch, 60_000, m.BATCH_ITEMS_MAX, tenant)
                for _ in range(DUE // m.BATCH_ITEMS_MAX):
                    crowd.attempt(w.WILL_CLAIM, claim)
                crowd.attempt(w.WILL_WAIT, WillWait(MALLORY, epoch, 0, tenant))
            crowd.attempt(w.WILL_ACKNOWLEDGE, WillAcknowledge(MALLORY, epoch, keys))
            crowd.attempt(w.WILL_RELEASE, WillRelease(MALLORY, epoch, keys))
            own = WillClaim(MALLORY, epoch, 60_000, m.BATCH_ITEMS_MAX, MALLORY)
            crowd.attempt(w.WILL_CLAIM, own, answers=True)
        return crowd.outcome()


def _registered(crowd: Crowd) -> int:
    epoch: int = crowd.ask(w.BROKER_REGISTER, b.BrokerRegister(MALLORY, _LEASE_MS)).broker_epoch
    return epoch


def epochs(target: Target, until_s: float) -> Outcome:
    """To write as a broker of one's own in epochs that no registration gave."""
    with Crowd(target) as crowd:
        epoch = _registered(crowd)
        item, will = m.SessionTakeoverItem(MALLORY, "c"), WillKey(MALLORY, "c", "")
        while time.monotonic() < until_s or not crowd.tried:
            for other in (epoch + 1, _NOBODYS, 2**63 - 1):
                for method, body in (
                    (w.SESSION_TAKEOVER, m.SessionTakeover(MALLORY, other, [item])),
                    (w.SESSION_DELETE, m.SessionDelete([m.SessionDeleteItem(MALLORY, "c")], MALLORY, other)),
                    (w.WILL_CLAIM, WillClaim(MALLORY, other, 60_000, 1, MALLORY)),
                    (w.WILL_RELEASE, WillRelease(MALLORY, other, [will])),
                    (w.SESSION_TAKEOVER, m.SessionTakeover(f"{MALLORY}-never", other, [item])),
                ):
                    crowd.attempt(method, body)
                crowd.attempt(w.KV_PUT, m.KvPut([m.KvPutItem(MALLORY, "k", b"")]), life=m.Owner(MALLORY, other))
        taken = crowd.ask(w.SESSION_TAKEOVER, m.SessionTakeover(MALLORY, epoch, [item]))
        return crowd.outcome("its own life may not write" if taken.errors else "")


def roles(target: Target, until_s: float) -> Outcome:
    """To make roles and bindings for oneself, and to change the cluster."""
    return _again(target, until_s, _roles)


def _roles() -> Iterable[Ask]:
    me, everything = f"metad://client/{MALLORY}", a.Grant(["read", "write", "delete", "own", "admin"], [a.ALL])
    role = next(name for name, _, _ in ROLES if name == MALLORY)
    for name in ("mine", role, "admin"):
        yield w.ROLE_PUT, m.Items([a.Role(name, [everything])])
        yield w.ROLE_DELETE, m.Items([a.RoleKey(name)])
    for given in (a.Given("admin"), a.Given("broker", HONEST), a.Given(role, HONEST)):
        yield w.PRINCIPAL_PUT, m.Items([a.PrincipalRoles(me, [given])])
        yield w.PRINCIPAL_CHANGE, m.Items([a.BindingChange(me, [given])])
    yield w.PRINCIPAL_PUT, m.Items([a.PrincipalRoles(f"metad://client/{HONEST}", [], True)])
    yield w.PRINCIPAL_DELETE, m.Items([a.PrincipalKey(f"metad://client/{HONEST}")])
    yield w.PRINCIPAL_GET, w.PRINCIPAL_GET.body([a.PrincipalKey(f"metad://client/{HONEST}")])
    yield w.ROLE_LIST, a.RoleList()
    yield w.AUDIT_LIST, a.AuditList()
    yield w.CLUSTER_LEAVE, w.CLUSTER_LEAVE.body("n1")
    yield w.CLUSTER_REBALANCE, w.CLUSTER_REBALANCE.body()


ROLES: Final[Sequence[tuple[str, list[a.Grant], list[a.Given]]]] = tuple(
    (
        who,
        [a.Grant(["own"], ["broker"], f"{who}*"), a.Grant(["read", "write", "delete"])],
        [a.Given(who, who), *more],
    )
    for who, more in ((HONEST, [a.Given(HONEST, "namespace-*"), a.Given(HONEST, "wan")]), (MALLORY, []))
)
"""Of both: the name of the role, its grants, and for which tenants it is given."""


def tokens(target: Target, until_s: float) -> Outcome:
    """To be let in with tokens and JWTs that nobody gave: with a part of one's own, in another's name, signed by
    oneself, by nobody, and by a public key as if it were a secret."""
    forged = [*_forged(target)]
    tried = let_in = 0
    while time.monotonic() < until_s or not tried:
        for token in forged:
            tried += 1
            hello = encode_frame(
                FrameType.HELLO, encode(m.Hello(m.MAGIC, m.PROTOCOL_VERSION, m.PROTOCOL_VERSION, 0, token))
            )
            with contextlib.suppress(OSError), TlsPeer(target, target.none, node=tried % len(target.addresses)) as peer:
                peer.send(hello)
                peer.read()
                let_in += peer.heard.welcomes
    return Outcome(tried, f"{let_in} were let in" if let_in else "", tried - let_in, let_in)


def _forged(target: Target) -> Iterable[bytes]:
    secret = target.token.partition(".")[2]
    for name in (HONEST, "perf", "ops"):
        yield f"{name}.{secret}".encode()
    yield from (target.token[:-1].encode(), f"{target.token}x".encode(), target.token.swapcase().encode())
    yield f"{HONEST}.{secrets.token_urlsafe(32)}".encode()
    key = ec.generate_private_key(ec.SECP256R1())
    claims = {"sub": HONEST, "azp": HONEST, "iss": "metad-perf", "aud": "metad", "exp": int(time.time()) + 3_600}
    for kid in ("a", ""):
        head = {"typ": "JWT", **({"kid": kid} if kid else {})}
        yield _jwt(head | {"alg": "none"}, claims, lambda _: b"")
        yield _jwt(head | {"alg": "ES256"}, claims, lambda data: _signed(key, data))
        yield _jwt(head | {"alg": "ES256"}, claims, lambda _: bytes(64))
        yield _jwt(head | {"alg": "HS256"}, claims, lambda data: hmac.digest(target.public_key, data, "sha256"))


def _jwt(head: dict[str, Any], claims: dict[str, Any], sign: Callable[[bytes], bytes]) -> bytes:
    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = b".".join(part(json.dumps(one).encode()) for one in (head, claims))
    return signed + b"." + part(sign(signed))


def _signed(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    r, s = utils.decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def refusals(target: Target, until_s: float) -> Outcome:
    """To push the lines of administrators out of the audit trail, by as many refusals as can be."""
    payload = payload_of(w.KV_SCAN, w.KV_SCAN.body(HONEST))
    sent = 0
    with contextlib.ExitStack() as stack:
        insiders = _one_for_each(target, stack)
        while time.monotonic() < until_s or not sent:
            for insider in insiders:
                for _ in range(_BURST):
                    insider.post(w.KV_SCAN, payload)
            sent += _BURST * len(insiders)
            late_s = time.monotonic() + 4 * WAIT_S
            while sum(one.heard.responses + one.heard.errors for one in insiders) < sent:
                if time.monotonic() > late_s:
                    raise GoneError("no answer in time")
                for insider in insiders:
                    insider.say(b"")
        done = sum(one.heard.responses for one in insiders)
        shown = sum(one.heard.leaks for one in insiders)
        return Outcome(sent, f"{done} requests were answered" if done else "", sent - done, done + shown)


def names(target: Target, until_s: float) -> Outcome:
    """To take all names of brokers: those of others are refused, and one's own leave others theirs."""
    with Crowd(target) as crowd:
        for name in (f"{HONEST}-2", "x", f"x-{MALLORY}", ""):
            crowd.attempt(w.BROKER_REGISTER, b.BrokerRegister(name, wait_ms=0))
        taken = crowd.names(until_s)
        problem = ""
        for node in range(len(target.addresses)):
            try:
                with Insider(target, files=target.other, node=node) as honest:
                    honest.ask(w.BROKER_REGISTER, b.BrokerRegister(f"{HONEST}-2", 500, wait_ms=0))
                break
            except NotLeaderError:
                continue
            except (OSError, GoneError, MetadError) as error:
                problem = f"another could not register: {error!r}"
        crowd.tried += taken
        crowd.denied += taken
        return crowd.outcome(problem)


def large_values(target: Target, until_s: float) -> Outcome:
    """To fill the disk: what takes room is refused before it is full, and others can still delete."""
    tried = refused = 0
    value, give_up_s = bytes(secrets.token_bytes(1024)) * (_VALUE_BYTES // 1024), time.monotonic() + _FULL_S
    with Insider(target) as insider:
        while (time.monotonic() < until_s or not refused) and time.monotonic() < give_up_s:
            value = secrets.token_bytes(1024) + value[1024:]
            body = m.KvPut([m.KvPutItem(MALLORY, f"v{tried}", value)])
            tried += 1
            try:
                codes = [error.code for error in insider.ask(w.KV_PUT, body, wait_s=4 * WAIT_S).errors]
            except OverloadedError:
                time.sleep(_AGAIN_S)
                continue
            except MetadError as error:
                codes = [error.code]
            refused += NoRoomError.code in codes
    problem = "" if refused else "nothing was refused"
    try:
        with Insider(target, files=target.other) as honest:
            gone = honest.ask(w.KV_DELETE, w.KV_DELETE.body([m.KvDeleteItem(HONEST, "spare")])).errors
        problem = problem or ("another may not delete" if gone and gone[0].code == NoRoomError.code else "")
    except MetadError as error:
        problem = problem or f"another may not delete: {error!r}"
    return Outcome(tried, problem, refused)


ATTACKS: Final = (wipes, lives, wills, reads, roles, tokens, epochs, refusals, names)
"""Of three nodes. The last leaves a registry that is full of the insider's names."""
