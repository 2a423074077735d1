"""What a filter asks for, and which filters are refused: in words that say what is wrong."""

from __future__ import annotations

import pytest

from metad.state.cluster.declarations import KnownTables
from metad.watch.filters import LENGTHS_MAX, SHORT_BYTES, Interest, compiled
from metad_wire import messages as m
from metad_wire.errors import InvalidRequestError
from metad_wire.table import ANY_KIND
from metad_wire.tables import TABLES
from metad_wire.watch import WatchFilter

KNOWN = KnownTables()

WATCHABLE = sorted(table.name for table in TABLES.values() if table.shows and table.kind != ANY_KIND)
OWNER, PROPERTIES, RECORD, OFFSET, GENERATION = 0x10, 0x11, 0x30, 0x20, 0x21


@pytest.mark.parametrize(
    ("filter", "kind", "expected"),
    [
        (WatchFilter("kv"), "data", [Interest(RECORD, b"")]),
        (WatchFilter("kv", ["n"]), "data", [Interest(RECORD, b"n\0\x01")]),
        (WatchFilter("kv", prefix="n"), "data", [Interest(RECORD, b"n")]),
        (WatchFilter("kv", ["n"], "a\0"), "data", [Interest(RECORD, b"n\0\x01a\0\xff")]),
        (WatchFilter("kv", ["n", "k"]), "data", [Interest(RECORD, b"n\0\x01k\0\x01")]),
        (WatchFilter("session"), "data", [Interest(OWNER, b""), Interest(PROPERTIES, b"")]),
        (WatchFilter("session", rows=["properties"]), "data", [Interest(PROPERTIES, b"")]),
        (WatchFilter("session", ["t"], broker="b"), "data", [Interest(OWNER, b"t\0\x01", "b")]),
        (WatchFilter("offset", ["t", "g", "p", 7]), "offset", [Interest(OFFSET, b"t\0\x01g\0\x01p\0\x01\0\0\0\x07")]),
        # a generation belongs to tenant and group: no generation is asked for by a topic
        (WatchFilter("offset", ["t", "g", "p"]), "offset", [Interest(OFFSET, b"t\0\x01g\0\x01p\0\x01")]),
        (WatchFilter("offset", ["t"]), "offset", [Interest(OFFSET, b"t\0\x01"), Interest(GENERATION, b"t\0\x01")]),
        (WatchFilter("cluster"), "metadata", [Interest(0x02, b"")]),
    ],
)
def test_a_filter_is_rows_and_the_beginning_of_their_keys(
    filter: WatchFilter, kind: str, expected: list[Interest]
) -> None:
    assert compiled([filter], kind, KNOWN) == expected


@pytest.mark.parametrize(
    ("filter", "kind", "why"),
    [
        (
            WatchFilter("nothing"),
            "data",
            f"there is no table 'nothing' to watch; there are {', '.join(WATCHABLE)}",
        ),
        (WatchFilter("group"), "data", "there is no table 'group' to watch"),
        (WatchFilter("kv"), "offset", "table kv is kept by data groups; this is a offset group"),
        (WatchFilter("kv", rows=["owner"]), "data", "table kv has no row 'owner' to watch; it has record"),
        (WatchFilter("kv", ["n", "k", "x"]), "data", "has 3 fields; the key has 2"),
        (WatchFilter("kv", [7]), "data", "has text in field namespace, the filter has 7"),
        (WatchFilter("offset", ["t", "g", "p", "0"]), "offset", "has a number in field partition, the filter has '0'"),
        (WatchFilter("offset", ["t", "g", "p"], "x"), "offset", "a prefix where the key has no further field of text"),
        (WatchFilter("kv", ["n", "k"], "x"), "data", "a prefix where the key has no further field of text"),
        (WatchFilter("offset", ["t", "g", "p"], rows=["generation"]), "offset", "has 3 fields; the key has 2"),
        (WatchFilter("cluster", ["x"]), "metadata", "has 1 fields; the key has 0"),
        (WatchFilter("cluster", prefix="x"), "metadata", "a prefix where the key has no further field of text"),
        (WatchFilter("kv", broker="b"), "data", "only sessions and partitions have brokers; table kv has none"),
        (WatchFilter("session", rows=["properties"], broker="b"), "data", "about the row owner, and no other"),
        (WatchFilter("kv", prefix="x" * (m.KEY_BYTES_MAX + 1)), "data", "but a key takes 4096 at most"),
    ],
)
def test_a_filter_that_nothing_can_pass_is_refused(filter: WatchFilter, kind: str, why: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        compiled([WatchFilter({"data": "kv", "offset": "offset", "metadata": "cluster"}[kind]), filter], kind, KNOWN)
    assert why in error.value.message


def test_a_watch_without_a_filter_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="needs a filter"):
        compiled([], "data", KNOWN)


def test_what_a_wider_filter_covers_is_dropped() -> None:
    """Or a change would be reported once for each of them."""
    filters = [
        WatchFilter("kv", ["a"], "x"),
        WatchFilter("kv", ["a"]),
        WatchFilter("kv", ["a", "xy"]),
        WatchFilter("kv", ["b"], "x"),
        WatchFilter("kv", ["b"], "x"),
        WatchFilter("session", ["t"], broker="b1"),
        WatchFilter("session", broker="b1"),
        WatchFilter("session", broker="b2"),
        WatchFilter("session", ["t"], "c", rows=["owner"]),
        WatchFilter("session", ["t"], "cc", broker="b3"),
    ]
    assert compiled(filters, "data", KNOWN) == [
        Interest(OWNER, b"", "b1"),
        Interest(OWNER, b"", "b2"),
        Interest(OWNER, b"t\0\x01c"),
        Interest(RECORD, b"a\0\x01"),
        Interest(RECORD, b"b\0\x01x"),
    ]


def test_filters_of_too_many_lengths_are_refused() -> None:
    """Each is looked for in every key that is as long."""
    long = [WatchFilter("kv", ["n"], "a" * (SHORT_BYTES + number) + "b") for number in range(LENGTHS_MAX + 1)]
    short = [WatchFilter("kv", ["n"], "a" * number + "b") for number in range(SHORT_BYTES - 4)]
    assert len(compiled([*short, *long[1:]], "data", KNOWN)) == len(short) + LENGTHS_MAX
    with pytest.raises(InvalidRequestError, match=f"over 256 bytes of {LENGTHS_MAX + 1} different lengths"):
        compiled([*short, *long], "data", KNOWN)
