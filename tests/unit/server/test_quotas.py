"""Quotas: what tenants and principals may ask a node for, and what tenants may store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from server_rig import Answer, Rig, VirtualEnvironment
from test_permissions import APP, Line

from metad.node.requests.quotas import Quotas, Wanted, _Rate
from metad.state.cluster import tenancy
from metad.state.cluster.quotas import Held, KnownQuotas, TenantTotals
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.declaration import Declaration, DeclaredField
from metad_wire.errors import (
    ERRORS,
    MetadError,
    NotLeaderError,
    PermissionDeniedError,
    QuotaError,
    QuotaExceededError,
)
from metad_wire.methods import Method, encode
from metad_wire.tables import tenants as t
from metad_wire.tables.consumer import JoinItem
from metad_wire.tables.declaration import Declare
from metad_wire.tables.sequence import SequenceAddItem
from metad_wire.tables.tenants import Quota, QuotaUse, TenantCount
from metad_wire.transport.credentials import Role as Kind

OTHER = Line(Kind.CLIENT, "other")
QUOTA, EXCEEDED = QuotaError.code, QuotaExceededError.code


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    made.environment = VirtualEnvironment
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def put(rig: Rig, *quotas: Quota) -> list[m.ItemError]:
    reply = await rig.ask(methods.QUOTA_PUT, m.Items([*quotas]))
    errors: list[m.ItemError] = reply.errors
    return errors


async def ask(rig: Rig, line: Line, method: Method[Any, Any], body: Any, group: str = "data-0") -> Any:
    """The reply, or the error."""
    answer = Answer()
    rig.node.requests.submit(method.code, method.encode_request(body, 0, None, group), answer, source=line)
    (result,) = (await rig.answered(answer)).results
    return result if isinstance(result, MetadError) else method.decode_reply(result)


def puts(*tenants: str) -> m.KvPut:
    return m.KvPut([m.KvPutItem(tenant, f"k{number}", b"v") for number, tenant in enumerate(tenants)])


async def test_a_tenant_over_its_rate_is_refused_and_nobody_else(rig: Rig) -> None:
    await put(rig, Quota("tenant/greedy", items_per_s=3))
    assert (await ask(rig, APP, methods.KV_PUT, puts(*["greedy"] * 10))).errors == [], "a large request is begun"
    refused = await ask(rig, OTHER, methods.KV_PUT, puts("greedy"))
    assert isinstance(refused, QuotaError)
    assert "tenant 'greedy' may ask a node for 3 items a second" in refused.message
    assert 1_000 < refused.retry_after_ms <= 3_000
    mixed = await ask(rig, APP, methods.KV_PUT, puts("greedy", "modest", "greedy"))
    assert [(error.index, error.code) for error in mixed.errors] == [(0, QUOTA), (2, QUOTA)]
    assert mixed.versions == [0, 1, 0]
    scan = await ask(rig, APP, methods.KV_SCAN, m.KvScan("greedy"))
    assert isinstance(scan, QuotaError), "reads count, too"
    use = await ask(rig, APP, methods.QUOTA_USE, QuotaUse("tenant/"), "")
    assert [(one.subject, one.refused) for one in use.found] == [("tenant/greedy", 4)]


async def test_each_without_a_quota_of_its_own_has_that_of_each(rig: Rig) -> None:
    await put(rig, Quota("tenant/*", items_per_s=1), Quota("tenant/large", items_per_s=1_000))
    seen = set[str]()
    for tenant in ("a", "b", "a", "b", "large", "large"):
        answer = await ask(rig, APP, methods.KV_PUT, puts(tenant))
        assert isinstance(answer, QuotaError) is (tenant in seen and tenant != "large"), tenant
        seen.add(tenant)
    await rig.ask(methods.QUOTA_DELETE, m.Items([t.QuotaKey("tenant/*")]))
    assert not isinstance(await ask(rig, APP, methods.KV_PUT, puts("a")), QuotaError)
    use = await ask(rig, APP, methods.QUOTA_USE, QuotaUse(), "")
    assert [one.subject for one in use.found] == ["tenant/large"], "who is limited no more is not told of"


async def test_a_principal_has_a_rate_and_bytes_count_by_themselves(rig: Rig) -> None:
    await put(rig, Quota(f"principal/{APP.principal.uri}", bytes_per_s=100))
    body = m.KvPut([m.KvPutItem("t", "k", b"v" * 1_000)])
    assert not isinstance(await ask(rig, APP, methods.KV_PUT, body), QuotaError)
    refused = await ask(rig, APP, methods.KV_PUT, body)
    assert isinstance(refused, QuotaError)
    assert "100 bytes a second" in refused.message
    assert not isinstance(await ask(rig, OTHER, methods.KV_PUT, body), QuotaError)


async def test_what_keeps_somebody_alive_and_what_administrators_ask_for_is_free(rig: Rig) -> None:
    await put(rig, Quota("tenant/*", items_per_s=0), Quota("principal/*", items_per_s=0))
    lease = methods.LEASE_KEEP_ALIVE.body([methods.LEASE_KEEP_ALIVE.item("n", "l")])
    assert not isinstance(await ask(rig, APP, methods.LEASE_KEEP_ALIVE, lease), QuotaError)
    quotas = m.Items([Quota("tenant/*", items_per_s=0)])
    assert not isinstance(await ask(rig, APP, methods.QUOTA_PUT, quotas, ""), QuotaError)
    assert isinstance(await ask(rig, APP, methods.KV_PUT, puts("t")), QuotaError), "nothing at all is allowed"


async def test_a_repetition_of_what_was_done_is_answered(rig: Rig) -> None:
    """Its first attempt has counted, and a refusal says that nothing was done."""
    await put(rig, Quota("tenant/t", items_per_s=1))
    for age_ms in (0, 1, 2):
        identity = m.Identity(1, 2, 2, age_ms)
        answer = Answer()
        payload = methods.KV_PUT.encode_request(puts("t"), 0, identity, "data-0")
        rig.node.requests.submit(methods.KV_PUT.code, payload, answer, source=APP)
        assert (await rig.answered(answer)).reply(methods.KV_PUT).versions == [1]
    assert isinstance(await ask(rig, APP, methods.KV_PUT, puts("t")), QuotaError)


@pytest.mark.parametrize(
    "quota",
    [
        Quota("acme", 1),
        Quota("tenant/", 1),
        Quota("group/g", 1),
        Quota("principal/app", 1),
        Quota("tenant/" + "t" * 600, 1),
        Quota("tenant/*", sessions=1),
        Quota("principal/*", records=1),
        Quota("tenant/t", connections=1),
        Quota("tenant/t", watches=1),
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused(rig: Rig, quota: Quota) -> None:
    (error,) = await put(rig, quota)
    assert ERRORS[error.code].name == "invalid_item"


# --- what is stored -------------------------------------------------------------------------------------------------


async def counted(rig: Rig) -> None:
    """Until what is stored was counted, and told."""
    for _ in range(24):
        await asyncio.sleep(0.1)
        await rig.settle()


async def sessions(rig: Rig, *clients: str, tenant: str = "acme") -> list[tuple[int, int]]:
    items = [m.SessionTakeoverItem(tenant, client) for client in clients]
    reply = await ask(rig, APP, methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))
    return [(error.index, error.code) for error in reply.errors]


async def test_a_tenant_begins_no_more_sessions_than_it_may_have(rig: Rig) -> None:
    await put(rig, Quota("tenant/acme", sessions=3))
    assert await sessions(rig, "a", "b", "c", "d", "e") == [(3, EXCEEDED), (4, EXCEEDED)]
    assert await sessions(rig, "a", "d") == [(1, EXCEEDED)], "what is there may be taken over"
    assert await sessions(rig, "d", tenant="other") == []
    delete = methods.SESSION_DELETE.body([m.SessionDeleteItem("acme", "a")])
    assert (await ask(rig, APP, methods.SESSION_DELETE, delete)).errors == []
    await counted(rig)
    assert await sessions(rig, "d", "e") == [(1, EXCEEDED)]
    (use,) = (await ask(rig, APP, methods.QUOTA_USE, QuotaUse(), "")).found
    assert use.subject == "tenant/acme"
    assert use.sessions in (2, 3), "it may have been counted since"


async def test_a_tenant_that_is_full_stores_nothing_and_deletes_and_reads(rig: Rig) -> None:
    await put(rig, Quota("tenant/acme", records=3))
    assert (await ask(rig, APP, methods.KV_PUT, puts("acme", "acme", "acme", "acme"))).errors == []
    await counted(rig)
    mixed = await ask(rig, APP, methods.KV_PUT, puts("other", "acme"))
    assert [(error.index, error.code) for error in mixed.errors] == [(1, EXCEEDED)]
    assert "has 4 records, and may have 3" in mixed.errors[0].message
    (alone,) = (await ask(rig, APP, methods.KV_PUT, puts("acme"))).errors
    assert alone.code == EXCEEDED
    assert (await ask(rig, APP, methods.KV_SCAN, m.KvScan("acme"))).found
    delete = methods.KV_DELETE.body([methods.KV_DELETE.item("acme", f"k{number}") for number in range(2)])
    assert (await ask(rig, APP, methods.KV_DELETE, delete)).errors == []
    await counted(rig)
    assert (await ask(rig, APP, methods.KV_PUT, puts("acme"))).errors == []
    await rig.ask(methods.QUOTA_DELETE, m.Items([t.QuotaKey("tenant/acme")]))
    assert (await ask(rig, APP, methods.KV_PUT, puts(*["acme"] * 9))).errors == []


def test_what_nodes_tell_adds_up_and_own_counts_are_the_newest() -> None:
    here, there, leader = KnownQuotas(), KnownQuotas(), TenantTotals()
    for known in (here, there):
        known.know("tenant/acme", Quota("tenant/acme", sessions=10, bytes=100))
    here.count("data-0", "acme", Held(4, 4, 40))
    there.count("data-1", "acme", Held(5, 5, 50))
    for known, name in ((here, "n1"), (there, "n2"), (here, "n1")):
        told = known.report(name)
        assert told is not None
        known.heard(told, leader.add(told, 0.0))
    assert here.totals["acme"] == there.totals["acme"] == Held(9, 9, 90)
    assert here.sessions_left["acme"] == 1
    here.count("data-0", "acme", Held(6, 6, 60))
    assert (here.sessions_left["acme"], [*here.full]) == (-1, ["acme"])
    here.forget("data-0")
    assert here.totals["acme"] == Held(5, 5, 50)
    assert leader.add(t.QuotaCounts("n2", []), 1_000.0).counts == [], "who is silent for long counts no more"
    here.know("tenant/acme", None)
    assert (here.totals, here.sessions_left, here.full, here.report("n1")) == ({}, {}, {}, None)
    assert leader.add(t.QuotaCounts("n2", [TenantCount("t", "data-0", 1, 2, 3)]), 0.0).counts[0].records == 2


# --- one rate -------------------------------------------------------------------------------------------------------


class Alone:
    """Quotas without a node, whose time goes on as a test says."""

    def __init__(self, quota: Quota, now_s: float = 0.0) -> None:
        self.now_s = now_s
        environment: Any = SimpleNamespace(now=lambda: self.now_s)
        self.quotas = Quotas(KnownQuotas(), environment)
        self.quotas.known.know(quota.subject, quota)

    def admit(self, *tenants: str) -> None:
        """Put a record of each. Raises QuotaError."""
        driver: Any = SimpleNamespace(group=SimpleNamespace(is_leader=True))
        verb: Any = SimpleNamespace(method=methods.KV_PUT, grows=True)
        line: Any = SimpleNamespace(principal=None, holder="h")
        body = puts(*tenants)
        self.quotas.admit(driver, Wanted(verb, 10, body, lambda: [*tenants]), body, None, None, line)


def test_a_rate_over_time_is_what_it_says_and_memory_is_bounded() -> None:
    alone = Alone(Quota("tenant/*", items_per_s=100))
    done = 0
    while alone.now_s < 10:
        try:
            alone.admit(*["t"] * 7)
            done += 7
        except QuotaError:
            pass  # whoever does not heed when to come again gains nothing
        alone.now_s += 0.001
    assert 1_000 <= done <= 1_000 + 100 + 7
    for number in range(20_000):
        alone.admit(f"t{number}")
    alone.now_s += 10
    assert len(alone.quotas._subjects) <= 8_192
    for _ in range(100):
        alone.admit("t19998")
    with pytest.raises(QuotaError):
        alone.admit("t19998")


async def test_connections_and_watches_of_a_principal_are_counted(rig: Rig) -> None:
    quotas = rig.node.permissions.quotas
    await put(rig, Quota("principal/*", connections=2, watches=1))
    quotas.connections = quotas.watches = lambda holder: {"metad://client/many": 2}.get(holder, 0)
    quotas.may_connect("metad://client/few")
    with pytest.raises(QuotaError, match="may have 2 connections at a node, and has 2"):
        quotas.may_connect("metad://client/many")
    many: Any = SimpleNamespace(principal=SimpleNamespace(uri="metad://client/many"), holder="metad://client/many")
    with pytest.raises(QuotaError, match="1 watches"):
        quotas.may_watch(many)
    quotas.may_watch(None)
    few: Any = SimpleNamespace(principal=SimpleNamespace(uri="metad://client/few"), holder="metad://client/few")
    quotas.may_watch(few, streams=3, nodes=3)
    with pytest.raises(QuotaExceededError, match="may have 1 streams of watches at a node, and this watch needs 4"):
        quotas.may_watch(few, streams=4, nodes=3)


# --- what others found -----------------------------------------------------------------------------------------------


async def test_what_is_asked_in_vain_counts_and_is_not_written(rig: Rig) -> None:
    """A client without a role wrote 7 MB/s of refusals into the log of another tenant's group."""
    rig.node.permissions.enforced = True
    await put(rig, Quota(f"principal/{APP.principal.uri}", items_per_s=2))
    before = rig.driver("data-0").machine.applied
    answers = [await ask(rig, APP, methods.KV_PUT, puts("other", "other")) for _ in range(3)]
    scans = [await ask(rig, APP, methods.KV_SCAN, m.KvScan("other")) for _ in range(3)]
    assert [type(answer) for answer in answers] == [PermissionDeniedError, QuotaError, QuotaError]
    assert {type(scan) for scan in scans} == {QuotaError}
    assert rig.driver("data-0").machine.applied == before
    assert rig.node.requests.meters.refused == {PermissionDeniedError.name: 2, QuotaError.name: 2 * 2 + 3}
    assert isinstance(await ask(rig, OTHER, methods.KV_SCAN, m.KvScan("other")), PermissionDeniedError)


async def test_only_the_repetition_of_a_write_is_free_and_not_for_ever(rig: Rig) -> None:
    """With the identity of a write that was done, a client read 477,000 items a second instead of five."""
    await put(rig, Quota("tenant/t", items_per_s=5))
    identity = m.Identity(1, 2, 2)

    async def again(method: Method[Any, Any], body: Any) -> Any:
        answer = Answer()
        payload = method.encode_request(body, 0, identity, "data-0")
        rig.node.requests.submit(method.code, payload, answer, source=APP)
        return (await rig.answered(answer)).results[0]

    assert not isinstance(await again(methods.KV_PUT, puts("t")), MetadError)
    get = methods.KV_GET.body([m.KvKey("t", "k0")] * 10)
    assert [isinstance(await again(methods.KV_GET, get), QuotaError) for _ in range(3)] == [False, True, True]
    repeated = [isinstance(await again(methods.KV_PUT, puts("t")), QuotaError) for _ in range(40)]
    assert repeated[:3] == [False] * 3
    assert repeated[-1]


async def test_a_transaction_is_of_the_tenant_of_its_records_and_of_nothing_that_looks_like_one(rig: Rig) -> None:
    """A record of a table without tenants, whose key begins with another tenant's name, used up that one's rate."""
    scopes = []
    for name, key in (("gadget", "name"), ("item", "tenant")):
        fields = [DeclaredField(field, "str") for field in (key, "part")]
        said = Declaration(name, "data", fields, [key, "part"], 1)
        number = (await rig.ask(methods.DECLARATION_DECLARE, Declare([said]))).found[0].number
        transaction = m.TableTransaction(
            "data", ["beta"], [], [m.TableOperation(number, encode(["beta", "p"]), 2)], reads=[]
        )
        scopes += rig.node.permissions.scopes(methods.TABLE_TRANSACT, m.TableTransact([transaction]))
    assert scopes == ["", "beta"]


async def test_a_debt_is_not_forgotten_whoever_else_is_named(rig: Rig) -> None:
    await put(rig, Quota("tenant/acme", items_per_s=10), Quota("tenant/*", items_per_s=1_000))
    for tenant, items in (("acme", 1_000), ("one", 30_000)):
        await ask(rig, APP, methods.KV_GET, methods.KV_GET.body([m.KvKey(tenant, "k")] * min(items, 1_000)))
    rig.node.permissions.quotas._subjects["tenant/one"].take(30_000, 0, rig.node.environment.now())
    for start in range(0, 9_000, 1_000):
        others = [m.KvKey(f"n{start + number}", "k") for number in range(1_000)]
        await ask(rig, APP, methods.KV_GET, methods.KV_GET.body(others))
    for tenant in ("acme", "one"):
        assert isinstance(await ask(rig, APP, methods.KV_GET, methods.KV_GET.body([m.KvKey(tenant, "k")])), QuotaError)
    assert len(rig.node.permissions.quotas._subjects) <= 8_192


async def test_who_does_not_heed_a_time_puts_off_nobody_else_for_long(rig: Rig) -> None:
    await put(rig, Quota("tenant/t", items_per_s=100))
    assert not isinstance(await ask(rig, APP, methods.KV_PUT, puts(*["t"] * 100)), QuotaError)
    for _ in range(200):
        await ask(rig, APP, methods.KV_PUT, puts(*["t"] * 50))
    refused = await ask(rig, OTHER, methods.KV_PUT, puts("t"))
    assert isinstance(refused, QuotaError)
    assert refused.retry_after_ms <= 3_000


async def test_each_watch_is_an_item(rig: Rig) -> None:
    await put(rig, Quota(f"principal/{APP.principal.uri}", items_per_s=2))
    quotas = rig.node.permissions.quotas
    for _ in range(2):
        quotas.may_watch(APP)
    with pytest.raises(QuotaError, match="2 items a second"):
        quotas.may_watch(APP)
    quotas.may_watch(OTHER)


@pytest.mark.parametrize("what", ["session", "offset", "sequence", "consumer"])
async def test_what_finds_out_by_item_whether_it_stores_more_keeps_to_the_limit(rig: Rig, what: str) -> None:
    """Offsets, sequences and sessions were stored without end: 2,061 records of 10."""
    calls: dict[str, tuple[Method[Any, Any], Callable[[list[str]], Any], str]] = {
        "session": (
            methods.SESSION_TAKEOVER,
            lambda names: m.SessionTakeover("b", 1, [m.SessionTakeoverItem("acme", name) for name in names]),
            "data-0",
        ),
        "offset": (
            methods.OFFSET_COMMIT,
            lambda names: methods.OFFSET_COMMIT.body([m.OffsetCommitItem("acme", name, "t", 0, 1) for name in names]),
            "offset-0",
        ),
        "sequence": (
            methods.SEQUENCE_ADD,
            lambda names: methods.SEQUENCE_ADD.body([SequenceAddItem("acme", name, 1) for name in names]),
            "data-0",
        ),
        "consumer": (
            methods.CONSUMER_JOIN,
            lambda names: methods.CONSUMER_JOIN.body([JoinItem("acme", name, 60_000) for name in names]),
            "offset-0",
        ),
    }
    method, body_of, group = calls[what]
    assert (await ask(rig, APP, method, body_of(["old"]), group)).errors == []
    known = rig.node.permissions.quotas.known
    known.full["acme"] = "tenant 'acme' has 1 records, and may have 1"
    for name in ("new", "newer"):
        (error,) = (await ask(rig, APP, method, body_of([name]), group)).errors
        assert (error.code, "may have 1" in error.message) == (EXCEEDED, True)
    if what != "consumer":  # which joins anew under another name
        assert (await ask(rig, APP, method, body_of(["old"]), group)).errors == []
    del known.full["acme"]
    assert (await ask(rig, APP, method, body_of(["new"]), group)).errors == []


# --- what a verifier planted -----------------------------------------------------------------------------------------


async def test_each_pays_for_its_own_part_of_a_batch(rig: Rig) -> None:
    """A principal for what was done, and a tenant for its items and their share of the bytes."""
    principal = Quota(f"principal/{APP.principal.uri}", items_per_s=100, bytes_per_s=10**6)
    await put(rig, principal, Quota("tenant/full", items_per_s=1), Quota("tenant/paid", 1_000, 10**6))
    quotas = rig.node.permissions.quotas
    now_s = rig.node.environment.now()
    await ask(rig, APP, methods.KV_PUT, puts(*["full"] * 3))
    named = {name: quotas._named[name] for name in ("tenant/full", principal.subject)}
    owed, had = named["tenant/full"].rates["items_per_s"]._left, named[principal.subject].rates["items_per_s"]._left
    mixed = puts("full", "full", "full", "paid")
    assert [one.code for one in (await ask(rig, APP, methods.KV_PUT, mixed)).errors] == [QUOTA] * 3
    spent = rig.node.environment.now() - now_s  # what came back meanwhile, times the rate
    assert named["tenant/full"].rates["items_per_s"]._left >= owed, "who is refused does not owe more"
    assert had - 1 <= named[principal.subject].rates["items_per_s"]._left + 0.01 <= had - 1 + 100 * spent + 0.1
    size = len(methods.KV_PUT.encode_request(mixed, 0, None, "data-0"))
    left = quotas._named["tenant/paid"].rates["bytes_per_s"]._left
    assert 10**6 - left == pytest.approx(size // 4, abs=2)
    await put(rig, Quota(principal.subject, items_per_s=0))
    assert isinstance(await ask(rig, APP, methods.KV_PUT, mixed), QuotaError)
    (use,) = (await ask(rig, APP, methods.QUOTA_USE, QuotaUse("principal/"), "")).found
    assert use.refused == 4


async def test_who_asks_the_wrong_node_pays_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(rig, Quota("tenant/t", items_per_s=1))
    with monkeypatch.context() as another_leads:
        another_leads.setattr(type(rig.driver("data-0").group), "is_leader", False)
        for _ in range(3):
            assert isinstance(await ask(rig, APP, methods.KV_PUT, puts("t")), NotLeaderError)
    assert not isinstance(await ask(rig, APP, methods.KV_PUT, puts("t")), QuotaError)


async def test_a_full_tenant_deletes_by_transactions_too_and_one_that_is_over_its_rate_hides_it_not(rig: Rig) -> None:
    await put(rig, Quota("tenant/slow", items_per_s=1), Quota("tenant/full", records=1))
    await ask(rig, APP, methods.KV_PUT, puts("slow", "slow", "full"))
    rig.node.permissions.quotas.known.full["full"] = "full"
    delete = m.KvTransaction("full", [], [m.KvOperation("k2", None)])
    write = m.KvTransaction("full", [], [m.KvOperation("k3", b"v")])
    errors = [
        [one.code for one in (await ask(rig, APP, methods.KV_TRANSACT, methods.KV_TRANSACT.body([one]))).errors]
        for one in (write, delete)
    ]
    assert errors == [[EXCEEDED], []]
    both = await ask(rig, APP, methods.KV_PUT, puts("slow", "full"))
    assert [one.code for one in both.errors] == [QUOTA, EXCEEDED], "to come again would not help the second"


def test_what_a_second_brought_is_told_for_a_second() -> None:
    alone = Alone(Quota("tenant/t", items_per_s=100), 10.0)
    alone.admit("t", "t")
    told = []
    for now_s in (11.0, 12.0, 17.0):
        alone.now_s = now_s
        told += [one.items_per_s for one in alone.quotas.use(QuotaUse()).found]
    assert told == [2, 0, 0]


def test_times_to_come_again_are_one_after_the_other() -> None:
    rate = _Rate(10, 0.0)
    rate.take(20, 0.0)
    waits = [rate.wait_s(10, 5, 0.0) for _ in range(3)]
    assert waits == sorted({*waits})


@pytest.mark.parametrize(
    ("quota", "held", "full"),
    [
        (Quota("tenant/t", records=3), Held(0, 2, 0), False),
        (Quota("tenant/t", records=3), Held(0, 3, 0), True),
        (Quota("tenant/t", bytes=3), Held(0, 1, 3), True),
        (Quota("tenant/t", records=0), Held(0, 0, 0), True),
    ],
    ids=str,
)
def test_a_tenant_that_has_all_it_may_have_is_full(quota: Quota, held: Held, full: bool) -> None:
    known = KnownQuotas()
    known.know("tenant/t", quota)
    known.count("data-0", "t", held)
    assert ("t" in known.full) is full


def test_a_limit_of_no_sessions_is_one() -> None:
    known = KnownQuotas()
    known.know("tenant/t", Quota("tenant/t", sessions=0))
    known.count("data-0", "t", Held(0, 0, 0))
    assert known.sessions_left == {"t": 0}


def test_what_was_told_is_forgotten_with_what_it_was_about() -> None:
    known, leader = KnownQuotas(), TenantTotals()
    quota = Quota("tenant/t", records=3)
    known.know("tenant/t", quota)
    known.heard(t.QuotaCounts("n1", []), t.QuotaTotals([TenantCount("t", "", 0, 9, 0)]))
    assert "t" in known.full
    known.heard(t.QuotaCounts("n1", []), t.QuotaTotals([]))
    assert "t" not in known.full, "others have deleted"
    known.count("data-0", "t", Held(0, 9, 0))
    known.know("tenant/t", None)
    known.know("tenant/t", quota)
    assert known.totals.get("t", Held(0, 0, 0)) == Held(0, 0, 0), "it is counted anew"
    for node, count in (("n1", 5), ("n2", 6)):
        found = leader.add(t.QuotaCounts(node, [TenantCount("t", "data-0", 0, count, 0)]), 0.0)
    assert found.counts[0].records == 6, "a group that another leads now counts once"
    assert leader.add(t.QuotaCounts("n3", []), 299.0).counts
    assert not leader.add(t.QuotaCounts("n3", []), 301.0).counts


async def test_one_session_alone_is_limited_and_each_takes_its_room_once(rig: Rig) -> None:
    await put(rig, Quota("tenant/acme", sessions=2))
    assert await sessions(rig, "a", "a") == [], "it is one session"
    assert await sessions(rig, "b") == []
    assert await sessions(rig, "c") == [(0, EXCEEDED)]


async def test_a_table_that_a_program_declared_counts_for_its_tenants(rig: Rig) -> None:
    await put(rig, Quota("tenant/t", items_per_s=1))
    fields = [DeclaredField(name, "str") for name in ("tenant", "key")]
    said = Declaration("own", "data", fields, ["tenant", "key"], 1)
    number = (await rig.ask(methods.DECLARATION_DECLARE, Declare([said]))).found[0].number

    async def asked(method: Method[Any, Any], *body: Any) -> Any:
        answer = Answer()
        payload = method.encode_request(method.body(number, *body), 0, None, "data-0")
        rig.node.requests.submit(method.code, payload, answer, source=APP)
        return (await rig.answered(answer)).results[0]

    assert isinstance(await asked(methods.TABLE_PUT, 2, [m.TablePutItem(["t", "k"])]), bytes)
    assert isinstance(await asked(methods.TABLE_PUT, 2, [m.TablePutItem(["t", "k"])]), QuotaError)
    assert isinstance(await asked(methods.TABLE_DELETE, [m.TableDeleteItem(["t", "k"])]), QuotaError)


async def test_what_takes_many_pages_is_counted_whole(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table over 1 MiB only the first page counted, so no quota of it held."""
    monkeypatch.setattr(tenancy, "PAGE_BYTES", 100)
    await put(rig, Quota("tenant/acme", records=5))
    assert (await ask(rig, APP, methods.KV_PUT, puts(*["acme"] * 40))).errors == []
    await counted(rig)
    (use,) = (await ask(rig, APP, methods.QUOTA_USE, QuotaUse(), "")).found
    assert use.records == 40
