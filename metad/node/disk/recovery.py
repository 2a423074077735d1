"""Takes groups up that have lost their majority for good, on the data directories of nodes that do not run.

A *report* says what a data directory has of each group. From the reports of all nodes that are left, and the names of
those that are lost, follows one *plan*: the replica whose log is the newest takes its group up. By the rules of Raft it
has everything of which any node that is left can know that it is committed. The node becomes the only voter of the
group, by an entry of a new term in its log. Then the group grows as any other does.

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

from metad_wire.cluster import GROUP_KINDS, ClusterName, GroupId

from ...config import Config
from ...errors import ConfigError, RefusedError, StorageError
from ...raft.log.journal import CONFIGURATION, RaftLog, record, was_here
from ...raft.messages import Configuration
from ...raft.snapshots.snapshots import applied_index, restore_log
from ...state.cluster import cluster
from ...storage.engine import Engine
from ...storage.keys import GROUP_PREFIX_BYTES, STORE_PREFIX, after_prefix
from ...storage.log import LogStore, LogWriter
from .stores import Recovery, StoreIdentity, identity_row, open_engines, read_identity, superseded_text


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
    mapped: list[str]
    """All groups of the cluster, by the map that it has."""
    version: int = 0
    """Of that map."""

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


class Plan(msgspec.Struct, frozen=True):
    """What becomes of the cluster."""

    cluster: str
    """Its id from then on."""
    nodes: list[str]
    """Those that are left."""
    lost: list[str]
    taken: list[Taken]
    gone: list[str]
    """Groups of which nothing is left."""

    def lines(self) -> Iterator[str]:
        """The plan for people."""
        for one in self.taken:
            yield (
                f"{one.group}: {one.node} takes it up, with its log until entry {one.index} of term {one.term}. What "
                f"{' and '.join(one.without)} acknowledged after that is lost"
            )
        for group in self.gone:
            yield f"{group}: no replica is left, so all of it is lost, and its slots are not served"
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
    identity, known = here.identity, cluster.read_map(here.state)
    groups: list[GroupEnd] = []
    for log in _logs(here):
        if known is not None and known.has_removed(log.group_id):
            continue
        now = log.configuration
        applied = applied_index(here.state, log.prefix)
        if now.members:  # otherwise it has not heard of its group
            ends = log.last_term, log.last_index, applied
            groups.append(GroupEnd(log.name, [*now.voters], [*now.learners], *ends))
    return Report(
        node=identity.node_id,
        cluster=identity.cluster_id,
        store=identity.store_id,
        life=identity.life,
        groups=groups,
        mapped=[] if known is None else sorted(record.group_id.name for record in known.groups),
        version=0 if known is None else known.version,
    )


def _logs(here: Opened) -> Iterator[RaftLog]:
    """The log of each replica that is in the directory."""
    at = after_prefix(STORE_PREFIX)
    while found := here.log.engine.scan(at, b"\xff" * GROUP_PREFIX_BYTES, 1):
        prefix = found[0][0][:GROUP_PREFIX_BYTES]
        at = after_prefix(prefix)
        group = GroupId(GROUP_KINDS[prefix[0] - 1], int.from_bytes(prefix[1:], "big"))
        if was_here(here.log, group):
            log = RaftLog(group, here.log, here.writer, initial=Configuration(()), cache_bytes=0)
            restore_log(log, here.state)
            yield log


def read_report(path: Path) -> Report:
    """A report that ``metad recover --json`` has printed. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise ConfigError(f"--others: cannot read {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--others: {path} is no report of `metad recover --json`: {error}") from None


def encoded(found: Report | Plan, **more: bool) -> str:
    """What a report or a plan is in JSON."""
    return msgspec.json.encode(msgspec.to_builtins(found) | more).decode()


def planned(reports: Sequence[Report], lost: Collection[str]) -> Plan:
    """The plan, which is the same whoever makes it of these. Raises ConfigError if it must not be carried out."""
    _check(reports, lost)
    nodes = sorted(one.node for one in reports)
    map_version = max(one.version for one in reports)
    ends: dict[str, list[tuple[int, int, str, GroupEnd]]] = {}
    for one in reports:
        for end in one.groups:
            ends.setdefault(end.group, []).append((end.term, end.index, one.node, end))
    taken: list[Taken] = []
    for group, found in sorted(ends.items()):
        term, index, node, newest = max(found, key=lambda each: each[:3])
        members = {*newest.voters, *newest.learners}
        if unknown := members - {*nodes} - {*lost}:
            named = ", ".join(sorted(unknown))
            raise ConfigError(f"{group} has replicas on {named} too: name them in --lost, or give their reports")
        here = {*newest.voters}.intersection(each[2] for each in found)
        if len(here) < len(newest.voters) // 2 + 1:
            taken.append(Taken(group, node, term, index, sorted(members.intersection(lost))))
    gone = sorted({group for one in reports if one.version == map_version for group in one.mapped} - ends.keys())
    if not taken:
        raise ConfigError("every group has a majority on the nodes that are left: start them, and nothing is lost")
    name = ClusterName.parse(reports[0].cluster)
    basis = sorted((one.node, one.store, one.life) for one in reports), sorted(lost)
    mark = blake2b(msgspec.msgpack.encode(basis), digest_size=8).hexdigest()
    cluster_id = ClusterName(name.name, name.recovered + 1, mark).cluster_id
    return Plan(cluster_id, nodes, sorted(lost), taken, gone)


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
    identity = here.identity
    taken = [one.group for one in plan.taken if one.node == mine.node]
    for log in _logs(here):
        if log.name in taken:
            term = max(log.term, log.last_term) + 1
            log.save(term, mine.node)
            alone = msgspec.msgpack.encode(Configuration((mine.node,)))
            log.append([record(term, CONFIGURATION, alone)])
    after = msgspec.structs.replace(
        identity, cluster_id=plan.cluster, recovery=Recovery(at_ms, taken, plan.lost, told=not taken)
    )
    if taken:
        here.writer.writes.update(identity_row(after))
        here.writer.flush()
    else:
        here.log.engine.write(identity_row(after))
        here.log.sync()
