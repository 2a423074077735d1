"""What a holder may believe of its lease: never more than the servers, whatever clocks and answers do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_client import InvalidRequestError, LeaseState, blocking
from metad_client.holding.belief import DOUBT, TICK, Belief

TTL_S = 10.0
CONNECTED, SUSPENDED, LOST = LeaseState.CONNECTED, LeaseState.SUSPENDED, LeaseState.LOST


def ticked(belief: Belief, begin_s: float, end_s: float) -> None:
    """The holder looks all the time."""
    now_s = begin_s
    while now_s < end_s:
        belief.tick(now_s)
        now_s += TICK * TTL_S


def test_a_holder_that_is_not_answered_doubts_and_gives_up_nothing_by_itself() -> None:
    belief = Belief(TTL_S, 100.0)
    ticked(belief, 100.0, 105.9)
    assert belief.state(105.9) is CONNECTED
    ticked(belief, 105.9, 108.9)
    assert belief.state(100.0 + DOUBT * TTL_S) is SUSPENDED
    assert belief.state(108.9) is SUSPENDED
    assert belief.state(100_000.0) is SUSPENDED
    belief.answered(100_000.1, TTL_S, 100_000.2)
    assert belief.state(100_000.2) is CONNECTED


def test_an_answer_counts_from_when_its_question_was_sent() -> None:
    belief = Belief(TTL_S, 100.0)
    ticked(belief, 100.0, 108.0)
    belief.answered(103.0, TTL_S, 108.0)
    assert belief.state(108.0) is CONNECTED
    ticked(belief, 108.0, 111.9)
    assert belief.state(111.9) is SUSPENDED
    assert belief.state(112.0) is SUSPENDED


def test_what_is_lost_stays_lost() -> None:
    belief = Belief(TTL_S, 100.0)
    ticked(belief, 100.0, 109.5)
    belief.lose()
    belief.answered(109.4, TTL_S, 109.5)
    assert belief.state(109.5) is LOST


def test_a_lease_that_the_server_does_not_know_is_lost_at_once() -> None:
    belief = Belief(TTL_S, 100.0)
    belief.answered(100.5, 0.0, 101.0)
    belief.answered(100.9, TTL_S, 101.1)
    assert belief.state(101.1) is LOST


def test_a_holder_that_stood_still_is_in_doubt_until_an_answer_to_what_it_sent_since() -> None:
    belief = Belief(TTL_S, 100.0)
    ticked(belief, 100.0, 101.0)
    assert belief.state(105.0) is SUSPENDED, "it did not look for 4 s"
    belief.answered(101.0, TTL_S, 105.1)  # an answer that waited meanwhile
    assert belief.state(105.1) is SUSPENDED
    belief.answered(105.2, TTL_S, 105.3)
    assert belief.state(105.3) is CONNECTED


def test_an_older_answer_takes_nothing_back() -> None:
    belief = Belief(TTL_S, 100.0)
    ticked(belief, 100.0, 104.0)
    belief.answered(103.0, TTL_S, 104.0)
    belief.answered(101.0, TTL_S, 104.1)
    ticked(belief, 104.0, 108.5)
    assert belief.state(108.5) is CONNECTED


@given(
    st.lists(st.tuples(st.floats(0, 4), st.floats(0, 6), st.sampled_from(["tick", "answer", "nothing"])), max_size=40)
)
def test_nobody_believes_longer_than_the_server(steps: list[tuple[float, float, str]]) -> None:
    """The server hears of a keep-alive at any time after it was sent, at the earliest at once."""
    now_s, sent_s = 100.0, 100.0
    belief = Belief(TTL_S, sent_s)
    states = [belief.state(now_s)]
    for wait_s, ago_s, what in steps:
        now_s += wait_s
        if what == "tick":
            belief.tick(now_s)
        elif what == "answer":
            at_s = max(100.0, now_s - ago_s)
            belief.answered(at_s, TTL_S, now_s)
            sent_s = max(sent_s, at_s)
        states.append(belief.state(now_s))
        assert states[-1] is SUSPENDED or now_s < sent_s + TTL_S
    assert LOST not in states


@pytest.mark.parametrize("ttl_s", [0, 0.1, 1e9, "10"])
async def test_a_time_to_live_that_no_server_takes_is_refused_at_once(ttl_s: float) -> None:
    from metad_client import connect

    with pytest.raises(InvalidRequestError, match="ttl_s"):
        connect("metad://127.0.0.1:1").hold("space", ttl_s=ttl_s)


@pytest.mark.parametrize("name", ["session_s", "rebalance_s"])
@pytest.mark.parametrize("value", [0, 0.1, 1e9, "10"])
async def test_times_of_a_member_that_no_server_takes_are_refused_at_once(name: str, value: float) -> None:
    from metad_client import connect

    with pytest.raises(InvalidRequestError, match=name):
        connect("metad://127.0.0.1:1").consume("t", "g", assign=lambda *_: {}, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("protocols", [5, [5], None])
async def test_protocols_of_a_member_that_are_none_are_refused_at_once(protocols: Any) -> None:
    from metad_client import connect

    with pytest.raises(InvalidRequestError, match="protocols: "):
        connect("metad://127.0.0.1:1").consume("t", "g", assign=lambda *_: {}, protocols=protocols)


def test_the_blocking_lease_has_the_names_of_the_async_one() -> None:
    assert blocking.HeldLease.lost.__doc__
    assert blocking.Lock.release.__doc__
