"""Unfinished frames are bounded over all connections; somebody always goes on; who holds the others up is named."""

from __future__ import annotations

import random
from collections.abc import Callable

from metad.server.budgets import ReceiveBudget


class Peer:
    """A connection that has ``size`` bytes to send, and may be stopped."""

    def __init__(self, size: int = 0, finished_bytes: int = 0) -> None:
        self.held_bytes = 0
        self.finished_bytes = finished_bytes
        self.size = size
        self.waiting = False
        self.refused = False
        self.in_turns = False

    def wait_intake(self, waiting: bool) -> None:
        self.waiting = waiting

    def refuse_intake(self) -> None:
        self.refused = True


class Later:
    """Calls come when the test says that their time has."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> None:
        assert 0 < delay_s < 1
        self.calls.append((delay_s, call))

    def pass_by(self, delay_s: float = 1.0) -> None:
        """Make the calls that were to come within this time."""
        calls, self.calls = self.calls, []
        for when_s, call in calls:
            if when_s <= delay_s:
                call()
            else:
                self.calls.append((when_s, call))


def test_below_the_bound_nobody_waits() -> None:
    intake, peers = ReceiveBudget(100, Later()), [Peer() for _ in range(10)]
    for peer in peers:
        intake.update(peer, 10, 0.0, progress=False)
    assert intake.held_bytes == 100
    assert not any(peer.waiting for peer in peers)
    assert intake.stuck(1e9) == []  # slow is no fault while there is room


def test_past_the_bound_all_wait_but_one() -> None:
    intake, peers = ReceiveBudget(100, Later()), [Peer() for _ in range(4)]
    for peer in peers:
        intake.update(peer, 40, 0.0, progress=False)
    assert [peer.waiting for peer in peers] == [False, False, False, True]  # the third has the turn
    intake.update(peers[1], 50, 0.0, progress=False)
    intake.update(peers[2], 90, 0.0, progress=False)
    assert [peer.waiting for peer in peers] == [False, True, False, True]
    intake.update(peers[2], 0, 0.0, progress=True)
    assert [peer.waiting for peer in peers] == [False, True, False, False]  # the next one goes on
    intake.update(peers[3], 0, 0.0, progress=True)
    assert not any(peer.waiting for peer in peers)
    assert intake.held_bytes == 90


def test_who_has_finished_more_goes_first_and_then_the_other() -> None:
    later = Later()
    intake, holder = ReceiveBudget(100, later), Peer()
    peers = [Peer(finished_bytes=count) for count in (0, 5, 9)]
    intake.update(holder, 90, 0.0, progress=False)
    for peer in peers:
        intake.update(peer, 50, 0.0, progress=False)
        later.pass_by(0.05)
    order: list[Peer] = []
    for _ in range(3):
        (turn,) = [peer for peer in peers if peer.held_bytes and not peer.waiting]
        order.append(turn)
        assert turn.finished_bytes == 0
        turn.finished_bytes += 1_000
        intake.update(turn, 0, 0.0, progress=True)
    assert order == [peers[2], peers[1], peers[0]]


def test_whoever_brings_nothing_in_its_turn_makes_room_and_is_closed() -> None:
    # Forty peers with half a frame each made an honest batch of 2 MB take seconds.
    later = Later()
    intake, hoarders = ReceiveBudget(100_000, later), [Peer() for _ in range(5)]
    for hoarder in hoarders:
        intake.update(hoarder, 40_000, 0.0, progress=False)
    assert [hoarder.waiting for hoarder in hoarders] == [False, False, False, True, True]
    honest = Peer(finished_bytes=1)
    intake.update(honest, 20_000, 0.0, progress=False)
    later.pass_by(0.05)
    assert (honest.waiting, hoarders[2].waiting) == (False, True)  # long before the turn is over
    for size in range(40_000, 200_000, 20_000):
        intake.update(honest, size, 0.0, progress=False)
        later.pass_by()
        assert not honest.waiting
        assert not honest.refused
    intake.update(honest, 0, 0.0, progress=True)
    for _ in range(2):
        (turn,) = [peer for peer in hoarders[2:] if not peer.waiting and not peer.refused]
        later.pass_by()
        assert turn.refused
        intake.update(turn, 0, 0.0, progress=False)
    later.pass_by()
    assert sum(hoarder.refused for hoarder in hoarders) == 2  # nobody waits for the third
    assert not any(peer.waiting for peer in hoarders if not peer.refused)


def test_whoever_brings_something_keeps_its_turn() -> None:
    later = Later()
    intake, holder, turn, better = ReceiveBudget(100, later), Peer(), Peer(), Peer(finished_bytes=10**9)
    intake.update(holder, 90, 0.0, progress=False)
    intake.update(turn, 50, 0.0, progress=False)
    intake.update(better, 50, 0.0, progress=False)
    for size in range(20_000, 200_000, 20_000):
        intake.update(turn, size, 0.0, progress=False)
        later.pass_by()
        assert (turn.waiting, turn.refused, better.waiting) == (False, False, True)
    intake.update(turn, 0, 0.0, progress=True)
    assert not better.waiting


def test_whoever_the_server_itself_keeps_waiting_keeps_its_turn() -> None:
    """Four peers with frames of 14 MB: while one frame was decoded, the peer of the next was closed as silent."""
    later = Later()
    intake, holder, turn, other = ReceiveBudget(100_000, later), Peer(), Peer(), Peer()
    for peer in (holder, turn, other):
        intake.update(peer, 90_000, 0.0, progress=False)
    turn.in_turns = True
    later.pass_by()
    later.pass_by()
    assert (turn.refused, other.waiting) == (False, True)
    turn.in_turns = False
    later.pass_by()
    assert turn.refused


def test_a_frame_that_is_finished_while_its_peer_waits_lets_it_go_on() -> None:
    # What was on its way still comes after reading was stopped.
    intake, first, second, third = ReceiveBudget(100, Later()), Peer(), Peer(), Peer()
    intake.update(first, 90, 0.0, progress=False)
    intake.update(second, 20, 0.0, progress=False)
    intake.update(third, 20, 0.0, progress=False)
    assert third.waiting
    intake.update(third, 0, 0.0, progress=True)
    assert not third.waiting


def test_who_takes_too_long_while_others_wait_is_stuck() -> None:
    intake, slow, turn, other = ReceiveBudget(100, Later()), Peer(), Peer(), Peer()
    intake.update(slow, 90, 0.0, progress=False)
    intake.update(turn, 20, 4.0, progress=False)
    intake.update(other, 50, 4.0, progress=False)
    assert intake.stuck(5.0) == []
    assert intake.stuck(5.1) == [slow]
    intake.update(slow, 0, 5.1, progress=False)  # closed
    assert not other.waiting
    assert intake.stuck(100.0) == []


def test_a_peer_that_finishes_frames_is_not_slow() -> None:
    intake, busy, others = ReceiveBudget(100, Later()), Peer(), [Peer(), Peer()]
    for second in range(20):
        intake.update(busy, 60, float(second), progress=True)
    for each in others:
        intake.update(each, 60, 19.0, progress=False)
    assert others[1].waiting
    assert intake.stuck(21.0) == []


def test_everybody_comes_through_whatever_the_order() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        intake = ReceiveBudget(1_000, Later())
        peers = [Peer(rng.randint(1, 900)) for _ in range(rng.randint(2, 40))]
        done = 0
        peak = 0
        while done < len(peers):
            able = [peer for peer in peers if peer.size and not peer.waiting]
            assert able, f"seed {seed}: everybody waits for everybody"
            peer = rng.choice(able)
            chunk = min(50, peer.size)
            peer.size -= chunk
            if peer.size:
                intake.update(peer, peer.held_bytes + chunk, 0.0, progress=False)
            else:
                done += 1
                intake.update(peer, 0, 0.0, progress=True)
            peak = max(peak, intake.held_bytes)
        assert intake.held_bytes == 0
        assert peak <= 1_000 + 900 + 50 * len(peers)
