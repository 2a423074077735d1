"""What an import writes of each table, by the verbs that every client has: so roles, quotas and all rules hold for it.

A record that is there already, and the same, is left alone; one that is there and differs is refused, unless it is to
be overwritten. So an import that broke off, and is begun again, does nothing twice.

A session comes as one whose client is away: the import takes it over as a broker of its own, and disconnects it for as
long as it had left. What it was to its brokers before (owner, epoch, attachments) is theirs, and does not come. Its
subscriptions follow while that broker owns it; a client that comes back in between has the session that it finds.
"""

from __future__ import annotations

import asyncio
import time
import typing
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from metad_wire import messages as m
from metad_wire.families import FAMILIES, KNOWN
from metad_wire.table import Table
from metad_wire.tables.access import PrincipalRoles, Role
from metad_wire.tables.inflight import Inflight
from metad_wire.tables.lease import LeaseGrantItem, LeaseKey, TtlMs
from metad_wire.tables.offset import KnownGroup
from metad_wire.tables.retained import Qos, RetainedKey, RetainedPutItem
from metad_wire.tables.sequence import SequenceAddItem, SequenceKey
from metad_wire.tables.subscription import Subscription
from metad_wire.tables.table import PlainTable
from metad_wire.tables.tenants import Quota
from metad_wire.text.fields import U32, U53, U63, ClientId, OwnTopic

from ...broker_life import BrokerLife
from ...client import Client
from ...errors import ConflictError, FencedError, MetadError, NotOwnerError
from ...results import ReadResult

Found = TypeVar("Found")
Errors = dict[int, MetadError]
"""By position."""
_PARTITION = next(field.type for field in msgspec.structs.fields(m.OffsetKey) if field.name == "partition")


class Job:
    """What the kinds share."""

    def __init__(self, m: Client, name: str, exported_ms: int, *, discard_wills: bool, family: str = "") -> None:
        self.m = m
        self.name = name
        """Of the broker that takes sessions over."""
        self._family = family
        self.exported_ms = exported_ms
        """Deadlines count from here, by the clock of who exported."""
        self.discard_wills = discard_wills
        self._life: BrokerLife | None = None
        self._registering = asyncio.Lock()
        self.listed: dict[str, dict[str, Any]] = {}
        """What there is of tables that are only listed, by their names."""

    async def life(self) -> BrokerLife:
        """The broker that sessions come to."""
        async with self._registering:
            if self._life is None:
                self._life = await self.m.brokers.register(self.name)
            return self._life

    def is_own(self, broker: str) -> bool:
        """Whether a broker is this one, or that of an earlier job of its family: such brokers serve no clients."""
        return broker == self.name or bool(self._family and broker.startswith(self._family))

    async def close(self) -> None:
        """The sessions stay; the broker is gone."""
        if self._life is not None:
            await self._life.end()

    def left_s(self, at_ms: int) -> int:
        """How many seconds a deadline was away; below 1: it was over."""
        return _whole_s(at_ms - self.exported_ms)

    def is_over(self, at_ms: int) -> bool:
        """Whether a deadline, if there is one, was over."""
        return bool(at_ms) and self.left_s(at_ms) < 1


def _whole_s(ms: int) -> int:
    return -(-ms // 1_000)


class Kind(NamedTuple):
    """A table, as an import writes it. All functions take and return columns."""

    name: str
    line: type[Any]
    """A line of its file."""
    found: Callable[[Job, list[Any]], Awaitable[Sequence[Any]]]
    """What is there of each; None: nothing."""
    same: Callable[[Any, Any], bool]
    """Whether a line says what is there."""
    write: Callable[[Job, list[tuple[Any, Any]]], Awaitable[Errors]]
    """Write lines, each beside what was found."""
    over: Callable[[Job, Any], bool] = lambda job, line: False
    """Whether it would end at once."""
    declared: Table[Any] | None = None
    """The table, if a program has declared it."""

    @property
    def others(self) -> frozenset[str]:
        """The fields that a line may have, and that say nothing of what is written."""
        table = self.declared or KNOWN[self.name.partition(".")[0]]
        records = [table.record, *(shown.record for shown in table.shows.values())]
        structs = [typing.get_origin(one) or one for one in records]
        return frozenset({"slot", "revision"}.union(*(getattr(one, "__struct_fields__", ()) for one in structs)))


NOT_IMPORTED: Final = {
    "broker": "lives are of the cluster that has registered them",
    "cluster": "the map is of the cluster itself",
    "consumer": "members join again",
    "consumer.group": "it begins with its members",
    "plan": "an order is about the brokers of its cluster",
    "resource": "create it with `metadctl topics assign` or m.assignments: metad places its partitions",
    "partition": "metad places partitions itself",
}
"""Tables that are exported for whoever reads them, and why no import writes them."""


# --- key-values, leases, sequences ------------------------------------------------------------------------------------


class KvLine(msgspec.Struct, frozen=True):
    """Says what one line of ``kv`` has."""

    namespace: str
    key: str
    value: bytes
    lease: str = ""


async def _kv_found(job: Job, lines: list[KvLine]) -> Sequence[m.Kv | None]:
    return _read(await job.m.kv.get_many([m.KvKey(line.namespace, line.key) for line in lines]))


async def _kv_write(job: Job, lines: list[tuple[KvLine, m.Kv | None]]) -> Errors:
    async def put(some: list[tuple[KvLine, m.Kv | None]]) -> Errors:
        items = [m.KvPutItem(line.namespace, line.key, line.value, _version(old)) for line, old in some]
        return (await job.m.kv.put_many(items, lease=some[0][0].lease)).errors

    return await _in_groups(lines, lambda one: one[0].lease, put)


class LeaseLine(msgspec.Struct, frozen=True):
    """Says what one line of ``lease`` has. It has a whole new term to be kept alive in."""

    namespace: str
    lease: str
    ttl_ms: TtlMs
    holder: str = ""
    attributes: bytes = b""


async def _lease_found(job: Job, lines: list[LeaseLine]) -> Sequence[Any]:
    return _read(await job.m.leases.get_many([LeaseKey(line.namespace, line.lease) for line in lines]))


async def _lease_write(job: Job, lines: list[tuple[LeaseLine, Any]]) -> Errors:
    if old := [LeaseKey(line.namespace, line.lease) for line, found in lines if found is not None]:
        await job.m.leases.revoke_many(old)
    items = [LeaseGrantItem(one.namespace, one.ttl_ms, one.lease, one.holder, one.attributes) for one, _ in lines]
    return (await job.m.leases.grant_many(items)).errors


class SequenceLine(msgspec.Struct, frozen=True):
    """Says what one line of ``sequence`` has."""

    namespace: str
    sequence: str
    value: U63


async def _sequence_found(job: Job, lines: list[SequenceLine]) -> Sequence[Any]:
    return _read(await job.m.sequences.get_many([SequenceKey(line.namespace, line.sequence) for line in lines]))


async def _sequence_write(job: Job, lines: list[tuple[SequenceLine, Any]]) -> Errors:
    items = [
        SequenceAddItem(one.namespace, one.sequence, one.value - (0 if old is None else old.value))
        for one, old in lines
    ]
    result = await job.m.sequences.add_many(items)
    errors = dict(result.errors)
    for at, ((line, _), value) in enumerate(zip(lines, result.values, strict=True)):
        if at not in errors and value != line.value:
            errors[at] = ConflictError(f"somebody has added to it meanwhile: it is {value}", current=value)
    return errors


# --- what clients of brokers have -------------------------------------------------------------------------------------


class RetainedLine(msgspec.Struct, frozen=True):
    """Says what one line of ``retained`` has."""

    tenant: str
    topic: str
    payload: bytes
    qos: Qos = 0
    properties: bytes = b""
    expires_ms: U63 = 0


async def _retained_found(job: Job, lines: list[RetainedLine]) -> Sequence[Any]:
    return _read(await job.m.retained.get_many([RetainedKey(line.tenant, line.topic) for line in lines]))


async def _retained_write(job: Job, lines: list[tuple[RetainedLine, Any]]) -> Errors:
    items = [
        RetainedPutItem(
            one.tenant,
            one.topic,
            one.payload,
            one.qos,
            one.properties,
            job.left_s(one.expires_ms) if one.expires_ms else None,
        )
        for one, _ in lines
    ]
    return (await job.m.retained.put_many(items)).errors


class SessionLine(msgspec.Struct, frozen=True):
    """Says what one line of ``session`` has. Only who was away has deadlines."""

    tenant: str
    client_id: ClientId
    expiry_interval_s: U32 = 0
    payload: bytes = b""
    will: m.Will | None = None
    connected: bool = True
    expires_ms: U63 = 0
    will_ms: U63 = 0


def _session_over(job: Job, line: SessionLine) -> bool:
    if line.connected:
        return line.expiry_interval_s == 0
    return job.is_over(line.expires_ms)


def _session_same(line: SessionLine, stored: m.Session) -> bool:
    will, other = line.will, stored.properties.will
    if will is not None and other is not None:  # the delay is what was left of it
        will, other = msgspec.structs.replace(will, delay_s=0), msgspec.structs.replace(other, delay_s=0)
    return (line.payload, line.expiry_interval_s, will) == (
        stored.properties.payload,
        stored.properties.expiry_interval_s,
        other,
    )


async def _session_found(job: Job, lines: list[SessionLine]) -> Sequence[m.Session | None]:
    found = _read(await job.m.sessions.get_many(_sessions(lines)))
    # One that is connected to this very broker is half done.
    return [None if one is not None and one.connected and one.broker == job.name else one for one in found]


async def _session_write(job: Job, lines: list[tuple[SessionLine, m.Session | None]]) -> Errors:
    life, sessions = await job.life(), job.m.sessions
    if old := [m.SessionDeleteItem(one.tenant, one.client_id) for one, found in lines if found is not None]:
        await sessions.delete_many(old)
    taken = [m.SessionTakeoverItem(one.tenant, one.client_id, False, _properties(job, one)) for one, _ in lines]
    result = await sessions.takeover_many(life.broker, life.epoch, taken)
    errors = dict(result.errors)
    positions = [at for at in range(len(lines)) if at not in errors]
    for at in positions:
        index = result.previous_index[at]
        if index >= 0 and not job.is_own(result.owners[index].broker):
            errors[at] = ConflictError("its client has connected in between: it connects again, with these properties")
    left = [_left(job, lines[at][0]) for at in positions]
    gone = (await sessions.disconnect_many(life.broker, life.epoch, left)).errors
    # Its client has come back in between, and has the session as it is.
    return errors | {positions[at]: one for at, one in gone.items() if not isinstance(one, NotOwnerError)}


def _properties(job: Job, line: SessionLine) -> m.SessionProperties:
    will = line.will
    if will is not None and line.will_ms:
        will = msgspec.structs.replace(will, delay_s=max(0, job.left_s(line.will_ms)))
    return m.SessionProperties(line.expiry_interval_s, line.payload, will)


def _left(job: Job, line: SessionLine) -> m.SessionDisconnectItem:
    if line.connected:
        return m.SessionDisconnectItem(line.tenant, line.client_id, None, job.discard_wills)
    left_s = job.left_s(line.expires_ms) if line.expires_ms else m.NEVER_S
    return m.SessionDisconnectItem(line.tenant, line.client_id, left_s, job.discard_wills or not line.will_ms)


class WillLine(msgspec.Struct, frozen=True):
    """Says what one line of ``will`` has, which is due. It is due again, for brokers to claim it."""

    tenant: str
    client_id: ClientId
    will: m.Will
    id: str = ""
    due_ms: U63 = 0


async def _will_found(job: Job, lines: list[WillLine]) -> Sequence[Any]:
    """The wills that are due of these clients, or the session that one has."""
    sessions = _read(await job.m.sessions.get_many(_sessions(lines)))
    found: list[Any] = []
    for line, session in zip(lines, sessions, strict=True):
        wills = job.listed.setdefault("will", {})
        if line.tenant not in wills:
            wills[line.tenant] = defaultdict(list)
            async for due in job.m.wills.list(line.tenant):
                wills[line.tenant][due.client_id].append(due.will)
        same = line.will in wills[line.tenant][line.client_id]
        found.append(line.will if same else None if session is None or session.broker == job.name else session)
    return found


async def _will_write(job: Job, lines: list[tuple[WillLine, Any]]) -> Errors:
    """A will becomes due when its session ends; so each has a session for a moment."""
    life, sessions = await job.life(), job.m.sessions

    async def end(some: list[tuple[WillLine, Any]]) -> Errors:
        taken = [
            m.SessionTakeoverItem(
                one.tenant,
                one.client_id,
                True,
                m.SessionProperties(0, b"", msgspec.structs.replace(one.will, delay_s=0)),
            )
            for one, _ in some
        ]
        errors = dict((await sessions.takeover_many(life.broker, life.epoch, taken)).errors)
        left = [m.SessionDisconnectItem(one.tenant, one.client_id, 0) for one, _ in some]
        return errors | (await sessions.disconnect_many(life.broker, life.epoch, left)).errors

    errors: Errors = {}
    turns: defaultdict[tuple[str, str], int] = defaultdict(int)  # a client may have several
    rounds: defaultdict[int, list[int]] = defaultdict(list)
    for at, (line, found) in enumerate(lines):
        if found is not None:
            errors[at] = ConflictError("its client has a session already: publish the will yourself")
            continue
        rounds[turns[line.tenant, line.client_id]].append(at)
        turns[line.tenant, line.client_id] += 1
    for positions in rounds.values():
        errors |= {positions[at]: one for at, one in (await end([lines[at] for at in positions])).items()}
    return errors


SubscriptionLine: Any = msgspec.defstruct(
    "SubscriptionLine",
    [
        *(("tenant", str), ("client_id", ClientId), ("filter", str)),
        *((field.name, field.type, field.default) for field in msgspec.structs.fields(m.SubscriptionOptions)),
    ],
    frozen=True,
)


def _subscription(line: Any) -> Subscription:
    options = m.SubscriptionOptions(*(getattr(line, name) for name in m.SubscriptionOptions.__struct_fields__))
    return Subscription(line.tenant, line.client_id, line.filter, options)


def _sessions(lines: Iterable[Any]) -> list[m.SessionKey]:
    """Of each line."""
    return [m.SessionKey(line.tenant, line.client_id) for line in lines]


async def _parts_found(
    lines: list[Any], read: Callable[[list[m.SessionKey]], Awaitable[ReadResult[Any]]], name: str, value: str
) -> Sequence[Any]:
    """What belongs to sessions: of each line what there is of its name. Each session is read once."""
    keys = [*dict.fromkeys(sessions := _sessions(lines))]
    found = _read(await read(keys))
    known = {
        (key, getattr(one, name)): getattr(one, value)
        for key, parts in zip(keys, found, strict=True)
        for one in parts or ()
    }
    return [known.get((key, getattr(line, name))) for key, line in zip(sessions, lines, strict=True)]


async def _subscription_found(job: Job, lines: list[Any]) -> Sequence[Any]:
    return await _parts_found(lines, job.m.subscriptions.get_many, "filter", "options")


async def _subscription_write(job: Job, lines: list[tuple[Any, Any]]) -> Errors:
    life = await job.life()

    async def add(some: list[Subscription]) -> Errors:
        return (await job.m.subscriptions.add_many(life.broker, life.epoch, some)).errors

    items = [_subscription(line) for line, _ in lines]
    errors = dict(await add(items))
    again = [at for at, error in errors.items() if isinstance(error, FencedError)]
    if again:  # an attempt before this one has brought the sessions, in another life
        await _adopt(job, [*dict.fromkeys(_sessions(items[at] for at in again))])
        later = await add([items[at] for at in again])
        for number, at in enumerate(again):
            del errors[at]
            if number in later:
                errors[at] = later[number]
    return errors


async def _adopt(job: Job, keys: list[m.SessionKey]) -> None:
    """Make sessions this life's that an earlier life of this broker has brought. They stay as they are."""
    life, sessions = await job.life(), job.m.sessions
    mine = [one for one in await sessions.get_many(keys) if one is not None and one.broker == job.name]
    now_ms = time.time_ns() // 1_000_000
    await sessions.takeover_many(
        life.broker, life.epoch, [m.SessionTakeoverItem(one.tenant, one.client_id) for one in mine]
    )
    left = [
        m.SessionDisconnectItem(
            one.tenant,
            one.client_id,
            max(1, _whole_s(one.expires_ms - now_ms)) if one.expires_ms else m.NEVER_S,
            not one.will_ms,
        )
        for one in mine
    ]
    await sessions.disconnect_many(life.broker, life.epoch, left)


async def _inflight_found(job: Job, lines: list[Inflight]) -> Sequence[Any]:
    return await _parts_found(lines, job.m.inflight.get_many, "name", "value")


async def _inflight_write(job: Job, lines: list[tuple[Inflight, Any]]) -> Errors:
    life = await job.life()
    items = [line for line, _ in lines]
    return (await job.m.inflight.put_many(life.broker, life.epoch, items, any_owner=True)).errors


# --- consumer groups --------------------------------------------------------------------------------------------------


class OffsetLine(msgspec.Struct, frozen=True):
    """Says what one line of ``offset`` has."""

    tenant: str
    group: str
    topic: OwnTopic
    partition: _PARTITION  # type: ignore[valid-type]
    offset: U63
    generation: U53 = 0
    metadata: str = ""


async def _offset_found(job: Job, lines: list[OffsetLine]) -> Sequence[Any]:
    return _read(
        await job.m.offsets.fetch_many([m.OffsetKey(one.tenant, one.group, one.topic, one.partition) for one in lines])
    )


async def _offset_write(job: Job, lines: list[tuple[OffsetLine, Any]]) -> Errors:
    """A group refuses a commit of an older generation than its newest one. Such an offset has that of the group."""

    async def commit(positions: list[int], generations: list[int]) -> dict[int, MetadError]:
        items = [
            m.OffsetCommitItem(
                one.tenant, one.group, one.topic, one.partition, one.offset, generation, _offset(old), one.metadata
            )
            for (one, old), generation in zip((lines[at] for at in positions), generations, strict=True)
        ]
        return {positions[at]: error for at, error in (await job.m.offsets.commit_many(items)).errors.items()}

    positions = sorted(range(len(lines)), key=lambda at: lines[at][0].generation)
    errors = await commit(positions, [lines[at][0].generation for at in positions])
    if late := [at for at, error in errors.items() if isinstance(error, FencedError)]:
        groups = [m.ConsumerGroup(lines[at][0].tenant, lines[at][0].group) for at in late]
        newest = _read(await job.m.offsets.generations_many(groups))
        for at in late:
            del errors[at]
        errors |= await commit(late, [*newest])
    return errors


async def _generation_found(job: Job, lines: list[KnownGroup]) -> Sequence[Any]:
    groups = [m.ConsumerGroup(line.tenant, line.group) for line in lines]
    found = _read(await job.m.offsets.generations_many(groups))
    # Imported offsets have raised it, to no more than it was.
    return [one if one > line.generation else None for one, line in zip(found, lines, strict=True)]


async def _generation_write(job: Job, lines: list[tuple[KnownGroup, Any]]) -> Errors:
    groups = [m.ConsumerGroup(line.tenant, line.group) for line, _ in lines]
    now = _read(await job.m.offsets.generations_many(groups))
    items = [
        m.GenerationReset(line.tenant, line.group, current, line.generation)
        for (line, _), current in zip(lines, now, strict=True)
    ]
    return (await job.m.offsets.reset_generations_many(items)).errors


# --- who may do what, and how much ------------------------------------------------------------------------------------


def _by_name(name: str, line: type[Any], namespace: str) -> Kind:
    """Of a table of the administrators, which is small, and listed as a whole."""
    field = line.__struct_fields__[0]

    async def found(job: Job, lines: list[Any]) -> Sequence[Any]:
        if name not in job.listed:
            job.listed[name] = {getattr(one, field): one async for one in getattr(job.m, namespace).list()}
        return [job.listed[name].get(getattr(one, field)) for one in lines]

    async def write(job: Job, lines: list[tuple[Any, Any]]) -> Errors:
        errors: Errors = (await getattr(job.m, namespace).put_many([one for one, _ in lines])).errors
        return errors

    return Kind(name, line, found, lambda one, stored: bool(one == stored), write)


def _of_table(table: PlainTable[Any]) -> Kind:
    """Of a table that is declared as data."""

    async def found(job: Job, lines: list[Any]) -> Sequence[Any]:
        return _read(await job.m.table(table).get_many([[getattr(one, name) for name in table.key] for one in lines]))

    async def write(job: Job, lines: list[tuple[Any, Any]]) -> Errors:
        items = [m.TablePutItem(one, _version(old)) for one, old in lines]
        return (await job.m.table(table).put_many(items)).errors

    same: Callable[[Any, Any], bool] = lambda one, stored: bool(one == stored.record)  # noqa: E731
    return Kind(table.name, table.record, found, same, write, declared=table)


def kinds(declared: Sequence[PlainTable[Any]]) -> dict[str, Kind]:
    """All that an import writes, in its order: what others need comes first."""
    found = [
        _by_name("role", Role, "roles"),
        _by_name("principal", PrincipalRoles, "principals"),
        _by_name("quota", Quota, "quotas"),
        *(_of_table(table) for table in (*FAMILIES.values(), *declared) if not table.ruled_by),
        Kind("lease", LeaseLine, _lease_found, _fields_same("ttl_ms", "holder", "attributes"), _lease_write),
        Kind("kv", KvLine, _kv_found, _fields_same("value", "lease"), _kv_write),
        Kind("sequence", SequenceLine, _sequence_found, _fields_same("value"), _sequence_write),
        Kind(
            "retained",
            RetainedLine,
            _retained_found,
            _fields_same("payload", "qos", "properties"),
            _retained_write,
            lambda job, line: job.is_over(line.expires_ms),
        ),
        Kind("will", WillLine, _will_found, lambda line, stored: bool(line.will == stored), _will_write),
        Kind("session", SessionLine, _session_found, _session_same, _session_write, _session_over),
        Kind(
            "subscription",
            SubscriptionLine,
            _subscription_found,
            lambda line, stored: bool(_subscription(line).options == stored),
            _subscription_write,
        ),
        Kind("inflight", Inflight, _inflight_found, lambda line, stored: bool(line.value == stored), _inflight_write),
        Kind("offset", OffsetLine, _offset_found, _fields_same("offset", "metadata"), _offset_write),
        Kind(
            "offset.generation",
            KnownGroup,
            _generation_found,
            lambda line, stored: False,
            _generation_write,
        ),
    ]
    return {kind.name: kind for kind in found}


def _fields_same(*names: str) -> Callable[[Any, Any], bool]:
    def same(line: Any, stored: Any) -> bool:
        return all(getattr(line, name) == getattr(stored, name) for name in names)

    return same


def _version(stored: Any) -> int:
    return 0 if stored is None else int(stored.version)


def _offset(stored: m.Offset | None) -> int:
    return -1 if stored is None else stored.offset


def _read(found: ReadResult[Found]) -> list[Found]:
    """What was read, if all of it was."""
    found.raise_for_error()
    return found


async def _in_groups(
    items: list[Any], key: Callable[[Any], Hashable], write: Callable[[list[Any]], Awaitable[Errors]]
) -> Errors:
    """Write items that have one key together."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for at, item in enumerate(items):
        groups[key(item)].append(at)
    errors: Errors = {}
    for positions in groups.values():
        errors |= {positions[at]: one for at, one in (await write([items[at] for at in positions])).items()}
    return errors
