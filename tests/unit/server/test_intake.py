"""Unfinished frames are bounded over all connections; somebody always goes on; who holds the others up is named."""

from __future__ import annotations

import random

from metad.server.intake import Intake


class Peer:
    """A connection that has ``size`` bytes to send, and may be stopped."""

    def __init__(self, size: int = 0) -> None:
        self.held_bytes = 0
        self.size = size
        self.waiting = False

    def wait_intake(self, waiting: bool) -> None:
        self.waiting = waiting


def test_below_the_bound_nobody_waits() -> None:
    intake, peers = Intake(100), [Peer() for _ in range(10)]
    for peer in peers:
        intake.update(peer, 10, 0.0, progress=False)
    assert intake.held_bytes == 100
    assert not any(peer.waiting for peer in peers)
    assert intake.stuck(1e9) == []  # slow is no fault while there is room


def test_past_the_bound_all_wait_but_the_first() -> None:
    intake, peers = Intake(100), [Peer() for _ in range(4)]
    for peer in peers:
        intake.update(peer, 40, 0.0, progress=False)
    assert [peer.waiting for peer in peers] == [False, False, True, True]
    intake.update(peers[1], 50, 0.0, progress=False)
    intake.update(peers[0], 90, 0.0, progress=False)
    assert [peer.waiting for peer in peers] == [False, True, True, True]
    intake.update(peers[0], 0, 0.0, progress=True)
    assert [peer.waiting for peer in peers] == [False, False, True, True]  # the next one goes on
    intake.update(peers[1], 0, 0.0, progress=True)
    assert not any(peer.waiting for peer in peers)
    assert intake.held_bytes == 80


def test_a_frame_that_is_finished_while_its_peer_waits_lets_it_go_on() -> None:
    # What was on its way still comes after reading was stopped.
    intake, first, second = Intake(100), Peer(), Peer()
    intake.update(first, 90, 0.0, progress=False)
    intake.update(second, 20, 0.0, progress=False)
    assert second.waiting
    intake.update(second, 0, 0.0, progress=True)
    assert not second.waiting


def test_who_takes_too_long_while_others_wait_is_stuck() -> None:
    intake, slow, other = Intake(100), Peer(), Peer()
    intake.update(slow, 90, 0.0, progress=False)
    intake.update(other, 50, 4.0, progress=False)
    assert intake.stuck(5.0) == []
    assert intake.stuck(5.1) == [slow]
    intake.update(slow, 0, 5.1, progress=False)  # closed
    assert not other.waiting
    assert intake.stuck(100.0) == []


def test_a_peer_that_finishes_frames_is_not_slow() -> None:
    intake, busy, other = Intake(100), Peer(), Peer()
    for second in range(20):
        intake.update(busy, 60, float(second), progress=True)
    intake.update(other, 60, 19.0, progress=False)
    assert intake.stuck(21.0) == []


def test_everybody_comes_through_whatever_the_order() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        intake = Intake(1_000)
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
