"""What an export writes of a record is read as that record again, whatever is in it; and what is no record is refused
by the name of the field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import values_of

from metad_client.cli.printing import plain
from metad_client.cli.transfer.kinds import kinds
from metad_wire.messages import Message, Session
from metad_wire.program.documents import read_document, read_value
from metad_wire.text.fields import U32


class Odd(Message, frozen=True):
    """All that a declared table may have."""

    name: str
    one: bytes | None = None
    many: list[bytes] = []  # noqa: RUF012 - msgspec copies it
    named: dict[str, bytes] = {}  # noqa: RUF012
    deep: dict[str, list[bytes | None]] = {}  # noqa: RUF012
    number: U32 | None = 7
    share: float = 0.5


LINES = [*(kind.line for kind in kinds([]).values()), Session, Odd]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(LINES).flatmap(lambda line: st.tuples(st.just(line), values_of(line))))
def test_a_record_is_read_as_it_was(case: tuple[type[Any], Any]) -> None:
    line, record = case
    try:
        msgspec.convert(msgspec.to_builtins(record, builtin_types=(bytes,)), line, builtin_types=(bytes,))
    except msgspec.ValidationError:
        return  # the strategy does not know all bounds
    document = msgspec.json.decode(msgspec.json.encode(plain(record)))
    assert read_document(document, line) == record


def test_names_that_look_encoded_are_names() -> None:
    record = Odd("x", named={"a": b"\xff", "b_base64": b"text", "c_base64_base64": b"\xfe"})
    assert read_document(msgspec.json.decode(msgspec.json.encode(plain(record))), Odd) == record


@pytest.mark.parametrize("share", [math.inf, -math.inf, math.nan, 1e308])
def test_a_number_that_json_has_not_is_kept(share: float) -> None:
    document = msgspec.json.decode(msgspec.json.encode(plain(Odd("x", share=share))))
    assert repr(read_document(document, Odd).share) == repr(share)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "name is missing"),
        ({"name": None}, "name is missing"),
        ({"name": 1}, "name: Expected `str`, got `int`"),
        ({"name": "a", "nom": 1}, "there is no field 'nom'; there is deep, many, name, named, number, one, share"),
        ({"name": "a", "one": 1}, "one: expected text, got int; bytes that are no text: NAME_base64"),
        ({"name": "a", "one_base64": "?"}, "one: "),
        ({"name": "a", "one": "x", "one_base64": "/w=="}, "one and one_base64 are both given"),
        ({"name": "a", "number": -1}, "number: Expected `int` >= 0"),
        ({"name": "a", "many": "text"}, "many: "),
        ({"name": "a", "many": [{"base": "x"}]}, "many: expected text, got dict"),
        ({"name": "a", "named": 3}, "named: "),
        ({"name": "a", "share": "much"}, "share: Expected `float`, got `str`"),
    ],
)
def test_what_is_no_record_is_refused_by_its_field(document: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        read_document(document, Odd)
    assert said in str(refused.value)


def test_fields_beside_are_let_pass_by_their_names() -> None:
    assert read_document({"name": "a", "version": 3}, Odd, {"version"}) == Odd("a")
    assert read_document({"name": "a", "one": None, "number": None}, Odd) == Odd("a", number=None)
    assert read_value({"base64": "/w=="}, bytes | None) == b"\xff"
    with pytest.raises(ValueError, match="expected text"):
        read_value(7, bytes)
