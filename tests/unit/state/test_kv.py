"""Key-values: the rules that the model (test_model.py) does not reach: bounds, scans, and transactions one by one."""

from __future__ import annotations

import msgspec
import pytest
from state_rig import MIB, Rig, command_of, item_errors

from metad.state.core.view import MISSING, HeadCache
from metad.state.kv.kv_records import RECORDS
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import TooLargeError
from metad_wire.messages import KvCompare as Compare
from metad_wire.messages import KvKey as Key
from metad_wire.messages import KvOperation as Do
from metad_wire.messages import KvPutItem as Put
from metad_wire.messages import KvTransaction as Transaction
from metad_wire.methods import encode
from metad_wire.tables.kv import KV

_decode_kv = msgspec.msgpack.Decoder(m.Kv).decode


@pytest.fixture(params=(0, 3), ids=lambda lag: f"lag{lag}")
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(lag=request.param)


def put(rig: Rig, *items: Put) -> m.KvPutReply:
    reply: m.KvPutReply = rig.write(methods.KV_PUT, m.KvPut(list(items)))
    return reply


def transact(rig: Rig, *items: Transaction) -> m.KvTransactReply:
    reply: m.KvTransactReply = rig.write(methods.KV_TRANSACT, m.KvTransact(list(items)))
    return reply


def get(rig: Rig, *keys: Key) -> list[m.Kv | None]:
    rig.settle()
    records: list[m.Kv | None] = rig.read(methods.KV_GET, methods.KV_GET.body(list(keys))).found
    return records


def test_versions_count_from_creation_and_start_again_after_deletion(rig: Rig) -> None:
    assert put(rig, Put("n", "k", b"1"), Put("n", "k", b"2")).versions == [1, 2]
    assert put(rig, Put("n", "k", b"3")).versions == [3]
    assert get(rig, Key("n", "k")) == [m.Kv("n", "k", b"3", 3, 1, 2)]
    assert item_errors(rig.write(methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", "k", 3)]))) == {}
    assert put(rig, Put("n", "k", b"4", expected_version=0)).versions == [1]
    assert get(rig, Key("n", "k")) == [m.Kv("n", "k", b"4", 1, 4, 4)]


def test_an_item_that_conflicts_leaves_the_others_alone(rig: Rig) -> None:
    reply = put(rig, Put("n", "a", b"1"), Put("n", "a", b"x", 7), Put("n", "b", b"x", 1), Put("n", "c", b"3", 0))
    assert item_errors(reply) == {1: "conflict", 2: "conflict"}
    assert reply.versions == [1, 0, 0, 1]
    assert [record and record.value for record in get(rig, *(Key("n", k) for k in "abc"))] == [b"1", None, b"3"]


def test_many_namespaces_answer_in_order(rig: Rig) -> None:
    items = [Put(f"n{i}", "k", b"%d" % i) for i in range(40)]
    assert put(rig, *items).versions == [1] * 40
    assert put(rig, *items[:30]).versions == [2] * 30
    assert put(rig, *items).versions == [3] * 30 + [2] * 10
    found = get(rig, *(Key(item.namespace, "k") for item in items))
    assert [record and record.value for record in found] == [item.value for item in items]


def test_a_transaction_sees_what_it_has_done_and_its_batch_did_before_it(rig: Rig) -> None:
    reply = transact(
        rig,
        Transaction("n", [Compare("a", version=0)], [Do("a", b"1"), Do("a", b"2")], reads=["a", "b"]),
        Transaction("n", [Compare("a", version=2, value=b"2")], [Do("b", b"3")], reads=["b"]),
        Transaction("n", [Compare("a", value=b"no")], [Do("a", b"x")], [Do("a"), Do("never")], reads=["a"]),
        Transaction("n", [Compare("a", version=0), Compare("b", version=1)], [], reads=["a", "b"]),
    )
    assert [result and result.succeeded for result in reply.results] == [True, True, False, True]
    assert [[r and (r.value, r.version) for r in result.records] for result in reply.results if result] == [
        [(b"2", 2), None],
        [(b"3", 1)],
        [None],
        [None, (b"3", 1)],
    ]


def test_compares(rig: Rig) -> None:
    put(rig, Put("n", "k", b"v"))

    def holds(*compares: Compare) -> bool:
        (result,) = transact(rig, Transaction("n", list(compares), [])).results
        assert result is not None
        return result.succeeded

    assert holds()
    assert holds(Compare("k"))
    assert holds(Compare("absent"))
    assert holds(Compare("k", 1, b"v"))
    assert not holds(Compare("k", 2, b"v"))
    assert not holds(Compare("k", 1, b""))
    assert not holds(Compare("absent", value=b""))  # absent is not empty
    assert holds(Compare("absent", version=0))
    assert not holds(Compare("k", 1), Compare("k", 2))


def test_transactions_of_several_namespaces_answer_in_order(rig: Rig) -> None:
    reply = transact(rig, *(Transaction(f"n{i}", [], [Do("k", b"%d" % i)], reads=["k"]) for i in range(30)))
    assert [result.records[0].value for result in reply.results if result and result.records[0]] == [
        b"%d" % i for i in range(30)
    ]


def written(rig: Rig) -> dict[str, int | None]:
    """Version by key, of what the newest entry writes; None of what it deletes."""
    rows = rig.group.in_flight[-1][2].writes
    names = {RECORDS.prefix(rig.group.prefix) + KV.key_of(("n", name)): name for name in ("old", "new", "gone")}
    return {names[key]: None if row is None else _decode_kv(row).version for key, row in rows.items()}


def test_a_transaction_leaves_no_write_where_there_is_no_record_before_and_after_it() -> None:
    rig = Rig(lag=1)
    put(rig, Put("n", "old", b"1"), Put("n", "old", b"2"))
    transact(rig, Transaction("n", [], [Do("gone"), Do("new", b"1"), Do("new"), Do("gone")]))
    assert written(rig) == {}
    transact(rig, Transaction("n", [], [Do("old", b"3")]), Transaction("n", [], [Do("old"), Do("old")]))
    assert written(rig) == {"old": None}
    transact(rig, Transaction("n", [], [Do("old"), Do("new", b"1"), Do("new"), Do("new", b"2"), Do("new", b"3")]))
    assert written(rig) == {"new": 2}
    transact(rig, Transaction("n", [Compare("new", 2)], [Do("new"), Do("new", b"4"), Do("old", b"4")], reads=["new"]))
    assert written(rig) == {"new": 1, "old": 1}
    transact(rig, Transaction("n", [], [Do("new"), Do("new", b"5"), Do("new")], reads=["new"]))
    assert written(rig) == {"new": None}
    assert put(rig, Put("n", "new", b"6", 0), Put("n", "gone", b"6", 0)).versions == [1, 1]
    assert [record and record.version for record in get(rig, *(Key("n", k) for k in ("old", "new", "gone")))] == [1] * 3


def test_a_transaction_deletes_a_record_of_which_nothing_is_remembered() -> None:
    rig = Rig()
    put(rig, Put("n", "old", b"1"))
    rig.group.machine.parts[HeadCache].forget()
    transact(rig, Transaction("n", [], [Do("old")]))
    assert get(rig, Key("n", "old")) == [None]


def test_a_transaction_deletes_what_an_earlier_request_of_its_entry_created() -> None:
    rig = Rig(lag=9)
    first = command_of(methods.KV_PUT, m.KvPut([Put("n", "new", b"1")]))
    empty = command_of(methods.KV_TRANSACT, m.KvTransact([Transaction("n", [], [Do("gone")])]))
    second = command_of(methods.KV_TRANSACT, m.KvTransact([Transaction("n", [], [Do("new", b"2"), Do("new")])]))
    assert len(rig.group.propose([(first, None), (empty, None), (second, None)], rig.now_ms)) == 2
    assert len(rig.group.propose([(second, None)], rig.now_ms)) == 1
    assert written(rig) == {"new": None}
    assert get(rig, Key("n", "new")) == [None]


def test_a_key_that_is_too_long_refuses_its_item_wherever_it_is_named(rig: Rig) -> None:
    long = "x" * 4096
    for transaction in (
        Transaction("n", [Compare(long)], []),
        Transaction("n", [], [Do(long)]),
        Transaction("n", [], [], [Do(long)]),
        Transaction("n", [], [], reads=[long]),
        Transaction(long, [], [Do("k")]),
    ):
        reply = transact(rig, transaction, Transaction("n", [], [Do("a", b"1")]), transaction)
        assert item_errors(reply) == {0: "invalid_item", 2: "invalid_item"}
        assert [result is None for result in reply.results] == [True, False, True]
    reply = put(rig, Put("n", "b", b"1"), Put("n", long, b""), Put("n", "c", b"2", 7))
    assert item_errors(reply) == {1: "invalid_item", 2: "conflict"}
    assert reply.errors[0].message.startswith("its key fields take 4")
    assert reply.versions == [1, 0, 0]
    rig.settle()
    reply = rig.read(methods.KV_GET, methods.KV_GET.body([Key("n", "a"), Key("n", long), Key("n", "b")]))
    assert [record and record.version for record in reply.found] == [5, None, 1]
    assert item_errors(reply) == {1: "invalid_item"}


def test_a_transaction_cannot_read_more_than_a_reply_holds() -> None:
    # Once wrong: a few bytes of request named a megabyte each, 128,000 times over.
    rig = Rig()
    put(rig, Put("n", "large", bytes(MIB)))
    reads = Transaction("n", [], [Do("done", b"1")], reads=["large"] * 128)
    with pytest.raises(TooLargeError, match="ask for fewer"):
        transact(rig, *[reads] * 7)
    assert get(rig, Key("n", "done")) == [None]
    assert transact(rig, Transaction("n", [], [Do("done", b"1")], reads=["large"] * 3)).errors == []
    with pytest.raises(TooLargeError, match="ask for fewer"):
        get(rig, *[Key("n", "large")] * 1_000)


NAMES = ["", "\0", "a", "a\0", "a\0b", "a\x01", "ab", "abc", "b", "ü", "üü", "\U0001f600"]


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize("prefix", ["", "\0", "a", "a\0", "ab", "ü", "no"])
def test_a_scan_shows_each_key_of_the_namespace_once(limit: int, prefix: str) -> None:
    rig = Rig()
    namespaces = ["n", "n\0", "m", "", "n2"]
    for number, namespace in enumerate(namespaces):
        put(rig, *(Put(namespace, name, b"%d" % number) for name in NAMES))
    found: list[tuple[str, bytes]] = []
    cursor = b""
    while True:
        reply = rig.read(methods.KV_SCAN, m.KvScan("n", prefix, m.Page(limit, cursor)))
        assert len(reply.found) <= limit
        found += [(record.key, record.value) for record in reply.found]
        cursor = reply.cursor
        if not cursor:
            break
    expected = sorted((name for name in NAMES if name.startswith(prefix)), key=str.encode)
    assert found == [(name, b"0") for name in expected]


def test_pages_of_large_values_are_short_and_complete() -> None:
    # Once a page gathered a thousand rows before it looked at their size.
    rig = Rig()
    for i in range(20):
        put(rig, Put("n", f"{i:02}", bytes(900_000)))
    cursor, sizes, names = b"", [], []
    while True:
        reply = rig.read(methods.KV_SCAN, m.KvScan("n", "", m.Page(1000, cursor)))
        names += [record.key for record in reply.found]
        sizes.append(sum(len(record.value) for record in reply.found))
        cursor = reply.cursor
        if not cursor:
            break
    assert names == [f"{i:02}" for i in range(20)]
    assert max(sizes) <= 3 * MIB


@pytest.mark.parametrize("cursor", [b"\0", b"\xff" * 30, b"zzz\0\x01"])
def test_a_foreign_cursor_cannot_lead_out_of_the_namespace(cursor: bytes) -> None:
    rig = Rig()
    put(rig, *(Put(namespace, "k", b"") for namespace in ("m", "n", "o")))
    reply = rig.read(methods.KV_SCAN, m.KvScan("n", page=m.Page(10, cursor)))
    assert {record.namespace for record in reply.found} <= {"n"}


def test_rows_that_are_spelled_out_are_records_as_the_wire_has_them() -> None:
    items = [Put("n", "k\0", b"v"), Put("", "", b"", 3)]
    rows = RECORDS._encode_rows(items, [1, 2], [3, 4], 5)
    assert rows == RECORDS.general_encode_rows(items, [1, 2], [3, 4], 5)
    assert [_decode_kv(row) for row in rows] == [m.Kv("n", "k\0", b"v", 1, 3, 5), m.Kv("", "", b"", 2, 4, 5)]
    assert rows[0] == encode(("n", "k\0", b"v", 1, 3, 5)), "a record without a lease has no byte for one"


def test_what_is_known_of_rows_that_are_not_there_counts_with_its_keys() -> None:
    """Deletes of long absent keys once took thirteen times the memory that they were counted for."""
    rig = Rig()
    memory = rig.group.machine.parts[HeadCache]._shared
    before = memory._size
    names = [f"{n:04}".ljust(4_000, "x") for n in range(100)]
    rig.write(methods.KV_DELETE, m.KvDelete([m.KvDeleteItem("n", name) for name in names]))
    assert memory._size - before >= 100 * 4_000


def test_heads_are_known_of_both_generations() -> None:
    rig = Rig()
    heads = rig.group.machine.parts[HeadCache]
    heads.add({b"old": (1, 1), b"both": (1, 1), b"gone": None})
    heads.age()
    heads.add({b"both": (2, 1), b"young": (1, 3)})
    keys = [b"old", b"both", b"gone", b"young", b"never"]
    assert heads.get_many(keys) == [(1, 1), (2, 1), None, (1, 3), MISSING] == [heads.get(key) for key in keys]
