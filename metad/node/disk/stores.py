"""The two stores of a node, opened together. Checks that they belong to each other and to this node.

Both carry the same identity record: a random store id, the node, the cluster. A start with a missing store, or one that
belongs to another pair, would silently lose or mix data; it is refused, and the error says what to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path

import msgspec

from metad_wire.cluster import ClusterName
from metad_wire.program.build import build

from ... import formats, log_events
from ...config import Config, StorageConfig
from ...control.map.decisions import SettledSlots
from ...control.map.leaving import Asked
from ...errors import ConfigError, DamagedStoreError, DiskFullError, LeftError, RefusedError, StorageError, file_error
from ...logs import event
from ...storage import keys
from ...storage.engine import Engine
from ...storage.log import DurableMark, LogStore
from ...storage.memory import MemoryEngine
from ...storage.room import mark_of, missing_to_open, release_reserve, use_of

STORE_FORMAT = formats.DATA_DIRECTORY.writes
_DIRECTORY_MODE = 0o700
_MEMTABLE_PART, _SHORT_PART = 4, 32
"""Of the low-water mark, what a memtable of the log takes at most, and if the disk is short of room."""
_IDENTITY_KEY = keys.STORE_PREFIX + b"identity"


class Recovery(msgspec.Struct, frozen=True):
    """Groups that had lost their majority for good were taken up on this data directory."""

    at_ms: int
    groups: list[str]
    """That this node has taken up."""
    lost: list[str]
    """Nodes without which the cluster goes on."""
    told: bool = False
    """It is in the log and in the audit trail."""
    settled: SettledSlots | None = None
    """Which groups hold which slots; None: an older version took them up, and did not say."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """The identity record, written when a data directory is made, at each start, and once by :meth:`Stores.adopt`."""

    format: int
    store_id: str
    node_id: str
    cluster_id: str  # empty until the node's cluster has formed, or has accepted the node
    life: int = 0  # starts of the directory, this one included; lives.py explains their use
    incarnation: str = ""  # random, of this start
    left: bool = False  # the node has left its cluster with this directory
    asked: Asked = Asked()  # to be taken into its cluster
    build: str = ""  # version and commit of metad that started it last; empty: an older one
    converts: int = 0  # the older format of which rows may be left; 0: none
    superseded: str = ""  # the id of the cluster that was recovered without this directory
    recovery: Recovery | None = None  # the last one


class Stores:
    """Log and state of one node."""

    def __init__(
        self, log: LogStore, state: Engine, identity: StoreIdentity, *, rebuild: bool, directory: Path | None = None
    ) -> None:
        self.directory = directory
        """None if everything is in memory."""
        self.log = log
        self.state = state
        self.identity = identity
        self.rebuild = rebuild
        """The state was missing and is rebuilt from a log that reaches back to the start."""

    def adopt(self, cluster_id: str) -> None:
        """Bind the data directory to this cluster for ever. Blocks for an fsync, once in the directory's life. Raises
        ConfigError if it belongs to another."""
        ours = self.identity.cluster_id
        if ours == cluster_id or not cluster_id:  # a map of an older version names no cluster
            return
        if ClusterName.parse(ours).supersedes(ClusterName.parse(cluster_id)):
            return  # the map is of before the cluster was recovered
        if ours:
            raise ConfigError(
                f"the cluster that this node has formed or joined is {cluster_id!r}, and its data directory belongs to "
                f"{ours!r}: the same cluster_id must be configured on all founders, or none"
            )
        self.identity = msgspec.structs.replace(self.identity, cluster_id=cluster_id)
        _write(self.log.engine, self.identity)  # the log is the authority

    def reach(self, number: int) -> None:
        """Note that the directory has this format from now on, unless it has a newer one. An older build that does not
        read it refuses the directory then. Blocks for an fsync if the format grows."""
        if number > self.identity.format:
            event(log_events.FORMAT_REACHED, before=self.identity.format, format=number)
            self.identity = msgspec.structs.replace(self.identity, format=number)
            _write(self.log.engine, self.identity)  # the log is the authority
            _write(self.state, self.identity, sync=False)

    def converted(self) -> None:
        """Note that no rows of the older format are left."""
        event(log_events.CONVERTED, before=self.identity.converts, format=self.identity.format)
        self.identity = msgspec.structs.replace(self.identity, converts=0)
        _write(self.log.engine, self.identity, sync=False)  # if that is lost, it is only looked for once more

    @property
    def store_id(self) -> str:
        """The random name of the data directory."""
        return self.identity.store_id

    @property
    def cluster_id(self) -> str:
        """Of the cluster that it belongs to; empty if it belongs to none yet."""
        return self.identity.cluster_id

    @property
    def lost(self) -> list[str]:
        """The nodes without which the cluster was recovered last; empty if it never was."""
        return [] if self.identity.recovery is None else self.identity.recovery.lost

    @property
    def settled(self) -> SettledSlots | None:
        """What was decided about slots when the cluster was recovered last; None: nothing."""
        return None if self.identity.recovery is None else self.identity.recovery.settled

    @property
    def asked(self) -> Asked:
        """What is known of the node's requests to be taken in."""
        return self.identity.asked

    def note(self, asked: Asked) -> None:
        """Keep this. Blocks for an fsync if it is that an answer is to come: twice in the life of most directories."""
        self.identity = msgspec.structs.replace(self.identity, asked=asked)
        _write(self.log.engine, self.identity, sync=asked.unanswered)

    def leave(self) -> None:
        """Note for ever that the node has left its cluster. Blocks for an fsync, once in the directory's life."""
        self.identity = msgspec.structs.replace(self.identity, left=True)
        _write(self.log.engine, self.identity)

    def supersede(self, cluster_id: str) -> RefusedError:
        """Note for ever that the cluster goes on by this id, without this directory. Blocks for an fsync, once. Returns
        why the node must end. Raises StorageError."""
        self.identity = msgspec.structs.replace(self.identity, superseded=cluster_id)
        _write(self.log.engine, self.identity)
        return RefusedError(superseded_text(self.identity.cluster_id, cluster_id))

    def told(self) -> None:
        """The recovery is known to others."""
        recovery = self.identity.recovery
        if recovery is not None:
            recovery = msgspec.structs.replace(recovery, told=True)
            self.identity = msgspec.structs.replace(self.identity, recovery=recovery)
            _write(self.log.engine, self.identity, sync=False)

    def close(self) -> None:
        """Close both stores."""
        try:
            self.state.close()
        finally:
            self.log.close()


def open_stores(config: Config) -> Stores:
    """Open or create both stores. Raises StorageError, DamagedStoreError, ConfigError or LeftError; then nothing stays
    open."""
    log, state = open_engines(config)
    try:
        return pair_stores(config, log, state)
    except BaseException:
        state.close()
        log.close()
        raise


def pair_stores(config: Config, log: LogStore, state: Engine) -> Stores:
    """Check that log and state belong together and to this configuration, or write their identity if they are new;
    begin a new life. Raises DamagedStoreError or ConfigError, or LeftError if the node has left its cluster."""
    identity, rebuild = _identify(config, log.engine, state)
    if identity.left:
        raise LeftError(
            f"{identity.node_id} has left cluster {identity.cluster_id!r}, and this is the data directory that it had "
            "there. To join again, give it an empty data directory and [cluster] join"
        )
    if identity.superseded:
        raise RefusedError(superseded_text(identity.cluster_id, identity.superseded))
    identity = msgspec.structs.replace(
        _brought_up(identity), life=identity.life + 1, incarnation=os.urandom(8).hex(), build=build()
    )
    _write(log.engine, identity)  # before anything is sent to anybody
    _write(state, identity, sync=False)  # both say the format; the next start writes it again
    directory = None if config.storage.engine == "memory" else Path(config.data_dir)
    return Stores(log, state, identity, rebuild=rebuild, directory=directory)


def _brought_up(identity: StoreIdentity) -> StoreIdentity:
    """The identity of a directory that has the format of this build from now on. What is left of the older one is
    converted while the node serves (:class:`..chores.conversion.Conversion`), also after further starts."""
    if identity.format >= STORE_FORMAT:
        return identity
    event(log_events.CONVERTING, before=identity.format, format=STORE_FORMAT)
    return msgspec.structs.replace(identity, format=STORE_FORMAT, converts=identity.format)


def no_stores(config: Config) -> Stores:
    """In place of the stores of a node that cannot be opened."""
    identity = StoreIdentity(STORE_FORMAT, "", config.node_id, config.cluster_id)
    return Stores(LogStore(MemoryEngine()), MemoryEngine(), identity, rebuild=False)


def nodes_in(directory: Path) -> list[str]:
    """Whose data is in parts of a data directory: of the workers of a node, or of the nodes of a local cluster."""
    return sorted(path.parent.name for path in directory.glob("*/raft"))


def superseded_text(ours: str, theirs: str) -> str:
    """Why a node must not go on with a directory of before its cluster was recovered."""
    return (
        f"cluster {ours!r} was recovered as {theirs!r} without this data directory: what it has is of before. Keep "
        "it for analysis, and start this node with an empty data directory and [cluster] join"
    )


def open_engines(config: Config) -> tuple[LogStore, Engine]:
    """Open or create log and state, and check nothing. Raises what :func:`open_stores` raises."""
    if config.storage.engine == "memory":
        return LogStore(MemoryEngine()), MemoryEngine()
    from ...storage.rocks import LOG_MEMTABLE_BYTES, RocksEngine, Shared, log_options, state_options

    directory = Path(config.data_dir)
    try:
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(f"cannot use the data directory {str(directory)!r}", error) from None
    except ValueError as error:  # a name that no file can have
        raise StorageError(f"cannot use the data directory {str(directory)!r}: {error}") from None
    if not os.access(directory, os.W_OK):
        raise StorageError(f"cannot use the data directory {directory}: not writable")
    if not (directory / "raft").exists() and (parts := nodes_in(directory)):
        raise ConfigError(
            f"the data directory {directory} holds the data of {', '.join(parts)}: start it as it was started before, "
            "with its --workers or by `metad cluster`, or give this node a directory of its own"
        )
    _keep_private(directory)
    shared = Shared(config.storage)
    little_room, mark = _find_room(directory, config.storage)
    memtable_bytes = min(LOG_MEMTABLE_BYTES, mark // (_SHORT_PART if little_room else _MEMTABLE_PART))
    engine = RocksEngine(directory / "raft", log_options(shared, memtable_bytes), wal=True, little_room=little_room)
    try:
        log = LogStore(engine, DurableMark(directory / "raft" / "durable"))
    except BaseException:
        engine.close()
        raise
    try:
        return log, RocksEngine(directory / "state", state_options(shared), wal=False, little_room=little_room)
    except BaseException:
        log.close()
        raise


def _find_room(directory: Path, config: StorageConfig) -> tuple[bool, int]:
    """Give up the reserve if the stores could not be opened otherwise: (whether the disk is short of room, its mark).
    Raises DiskFullError if that is not enough, or StorageError if the system does not say."""
    try:
        use = use_of(directory)
        mark, missing = mark_of(use, config), 0
        if use.free_bytes < mark and not _in_use(directory):
            shutil.rmtree(directory / "snapshots", ignore_errors=True)  # what an earlier life was receiving
            if freed := release_reserve(directory, use_of(directory), mark):
                event(log_events.RESERVE_RELEASED, free_bytes=use.free_bytes, reserve_bytes=freed)
            missing = missing_to_open(directory)
    except OSError as error:
        raise file_error(f"cannot use the data directory {directory}", error) from None
    if missing:
        raise DiskFullError(f"the disk of {directory} is full: to open the stores takes {missing:,} bytes more")
    return use.free_bytes < mark, mark


def _in_use(directory: Path) -> bool:
    """Whether another process has the stores open. RocksDB locks this file in the same way."""
    try:
        with (directory / "raft" / "LOCK").open("ab") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


def _keep_private(directory: Path) -> None:
    """Restrict the directory to the node's own user: its contents are readable as they are."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & ~_DIRECTORY_MODE == 0:
        return
    try:
        directory.chmod(mode & _DIRECTORY_MODE)
    except OSError as error:
        reason = error.strerror
        event(log_events.DIRECTORY_IS_OPEN, path=str(directory), mode=f"{mode:o}", error=reason)
    else:
        event(log_events.DIRECTORY_WAS_OPEN, path=str(directory), mode=f"{mode:o}")


def _identify(config: Config, log: Engine, state: Engine) -> tuple[StoreIdentity, bool]:
    in_log, in_state = read_identity(log, "raft"), read_identity(state, "state")
    if in_log is None and in_state is not None:
        raise DamagedStoreError(
            "the data directory has a state but no log (raft/): writes acknowledged after the last flush of the state "
            "are in the log only"
        )
    if in_log is None:
        identity = StoreIdentity(STORE_FORMAT, os.urandom(16).hex(), config.node_id, config.cluster_id)
        # The log is the authority: it is marked first, so a crash in between leaves a state that can be rebuilt.
        _write(log, identity)
        _write(state, identity)
        return identity, False
    wanted = config.cluster_id or in_log.cluster_id
    if in_log.cluster_id and ClusterName.parse(in_log.cluster_id).name == config.cluster_id:
        wanted = in_log.cluster_id
    if in_log.cluster_id not in ("", wanted) or in_log.node_id != config.node_id:
        raise ConfigError(
            f"the data directory belongs to node {in_log.node_id!r} of cluster {in_log.cluster_id!r}, the "
            f"configuration says {config.node_id!r} of {wanted!r}"
        )
    in_log = msgspec.structs.replace(in_log, cluster_id=wanted)
    if in_state is None:
        _write(state, in_log)
        return in_log, True
    if in_state.store_id != in_log.store_id:
        raise DamagedStoreError("raft/ and state/ belong to two different data directories")
    return in_log, False


def read_identity(engine: Engine, name: str) -> StoreIdentity | None:
    """The identity of a store; None if it is new. Raises DamagedStoreError or ConfigError."""
    value = engine.get(_IDENTITY_KEY)
    if value is None:
        return None
    try:
        identity = msgspec.msgpack.decode(value, type=StoreIdentity)
    except msgspec.DecodeError as error:
        raise DamagedStoreError(f"{name}/: its identity is unreadable ({error})") from None
    if not formats.DATA_DIRECTORY.reads(identity.format):
        raise ConfigError(formats.refusal(f"{name}/", formats.DATA_DIRECTORY, identity.format, identity.build))
    return identity


def identity_row(identity: StoreIdentity) -> dict[bytes, bytes | None]:
    """What is written of an identity."""
    return {_IDENTITY_KEY: msgspec.msgpack.encode(identity)}


def _write(engine: Engine, identity: StoreIdentity, *, sync: bool = True) -> None:
    engine.write(identity_row(identity))
    if sync:
        engine.sync()
