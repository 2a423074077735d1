"""What proves to a node that it has left."""

import pytest
from test_controller import cluster, node

from metad.control.map.leaving import ASK_S, Departure
from metad.node.disk.stores import STORE_FORMAT, StoreIdentity, Stores
from metad.storage.log import LogStore
from metad.storage.memory import MemoryEngine
from metad_wire.cluster import ClusterMap
from metad_wire.errors import ConflictError, ConnectionLostError, NotFoundError


def at(version: int, *nodes: str, **stores: str) -> ClusterMap:
    known = cluster(list(nodes), version=version)
    records = [node(n, store_id=stores.get(n, f"store of {n}")) for n in nodes]
    return ClusterMap(version, records, known.groups, known.slots)


def directory(store_id: str) -> Stores:
    identity = StoreIdentity(STORE_FORMAT, store_id, "n3", "")
    return Stores(LogStore(MemoryEngine()), MemoryEngine(), identity, rebuild=False)


def test_a_newer_map_without_the_node_proves_it_and_an_older_one_does_not() -> None:
    mine = Departure("n3", directory("store of n3"))
    assert not mine.has_left(at(7, "n1", "n2", "n3"))
    assert not mine.has_left(at(6, "n1", "n2"))
    assert not mine.has_left(at(7, "n1", "n2", "n3"))
    assert mine.has_left(at(8, "n1", "n2"))
    assert mine.has_left(at(9, "n1", "n2", "n3", n3="another one that has taken its place"))


def test_maps_from_before_the_node_joined_prove_nothing() -> None:
    """It reads them when it follows the log from the beginning. Its name was another's then, which left."""
    mine = Departure("n3", directory("new store"))
    for known in (at(1, "n1", "n2", "n3", n3=""), at(2, "n1", "n2", "n3"), at(3, "n1", "n2")):
        assert not mine.has_left(known)
    assert not mine.has_left(at(4, "n1", "n2", "n3", n3="new store"))
    assert mine.has_left(at(5, "n1", "n2"))


def test_maps_from_before_it_was_taken_in_again_prove_nothing() -> None:
    """The map that it left in comes late, and it does not know yet that it was taken in since."""
    mine = Departure("n3", directory("store of n3"))
    assert not mine.has_left(at(7, "n1", "n2", "n3"))
    mine.joined(9)
    assert not mine.has_left(at(8, "n1", "n2"))
    assert not mine.has_left(at(9, "n1", "n2", "n3"))
    assert mine.has_left(at(10, "n1", "n2"))


def test_no_map_proves_anything_while_the_node_asks_to_be_taken_in() -> None:
    mine = Departure("n3", directory("store of n3"))
    with mine.joining():
        assert not mine.has_left(at(7, "n1", "n2", "n3"))
        assert not mine.has_left(at(8, "n1", "n2"))
        mine.joined(9)
    assert not mine.has_left(at(8, "n1", "n2"))
    assert mine.has_left(at(10, "n1", "n2"))


def test_no_map_proves_anything_while_the_node_may_still_be_taken_in() -> None:
    """What it asked was not answered, and is done later. It had been a member before, was let go, and hears of both
    now: it ended, and the cluster waited for it for ever."""
    mine = Departure("n3", directory("store of n3"))
    with pytest.raises(ConnectionLostError), mine.joining():
        raise ConnectionLostError("the peer closed the connection")
    with pytest.raises(ConflictError), mine.joining():
        raise ConflictError("another change of the cluster is being made")
    assert not mine.has_left(at(8, "n1", "n2", "n3"))
    assert not mine.has_left(at(9, "n1", "n2"))
    assert mine.unsure, "it asks until it is answered"
    mine.joined(10)
    assert not mine.has_left(at(9, "n1", "n2"))
    assert mine.has_left(at(11, "n1", "n2"))


def test_a_node_that_failed_before_the_answer_asks_until_it_is_answered() -> None:
    disk = directory("store of n3")
    Departure("n3", disk).joining().__enter__()
    again = Departure("n3", disk)
    assert again.unsure
    assert not again.has_left(at(8, "n1", "n2", "n3"))
    assert not again.has_left(at(9, "n1", "n2"))
    again.joined(10)
    assert not Departure("n3", disk).unsure
    assert again.has_left(at(11, "n1", "n2"))


def test_maps_from_before_the_last_answer_prove_nothing_to_a_node_that_has_failed_since() -> None:
    """It was let go in map 9 and taken in again in map 10. Its own copy of the map is that of its first membership,
    and a node that lags shows it map 9."""
    disk = directory("store of n3")
    mine = Departure("n3", disk)
    with mine.joining():
        mine.joined(10)
    again = Departure("n3", disk)
    assert not again.has_left(at(5, "n1", "n2", "n3"))
    assert not again.has_left(at(9, "n1", "n2"))
    assert again.has_left(at(11, "n1", "n2"))


def test_a_node_that_was_let_go_is_not_taken_in_anew_and_knows_it() -> None:
    """An earlier request is unanswered; the refusal answers that, too."""
    disk = directory("store of n3")
    mine = Departure("n3", disk)
    with pytest.raises(ConnectionLostError), mine.joining():
        raise ConnectionLostError("the peer closed the connection")
    assert not mine.has_left(at(8, "n1", "n2", "n3"))
    with pytest.raises(NotFoundError), mine.joining():
        raise NotFoundError("n3 was a member in map 8 and has left since")
    assert not mine.unsure
    assert mine.has_left(at(9, "n1", "n2"))
    assert not Departure("n3", disk).unsure


def test_a_refusal_takes_nobody_in() -> None:
    mine = Departure("n3", directory("store of n3"))
    with pytest.raises(ConflictError), mine.joining():
        raise ConflictError("another change of the cluster is being made")
    assert not mine.unsure
    assert not mine.has_left(at(8, "n1", "n2", "n3"))
    assert mine.has_left(at(9, "n1", "n2"))


def test_the_others_are_asked_now_and_then_by_a_node_that_may_not_hear_of_it() -> None:
    mine, known = Departure("n3", directory("store of n3")), at(7, "n1", "n2", "n3")
    assert not mine.asks(known, "n1", 10.0)
    assert mine.asks(known, None, 10.0)
    assert not mine.asks(known, None, 10.0 + ASK_S / 2)
    assert mine.asks(known, None, 10.0 + ASK_S)
    leaves = ClusterMap(8, [node("n1"), node("n3", leaving=True)], known.groups, known.slots)
    assert mine.asks(leaves, "n1", 20.0)
