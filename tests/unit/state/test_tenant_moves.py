"""A tenant moves between two clusters beside writers, through lost and late messages and the death of whoever moves it,
at any step: no write is accepted by both clusters, none is lost, and all rows end as they were."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from state_rig import Group, command_of

from metad.config import DedupeConfig
from metad.state.cluster.tenancy import tenant_at
from metad.state.cluster.tenant_ends import REST, RETAINED, SESSIONS, WILLS, TenantEnds
from metad.state.cluster.tenant_moves import TenantMoves
from metad.state.core.due import DUE, split_due
from metad.state.moving import tenant_transfer
from metad.state.moving.tenant_transfer import NOBODY
from metad.state.registry import VERBS
from metad.storage import keys
from metad_backup import moving
from metad_backup.moving import MoveError, cancel, move
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import slot_bits
from metad_wire.errors import ConflictError, MetadError, NotFoundError, TenantMovedError, TenantMovingError
from metad_wire.operator import backup as bak
from metad_wire.operator.moving import TenantCopy, TenantPosition, TenantPut, TenantStep
from metad_wire.tables.feature import FEATURES
from metad_wire.tables.kv import KV
from metad_wire.tables.session import SESSION
from metad_wire.tables.tenants import TenantsEnd, TenantsRest
from metad_wire.tables.will import WillClaim, WillWait

NOW_MS = 1_700_000_000_000
NONE: frozenset[int] = frozenset()


class Died(Exception):
    """Whoever moves the tenant."""


class Cluster:
    """What a move asks of a cluster, over groups without nodes. ``shape``: how many groups of each kind share the
    slots."""

    def __init__(self, id: str, shape: dict[str, int], ahead_ms: int = 0) -> None:
        self.id = id
        self.groups: dict[str, Group] = {}
        for kind, count in shape.items():
            for ordinal in range(count):
                slots = slot_bits(range(ordinal, 1024, count))
                self.groups[f"{kind}-{ordinal}"] = Group(kind, ordinal, DedupeConfig(), initial_slots=slots)
        for group in self.groups.values():
            group.now_ms = NOW_MS + ahead_ms
        self.cluster = self.tenants = self.backups = self.tables = self
        self.before: Any = lambda: None
        self.features = [*FEATURES]
        """What the software of its node knows."""

    def do(self, group: Group, method: Any, body: Any, holder: str = "somebody") -> Any:
        command = command_of(method, body)
        command.holder = holder
        (outcome,) = group.propose([(command, None)], group.now_ms)
        group.apply(len(group.in_flight))
        if isinstance(outcome, MetadError):
            raise outcome
        assert isinstance(outcome, bytes)
        return method.decode_reply(outcome)

    def at(self, kind: str, tenant: str, name: str, kv: bool = True) -> Group:
        item: Any = m.KvKey(tenant, name) if kv else m.SessionKey(tenant, name)
        slot = next(iter((KV if kv else SESSION).crcs([item]))) % 1024
        count = sum(one.group_id.kind == kind for one in self.groups.values())
        return self.groups[f"{kind}-{slot % count}"]

    # --- as a client's ---

    async def map(self) -> Any:
        groups = [c.GroupRecord(*one.group_id, ["n1"], "n1") for one in self.groups.values()]
        nodes = [SimpleNamespace(node_id="n1", features=self.features)]
        return SimpleNamespace(map=SimpleNamespace(cluster_id=self.id, groups=groups, nodes=nodes))

    async def list(self) -> Any:
        for _ in ():
            yield _

    async def use(self, tenant: str) -> list[Any]:
        return [SimpleNamespace(table="kv", records=1)] * bool(self.rows(tenant))

    async def move_step(self, group: str, step: TenantStep, **_: Any) -> Any:
        return await self._write(group, methods.GROUP_MOVE_TENANT, step)

    async def move_rows(self, group: str, rows: TenantPut, **_: Any) -> Any:
        return await self._write(group, methods.GROUP_PUT_TENANT, rows)

    async def _write(self, group: str, method: Any, body: Any) -> Any:
        await asyncio.sleep(0)
        self.before()
        return self.do(self.groups[group], method, body)

    async def copy_rows(self, group: str, page: TenantCopy, **_: Any) -> Any:
        await asyncio.sleep(0)
        self.before()
        verb, one = VERBS[methods.GROUP_COPY_TENANT.code], self.groups[group]
        assert verb.read is not None
        return verb.read(one.machine.reader, command_of(methods.GROUP_COPY_TENANT, page))

    async def log(self, node: str, group: str, after: int, size: int, *, deadline_s: float) -> bak.BackupEntries:
        await asyncio.sleep(0)
        self.before()
        one = self.groups[group]
        return bak.BackupEntries(one.log[after : after + 7], one.last, 0, self.id)

    def rows(self, tenant: str) -> dict[bytes, bytes]:
        """All of a tenant, in all groups."""
        found: dict[bytes, bytes] = {}
        for group in self.groups.values():
            for key, value in group.engine.scan(group.prefix, keys.after_prefix(group.prefix), 10**6):
                if tenant_at(key[3:], NONE) == keys.text(tenant):
                    assert key[3:] not in found
                    found[key[3:]] = value
        return found


class Writers:
    """Of two tenants, at both clusters at once: each write goes to both, and what was accepted is noted."""

    def __init__(self, seed: int, *clusters: Cluster) -> None:
        self.random = random.Random(seed)
        self.clusters = clusters
        self.accepted: dict[tuple[str, str], tuple[str, bytes]] = {}
        """(namespace, key) -> the cluster that accepted the last write, and the value."""
        self.number = 0
        self.refused = 0

    def some(self) -> None:
        for _ in range(self.random.randrange(3)):
            self.one()

    def one(self) -> None:
        self.number += 1
        tenant, name = self.random.choice("tto"), f"k{self.random.randrange(12)}"
        what = self.random.randrange(6)
        took = []
        for one in self.clusters if tenant == "t" else self.clusters[:1]:
            try:
                if self._write(one, tenant, name, what):
                    took.append(one.id)
            except TenantMovingError:
                self.refused += 1
            except TenantMovedError:
                self.refused += 1
        assert len(took) <= 1, f"write {self.number} was accepted by {took}"

    def _write(self, at: Cluster, tenant: str, name: str, what: int) -> bool:
        """Whether it was accepted. Nobody writes at the second cluster before the tenant comes."""
        group = at.at("data", tenant, name, what not in (1, 2))
        if at is not self.clusters[0] and group.machine.parts[TenantMoves].newest(tenant) is None:
            raise TenantMovingError
        value = b"%d" % self.number
        if what == 0:
            reply = at.do(group, methods.KV_DELETE, methods.KV_DELETE.body([m.KvKey(tenant, name)]))
        elif what == 1:
            items = [m.SessionTakeoverItem(tenant, name, False, m.SessionProperties(60, value, m.Will("w", b"x", 10)))]
            reply = at.do(group, methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))
        elif what == 2:
            body = m.SessionDisconnect("b", 1, [m.SessionDisconnectItem(tenant, name)])
            reply = at.do(group, methods.SESSION_DISCONNECT, body)
        else:
            reply = at.do(group, methods.KV_PUT, methods.KV_PUT.body([m.KvPutItem(tenant, name, value)]))
        codes = {error.code for error in reply.errors}
        if TenantMovingError.code in codes:
            raise TenantMovingError
        if TenantMovedError.code in codes:
            raise TenantMovedError(reply.errors[0].message)
        if what == 0 and not codes - {NotFoundError.code}:
            self.accepted[tenant, name] = at.id, b""
        elif what >= 3:
            assert not codes
            self.accepted[tenant, name] = at.id, value
        return not codes

    def missed(self, tenant: str, at: Cluster) -> list[str]:
        found = []
        for (namespace, name), (_, value) in self.accepted.items():
            if namespace != tenant:
                continue
            reply = _read(at, at.at("data", tenant, name), methods.KV_GET, methods.KV_GET.body([m.KvKey(tenant, name)]))
            record = reply.found[0]
            if (b"" if record is None else record.value) != value:
                found.append(name)
        return found


def _read(at: Cluster, group: Group, method: Any, body: Any) -> Any:
    verb = VERBS[method.code]
    assert verb.read is not None
    reply = verb.read(group.machine.reader, command_of(method, body))
    return method.decode_reply(methods.encode(reply))


def two(here: int = 2, there: int = 3, ahead_ms: int = 0) -> tuple[Cluster, Cluster]:
    return (
        Cluster("here", {"metadata": 1, "data": here, "offset": 1}),
        Cluster("there", {"metadata": 1, "data": there, "offset": 2}, ahead_ms),
    )


def fill(at: Cluster, count: int = 40) -> None:
    writers = Writers(1, at)
    for _ in range(count):
        writers.one()


def comparable(rows: dict[bytes, bytes], ahead_ms: int = 0) -> dict[bytes, Any]:
    """Rows of two clusters: without who owned sessions, and with times of one log."""
    found: dict[bytes, Any] = {}
    for key, value in rows.items():
        if key[0] == SESSION.rows["owner"]:
            said = _decode_owner(value)
            times = [t and t + ahead_ms for t in (said.disconnected_ms, said.expires_ms, said.will_ms)]
            found[key] = (said.connected, None if said.connected else said.broker, times)
        elif key[0] == DUE:
            due = split_due(b"\0\0\0" + key)
            found[b"due" + bytes([due.kind]) + due.session] = due.at_ms + ahead_ms
        else:
            found[key] = value
    return found


def _decode_owner(value: bytes) -> m.SessionOwner:
    return msgspec.msgpack.decode(value, type=m.SessionOwner)


async def moved(here: Cluster, there: Cluster, tell: Any = lambda _: None) -> Any:
    return await move(here, there, "t", address="there:1", tell=tell)  # type: ignore[arg-type]


async def test_all_rows_come_as_they_are_and_go_on_there() -> None:
    here, there = two(1, ahead_ms=3_600_000)
    fill(here)
    before, others = here.rows("t"), here.rows("o")
    done = await moved(here, there)
    assert done.rows >= len(before)
    assert comparable(there.rows("t")) == comparable(before, 3_600_000)
    assert here.rows("o") == others
    assert there.rows("o") == {}
    assert here.rows("t") == before  # until it is ended there
    group = here.at("data", "t", "k1")
    with pytest.raises(TenantMovedError, match="there:1"):
        here.do(group, methods.SESSION_END_TENANT, m.SessionEndTenant("t", False, False))
    reply = here.do(
        group, methods.KV_PUT, methods.KV_PUT.body([m.KvPutItem("t", "k1", b""), m.KvPutItem("o", "k", b"")])
    )
    assert [(error.index, error.code) for error in reply.errors] == [(0, TenantMovedError.code)]


async def test_connected_sessions_are_of_nobody_and_revisions_go_on() -> None:
    here, there = two(1)
    group = here.at("data", "t", "s", kv=False)
    for _ in range(50):
        here.do(group, methods.KV_PUT, methods.KV_PUT.body([m.KvPutItem("o", "k", b"v")]))
    items = [m.SessionTakeoverItem("t", "s", False, m.SessionProperties(60, b"p"))]
    here.do(group, methods.SESSION_TAKEOVER, m.SessionTakeover("b", 7, items))
    await moved(here, there)
    target = there.at("data", "t", "s", kv=False)
    owner = _decode_owner(
        target.engine.get(keys.table_prefix(target.prefix, SESSION.rows["owner"]) + keys.text2("t", "s")) or b""
    )
    assert (owner.connected, owner.broker) == (True, NOBODY)
    (found,) = _read(there, target, methods.SESSION_GET, methods.SESSION_GET.body([m.SessionKey("t", "s")])).found
    assert not found.connected  # that life is over
    assert target.machine.revision > group.last
    reply = there.do(
        target, methods.SESSION_TAKEOVER, m.SessionTakeover("b", 3, items)
    )  # its own lives are as they were
    assert reply.errors == []


@pytest.mark.parametrize("seed", range(30))
async def test_it_goes_on_beside_writers_wherever_who_moves_it_dies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_transfer, "_PAGE_ROWS", 3)
    monkeypatch.setattr(moving, "_ROWS", 2)
    here, there = two(*random.Random(seed).choice([(1, 1), (2, 3), (3, 2)]), ahead_ms=seed * 1_000 - 20_000)
    fill(here)
    chance = random.Random(seed)
    writers = Writers(seed, here, there)
    here.before = there.before = writers.some
    deaths, refused = chance.randrange(6), ""
    while True:

        def tell(_: Any) -> None:
            nonlocal deaths
            if deaths and chance.random() < 0.15:
                deaths -= 1
                raise Died

        try:
            await moved(here, there, tell)
            break
        except Died:
            if chance.random() < 0.2:
                try:
                    await cancel(here, there, "t", address="there:1")  # type: ignore[arg-type]
                    assert there.rows("t") == {}
                    assert writers.missed("t", here) == []
                except MoveError as error:
                    refused = str(error)
        except MoveError as error:
            refused = str(error)
            break
    assert not refused or "already" in refused or "has moved" in refused
    assert writers.refused
    assert writers.missed("t", there) == []
    assert writers.missed("o", here) == []
    for _ in range(20):
        writers.one()
    assert writers.missed("t", there) == []


def step(at: Cluster, name: str, step: str, attempt: int = 1, move: str = "m1", **fields: Any) -> Any:
    return at.do(
        at.groups[name],
        methods.GROUP_MOVE_TENANT,
        TenantStep(step, "t", move, attempt, **{"other": "there:1"} | fields),
    )


async def test_an_attempt_that_was_given_up_cannot_end() -> None:
    here, there = two(1, 1)
    fill(here)
    with pytest.raises(Died):
        await moved(here, there, _dies_at("freeze"))
    state = step(here, "data-0", "look").state
    came = {"revision": 0, "frozen": {"data-0": state.index}}
    await cancel(here, there, "t", address="there:1")  # type: ignore[arg-type]
    for attempt in (state.attempt, state.attempt + 1_000_000_000):
        with pytest.raises(ConflictError):
            step(there, "data-0", "came", attempt, state.move, **came)
        with pytest.raises(ConflictError):
            step(here, "data-0", "freeze", attempt, state.move)
    fill(here, 5)


def _dies_at(what: str) -> Any:
    def tell(progress: Any) -> None:
        if progress.what == what:
            raise Died

    return tell


async def test_what_is_deleted_behind_a_page_that_came_does_not_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "_ROWS", 1)  # each is put at once
    here, there = two(1, 1)
    fill(here)

    def tell(progress: moving.Progress) -> None:
        if there.rows("t"):
            raise Died

    with pytest.raises(Died):
        await moved(here, there, tell)
    names = [keys.split_text(key, 1 + len(keys.text("t")))[0] for key in there.rows("t") if key[0] == KV.rows["record"]]
    assert names
    here.do(here.groups["data-0"], methods.KV_DELETE, methods.KV_DELETE.body([m.KvKey("t", name) for name in names]))
    await moved(here, there)
    assert comparable(there.rows("t")) == comparable(here.rows("t"))


async def test_steps_of_earlier_attempts_are_void() -> None:
    here, there = two(1, 1)
    fill(here)
    step(here, "data-0", "leave", 5)
    step(there, "data-0", "come", 5, times={"data-0": NOW_MS})
    step(here, "data-0", "leave", 6)
    with pytest.raises(ConflictError, match="void"):
        step(here, "data-0", "freeze", 5)
    with pytest.raises(ConflictError, match="void"):
        step(here, "data-0", "leave", 5)
    index = step(here, "data-0", "freeze", 6).state.index
    rows = TenantPut("t", "m1", 5, 1, {}, {"data-0": TenantPosition(b"", True, index)})
    there.do(there.groups["data-0"], methods.GROUP_PUT_TENANT, rows)
    step(there, "data-0", "come", 6, times={"data-0": NOW_MS})
    for late in ("come", "came", "give_up"):
        with pytest.raises(ConflictError, match=r"void|cannot be given up"):
            step(there, "data-0", late, 5, frozen={"data-0": index})
    step(there, "data-0", "came", 6, frozen={"data-0": index})
    with pytest.raises(ConflictError, match="cannot be given up"):
        step(there, "data-0", "give_up", 6)
    step(here, "data-0", "left", 6, other="there:1")
    with pytest.raises(ConflictError, match="cannot be given up"):
        step(here, "data-0", "thaw", 6)


async def test_nothing_comes_where_not_everything_was_followed() -> None:
    here, there = two(1, 1)
    fill(here)
    with pytest.raises(Died):
        await moved(here, there, _dies_at("follow"))
    state = step(here, "data-0", "look").state
    frozen = step(here, "data-0", "freeze", state.attempt, state.move).state
    fill_others = methods.KV_PUT.body([m.KvPutItem("o", "k", b"v")])
    here.do(here.groups["data-0"], methods.KV_PUT, fill_others)
    with pytest.raises(ConflictError, match="not everything"):
        step(there, "data-0", "came", state.attempt, state.move, frozen={"data-0": frozen.index})
    with pytest.raises(ConflictError, match="other groups"):
        step(there, "data-0", "came", state.attempt, state.move, frozen={})


async def test_wills_of_others_are_claimed_while_a_tenant_is_frozen() -> None:
    here, _ = two(1, 1)
    group = here.groups["data-0"]
    for tenant in "to":
        items = [m.SessionTakeoverItem(tenant, "c", False, m.SessionProperties(60, b"", m.Will("w", b"x")))]
        here.do(group, methods.SESSION_TAKEOVER, m.SessionTakeover("b", 1, items))
        gone = [m.SessionDisconnectItem(tenant, "c")]
        assert here.do(group, methods.SESSION_DISCONNECT, m.SessionDisconnect("b", 1, gone)).errors == []
    step(here, "data-0", "leave")
    step(here, "data-0", "freeze")

    def claimed() -> list[str]:
        reply = here.do(group, methods.WILL_CLAIM, WillClaim("b", 1, 10_000))
        return [one.tenant for one in reply.claimed]

    assert claimed() == ["o"]
    assert not _read(here, group, methods.WILL_WAIT, WillWait("b", 1, 0)).claimable
    step(here, "data-0", "thaw")
    assert claimed() == ["t"]


async def test_a_move_is_given_up_though_others_wrote_where_it_was_to_come() -> None:
    here, there = two(1, 1)
    fill(here)
    with pytest.raises(Died):
        await moved(here, there, _dies_before(there))
    fill(there, 60)
    before = there.rows("t")
    assert await cancel(here, there, "t", address="there:1") == 0  # type: ignore[arg-type]
    assert there.rows("t") == before
    fill(here, 5)


def _dies_before(at: Cluster) -> Any:
    """Have whoever moves the tenant die in front of its first step there."""

    def before() -> None:
        at.before = lambda: None
        raise Died

    at.before = before
    return lambda _: None


async def test_rows_of_others_and_late_batches_are_refused() -> None:
    _, there = two(1, 1)
    step(there, "data-0", "come", 5, times={"data-0": NOW_MS})
    group = there.groups["data-0"]
    key = b"\x30" + keys.text2("t", "k")

    def put(batch: int, attempt: int = 5, rows: Any = None) -> Any:
        body = TenantPut("t", "m1", attempt, batch, {key: b"1"} if rows is None else rows)
        return there.do(group, methods.GROUP_PUT_TENANT, body)

    put(1)
    put(1, rows={key: b"late"})
    assert there.rows("t") == {key: b"1"}
    for wrong, why in (
        ({b"\x30" + keys.text2("o", "k"): b""}, "no row of tenant"),
        ({b"\x00slots": b""}, "no row of tenant"),
        ({b"\x30zzz": b""}, "no key"),
    ):
        with pytest.raises(ConflictError, match=why):
            put(2, rows=wrong)
    with pytest.raises(ConflictError, match="follows"):
        put(3)
    with pytest.raises(ConflictError, match="void"):
        put(2, attempt=4)
    with pytest.raises(ConflictError, match="comes from"):
        step(there, "data-0", "come", 6, "m2", times={"data-0": NOW_MS})
    with pytest.raises(ConflictError, match="not dropped"):
        step(there, "data-0", "give_up", 5)


async def test_it_comes_only_where_it_is_not() -> None:
    here, there = two(1, 1)
    fill(here)
    fill(there, 60)
    with pytest.raises(MoveError, match="it comes only where it is not"):
        await moved(here, there)
    assert step(here, "metadata-0", "look").state is None
    with pytest.raises(ConflictError, match="it comes only where it is not"):
        step(there, "data-0", "come", times={"data-0": NOW_MS})


async def test_it_does_not_go_where_older_nodes_would_serve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "_SAID_S", 0.0)
    for number in (0, 1):
        clusters = two(1, 1)
        fill(clusters[0])
        clusters[number].features = []
        with pytest.raises(MoveError, match=r"n1 of cluster .* would serve a tenant on its way: upgrade them first"):
            await moved(*clusters)
        assert step(clusters[0], "metadata-0", "look").state is None


async def test_no_slots_move_meanwhile_and_a_new_group_learns_who_has_left() -> None:
    here, there = two(2, 1)
    fill(here)
    with pytest.raises(Died):
        await moved(here, there, _dies_at("copy"))
    source, target = here.at("data", "t", "k1"), Group("data", 9, DedupeConfig(), initial_slots=bytes(128))
    slots = slot_bits([next(iter(KV.crcs([m.KvKey("t", "k1")]))) % 1024])
    with pytest.raises(ConflictError, match="no slots move meanwhile"):
        here.do(source, methods.GROUP_COMMAND, c.GroupCommand("seal", 1, 1, 0, slots))
    await moved(here, there)
    carried = source.machine.parts[TenantMoves].carried()
    assert [one.tenant for one in carried] == ["t"]
    here.do(target, methods.GROUP_COMMAND, c.GroupCommand("open", 1, 1, 0, slots))
    here.do(source, methods.GROUP_COMMAND, c.GroupCommand("seal", 1, 1, 0, slots))
    here.do(target, methods.GROUP_COMMAND, c.GroupCommand("adopt", 1, 1, 1, slots, moved=carried))
    reply = here.do(target, methods.KV_PUT, methods.KV_PUT.body([m.KvPutItem("t", "k1", b"v")]))
    assert [error.code for error in reply.errors] == [TenantMovedError.code]


async def test_what_has_left_is_ended_where_it_was_and_may_come_back() -> None:
    here, there = two(1, 1)
    fill(here)
    await moved(here, there)
    for group in here.groups.values():
        here.do(group, methods.TENANTS_END, TenantsEnd("t", True))
    group = here.groups["data-0"]
    with pytest.raises(TenantMovedError):
        here.do(group, methods.SESSION_END_TENANT, m.SessionEndTenant("t", False, False))
    for group in here.groups.values():
        _end_all(here, group)
        assert not group.machine.parts[TenantEnds].pending()
        assert step(here, group.name, "look").state is None, REST
    assert here.rows("t") == {}
    await move(there, here, "t", address="here:1")  # type: ignore[arg-type]
    assert comparable(here.rows("t")).keys() == comparable(there.rows("t")).keys()


def _end_all(at: Cluster, group: Group) -> None:
    """As the chores of a node do it."""
    while pending := group.machine.parts[TenantEnds].pending():
        (one,) = pending
        if one.end.phase == REST:
            records = [key for key in at.rows("t") if key[0] == 0x30]
            names = [keys.split_text(key, 1 + len(keys.text("t")))[0] for key in records]
            if names and group.name.startswith("data"):
                body = methods.KV_DELETE.body([m.KvKey("t", name) for name in names])
                assert at.do(group, methods.KV_DELETE, body, holder="").errors == []
            at.do(group, methods.TENANTS_REST, TenantsRest(one.row, REST), holder="")
            continue
        items: list[c.SessionEndItem] = []
        if one.end.phase == SESSIONS:
            owners = [key for key in at.rows("t") if key[0] == SESSION.rows["owner"]]
            items = [c.SessionEndItem(*SESSION.fields_of(key[1:], 2)) for key in sorted(owners)]
        assert one.end.phase in (SESSIONS, WILLS, RETAINED)
        body = c.SessionEndStep(items, one.row, one.end.phase, one.end.cursor, b"\xff", True)
        assert at.do(group, methods.SESSION_END_STEP, body, holder="").done


def test_while_nobody_moves_no_request_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group("data", 0, DedupeConfig())
    monkeypatch.setattr("metad.state.machine.admitted", None)
    monkeypatch.setattr("metad.state.machine.check_writes", None)
    at = Cluster("here", {})
    assert at.do(group, methods.KV_PUT, methods.KV_PUT.body([m.KvPutItem("t", "k", b"v")])).errors == []
