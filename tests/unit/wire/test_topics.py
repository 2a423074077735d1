"""Topic names and filters: the examples of the specifications, and an independent implementation (paho) beside ours."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paho.mqtt.client import CallbackAPIVersion, Client, topic_matches_sub

from metad_wire.errors import InvalidRequestError
from metad_wire.text.topics import (
    LEVELS_MAX,
    TOPIC_BYTES_MAX,
    Subscription,
    check_filter,
    check_topic,
    filter_fault,
    match,
    subscription,
    topic_fault,
)

# Few levels, so that filters and topics often agree; among them empty ones, and what looks like a shared filter.
LEVELS = st.sampled_from(["", "a", "b", "ab", "$SYS", "$share", "ä", "🚲", " "])
TOPICS = st.lists(LEVELS, min_size=1, max_size=6).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just("+"), max_size=6), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(lambda text: text != "" and not text.startswith("$share/"))
)
ANY_TEXT = st.text(st.sampled_from("ab/+#$ä"), max_size=8).filter(lambda text: not text.startswith("$share/"))


@given(FILTERS, TOPICS)
@example("#", "$SYS")
@example("+/a", "$SYS/a")
@example("a/#", "a")
@example("+/+", "/")
def test_a_filter_matches_what_paho_says_it_matches(filter_: str, topic: str) -> None:
    assert match(filter_, topic) == topic_matches_sub(filter_, topic)


@given(FILTERS, TOPICS)
def test_a_shared_filter_matches_what_its_filter_matches(filter_: str, topic: str) -> None:
    shared = f"$share/group/{filter_}"
    assert filter_fault(shared) is None
    assert subscription(shared) == Subscription("group", filter_)
    assert match(shared, topic) == match(filter_, topic)


@given(ANY_TEXT)
def test_a_filter_is_right_if_paho_subscribes_to_it(text: str) -> None:
    client = Client(CallbackAPIVersion.VERSION2)
    try:
        client.subscribe(text)
    except ValueError:
        right = False
    else:
        right = True
    assert (filter_fault(text) is None) == right


@given(ANY_TEXT)
def test_a_topic_is_right_if_paho_publishes_to_it(text: str) -> None:
    client = Client(CallbackAPIVersion.VERSION2)
    try:
        client.publish(text)
    except ValueError:
        right = False
    else:
        right = True
    assert (topic_fault(text) is None) == right


@pytest.mark.parametrize(
    ("filter_", "matched", "others"),
    [
        (
            "sport/tennis/player1/#",
            ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"],
            ["sport/tennis/player2", "sport/tennis", "sport/tennis/player11"],
        ),
        ("sport/#", ["sport", "sport/", "sport/tennis"], ["sports", "/sport"]),
        ("#", ["sport", "/", "/finance", "a/$SYS"], ["$SYS", "$SYS/monitor/Clients", "$"]),
        ("sport/tennis/+", ["sport/tennis/player1", "sport/tennis/"], ["sport/tennis/player1/ranking", "sport/tennis"]),
        ("sport/+", ["sport/"], ["sport"]),
        ("+", ["finance"], ["/finance", "$finance"]),
        ("+/+", ["/finance"], ["finance"]),
        ("/+", ["/finance"], ["finance", "a/finance"]),
        ("+/tennis/#", ["sport/tennis", "/tennis/a"], ["$sport/tennis"]),
        ("$SYS/#", ["$SYS", "$SYS/monitor/Clients"], ["SYS"]),
        ("$SYS/monitor/+", ["$SYS/monitor/Clients"], ["$SYS/monitor"]),
        ("+/monitor/Clients", [], ["$SYS/monitor/Clients"]),
        ("ACCOUNTS", ["ACCOUNTS"], ["Accounts", "ACCOUNTS/"]),
        ("/", ["/"], ["//", "a/"]),
        ("$share/g/+", ["a"], ["$a", "g/a", "$share/g/a"]),
        ("$share", ["$share"], ["share"]),
    ],
)
def test_the_examples_of_the_specifications(filter_: str, matched: list[str], others: list[str]) -> None:
    assert filter_fault(filter_) is None
    assert [topic for topic in matched + others if match(filter_, topic)] == matched


@pytest.mark.parametrize(
    ("filter_", "why"),
    [
        ("", "at least one character"),
        ("a\0", "NUL"),
        ("\ud800", "UTF-8"),
        ("a" * (TOPIC_BYTES_MAX + 1), "65536 bytes"),
        ("ä" * (TOPIC_BYTES_MAX // 2 + 1), "65536 bytes"),
        ("sport/tennis#", "whole level"),
        ("sport/tennis/#/ranking", "last level"),
        ("sport+", "whole level"),
        ("sport/+a/b", "whole level"),
        ("#/", "last level"),
        ("##", "whole level"),
        ("$share/", "names its group"),
        ("$share//a", "names its group"),
        ("$share/g", "behind its group"),
        ("$share/g/", "behind its group"),
        ("$share/+/a", "group of a shared filter"),
        ("$share/a#/a", "group of a shared filter"),
        ("$share/g/a#", "whole level"),
    ],
)
def test_a_wrong_filter_is_refused_and_says_why(filter_: str, why: str) -> None:
    assert why in str(filter_fault(filter_))
    with pytest.raises(InvalidRequestError, match=why):
        check_filter(filter_)


@pytest.mark.parametrize("filter_", ["#", "+", "/", "+/+/#", "a//b", "$share/g//", "$share/g/#", "$SYS/#", " ", "$"])
def test_a_filter_that_is_unusual_is_right(filter_: str) -> None:
    check_filter(filter_)


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("", "at least one character"),
        ("a/\0", "NUL"),
        ("\udfff", "UTF-8"),
        ("a" * (TOPIC_BYTES_MAX + 1), "65536 bytes"),
        ("a/+", "no wildcards"),
        ("a#b", "no wildcards"),
    ],
)
def test_a_wrong_topic_is_refused_and_says_why(topic: str, why: str) -> None:
    assert why in str(topic_fault(topic))
    with pytest.raises(InvalidRequestError, match=why):
        check_topic(topic)


def test_the_longest_topic_and_the_deepest_filter_are_right() -> None:
    check_topic("a" * TOPIC_BYTES_MAX)
    check_topic("/" * (LEVELS_MAX - 1))
    deepest = "+/" * (LEVELS_MAX - 1) + "#"
    check_filter(deepest)
    assert match(deepest, "/" * (LEVELS_MAX - 1))
    assert not match(deepest, "a/b")


def test_a_level_more_than_metad_takes_is_refused() -> None:
    assert topic_fault("/" * LEVELS_MAX) == "a topic of 257 levels, 256 are allowed"
    assert filter_fault("+/" * LEVELS_MAX + "#") == "a filter of 257 levels, 256 are allowed"
