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
from metad_wire.errors import ConflictError, MetadError, NoRoomError, NotFoundError
from metad_wire.methods import BACKUP_BEGIN, BACKUP_END, BACKUP_READ
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


class Rig:
    def __init__(self, place: Path) -> None:
        self.world, self.room = World(), True
        self.engine = RocksEngine(place / "state", state_options(Shared(StorageConfig())), wal=False)
        self.engine.write({b"key": b"value"})
        identity: Any = SimpleNamespace(node_id="n1", store_id="s", cluster_id="c", format=4, converts=0)
        self.stores: Any = SimpleNamespace(directory=place, state=self.engine, identity=identity)
        groups: Any = SimpleNamespace(drivers={})
        health: Any = SimpleNamespace(failure=None)
        world, peers = cast_any(self.world), cast_any(None)
        self.backups = Backups(self.stores, groups, peers, world, health, has_room=lambda _: self.room)

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
