"""Takes groups up that have lost their majority for good, on the data directories of nodes that do not run.

A *report* says what a data directory has of each group. From the reports of all nodes that are left, and the names of
those that are lost, follows one *plan*: the replica whose log is the newest takes its group up. By the rules of Raft it
has everything of which any node that is left can know that it is committed. The node becomes the only voter of the
group, by an entry of a new term in its log. Then the group grows as any other does. A group of which nothing is left
begins anew on one of the nodes.

Slots may have been moving: :mod:`metad.control.settling` decides who holds them. The groups that are taken up get
that as entries of their logs, and all nodes keep what the map of the recovered cluster will say. Its leader writes it
before anything else is done with the map, and until a node has it, it moves no slots.

The plan gives the cluster another id, which says how often it was recovered, and from what. Nodes of different ids do
not talk to each other, and a node that meets a later one ends for good. So a node that was lost and comes back takes
part in nothing; and of two plans that are carried out, because each took the nodes of the other for lost, one remains
as soon as their nodes meet. A report that is older than its directory is refused, and so is a plan that does not know
of each replica whether it is lost.

Nothing is changed but by :func:`carry_out`, in one durable write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from metad_wire.cluster import GROUP_KINDS, METADATA, ClusterMap, ClusterName, GroupId, slots_in, unpack_slots
from metad_wire.methods import encode
from metad_wire.tables import moving_rows
from metad_wire.tables.cluster import GROUP

from ...config import Config
from ...control.map.decisions import VERSIONS_LOST, SettledSlots
from ...control.settling import Change, Holding, Standing, settle
from ...errors import ConfigError, RefusedError, StorageError
from ...raft.log.journal import CONFIGURATION, REGULAR, RaftLog, record, was_here
from ...raft.messages import Configuration
from ...raft.snapshots.snapshots import applied_index, restore_log
from ...state.cluster import cluster
from ...state.core.entry import ENTRY_FORMAT, Entry, decode_record
from ...state.core.part import Origin, Writes
from ...state.core.slot_assignment import (
    ALL_SLOTS,
    AssignedSlots,
    SlotMoves,
    decode_moves,
    decode_slots,
    moves_key,
    slots_brought,
    state_key,
)
from ...state.core.tails import fields, keep
from ...state.registry import PARTS
from ...storage.engine import Engine
from ...storage.keys import GROUP_PREFIX_BYTES, STORE_PREFIX, after_prefix, log_time, slot_of_key, table_prefix
from ...storage.log import LogStore, LogWriter
from .stores import Recovery, StoreIdentity, identity_row, open_engines, read_identity, superseded_text

_READ_BYTES = 4 * 1024 * 1024  # of a log, at once
_DROPPED_ROWS = 500  # by one entry


class GroupEnd(msgspec.Struct, frozen=True):
    """What a data directory has of a group."""

    group: str
    voters: list[str]
    learners: list[str]
    term: int
    """Of the last entry of the log."""
    index: int
    """Of the last entry of the log."""
    applied: int
    """Index of the last entry in the state, which is written down now and then."""
    holding: Holding
    """What it has of slots, at the end of the log."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a data directory has. It holds for as long as its node is not started."""

    node: str
    cluster: str
    """Id of the cluster."""
    store: str
    """Id of the data directory."""
    life: int
    """How often it was started."""
    groups: list[GroupEnd]
    removed: list[str]
    """Groups of which it had a replica that was taken out."""
    map: ClusterMap | None
    """At the end of its log of metadata-0."""

    def lines(self) -> Iterator[str]:
        """The report for people."""
        yield f"{self.node} of cluster {self.cluster}, started {self.life} times"
        for one in self.groups:
            learners = f", learners {', '.join(one.learners)}" if one.learners else ""
            ends = f"log until entry {one.index} of term {one.term}, state until entry {one.applied}"
            yield f"{one.group}: voters {', '.join(one.voters)}{learners}; {ends}"


class Taken(msgspec.Struct, frozen=True):
    """A group that is taken up."""

    group: str
    node: str
    """The node that takes it up."""
    term: int
    """Of the last entry of its log."""
    index: int
    """Of the last entry of its log."""
    without: list[str]
    """Replicas that are lost. What they acknowledged after that entry is lost with them."""


class Anew(msgspec.Struct, frozen=True):
    """A group of which nothing is left, and which begins anew."""

    group: str
    node: str
    """The node that begins it."""


class Plan(msgspec.Struct, frozen=True):
    """What becomes of the cluster."""

    cluster: str
    """Its id from then on."""
    nodes: list[str]
    """Those that are left."""
    lost: list[str]
    taken: list[Taken]
    gone: list[str]
    """Groups of which nothing is left, and which no node can begin anew: metadata-0."""
    anew: list[Anew] = []
    slots: list[str] = []
    """What is decided about slots, in words."""
    changes: list[Change] = []
    """What groups that are taken up, or begin anew, have to know of that."""
    settled: SettledSlots | None = None
    """What the map will say; None: no map is left."""

    def lines(self) -> Iterator[str]:
        """The plan for people."""
        for one in self.taken:
            yield (
                f"{one.group}: {one.node} takes it up, with its log until entry {one.index} of term {one.term}. What "
                f"{' and '.join(one.without)} acknowledged after that is lost"
            )
        for begun in self.anew:
            yield f"{begun.group}: no replica is left, so all of it is lost, and {begun.node} begins it anew"
        for group in self.gone:
            yield f"{group}: no replica is left, so all of it is lost, and its slots are not served"
        yield from self.slots
        yield f"the cluster becomes {self.cluster}. {', '.join(self.lost)} may not come back with what they have"


class Opened(NamedTuple):
    """A data directory, open."""

    config: Config
    identity: StoreIdentity
    log: LogStore
    state: Engine
    writer: LogWriter


class _AtOnce:
    """A :class:`metad.storage.log.Syncer` that blocks."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def sync(self, done: Callable[[StorageError | None], None]) -> None:
        self._store.sync()
        done(None)

    def close(self) -> None:
        """Nothing runs."""


@contextmanager
def opened(config: Config) -> Iterator[Opened]:
    """Open the data directory of a node that does not run, without beginning a new life of it. Raises ServerError."""
    directory = Path(config.data_dir)
    if not (directory / "raft").is_dir() or not (directory / "state").is_dir():
        raise ConfigError(f"{directory} is no data directory of a node: there is no raft/, or no state/")
    log, state = open_engines(config)
    try:
        identity = read_identity(log.engine, "raft")
        if identity is None or not identity.cluster_id:
            raise ConfigError(f"the data directory {directory} belongs to no cluster yet")
        if identity.superseded:
            raise RefusedError(superseded_text(identity.cluster_id, identity.superseded))
        yield Opened(config, identity, log, state, LogWriter(log, _AtOnce(log), failed=_raise))
    finally:
        state.close()
        log.close()


def _raise(error: StorageError) -> None:
    raise error


def report(here: Opened) -> Report:
    """What the directory has. Raises DamagedStoreError."""
    identity, applied_map = here.identity, cluster.read_map(here.state)
    ends = {log.group_id: (log, _read_end(here, log)) for log in _logs(here)}
    stored = ends[METADATA][1].rows[cluster.MAP_KEY] if METADATA in ends else None
    known = cluster.decode_map(stored) if stored is not None else applied_map
    groups: list[GroupEnd] = []
    for group, (log, end) in ends.items():
        now, record = log.configuration, None if known is None else known.group(group)
        if now.members and not (applied_map is not None and applied_map.has_removed(group)):
            initial = ALL_SLOTS if record is None or group == METADATA else record.initial_slots
            groups.append(
                GroupEnd(
                    log.name,
                    [*now.voters],
                    [*now.learners],
                    log.last_term,
                    log.last_index,
                    applied_index(here.state, log.prefix),
                    end.holding(log, initial),
                )
            )  # otherwise it has not heard of its group
    return Report(
        node=identity.node_id,
        cluster=identity.cluster_id,
        store=identity.store_id,
        life=identity.life,
        groups=groups,
        removed=[group.name for group in _groups(here) if was_here(here.log, group) is None],
        map=known,
    )


class _End(NamedTuple):
    """Rows of a group's state as they are with the last entry of its log applied."""

    rows: dict[bytes, bytes | None]
    """The map and what says which slots it holds; None: there is no such row."""
    touched: set[bytes]
    """Keys of all rows, behind the group's prefix, that entries write which the state does not have yet."""
    now_ms: int
    """The log's time."""

    def holding(self, log: RaftLog, initial: bytes) -> Holding:
        """Who holds which slots, in a group that was made with the slots ``initial``."""
        slots = decode_slots(self.rows[state_key(log.prefix)], initial)
        brought = slots_brought(slots.slots, slots.sealed, decode_moves(self.rows[moves_key(log.prefix)]))
        return Holding(slots, brought, log.last_index + slots.base)


def _read_end(here: Opened, log: RaftLog) -> _End:
    """Read the log from where the state ends. Raises DamagedStoreError."""
    state, at = here.state, applied_index(here.state, log.prefix)
    wanted = [state_key(log.prefix), moves_key(log.prefix), *([cluster.MAP_KEY] if log.group_id == METADATA else [])]
    rows, touched = {key: state.get(key) for key in wanted}, set[bytes]()
    stored = state.get(log_time(log.prefix))
    now_ms = 0 if stored is None else int.from_bytes(stored, "big")
    while at < log.last_index:
        for data in log.records(at + 1, _READ_BYTES):
            at += 1
            entry = decode_record(log.name, at, data)
            now_ms = max(now_ms, entry.now_ms)
            for writes in entry:
                touched.update(key[GROUP_PREFIX_BYTES:] for key in writes)
                rows |= {key: writes[key] for key in wanted if key in writes}
    return _End(rows, touched, now_ms)


def _groups(here: Opened) -> Iterator[GroupId]:
    """Each group of which there is, or was, a replica in the directory."""
    at = after_prefix(STORE_PREFIX)
    while found := here.log.engine.scan(at, b"\xff" * GROUP_PREFIX_BYTES, 1):
        prefix = found[0][0][:GROUP_PREFIX_BYTES]
        at = after_prefix(prefix)
        yield GroupId(GROUP_KINDS[prefix[0] - 1], int.from_bytes(prefix[1:], "big"))


def _logs(here: Opened) -> Iterator[RaftLog]:
    """The log of each replica that is in the directory."""
    for group in _groups(here):
        if was_here(here.log, group):
            log = _log(here, group)
            restore_log(log, here.state)
            yield log


def _log(here: Opened, group: GroupId) -> RaftLog:
    return RaftLog(group, here.log, here.writer, initial=Configuration(()), cache_bytes=0)


def read_report(path: Path) -> Report:
    """A report that ``metad recover --json`` has printed. Raises ConfigError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Report)
        for slots in () if found.map is None else found.map.slots.values():
            unpack_slots(slots)
    except OSError as error:
        raise ConfigError(f"--others: cannot read {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"--others: {path} is no report of `metad recover --json`: {error}") from None
    return found


def encoded(found: Report | Plan, **more: bool) -> str:
    """What a report or a plan is in JSON."""
    return msgspec.json.encode(msgspec.to_builtins(found) | more).decode()


def planned(reports: Sequence[Report], lost: Collection[str]) -> Plan:
    """The plan, which is the same whoever makes it of these. Raises ConfigError if it must not be carried out."""
    _check(reports, lost)
    nodes = sorted(one.node for one in reports)
    left = _Left(reports)
    taken: list[Taken] = []
    standings: dict[GroupId, Standing] = {}
    unfounded: list[str] = []
    for group, found in left.ends.items():
        if left.map is not None and left.map.group(group) is None:
            continue  # it was removed, which this replica has not heard
        term, index, node, newest = found[0]
        members = {*newest.voters, *newest.learners}
        if unknown := members - {*nodes} - {*lost}:
            named = ", ".join(sorted(unknown))
            raise ConfigError(f"{group.name} has replicas on {named} too: name them in --lost, or give their reports")
        if rows := left.may_lead(group, newest.voters):
            standings[group] = Standing(rows, taken=False)
            if {*newest.voters}.intersection(left.never_had(group)):
                unfounded.append(group.name)  # by some of its voters, which are needed
        else:
            taken.append(Taken(group.name, node, term, index, sorted(members.intersection(lost))))
            standings[group] = Standing([newest.holding], taken=True)
    anew: list[Anew] = []
    gone: list[str] = []
    for ordered in [] if left.map is None else left.map.groups:
        group = ordered.group_id
        if group in standings:
            continue
        able = left.never_had(group)  # else one whose replica was taken out
        founders = [node for node in ordered.initial if node in able]
        if group == METADATA:
            gone.append(group.name)
        elif len(founders) > len(ordered.initial) // 2:
            unfounded.append(group.name)
            standings[group] = Standing([_holding_of_new(ordered.initial_slots)], taken=False)
        else:
            anew.append(Anew(group.name, min(founders or able or nodes)))
            standings[group] = Standing([_holding_of_new(b"")], taken=True, anew=True)
    if not taken and not anew:
        raise ConfigError("every group has a majority on the nodes that are left: start them, and nothing is lost")
    name = ClusterName.parse(reports[0].cluster)
    basis = sorted((one.node, one.store, one.life) for one in reports), sorted(lost)
    mark = blake2b(msgspec.msgpack.encode(basis), digest_size=8).hexdigest()
    cluster_id = ClusterName(name.name, name.recovered + 1, mark).cluster_id
    plan = Plan(cluster_id, nodes, sorted(lost), taken, gone, anew)
    if left.map is None:
        return plan
    version = max(one.map.version for one in reports if one.map is not None) + VERSIONS_LOST
    decided = settle(left.map, standings, version)
    settled = SettledSlots(version, decided.slots, decided.moves, unfounded)
    return msgspec.structs.replace(plan, slots=decided.texts, changes=decided.changes, settled=settled)


def _holding_of_new(slots: bytes) -> Holding:
    """Of a group that begins with these slots."""
    return Holding(AssignedSlots(slots), {0: slots} if slots else {}, 0)


class _Left:
    """What is left, by the reports of all nodes that are."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._removed = {one.node: {*one.removed} for one in reports}
        ends: dict[GroupId, list[tuple[int, int, str, GroupEnd]]] = {}
        for one in reports:
            for end in one.groups:
                group = GroupId.parse(end.group)
                if group is None:
                    raise ConfigError(f"the report of {one.node} names a group {end.group[:64]!r}")
                ends.setdefault(group, []).append((end.term, end.index, one.node, end))
        for found in ends.values():
            found.sort(key=lambda each: each[:3], reverse=True)
        self.ends = dict(sorted(ends.items(), key=lambda each: each[0].name))
        """The ends of the logs of each group: (term, index, node, end), the newest first."""
        known = {one.node: one.map for one in reports}
        newest = [known[each[2]] for each in self.ends.get(METADATA, [])] + [*known.values()]
        self.map = next((found for found in newest if found is not None), None)
        """The map in the newest log."""

    def never_had(self, group: GroupId) -> list[str]:
        """The nodes that never had a replica of a group: they have acknowledged nothing that it wrote."""
        there = {each[2] for each in self.ends.get(group, [])}
        left = self._removed.items()
        return sorted(node for node, removed in left if group.name not in removed and node not in there)

    def may_lead(self, group: GroupId, voters: Collection[str]) -> list[Holding]:
        """What the logs have of slots with which a group may go on by itself, the newest first: any that a majority of
        its voters may elect. None, if it has no majority."""
        logs = [each for each in self.ends[group] if each[2] in voters]
        here, quorum = len(logs) + len({*voters}.intersection(self.never_had(group))), len(voters) // 2 + 1
        return [each[3].holding for each in logs[: here - quorum + 1]] if here >= quorum else []


def _check(reports: Sequence[Report], lost: Collection[str]) -> None:
    """Raise ConfigError if these say nothing together."""
    nodes = [one.node for one in reports]
    if twice := sorted({node for node in nodes if nodes.count(node) > 1}):
        raise ConfigError(f"there are two reports of {twice[0]}")
    if alive := sorted({*lost}.intersection(nodes)):
        raise ConfigError(f"{alive[0]} is named in --lost, and here is what it has")
    if len(clusters := sorted({one.cluster for one in reports})) > 1:
        raise ConfigError(f"the reports are of different clusters: {', '.join(clusters)}")


def carry_out(here: Opened, mine: Report, plan: Plan, at_ms: int) -> None:
    """Do what the plan has for this directory, durably and at once. Raises StorageError."""
    taken = [one.group for one in plan.taken if one.node == mine.node]
    anew = [one.group for one in plan.anew if one.node == mine.node]
    changes = {one.group: one for one in plan.changes}
    logs = {log.name: log for log in _logs(here)}
    for name in {*anew} - logs.keys():
        if (group := GroupId.parse(name)) is not None:
            log = logs[name] = _log(here, group)
            if log.removed:  # what its node may not have dropped yet
                here.state.write({}, delete_ranges=[(log.prefix, after_prefix(log.prefix))])
                here.state.sync()
                log.come_back()
    for log in logs.values():
        if log.name not in (*taken, *anew):
            continue
        change = changes.get(log.name)
        term = max(log.term, log.last_term, 0 if change is None else change.least_term - 1) + 1
        added = [] if change is None else list(_entries(here, log, change))
        log.save(term, mine.node)
        alone = msgspec.msgpack.encode(Configuration((mine.node,)))
        log.append([record(term, CONFIGURATION, alone), *(record(term, REGULAR, entry) for entry in added)])
    after = msgspec.structs.replace(
        here.identity,
        cluster_id=plan.cluster,
        recovery=Recovery(at_ms, taken + anew, plan.lost, told=not taken + anew, settled=plan.settled),
    )
    if taken or anew:
        here.writer.writes.update(identity_row(after))
        here.writer.flush()
    else:
        here.log.engine.write(identity_row(after))
        here.log.sync()


def _entries(here: Opened, log: RaftLog, change: Change) -> Iterator[bytes]:
    """What lets a group have the slots that were decided: first, rows are dropped. Raises DamagedStoreError."""
    end, prefix, state = _read_end(here, log), log.prefix, GROUP.rows["state"]
    heard = {row for part in PARTS for row in part.rows}
    index, base = log.last_index + 1, decode_slots(end.rows[state_key(prefix)], b"").base  # after the configuration
    rows = sorted(_rows_in(here, log, end, {*slots_in(change.emptied)}))
    for first in range(0, len(rows), _DROPPED_ROWS):
        index += 1
        writes: Writes = {}
        told: dict[int, Writes] = {}
        for key in rows[first : first + _DROPPED_ROWS]:
            (told.setdefault(key[0], {}) if key[0] in heard else writes)[prefix + key] = None
        yield Entry(ENTRY_FORMAT, Origin.MIGRATION, end.now_ms, writes, told, index + base).encoded()
    written: Writes = {}
    for key, value in (
        (state_key(prefix), change.slots),
        (moves_key(prefix), SlotMoves(change.brought)),
    ):
        stored, encoded_row = end.rows[key], encode(value)
        written[key] = encoded_row if stored is None else keep(stored, encoded_row, fields(type(value)))
    revision = index + 1 + change.slots.base
    yield Entry(ENTRY_FORMAT, Origin.MIGRATION, end.now_ms, {}, {state: written}, revision).encoded()


def _rows_in(here: Opened, log: RaftLog, end: _End, slots: set[int]) -> set[bytes]:
    """The keys, behind the group's prefix, of all rows in some slots."""
    moving = moving_rows(log.group_id.kind)
    found = {key for key in end.touched if key[0] in moving and slot_of_key(key) in slots}
    for row in moving if slots else ():
        at = table_prefix(log.prefix, row)
        until = after_prefix(at)
        while page := here.state.scan(at, until, _DROPPED_ROWS):
            at = page[-1][0] + b"\0"
            keys = [key[GROUP_PREFIX_BYTES:] for key, _ in page]
            found.update(key for key in keys if slot_of_key(key) in slots)
    return found
