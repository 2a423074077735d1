"""A tenant moves from one cluster to another, while both serve.

Its rows are copied from each group as they are stored, and the groups' logs are followed, until little is left. Then
the tenant is frozen: from there on neither cluster serves it. What is left is followed, and the other cluster serves
it. All that is known of how far it is stands in the two clusters (:mod:`metad.state.moving.tenant_transfer`): whoever
asks for the same move again goes on.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from metad.state.cluster.tenancy import tenant_at
from metad.state.core.entry import Entry, decode_record
from metad.state.core.part import Writes
from metad.state.core.slot_assignment import ALL_SLOTS, pack, unpack
from metad.state.moving.slot_migration import translated
from metad.storage import keys
from metad_client import Client, DeadlineExceededError, LogCutError, MetadError
from metad_wire.cluster import METADATA, SLOTS, ClusterMap, GroupId, GroupRecord
from metad_wire.families import FAMILIES
from metad_wire.families.assignment import PARTITIONS, RESOURCES
from metad_wire.messages import TenantMove
from metad_wire.operator.backup import BackupEntries
from metad_wire.operator.moving import (
    CAME,
    COMES,
    FROZEN,
    LEFT,
    TenantCopied,
    TenantCopy,
    TenantPosition,
    TenantPut,
    TenantStep,
    TenantStepped,
)
from metad_wire.policy.rates import Pace
from metad_wire.tables.assignment import Resource
from metad_wire.tables.declaration import DeclaredTable
from metad_wire.tables.feature import TENANT_MOVES
from metad_wire.tables.tenants import SCOPES, is_scoped

from .logs import ANSWER_S, Logs

_ROWS: Final = 1_000  # of one batch ...
_BYTES: Final = 512 * 1024  # ... and their bytes: an entry holds a row of the largest value beside
_AHEAD: Final = 4
"""Batches for a group that wait while one is on its way."""
_SHORT_S: Final = 0.25
"""The tenant is frozen when everything that was left took no longer than this, the last time."""
_AGAIN_S: Final = 0.25
"""A read is tried again after so long: a leader is elected meanwhile."""
_ROUNDS_MAX: Final = 1_000
LISTED_MAX: Final = 1_000
"""Resources that are listed of a tenant that cannot move because of them."""
_NAMED: Final = 3  # of these in a text
_LOOK_S: Final = 0.005
_CUTS_MAX: Final = 3
"""How often everything is copied anew because a log does not reach back far enough."""


class MoveError(MetadError):
    """A tenant cannot move."""


class HasResourcesError(MoveError):
    """The tenant has resources, so it cannot move; nothing was done. ``resources``: the first of them."""

    def __init__(self, tenant: str, resources: Sequence[Resource], count: int, partitions: int) -> None:
        names = ", ".join(f"{one.resource} ({one.kind})" for one in resources[:_NAMED])
        more = f" and {count - _NAMED} more" if count > _NAMED else ""
        super().__init__(
            f"tenant {tenant!r} has resources, which do not move: {names or 'none is listed any more'}{more}. Their "
            f"{partitions} partitions are on brokers of this cluster. Nothing was done. Let the tenant stay, or have "
            f"its brokers copy what they have, delete each by `metadctl resources delete {tenant} RESOURCE KIND`, and "
            "make them anew in the other cluster"
        )
        self.resources = resources
        self.count = count


class Moved(NamedTuple):
    """What a move has done."""

    rows: int
    """That were put, those of indexes and deadlines among them; of this attempt."""
    seconds: float
    stopped_ms: int
    """For how long neither cluster served the tenant, at most: from the first entry that froze it until all groups of
    the other cluster serve it, or until this was begun again and found that."""


class Progress(NamedTuple):
    """How far a move is."""

    what: str
    """``begin``, ``copy``, ``follow``, ``freeze``, ``came``, ``left`` or ``done``, as far as it is complete."""
    rows: int
    """That were put so far."""


Tell = Callable[[Progress], None]


def rows_in(entry: Entry, tenant: bytes, numbers: Collection[int], held: Any) -> Writes:
    """What an entry of a group's log writes of a tenant, in slots that the group holds: keys without its prefix."""
    found: Writes = {}
    for writes in entry:
        for key, value in writes.items():
            behind = key[keys.GROUP_PREFIX_BYTES :]
            if tenant_at(behind, numbers) == tenant and held[keys.slot_of_key(behind) or 0]:
                found[behind] = value
    return found


_SAID_S: Final = 5.0
"""Within that a node that has started says what its software knows."""


async def move(
    m: Client,
    to: Client,
    tenant: str,
    *,
    address: str,
    bytes_per_s: int = 0,
    wait_s: float = ANSWER_S,
    tell: Tell = lambda _: None,
) -> Moved:
    """Move a tenant from the cluster of ``m`` to that of ``to``, which clients reach at ``address``; or go on with
    that. ``wait_s``: for a step of a group. Raises MoveError, MetadError."""
    begun_s = time.monotonic()
    one = _Move(m, to, tenant, address, Pace(bytes_per_s), tell, wait_s)
    stopped_ms = await one.run()
    return Moved(one.rows, time.monotonic() - begun_s, stopped_ms)


async def cancel(m: Client, to: Client, tenant: str, *, address: str, wait_s: float = ANSWER_S) -> int:
    """Give up a move before the other cluster serves the tenant; it is served where it was. Returns how many rows were
    dropped. Raises MoveError, MetadError."""
    return await _Move(m, to, tenant, address, Pace(0), lambda _: None, wait_s).cancel()


async def _map(m: Client, wait_s: float) -> ClusterMap:
    """Of a cluster whose nodes all know tenants that move. Raises MoveError."""
    late_s = time.monotonic() + min(_SAID_S, wait_s)
    while True:
        known = (await m.cluster.map()).map
        if known is None:
            raise MoveError("a cluster is not formed yet")
        older = [node.node_id for node in known.nodes if TENANT_MOVES not in node.features]
        if not older:
            return known
        if time.monotonic() > late_s:
            names = ", ".join(older)
            raise MoveError(
                f"{names} of cluster {known.cluster_id} would serve a tenant on its way: upgrade them first"
            )
        await asyncio.sleep(_SAID_S / 25)


async def _declared(m: Client) -> dict[int, DeclaredTable]:
    """The declared tables whose keys begin with a tenant, by number."""
    return {one.number: one async for one in m.tables.list() if one.declaration.key[0] in SCOPES}


class _Move:
    """One attempt."""

    def __init__(self, m: Client, to: Client, tenant: str, address: str, pace: Pace, tell: Tell, wait_s: float) -> None:
        self._m = m
        self._wait_s = wait_s
        self._to = to
        self._tenant = tenant
        self._address = address
        self._pace = pace
        self._tell = tell
        self._move = ""
        self._attempt = 0
        self._sources: dict[str, _Source] = {}
        self._targets: dict[str, _Target] = {}
        self._frozen: dict[str, int] = {}
        self._other = ""
        self._from = ""

    @property
    def rows(self) -> int:
        """That were put."""
        return sum(target.rows for target in self._targets.values())

    def _say(self, what: str) -> None:
        self._tell(Progress(what, self.rows))

    # --- it begins, or goes on ---------------------------------------------------------------------------

    async def _look(self) -> TenantMove | None:
        """What the cluster says of a move of the tenant."""
        here, there = await _map(self._m, self._wait_s), await _map(self._to, self._wait_s)
        if here.cluster_id == there.cluster_id:
            raise MoveError(f"{self._address} is the same cluster, {here.cluster_id}")
        self._other = f"{self._address} (cluster {there.cluster_id})"
        self._from = f"cluster {here.cluster_id}"
        # metadata-0 first: it says which move this is, whoever else begins one.
        self._sources = {one.group_id.name: _Source(self._m, one) for one in _in_order(here.groups)}
        self._targets = {one.group_id.name: _Target(self, one.group_id) for one in _in_order(there.groups)}
        state = (await self._step(self._m, METADATA.name, "look")).state
        if state is not None and state.phase not in (COMES, CAME):
            self._move = state.move
            if f"(cluster {there.cluster_id})" not in state.other:
                raise MoveError(f"tenant {self._tenant!r} moves or has moved to {state.other}: not to {self._other}")
        self._attempt = max(time.time_ns() // 1_000, (0 if state is None else state.attempt) + 1)
        return state

    async def _step(self, m: Client, group: str, step: str, **fields: Any) -> TenantStepped:
        body = TenantStep(step, self._tenant, self._move, self._attempt, **fields)
        return await m.backups.move_step(group, body, deadline_s=self._wait_s)

    async def _leave(self) -> int:
        """Begin where the tenant is. Returns the highest revision of a group there."""
        revision = 0
        slots: dict[str, Any] = {}
        for name, source in self._sources.items():
            found = await self._step(self._m, name, "leave", other=self._other)
            source.learn(found)
            revision = max([revision, *(one.index for one in found.revisions)])
            kind = source.group.kind
            slots[kind] = source.held | slots.get(kind, unpack(b""))
        if any(pack(held) != ALL_SLOTS for held in slots.values()):
            raise MoveError("slots are moving in the cluster that the tenant leaves: try again")
        return revision

    async def _come(self, revision: int) -> bool:
        """Begin where the tenant goes; whether all groups there serve it already."""
        for name, target in self._targets.items():
            times = {name: one.now_ms for name, one in self._sources.items() if one.group.kind == target.group.kind}
            found = await self._step(self._to, name, "come", other=self._from, revision=revision, times=times)
            target.learn(found)
        left = [target for target in self._targets.values() if not target.came]
        # A group that was added since has no slots that anything could have come from.
        positions = {name: [one.positions[name] for one in left if name in one.positions] for name in self._sources}
        self._sources = {name: one for name, one in self._sources.items() if positions[name]}
        for name, source in self._sources.items():
            source.go_on(positions[name])
        return not left

    async def _check_resources(self, uses: Mapping[str, int]) -> None:
        """Raise HasResourcesError if the tenant has resources: what brokers have of them cannot come along."""
        count, partitions = uses.get(RESOURCES.name, 0), uses.get(PARTITIONS.name, 0)
        if not count and not partitions:
            return
        found: list[Resource] = []
        async for one in self._m.assignments.resources.list(self._tenant):
            found.append(one.record)
            if len(found) == LISTED_MAX:
                break
        raise HasResourcesError(self._tenant, found, max(count, len(found)), partitions)

    async def _check_tables(self) -> frozenset[int]:
        """The numbers of declared tables whose keys begin with a tenant. Raises MoveError where the other cluster has
        not the same."""
        here, there = await _declared(self._m), await _declared(self._to)
        used = {one.table for one in await self._m.tenants.use(self._tenant)}
        for number, one in here.items():
            other = there.get(number)
            if one.name in used and (other is None or other.declaration != one.declaration):
                raise MoveError(
                    f"tenant {self._tenant!r} has records of table {one.name}, which is not declared in {self._other} "
                    f"as here, as number {number}"
                )
        return frozenset(here) | {one.number for one in FAMILIES.values() if is_scoped(one)}

    # --- the whole of it ---------------------------------------------------------------------------------

    async def run(self) -> int:
        """Do all that is left. Returns for how many milliseconds nobody served the tenant, at most."""
        for _ in range(_CUTS_MAX):
            try:
                return await self._attempted()
            except LogCutError:  # what was deleted since nobody knows
                for target in self._targets.values():
                    await target.drop()
        raise MoveError("the logs were cut before they were followed: raise storage.log_retained_bytes")

    async def _attempted(self) -> int:
        state = await self._look()
        if state is not None and state.phase == LEFT:
            raise MoveError(f"tenant {self._tenant!r} has moved to {state.other} already")
        everywhere = dict(self._sources)
        if not self._move:
            if not (uses := await self._m.tenants.use(self._tenant)):
                raise MoveError(f"tenant {self._tenant!r} has nothing: check its name; nothing was done")
            await self._check_resources({one.table: one.records for one in uses})
            if used := await self._to.tenants.use(self._tenant):
                tables = ", ".join(one.table for one in used)
                raise MoveError(
                    f"tenant {self._tenant!r} has records of {tables} in {self._other}: it comes only where it is not; "
                    "nothing was done"
                )
            self._move = secrets.token_hex(8)
        numbers = await self._check_tables()
        revision = await self._leave()
        done = await self._come(revision)
        self._say("begin")
        if not done:
            await self._bring(everywhere, numbers)
        stopped_ms = max(await asyncio.gather(*map(self._stopped_ms, everywhere)))
        for name in reversed(everywhere):
            await self._step(self._m, name, "left", other=self._other)
            self._say("left")
        self._say("done")
        return stopped_ms

    async def _stopped_ms(self, name: str) -> int:
        """For how long a group has not served the tenant, by its log."""
        found = await self._step(self._m, name, "look")
        return found.now_ms - found.state.at_ms if found.state is not None and found.state.at_ms else 0

    async def _bring(self, everywhere: Mapping[str, _Source], numbers: Collection[int]) -> None:
        """Bring everything until the other cluster serves the tenant."""
        senders = [asyncio.create_task(target.send()) for target in self._targets.values() if not target.came]
        try:
            one = _Bringing(
                self._m, self._tenant, numbers, self._owners(), self._pace, self._say, self._move, self._wait_s
            )
            if not self._frozen_already(everywhere):
                await one.until_short(self._sources.values(), self._targets.values())
            await self._freeze(everywhere)
            self._say("freeze")
            await asyncio.gather(*(one.follow_to(source, self._frozen[name]) for name, source in self._sources.items()))
            await self._drain()
            revision = max(source.revision for source in everywhere.values())
            await asyncio.gather(*(self._came(name, revision) for name in self._targets))
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    def _owners(self) -> dict[str, _Owners]:
        """By kind. Raises MoveError where a slot has no group."""
        slots: dict[str, list[Any]] = {}
        for target in self._targets.values():
            of_slot = slots.setdefault(target.group.kind, [None] * SLOTS)
            for slot in target.held.nonzero()[0]:
                of_slot[slot] = target
        if any(None in of_slot for of_slot in slots.values()):
            raise MoveError("slots are moving in the cluster to which the tenant goes: try again")
        return {
            kind: _Owners(of_slot, [one for one in self._targets.values() if one.group.kind == kind and not one.came])
            for kind, of_slot in slots.items()
        }

    def _frozen_already(self, everywhere: Mapping[str, _Source]) -> bool:
        return any(source.state is not None and source.state.phase == FROZEN for source in everywhere.values()) and all(
            source.copied for source in self._sources.values()
        )

    async def _freeze(self, everywhere: Mapping[str, _Source]) -> None:
        async def freeze(name: str, source: _Source) -> None:
            source.learn(await self._step(self._m, name, "freeze"))
            assert source.state is not None
            self._frozen[name], source.revision = source.state.index, source.state.revision

        await asyncio.gather(*(freeze(name, source) for name, source in everywhere.items()))

    async def _drain(self) -> None:
        await asyncio.gather(*(target.drain() for target in self._targets.values() if not target.came))

    async def _came(self, name: str, revision: int) -> None:
        target = self._targets[name]
        if not target.came:
            frozen = {source: self._frozen[source] for source in target.positions}
            await self._step(self._to, name, "came", revision=revision, frozen=frozen)
        self._say("came")

    # --- given up ----------------------------------------------------------------------------------------

    async def cancel(self) -> int:
        """Drop what came, then thaw the tenant. Earlier attempts are void first, in all groups, so that none can have
        the other cluster serve it afterwards."""
        state = await self._look()
        if state is None or state.phase in (COMES, CAME):
            raise MoveError(f"no move of tenant {self._tenant!r} is under way")
        if state.phase == LEFT:
            raise MoveError(f"tenant {self._tenant!r} has moved to {state.other}: nothing is given up")
        everywhere = dict(self._sources)
        revision = await self._leave()
        for name in list(self._targets):
            found = (await self._step(self._to, name, "look")).state
            if found is None or found.move != self._move:
                del self._targets[name]  # nothing of it has come there, and none freezes any more that could end it
        await self._come(revision)
        if any(target.came for target in self._targets.values()):
            raise MoveError(
                f"{self._other} serves tenant {self._tenant!r} already: ask for the move again, and it ends"
            )
        dropped = 0
        for target in self._targets.values():
            dropped += await target.drop()
        for name in self._targets:
            await self._step(self._to, name, "give_up")
        for name in reversed(everywhere):
            await self._step(self._m, name, "thaw")
        return dropped

    # --- for its targets ---------------------------------------------------------------------------------

    async def put(
        self, group: str, batch: int, rows: Writes, positions: dict[str, TenantPosition], *, drop: bool
    ) -> int:
        """Put a batch into a group of the other cluster. Returns how many rows were dropped."""
        body = TenantPut(self._tenant, self._move, self._attempt, batch, rows, positions, drop)
        return (await self._to.backups.move_rows(group, body, deadline_s=self._wait_s)).dropped


def _in_order(groups: Iterable[GroupRecord]) -> list[GroupRecord]:
    return sorted(groups, key=lambda one: (one.group_id != METADATA, one.group_id))


class _Source:
    """A group that the tenant leaves."""

    def __init__(self, m: Client, record: GroupRecord) -> None:
        self.group = record.group_id
        self.nodes = sorted(record.replicas, key=lambda node: node != record.preferred)
        """Those with its log, the one that should lead first: it has everything first."""
        self.state: TenantMove | None = None
        self.held: Any = unpack(b"")
        self.now_ms = self.revision = self.index = 0
        self.cursor = b""
        self.copied = False
        self._m = m

    def learn(self, found: TenantStepped) -> None:
        """A step was taken."""
        self.state, self.held, self.now_ms = found.state, unpack(found.slots), found.now_ms

    def go_on(self, positions: Iterable[TenantPosition]) -> None:
        """Go on where all groups of the other cluster are that do not serve the tenant."""
        found = list(positions)
        self.copied = all(one.copied for one in found)
        # A group with none has no rows: it gets all, and what was written behind this.
        self.index = min((one.index for one in found if one.index), default=0)
        self.cursor = b"" if self.copied else min(one.cursor for one in found if not one.copied)

    @property
    def position(self) -> TenantPosition:
        """How far it is."""
        return TenantPosition(self.cursor, self.copied, self.index)


class _Target:
    """A group to which the tenant goes."""

    def __init__(self, one: _Move, group: GroupId) -> None:
        self.group = group
        self.came = False
        self.held: Any = unpack(b"")
        self.positions: dict[str, TenantPosition] = {}
        """As the group said them when this attempt began."""
        self.rows = 0
        self._one = one
        self._batch = 0
        self._rows: Writes = {}
        self._bytes = 0
        self._positions: dict[str, TenantPosition] = {}
        self._waiting: asyncio.Queue[tuple[Writes, dict[str, TenantPosition]]] = asyncio.Queue(_AHEAD)
        self._failure: BaseException | None = None

    def learn(self, found: TenantStepped) -> None:
        """A step was taken."""
        self.came = found.state is not None and found.state.phase == CAME
        self.held, self.positions, self._batch = unpack(found.slots), found.positions, found.batch

    async def take(self, key: bytes, value: bytes | None) -> None:
        """Take a row. Waits while there are many."""
        if self.came:
            return
        self._rows[key] = value
        self._bytes += len(key) + len(value or b"")
        if len(self._rows) >= _ROWS or self._bytes >= _BYTES:
            await self.flush()

    def note(self, source: str, position: TenantPosition) -> None:
        """All that was taken before brings the group so far, and it goes with the next rows."""
        self._positions[source] = position

    async def flush(self) -> None:
        """Have what was taken put."""
        if self.came or not (self._rows or self._positions):
            return
        rows, positions = self._rows, self._positions
        self._rows, self._bytes, self._positions = {}, 0, {}
        await self._waiting.put((rows, positions))
        self._raise()

    async def drain(self) -> None:
        """Return when everything that was taken is there."""
        await self.flush()
        await self._waiting.join()
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def send(self) -> None:
        """Put what was taken, batch by batch, until cancelled."""
        while True:
            rows, positions = await self._waiting.get()
            try:
                if self._failure is None:
                    self._batch += 1
                    await self._one.put(self.group.name, self._batch, rows, positions, drop=False)
                    self.rows += len(rows)
            except Exception as error:  # noqa: BLE001 - who brings rows hears of it
                self._failure = error
            finally:
                self._waiting.task_done()

    async def drop(self) -> int:
        """Drop all rows that came. Returns how many there were."""
        dropped = 0
        while found := await self._one.put(self.group.name, 0, {}, {}, drop=True):
            dropped += found
        return dropped


class _Owners(NamedTuple):
    """The groups of a kind to which the tenant goes."""

    of_slot: list[_Target]
    wait: list[_Target]
    """Those that do not serve it yet."""


class _Bringing:
    """Copies and follows."""

    def __init__(
        self,
        m: Client,
        tenant: str,
        numbers: Collection[int],
        owners: dict[str, _Owners],
        pace: Pace,
        say: Callable[[str], None],
        move: str,
        wait_s: float,
    ) -> None:
        self._m = m
        self._logs = Logs(m)
        self._wait_s = wait_s
        self._tenant = tenant
        self._encoded = keys.text(tenant)
        self._numbers = numbers
        self._owners = owners
        self._pace = pace
        self._say = say
        self._move = move

    async def until_short(self, sources: Collection[_Source], targets: Collection[_Target]) -> None:
        """Bring everything, and again what came meanwhile, until that takes little time."""
        await asyncio.gather(*(self._copy(source) for source in sources))
        self._say("copy")
        for _ in range(_ROUNDS_MAX):
            begun_s = time.monotonic()
            await asyncio.gather(*(self._follow(source) for source in sources))
            await asyncio.gather(*(target.drain() for target in targets if not target.came))
            self._say("follow")
            if time.monotonic() - begun_s <= _SHORT_S:
                return
        raise MoveError("the tenant is written faster than it can be followed: nothing was stopped; try again")

    async def _copy(self, source: _Source) -> None:
        """Copy all rows; after each page the log is followed, so that it is never far behind."""
        while not source.copied:
            page = await self._page(source)
            size = sum(len(key) + len(value) for key, value in page.rows.items())
            await asyncio.sleep(self._pace.wait_s(size, time.monotonic()))
            if not source.index:
                # Said before any row is there: what is deleted from now on is in the log behind this.
                source.index = page.index
                self._note(source)
            await self._give(source, page.rows)
            source.cursor, source.copied = page.cursor, not page.cursor
            self._note(source)
            self._say("page")
            await self._follow(source)

    async def _page(self, source: _Source) -> TenantCopied:
        wanted, late_s = TenantCopy(self._tenant, self._move, source.cursor), time.monotonic() + self._wait_s
        while True:
            try:
                return await self._m.backups.copy_rows(source.group.name, wanted, deadline_s=self._wait_s)
            except MetadError as error:
                if not error.retryable or time.monotonic() + _AGAIN_S > late_s:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _give(self, source: _Source, rows: Mapping[bytes, bytes | None]) -> None:
        owners, name = self._owners[source.group.kind].of_slot, source.group.name
        shares: dict[_Target, dict[bytes, bytes | None]] = {}
        for key, value in rows.items():
            shares.setdefault(owners[keys.slot_of_key(key) or 0], {})[key] = value
        for target, share in shares.items():
            if target.came:
                continue
            for key, value in translated(share, target.positions[name].ahead_ms).items():
                await target.take(key, value)

    def _note(self, source: _Source) -> None:
        for target in self._owners[source.group.kind].wait:
            target.note(source.group.name, source.position)

    async def _follow(self, source: _Source) -> None:
        """Follow the log as far as it is now."""
        while await self._some(source):
            pass

    async def follow_to(self, source: _Source, index: int) -> None:
        """Follow the log up to an entry."""
        if not source.copied:
            await self._copy(source)
        at, late_s = source.index, time.monotonic() + self._wait_s
        while source.index < index:
            if await self._some(source) or source.index >= index:
                continue
            if source.index > at:
                at, late_s = source.index, time.monotonic() + self._wait_s
            elif time.monotonic() > late_s:
                raise DeadlineExceededError(f"no replica of {source.group.name} has come to entry {index}")
            await asyncio.sleep(_LOOK_S)  # a replica that has not applied it yet

    async def _some(self, source: _Source) -> bool:
        """Follow some entries; whether there may be more."""
        found = await self._read(source)
        for data in found.entries:
            index = source.index + 1
            entry = decode_record(source.group.name, index, data)
            await self._give(source, rows_in(entry, self._encoded, self._numbers, source.held))
            source.index = index
        self._note(source)
        return bool(found.entries) and source.index < found.applied

    async def _read(self, source: _Source) -> BackupEntries:
        """From whichever replica has it, the one that should lead first: it has everything first."""
        late_s = time.monotonic() + self._wait_s
        while True:
            left_s = late_s - time.monotonic()
            try:
                return await self._logs.read(source.nodes, source.group.name, source.index, left_s)
            except LogCutError:
                raise
            except MetadError:
                if time.monotonic() + _AGAIN_S > late_s:
                    raise
            await asyncio.sleep(_AGAIN_S)
