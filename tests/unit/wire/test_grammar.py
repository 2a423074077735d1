"""One grammar for each text of MQTT, wherever it stands: a field says by its kind what it may be."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import values_of

from metad_wire import messages as m
from metad_wire.methods import METHODS, RETAINED_GET, For
from metad_wire.tables import subscription as s
from metad_wire.tables.retained import RetainedKey, RetainedMatch, RetainedPutItem
from metad_wire.text.fields import Grammar, check_of, column_check_of

NAMES = ("topic", "filter", "client_id")


def parts(kind: Any) -> Iterator[Any]:
    """The types that a type is made of."""
    yield kind
    for each in typing.get_args(kind):
        yield from parts(each)


def fields(kind: Any, seen: set[Any]) -> Iterator[tuple[type, str, Any]]:
    """All fields of a message, of those in it too: (message, name, type)."""
    for part in parts(kind):
        message = typing.get_origin(part) or part
        if inspect.isclass(message) and issubclass(message, msgspec.Struct) and part not in seen:
            seen.add(part)
            for field in msgspec.structs.fields(part):
                yield message, field.name, field.type
                yield from fields(field.type, seen)


def is_text(kind: Any) -> bool:
    return any(part is str for part in parts(kind))


def grammars(kind: Any) -> list[Grammar]:
    found = [part for part in parts(kind) if typing.get_origin(part) is Annotated]
    return [each for part in found for each in typing.get_args(part) if isinstance(each, Grammar)]


def test_every_text_that_is_called_a_topic_a_filter_or_a_client_id_says_its_kind() -> None:
    seen: set[Any] = set()
    found = 0
    for method in METHODS.values():
        for body in (method.body, method.reply):
            for message, name, kind in fields(body, seen):
                if is_text(kind) and any(name == each or name.startswith(f"{each}_") for each in NAMES):
                    assert grammars(kind), f"{message.__name__}.{name} does not say what it may be"
                    found += 1
    assert found > 30


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (RetainedPutItem("t", "a/+", b""), "topic: a topic has no wildcards"),
        (RetainedKey("t", "a\0b"), "topic: a topic has no NUL"),
        (RetainedKey("t", ""), "topic: a topic has at least one character"),
        (RetainedMatch("t", "$share/g/a"), "filter: a shared subscription"),
        (s.Subscription("t", "c", "a/#/b"), "filter: # is only allowed as the last level"),
        (s.SubscriptionKey("t", "c", "$share//a"), "filter: a shared filter names its group"),
        (m.Will("a/#"), "topic: a topic has no wildcards"),
        (
            m.SessionTakeoverItem("t", "c", properties=m.SessionProperties(will=m.Will("x" * 65_536))),
            "topic: a topic of",
        ),
        (m.SessionUpdateItem("t", "c", m.SessionProperties(will=m.Will("sur\ud800"))), "no lone surrogates"),
        (
            RETAINED_GET.body([RetainedKey("t", "a"), RetainedKey("t", "#")]),
            "items: [1]: topic: a topic has no wildcards",
        ),
    ],
)
def test_what_is_wrong_is_found_wherever_it_stands(value: Any, why: str) -> None:
    check = check_of(type(value))
    assert check is not None
    assert why in str(check(value))


def test_what_is_right_is_right() -> None:
    will = m.SessionProperties(will=m.Will("state/c"))
    for value in (
        m.SessionTakeoverItem("t", "c\0", properties=will),
        m.SessionTakeoverItem("t", ""),
        s.Subscription("t", "c", "$share/g/+/#"),
        RetainedPutItem("t", "/a//", b""),
    ):
        check = check_of(type(value))
        assert check is not None
        assert check(value) is None


ITEMS = [method.item for method in METHODS.values() if method.item is not None and check_of(method.item) is not None]


@given(
    st.sampled_from(ITEMS).flatmap(lambda item: st.lists(values_of(item, st.sampled_from(["t", "a/#", "#", "x\0"]))))
)
def test_many_are_checked_as_each_is(items: list[Any]) -> None:
    if items:
        check, of_many = check_of(type(items[0])), column_check_of(type(items[0]))
        assert check is not None
        assert of_many is not None
        assert of_many(items) == {at: why for at, item in enumerate(items) if (why := check(item)) is not None}


def test_verbs_without_such_texts_pay_nothing() -> None:
    free = {
        method.name for method in METHODS.values() if method.whose is not For.NODES and check_of(method.item) is None
    }
    assert {"kv.put", "offset.commit", "session.disconnect", "session.get", "inflight.put"} <= free
