"""Checkpoints of this node's state, which who takes a backup reads piece by piece while the node serves.

A checkpoint has everything that was acknowledged before it was asked for: the node asks the leaders of its groups how
far they are, and waits until it has applied that. It is links to files that never change, so it costs a flush and no
copy. Nobody answers for it when the node ends: the next start removes it, and who reads it begins anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from metad_wire.cluster import Done as Dropped
from metad_wire.errors import (
    ConflictError,
    InvalidRequestError,
    LogCutError,
    MetadError,
    NoRoomError,
    NotFoundError,
    NotReplicaError,
    UnsupportedError,
)
from metad_wire.methods import BACKUP_BEGIN, BACKUP_END, BACKUP_READ, Method, encode
from metad_wire.operator import backup as bak
from metad_wire.program.build import build

from ... import log_events
from ...control.host import Done
from ...errors import StorageError, file_error
from ...logs import event
from ...storage.rocks import RocksEngine, checkpoint
from ..calls.peer_sender import PeerSender
from ..environment import Environment, Queue, Timer
from ..health import Health
from ..replicas.driver import GroupDriver
from ..replicas.groups import Groups
from ..requests.near import ask_read_index
from .stores import Stores

KEPT_MAX: Final = 2
"""Checkpoints at a time: each keeps files that the store has dropped."""
IDLE_S: Final = 600.0
"""One that nobody has read for so long is dropped."""
AGE_S: Final = 86_400.0
"""And one that is so old, however often it is read."""
_UNREAD_S: Final = 60.0
"""And after so long if another needs its place."""
_WAIT_S: Final = 20.0  # for the leaders' answers, and until the node has applied what they say
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 0.25
"""From one question to the next, of a group that elects a leader."""


class _Checkpoint:
    """One that there is, or is about to be."""

    def __init__(self, directory: Path, now_s: float) -> None:
        self.directory = directory
        self.begun: bak.BackupBegun | None = None
        """None while it is being made."""
        self.files: set[str] = set()
        self.waiting: list[Done] = []
        self.used_s = now_s
        self.made_s = now_s


class Backups:
    """The checkpoints of this node."""

    def __init__(
        self,
        stores: Stores,
        groups: Groups,
        peers: PeerSender,
        environment: Environment,
        health: Health,
        *,
        has_room: Callable[[int], bool],
    ) -> None:
        self._stores = stores
        self._groups = groups
        self._peers = peers
        self._environment = environment
        self._health = health
        self._has_room = has_room
        self._kept: dict[str, _Checkpoint] = {}
        self._number = 0
        self._timer: Timer | None = None
        self._directory = None if stores.directory is None else stores.directory / "backups"
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)  # what an earlier life has left

    def handle(self, method: Method[Any, Any], body: Any, done: Done) -> None:
        """Answer a request. Raises MetadError."""
        if self._health.failure is not None:
            raise NotReplicaError("the node has stopped; its log says why")
        if method is BACKUP_BEGIN:
            self._begin(body, done)
        elif method is BACKUP_READ:
            self._read(body, done)
        elif method is BACKUP_END:
            self._drop(body.id)
            done(encode(Dropped(f"checkpoint {body.id} is dropped")))
        else:
            done(encode(self._entries(body)))

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    # --- a checkpoint is made ----------------------------------------------------------------------------

    def _begin(self, body: bak.BackupBegin, done: Done) -> None:
        if self._directory is None or not isinstance(self._stores.state, RocksEngine):
            raise UnsupportedError("this node keeps everything in memory, and has no files")
        if not body.id:
            raise InvalidRequestError("a checkpoint needs an id")
        known = self._kept.get(body.id)
        if known is not None:
            known.used_s = self._environment.now()
            if known.begun is None:
                known.waiting.append(done)
            else:
                done(encode(known.begun))
            return
        if len(self._kept) >= KEPT_MAX and not self._drop_oldest(_UNREAD_S):
            names = ", ".join(self._kept)
            raise ConflictError(f"this node keeps {KEPT_MAX} checkpoints already, which are being read: {names}")
        if self._stores.identity.converts:
            raise ConflictError("the node converts rows of an older format: begin once its log says `converted`")
        if not self._has_room(0):
            raise NoRoomError("the disk is short of room, and a checkpoint keeps files that would be dropped")
        self._number += 1
        checkpoint = _Checkpoint(self._directory / str(self._number), self._environment.now())
        checkpoint.waiting.append(done)
        self._kept[body.id] = checkpoint
        self._look_later()
        _Wanted(self._groups, self._peers, self._environment, body.stale).ask(
            partial(self._make, body.id, checkpoint, self._stores.state)
        )

    def _make(
        self, id_: str, checkpoint: _Checkpoint, state: RocksEngine, groups: list[bak.BackupGroup] | MetadError
    ) -> None:
        if isinstance(groups, MetadError):
            self._failed(id_, checkpoint, groups)
            return
        if self._kept.get(id_) is not checkpoint:
            self._tell(checkpoint, NotFoundError(f"checkpoint {id_} was dropped"))
            return
        found: list[bak.BackupFile] = []
        wall_ms = self._environment.wall_ms()

        def made(error: BaseException | None) -> None:
            if error is not None:
                why = str(error) if isinstance(error, StorageError | OSError) else f"{type(error).__name__}: {error}"
                self._failed(id_, checkpoint, ConflictError(f"the checkpoint was not made: {why}"))
                return
            identity = self._stores.identity
            checkpoint.files = {file.name for file in found}
            who = identity.node_id, identity.store_id, identity.cluster_id
            checkpoint.begun = bak.BackupBegun(*who, build(), wall_ms, groups, found, identity.format)
            event(log_events.CHECKPOINT_KEPT, id=id_, files=len(found), bytes=sum(file.size for file in found))
            self._tell(checkpoint, encode(checkpoint.begun))

        self._environment.beside(partial(_checkpoint, state, checkpoint.directory, found), made, Queue.BACKUPS)

    def _failed(self, id_: str, checkpoint: _Checkpoint, error: MetadError) -> None:
        if self._kept.get(id_) is checkpoint:
            self._drop(id_)
        self._tell(checkpoint, error)

    def _tell(self, checkpoint: _Checkpoint, answer: bytes | MetadError) -> None:
        waiting, checkpoint.waiting = checkpoint.waiting, []
        for done in waiting:
            done(answer)

    # --- it is read, and dropped -------------------------------------------------------------------------

    def _read(self, body: bak.BackupRead, done: Done) -> None:
        checkpoint = self._kept.get(body.id)
        if checkpoint is None or checkpoint.begun is None:
            raise NotFoundError(f"there is no checkpoint {body.id}: it was dropped, or the node has started since")
        if body.name not in checkpoint.files:
            raise NotFoundError(f"there is no file {body.name!r} in checkpoint {body.id}")
        checkpoint.used_s = self._environment.now()
        found: list[bytes] = []

        def read(error: BaseException | None) -> None:
            if error is None:
                done(encode(bak.BackupPiece(found[0])))
            elif isinstance(error, OSError):
                done(ConflictError(f"{body.name} of checkpoint {body.id} cannot be read: {error.strerror}"))
            else:
                raise error

        self._environment.beside(
            partial(_piece, checkpoint.directory / body.name, body.offset, body.size, found), read, Queue.BACKUPS
        )

    def _drop_oldest(self, unread_s: float) -> bool:
        """Drop one that nobody has read for so long; whether there was one."""
        now_s = self._environment.now()
        for id_, kept in list(self._kept.items()):
            if kept.begun is not None and (now_s - kept.used_s >= unread_s or now_s - kept.made_s >= AGE_S):
                event(log_events.CHECKPOINT_DROPPED, id=id_, seconds=round(now_s - kept.used_s))
                self._drop(id_)
                return True
        return False

    def _drop(self, id_: str) -> None:
        checkpoint = self._kept.pop(id_, None)
        if checkpoint is not None:
            self._environment.beside(
                partial(shutil.rmtree, checkpoint.directory, ignore_errors=True), _ignore, Queue.BACKUPS
            )

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._environment.call_at(self._environment.now() + IDLE_S / 10, self._look)

    def _look(self) -> None:
        self._timer = None
        while self._drop_oldest(IDLE_S):
            pass
        if self._kept:
            self._look_later()

    # --- the log behind it -------------------------------------------------------------------------------

    def _entries(self, body: bak.BackupLog) -> bak.BackupEntries:
        driver = self._groups.replica(body.group)
        log, applied = driver.group.log, driver.machine.applied
        if driver.installing:
            raise NotReplicaError(f"a snapshot is being put in place of {body.group} on this node")
        if body.after < log.base_index:
            raise LogCutError(f"the log of {body.group} here begins behind {log.base_index}")
        entries = log.records(body.after + 1, body.size, applied + 1) if body.after < applied else []
        return bak.BackupEntries(entries, applied, self._environment.wall_ms(), self._stores.identity.cluster_id)


class _Wanted:
    """How far a checkpoint is to be: learned from the leaders, then waited for."""

    def __init__(self, groups: Groups, peers: PeerSender, environment: Environment, stale: bool) -> None:
        self._drivers = list(groups.drivers.values())
        self._groups = groups
        self._peers = peers
        self._environment = environment
        self._stale = stale
        self._answers: dict[GroupDriver, int | MetadError] = {}
        self._until_s = environment.now() + _WAIT_S
        self._again_s = environment.now() + _AGAIN_S
        self._done: Callable[[list[bak.BackupGroup] | MetadError], None] | None = None

    def ask(self, done: Callable[[list[bak.BackupGroup] | MetadError], None]) -> None:
        """Call ``done`` once the state has it all, or with why it has not."""
        self._done = done
        for driver in self._drivers:
            self._ask(driver)
        self._look()

    def _ask(self, driver: GroupDriver) -> None:
        self._answers.pop(driver, None)
        ask_read_index(driver, self._peers.call, partial(self._answers.__setitem__, driver))

    def _ask_again(self, now_s: float) -> None:
        """A leader may have died just now, and another one be there soon: no answer is the last before the end."""
        self._again_s = now_s + _AGAIN_S
        for driver in self._drivers:
            if self._is_here(driver) and isinstance(self._answers.get(driver), MetadError):
                self._ask(driver)

    def _look(self) -> None:
        assert self._done is not None
        now_s = self._environment.now()
        late = now_s >= self._until_s
        if not late and not self._stale and now_s >= self._again_s:
            self._ask_again(now_s)
        lacks = {driver: why for driver in self._drivers if (why := self._lack(driver, late=late)) is not None}
        if any(why == "" for why in lacks.values()):
            self._environment.call_at(self._environment.now() + _LOOK_S, self._look)
        elif lacks and not self._stale:
            driver, why = next(iter(lacks.items()))
            self._done(ConflictError(f"{driver.group.name}: {why}; --stale takes what is there"))
        else:
            self._done([self._said(driver, stale=driver in lacks) for driver in self._drivers if self._is_here(driver)])

    def _is_here(self, driver: GroupDriver) -> bool:
        return self._groups.drivers.get(driver.group.group_id) is driver

    def _lack(self, driver: GroupDriver, *, late: bool) -> str | None:
        """Why a group is not as far as it has to be; empty: it may be soon; None: it is."""
        if not self._is_here(driver):
            return None
        answer = self._answers.get(driver)
        if isinstance(answer, MetadError):
            return str(answer) if late or self._stale else ""
        if answer is None:
            return "its leader has not said how far it is" if late else ""
        if driver.installing or driver.machine.applied < answer:
            return f"this node has applied {driver.machine.applied} of {answer}" if late else ""
        return None

    def _said(self, driver: GroupDriver, *, stale: bool) -> bak.BackupGroup:
        machine = driver.machine
        now_ms = machine.reader.now_ms()
        return bak.BackupGroup(driver.group.name, machine.applied, machine.revision, stale, now_ms)


def _checkpoint(state: RocksEngine, directory: Path, found: list[bak.BackupFile]) -> None:
    """Make it, and list its files."""
    try:
        directory.parent.mkdir(exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        checkpoint(state, directory)
        for path in sorted(directory.iterdir()):
            size = path.stat().st_size
            tail = _read_piece(path, max(0, size - bak.TAIL_BYTES), bak.TAIL_BYTES)
            found.append(bak.BackupFile(path.name, size, hashlib.sha256(tail).digest()))
    except OSError as error:
        raise file_error(str(directory), error) from None


def _piece(path: Path, offset: int, size: int, found: list[bytes]) -> None:
    found.append(_read_piece(path, offset, size))


def _read_piece(path: Path, offset: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


def _ignore(_: BaseException | None) -> None:
    """A removal is over; what is left of it goes with the next start."""
