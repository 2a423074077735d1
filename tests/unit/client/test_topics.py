"""The trie of filters and the subscribers: after any history they answer as a list of all subscriptions would."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metad_client.topics import FilterTrie, Subscribers
from metad_wire.errors import InvalidRequestError
from metad_wire.text.topics import LEVELS_MAX, match, subscription

LEVELS = st.sampled_from(["", "a", "b", "$s"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(LEVELS | st.just("+"), max_size=5), st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)
SHARED = st.tuples(st.sampled_from(["", "", "$share/g/", "$share/h/"]), FILTERS).map("".join)
CLIENTS = st.sampled_from(["one", "two", "three"])


class Tries(RuleBasedStateMachine):
    """Filters come, change and go."""

    def __init__(self) -> None:
        super().__init__()
        self.trie = FilterTrie[int]()
        self.model: dict[str, int] = {}

    @rule(filter_=FILTERS, value=st.integers())
    def put(self, filter_: str, value: int) -> None:
        assert self.trie.put(filter_, value) == self.model.get(filter_)
        self.model[filter_] = value

    @rule(filter_=FILTERS)
    def pop(self, filter_: str) -> None:
        assert self.trie.pop(filter_) == self.model.pop(filter_, None)

    @rule()
    def pop_all_but_one(self) -> None:
        for filter_ in list(self.model)[1:]:
            assert self.trie.pop(filter_) == self.model.pop(filter_)

    @rule(filter_=FILTERS)
    def get(self, filter_: str) -> None:
        assert self.trie.get(filter_) == self.model.get(filter_)

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        wanted = [value for filter_, value in self.model.items() if match(filter_, topic)]
        assert sorted(self.trie.match(topic)) == sorted(wanted)

    @invariant()
    def count(self) -> None:
        assert len(self.trie) == len(self.model)


class ManySubscribers(RuleBasedStateMachine):
    """Clients subscribe and unsubscribe, alone and in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribers = Subscribers[str, int]()
        self.model: dict[tuple[str, str], int] = {}

    @rule(filter_=SHARED, client=CLIENTS, options=st.integers())
    def add(self, filter_: str, client: str, options: int) -> None:
        assert self.subscribers.add(filter_, client, options) == ((filter_, client) not in self.model)
        self.model[filter_, client] = options

    @rule(filter_=SHARED, client=CLIENTS)
    def remove(self, filter_: str, client: str) -> None:
        assert self.subscribers.remove(filter_, client) == (self.model.pop((filter_, client), None) is not None)

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        own: Counter[tuple[str, int]] = Counter()
        groups: dict[tuple[str, str], dict[str, int]] = {}
        for (filter_, client), options in self.model.items():
            group, plain = subscription(filter_)
            if not match(plain, topic):
                continue
            if group is None:
                own[client, options] += 1
            else:
                groups.setdefault((group, plain), {})[client] = options
        matched = self.subscribers.match(topic)
        assert Counter(matched.subscribers) == own
        assert {(group.name, group.filter): dict(group.members) for group in matched.groups} == groups
        assert len(matched.groups) == len(groups)

    @invariant()
    def count(self) -> None:
        assert len(self.subscribers) == len(self.model)


TestTries = pytest.mark.slow(Tries.TestCase)
TestSubscribers = pytest.mark.slow(ManySubscribers.TestCase)
TestTries.settings = TestSubscribers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(FILTERS, unique=True), st.randoms())
def test_a_trie_that_lost_all_filters_is_as_a_new_one(filters: list[str], rng: object) -> None:
    trie = FilterTrie[str]()
    for filter_ in filters:
        trie.put(filter_, filter_)
    rng.shuffle(filters)  # type: ignore[attr-defined]
    for filter_ in filters:
        assert trie.pop(filter_) == filter_
    assert trie._root.is_empty()


@pytest.mark.parametrize("filter_", ["", "a#", "#/a", "a/+b", "$share/g", "a/" * LEVELS_MAX + "b"])
def test_a_wrong_filter_is_refused_and_leaves_nothing(filter_: str) -> None:
    subscribers = Subscribers[str, None]()
    with pytest.raises(InvalidRequestError):
        subscribers.add(filter_, "one", None)
    with pytest.raises(InvalidRequestError):
        FilterTrie[int]().put(filter_, 1)
    assert len(subscribers) == 0
    assert subscribers._entries._root.is_empty()


def test_unknown_filters_that_nobody_could_have_are_not_there() -> None:
    trie = FilterTrie[int]()
    trie.put("a/#", 1)
    assert trie.get("a/#/b") is None
    assert trie.pop("a/#/b") is None
    assert trie.pop("a/" * 100_000) is None
    assert trie.match("a/" * 100_000) == [1]


def test_the_deepest_filters_are_matched_and_freed() -> None:
    """Filters that agree in their first levels make a chain of nodes; freeing a long one must not overflow the
    stack."""
    trie = FilterTrie[int]()
    for last in range(2):
        trie.put("+/" * (LEVELS_MAX - 1) + str(last), last)
    assert trie.match("/" * (LEVELS_MAX - 1) + "1") == [1]
    del trie


def test_the_garbage_collector_has_nothing_to_look_at() -> None:
    """With a million filters it would stop the broker for a good part of a second again and again."""
    gc.collect()
    before = len(gc.get_objects())
    subscribers = Subscribers[str, int]()
    for number in range(10_000):
        subscribers.add(f"site/{number % 100}/device/{number}/+/state", f"client-{number}", 1)
    gc.collect()
    assert len(gc.get_objects()) - before < 100
