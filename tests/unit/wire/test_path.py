"""TCP or QUIC: by loss and distance, with neither chance nor noise making the choice go to and fro."""

from __future__ import annotations

import itertools
import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_wire.policy import PathChoice, PathRule, Way
from metad_wire.transport.credentials import PathSample
from metad_wire.transport.path import path_of

RULE = PathRule()


def settled(rtt_s: float, loss: float, *, first: Way = Way.TCP, packets: int = 60_000, seed: int = 1) -> Way:
    """The choice after so many packets of a path, looked at every 500."""
    rng, choice = random.Random(seed), PathChoice(RULE, first)
    for _ in range(packets // 500):
        choice.note(rtt_s, 500, sum(rng.random() < loss for _ in range(500)))
    return choice.way


@pytest.mark.parametrize("first", Way)
@pytest.mark.parametrize("rtt_ms", [0.1, 1, 30, 100, 200])
def test_where_nothing_is_lost_bulk_goes_any_distance_by_tcp(rtt_ms: float, first: Way) -> None:
    assert settled(rtt_ms / 1000, 0.0, first=first) is Way.TCP
    choice = PathChoice(RULE, first)
    packets = max(1_000, int(300 / rtt_ms * 500))  # in half a second
    for _ in range(2_000):
        choice.note(rtt_ms / 1000, packets, 0, 0.5)
    assert choice.way is Way.TCP


@pytest.mark.parametrize("first", Way)
@pytest.mark.parametrize("rtt_ms", [20, 30, 100, 200])
def test_a_thin_flow_over_a_distance_is_for_quic_whatever_it_loses(rtt_ms: float, first: Way) -> None:
    choice = PathChoice(RULE, first)
    for _ in range(2_000):
        choice.note(rtt_ms / 1000, int(40 / rtt_ms * 500), 0, 0.5)
        assert choice.way is Way.QUIC


def test_a_thin_flow_over_no_distance_is_for_tcp() -> None:
    choice = PathChoice(RULE)
    for _ in range(2_000):
        assert choice.note(0.001, 500, 0, 0.5) is Way.TCP


def test_who_sends_nothing_stays_where_he_is() -> None:
    choice = PathChoice(RULE)
    for _ in range(100):
        assert choice.note(0.1, 0, 0, 0.5) is Way.TCP


def test_a_flow_about_as_thin_as_that_does_not_go_to_and_fro() -> None:
    choice = PathChoice(RULE)
    ways = [choice.note(0.1, sent, 0, 0.5).value for sent in (600, 400, 600, 450, 700) * 20]
    assert sum(before != after for before, after in itertools.pairwise(["tcp", *ways])) <= 1


@pytest.mark.parametrize("first", Way)
@pytest.mark.parametrize(("rtt_ms", "loss"), [(30, 0.01), (100, 0.01), (200, 0.01), (100, 0.03), (200, 0.003)])
def test_a_long_path_that_loses_is_for_quic(rtt_ms: float, loss: float, first: Way) -> None:
    assert settled(rtt_ms / 1000, loss, first=first) is Way.QUIC


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.03])
def test_a_short_path_is_for_tcp_whatever_it_loses(loss: float) -> None:
    assert settled(0.001, loss) is Way.TCP


def test_one_lost_packet_is_chance() -> None:
    choice = PathChoice(RULE)
    assert choice.note(0.05, 400, 1) is Way.TCP
    assert choice.note(0.05, 400, 20) is Way.QUIC


def test_nothing_is_concluded_from_a_handful_of_packets() -> None:
    choice = PathChoice(RULE)
    assert choice.note(0.05, 20, 10) is Way.TCP


def test_a_path_that_has_healed_goes_back_after_a_while_and_not_at_once() -> None:
    choice = PathChoice(RULE, Way.QUIC)
    for _ in range(20):
        choice.note(0.05, 1_000, 10)
    noted = [choice.note(0.05, 1_000, 0) for _ in range(400)]
    assert noted[0] is Way.QUIC
    assert noted[-1] is Way.TCP
    changes = sum(before is not after for before, after in itertools.pairwise(noted))
    assert changes == 1


def test_an_unknown_round_trip_time_keeps_the_last_known() -> None:
    choice = PathChoice(RULE)
    choice.note(0.05, 10, 0)
    assert choice.note(0.0, 1_000, 50) is Way.QUIC


@given(
    st.lists(
        st.tuples(
            st.floats(0, 2, allow_nan=False),
            st.integers(0, 100_000),
            st.integers(0, 200_000),
        ),
        max_size=50,
    )
)
def test_any_samples_give_a_choice_and_a_ratio(samples: list[tuple[float, int, int]]) -> None:
    choice = PathChoice(RULE)
    for sample in samples:
        assert choice.note(*sample) in Way
        assert 0.0 <= choice.loss <= 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"rtt_s_min": -1.0},
        {"loss_rtt_s": 0.0},
        {"far_s": 0.0},
        {"thin_packets": 0.0},
        {"back": 1.0},
        {"lost_min": 0},
        {"sent_min": 0},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PathRule(**wrong)  # type: ignore[arg-type]


# --- what the system knows -------------------------------------------------------------------------------


class Info:
    """A stream that has only extra infos."""

    def __init__(self, **infos: object) -> None:
        self._infos = infos

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._infos.get(name, default)


def test_a_transport_that_knows_its_path_is_believed() -> None:
    sample = PathSample(rtt_s=0.1, sent=3, lost=1)
    assert path_of(Info(path=sample)) is sample  # type: ignore[arg-type]


def test_tcp_is_asked_of_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            for _ in range(5):
                near.sendall(b"x" * 100)
                received = b""
                while len(received) < 100:
                    received += far.recv(100)
            sample = path_of(Info(socket=near))  # type: ignore[arg-type]
    assert sample is not None
    assert 0 < sample.rtt_s < 1
    assert sample.sent >= 5
    assert sample.lost == 0


@pytest.mark.parametrize("stream", [Info(), Info(socket=object()), Info(socket=socket.socket(type=socket.SOCK_DGRAM))])
def test_who_knows_nothing_says_nothing(stream: Info) -> None:
    assert path_of(stream) is None  # type: ignore[arg-type]
