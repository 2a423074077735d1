"""Unread replies of all connections together: bounded, while whoever reads is served, and in order."""

from __future__ import annotations

import pytest

from metad.server.budgets import SMALL_BYTES, SendBudget

MIB = 1024 * 1024


class Peer:
    """A connection whose stream holds what the test says."""

    def __init__(self) -> None:
        self.size = 0
        self.calls: list[str] = []

    def unsent_bytes(self) -> int:
        return self.size

    def wait_unsent(self, waiting: bool) -> None:
        self.calls.append("wait" if waiting else "go on")

    def abort(self, reason: str) -> None:
        assert "unread" in reason
        self.calls.append("abort")


def write(unsent: SendBudget, peer: Peer, size: int, now_s: float = 0.0) -> bool:
    if not unsent.take(peer, size, now_s):
        return False
    peer.size += size
    unsent.update(peer, now_s)
    return True


def test_long_replies_end_at_the_bound_and_short_ones_do_not() -> None:
    unsent = SendBudget(10 * MIB)
    peers = [Peer() for _ in range(150)]
    assert [write(unsent, peer, 3 * MIB) for peer in peers] == [True] * 3 + [False] * 147
    assert unsent.held_bytes == 9 * MIB
    assert write(unsent, peers[3], SMALL_BYTES)
    assert not write(unsent, peers[4], 3 * MIB)


def test_alone_a_reply_of_any_size_goes_out() -> None:
    unsent = SendBudget(10 * MIB)
    assert write(unsent, Peer(), 16 * MIB)
    assert not write(unsent, Peer(), SMALL_BYTES + 1)


def test_what_was_read_meanwhile_makes_room_without_a_word() -> None:
    unsent = SendBudget(10 * MIB)
    first, second = Peer(), Peer()
    assert write(unsent, first, 8 * MIB)
    assert not write(unsent, second, 8 * MIB)
    first.size = MIB
    assert write(unsent, second, 8 * MIB)
    first.size = second.size = 0
    unsent.update(first, 0.0)
    unsent.update(second, 0.0)
    assert (unsent.held_bytes, unsent._held) == (0, {})


def test_what_is_about_to_be_written_counts_already() -> None:
    unsent = SendBudget(10 * MIB)
    assert unsent.take(Peer(), 8 * MIB, 0.0)
    assert unsent.held_bytes == 8 * MIB


def test_who_holds_much_waits_until_there_is_room() -> None:
    unsent = SendBudget(2 * MIB)
    hoarder, other = Peer(), Peer()
    for _ in range(2 * MIB // SMALL_BYTES):
        assert write(unsent, hoarder, SMALL_BYTES)
    assert hoarder.calls == ["wait"]
    assert write(unsent, other, SMALL_BYTES)  # it holds little, and is served
    assert other.calls == []
    unsent.review(1.0)
    assert hoarder.calls == ["wait"]
    hoarder.size = MIB
    unsent.review(1.5)
    assert hoarder.calls == ["wait", "go on"]


def test_who_takes_nothing_is_cut_off_while_others_have_no_room_and_not_before() -> None:
    unsent = SendBudget(10 * MIB)
    silent, slow, little = Peer(), Peer(), Peer()
    for peer, size in ((silent, 4 * MIB), (slow, 4 * MIB), (little, SMALL_BYTES)):
        assert write(unsent, peer, size)
    for tenth in range(50):  # nobody wants the room
        slow.size -= 1
        unsent.review(tenth / 10)
    assert "abort" not in silent.calls
    for tenth in range(50, 80):
        slow.size -= 1
        assert not write(unsent, Peer(), 5 * MIB, tenth / 10)
        unsent.review(tenth / 10)
    assert "abort" in silent.calls
    assert "abort" not in slow.calls + little.calls


def test_who_is_gone_leaves_nothing() -> None:
    unsent = SendBudget(MIB)
    peer = Peer()
    write(unsent, peer, MIB)
    unsent.forget(peer)
    unsent.forget(peer)
    assert (unsent.held_bytes, unsent._held, unsent._waiting) == (0, {}, {})
    unsent.review(100.0)
    assert peer.calls == ["wait"]


@pytest.mark.parametrize("count", [4_096])
def test_many_connections_with_little_each_are_all_served(count: int) -> None:
    unsent = SendBudget(10 * MIB)
    peers = [Peer() for _ in range(count)]
    assert all(write(unsent, peer, SMALL_BYTES) for peer in peers)
    assert all(write(unsent, peer, SMALL_BYTES) for peer in peers)  # and then they wait
    assert all(peer.calls == ["wait"] for peer in peers)
    assert unsent.held_bytes == 2 * count * SMALL_BYTES
