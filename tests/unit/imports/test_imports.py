"""What an import decides without a source: which key a row becomes, what cannot be carried, whose a value in metad is,
and how both sides are read beside each other. And HTTP as far as etcd's gateway speaks it, wrong answers among it.

It guards the rule that a write of a client of metad is never overwritten in silence, also behind a step that was cut
off. Real sources are in ``e2e/test_import_etcd.py`` and ``e2e/test_import_zookeeper.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_import.copying import Pair, beside
from metad_import.etcd import prefix_end
from metad_import.gateway import Endpoint, Gateway, TooLongError
from metad_import.source import BATCH_ROWS, CARRIED_WITHOUT, NOT_CARRIED, Names, Row, SourceError
from metad_import.target import Act, Known, Note, decide, digest, id_of
from metad_wire.messages import VALUE_BYTES_MAX, KvKey

TORN = 7


def note(value: bytes | None, before: bytes | None = None, step: int = 1) -> Note:
    return Note(10, step, digest(value), digest(before))


@pytest.mark.parametrize(
    ("wanted", "known", "there", "act"),
    [
        (None, None, None, Act.NOTHING),
        (None, None, b"x", Act.NOTHING),  # the import has never had it
        (b"1", None, None, Act.PUT),
        (b"1", None, b"1", Act.NOTE),
        (b"1", None, b"x", Act.CONFLICT),  # it was there before
        (b"2", note(b"1"), b"1", Act.PUT),
        (b"2", note(b"1"), b"2", Act.NOTE),
        (b"2", note(b"1"), b"x", Act.CONFLICT),
        (b"2", note(b"1"), None, Act.CONFLICT),  # a client has deleted it
        (None, note(b"1"), b"1", Act.DELETE),
        (None, note(b"1"), None, Act.FORGET),
        (None, note(b"1"), b"x", Act.CONFLICT),
        # The step was done, so its value must be there.
        (b"3", note(b"2", b"1"), b"1", Act.CONFLICT),
        (b"3", note(b"2", None), None, Act.CONFLICT),
        # The step was cut off: its value may be there, or the one before.
        (b"3", note(b"2", b"1", TORN), b"1", Act.PUT),
        (b"3", note(b"2", b"1", TORN), b"2", Act.PUT),
        (b"3", note(b"2", None, TORN), None, Act.PUT),
        (b"3", note(b"2", b"1", TORN), b"x", Act.CONFLICT),
        (b"3", note(None, b"1", TORN), None, Act.PUT),  # a delete was cut off, and the key is back
        (None, note(b"2", b"1", TORN), b"1", Act.DELETE),
    ],
)
def test_whose_a_value_is(wanted: bytes | None, known: Note | None, there: bytes | None, act: Act) -> None:
    assert decide(wanted, known, there, {TORN}) is act


PLAIN = Names("/app/", "/app/", "into")
PATHS = Names("/app/", "/app", "into")


@pytest.mark.parametrize(
    ("names", "key", "target"),
    [
        (PLAIN, "/app/a/b", KvKey("into", "/app/a/b")),
        (Names("/app/", "/app/", "into", strip=True), "/app/a/b", KvKey("into", "a/b")),
        (Names("/app/", "/app/", "into", split=1), "/app/a/b", KvKey("into/a", "/app/a/b")),
        (Names("/app/", "/app/", "into", split=2, strip=True), "/app/a/b/c", KvKey("into/a/b", "a/b/c")),
        (Names("/app/", "/app/", "into", split=3), "/app/a", KvKey("into/a", "/app/a")),
        (Names("", "", "into", split=1), "/a/b", KvKey("into/a", "/a/b")),
        (PATHS, "/app", KvKey("into", "/app")),
        (Names("/app/", "/app", "into", split=1, strip=True), "/app", KvKey("into", "")),
        (Names("/", "/", "into", split=1), "/a/b", KvKey("into/a", "/a/b")),
    ],
)
def test_which_key_a_row_becomes(names: Names, key: str, target: KvKey) -> None:
    assert names.target(key) == target
    assert names.origin(target) == key


@given(st.text("a/", max_size=6), st.text("a/", max_size=6), st.integers(0, 3), st.booleans())
def test_no_two_rows_become_one_key(one: str, other: str, split: int, strip: bool) -> None:
    for names in (Names("/p", "/p", "n", split, strip), Names("/p/", "/p/", "n", split, strip)):
        first, second = (names.target(names.prefix + key) for key in (one, other))
        assert (first == second) == (one == other)
        assert names.origin(first) == names.prefix + one


def test_a_key_that_is_none_of_the_import_has_no_origin() -> None:
    assert PLAIN.origin(KvKey("into", "/other")) is None
    assert Names("/app/", "/app/", "into", split=1).origin(KvKey("into/b", "/app/a/x")) is None


def test_what_cannot_be_carried() -> None:
    def fault(key: bytes, size: int = 1, fault: str = "") -> str:
        return PLAIN.fault(Row(key, 1, None, size, fault=fault), "metad.import.etcd-000000000000")

    assert fault(b"/app/a") == fault(b"/app/a", VALUE_BYTES_MAX) == ""
    assert fault(b"/app/\xff") == "key_not_utf8"
    assert fault(b"/app/" + b"a" * 4_090) == "key_too_long"
    assert fault(b"/app/" + b"a" * 4_060) == "key_too_long", "its note would be"
    assert fault(b"/app/a", VALUE_BYTES_MAX + 1) == "value_too_large"
    assert fault(b"/app/a", fault="ephemeral") == "ephemeral"
    assert not NOT_CARRIED.keys() & CARRIED_WITHOUT.keys()


def test_an_import_is_known_by_its_words() -> None:
    assert id_of("etcd", PLAIN) == id_of("etcd", Names("/app/", "/app/", "into"))
    others = [Names("/app/", "/app/", "into", 1), Names("/app/", "/app/", "other"), PATHS]
    assert len({id_of("etcd", names) for names in (PLAIN, *others)}) == 4


async def _in(items: list[list[Row]]) -> AsyncIterator[list[Row]]:
    for item in items:
        yield item


async def _notes(keys: list[bytes]) -> AsyncIterator[tuple[bytes, Known]]:
    for key in keys:
        yield key, Known(note(key), 1)


@given(st.sets(st.binary(min_size=1, max_size=2), max_size=30), st.sets(st.binary(min_size=1, max_size=2), max_size=30))
def test_both_sides_beside_each_other(rows: set[bytes], noted: set[bytes]) -> None:
    async def paired() -> list[Pair]:
        ordered = [Row(key, 1, b"", 0) for key in sorted(rows)]
        batches = [ordered[start : start + 7] for start in range(0, len(ordered), 7)]
        return [pair async for pairs in beside(_in(batches), _notes(sorted(noted))) for pair in pairs]

    found = asyncio.run(paired())
    assert [pair.key for pair in found] == sorted(rows | noted)
    assert {pair.key for pair in found if pair.row is not None} == rows
    assert {pair.key for pair in found if pair.known is not None} == noted


def test_many_notes_without_rows_are_batches() -> None:
    async def sizes() -> list[int]:
        keys = [b"%06d" % number for number in range(2 * BATCH_ROWS + 5)]
        return [len(pairs) async for pairs in beside(_in([[Row(b"1", 1, b"", 0)]]), _notes(keys))]

    assert asyncio.run(sizes()) == [BATCH_ROWS, BATCH_ROWS, 6]


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"/a", b"/b"), (b"a\xff", b"b"), (b"", b"\0"), (b"\xff\xff", b"\0"), (b"/a/", b"/a0")]
)
def test_where_a_prefix_ends(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


@pytest.mark.parametrize("url", ["ftp://h:1", "http://", "http://h/path", "http://h:x"])
def test_what_is_no_endpoint(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Endpoint.of(url)
    assert Endpoint.of("h:1") == Endpoint.of("http://h:1") == Endpoint("h", 1, False)


async def _asked(answer: bytes) -> bytes:
    """The body that a gateway makes of these bytes."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
        gateway = Gateway([Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], False)], None, 5.0)
        try:
            return (await gateway.ask("/", b"")).body
        finally:
            await gateway.close()


async def test_answers_that_are_whole() -> None:
    assert await _asked(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc") == b"abc"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert await _asked(chunked) == b"abc"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "closed the connection"),
        (b"SSH-2.0\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "invalid literal"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "invalid literal"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 101, "too many headers"),
    ],
)
async def test_answers_that_are_wrong(answer: bytes, error: str) -> None:
    with pytest.raises(SourceError, match=error):
        await _asked(answer)


async def test_an_answer_that_is_too_long() -> None:
    with pytest.raises(TooLongError):
        await _asked(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n")
