"""When the end of a connection and a refused dial say that a broker is dead, and when they do not."""

from __future__ import annotations

import pytest

from metad.control.brokers.evidence import DIALS_MAX, GRACE_S, HEARD_S, Answer, Dial, Evidence

HOST, PORT, LEASE_S = "10.0.0.7", 1883, 10.0


class Case:
    """A life that is known for long, and whose port was reached."""

    def __init__(self, *, port: int = PORT, reached: Answer = Answer.ACCEPTED) -> None:
        self.evidence = Evidence()
        self.now_s = 100.0
        self.evidence.add("b", 7, port, self.now_s + LEASE_S)
        self.now_s += LEASE_S
        dial = self.evidence.heard("b", "line", HOST)
        if dial is not None:
            assert dial == Dial("b", 7, HOST, port, 0)
            self.evidence.answered(dial, reached, self.now_s)

    def ends(self, line: str = "line", *, by_peer: bool = True) -> None:
        self.evidence.ended(line, by_peer=by_peer, now_s=self.now_s)

    def after(self, seconds: float) -> list[Dial]:
        self.now_s += seconds
        return self.evidence.due(self.now_s)

    def refused(self, answer: Answer = Answer.REFUSED) -> list[str]:
        """Let the grace pass, and the dial end like this; who is over?"""
        for dial in self.after(GRACE_S):
            assert dial[:4] == ("b", 7, HOST, PORT)
            self.evidence.answered(dial, answer, self.now_s)
        self.now_s += HEARD_S
        return self.evidence.over(self.now_s)


def test_a_broker_whose_connection_ends_and_whose_port_refuses_is_over_once() -> None:
    case = Case()
    case.ends()
    assert case.after(GRACE_S / 2) == []
    (dial,) = case.after(GRACE_S / 2)
    assert case.after(0) == [], "it is dialled once"
    assert case.evidence.over(case.now_s) == []
    case.evidence.answered(dial, Answer.REFUSED, case.now_s)
    assert case.evidence.over(case.now_s) == [], "a heartbeat may wait for its turn"
    assert case.evidence.over(case.now_s + HEARD_S) == ["b"]
    assert case.evidence.over(case.now_s + HEARD_S) == []


@pytest.mark.parametrize("answer", [Answer.ACCEPTED, Answer.UNKNOWN])
def test_only_a_refusal_counts(answer: Answer) -> None:
    case = Case()
    case.ends()
    assert case.refused(answer) == []
    assert case.after(60.0) == []


@pytest.mark.parametrize("reached", [Answer.REFUSED, Answer.UNKNOWN])
def test_a_port_that_was_never_reached_is_no_evidence(reached: Answer) -> None:
    case = Case(reached=reached)
    case.ends()
    assert case.refused() == []


def test_who_names_no_port_is_never_dialled() -> None:
    case = Case(port=0)
    case.ends()
    assert case.refused() == []


def test_a_connection_that_this_node_has_ended_is_no_evidence() -> None:
    case = Case()
    case.ends(by_peer=False)
    assert case.refused() == []


def test_a_connection_that_is_up_is_no_evidence_whatever_the_port_says() -> None:
    case = Case()
    assert case.refused() == []
    case.evidence.ended("of somebody else", by_peer=True, now_s=case.now_s)
    assert case.refused() == []


def test_another_connection_of_the_life_speaks_for_it() -> None:
    case = Case()
    assert case.evidence.heard("b", "second", HOST) is None, "the host was reached already"
    case.ends()
    assert case.refused() == []
    case.ends("second")
    assert case.refused() == ["b"]


@pytest.mark.parametrize("moment", ["in the grace", "after the dial", "after the refusal"])
@pytest.mark.parametrize("sign", ["heartbeat", "connection", "excuse"])
def test_any_sign_of_life_cancels_it(moment: str, sign: str) -> None:
    case = Case()
    case.ends()
    dials = [] if moment == "in the grace" else case.after(GRACE_S)
    for dial in dials if moment == "after the refusal" else ():
        case.evidence.answered(dial, Answer.REFUSED, case.now_s)
    if sign == "heartbeat":
        case.evidence.heard("b", "next", HOST)
    elif sign == "connection":
        case.evidence.came(HOST)
    else:
        case.evidence.excuse()
    for dial in dials if moment == "after the dial" else ():
        case.evidence.answered(dial, Answer.REFUSED, case.now_s)
    assert case.refused() == []


def test_a_connection_from_another_host_is_no_sign_of_life() -> None:
    case = Case()
    case.ends()
    case.evidence.came("10.0.0.8")
    assert case.refused() == ["b"]


def test_nothing_counts_before_the_life_is_known_for_a_lease() -> None:
    evidence = Evidence()
    evidence.add("b", 7, PORT, 110.0)
    dial = evidence.heard("b", "line", HOST)
    assert dial is not None
    evidence.answered(dial, Answer.ACCEPTED, 100.0)
    evidence.ended("line", by_peer=True, now_s=109.9)
    assert evidence.due(200.0) == []


def test_what_was_heard_of_an_earlier_life_does_not_count_for_the_next() -> None:
    case = Case()
    case.ends()
    (dial,) = case.after(GRACE_S)
    case.evidence.add("b", 8, PORT, case.now_s)
    case.evidence.answered(dial, Answer.REFUSED, case.now_s)
    assert case.evidence.over(case.now_s + HEARD_S) == []
    case.ends()
    assert case.refused() == []


def test_a_life_that_is_over_is_forgotten() -> None:
    case = Case()
    case.ends()
    case.evidence.remove("b")
    assert case.refused() == []
    case.evidence.remove("b")


def test_a_life_at_another_host_is_dialled_there() -> None:
    case = Case()
    dial = case.evidence.heard("b", "moved", "10.0.0.9")
    assert dial == Dial("b", 7, "10.0.0.9", PORT, 0)
    case.ends()
    case.ends("moved")
    assert case.refused() == [], "that port was not reached"


def test_a_connection_without_a_host_speaks_for_the_life_and_is_not_dialled() -> None:
    case = Case()
    assert case.evidence.heard("b", "no address", "") is None
    case.ends()
    assert case.refused() == []
    case.ends("no address")
    assert case.refused() == []


def test_a_line_is_dialled_back_once_and_not_too_many_at_a_time() -> None:
    evidence = Evidence()
    for number in range(DIALS_MAX + 1):
        evidence.add(f"b{number}", 1, PORT, 0.0)
    dials = [evidence.heard(f"b{number}", number, HOST) for number in range(DIALS_MAX + 1)]
    assert [dial is None for dial in dials] == [False] * DIALS_MAX + [True]
    assert evidence.heard("b0", 0, HOST) is None
    assert dials[0] is not None
    evidence.answered(dials[0], Answer.UNKNOWN, 0.0)
    assert evidence.heard("b0", 0, HOST) is None
    assert evidence.heard(f"b{DIALS_MAX}", DIALS_MAX, HOST) is not None, "there is room now"
