"""What simulated links promise: order, no gap in a connection, and who is told when it is over."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.replicas.clock import Clock
from sim.replicas.network import Link, Node, SimNetwork

Event = tuple[str, Node, bytes]
"""("received" | "connected" | "disconnected", peer, payload)."""


class Rig:
    """A network whose nodes write down what they are told."""

    def __init__(self, nodes: str = "abc", seed: int = 1, link: Link | None = None) -> None:
        self.clock = Clock()
        self.network = SimNetwork(self.clock, random.Random(seed), link)
        self.seen: dict[Node, list[Event]] = {}
        for node in nodes:
            self.attach(node)
        self.run()
        self.forget()

    def attach(self, node: Node, told: Callable[[str, Node], object] = lambda *_: None) -> None:
        events = self.seen.setdefault(node, [])

        def tell(what: str, peer: Node) -> None:
            events.append((what, peer, b""))
            told(what, peer)

        self.network.attach(
            node,
            lambda peer, payload: events.append(("received", peer, payload)),
            lambda peer: tell("connected", peer),
            lambda peer: tell("disconnected", peer),
        )

    def forget(self) -> None:
        for events in self.seen.values():
            events.clear()

    def run(self, seconds: float = 10.0) -> None:
        self.clock.run_until(self.clock.now + seconds)

    def send(self, src: Node, dst: Node, count: int = 1) -> None:
        for i in range(count):
            self.network.send(src, dst, b"%d" % i)

    def received(self, node: Node, peer: Node) -> list[int]:
        return [int(payload) for what, src, payload in self.seen[node] if (what, src) == ("received", peer)]

    def told(self, node: Node) -> list[str]:
        return [f"{what} {peer}" for what, peer, _ in self.seen[node] if what != "received"]

    def settled(self) -> bool:
        """Whether every message came to an end that is counted."""
        counts = self.network.statistics
        return counts.sent + counts.duplicated == counts.delivered + counts.lost + counts.unconnected


SILENT = Link(silent=True)


def test_nodes_are_connected_a_little_after_they_start() -> None:
    clock = Clock()
    network = SimNetwork(clock, random.Random(0))
    seen: list[tuple[str, Node]] = []
    network.attach(1, lambda *_: None, lambda peer: seen.append(("1", peer)))
    network.attach(2, lambda *_: None, lambda peer: seen.append(("2", peer)))
    assert not network.is_connected(1, 2)
    assert not network.send(1, 2, b"too early")
    clock.run_until(1)
    assert sorted(seen) == [("1", 2), ("2", 1)]
    assert network.is_connected(1, 2)
    assert network.send(1, 2, b"now")
    assert network.statistics.unconnected == 1


def test_messages_arrive_once_in_order_and_after_their_delay() -> None:
    rig = Rig(link=Link(delay=(0.010, 0.100)))
    start = rig.clock.now
    rig.send("a", "b", 50)
    rig.send("c", "b", 50)
    rig.clock.run_until(start + 0.0099)
    assert not rig.seen["b"]
    rig.clock.run_until(start + 0.1)
    assert rig.received("b", "a") == list(range(50))
    assert rig.received("b", "c") == list(range(50))
    counts = rig.network.statistics
    assert (counts.sent, counts.delivered, counts.sent_bytes) == (100, 100, 180)
    assert counts.deliveries["a", "b"] == 50


def test_a_message_sent_from_a_callback_of_the_new_connection_arrives() -> None:
    rig = Rig("a", link=Link(delay=(0.0, 0.0)))
    rig.attach("b", lambda what, peer: rig.send("b", peer))
    rig.run()
    assert rig.told("a") == ["connected b"]
    assert [what for what, _, _ in rig.seen["a"]] == ["connected", "received"]


def test_a_cut_loses_what_is_in_flight_and_both_ends_are_told_some_time_later() -> None:
    rig = Rig()
    rig.send("a", "b", 5)
    rig.network.cut_both("a", "b")
    assert rig.told("a") == rig.told("b") == []
    rig.send("b", "a", 5)
    rig.run()
    assert rig.seen == {"a": [("disconnected", "b", b"")], "b": [("disconnected", "a", b"")], "c": []}
    assert not rig.network.send("a", "b", b"0")
    rig.forget()
    rig.network.heal()
    assert not rig.network.is_connected("a", "b")
    rig.run()
    rig.send("a", "b", 5)
    rig.run()
    assert rig.told("a") == ["connected b"]
    assert rig.told("b") == ["connected a"]
    assert rig.received("b", "a") == list(range(5))
    assert rig.settled()


def test_a_connection_that_lost_something_ends_even_if_the_cut_was_short() -> None:
    # Else a message after the gap would be taken for the next one.
    rig = Rig()
    rig.send("a", "b", 1)
    rig.network.cut("a", "b")
    rig.network.heal()
    rig.send("a", "b", 5)
    rig.run()
    assert rig.received("b", "a") == []
    assert rig.told("a") == ["disconnected b", "connected b"]
    assert rig.told("b") == ["disconnected a", "connected a"]


def test_the_open_way_of_a_half_open_connection_works_until_an_end_is_told() -> None:
    for seed in range(10):
        rig = Rig(seed=seed)
        rig.network.cut("a", "b")
        told = 0
        while told < 2:
            rig.clock.step()
            told = len(rig.told("a")) + len(rig.told("b"))
            before = len(rig.received("a", "b"))
            rig.send("b", "a")
            rig.send("a", "b")
            rig.clock.run_until(rig.clock.now + 0.002)
            if len(rig.told("a")) + len(rig.told("b")) == told:
                assert len(rig.received("a", "b")) - before == (told == 0)
        rig.run()
        assert rig.received("b", "a") == []
        assert not rig.network.is_connected("b", "a")  # no connection while one way is cut
        assert rig.settled()


def test_a_partition_separates_groups_and_those_who_are_not_named() -> None:
    rig = Rig("abcde")
    rig.network.partition("ab", "c")
    rig.run()
    together = [
        (src, dst) for src in "abcde" for dst in "abcde" if src < dst and rig.network.is_connected(src, dst)
    ]  # fmt: skip
    assert together == [("a", "b"), ("d", "e")]
    rig.network.heal("c")
    rig.run()
    assert [peer for peer in "abde" if rig.network.is_connected("c", peer)] == ["a", "b", "d", "e"]
    assert not rig.network.is_connected("a", "d")
    rig.network.heal("a", "d")
    rig.run()
    assert rig.network.is_connected("a", "d")
    assert not rig.network.is_connected("a", "e")
    rig.network.heal()
    rig.network.isolate("e")
    rig.run()
    assert [peer for peer in "abcd" if rig.network.is_connected("e", peer)] == []
    assert rig.network.is_connected("a", "c")


def test_a_loss_ends_a_connection_and_leaves_no_gap_in_it() -> None:
    rig = Rig("ab", link=Link(loss=0.02))
    for number in range(3000):
        rig.network.send("a", "b", b"%d" % number)
        rig.run(0.01)
    rig.run()
    got = rig.received("b", "a")
    assert got == sorted(set(got))
    counts = rig.network.statistics
    assert counts.connections > 10
    assert counts.disconnections == 2 * (counts.connections - 1)
    runs: list[list[int]] = [[]]
    for what, _, payload in rig.seen["b"]:
        if what == "received":
            runs[-1].append(int(payload))
        elif what == "connected":
            runs.append([])
    assert all(run == list(range(run[0], run[0] + len(run))) for run in runs if run)
    assert rig.settled()


def test_a_reset_is_followed_by_a_new_connection() -> None:
    rig = Rig("ab")
    rig.network.reset("a", "b")
    rig.run()
    assert rig.told("a") == ["disconnected b", "connected b"]
    assert rig.told("b") == ["disconnected a", "connected a"]


def test_silent_links_lose_and_nobody_is_told() -> None:
    rig = Rig(link=Link(loss=0.3, silent=True))
    rig.send("a", "b", 1000)
    rig.run()
    got = rig.received("b", "a")
    assert got == sorted(set(got))
    assert 600 < len(got) < 800
    rig.forget()
    rig.network.shape(SILENT)
    rig.send("a", "b", 5)
    rig.network.cut("a", "b")
    rig.send("a", "b", 5)
    rig.send("b", "a", 5)
    rig.run(1000)
    assert rig.network.send("a", "b", b"0")
    assert rig.received("a", "b") == list(range(5))  # the other way stays open for ever
    rig.network.heal()
    rig.send("a", "b", 3)
    rig.run()
    assert rig.received("b", "a") == [0, 1, 2]
    assert rig.told("a") == rig.told("b") == []
    assert rig.settled()


def test_links_that_duplicate_or_reorder_do_so_and_are_silent() -> None:
    rig = Rig(link=Link(duplication=0.2, reorder=0.2))
    rig.send("a", "b", 500)
    rig.run()
    got = rig.received("b", "a")
    counts = rig.network.statistics
    assert set(got) == set(range(500))
    assert got != sorted(got)
    assert 50 < counts.duplicated == len(got) - 500 < 150
    assert 50 < counts.reordered < 150
    rig.network.isolate("a")
    rig.run()
    assert rig.told("a") == rig.told("b") == []


def test_a_shape_is_for_one_way_or_a_node_or_all() -> None:
    rig = Rig(link=SILENT)
    rig.network.shape(Link(delay=(1, 1), silent=True), "a", "b")
    rig.network.shape(Link(loss=1, silent=True), dst="c")
    for src, dst in ("ab", "ba", "ac", "bc", "ca"):
        rig.send(src, dst)
    rig.run(0.5)
    assert (rig.received("b", "a"), rig.received("a", "b"), rig.received("a", "c")) == ([], [0], [0])
    rig.run(0.6)
    assert rig.received("b", "a") == [0]
    assert rig.seen["c"] == []


def test_a_cut_silent_link_that_becomes_a_connection_ends() -> None:
    rig = Rig("ab", link=SILENT)
    rig.network.cut("a", "b")
    rig.network.shape(Link())
    rig.run()
    assert rig.told("a") == ["disconnected b"]
    assert rig.told("b") == ["disconnected a"]


def test_a_dead_node_hears_nothing_and_its_peers_are_told() -> None:
    rig = Rig()
    rig.send("a", "b", 3)
    rig.network.detach("b")
    rig.send("a", "b", 3)
    rig.run()
    assert rig.seen["b"] == []
    assert rig.told("a") == rig.told("c") == ["disconnected b"]
    rig.forget()
    rig.attach("b")
    rig.run()
    assert rig.told("a") == rig.told("c") == ["connected b"]
    assert sorted(rig.told("b")) == ["connected a", "connected c"]
    rig.send("a", "b", 3)
    rig.run()
    assert rig.received("b", "a") == [0, 1, 2]
    assert rig.settled()


def test_a_restart_faster_than_the_notice_is_a_new_connection_all_the_same() -> None:
    for seed in range(10):
        rig = Rig("ab", seed)
        rig.network.detach("b")
        rig.attach("b")
        rig.send("a", "b", 3)
        rig.run()
        assert rig.seen["a"] == [("disconnected", "b", b""), ("connected", "b", b"")]
        assert rig.seen["b"] == [("connected", "a", b"")]


def test_a_silent_link_outlives_a_process() -> None:
    rig = Rig("ab", link=SILENT)
    rig.send("a", "b", 2)
    rig.network.detach("b")
    rig.send("a", "b", 2)
    rig.run()
    rig.attach("b")
    rig.send("a", "b", 1)
    rig.run()
    assert rig.received("b", "a") == [0]
    assert rig.told("a") == []
    assert rig.told("b") == ["connected a"]


def test_what_makes_no_sense_is_refused() -> None:
    rig = Rig("ab")
    assert not rig.network.send("a", "x", b"nobody by that name yet")
    with pytest.raises(ValueError, match="no link to itself"):
        rig.network.send("a", "a", b"")
    with pytest.raises(ValueError, match="attached already"):
        rig.attach("a")
    rig.network.detach("b")
    with pytest.raises(ValueError, match="'b' is not attached"):
        rig.network.send("b", "a", b"")


def faults(rng: random.Random, rig: Rig) -> None:
    """One thing that may go wrong."""
    network, nodes = rig.network, ["a", "b", "c", "d"]
    one, other = rng.sample(nodes, 2)
    dead = [node for node in nodes if network._processes[node] is None]
    choice = rng.randrange(8)
    if choice == 0:
        network.cut(one, other)
    elif choice == 1:
        network.partition([one], [other])
    elif choice == 2:
        network.heal(one)
    elif choice == 3:
        network.heal()
    elif choice == 4:
        network.reset(one, other)
    elif choice == 5 and not dead:
        network.detach(one)
    elif choice == 6 and dead:
        rig.attach(dead[0])
    elif choice == 7:
        network.shape(rng.choice([Link(), Link(loss=0.05), SILENT, Link(reorder=0.1)]))


def storm(seed: int) -> Rig:
    """Traffic under random faults, and then a long quiet time."""
    rng = random.Random(seed)
    rig = Rig("abcd", seed)
    for number in range(200):
        src, dst = rng.sample("abcd", 2)
        if rig.network._processes[src] is not None:
            rig.network.send(src, dst, b"%d" % number)
        if rng.random() < 0.2:
            faults(rng, rig)
        rig.run(rng.random() * 0.1)
    rig.network.heal()
    for node in "abcd":
        if rig.network._processes[node] is None:
            rig.attach(node)
    rig.network.shape(Link())
    rig.run()
    return rig


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_after_any_faults_everybody_is_connected_again(seed: int) -> None:
    rig = storm(seed)
    assert rig.settled()
    rig.forget()
    for src in "abcd":
        for dst in "abcd":
            if src != dst:
                assert rig.network.is_connected(src, dst)
                rig.send(src, dst, 3)
    rig.run()
    for events in rig.seen.values():
        assert len(events) == 9


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_connections_begin_and_end_in_turn_and_nothing_comes_between(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig("abcd", seed)
    up: dict[tuple[Node, Node], bool] = {(node, peer): True for node in "abcd" for peer in "abcd" if node != peer}
    for number in range(300):
        src, dst = rng.sample("abcd", 2)
        rig.network.send(src, dst, b"%d" % number)
        if rng.random() < 0.2:
            rng.choice([rig.network.cut, rig.network.cut_both, rig.network.reset, rig.network.heal])(src, dst)
        rig.run(rng.random() * 0.1)
    rig.network.heal()
    rig.run()
    for node, events in rig.seen.items():
        last: dict[Node, int] = {}
        for what, peer, payload in events:
            if what == "received":
                assert up[node, peer]
                assert last.get(peer, -1) < int(payload)
                last[peer] = int(payload)
            else:
                assert up[node, peer] == (what == "disconnected")
                up[node, peer] = what == "connected"
    assert all(up.values())


def test_one_seed_is_one_run() -> None:
    assert storm(7).seen == storm(7).seen
    assert storm(7).seen != storm(8).seen
