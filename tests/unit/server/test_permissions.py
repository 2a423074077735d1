"""Who may do what: each method needs what its table and its items say, and nothing shows, counts or changes a record
that its reader may not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from server_rig import Answer, Rig
from test_hostile_requests import OPEN, body_of
from wire_strategies import values_of

from metad.node.requests import permissions
from metad.node.requests.permissions import Need, Rights, right_of
from metad.state.cluster.access import KnownAccess
from metad.state.cluster.fences import Fences
from metad.storage import keys
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA, ReadIndexReply
from metad_wire.declaration import Declaration, DeclaredField
from metad_wire.errors import ERRORS, FencedError, MetadError, NotLeaderError, OverloadedError, PermissionDeniedError
from metad_wire.families import FAMILIES
from metad_wire.methods import METHODS, By, For, Method, encode
from metad_wire.operator.backup import BackupBegin, BackupEnd
from metad_wire.operator.settings import GetSettings, SetSetting
from metad_wire.table import ROWS
from metad_wire.table import TABLES as BUILT_IN
from metad_wire.tables.access import (
    AuditEntry,
    BindingChange,
    Given,
    Grant,
    May,
    PrincipalKey,
    PrincipalRoles,
    Role,
    RoleKey,
    Wish,
)
from metad_wire.tables.broker import BrokerBeat, BrokerFence, BrokerHeartbeat, BrokerRegister
from metad_wire.tables.declaration import Declare
from metad_wire.tables.lease import LeaseGrantItem, LeaseKey, LeaseKeyItem
from metad_wire.tables.retained import RetainedPutItem
from metad_wire.tables.sequence import SequenceAddItem
from metad_wire.tables.subscription import Subscription
from metad_wire.tables.tenants import SCOPES as FIRST
from metad_wire.tables.tenants import TenantsEnd, TenantsKeep
from metad_wire.transport.credentials import Principal
from metad_wire.transport.credentials import Role as Kind
from metad_wire.watch import WatchFilter, WatchOpen
from sim.naming import group_of, kind_of

DENIED = PermissionDeniedError.code


class Line:
    """The connection of a client whose certificate names it."""

    host = "10.0.0.7"

    def __init__(self, kind: Kind, name: str) -> None:
        self.principal = Principal(kind, name)
        self.holder = self.principal.uri


APP, OPS, B1 = Line(Kind.CLIENT, "app"), Line(Kind.ADMIN, "ops"), Line(Kind.BROKER, "b1")


async def opened() -> Rig:
    rig = Rig()
    await rig.open()
    rig.node.permissions.enforced = True
    return rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = await opened()
    yield rig
    rig.node.will_turns.drain()
    await rig.close()


def send(rig: Rig, line: Line, method: Method[Any, Any], body: Any, life: m.Owner | None = None) -> Answer:
    group = "" if method.by is not By.GROUP else group_of(rig.node.map, method, body) or f"{kind_of(method)}-0"
    answer = Answer()
    payload = method.encode_request(body, 0, None, group, life=life)
    rig.node.requests.submit(method.code, payload, answer, source=line)
    return answer


async def ask(rig: Rig, line: Line, method: Method[Any, Any], body: Any) -> Any:
    return (await rig.answered(send(rig, line, method, body))).reply(method)


async def give(rig: Rig, line: Line, *grants: Grant, scope: str = "*", denied: bool = False) -> None:
    name = f"role of {line.principal.name}"
    roles = [Given(name, scope)] if grants else []
    if grants:
        put = await ask(rig, OPS, methods.ROLE_PUT, m.Items([Role(name, [*grants])]))
        assert not put.errors
    bound = PrincipalRoles(line.principal.uri, roles, denied)
    assert not (await ask(rig, OPS, methods.PRINCIPAL_PUT, m.Items([bound]))).errors


def is_refused(answer: Answer) -> bool:
    """Whether a request was refused as a whole, or each of its items was."""
    (result,) = answer.results
    if isinstance(result, MetadError):
        return isinstance(result, PermissionDeniedError)
    return False


CLIENTS = [method for method in OPEN if method.whose is not For.NODES]


@pytest.mark.parametrize("method", CLIENTS, ids=lambda method: method.name)
async def test_whoever_has_no_role_may_do_nothing(rig: Rig, method: Method[Any, Any]) -> None:
    before = rows_of(rig)
    answer = await rig.answered(send(rig, APP, method, body_of(method)))
    if not is_refused(answer):
        reply = answer.reply(method)
        assert {error.code for error in reply.errors} == {DENIED}
        assert len(reply.errors) == len(body_of(method).items)
    assert rows_of(rig) == before


@pytest.mark.parametrize("method", CLIENTS, ids=lambda method: method.name)
async def test_administrators_and_those_with_every_right_may_do_everything(rig: Rig, method: Method[Any, Any]) -> None:
    await give(rig, APP, Grant(["read", "write", "delete", "own", "admin"], ["*"]))
    for line in (OPS, APP):
        answer = await rig.answered(send(rig, line, method, body_of(method)))
        rig.node.will_turns.drain()
        assert not is_refused(answer)
        if not isinstance(answer.results[0], MetadError):
            assert DENIED not in {error.code for error in getattr(answer.reply(method), "errors", ())}


RIGHTS = {
    "read": "session.get session.list session.endings subscription.get subscription.list inflight.get will.list "
    "will.wait offset.fetch offset.list offset.generations offset.groups consumer.get consumer.members "
    "consumer.describe kv.get kv.scan lease.get lease.list lease.keys sequence.get sequence.list retained.get "
    "retained.match broker.get broker.list table.get table.list table.count declaration.get declaration.list "
    "assignment.explain plan.get plan.list role.list principal.get principal.list audit.list system.status "
    "system.activity system.events cluster.map watch.open access.may tenants.endings tenants.list tenants.use "
    "quota.list quota.use feature.list backup.begin backup.read backup.end backup.log",
    "write": "session.takeover session.disconnect session.update subscription.add inflight.put will.claim "
    "will.acknowledge offset.commit offset.reset_generations consumer.join consumer.heartbeat "
    "consumer.leave consumer.assign kv.put kv.transact lease.grant lease.keep_alive lease.attach lease.detach "
    "sequence.add retained.put table.put table.transact declaration.declare assignment.create assignment.alter "
    "assignment.resize assignment.in_sync assignment.release assignment.report assignment.claim assignment.seal "
    "will.release",
    "delete": "session.delete subscription.remove inflight.delete offset.delete offset.delete_groups kv.delete "
    "lease.revoke sequence.delete retained.delete table.delete assignment.delete",
    "own": "broker.register broker.heartbeat broker.drain broker.deregister broker.serve",
    "admin": "session.end_tenant group.restore group.move_tenant group.put_tenant group.copy_tenant "
    "tenants.end tenants.keep quota.put quota.delete feature.change "
    "broker.fence "
    "declaration.drop assignment.elect system.compact system.settings system.set "
    "assignment.move plan.create plan.set plan.delete role.put role.delete principal.put principal.change "
    "principal.delete cluster.join cluster.leave cluster.transfer cluster.add_group cluster.rebalance "
    "cluster.drain cluster.move_slots cluster.move_replica cluster.remove_group",
}


def test_each_method_needs_the_right_that_is_written_here() -> None:
    found = {method.name: right_of(method) for method in METHODS.values() if method.whose is not For.NODES}
    assert found == {name: right for right, names in RIGHTS.items() for name in names.split()}


# --- nothing shows what a read by key would refuse ------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ab", "k", "b1", ""])
SCOPES = st.sampled_from(["a", "b", "a*", "*"])
TABLES = st.lists(
    st.sampled_from(["session", "subscription", "will", "kv", "lease", "offset", "retained", "sequence", "*"]),
    max_size=2,
)
GRANTS = st.builds(
    Grant,
    st.lists(st.sampled_from(["read", "write", "delete", "own"]), min_size=1, max_size=3, unique=True),
    TABLES,
    SCOPES,
    st.sampled_from(["", "", "k", "a"]),
)
OF_CLIENTS = [method for method in CLIENTS if method.whose is For.CLIENTS]
SHOWING = [method for method in OF_CLIENTS if method.table is not None and method in method.table.listed]


def listing(method: Method[Any, Any]) -> st.SearchStrategy[Any]:
    """Bodies that say no more than what is wanted."""
    asked = [field for field in msgspec.structs.fields(method.body) if field.name in method.table.listed[method].asked]
    texts = {field.name: NAMES for field in asked if field.type is str or field.required}
    return st.fixed_dictionaries(texts).map(lambda values: method.body(**values))


ATTEMPTS = st.one_of(
    st.sampled_from(OF_CLIENTS).flatmap(lambda method: st.tuples(st.just(method), values_of(method.body, NAMES))),
    st.sampled_from(SHOWING).flatmap(lambda method: st.tuples(st.just(method), listing(method))),
)
PLACES = [(scope, key) for scope in ("a", "b", "ab") for key in ("k", "a")]
THERE = (
    (methods.KV_PUT, m.KvPut([m.KvPutItem(*place, b"v") for place in PLACES])),
    (methods.SESSION_TAKEOVER, m.SessionTakeover("b1", 1, [m.SessionTakeoverItem(*place) for place in PLACES])),
    (methods.OFFSET_COMMIT, methods.OFFSET_COMMIT.body([m.OffsetCommitItem(*place, "k", 0, 1) for place in PLACES])),
    (methods.SEQUENCE_ADD, m.Items([SequenceAddItem(*place, 1) for place in PLACES])),
    (methods.LEASE_GRANT, m.Items([LeaseGrantItem(scope, 60_000, key) for scope, key in PLACES])),
    (methods.RETAINED_PUT, m.Items([RetainedPutItem(*place, b"v") for place in PLACES])),
    (
        methods.SUBSCRIPTION_ADD,
        methods.SUBSCRIPTION_ADD.body("b1", 1, [Subscription(*place, "k/#") for place in PLACES]),
    ),
)
"""What there is before anybody asks."""
LIVING = ("b1", "k")
"""Brokers that live."""


def allowed(grants: list[Grant], given_scope: str, right: str, table: str, scope: str, key: str) -> bool:
    """What a grant means, said once more."""

    def covers(pattern: str) -> bool:
        return scope.startswith(pattern[:-1]) if pattern.endswith("*") else scope == pattern

    return any(
        right in grant.rights
        and (not grant.tables or table in grant.tables or "*" in grant.tables)
        and covers(grant.scope)
        and covers(given_scope)
        and key.startswith(grant.prefix)
        for grant in grants
    )


def keyed(value: Any, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The first two fields of the keys of all records in a reply."""
    if isinstance(value, list):
        for each in value:
            yield from keyed(each, names)
    elif isinstance(value, m.Message) and hasattr(value, names[0]):
        yield getattr(value, names[0]), str(getattr(value, names[1], ""))


def rows_of(rig: Rig) -> dict[bytes, bytes]:
    """All but what a group is itself."""
    return {
        key: value
        for key, value in rig.state_engine.scan(b"", b"\xff" * 8, 1_000_000)
        if key[_GROUP : _GROUP + 1] > b"\0"
    }


def changed(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> Iterator[tuple[str, str, str]]:
    """Table, scope and second field of the rows that have changed, of tables whose keys have a scope."""
    for key in {key for key in {*before, *after} if before.get(key) != after.get(key)}:
        table = ROWS.get(key[_GROUP])
        if table is None or not {*table.key[:1]} & {"tenant", "namespace"}:
            continue
        fields = table.fields_of(key[_GROUP + 1 + table.ordered_by :], min(2, len(table.key)))
        yield table.name, str(fields[0]), str(fields[1]) if len(fields) > 1 else ""


_GROUP = len(keys.group_prefix(METADATA))
_BESIDE = {
    "subscription": ["session"],
    "inflight": ["session"],
    "will": ["session"],
    "session_due": ["session"],
    "consumer": ["offset"],
    "lease": ["kv"],
}
"""Tables of which rows change with those of others."""


def check_reads(method: Method[Any, Any], body: Any, reply: Any, every: Any, may: Any) -> None:
    """``reply``: to who may not have everything. ``every``: to an administrator."""
    names = method.table.key
    if method.item is not None:
        errors = {error.index: error.code for error in reply.errors}
        for position, item in enumerate(body.items):
            ((scope, key),) = keyed(item, names)
            assert (errors.get(position) == DENIED) is not may("read", method.table.name, scope, key)
        return
    for scope, key in keyed(getattr(every, "found", []), names):
        assert may("read", method.table.name, scope, key), (scope, key)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(GRANTS, max_size=3), SCOPES, st.lists(st.tuples(st.booleans(), ATTEMPTS), max_size=25))
def test_nothing_is_shown_or_changed_that_its_key_would_refuse(
    grants: list[Grant], scope: str, attempts: list[tuple[bool, tuple[Method[Any, Any], Any]]]
) -> None:
    def may(right: str, table: str, where: str, key: str) -> bool:
        return allowed(grants, scope, right, table, where, key)

    lives = dict[str, int]()

    def in_a_life(method: Method[Any, Any], body: Any) -> Any:
        if not is_in_a_name(method) or not method.mutates or body.broker not in lives:
            return body
        return msgspec.structs.replace(body, broker_epoch=lives[body.broker])

    async def run() -> None:
        rig = await opened()
        await give(rig, APP, *grants, scope=scope)
        for broker in LIVING:
            lives[broker] = (await ask(rig, OPS, methods.BROKER_REGISTER, BrokerRegister(broker))).broker_epoch
        for method, body in THERE:
            assert not (await ask(rig, OPS, method, in_a_life(method, body))).errors
        for by_app, (method, asked) in attempts:
            before, body = rows_of(rig), in_a_life(method, asked)
            answer = await rig.answered(send(rig, APP if by_app else OPS, method, body))
            rig.node.will_turns.drain()
            await rig.settle()
            assert rig.node.failure is None
            if not by_app or not answer.done:
                continue
            for table, where, key in changed(before, rows_of(rig)):
                tables = [table, *_BESIDE.get(table, [])]
                assert any(may(right, one, where, key) for one in tables for right in ("write", "delete"))
            if isinstance(answer.results[0], MetadError) or method.mutates or method.table is None:
                continue
            if method.table.key[:1] in (("tenant",), ("namespace",)) and right_of(method) == "read":
                every = await rig.answered(send(rig, OPS, method, body))
                if not isinstance(every.results[0], MetadError):
                    check_reads(method, body, answer.reply(method), every.reply(method), may)
        await rig.close()

    asyncio.run(run())


# --- and the rest ---------------------------------------------------------------------------------------------------


async def test_items_that_are_not_allowed_are_refused_and_the_others_done(rig: Rig) -> None:
    await give(rig, APP, Grant(["read", "write"], ["kv"], "a", "k"))
    places = [("a", "k1"), ("a", "x"), ("b", "k1"), ("a", "k2")]
    put = await ask(rig, APP, methods.KV_PUT, m.KvPut([m.KvPutItem(*place, b"v") for place in places]))
    assert [(error.index, error.code) for error in put.errors] == [(1, DENIED), (2, DENIED)]
    assert "may not write kv of 'b', 'k1'" in put.errors[1].message
    found = await ask(rig, OPS, methods.KV_GET, methods.KV_GET.body([m.KvKey(*place) for place in places]))
    assert [one is not None for one in found.found] == [True, False, False, True]
    transacted = m.KvTransaction("a", [m.KvCompare("k1", version=1)], [m.KvOperation("x", b"v")], [], ["k1"])
    body = methods.KV_TRANSACT.body([transacted])
    assert is_refused(await rig.answered(send(rig, APP, methods.KV_TRANSACT, body))), "nothing of it is allowed"
    scan = send(rig, APP, methods.KV_SCAN, methods.KV_SCAN.body("a", "k"))
    assert len((await rig.answered(scan)).reply(methods.KV_SCAN).found) == 2
    await give(rig, APP, Grant(["read", "write"], ["kv", "sequence"], "a", "k"), Grant(["read"], ["session"], "a"))
    await ask(rig, APP, methods.SESSION_LIST, methods.SESSION_LIST.body("a"))
    for other in (methods.SESSION_LIST.body("b"), methods.SESSION_LIST.body()):
        assert isinstance(
            (await rig.answered(send(rig, APP, methods.SESSION_LIST, other))).error, PermissionDeniedError
        )
    for prefix in ("", "x"):
        refused = await rig.answered(send(rig, APP, methods.KV_SCAN, methods.KV_SCAN.body("a", prefix)))
        assert isinstance(refused.error, PermissionDeniedError)


async def test_a_broker_owns_its_own_name_and_others_need_a_grant(rig: Rig) -> None:
    await ask(rig, B1, methods.BROKER_REGISTER, BrokerRegister("b1"))
    refused = await rig.answered(send(rig, APP, methods.BROKER_REGISTER, BrokerRegister("b2")))
    assert isinstance(refused.error, PermissionDeniedError)
    await give(rig, APP, Grant(["own"], ["broker"], "b2"))
    await ask(rig, APP, methods.BROKER_REGISTER, BrokerRegister("b2"))
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["write"]))
    bound = await rig.answered(send(rig, APP, methods.BROKER_REGISTER, BrokerRegister("b1")))
    assert isinstance(bound.error, PermissionDeniedError), "its certificate binds it"
    for broker in ("b9", ""):
        named = m.SessionTakeover(broker, 1, [m.SessionTakeoverItem("a", "c")])
        await give(rig, APP, Grant(["write"]))
        assert is_refused(await rig.answered(send(rig, APP, methods.SESSION_TAKEOVER, named))), "it owns no name"
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["write"]))
    life = (await ask(rig, APP, methods.BROKER_REGISTER, BrokerRegister("b9"))).broker_epoch
    taken = m.SessionTakeover("b9", life, [m.SessionTakeoverItem("a", "c")])
    assert not (await ask(rig, APP, methods.SESSION_TAKEOVER, taken)).errors
    await give(rig, APP, Grant(["write"]))
    assert is_refused(await rig.answered(send(rig, APP, methods.SESSION_TAKEOVER, taken)))


async def test_what_belongs_to_another_table_needs_the_right_to_that(rig: Rig) -> None:
    retained, lease, session = (Grant(["read", "write"], [table], "a") for table in ("retained", "lease", "session"))
    own = Grant(["own"], ["broker"])
    await give(rig, APP, own, lease, session, Grant(["read"], ["retained"], "a", "x/"))
    taken = [m.SessionTakeoverItem("a", "c")]
    for method, body, missing in (
        (methods.LEASE_KEYS, methods.LEASE_KEYS.body("a", "l"), Grant(["read"], ["kv"], "a")),
        (
            methods.SESSION_TAKEOVER,
            m.SessionTakeover("b", 1, taken, restore_parts=True),
            Grant(["read"], ["subscription", "inflight"], "a"),
        ),
        (methods.RETAINED_MATCH, methods.RETAINED_MATCH.body("a", "x/#"), retained),
        (methods.RETAINED_MATCH, methods.RETAINED_MATCH.body("a", "#"), retained),
        (methods.LEASE_REVOKE, m.Items([LeaseKey("a", "l")]), Grant(["delete"], ["lease", "kv"], "a")),
        (methods.LEASE_REVOKE, m.Items([LeaseKey("a", "l")]), Grant(["delete"], ["lease"], "a")),
    ):
        answer = await rig.answered(send(rig, APP, method, body))
        assert is_refused(answer), body
        await give(rig, APP, own, lease, session, missing)
        answer = await rig.answered(send(rig, APP, method, body))
        if "kv" in missing.tables or method is not methods.LEASE_REVOKE:
            assert not is_refused(answer), body
        else:
            assert is_refused(answer)
        await give(rig, APP, own, lease, session, Grant(["read"], ["retained"], "a", "x/"))
    within = send(rig, APP, methods.RETAINED_MATCH, methods.RETAINED_MATCH.body("a", "x/y/+"))
    assert not is_refused(await rig.answered(within))


async def test_who_claims_wills_may_read_them(rig: Rig) -> None:
    life = (await ask(rig, OPS, methods.BROKER_REGISTER, BrokerRegister("b"))).broker_epoch
    claim = methods.WILL_CLAIM.body("b", life, 60_000, tenant="a")
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["write"], ["will"], "a"))
    assert is_refused(await rig.answered(send(rig, APP, methods.WILL_CLAIM, claim)))
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["read", "write"], ["will"], "a"))
    await ask(rig, APP, methods.WILL_CLAIM, claim)


async def test_a_role_for_one_tenant_is_about_no_records_without_one(rig: Rig) -> None:
    await give(rig, APP, Grant(["read"], ["*"]), scope="a")
    wishes = [Wish("read", table, "a") for table in ("session", "kv", "plan", "role", "unheard_of")]
    wishes.append(Wish("read", "session", "b"))
    assert (await ask(rig, APP, methods.ACCESS_MAY, May("", wishes))).allowed == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    await give(rig, APP, Grant(["read"], ["plan"]), scope="a")
    assert (await ask(rig, APP, methods.ACCESS_MAY, May("", wishes))).allowed == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    await give(rig, APP, Grant(["read"]))
    assert (await ask(rig, APP, methods.ACCESS_MAY, May("", wishes))).allowed == [True, True, False, False, True, True]
    reply = await ask(rig, OPS, methods.ACCESS_MAY, May(APP.principal.uri, wishes))
    assert (reply.principal, reply.enforced, reply.administers) == (APP.principal.uri, True, False)
    other = send(rig, APP, methods.ACCESS_MAY, May(B1.principal.uri))
    assert isinstance((await rig.answered(other)).error, PermissionDeniedError)


class Outlet:
    """What a watch says."""

    def __init__(self) -> None:
        self.refusals: list[MetadError] = []
        self.is_open = False
        self.lasts = 0

    def room(self) -> int:
        return 1_000_000

    def wait(self) -> None:
        raise AssertionError("there is room")

    def opened(self, payload: bytes) -> None:
        self.is_open = True

    def refused(self, error: MetadError) -> None:
        self.refusals.append(error)

    def event(self, payload: bytes, *, last: bool = False) -> None:
        self.lasts += last


async def test_watches_show_what_may_be_read_and_end_with_the_right_to_it(rig: Rig) -> None:
    def watch(*filters: WatchFilter) -> Outlet:
        outlet = Outlet()
        payload = methods.WATCH_OPEN.encode_request(WatchOpen([*filters], position=0), 0, None, "data-0")
        rig.node.watches.open(payload, outlet, APP)
        return outlet

    await give(rig, APP, Grant(["read"], ["kv"], "a", "1"))
    rig.node.permissions.check_watch([WatchFilter("kv", ["a", "10"])], APP)
    with pytest.raises(PermissionDeniedError):
        rig.node.permissions.check_watch([WatchFilter("kv", ["a", 10])], APP)
    await give(rig, APP)
    a, all_of_it = WatchFilter("session", ["a"]), WatchFilter("session")
    assert isinstance(watch(a).refusals[0], PermissionDeniedError)
    await give(rig, APP, Grant(["read"], ["session"], "a"))
    for wrong in (all_of_it, WatchFilter("session", [], "a"), WatchFilter("kv", ["a"])):
        assert isinstance(watch(a, wrong).refusals[0], PermissionDeniedError)
    narrow, wide = watch(WatchFilter("session", ["a"], "c")), watch(a)
    await rig.settle()
    assert narrow.is_open
    assert wide.is_open
    await give(rig, APP, Grant(["read"], ["session"], "a", "c"))
    rig.node.watches.look()
    await rig.settle()
    assert (narrow.lasts, wide.lasts) == (0, 1)
    await give(rig, APP, denied=True)
    rig.node.watches.look()
    await rig.settle()
    assert narrow.lasts == 1
    assert rig.node.permissions.denies(APP.principal)
    assert not rig.node.permissions.denies(OPS.principal)


async def test_the_log_says_who_has_administered_and_who_was_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(permissions, "event", lambda event, **fields: said.append((event.key, fields)))
    put = m.Items([Role("r", [Grant(["read"])]), Role("reader", [])])
    await ask(rig, OPS, methods.ROLE_PUT, put)
    await rig.answered(send(rig, APP, methods.ROLE_PUT, put))
    await rig.answered(send(rig, APP, methods.KV_SCAN, methods.KV_SCAN.body("a")))
    await rig.answered(send(rig, APP, methods.KV_PUT, m.KvPut([m.KvPutItem("a", "k", b"")] * 9)))
    await ask(rig, OPS, methods.KV_PUT, m.KvPut([m.KvPutItem("a", "k", b"")]))
    app, ops = ({"who": line.principal.uri, "host": line.host} for line in (APP, OPS))
    of = {"method": "role.put", "names": "r, reader", "items": 2}
    detail = f"{APP.principal.uri} may not"
    assert said == [
        ("audited", {**ops, **of, "failed": 1, "outcome": "done"}),
        ("client_denied", {**app, "method": "role.put", "detail": f"{detail} admin role of all"}),
        ("client_denied", {**app, "method": "kv.scan", "detail": f"{detail} read kv of 'a'"}),
        ("client_denied", {**app, "method": "kv.put", "detail": f"{detail} write kv of 'a', 'k'"}),
    ]


async def test_of_a_backup_the_trail_has_its_beginning_and_what_is_complete(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[AuditEntry] = []
    monkeypatch.setattr(rig.node.audit, "note", noted.append)
    for method, body in (
        (methods.BACKUP_BEGIN, BackupBegin("b")),
        (methods.BACKUP_END, BackupEnd("b")),
        (methods.BACKUP_END, BackupEnd("b", "20261129T201500.123Z-b")),
        (methods.SETTINGS, GetSettings("limits.slow_ms")),
        (methods.SETTING_SET, SetSetting("limits.slow_ms", "2s")),
    ):
        await rig.answered(send(rig, OPS, method, body))
    assert [(line.method, line.names, line.outcome) for line in noted] == [
        ("backup.begin", "b/False", "unsupported"),
        ("backup.end", "20261129T201500.123Z-b", "done"),
        ("system.set", "limits.slow_ms/2s", "done"),
    ]


async def test_the_audit_trail_says_the_same_and_how_many_items_failed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[AuditEntry] = []
    monkeypatch.setattr(rig.node.audit, "note", noted.append)
    monkeypatch.setattr(rig.node.audit, "refused", noted.append)
    put = m.Items([Role("r", [Grant(["read"])]), Role("reader", [])])
    await ask(rig, OPS, methods.ROLE_PUT, put)
    await rig.answered(send(rig, APP, methods.ROLE_PUT, put))
    await give(rig, APP, Grant(["write"], ["kv"], "a"))
    del noted[2:]
    places = [("a", "k"), ("b", "k"), ("c", "k")]
    await rig.answered(send(rig, APP, methods.KV_PUT, m.KvPut([m.KvPutItem(*place, b"") for place in places])))
    await ask(rig, B1, methods.BROKER_REGISTER, BrokerRegister("b1"))
    await ask(rig, OPS, methods.BROKER_FENCE, BrokerFence("b1", 0, 0))
    by, ops = [(rig.node.identity.node_id, line.principal.uri, line.host) for line in (APP, OPS)]
    denied, detail = PermissionDeniedError.name, f"{APP.principal.uri} may not"
    assert noted == [
        AuditEntry("", 0, "admin", *ops, "role.put", "r, reader", 2, 1),
        AuditEntry("", 0, "refused", *by, "role.put", f"{detail} admin role of all", 2, 2, denied),
        AuditEntry("", 0, "refused", *by, "kv.put", f"{detail} write kv of 'b', 'k'", 3, 2, denied),
        AuditEntry("", 0, "life", *ops, "broker.fence", "b1/0/0"),
    ]


async def test_what_is_refused_to_the_denied_and_to_watches_is_noted_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[AuditEntry] = []
    monkeypatch.setattr(rig.node.audit, "refused", noted.append)
    with pytest.raises(PermissionDeniedError):
        rig.node.permissions.check_watch([WatchFilter("kv", fields=["b"])], APP)
    denied = m.Items([PrincipalRoles(APP.principal.uri, [], denied=True)])
    await ask(rig, OPS, methods.PRINCIPAL_PUT, denied)
    assert is_refused(await rig.answered(send(rig, APP, methods.KV_SCAN, methods.KV_SCAN.body("b"))))
    assert [(line.method, line.names.removeprefix(APP.principal.uri)) for line in noted] == [
        ("watch.open", " may not read kv of 'b'"),
        ("kv.scan", " is denied everything"),
    ]


async def test_a_node_that_does_not_lead_notes_nothing_for_its_client_asks_another(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[AuditEntry] = []
    monkeypatch.setattr(rig.node.audit, "refused", noted.append)
    await give(rig, APP, Grant(["write"], ["kv"], "a"))
    put = m.KvPut([m.KvPutItem("a", "k", b""), m.KvPutItem("b", "k", b"")])
    with monkeypatch.context() as another_leads:
        another_leads.setattr(type(rig.driver("data-0").group), "is_leader", False)
        assert isinstance((await rig.answered(send(rig, APP, methods.KV_PUT, put))).error, NotLeaderError)
    assert noted == []
    assert (await rig.answered(send(rig, APP, methods.KV_PUT, put))).reply(methods.KV_PUT).errors
    assert [line.method for line in noted] == ["kv.put"]


async def test_a_node_writes_its_lines(rig: Rig) -> None:
    await give(rig, APP, Grant(["read"], ["kv"], "a"))
    await rig.answered(send(rig, APP, methods.KV_SCAN, methods.KV_SCAN.body("b")))
    rig.node.audit.flush()
    while len(rig.node.audit):
        await rig.settle()
    found = (await ask(rig, OPS, methods.AUDIT_LIST, methods.AUDIT_LIST.body())).found
    assert [(line.kind, line.method) for line in found] == [
        ("admin", "role.put"),
        ("admin", "principal.put"),
        ("refused", "kv.scan"),
    ]
    assert is_refused(await rig.answered(send(rig, APP, methods.AUDIT_LIST, methods.AUDIT_LIST.body())))
    await give(rig, APP)
    bound = PrincipalRoles(APP.principal.uri, [Given("operator")])
    await ask(rig, OPS, methods.PRINCIPAL_PUT, m.Items([bound]))
    assert (await ask(rig, APP, methods.AUDIT_LIST, methods.AUDIT_LIST.body())).found


async def test_roles_are_kept_whole(rig: Rig) -> None:
    await give(rig, APP, Grant(["read"]))
    name = f"role of {APP.principal.name}"
    for method, items, code in (
        (
            methods.ROLE_DELETE,
            [RoleKey(name), RoleKey("none"), RoleKey("admin")],
            ["conflict", "not_found", "conflict"],
        ),
        (
            methods.ROLE_PUT,
            [Role("reader", []), Role("r", [Grant(["read"], [], "a*b")]), Role("r@a", [])],
            ["conflict", "invalid_item", "invalid_item"],
        ),
        (methods.PRINCIPAL_PUT, [PrincipalRoles("metad://client/p", [Given("none")])], ["not_found"]),
        (
            methods.PRINCIPAL_PUT,
            [
                PrincipalRoles(uri, denied=True)
                for uri in ("app", "metad://CLIENT/app", "metad://client/%61pp", "metad://admin/ops", "metad://node/n1")
            ],
            ["invalid_item"] * 5,
        ),
        (
            methods.PRINCIPAL_CHANGE,
            [BindingChange("app"), BindingChange("metad://client/p", [Given("none")])],
            ["invalid_item", "not_found"],
        ),
    ):
        reply = await ask(rig, OPS, method, m.Items(items))
        assert [ERRORS[error.code].name for error in reply.errors] == code


async def test_a_change_leaves_the_rest_of_a_binding(rig: Rig) -> None:
    uri, a, b = APP.principal.uri, Given("reader", "a"), Given("backup")

    async def after(*changes: BindingChange) -> PrincipalRoles | None:
        assert not (await ask(rig, OPS, methods.PRINCIPAL_CHANGE, m.Items([*changes]))).errors
        ((found,),) = [
            (await ask(rig, OPS, methods.PRINCIPAL_GET, methods.PRINCIPAL_GET.body([PrincipalKey(uri)]))).found
        ]
        return found

    assert await after(BindingChange(uri, denied=True)) == PrincipalRoles(uri, [], True)
    # Each was decided by somebody who had not seen the others.
    both = await after(BindingChange(uri, [a]), BindingChange(uri, [b, a]))
    assert both == PrincipalRoles(uri, [a, b], True)
    assert await after(BindingChange(uri, take=[a], denied=False)) == PrincipalRoles(uri, [b])
    assert await after(BindingChange(uri, [a], None)) == PrincipalRoles(uri, [a])
    assert await after(BindingChange(uri, take=[a])) is None
    assert await after(BindingChange(uri, take=[a])) is None
    many = [Given("reader", f"t{i}") for i in range(65)]
    for change in (BindingChange(uri, many[:64]), BindingChange(uri, many[64:])):
        reply = await ask(rig, OPS, methods.PRINCIPAL_CHANGE, m.Items([change]))
    assert [ERRORS[error.code].name for error in reply.errors] == ["invalid_item"]


async def test_what_was_asked_leaves_nothing_behind(rig: Rig) -> None:
    await give(rig, APP, Grant(["read"], ["kv"], "a"), Grant(["own"], ["broker"]))
    permissions = rig.node.permissions
    for i in range(50):
        await rig.answered(send(rig, APP, methods.KV_GET, methods.KV_GET.body([m.KvKey(f"{i}", "k")])))
        await ask(rig, APP, methods.ACCESS_MAY, May("", [Wish("read", f"t{i}", f"{i}")]))
    assert len(permissions.rights(APP.principal)._scopes) < 10
    long = "x" * 10_000
    await rig.answered(send(rig, APP, methods.BROKER_REGISTER, BrokerRegister(long)))
    assert long not in permissions._bound


async def test_a_crowd_of_one_tenant_is_looked_up_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check for each client, and each table that it restores, took a third of a storm."""
    await give(
        rig, APP, Grant(["read", "write"], ["session", "subscription", "inflight"], "a*"), Grant(["own"], ["broker"])
    )
    asked: list[str | None] = []
    prefixes = permissions._Scopes.prefixes
    monkeypatch.setattr(
        permissions._Scopes, "prefixes", lambda self, scope: asked.append(scope) or prefixes(self, scope)
    )
    items = [m.SessionTakeoverItem("a" if i % 2 else "ab", f"c{i}") for i in range(500)]
    body = methods.SESSION_TAKEOVER.body("b", 1, items, restore=True, restore_parts=True)
    permissions_of = rig.node.permissions
    assert permissions_of.admit(methods.SESSION_TAKEOVER, m.Request(0, None, body), None, APP)[0] is body
    assert len(asked) < 20
    strange = methods.SESSION_TAKEOVER.body("b", 1, [*items, m.SessionTakeoverItem("b", "c")], restore_parts=True)
    with pytest.raises(PermissionDeniedError, match="read subscription of 'b'"):
        permissions_of.admit(methods.SESSION_TAKEOVER, m.Request(0, None, strange), None, APP)


async def test_a_read_that_waits_is_not_told_what_may_not_be_read_any_more(rig: Rig) -> None:
    await give(rig, APP, Grant(["read"], ["kv"], "a"))
    before = rig.node.groups.replica("data-0").machine.applied
    for method, body in (
        (methods.KV_SCAN, methods.KV_SCAN.body("a", "", m.Page(), [m.Revision("data-0", before + 1)])),
        (methods.KV_GET, methods.KV_GET.body([m.KvKey("a", "k")], [m.Revision("data-0", before + 2)])),
    ):
        waiting = send(rig, APP, method, body)
        await rig.settle()
        assert not waiting.done
        await give(rig, APP, Grant(["read"], ["kv"], "b"))
        await ask(rig, OPS, methods.KV_PUT, m.KvPut([m.KvPutItem("a", "k", b"v")]))
        assert isinstance((await rig.answered(waiting)).error, PermissionDeniedError)
        await give(rig, APP, Grant(["read"], ["kv"], "a"))


async def test_who_the_tenants_are_is_for_operators_and_what_one_has_for_who_may_read_it(rig: Rig) -> None:
    """A broker that serves one tenant saw the names of all, and counted what they have."""
    await ask(rig, OPS, methods.KV_PUT, m.KvPut([m.KvPutItem("a", "k", b"")]))
    every = (methods.TENANTS_LIST.body(), methods.TENANTS_ENDINGS.body())
    one = [method.body(tenant) for method in (methods.TENANTS_USE, methods.TENANTS_ENDINGS) for tenant in ("a", "b")]
    of = {methods.TENANTS_LIST.body: methods.TENANTS_LIST, methods.TENANTS_USE.body: methods.TENANTS_USE}

    async def allowed() -> list[bool]:
        asked = [send(rig, APP, of.get(type(body), methods.TENANTS_ENDINGS), body) for body in (*every, *one)]
        return [not is_refused(await rig.answered(answer)) for answer in asked]

    for role, may in (
        (Given("broker", "a"), [False, False, True, False, True, False]),
        (Given("reader", "a"), [False, False, True, False, True, False]),
        (Given("reader"), [False, False, True, True, True, True]),
        (Given("operator"), [True] * 6),
    ):
        await ask(rig, OPS, methods.PRINCIPAL_PUT, m.Items([PrincipalRoles(APP.principal.uri, [role])]))
        assert await allowed() == may, role
    await give(rig, APP, Grant(["read"], ["kv"], "a"))
    assert not any(await allowed()), "it may not read all of it"


async def test_who_attaches_a_key_to_a_lease_may_write_the_lease_and_delete_the_key(rig: Rig) -> None:
    await ask(rig, OPS, methods.LEASE_GRANT, m.Items([LeaseGrantItem("a", 60_000, "l")]))
    put = m.KvPut([m.KvPutItem("a", "k", b"v")], "l")
    transact = methods.KV_TRANSACT.body([m.KvTransaction("a", [], [m.KvOperation("k", b"v", "l")])])
    for grants, code in (
        ([Grant(["write"], ["kv"], "a")], [DENIED]),
        ([Grant(["write"], ["kv", "lease"], "a")], [DENIED]),
        ([Grant(["write", "delete"], ["kv"], "a")], [DENIED]),
        ([Grant(["write", "delete"], ["kv"], "a"), Grant(["write"], ["lease"], "a", "l")], []),
    ):
        await give(rig, APP, *grants)
        for method, body in ((methods.KV_PUT, put), (methods.KV_TRANSACT, transact)):
            answer = await rig.answered(send(rig, APP, method, body))
            assert is_refused(answer) == bool(code), (method.name, grants)


async def test_who_may_write_some_roles_may_not_give_itself_others(rig: Rig) -> None:
    await give(rig, APP, Grant(["admin"], ["role", "principal"], "mine*"), Grant(["admin"], ["principal"], "metad:*"))
    for method, items in (
        (methods.ROLE_PUT, [Role("mine", [Grant(["admin"], ["*"])])]),
        (methods.PRINCIPAL_PUT, [PrincipalRoles(APP.principal.uri, [Given("admin")])]),
        (methods.PRINCIPAL_CHANGE, [BindingChange(APP.principal.uri, [Given("admin")])]),
    ):
        assert is_refused(await rig.answered(send(rig, APP, method, m.Items(items))))


async def test_who_ends_a_tenant_with_its_retained_messages_needs_the_right_to_both(rig: Rig) -> None:
    await give(rig, APP, Grant(["admin"], ["session"], "a"))
    for retained in (False, True):
        body = m.SessionEndTenant("a", False, retained)
        assert is_refused(await rig.answered(send(rig, APP, methods.SESSION_END_TENANT, body))) is retained


async def test_who_ends_all_of_a_tenant_needs_the_right_to_all_of_it(rig: Rig) -> None:
    fields = [DeclaredField(name, "str") for name in ("tenant", "value")]
    await rig.ask(methods.DECLARATION_DECLARE, Declare([Declaration("odd", "data", fields, ["tenant"], 1)]))
    every = sorted({name for name, table in BUILT_IN.items() if {*table.key[:1]} & {*FIRST}} | {"odd", *FAMILIES})
    for grants, is_allowed in (
        ([Grant(["admin"], ["session", "kv"], "a")], False),
        ([Grant(["admin"], [name for name in every if name != "odd"], "a")], False),
        ([Grant(["admin"], ["*"], "b")], False),
        ([Grant(["read", "write", "delete"], ["*"])], False),
        ([Grant(["admin"], ["*"], "a")], True),
    ):
        await give(rig, APP, *grants)
        for method, body in ((methods.TENANTS_END, TenantsEnd("a")), (methods.TENANTS_KEEP, TenantsKeep("a"))):
            assert is_refused(await rig.answered(send(rig, APP, method, body))) is not is_allowed, grants


SCOPE = st.text("a*\0b", max_size=3)


@given(SCOPE, SCOPE, st.text("a*\0b", max_size=4))
@example("a*", "ab*", "aba")
@example("ab*", "a*", "aba")
def test_a_scope_within_a_scope(one: str, other: str, scope: str) -> None:
    def covers(pattern: str) -> bool:
        return scope.startswith(pattern[:-1]) if pattern.endswith("*") else scope == pattern

    known = KnownAccess()
    known.roles["r"] = Role("r", [Grant(["read"], ["kv"], one)])
    known.bindings["p"] = PrincipalRoles("p", [Given("r", other)])
    rights = Rights(known, "p", "")
    assert rights.allow(Need("read", "kv", scope), lambda table: True) is (covers(one) and covers(other))
    assert rights.allow(Need("read", "kv", None), lambda table: True) is (one == other == "*")


@pytest.mark.parametrize("key", [("key", "record"), ("expected_version", "key"), ("record", "zone")])
async def test_fields_of_declared_tables_may_have_any_name(rig: Rig, key: tuple[str, str]) -> None:
    fields = [DeclaredField(name, "str") for name in (*key, "value")]
    declared = await rig.ask(methods.DECLARATION_DECLARE, Declare([Declaration("odd", "data", fields, [*key], 1)]))
    number = declared.found[0].number
    await give(rig, APP, Grant(["read", "write", "delete"], ["odd"], "a"))

    async def errors(method: Method[Any, Any], *body: Any) -> list[tuple[int, int]]:
        payload = method.encode_request(method.body(number, *body), 0, None, "data-0")
        answer = Answer()
        rig.node.requests.submit(method.code, payload, answer, source=APP)
        (result,) = (await rig.answered(answer)).results
        assert isinstance(result, bytes), result
        return [(error.index, error.code) for error in method.decode_reply(result).errors]

    records = [[scope, "k", "v"] for scope in ("a", "b")]
    refused = [(1, DENIED)]
    assert await errors(methods.TABLE_PUT, 3, [m.TablePutItem(record) for record in records]) == refused
    assert await errors(methods.TABLE_GET, [record[:2] for record in records]) == refused
    assert await errors(methods.TABLE_DELETE, [m.TableDeleteItem(record[:2]) for record in records]) == refused


# --- lives ----------------------------------------------------------------------------------------------------------

NOBODYS = 2**62
"""An epoch that no registration gave."""


async def test_no_write_is_made_in_the_name_of_a_life_that_no_registration_gave(rig: Rig) -> None:
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["read", "write", "delete"]))
    life = (await ask(rig, APP, methods.BROKER_REGISTER, BrokerRegister("b2"))).broker_epoch
    named = [method for method in OF_CLIENTS if method.mutates and is_in_a_name(method)]
    assert len(named) == 11
    before = rows_of(rig)
    for broker, epoch in (("b2", NOBODYS), ("b2", life + 1), ("never", 1)):
        for method in named:
            body = msgspec.structs.replace(body_of(method), broker=broker, broker_epoch=epoch)
            assert isinstance((await rig.answered(send(rig, APP, method, body))).error, FencedError), method.name
        answer = await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner(broker, epoch)))
        assert isinstance(answer.error, FencedError)
    assert not [*changed(before, rows_of(rig))]
    taken = m.SessionTakeover("b2", life, [m.SessionTakeoverItem("a", "c")])
    assert not (await ask(rig, APP, methods.SESSION_TAKEOVER, taken)).errors
    await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner("b2", life)))
    ended = methods.BROKER_DEREGISTER.body("b2", life)
    await ask(rig, APP, methods.BROKER_DEREGISTER, ended)
    for epoch in (life, life + 1):
        answer = await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner("b2", epoch)))
        assert isinstance(answer.error, FencedError)


async def test_a_life_that_a_group_has_not_heard_of_writes_once_metadata_0_knows_it(rig: Rig) -> None:
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["read", "write", "delete"]))
    life = (await ask(rig, APP, methods.BROKER_REGISTER, BrokerRegister("b2"))).broker_epoch
    fences = rig.driver("data-0").machine.parts[Fences]
    fences._newest.clear()
    await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner("b2", life)))
    fences._newest.clear()
    refused = await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner("b2", life + 1)))
    assert isinstance(refused.error, FencedError)


# --- each part of what is asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        {"compares": [m.KvCompare("x", version=1)]},
        {"then": [m.KvOperation("x", b"v")]},
        {"otherwise": [m.KvOperation("x", b"v")]},
        {"then": [m.KvOperation("k", None)]},
        {"reads": ["x"]},
    ],
    ids=str,
)
async def test_no_part_of_a_transaction_is_about_more_than_is_allowed(rig: Rig, part: dict[str, Any]) -> None:
    await give(rig, APP, Grant(["read", "write"], ["kv"], "a", "k"))
    allowed = {"compares": [m.KvCompare("k", version=1)], "then": [m.KvOperation("k", b"v")]}
    for parts, refused in ((allowed, False), (allowed | part, True)):
        body = methods.KV_TRANSACT.body([m.KvTransaction("a", **{"compares": [], "then": [], **parts})])
        assert is_refused(await rig.answered(send(rig, APP, methods.KV_TRANSACT, body))) is refused


async def table_of(rig: Rig, *key: str) -> int:
    """The number of a table whose records have this key, and ``tag``."""
    fields = [DeclaredField(name, "str") for name in (*key, "tag")]
    said = Declaration("odd", "data", fields, [*key], 1)
    number: int = (await rig.ask(methods.DECLARATION_DECLARE, Declare([said]))).found[0].number
    return number


@pytest.mark.parametrize("what", ["compares", "then", "otherwise", "delete", "reads"])
async def test_no_part_of_a_transaction_over_tables_is_either(rig: Rig, what: str) -> None:
    number = await table_of(rig, "namespace", "key")
    await give(rig, APP, Grant(["read", "write"], ["odd"], "a", "k"))
    put = [m.TableOperation(number, encode(["a", "k", "v"]), 3)]
    beyond = [m.TableOperation(number, encode(["a", "x", "v"]), 3)]
    parts: dict[str, dict[str, Any]] = {
        "compares": {"compares": [m.TableCompare(number, ["a", "x"], version=1)]},
        "then": {"then": beyond},
        "otherwise": {"otherwise": beyond},
        "delete": {"then": [m.TableOperation(number, key=["a", "k"])]},
        "reads": {"reads": [m.TableKey(number, ["a", "x"])]},
    }
    for more, refused in (({}, False), (parts[what], True)):
        transaction = m.TableTransaction("data", ["a"], **{"compares": [], "then": put, **more})
        answer = await rig.answered(send(rig, APP, methods.TABLE_TRANSACT, m.TableTransact([transaction])))
        assert is_refused(answer) is refused


async def test_a_table_of_namespaces_has_scopes_as_one_of_tenants_has(rig: Rig) -> None:
    number = await table_of(rig, "namespace", "key")
    await give(rig, APP, Grant(["read"], ["odd"]), scope="a")
    for scope, refused in (("a", False), ("b", True)):
        body = methods.TABLE_GET.body(number, [[scope, "k"]])
        payload = methods.TABLE_GET.encode_request(body, 0, None, "data-0")
        answer = Answer()
        rig.node.requests.submit(methods.TABLE_GET.code, payload, answer, source=APP)
        assert is_refused(await rig.answered(answer)) is refused


async def test_who_detaches_a_key_may_delete_it(rig: Rig) -> None:
    await give(rig, APP, Grant(["write"], ["lease"], "a"))
    body = m.Items([LeaseKeyItem("a", "l", "k")])
    for method in (methods.LEASE_ATTACH, methods.LEASE_DETACH):
        assert is_refused(await rig.answered(send(rig, APP, method, body))), method.name
    await give(rig, APP, Grant(["write"], ["lease"], "a"), Grant(["delete"], ["kv"], "a"))
    assert not is_refused(await rig.answered(send(rig, APP, methods.LEASE_DETACH, body)))


async def test_who_speaks_for_several_brokers_owns_each(rig: Rig) -> None:
    epochs = [
        (await ask(rig, OPS, methods.BROKER_REGISTER, BrokerRegister(name))).broker_epoch for name in ("b2", "b3")
    ]
    beats = [BrokerBeat(name, epoch) for name, epoch in zip(("b2", "b3"), epochs, strict=True)]
    await give(rig, APP, Grant(["own"], ["broker"], "b2"), Grant(["read"], ["broker"], "b2"))
    for some, refused in ((beats[:1], False), (beats, True)):
        answer = await rig.answered(send(rig, APP, methods.BROKER_HEARTBEAT, BrokerHeartbeat(some)))
        assert is_refused(answer) is refused
    for names, refused in ((["b2"], False), (["b2", "b3"], True)):
        answer = await rig.answered(send(rig, APP, methods.BROKER_GET, methods.BROKER_GET.body(names)))
        assert is_refused(answer) is refused


async def test_a_life_that_has_ended_writes_in_no_group_that_has_not_heard_of_its_end(rig: Rig) -> None:
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["read", "write", "delete"]))
    life = (await ask(rig, APP, methods.BROKER_REGISTER, BrokerRegister("b2"))).broker_epoch
    await ask(rig, OPS, methods.BROKER_FENCE, BrokerFence("b2", 0, life))
    rig.driver("data-0").machine.parts[Fences]._newest.clear()
    refused = await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner("b2", life)))
    assert isinstance(refused.error, FencedError)


async def test_who_restores_sessions_may_read_them(rig: Rig) -> None:
    taken = [m.SessionTakeoverItem("a", "c")]
    own, write = Grant(["own"], ["broker"]), Grant(["write"], ["session"], "a")
    await give(rig, APP, own, write)
    life = (await ask(rig, APP, methods.BROKER_REGISTER, BrokerRegister("b2"))).broker_epoch
    for restore, refused in ((False, False), (True, True)):
        body = m.SessionTakeover("b2", life, taken, restore)
        assert is_refused(await rig.answered(send(rig, APP, methods.SESSION_TAKEOVER, body))) is refused


async def test_administration_that_is_refused_where_roles_do_not_count_is_noted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[AuditEntry] = []
    monkeypatch.setattr(rig.node.audit, "refused", noted.append)
    rig.node.permissions.enforced = False
    payload = methods.ROLE_PUT.encode_request(m.Items([Role("r", [Grant(["read"])])]), 0, None, "")
    answer = Answer()
    rig.node.requests.submit(methods.ROLE_PUT.code, payload, answer, source=APP, administers=False)
    assert is_refused(await rig.answered(answer))
    assert [(line.who, line.method) for line in noted] == [(APP.holder, "role.put")]


async def test_lives_that_nobody_has_heard_of_take_no_more_room_than_some(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["read", "write", "delete"]))
    monkeypatch.setattr(permissions, "_KNOWN_MAX", 5)
    monkeypatch.setattr(rig.driver("metadata-0").group, "may_read", lambda: False)
    monkeypatch.setattr(rig.node.permissions, "_level", lambda done: None)
    for number in range(20):
        await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner("b2", NOBODYS + number)))
    assert len(rig.node.permissions._unheard) <= 5


async def test_a_node_whose_copy_is_behind_says_that_a_life_may_come_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["read", "write", "delete"]))
    asked: list[Any] = []
    group = rig.driver("metadata-0")
    monkeypatch.setattr(group.group, "may_read", lambda: False)
    monkeypatch.setattr(rig.node.permissions, "_level", asked.append)

    async def again() -> MetadError:
        return (await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner("b2", NOBODYS)))).error

    first = await again()
    assert isinstance(first, OverloadedError)
    assert first.retry_after_ms
    assert isinstance(await again(), OverloadedError)
    assert len(asked) == 1, "while nobody has answered, it asks once"
    asked.pop()(NotLeaderError())
    assert isinstance(await again(), OverloadedError)
    asked.pop()(encode(ReadIndexReply(group.machine.applied + 1)))
    assert isinstance(await again(), OverloadedError), "its copy is behind"
    await give(rig, APP, Grant(["own"], ["broker"]), Grant(["read", "write", "delete"]))
    assert isinstance(await again(), FencedError)
    assert not rig.node.permissions._unheard
    assert not asked


async def test_lives_are_free_where_nobody_is_checked_and_to_administrators(rig: Rig) -> None:
    put = await rig.answered(send(rig, OPS, methods.KV_PUT, PUT, m.Owner("b2", NOBODYS)))
    assert not put.reply(methods.KV_PUT).errors
    rig.node.permissions.enforced = False
    put = await rig.answered(send(rig, APP, methods.KV_PUT, PUT, m.Owner("b3", NOBODYS)))
    assert not put.reply(methods.KV_PUT).errors


PUT = m.KvPut([m.KvPutItem("n", "k", b"v")])


def is_in_a_name(method: Method[Any, Any]) -> bool:
    return {"broker", "broker_epoch"} <= {*method.body.__struct_fields__}
