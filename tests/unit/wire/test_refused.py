"""Items that are refused one by one: what is left of a request, and what becomes of the reply."""

from __future__ import annotations

from typing import Any, get_origin

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_strategies import values_of

from metad_wire import messages as m
from metad_wire.errors import InvalidItemError, InvalidRequestError
from metad_wire.families import FAMILIES
from metad_wire.faults import fault
from metad_wire.method import METHODS, Method, encode
from metad_wire.methods import KV_GET, KV_PUT, KV_SCAN, KV_TRANSACT, SESSION_TAKEOVER
from metad_wire.refused import Refused
from metad_wire.tables.table import DECLARED

BATCHES = [method for method in METHODS.values() if method.item is not None and method.table is not DECLARED]
BATCHES += [method for method in FAMILIES["topic_settings"].methods if method.item is not None]
NO_ITEM = st.sampled_from(
    [b"\x05", b"\xc0", b"\x90", b"\x80", b"\xa1x", b"\x94\xa1\xff\xa1k\xc4\x00\xc0", b"\x99" + b"\xc0" * 9]
)
"""Encoded values that are no item of any method."""


def test_every_batch_of_records_has_errors_and_columns() -> None:
    assert {method.name for method in BATCHES} >= {"session.takeover", "offset.generations", "kv.get", "kv.transact"}
    for method in BATCHES:
        fields = method.reply.__struct_fields__
        assert "errors" in fields
        assert set(method.reply.columns) <= set(fields)
        # Any other list by position would be too short.
        lists = {field.name for field in msgspec.structs.fields(method.reply) if get_origin(field.type) is list}
        assert lists - set(method.reply.columns) <= {"revisions", "errors", "owners"}


@pytest.mark.parametrize("method", BATCHES, ids=lambda method: method.name)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_what_fits_is_decoded_as_if_it_had_come_alone(method: Method[Any, Any], data: st.DataObject) -> None:
    body = data.draw(values_of(method.body))
    items = [encode(item) for item in body.items]
    bad: dict[int, bytes] = data.draw(st.dictionaries(st.integers(0, len(items)), NO_ITEM, min_size=1))
    places: list[int | None] = list(range(len(items)))
    for at in sorted(bad):
        items.insert(at, bad[at])
        places.insert(at, None)
    raw: list[Any] = [msgspec.Raw(encode(value)) for value in msgspec.structs.astuple(body)]
    raw[method.body.__struct_fields__.index("items")] = [msgspec.Raw(item) for item in items]
    payload = encode([5, None, raw, "g", 0])
    request, refused = method.decode_what_fits(payload)
    assert (request.deadline_ms, request.group, request.body) == (5, "g", body)
    assert refused is not None
    assert len(refused) == len(bad)
    with pytest.raises(InvalidRequestError, match=r"items\[\d+\]|UTF-8"):
        method.decode_request(payload)


def test_what_is_wrong_is_said_by_the_names_of_fields() -> None:
    def why(method: Method[Any, Any], *items: bytes) -> list[str]:
        payload = encode([0, None, [[msgspec.Raw(item) for item in items]]])
        _, refused = method.decode_what_fits(payload)
        assert refused is not None
        reply = refused.widened(KV_GET.reply([]))
        return [error.message for error in reply.errors]

    assert why(
        KV_PUT,
        encode(["n", "k", "v"]),
        encode(["n"]),
        encode(["n", None, b""]),
        encode(["n", "k", b"", -1]),
        b"\x93\xa1n\xa1\xff\xc4\x00",
        encode(5),
    ) == [
        "value: expected bytes, got str",
        "key: it is missing",
        "key: expected str, got None",
        "expected_version: expected int >= 0",
        "key: the text is not UTF-8",
        "expected array, got int",
    ]
    assert why(KV_TRANSACT, encode(["n", [["k", -1]], []]), encode(["n", [], [["k"], ["k", "v"]]])) == [
        "compares[0].version: expected int >= 0",
        "then[1].value: expected bytes | None, got str",
    ]


def test_what_is_not_about_an_item_refuses_the_request() -> None:
    for method, body, what in (
        (SESSION_TAKEOVER, [None, 1, [["t", "c"], 5]], "broker: expected str, got None"),
        (SESSION_TAKEOVER, ["b", -1, [["t", "c"], 5]], "broker_epoch: expected int >= 0"),
        (KV_GET, [5], "items: expected array, got int"),
        (KV_GET, [[5] * 1_001], "items: expected array of length <= 1000"),
        (KV_SCAN, ["n", "", [0]], "page.limit: expected int >= 1"),
        (KV_GET, [[msgspec.Raw(b"\x91" * 3_000 + b"\xc0")]], "it is nested too deeply"),
    ):
        with pytest.raises(InvalidRequestError, match=what.replace("[", "\\[")):
            method.decode_what_fits(encode([0, None, body]))
    with pytest.raises(InvalidRequestError, match="deadline_ms: expected int, got str"):
        KV_GET.decode_what_fits(encode(["0", None, [[5]]]))
    with pytest.raises(InvalidRequestError, match="truncated"):
        KV_GET.decode_what_fits(encode([0, None, [[5]]])[:-1])


@given(st.integers(0, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, max(n - 1, 0)), max_size=n))))
def test_a_reply_is_widened_and_narrowed_again(case: tuple[int, set[int]]) -> None:
    count, bad = case
    refused = Refused(count, {position: f"why {position}" for position in bad if position < count})
    left = count - len(refused)
    narrow = m.KvPutReply([], [m.ItemError(at, 203, "", 5) for at in range(0, left, 3)], list(range(1, left + 1)))
    wide = refused.widened(narrow)
    assert len(wide.versions) == count
    assert [error.index for error in wide.errors] == sorted(error.index for error in wide.errors)
    assert {error.index: error.message for error in wide.errors if error.code == InvalidItemError.code} == {
        position: f"why {position}" for position in bad if position < count
    }
    kept = [position for position in range(count) if position not in bad]
    assert [wide.versions[at] for at in kept] == narrow.versions
    assert [kept[error.index] for error in narrow.errors] == [e.index for e in wide.errors if e.code == 203]
    assert refused.narrowed(wide) == narrow


def test_refusals_add_up() -> None:
    refused = Refused(5, {1: "first"}).and_also({0: "second", 3: "third"})
    assert {e.index: e.message for e in refused.widened(m.WriteReply([], [])).errors} == {
        0: "second",
        1: "first",
        4: "third",
    }


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        (m.KvPutItem("n", "k", b"v"), m.KvPutItem, None),
        (m.KvPutItem("n", "k", "v"), m.KvPutItem, "value: expected bytes, got str"),  # type: ignore[arg-type]
        (m.KvPutItem("n\ud800", "k", b""), m.KvPutItem, "namespace: the text has surrogates, which UTF-8 has not"),
        (m.KvPutItem("n", "k", b"", 2**70), m.KvPutItem, "expected_version: the number is too large"),
        (m.KvPutItem("n", "k", object()), m.KvPutItem, "value: expected bytes, got object"),  # type: ignore[arg-type]
        (None, m.KvPutItem, "expected KvPutItem, got NoneType"),
        (m.KvKey("n", "k"), m.KvPutItem, "expected KvPutItem, got KvKey"),
        (m.TablePutItem(m.KvKey("n", 5)), m.TablePutItem[m.KvKey], "record.key: expected str, got int"),  # type: ignore[arg-type]
        (
            m.SessionTakeoverItem("t", "c", False, m.SessionProperties(-1)),
            m.SessionTakeoverItem,
            "properties.expiry_interval_s: expected int >= 0",
        ),
        (m.SessionTakeoverItem("t", "c", False, None), m.SessionTakeoverItem, None),
        (
            m.SessionTakeoverItem("t", "c", False, 5),  # type: ignore[arg-type]
            m.SessionTakeoverItem,
            "properties: expected SessionProperties | None, got int",
        ),
        (
            m.KvTransaction("n", [], [m.KvOperation("\udfff")]),
            m.KvTransaction,
            "then[0].key: the text has surrogates, which UTF-8 has not",
        ),
        (
            m.KvTransaction("n", [m.KvCompare("k")] * 129, []),
            m.KvTransaction,
            "compares: expected array of length <= 128",
        ),
    ],
)  # fmt: skip
def test_a_callers_value_has_a_fault_by_the_names_of_fields(value: Any, kind: Any, why: str | None) -> None:
    assert fault(value, kind) == why
