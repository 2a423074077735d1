"""What an import writes to a real metad when a step is cut off at its worst moment, and when two runs meet.

It guards that a run goes on from there without taking its own work for that of a client of metad, or a client's for its
own. The source is a list: real ones are in ``e2e``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from metad import embedded
from metad_client import Client, ConnectionLostError, connect
from metad_import.copying import Copy
from metad_import.source import Head, ImportFailedError, Names, Row
from metad_import.target import Counts, TakenError, Target, Work
from metad_wire.policy.rates import Pace

NAMES = Names("/", "/", "into")


@pytest.fixture
async def m() -> AsyncIterator[Client]:
    async with embedded.serve() as server, connect(server.url) as client:
        yield client


class Listed:
    """A source whose rows are these."""

    kind, identity, keeps_history = "etcd", "s", True

    def __init__(self, rows: dict[str, bytes], revision: int) -> None:
        self._rows = [Row(key.encode(), revision, value, len(value)) for key, value in sorted(rows.items())]
        self._revision = revision

    async def head(self) -> Head:
        return Head(len(self._rows), self._revision, self._revision)

    async def rows(self, head: Head, after: bytes, *, thorough: bool = False) -> AsyncIterator[list[Row]]:
        for row in self._rows:
            if row.key > after:
                yield [row]

    async def filled(self, rows: Sequence[Row]) -> list[Row | None]:
        return [*rows]


class Refused(list[tuple[bytes, str]]):
    def add(self, key: bytes, code: str, more: dict[str, Any]) -> None:
        self.append((key, code))


async def begun(m: Client, refused: Refused, *, overwrite: bool = False) -> Target:
    target = Target(m, "etcd", NAMES, refused.add, overwrite=overwrite)
    await target.begin("s")
    return target


async def copied(m: Client, refused: Refused, rows: dict[str, bytes], revision: int, **how: Any) -> Counts:
    """Copy a snapshot in a run of its own."""
    target = await begun(m, refused, **how)
    target.state.phase = "copying"
    copy = Copy(Listed(rows, revision), target, refused.add, Pace(0), lambda _: None, lambda _: None)  # type: ignore[arg-type]
    await copy.snapshot()
    return copy.counts


async def there(m: Client) -> dict[str, bytes]:
    return {kv.key: kv.value async for kv in m.kv.scan("into")}


def cut_off(monkeypatch: pytest.MonkeyPatch, m: Client, call: str, at: int) -> None:
    """The connection is lost before the call of this number."""
    real, left = getattr(m.kv, call), iter(range(at, -1, -1))

    async def failing(items: Any, **how: Any) -> Any:
        if next(left) == 0:
            raise ConnectionLostError("cut off")
        return await real(items, **how)

    monkeypatch.setattr(m.kv, call, failing)


@pytest.mark.parametrize("changed", [{"/a": b"3"}, {"/a": b"2"}, {}], ids=["changed again", "the same", "deleted"])
@pytest.mark.parametrize("before", [{"/a": b"1"}, {}], ids=["was there", "was not there"])
async def test_a_step_that_is_cut_off_behind_its_notes(
    m: Client, monkeypatch: pytest.MonkeyPatch, before: dict[str, bytes], changed: dict[str, bytes]
) -> None:
    refused = Refused()
    await copied(m, refused, before, 1)
    with monkeypatch.context() as patch:
        cut_off(patch, m, "put_many", 1)  # the notes, then the keys
        with pytest.raises(ConnectionLostError):
            await copied(m, refused, {"/a": b"2"}, 2)
    assert await there(m) == before
    await copied(m, refused, changed, 2 if changed == {"/a": b"2"} else 3)
    assert await there(m) == changed
    assert refused == []


async def test_a_delete_that_is_cut_off_before_its_note_is_dropped(m: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Refused()
    await copied(m, refused, {"/a": b"1"}, 1)
    with monkeypatch.context() as patch:
        cut_off(patch, m, "delete_many", 1)  # the key, then its note
        with pytest.raises(ConnectionLostError):
            await copied(m, refused, {}, 2)
    assert await there(m) == {}
    await copied(m, refused, {"/a": b"again"}, 3)
    assert (await there(m), refused) == ({"/a": b"again"}, [])


async def test_a_client_that_changes_back_what_a_step_that_was_done_has_written(m: Client) -> None:
    refused = Refused()
    for revision, value in enumerate((b"1", b"2"), 1):
        await copied(m, refused, {"/a": value}, revision)
    await m.kv.put("into", "/a", b"1")
    counts = await copied(m, refused, {"/a": b"3"}, 3)
    assert (counts.conflicts, refused) == (1, [(b"/a", "conflict")])
    await copied(m, refused, {"/a": b"3"}, 3, overwrite=True)
    assert await there(m) == {"/a": b"3"}


async def test_an_import_does_not_go_on_from_another_source_nor_after_a_cut(m: Client) -> None:
    target = await begun(m, Refused())
    with pytest.raises(ImportFailedError, match="another source"):
        await Target(m, "etcd", NAMES, Refused().add).begin("other")
    target.state.phase = "done"
    await target.keep()
    with pytest.raises(ImportFailedError, match="newer data"):
        await Target(m, "etcd", NAMES, Refused().add).begin("s")
    await target.forget(state=True)
    assert (await begun(m, Refused())).phase == "copying"


async def test_a_run_that_begins_ends_the_one_in_the_middle_of_a_step(m: Client) -> None:
    refused = Refused()
    first = await begun(m, refused)
    second = await begun(m, refused)
    await first.write([Work("/a", Row(b"/a", 1, b"1", 1), None)])  # its last: the second has not seen the note
    with pytest.raises(TakenError):
        await first.keep()
    counts = await second.write([Work("/a", Row(b"/a", 2, b"2", 1), None)])
    await second.keep()
    assert (counts.written, refused, await there(m)) == (1, [], {"/a": b"2"})


async def test_a_key_that_changes_between_its_reading_and_its_writing_is_a_conflict(
    m: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Refused()
    await copied(m, refused, {"/a": b"1"}, 1)
    real = m.kv.put_many

    async def late(items: Any, **how: Any) -> Any:
        if items[0].namespace == "into":
            await m.kv.put("into", "/a", b"a client's")
        return await real(items, **how)

    monkeypatch.setattr(m.kv, "put_many", late)
    counts = await copied(m, refused, {"/a": b"2"}, 2)
    assert (counts.conflicts, counts.written, await there(m)) == (1, 0, {"/a": b"a client's"})
