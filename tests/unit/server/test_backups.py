"""A node keeps checkpoints for those who read them, few and not for ever, and none of what it has not got whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metad.config import StorageConfig
from metad.node.disk.backups import AGE_S, IDLE_S, Backups
from metad.storage.rocks import RocksEngine, Shared, state_options
from metad_wire.cluster import ReadIndexReply
from metad_wire.errors import ConflictError, MetadError, NoRoomError, NotFoundError, NotLeaderError
from metad_wire.methods import BACKUP_BEGIN, BACKUP_END, BACKUP_READ, encode
from metad_wire.operator.backup import BackupBegin, BackupBegun, BackupEnd, BackupPiece, BackupRead


class World:
    """Time that a test moves, and work that is done at once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 1

    def beside(self, work: Callable[[], None], done: Callable[[BaseException | None], None], queue: Any) -> None:
        try:
            work()
        except OSError as error:
            done(error)
        else:
            done(None)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Any:
        self.timers.append((when_s, callback))
        return SimpleNamespace(cancel=lambda: None)

    def wait(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while due := sorted((one for one in self.timers if one[0] <= until_s), key=lambda one: one[0])[:1]:
            self.timers.remove(due[0])
            self.now_s = due[0][0]
            due[0][1]()
        self.now_s = until_s


class _Replica(SimpleNamespace):
    __hash__ = object.__hash__


class Rig:
    def __init__(self, place: Path) -> None:
        self.world, self.room = World(), True
        self.engine = RocksEngine(place / "state", state_options(Shared(StorageConfig())), wal=False)
        self.engine.write({b"key": b"value"})
        identity: Any = SimpleNamespace(node_id="n1", store_id="s", cluster_id="c", format=4, converts=0)
        self.stores: Any = SimpleNamespace(directory=place, state=self.engine, identity=identity)
        self.groups: Any = SimpleNamespace(drivers={})
        health: Any = SimpleNamespace(failure=None)
        self.peers: Any = SimpleNamespace(call=None)
        world = cast_any(self.world)
        self.backups = Backups(self.stores, self.groups, self.peers, world, health, has_room=lambda _: self.room)

    def follow(self, applied: int) -> Any:
        """Have a replica of a group without a leader."""
        group = SimpleNamespace(group_id="data-0", name="data-0", is_leader=False, leader="")
        machine = SimpleNamespace(applied=applied, revision=applied, reader=SimpleNamespace(now_ms=lambda: 1))
        driver = _Replica(group=group, machine=machine, installing=False)
        self.groups.drivers["data-0"] = driver
        return driver

    def ask(self, method: Any, body: Any) -> Any:
        found: list[Any] = []
        self.backups.handle(method, body, found.append)
        (answer,) = found
        if isinstance(answer, MetadError):
            raise answer
        return method.decode_reply(answer)

    def begin(self, id_: str) -> BackupBegun:
        begun: BackupBegun = self.ask(BACKUP_BEGIN, BackupBegin(id_))
        return begun

    def read(self, id_: str, name: str = "CURRENT") -> BackupPiece:
        piece: BackupPiece = self.ask(BACKUP_READ, BackupRead(id_, name, 0, 1_000))
        return piece


def cast_any(value: Any) -> Any:
    return value


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.engine.close()


def test_a_checkpoint_is_what_it_was_whatever_is_written_later(rig: Rig) -> None:
    begun = rig.begin("a")
    assert {file.name for file in begun.files} > {"CURRENT"}
    assert begun.format == 4
    names = [file.name for file in begun.files if file.name.endswith(".sst")]
    before = [rig.read("a", name) for name in names]
    rig.engine.write({b"key": b"other"})
    rig.engine.compact(b"", b"\xff")
    assert [rig.read("a", name) for name in names] == before
    assert rig.begin("a") == begun


@pytest.mark.parametrize("name", ["../state/CURRENT", "/etc/passwd", "", "."])
def test_nothing_is_read_but_files_of_the_checkpoint(rig: Rig, name: str) -> None:
    rig.begin("a")
    with pytest.raises(NotFoundError):
        rig.read("a", name)


def test_one_that_nobody_reads_goes_and_makes_room_for_another_before(rig: Rig) -> None:
    rig.begin("a")
    rig.begin("b")
    with pytest.raises(ConflictError, match="already, which are being read: a, b"):
        rig.begin("c")
    rig.world.wait(50)
    rig.read("b")
    rig.world.wait(20)
    rig.begin("c")
    with pytest.raises(NotFoundError):
        rig.read("a")
    rig.world.wait(2 * IDLE_S)
    for id_ in ("b", "c"):
        with pytest.raises(NotFoundError):
            rig.read(id_)


def test_none_is_kept_for_ever(rig: Rig) -> None:
    rig.begin("a")
    for _ in range(int(AGE_S // 60) - 1):
        rig.world.wait(60)
        rig.read("a")
    rig.world.wait(180)
    with pytest.raises(NotFoundError):
        rig.read("a")


def test_what_is_dropped_is_gone_from_the_disk_and_what_an_earlier_life_left_is_too(rig: Rig, tmp_path: Path) -> None:
    rig.begin("a")
    assert [*(tmp_path / "backups").iterdir()]
    rig.ask(BACKUP_END, BackupEnd("a"))
    assert [*(tmp_path / "backups").iterdir()] == []
    rig.begin("b")
    Backups(rig.stores, cast_any(None), cast_any(None), cast_any(None), cast_any(None), has_room=lambda _: True)
    assert not (tmp_path / "backups").exists()


def test_a_node_without_room_or_with_rows_to_convert_takes_none(rig: Rig) -> None:
    rig.room = False
    with pytest.raises(NoRoomError):
        rig.begin("a")
    rig.room, rig.stores.identity.converts = True, 3
    with pytest.raises(ConflictError, match="converts rows of an older format"):
        rig.begin("a")


def test_a_group_that_elects_its_leader_is_asked_again(rig: Rig) -> None:
    """Once one said ``conflict``: a leader that had died just before was the end of a backup."""
    driver, asked, found = rig.follow(applied=7), list[float](), list[Any]()

    def call(node: str, method: int, payload: bytes, done: Callable[[Any], None]) -> None:
        asked.append(rig.world.now_s)
        lost = len(asked) == 1
        done(NotLeaderError("it leads no more") if lost else encode(ReadIndexReply(7)))

    rig.peers.call = call
    rig.backups.handle(BACKUP_BEGIN, BackupBegin("a"), found.append)
    rig.world.wait(2)
    assert not found
    driver.group.leader = "n2"
    rig.world.wait(1)
    begun = BACKUP_BEGIN.decode_reply(found[0])
    assert [(group.group, group.index, group.stale) for group in begun.groups] == [("data-0", 7, False)]
    assert len(asked) == 2, "once it has said how far the group is, it is not asked again"


def test_a_group_without_a_leader_is_not_waited_for_without_end_and_not_at_all_where_stale_is_enough(rig: Rig) -> None:
    rig.follow(applied=7)
    found: list[Any] = []
    rig.backups.handle(BACKUP_BEGIN, BackupBegin("a", stale=True), found.append)
    (group,) = BACKUP_BEGIN.decode_reply(found.pop()).groups
    assert group.stale
    rig.backups.handle(BACKUP_BEGIN, BackupBegin("b"), found.append)
    rig.world.wait(30)
    assert isinstance(found[0], ConflictError)
    assert "no leader of data-0 is known" in str(found[0])
