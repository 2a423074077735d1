"""What needs no event loop: identities, verdicts on retries, endpoints, options, how records are shown."""

from __future__ import annotations

import random
from typing import Any, cast
from zlib import crc32

import pytest

from metad_client import (
    Backoff,
    ConnectionLostError,
    DeadlineExceededError,
    DrainingError,
    InternalError,
    MetadError,
    NotLeaderError,
    Options,
    OverloadedError,
    RetryBudget,
    UnknownOutcomeError,
)
from metad_client.cli.printing import cell, plain, plain_table
from metad_client.connections.dialer import explain
from metad_client.dispatch.calls.call import Call, IdentitySource
from metad_client.dispatch.calls.retry import SharedBudget, verdict
from metad_client.dispatch.leaders import Leaders
from metad_client.dispatch.router import Routes
from metad_client.endpoint import name_of, parse_url
from metad_client.errors import ClosedError, another
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.faults import UNFIT
from metad_wire.methods import KV_GET, KV_PUT, OFFSET_LIST, SESSION_LIST
from metad_wire.routing import text


class Future:
    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> bool:
        return self.is_done


def a_call(method: Any = KV_PUT, deadline: float = 10.0, attempts: int = 1) -> Call:
    call = Call(method, b"", deadline, cast("Any", Future()))
    for _ in range(attempts):
        call.attempt(0.0, None)
    return call


# --- identities ---


def test_low_follows_the_lowest_unanswered():
    source = IdentitySource(99)
    assert source.low == 1
    a, b, c = source.take(), source.take(), source.take()
    assert (a, b, c) == (1, 2, 3)
    source.release(b)
    assert source.low == 1
    source.release(a)
    assert source.low == 3
    source.release(c)
    source.release(c)
    assert source.low == 4
    assert source.identity(source.take(), 7) == m.Identity(99, 4, 4, 7)


def test_low_in_any_order_of_answers():
    rng = random.Random(3)
    source, unanswered = IdentitySource(1), set()
    for _ in range(2000):
        if unanswered and rng.random() < 0.5:
            seq = rng.choice(sorted(unanswered))
            unanswered.remove(seq)
            source.release(seq)
        else:
            unanswered.add(source.take())
        assert source.low == min(unanswered, default=source._next)


# --- retries ---


def test_what_is_not_retryable_ends_the_call():
    error = InternalError("disk")
    assert verdict(a_call(), error, 0.0, Backoff(), random.Random(1)) is error


def test_waits_grow_up_to_the_cap_and_are_jittered():
    rng = random.Random(1)
    waits = [
        [verdict(a_call(attempts=attempts), OverloadedError(), 0.0, Backoff(), rng) for _ in range(200)]
        for attempts in (1, 4, 30)
    ]
    assert [max(wait) for wait in waits] == pytest.approx([0.02, 0.16, 2.0], rel=0.1)
    assert all(min(wait) < 0.2 * max(wait) for wait in waits)


@pytest.mark.parametrize(
    ("in_doubt", "error", "expected", "text"),
    [
        (False, OverloadedError("busy", retry_after_ms=60_000), OverloadedError, "busy"),
        (True, OverloadedError("busy", retry_after_ms=60_000), DeadlineExceededError, "busy.*may have happened"),
        (True, UnknownOutcomeError("?", retry_after_ms=60_000), DeadlineExceededError, "may have happened"),
        (True, ConnectionLostError("gone", retry_after_ms=60_000), DeadlineExceededError, "gone.*may have happened"),
    ],
)
def test_no_attempt_behind_the_deadline(in_doubt, error, expected, text):
    call = a_call()
    call.in_doubt = in_doubt
    outcome = verdict(call, error, 0.0, Backoff(), random.Random(1))
    assert isinstance(outcome, expected)
    with pytest.raises(expected, match=text):
        raise outcome


@pytest.mark.parametrize("error", [NotLeaderError(), UnknownOutcomeError(), DrainingError()])
def test_a_call_that_another_node_may_do_waits_for_its_deadline(error):
    call = Call(KV_PUT, b"", 10.0, cast("Any", Future()), "data-0")
    call.refused("n1", error)
    due = verdict(call, error, 9.999, Backoff(base_s=50, cap_s=50), random.Random(1))
    assert isinstance(due, float)
    assert due > 10.0


def test_what_a_server_did_not_begin_an_earlier_attempt_may_have_done():
    """Found by simulation: the retry of a write that was committed waited behind its deadline in a server's queue."""
    call = a_call()
    error = DeadlineExceededError("the deadline passed before it was begun; nothing was done")
    assert verdict(call, error, 0.0, Backoff(), random.Random(1)) is error
    call.lost()
    assert "the write may have happened" in str(verdict(call, error, 0.0, Backoff(), random.Random(1)))


def test_who_is_turned_away_in_doubt_hears_when_to_come_back():
    """Guards a storm in which a leader died: clients whose first attempt had no answer were not told their slots."""
    call = a_call()
    call.lost()
    error = OverloadedError("too much waits", retry_after_ms=60_000, retry_jitter_ms=500)
    call.refused("n2", error)
    late = verdict(call, error, 0.0, Backoff(), random.Random(1))
    assert isinstance(late, DeadlineExceededError)
    assert not late.outcome_known
    assert (late.retry_after_ms, late.retry_jitter_ms) == (60_000, 500)


def test_calls_share_a_budget_of_retries_and_wait_for_its_tokens():
    budget = SharedBudget(RetryBudget(burst=2, interval_s=3.0))
    now = 100.0

    def retry(deadline: float) -> Any:
        call, never = a_call(deadline=deadline), Backoff(base_s=0.0, cap_s=0.0)
        return verdict(call, OverloadedError(), now, never, random.Random(1), budget)

    assert [retry(200.0) for _ in range(4)] == pytest.approx([100.0, 100.0, 103.0, 106.0])
    # A call that could not wait that long ends, and takes no token from those that can.
    assert isinstance(retry(104.0), OverloadedError)
    assert retry(200.0) == pytest.approx(109.0)
    now = 150.0
    assert [retry(200.0) for _ in range(2)] == [150.0, 150.0]


def test_an_invited_retry_takes_no_token_and_waits_for_none():
    budget = SharedBudget(RetryBudget(burst=1, interval_s=30.0))
    again, rng = Backoff(base_s=0.0, cap_s=0.0), random.Random(1)
    uninvited, invited = OverloadedError(), OverloadedError(retry_after_ms=500)
    for _ in range(3):
        assert verdict(a_call(deadline=200.0), invited, 100.0, again, rng, budget) == pytest.approx(100.5)
    assert verdict(a_call(deadline=200.0), uninvited, 100.0, again, rng, budget) == pytest.approx(100.0)
    assert verdict(a_call(deadline=200.0), uninvited, 100.0, again, rng, budget) == pytest.approx(130.0)
    assert verdict(a_call(deadline=200.0), invited, 100.0, again, rng, budget) == pytest.approx(100.5)


def test_who_ignores_return_slots_waits_as_its_family_says():
    rng, invited = random.Random(1), OverloadedError(retry_after_ms=5_000, retry_jitter_ms=50)
    naive = Backoff(family="none", retry_after="ignore")
    assert verdict(a_call(deadline=200.0), invited, 100.0, naive, rng) == 100.0
    doubling = Backoff(family="exponential", base_s=0.2, retry_after="ignore")
    assert verdict(a_call(deadline=200.0, attempts=3), invited, 100.0, doubling, rng) == pytest.approx(100.8)
    budget = SharedBudget(RetryBudget(burst=1, interval_s=30.0))
    assert [verdict(a_call(deadline=200.0), invited, 100.0, naive, rng, budget) for _ in range(2)] == [100.0, 130.0]
    with pytest.raises(ValueError, match="retry_after must be one of honour, ignore"):
        Backoff(retry_after="obey")


def test_a_read_in_doubt_is_just_late():
    call = a_call(KV_GET)
    call.lost()
    outcome = verdict(call, ConnectionLostError(retry_after_ms=60_000), 0.0, Backoff(), random.Random(1))
    assert isinstance(outcome, DeadlineExceededError)
    assert "write" not in str(outcome)


# --- routes ---


def a_reply(version: int = 1, groups: int = 2, preferred: str = "n1", **leaders: str) -> c.MapReply:
    slots = {"data": c.pack_slots([slot % groups for slot in range(c.SLOTS)])}
    records = [c.GroupRecord("data", ordinal, [], ["n1", "n2"], preferred) for ordinal in range(groups)]
    nodes = [c.NodeRecord("n1", "a:1", ""), c.NodeRecord("n2", "", "")]
    return c.MapReply(version, c.ClusterMap(version, nodes, records, slots), leaders)


def keys(*namespaces: Any) -> list[m.KvKey]:
    return [m.KvKey(namespace, "k") for namespace in namespaces]


def test_without_a_map_nothing_has_a_group():
    routes = Routes()
    assert (routes.split(KV_GET, keys("a")), routes.group_of(KV_GET, keys("a")[0])) == (None, None)
    assert not routes.knows(SESSION_LIST)
    assert (routes.version, routes.endpoints, routes.replicas("data-0")) == (0, {}, [])


def test_one_group_has_everything_and_items_are_not_looked_at():
    routes = Routes()
    routes.learn(a_reply(groups=1))
    assert routes.split(KV_GET, cast("Any", [1, 2])) == "data-0"
    assert routes.group_of(KV_GET, None) == "data-0"


def test_items_have_the_group_of_their_slot():
    routes = Routes()
    assert routes.learn(a_reply())
    items = keys(*"abcdef")
    expected: dict[str, list[int]] = {"data-0": [], "data-1": []}
    for position, item in enumerate(items):
        group = f"data-{crc32(text(item.namespace)) % 1024 % 2}"
        expected[group].append(position)
        assert routes.group_of(KV_GET, item) == group
    assert routes.split(KV_GET, items) == expected
    assert routes.split(KV_GET, keys("a", "a")) in ("data-0", "data-1")
    assert routes.groups(SESSION_LIST) == ["data-0", "data-1"]
    assert not routes.knows(OFFSET_LIST)
    assert routes.endpoints == {"n1": "a:1", "n2": ""}
    assert routes.replicas("data-1") == ["n1", "n2"]


def test_values_of_a_wrong_type_have_no_slot():
    routes = Routes()
    routes.learn(a_reply())
    for odd in (7, None, ["a"], "\ud800"):
        with pytest.raises(UNFIT):
            routes.split(KV_GET, keys("a", odd))
        with pytest.raises(UNFIT):
            routes.group_of(KV_GET, m.KvKey(cast("Any", odd), "k"))


def test_the_newest_map_is_kept_unless_it_is_to_be_replaced():
    routes = Routes()
    assert routes.learn(a_reply(version=5))
    assert not routes.learn(a_reply(version=5))
    assert not routes.learn(a_reply(version=4))
    assert not routes.learn(c.MapReply(9, None, {}))
    assert routes.version == 5
    routes.doubt()
    assert routes.wanted == 0
    assert routes.learn(a_reply(version=2))
    assert routes.version == 2


def test_a_map_names_who_should_lead():
    routes = Routes()
    assert routes.preferred() == {}
    routes.learn(a_reply(preferred="n1"))
    assert routes.preferred() == {"data-0": "n1", "data-1": "n1"}


# --- leaders ---


def test_a_leader_nobody_named_is_who_should_lead():
    leaders = Leaders()
    assert leaders.learn("data-0", "n2")
    assert not leaders.learn("data-0", "n2")
    leaders.prefer({"data-0": "n1", "data-1": "n1"})
    assert leaders.by_group == {"data-0": "n2", "data-1": "n1"}


def test_only_the_node_that_is_believed_to_lead_is_forgotten():
    leaders = Leaders()
    leaders.learn("data-0", "n2")
    assert not leaders.forget("data-0", "n1")
    assert leaders.forget("data-0", "n2")
    assert leaders.forget("data-0", "n1"), "nobody is believed to lead"
    assert leaders.by_group == {}


def test_a_refusal_counts_for_a_moment():
    leaders = Leaders()
    leaders.refuse("data-0", "n1", 10.0)
    assert leaders.refuted("data-0", "n1", 10.4)
    assert not leaders.refuted("data-0", "n2", 10.4)
    assert not leaders.refuted("data-1", "n1", 10.4)
    assert not leaders.refuted("data-0", "n1", 10.5)


# --- errors ---


def test_another_is_equal_but_not_the_same():
    error = OverloadedError("busy", retry_after_ms=5, retry_jitter_ms=2, leader="a:1")
    error.__cause__ = cause = ValueError()
    twin = another(error)
    assert twin is not error
    assert (type(twin), twin.body(), twin.__cause__) == (OverloadedError, error.body(), cause)


def test_closed_is_not_on_the_wire():
    assert issubclass(ClosedError, MetadError)
    assert ClosedError.code == 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connect call failed"), "connection refused by h:1"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] ..."), "connection refused by h:1"),
        (TimeoutError(), "no answer from h:1 within 3 s"),
        (OSError(113, "No route to host"), "cannot reach h:1: No route to host"),
        (OSError("odd"), "cannot reach h:1: odd"),
    ],
)
def test_why_an_endpoint_was_not_reached(error, text):
    assert explain(error, "h:1", 3.0) == text


# --- endpoints and options ---


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("metad://h:1", [("h", 1)]),
        ("metad://h", [("h", 7420)]),
        ("metad://h:1,i,[::1]:3,[::1]/", [("h", 1), ("i", 7420), ("::1", 3), ("::1", 7420)]),
    ],
)
def test_urls(url, endpoints):
    assert parse_url(url) == endpoints


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("h:1", "write metad://HOST:PORT"),
        ("quic://h:1", "no transport for quic://; there is metad://"),
        ("metad://", "an endpoint is missing"),
        ("metad://h,,i", "an endpoint is missing"),
        ("metad://h:http", "not a port"),
        ("metad://h:70000", "not a port"),
        ("metad://h:1/path", "only a scheme and endpoints"),
        ("metad://user@h:1", "only a scheme and endpoints"),
        ("metad://:7420", "not HOST:PORT"),
        ("metad://h:0", "port 0"),
        ("metad://[::1", "written .ADDRESS.*metad://.::1"),
        ("metad://::1]:7420", "written .ADDRESS"),
    ],
)
def test_urls_that_make_no_sense(url, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_url(url)


def test_names_of_endpoints():
    assert [name_of(endpoint) for endpoint in (("h", 1), ("::1", 2))] == ["h:1", "[::1]:2"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline_s": 0},
        {"deadline_s": float("nan")},
        {"linger_s": -1},
        {"linger_s": float("inf")},
        {"batch_items": 0},
        {"batch_items": m.BATCH_ITEMS_MAX + 1},
        {"batches_in_flight": 0},
        {"waiting_max": 0},
        {"ping_interval_s": -1},
        {"batch_items": "x"},
        {"client_name": 5},
        {"backoff": 5},
        {"waiting_max": None},
        {"connect_timeout_s": "x"},
        {"credentials": "token"},
    ],
)
def test_options_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Options(**wrong)


# --- how records are shown ---


def test_records_as_json_values():
    assert plain(m.Kv("ns", "k", "Grüße".encode(), 1, 2, 3))["value"] == "Grüße"
    assert plain(m.KvKey("ns", "k")) == {"namespace": "ns", "key": "k"}
    assert plain([m.KvPutItem("ns", "k", b"\xff\x00")]) == [
        {"namespace": "ns", "key": "k", "value_base64": "/wA=", "expected_version": None}
    ]
    nested = plain(m.SessionTakeoverItem("t", "c", False, m.SessionProperties(60, b"p")))
    assert nested["properties"] == {"expiry_interval_s": 60, "payload": "p", "will": None}


def test_cells_are_one_short_line_that_no_terminal_obeys():
    assert [cell(value) for value in (None, True, False, 7, "x")] == ["-", "yes", "no", "7", "x"]
    assert cell("a\x1b[31m\nb") == r"a\x1b[31m\nb"
    assert len(cell("x" * 500)) == 60


def test_plain_tables():
    assert plain_table(["key", "n"], [["a", "1"], ["long one", "22"]]) == ("key       n\na         1\nlong one  22")
