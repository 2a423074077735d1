"""Group commit: one write a turn, one fsync at a time, and nobody is told before the disk has it."""

from __future__ import annotations

import pytest
from journal_rig import GROUP, HeldSyncer

from metad.errors import StorageError
from metad.storage.log import LogStore, LogWriter
from metad.storage.memory import MemoryEngine


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def synced(self, number: int) -> None:
        self.numbers.append(number)


class Fixture:
    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.syncer = HeldSyncer()
        self.errors: list[StorageError] = []
        self.writer = LogWriter(LogStore(self.engine), self.syncer, failed=self.errors.append)

    def stage(self, listener: Heard, key: bytes, value: bytes = b"v") -> int:
        self.writer.writes[key] = value
        return self.writer.changed(listener, GROUP, 1)


@pytest.fixture
def rig() -> Fixture:
    return Fixture()


def test_nothing_staged_writes_and_syncs_nothing(rig: Fixture) -> None:
    rig.writer.flush()
    assert rig.syncer.done is None
    assert not rig.writer.busy


def test_all_of_a_turn_is_one_write_and_one_fsync(rig: Fixture) -> None:
    a, b = Heard(), Heard()
    assert rig.stage(a, b"a") == rig.stage(b, b"b") == 1
    assert rig.engine.get(b"a") is None
    rig.writer.flush()
    assert (rig.engine.get(b"a"), rig.engine.get(b"b")) == (b"v", b"v")
    assert rig.writer.busy
    assert rig.writer.durable == 0
    rig.syncer.finish()
    assert a.numbers == b.numbers == [1]
    assert (rig.writer.durable, rig.writer.syncs, rig.writer.busy) == (1, 1, False)


def test_the_last_value_of_a_key_counts(rig: Fixture) -> None:
    rig.stage(Heard(), b"k", b"old")
    rig.stage(Heard(), b"k", b"new")
    rig.writer.flush()
    assert rig.engine.get(b"k") == b"new"


def test_writes_during_an_fsync_wait_for_the_next_and_share_it(rig: Fixture) -> None:
    a, b, c = Heard(), Heard(), Heard()
    rig.stage(a, b"a")
    rig.writer.flush()
    assert rig.stage(b, b"b") == 2
    rig.writer.flush()
    assert rig.stage(c, b"c") == 3
    rig.writer.flush()
    rig.syncer.finish()
    assert (a.numbers, b.numbers, c.numbers) == ([1], [], [])
    assert rig.writer.durable == 1
    rig.syncer.finish()
    assert (a.numbers, b.numbers, c.numbers) == ([1], [3], [3])
    assert rig.syncer.done is None
    assert rig.writer.syncs == 2


def test_the_next_fsync_is_ordered_before_anybody_is_told(rig: Fixture) -> None:
    ordered: list[bool] = []

    class Looks(Heard):
        def synced(self, number: int) -> None:
            ordered.append(rig.syncer.done is not None)

    rig.stage(Looks(), b"a")
    rig.writer.flush()
    rig.stage(Heard(), b"b")
    rig.writer.flush()
    rig.syncer.finish()
    assert ordered == [True]


def test_a_listener_may_stage_while_it_is_told(rig: Fixture) -> None:
    class Stages(Heard):
        def synced(self, number: int) -> None:
            super().synced(number)
            if number == 1:
                assert rig.stage(self, b"more") == 2

    listener = Stages()
    rig.stage(listener, b"a")
    rig.writer.flush()
    rig.syncer.finish()
    rig.writer.flush()
    rig.syncer.finish()
    assert listener.numbers == [1, 2]


def test_ranges_are_deleted_before_the_write_they_come_with(rig: Fixture) -> None:
    rig.engine.write({b"k1": b"old", b"k2": b"old"})
    rig.stage(Heard(), b"k2", b"new")
    rig.writer.delete_range(b"k1", b"k3")
    rig.writer.flush()
    assert (rig.engine.get(b"k1"), rig.engine.get(b"k2")) == (None, b"new")


def test_after_durable_comes_behind_every_listener(rig: Fixture) -> None:
    told: list[str] = []

    class Says(Heard):
        def synced(self, number: int) -> None:
            told.append("listener")

    rig.writer.after_durable(lambda: told.append("after"))
    rig.stage(Says(), b"a")
    rig.stage(Says(), b"b")
    rig.writer.flush()
    rig.syncer.finish()
    assert told == ["listener", "listener", "after"]


def test_a_failed_fsync_breaks_the_log_for_good(rig: Fixture) -> None:
    heard = Heard()
    rig.stage(heard, b"a")
    rig.writer.flush()
    rig.syncer.finish(StorageError("the disk is gone"))
    assert [str(error) for error in rig.errors] == ["the disk is gone"]
    assert heard.numbers == []
    assert rig.writer.durable == 0
    rig.stage(heard, b"b")
    rig.writer.flush()
    assert rig.syncer.done is None, "an fsync after a failed one may succeed though the first one's pages are lost"
    assert rig.engine.get(b"b") is None


def test_a_failed_write_breaks_the_log_for_good(rig: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(rig.engine, "write", refuse)
    rig.stage(Heard(), b"a")
    rig.writer.flush()
    rig.stage(Heard(), b"b")
    rig.writer.flush()
    assert [str(error) for error in rig.errors] == ["no space left"]
    assert rig.syncer.done is None


def test_an_fsync_that_ends_after_close_tells_nobody(rig: Fixture) -> None:
    heard = Heard()
    rig.stage(heard, b"a")
    rig.writer.flush()
    rig.writer.close()
    rig.syncer.finish()
    assert heard.numbers == []
    assert rig.syncer.closed
