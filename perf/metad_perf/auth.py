"""``metad-perf auth``: what does authorization let through that it should not, what does it cost, how soon is a right
gone, and what does a greedy tenant take from others where all have quotas?

An administrator gives a client random roles, again and again. Between two changes the client sends random requests of
all kinds, many at a time, about records that are the same in all tables: of each scope each name. For every request it
is written here which records it shows or changes. :func:`may` judges that by the grants alone; it knows nothing of the
nodes' code. A request that was answered although one of its records might not be read or written is a leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from metad_client import (
    Client,
    Given,
    Grant,
    GroupId,
    MetadError,
    Options,
    PermissionDeniedError,
    PrincipalKey,
    PrincipalRoles,
    Record,
    Role,
    UnauthenticatedError,
    Watch,
    Watched,
    Wish,
    connect,
)
from metad_client.namespaces.tables import Put, Transaction
from metad_wire import messages as m
from metad_wire.families.assignment import PARTITIONS, RESOURCES
from metad_wire.families.core import ACLS, TOPICS, Acl, Topic
from metad_wire.program.running import run_async
from metad_wire.tables.access import Right
from metad_wire.tables.assignment import PartitionKey, ResourceAlter, ResourceCreate
from metad_wire.tables.consumer import JoinItem, MemberKey
from metad_wire.tables.declaration import DeclarationKey
from metad_wire.tables.inflight import Inflight, InflightKey
from metad_wire.tables.lease import LeaseGrantItem, LeaseKey, LeaseKeyItem
from metad_wire.tables.plan import PlanKey
from metad_wire.tables.retained import RetainedDeleteItem, RetainedKey, RetainedPutItem
from metad_wire.tables.sequence import SequenceAddItem, SequenceKey
from metad_wire.tables.subscription import Subscription, SubscriptionKey

from .attack import sites
from .commands import Auth
from .errors import ServerError
from .experiment.stage import Stage, mean_ratios, side_by_side, staged
from .experiment.windows import Side, compared, configured, window
from .load.fleet import Result
from .load.measure import Load, epoch_now
from .load.prepare import fill_sessions
from .load.workload import TAKEOVER_BROKERS, TENANT
from .report import output
from .report.conclusion import conclude, reported
from .report.histogram import Latencies
from .target import open_client, target_of

Need = tuple[str, str, str | None, str]
"""A right, a table, the first field of a key (None: of all keys), and the second."""
Place = tuple[str, str]
"""The first two fields of a key."""

CLUSTER: Final = ("cluster", "broker", "plan", "declaration", "role", "principal")
TABLES: Final = (
    *("session", "subscription", "inflight", "will", "offset", "consumer", "kv", "lease", "sequence", "retained"),
    *("topic", "acl", "perf_auth", "assignment"),
)
RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "delete", "own", "admin")
SCOPES: Final = ("a", "ab", "b")
NAMES: Final = ("k", "k/1", "kz", "x")
PLACES: Final[list[Place]] = [*product(SCOPES, NAMES)]
PREFIXES: Final = ("", "", "k", "k/", "x", "z")
DUE, KEPT = "kw", "perf_auth"
"""The clients whose wills are due; the declared table."""
FILTERS: Final = {"#": NAMES, "+": ("k", "kz", "x"), "k/#": ("k", "k/1"), "+/1": ("k/1",), "k": ("k",), "kz/#": ("kz",)}
"""Topic filters, and the names that each matches."""
APP: Final = "metad://client/app"
BROKER, LIFE = "b0", "b1"
"""Whose the sessions are; who is registered beside it."""
EPOCH: Final = 2**40
"""Of the life of ``BROKER``, in whose name requests are sent."""
_LEASE_S: Final = 3_600.0
_IN_FLIGHT, ROUND = 48, 200
_KNOWN_LOOKS, _OPEN_S = 2_000, 30.0


class Kept(Record, frozen=True):
    """A record of the declared table."""

    namespace: str
    key: str
    tag: str = "t"


# --- the judge ------------------------------------------------------------------------------------------------------


def may(grants: Iterable[tuple[str, Grant]], right: str, table: str, scope: str | None, key: str = "") -> bool:
    """Whether one of the grants, each with the scope that its role is given for, gives a right to a record. ``scope``:
    the first field of its key; None: to all records."""

    def covers(pattern: str) -> bool:
        if scope is None or pattern == "*":
            return pattern == "*"
        return scope.startswith(pattern[:-1]) if pattern.endswith("*") else scope == pattern

    for given, grant in grants:
        named = (table not in CLUSTER) if not grant.tables else bool({table, "*"} & {*grant.tables})
        within = covers(given) if table not in CLUSTER else given == "*" or table in grant.tables
        if right in grant.rights and named and within and covers(grant.scope) and key.startswith(grant.prefix):
            return True
    return False


class Answer(NamedTuple):
    """What one request, or one of its items, has got."""

    shown: bool
    """It was not refused."""
    needs: Sequence[Need]
    """What it must be allowed."""
    exact: bool = False
    """It has to be allowed, too, if it may."""


class Found:
    """What a search has found so far."""

    def __init__(self) -> None:
        self.paths: Counter[str] = Counter()
        self.leaks = 0
        self.wrong_refusals = 0
        self.allowed: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.examples: list[str] = []

    def judge(self, path: str, answers: Iterable[Answer], allowed: Callable[[Need], bool]) -> None:
        """Count one request."""
        self.paths[path] += 1
        for shown, needs, exact in answers:
            missing = [need for need in needs if not allowed(need)]
            self.allowed[path] += shown
            if shown and missing:
                self.leaks += 1
                self._tell(f"{path}: answered without {missing[0]}")
            elif exact and not shown and not missing:
                self.wrong_refusals += 1
                self._tell(f"{path}: refused in spite of {needs}")

    def _tell(self, line: str) -> None:
        if len(self.examples) < 10:
            self.examples.append(line)


# --- what is asked --------------------------------------------------------------------------------------------------

Ask = Callable[[Client, random.Random], Awaitable[list[Answer]]]
Shown = Awaitable[Sequence[Any]]
"""The records that a request has shown."""


def _each(call: Callable[[Client, list[Place]], Awaitable[Any]], rights: str, *whole: Need) -> Ask:
    """Some items, each of one place, and the rights that it needs there; ``whole``: what all of them need."""
    named = [right.split() for right in rights.split(", ")]

    async def ask(client: Client, rng: random.Random) -> list[Answer]:
        at = rng.sample(PLACES, rng.randint(1, 3))
        refused: Iterable[int] = range(len(at))
        try:
            errors = (await call(client, at)).errors
            refused = [i for i, error in errors.items() if isinstance(error, PermissionDeniedError)]
        except PermissionDeniedError:
            pass
        needs: list[list[Need]] = [[*whole, *((right, table, *place) for right, table in named)] for place in at]
        return [Answer(i not in refused, need, exact=not whole and len(named) == 1) for i, need in enumerate(needs)]

    return ask


async def _whole(needs: Sequence[Need], call: Awaitable[Sequence[Need]], *, exact: bool = False) -> list[Answer]:
    """What is refused or answered as a whole; then ``call`` says what it has shown."""
    try:
        return [Answer(True, [*needs, *await call], exact)]
    except PermissionDeniedError:
        return [Answer(False, needs, exact)]


def _over(
    call: Callable[[Client, str, str], Shown],
    table: str,
    second: str = "",
    *,
    everywhere: bool = True,
) -> Ask:
    """All records of a scope, or of all scopes, whose second field has a prefix. ``second``: the name of that field in
    what is shown; empty: nothing is."""

    async def ask(client: Client, rng: random.Random) -> list[Answer]:
        scope = rng.choice((*SCOPES, "") if everywhere else SCOPES)
        prefix = rng.choice(PREFIXES) if scope else ""
        held = [*product(SCOPES, [DUE])] if table == "will" else PLACES
        places = [at for at in held if scope in ("", at[0]) and at[1].startswith(prefix)]
        needs: list[Need] = [("read", table, *at) for at in places]

        async def shown() -> list[Need]:
            found = [getattr(one, "record", one) for one in await call(client, scope, prefix)]
            at = ((getattr(one, "tenant", "") or getattr(one, "namespace", ""), getattr(one, second)) for one in found)
            return [("read", table, *place) for place in at]

        return await _whole(needs, shown())

    return ask


def _fixed(call: Callable[[Client], Awaitable[Any]], *needs: Need, exact: bool = True) -> Ask:
    """What is always the same."""

    async def shown(client: Client) -> list[Need]:
        for error in getattr(await call(client), "errors", {}).values():
            if isinstance(error, PermissionDeniedError):
                raise error
        return []

    return lambda client, rng: _whole(needs, shown(client), exact=exact)


async def _all(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]


async def _none(done: Awaitable[Any]) -> list[Any]:
    await done
    return []


async def _match(client: Client, rng: random.Random) -> list[Answer]:
    tenant, filter_ = rng.choice(SCOPES), rng.choice([*FILTERS])

    async def shown() -> list[Need]:
        return [("read", "retained", one.tenant, one.topic) async for one in client.retained.match(tenant, filter_)]

    return await _whole([("read", "retained", tenant, name) for name in FILTERS[filter_]], shown())


async def _may(client: Client, rng: random.Random) -> list[Answer]:
    wish = Wish(rng.choice(["read", "write", "delete"]), rng.choice(TABLES), *rng.choice(PLACES))
    allowed = (await client.principals.may([wish])).allowed[0]
    return [Answer(allowed, [(wish.right, wish.table, wish.scope, wish.key)], exact=True)]


async def _watch(client: Client, table: Any, **wanted: Any) -> list[Any]:
    watch = client.watch(table, **wanted, start="snapshot")
    try:
        await watch.opened()
    finally:
        await watch.close()
    return []


async def _image(client: Client, table: Any, scope: str, prefix: str) -> list[Any]:
    async with client.image(table, tenant=scope or None, prefix=prefix) as image:
        await image.caught_up(_OPEN_S)
        return list(image[table])


async def _rows(client: Client, table: Any, scope: str, prefix: str) -> list[Any]:
    kind = "offset" if table in ("offset", "consumer") else "data"
    wanted = Watched(table, tenant=scope or None, prefix=prefix)
    async for _ in client.snapshot(GroupId(kind, 0), wanted, idle_timeout_s=_OPEN_S):
        pass
    return []


def _at(call: Callable[[Client, str, str], AsyncIterator[Any]], *rights: str) -> Ask:
    """What shows something of one place."""

    async def ask(client: Client, rng: random.Random) -> list[Answer]:
        place = rng.choice(PLACES)
        needs: list[Need] = [(right, table, *place) for right, table in map(str.split, rights)]
        return await _whole(needs, _none(_all(call(client, *place))))

    return ask


async def _claim(client: Client, rng: random.Random) -> list[Answer]:
    tenant = rng.choice(SCOPES)

    async def shown() -> list[Need]:
        taken = await client.wills.claim(BROKER, EPOCH, tenant=tenant, lease_s=1.0, limit=1)
        return [("read", "will", one.key.tenant, one.key.client_id) for one in taken]

    return await _whole([("own", "broker", BROKER, ""), ("write", "will", tenant, DUE)], shown())


def _of_the_cluster() -> dict[str, Ask]:
    """What is about no tenant, and what is for administrators."""
    role, other = Role("other", []), PrincipalRoles("metad://client/other")
    return {
        "status": _fixed(lambda c: c.status(), ("read", "cluster", None, "")),
        "brokers.get": _fixed(lambda c: c.brokers.get(LIFE), ("read", "broker", LIFE, "")),
        "brokers.list": _fixed(lambda c: _all(c.brokers.list()), ("read", "broker", LIFE, ""), exact=False),
        "watch broker": _fixed(lambda c: _watch(c, "broker"), ("read", "broker", LIFE, ""), exact=False),
        "tables.get": _fixed(lambda c: c.tables.get_many([DeclarationKey(KEPT)]), ("read", "declaration", KEPT, "")),
        "tables.list": _fixed(lambda c: _all(c.tables.list()), ("read", "declaration", KEPT, ""), exact=False),
        "watch declaration": _fixed(lambda c: _watch(c, "declaration"), ("read", "declaration", KEPT, ""), exact=False),
        "plans.get": _fixed(lambda c: c.plans.get_many([PlanKey("p")]), ("read", "plan", "p", "")),
        "roles.list": _fixed(lambda c: _all(c.roles.list()), ("read", "role", "other", ""), exact=False),
        "roles.put": _fixed(lambda c: c.roles.put_many([role]), ("admin", "role", "other", "")),
        "principals.get": _fixed(lambda c: c.principals.get_many([PrincipalKey(APP)]), ("read", "principal", APP, "")),
        "principals.list": _fixed(lambda c: _all(c.principals.list()), ("read", "principal", APP, ""), exact=False),
        "principals.put": _fixed(lambda c: c.principals.put_many([other]), ("admin", "principal", other.principal, "")),
        "access.may of another": _fixed(
            lambda c: c.principals.may(principal=other.principal), ("read", "principal", None, "")
        ),
    }


def _method(client: Client, name: str) -> Any:
    space, _, verb = name.partition(".")
    return getattr(getattr(client, space), verb)


_LONG_MS, _COMPARES = 3_600_000, "write kv, read kv"
ITEMS: Final[tuple[tuple[str, Callable[..., Any], tuple[Any, ...], str], ...]] = (
    ("sessions.get", m.SessionKey, (), "read session"),
    ("sessions.delete", m.SessionDeleteItem, (), "delete session"),
    ("subscriptions.get", m.SessionKey, (), "read subscription"),
    ("inflight.get", m.SessionKey, (), "read inflight"),
    ("offsets.fetch", m.OffsetKey, ("t", 0), "read offset"),
    ("offsets.generations", m.ConsumerGroup, (), "read offset"),
    ("offsets.commit", m.OffsetCommitItem, ("t", 0, 1), "write offset"),
    ("offsets.delete", m.OffsetKey, ("t", 0), "delete offset"),
    ("consumers.get", MemberKey, ("m",), "read consumer"),
    ("consumers.describe", m.ConsumerGroup, (), "read consumer"),
    ("consumers.heartbeat", MemberKey, ("m",), "write consumer"),
    ("consumers.leave", MemberKey, ("m",), "write consumer"),
    ("kv.get", m.KvKey, (), "read kv"),
    ("kv.put", m.KvPutItem, (b"v",), "write kv"),
    ("kv.delete", m.KvDeleteItem, (), "delete kv"),
    ("kv.transact", lambda s, k: m.KvTransaction(s, [], [], [], [k]), (), "read kv"),
    ("kv.transact", lambda s, k: m.KvTransaction(s, [m.KvCompare(k, 1)], [m.KvOperation(k, b"v")]), (), _COMPARES),
    ("kv.transact", lambda s, k: m.KvTransaction(s, [], [m.KvOperation(k, b"v")], [], [k]), (), "read kv, write kv"),
    ("kv.transact", lambda s, k: m.KvTransaction(s, [], [], [m.KvOperation(k, None)]), (), "delete kv"),
    ("leases.get", LeaseKey, (), "read lease"),
    ("leases.grant", lambda s, k: LeaseGrantItem(s, _LONG_MS, k), (), "write lease"),
    ("leases.keep_alive", LeaseKey, (), "write lease"),
    ("leases.attach", lambda s, k: LeaseKeyItem(s, k, k), (), "write lease, delete kv"),
    ("leases.revoke", LeaseKey, (), "delete lease, delete kv"),
    ("sequences.get", SequenceKey, (), "read sequence"),
    ("sequences.add", SequenceAddItem, (1,), "write sequence"),
    ("sequences.delete", SequenceKey, (), "delete sequence"),
    ("retained.get", RetainedKey, (), "read retained"),
    ("retained.put", RetainedPutItem, (b"v",), "write retained"),
    ("retained.delete", RetainedDeleteItem, (), "delete retained"),
    ("assignments.explain", PartitionKey, ("topic", 0), "read assignment"),
    ("assignments.alter", ResourceAlter, ("topic",), "write assignment"),
)
"""Methods of items: what makes one of a place, what follows the place in it, and the rights that it needs there."""
OWNED: Final[tuple[tuple[str, Callable[..., Any], tuple[Any, ...], str, dict[str, Any]], ...]] = (
    ("sessions.takeover", m.SessionTakeoverItem, (), "write session", {}),
    ("sessions.takeover", m.SessionTakeoverItem, (), "write session, read session", {"restore": True}),
    (
        *("sessions.takeover", m.SessionTakeoverItem, ()),
        *("write session, read subscription, read inflight", {"restore_parts": True}),
    ),
    ("sessions.update", m.SessionUpdateItem, (m.SessionProperties(86_400, b"p"),), "write session", {}),
    ("sessions.disconnect", m.SessionDisconnectItem, (), "write session", {}),
    ("subscriptions.add", Subscription, ("f",), "write subscription", {}),
    ("subscriptions.remove", SubscriptionKey, ("f",), "delete subscription", {}),
    ("inflight.put", Inflight, ("i", b"v"), "write inflight", {}),
    ("inflight.delete", InflightKey, ("i",), "delete inflight", {}),
)
"""The same of methods that speak for a broker."""
FILLED: Final = ("offsets.commit", "kv.put", "leases.grant", "sequences.add", "retained.put")
"""What writes the records."""
LISTS: Final = (
    ("sessions.list", "session", "client_id", True),
    ("subscriptions.list", "subscription", "client_id", True),
    ("wills.list", "will", "client_id", True),
    ("offsets.groups", "offset", "group", False),
    ("kv.scan", "kv", "key", False),
    ("leases.list", "lease", "lease", False),
    ("sequences.list", "sequence", "sequence", False),
)
"""Methods that list by scope and prefix: table, second field, and whether without a scope, too."""
WATCHED: Final = TABLES[:10]


def _of_items(name: str, make: Callable[..., Any], rest: tuple[Any, ...], rights: str) -> Ask:
    return _each(lambda c, at: _method(c, f"{name}_many")([make(*place, *rest) for place in at]), rights)


def _of_owner(name: str, make: Callable[..., Any], rest: tuple[Any, ...], rights: str, more: dict[str, Any]) -> Ask:
    return _each(
        lambda c, at: _method(c, f"{name}_many")(BROKER, EPOCH, [make(*place, *rest) for place in at], **more),
        rights,
        ("own", "broker", BROKER, ""),
    )


def _of_list(name: str, table: str, second: str, everywhere: bool) -> Ask:
    return _over(lambda c, s, p: _all(_method(c, name)(s or None, p)), table, second, everywhere=everywhere)


def _of_table(name: str, table: Any, make: Callable[..., Any]) -> dict[str, Ask]:
    """A declared table, or one of a family."""

    def transactions(at: list[Place]) -> list[Transaction]:
        return [Transaction(then=[Put(table, make(*place))], reads=[(table, place)]) for place in at]

    return {
        "get": _each(lambda c, at: c.table(table).get_many(at), f"read {name}"),
        "put": _each(lambda c, at: c.table(table).put_many([make(*place) for place in at]), f"write {name}"),
        "delete": _each(lambda c, at: c.table(table).delete_many(at), f"delete {name}"),
        "transact": _each(lambda c, at: c.tables.transact_many(transactions(at)), f"read {name}, write {name}"),
        **_of_listed(name, table, lambda c: c.table(table), table.key[1]),
    }


def _of_listed(name: str, table: Any, records: Callable[[Client], Any], second: str) -> dict[str, Ask]:
    return {
        "list": _over(lambda c, s, p: _all(records(c).list(*filter(None, [s]), prefix=p)), name, second),
        "count": _over(lambda c, s, p: _none(records(c).count(*filter(None, [s]), prefix=p)), name),
        "watch": _over(lambda c, s, p: _watch(c, table, tenant=s or None, prefix=p), name),
        "image": _over(lambda c, s, p: _image(c, table, s, p), name, second),
    }


def paths_of(kept: Any) -> dict[str, Ask]:
    """All that is asked, by name. ``kept``: the declared table."""
    found: dict[str, Ask] = {}
    for item in ITEMS:
        found[f"{item[0]}: {item[3]}"] = _of_items(*item)
    for owned in OWNED:
        found[f"{owned[0]}: {owned[3]}"] = _of_owner(*owned)
    for listed in LISTS:
        found[listed[0]] = _of_list(*listed)
    for name, table, make in (("topic", TOPICS, Topic), ("acl", ACLS, _acl), ("perf_auth", kept, Kept)):
        found |= {f"{name}: {verb}": ask for verb, ask in _of_table(name, table, make).items()}
    for table, second in ((RESOURCES, "resource"), (PARTITIONS, "resource")):
        records = partial(lambda name, c: getattr(c.assignments, name), f"{table.name}s")
        asks = _of_listed("assignment", table, records, second)
        found |= {f"{table.name}: {verb}": ask for verb, ask in asks.items()}
    for name in WATCHED:
        found[f"watch {name}"] = _over(partial(lambda n, c, s, p: _watch(c, n, tenant=s or None, prefix=p), name), name)
        found[f"snapshot {name}"] = _over(partial(lambda n, c, s, p: _rows(c, n, s, p), name), name)
    for name, second in (("session", "client_id"), ("kv", "key"), ("retained", "topic"), ("offset", "group")):
        found[f"image {name}"] = _over(partial(lambda n, c, s, p: _image(c, n, s, p), name), name, second)
    return found | {
        "perf_auth: list by an index of all scopes": _over(
            lambda c, s, p: _all(c.table(kept).list_by("by_tag", "t")), "perf_auth", "key"
        ),
        "perf_auth: list by an index": _over(
            lambda c, s, p: _all(c.table(kept).list_by("by_scope", s, "t", prefix=p)),
            *("perf_auth", "key"),
            everywhere=False,
        ),
        "sessions.list of a broker": _over(
            lambda c, s, p: _all(c.sessions.list(s or None, p, BROKER)), "session", "client_id"
        ),
        "wills.claim": _claim,
        "retained.match": _match,
        "leases.keys": _at(lambda c, s, k: c.leases.keys(s, k), "read lease", "read kv"),
        "offsets.list": _at(lambda c, s, k: c.offsets.list(s, k), "read offset"),
        "consumers.members": _at(lambda c, s, k: c.consumers.members(s, k), "read consumer"),
        "access.may": _may,
        "watch keys": _fixed(lambda c: _watch(c, "kv", keys=[m.KvKey("a", "k")]), ("read", "kv", "a", "k")),
        **_of_the_cluster(),
    }


def _acl(tenant: str, rule: str) -> Acl:
    return Acl(tenant, rule, "allow")


# --- the search -----------------------------------------------------------------------------------------------------


async def declared(admin: Client) -> Any:
    """The declared table."""
    indexes = {"by_tag": ("tag",), "by_scope": ("namespace", "tag")}
    return await admin.tables.declare(
        KEPT, Kept, key=("namespace", "key"), routing=("namespace",), indexes=indexes, kind="data"
    )


async def fill(admin: Client, kept: Any) -> None:
    """Write all records that are not there."""
    due = [(scope, DUE) for scope in SCOPES]
    will = m.SessionProperties(86_400, b"", m.Will("t", b"w"))
    taken = [m.SessionTakeoverItem(*place, False, m.SessionProperties(86_400, b"p")) for place in PLACES]
    taken += [m.SessionTakeoverItem(*place, False, will) for place in due]
    kinds = [*ITEMS, *(owned[:4] for owned in OWNED)]
    made = {name: [make(*place, *rest) for place in PLACES] for name, make, rest, _ in kinds}
    await asyncio.gather(
        admin.sessions.takeover_many(BROKER, EPOCH, taken),
        *(_method(admin, f"{name}_many")(made[name]) for name in FILLED),
        *(
            admin.table(table).put_many([record(*place) for place in PLACES])
            for table, record in ((TOPICS, Topic), (ACLS, _acl), (kept, Kept))
        ),
    )
    await asyncio.gather(
        admin.sessions.disconnect_many(BROKER, EPOCH, [m.SessionDisconnectItem(*place) for place in due]),
        admin.leases.attach_many(made["leases.attach"]),
        *(_method(admin, f"{name}_many")(BROKER, EPOCH, made[name]) for name in ("subscriptions.add", "inflight.put")),
    )


async def prepare(admin: Client) -> Any:
    """The records that stay, and the table."""
    kept = await declared(admin)
    await admin.brokers.register(BROKER, lease_s=_LEASE_S, at_least_epoch=EPOCH)
    await admin.roles.put("other", [])
    await admin.principals.put(APP, [])
    joined = await admin.consumers.join_many([JoinItem(*place, 60_000) for place in PLACES])
    joined.raise_for_error()
    made = await admin.assignments.create_many([ResourceCreate(*place, "topic") for place in PLACES])
    made.raise_for_error()
    await fill(admin, kept)
    return kept


def drawn(rng: random.Random) -> tuple[list[Grant], str]:
    """Random grants, and the scope that their role is given for."""

    def grant() -> Grant:
        rights = rng.sample(RIGHTS, rng.randint(1, 4), counts=[4, 3, 2, 2, 1])
        tables = rng.choice([[], ["*"], *([rng.sample([*TABLES, *CLUSTER], rng.randint(1, 9))] * 2)])
        scope = rng.choice(["*", "*", "a", "a*", "ab", "b", "b*", "z"])
        return Grant([*dict.fromkeys(rights)], tables, scope, rng.choice(["", "", "", "k", "k/", "x"]))

    own = [Grant(["own"], ["broker"])] * rng.randint(0, 1)
    return [*own, *(grant() for _ in range(rng.randint(1, 4)))], rng.choice(["*", "*", "*", "a", "a*", "b"])


async def give(admin: Client, nodes: Sequence[str], roles: list[Given], principal: str = APP) -> None:
    """Give a client these roles, and wait until each node knows."""
    await admin.principals.put(principal, roles)
    for node in nodes:
        for _ in range(_KNOWN_LOOKS):
            if (await admin.principals.may(principal=principal, node=node)).roles == roles:
                break
            await asyncio.sleep(0.005)
        else:
            raise ServerError(f"{node} does not hear of roles")


async def search(
    admin: Client, app: Client, nodes: Sequence[str], requests: int, seed: int, progress: Callable[[int], None]
) -> Found:
    """Send and judge so many requests."""
    roles, rng, found = random.Random(seed), random.Random(seed), Found()
    kept = await prepare(admin)
    paths = paths_of(kept)
    for turn in itertools.count():
        left = requests - sum(found.paths.values())
        if left <= 0 or sum(found.errors.values()) > requests:
            return found
        grants, scope = drawn(roles)
        await fill(admin, kept)
        await admin.roles.put(f"r{turn}", grants)
        await give(admin, nodes, [Given(f"r{turn}", scope)])
        if turn:
            await admin.roles.delete(f"r{turn - 1}")
        given = [(scope, grant) for grant in grants]
        allowed = cache(lambda need, given=given: may(given, *need))
        names = iter(rng.choices([*paths], k=min(ROUND, left)))

        async def worker(names: Any = names, allowed: Any = allowed) -> None:
            for name in names:
                try:
                    found.judge(name, await paths[name](app, rng), allowed)
                    progress(1)
                except MetadError as error:
                    found.errors[f"{name}: {error.name}"] += 1

        async with asyncio.TaskGroup() as workers:
            for _ in range(_IN_FLIGHT):
                workers.create_task(worker())
    raise AssertionError


# --- the cost, and the end of a right --------------------------------------------------------------------------------

_SPACES: Final = [f"n{n}" for n in range(6)]
_LOADS: Final = {
    "session.takeover": Load(verb="session.takeover", batch=1_000, in_flight=4),
    "restoring": Load(verb="session.takeover", batch=1_000, in_flight=4, restore=True),
    "kv.put": Load(verb="kv.put", batch=1, in_flight=128, singles=True),
}
_GONE_S: Final = 20.0


async def _until(refused: bool, call: Callable[[], Awaitable[Any]]) -> float:
    """When a call is first refused, or allowed: monotonic, in seconds."""
    while True:
        try:
            await call()
        except (PermissionDeniedError, UnauthenticatedError):
            if refused:
                return time.monotonic()
        else:
            if not refused:
                return time.monotonic()
        await asyncio.sleep(0.001)


async def _until_closed(watch: Watch[Any]) -> float:
    """When a watch ends."""
    with contextlib.suppress(PermissionDeniedError, UnauthenticatedError):
        async for _ in watch:
            pass
    return time.monotonic()


async def revoked_ms(
    admin: Client, app: Client, nodes: Sequence[str], changes: int, progress: Callable[[int], None]
) -> list[float]:
    """How long after the answer to each ``principals.put`` what it took away still was allowed: for each node what it
    says itself, for each namespace a read and a watch. Every second one denies everything. Milliseconds."""
    await admin.roles.put("in use", [Grant(["read"], ["cluster", "kv"])])
    await admin.kv.put_many([m.KvPutItem(space, "k", b"v") for space in _SPACES])
    calls: list[Callable[[], Awaitable[Any]]] = [
        *(partial(app.status, node) for node in nodes),
        *(partial(app.kv.get, space, "k") for space in _SPACES),
    ]
    found: list[float] = []
    for number in range(changes):
        await give(admin, nodes, [Given("in use")])
        async with asyncio.timeout(_GONE_S):
            await asyncio.gather(*(_until(False, call) for call in calls))
            watches = [app.watch("kv", tenant=space) for space in _SPACES]
            await asyncio.gather(*(watch.opened() for watch in watches))
            using = [asyncio.create_task(_until(True, call)) for call in calls]
            using += [asyncio.create_task(_until_closed(watch)) for watch in watches]
            await asyncio.sleep(0.02)
            await admin.principals.put(APP, [], denied=bool(number % 2))
            begin = time.monotonic()
            found += [max(0.0, end - begin) * 1_000 for end in await asyncio.gather(*using)]
        progress(1)
    return found


async def _begin_lives(target: str, epoch: int) -> None:
    """Register the brokers in whose names a load takes sessions over: others may not, where roles are checked."""

    async def begin(number: int) -> None:
        async with open_client(target) as client:
            await client.brokers.register(f"broker-{number}", lease_s=_LEASE_S, at_least_epoch=epoch)

    await asyncio.gather(*(begin(1 + number) for number in range(TAKEOVER_BROKERS)))


_TIMES: Final = 3
"""Two clusters of one kind differ by a few percent."""


async def _throughput(options: Auth, on: Stage, off: Stage) -> dict[str, Any]:
    """What authorization costs."""
    admin, given = await on.client("loads"), [Given("lives"), Given("load", TENANT), Given("load", "namespace-*")]
    await admin.roles.put("lives", [Grant(["own"], ["broker"], "broker-*")])
    await admin.roles.put("load", [Grant(["read", "write", "delete"], ["session", "kv"])])
    await give(admin, [member.name for member in on.members.all], given)
    first, second = (
        Side(target_of(f"metads://{one.members.endpoints}", certs=str(_fleet(one)), name="app"), one.members.all)
        for one in (on, off)
    )
    for stage in (on, off):
        await fill_sessions(await stage.client("fill"), epoch_now(), options.keys, 200, lambda _: None)
    loads = {name: replace(load, keys=options.keys) for name, load in _LOADS.items()}
    return await compared((first, second), loads, options.pairs, options.seconds, on.problems, _begin_lives)


# --- a greedy tenant ------------------------------------------------------------------------------------------------

_QUOTA: Final = 2_000
"""Items/s of each tenant at each node."""
_HONEST: Final = ("honest-0", "honest-1")
_GREEDY: Final = "greedy"
_OFFERED: Final = Load(verb="offset.commit", batch=10, in_flight=64, rate=0.9 * _QUOTA)
"""Of an honest tenant, as it would come: one that is late is late for all that comes after it."""
_ASKED: Final = Load(verb="offset.commit", batch=100, in_flight=256, tenant=_GREEDY)
"""Each asks again when the node says so, all the time."""
_AHEAD_S: Final = 3.0
"""The greedy one begins so long before the others, and ends as long after them."""


async def _shares(options: Auth, on: Stage) -> dict[str, Any]:
    """What two tenants get that stay below their quotas: alone, and beside a third that asks for far more than its own.
    All offsets are in one group, and so with one node."""
    admin, nodes, targets = await on.client("quotas"), [member.name for member in on.members.all], {}
    fleet = _fleet(on)
    await admin.roles.put("offsets", [Grant(["write"], ["offset"])])
    for tenant in (*_HONEST, _GREEDY):
        sites.client(tenant, fleet)
        targets[tenant] = target_of(f"metads://{on.members.endpoints}", certs=str(fleet), name=tenant)
        await give(admin, nodes, [Given("offsets", tenant)], f"metad://client/{tenant}")
        await admin.quotas.put(f"tenant/{tenant}", items_per_s=_QUOTA)
    made: dict[tuple[str, bool], list[Result]] = {}
    with output.progress("tenants beside a greedy one", 2 * options.pairs) as progress:
        for number, turn in product(range(options.pairs), (False, True)):
            beside = turn != bool(number % 2)
            greedy = None
            if beside:
                asked = window(targets[_GREEDY], _ASKED, options.seconds + 2 * _AHEAD_S)
                greedy = asyncio.create_task(asked)
            await asyncio.sleep(_AHEAD_S)
            loads = [window(targets[one], replace(_OFFERED, tenant=one), options.seconds) for one in _HONEST]
            results = await asyncio.gather(*loads)
            for tenant, result in zip(_HONEST, results, strict=True):
                made.setdefault((tenant, beside), []).append(result)
                if result.errors:
                    on.problems.append(f"{tenant}: {result.errors}")
            if greedy is not None:
                await greedy
            progress(1)
    refused = sum(use.refused for use in await admin.quotas.use(f"tenant/{_GREEDY}"))
    if not refused:
        on.problems.append(f"{_GREEDY}: nothing was refused")
    return _compare_shares(made) | {"greedy_refused": refused}


def _compare_shares(made: dict[tuple[str, bool], list[Result]]) -> dict[str, Any]:
    """Of the tenant that has lost most. The latencies are those of all windows, for one has too few for a p99."""
    rates = [
        output.median_ratio(
            [(a.items_per_s(), b.items_per_s()) for a, b in zip(made[who, True], made[who, False], strict=True)]
        )
        for who in _HONEST
    ]
    merged = {key: Latencies.merged(one.latencies.encode() for one in results) for key, results in made.items()}
    p99_ms = {key: latencies.percentile_ms(99) for key, latencies in merged.items()}
    return {
        "quota_throughput_ratio": min(rates),
        "quota_p99_ratio": max(p99_ms[who, True] / p99_ms[who, False] for who in _HONEST),
        "quota_p99_ms": {f"{who} {'beside' if beside else 'alone'}": value for (who, beside), value in p99_ms.items()},
    }


# --- the command ----------------------------------------------------------------------------------------------------


def _fleet(stage: Stage) -> Path:
    """The directory of the nodes' certificates, with one for the client whose roles change."""
    assert stage.members.certs is not None
    sites.client("app", stage.members.certs)
    return stage.members.certs


async def _play(options: Auth, checking: Path, without: Path, problems: list[str]) -> dict[str, Any]:
    """The load comes to nodes that have had nothing else to do, with authorization and without."""
    judged = await staged(options.shape, checking, problems, partial(_judged, options))
    shares = await staged(options.shape, checking, problems, partial(_shares, options))
    times, configs = min(_TIMES, options.pairs), (checking, without)
    costs = await side_by_side(options.shape, configs, problems, partial(_throughput, options), times)
    ratios = mean_ratios(costs, "throughput_ratios")
    return (
        judged
        | shares
        | costs[-1]
        | {
            "throughput_ratio": min(ratios.values()),
            "throughput_ratios": ratios,
            "cpu_ratios": mean_ratios(costs, "cpu_ratios"),
        }
    )


async def _judged(options: Auth, stage: Stage) -> dict[str, Any]:
    nodes, seed = [member.name for member in stage.members.all], options.seed or 0
    admin, brokers = await stage.client("admin"), await stage.client("broker")
    await brokers.brokers.register(LIFE)
    url, tls = f"metads://{stage.members.endpoints}", sites.client("app", _fleet(stage))
    app = await stage.stack.enter_async_context(connect(url, Options(tls=tls, deadline_s=60.0, client_name="app")))
    with output.progress("judge requests", options.requests) as progress:
        begin_s = time.monotonic()
        found = await search(admin, app, nodes, options.requests, seed, progress)
        took_s = time.monotonic() - begin_s
    with output.progress("take rights away", options.changes) as progress:
        gone = sorted(await revoked_ms(admin, app, nodes, options.changes, progress))
    await stage.health.settle()
    return {
        "paths": len(found.paths),
        "requests": sum(found.paths.values()),
        "leaks": found.leaks,
        "wrong_refusals": found.wrong_refusals,
        "allowed": sum(found.allowed.values()),
        "requests_per_s": sum(found.paths.values()) / took_s,
        "requests_by_path": dict(sorted(found.paths.items())),
        "never_allowed": sorted(set(found.paths) - {path for path, count in found.allowed.items() if count}),
        "unanswered": dict(found.errors),
        "examples": found.examples,
        "revoke_ms_p50": gone[len(gone) // 2],
        "revoke_ms_p99": gone[len(gone) * 99 // 100],
        "revoke_ms_max": gone[-1],
    }


def run(options: Auth) -> int:
    """Returns the exit code: 1 if something was shown or changed without a right, or refused in spite of one, or a node
    was not well. Raises UsageError."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        directory, base = Path(made), options.server_config
        files = []
        for checked in ("true", "false"):
            (directory / checked).mkdir()
            security = {"authorization": checked, "administrators": '["perf"]'}
            files.append(configured(base, directory / checked, {"security": security}))
        found = run_async(_play(options, files[0], files[1], problems))
    return conclude("auth", reported(options, found | {"problems": problems}), options, "leaks", "wrong_refusals")
