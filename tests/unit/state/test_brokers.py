"""The registry of brokers: what each step makes of a broker, and which step is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_rig import Group, contents

from metad.config import DedupeConfig
from metad.state.cluster.brokers import read_brokers
from metad.state.registry import VERBS
from metad_wire import cluster as c
from metad_wire.errors import ERRORS
from metad_wire.methods import BROKER_CHANGE, CLUSTER_STORE
from metad_wire.tables.broker import Broker, BrokerChange, BrokerRegister, BrokerStep

NOW_MS = 1_700_000_000_000


class Registry:
    """metadata-0."""

    def __init__(self) -> None:
        self.group = Group("metadata", 0, DedupeConfig())
        self.now_ms = NOW_MS

    def change(self, *steps: BrokerStep, map_version: int = 0) -> list[Any]:
        """What each broker is then, or the name of its error and what was compared."""
        reply = self.do(BROKER_CHANGE, BrokerChange(list(steps), map_version))
        found: list[Any] = list(reply.brokers)
        for error in reply.errors:
            assert found[error.index] is None
            found[error.index] = ERRORS[error.code].name, error.current
        return found

    def do(self, method: Any, body: Any) -> Any:
        (outcome,) = self.group.propose([(VERBS[method.code].command(body), None)], self.now_ms)
        self.group.apply(9)
        return method.decode_reply(outcome)

    def register(self, name: str, **fields: Any) -> Broker:
        (record,) = self.change(registration(name, **fields))
        assert isinstance(record, Broker)
        return record

    def store_map(self, expected: int) -> None:
        self.do(CLUSTER_STORE, c.StoreMap(expected, c.ClusterMap(expected + 1, [], [], {})))


def registration(name: str, **fields: Any) -> BrokerStep:
    return BrokerStep("register", name, 0, BrokerRegister(name, **fields))


def test_a_registration_keeps_what_the_broker_says_and_ends_its_earlier_lives() -> None:
    registry = Registry()
    said = {"address": "h:1", "region": "r", "rack": "k", "attributes": {"a": "b"}, "lease_ms": 7_000}
    first = registry.register("b1", **said)
    assert first == Broker(
        "b1",
        1,
        "registered",
        7_000,
        "h:1",
        "r",
        "k",
        {"a": "b"},
        registered_ms=NOW_MS,
        changed_ms=NOW_MS,
        least_epoch=1,
        fenced_ms=NOW_MS,
    )
    second = registry.register("b1")
    assert (second.broker_epoch, second.least_epoch, second.fenced) == (2, 2, False)
    assert read_brokers(registry.group.engine) == {"b1": second}
    assert contents(registry.group.engine) == contents(registry.group.follower_engine)


def test_an_epoch_is_beyond_all_that_it_could_be_mistaken_for() -> None:
    registry = Registry()
    assert registry.register("b1", at_least_epoch=70).broker_epoch == 70
    assert registry.register("b1", at_least_epoch=3).broker_epoch == 71
    assert [record.broker_epoch for record in registry.change(registration("b1"), registration("b1"))] == [72, 73]
    for _ in range(3):
        registry.store_map(_)
    assert registry.register("b2").broker_epoch == registry.group.last == 7
    assert registry.register("b1").broker_epoch == 74
    registry.change(BrokerStep("expire", "b1", 74))
    assert registry.register("b1").broker_epoch == 75, "not the epoch behind the fence, but one that was never used"


@pytest.mark.parametrize(("step", "state"), [("expire", "fenced"), ("fence", "fenced"), ("deregister", "gone")])
def test_a_life_ends_once_and_only_the_last_one_can(step: str, state: str) -> None:
    registry = Registry()
    registry.register("b1")
    registry.register("b1")
    assert registry.change(BrokerStep(step, "b1", 1)) == [("fenced", 2)]
    registry.now_ms, registry.group.now_s = NOW_MS + 50, registry.group.now_s + 0.05
    (ended,) = registry.change(BrokerStep(step, "b1", 2))
    assert (ended.state, ended.broker_epoch, ended.least_epoch, ended.fenced) == (state, 2, 3, False)
    assert ended.changed_ms == ended.fenced_ms == NOW_MS + 50
    assert registry.change(BrokerStep("drain", "b1", 2)) == [("fenced", 2)]
    again = registry.change(BrokerStep(step, "b1", 2))
    assert again == ([ended] if step == "fence" else [("fenced", 2)])
    assert registry.change(BrokerStep(step, "nobody", 1)) == [("not_found", None)]
    assert registry.register("b1").state == "registered"


def test_an_administrator_need_not_know_the_epoch() -> None:
    registry = Registry()
    registry.register("b1", at_least_epoch=9)
    (ended,) = registry.change(BrokerStep("fence", "b1"))
    assert (ended.state, ended.least_epoch) == ("fenced", 10)
    assert registry.change(BrokerStep("fence", "b1")) == [ended]


@pytest.mark.parametrize("fenced_first", [False, True])
def test_who_loads_serves_once_it_says_so(fenced_first: bool) -> None:
    registry = Registry()
    begun = registry.register("b1", loading_ms=60_000)
    assert (begun.state, begun.loading_ms) == ("loading", 60_000)
    steps = [BrokerStep("serve", "b1", 1), BrokerStep("fenced", "b1", 1)]
    found = [registry.change(step)[0].state for step in (reversed(steps) if fenced_first else steps)]
    assert found == (["loading", "active"] if fenced_first else ["registered", "active"])
    (active,) = registry.change(BrokerStep("serve", "b1", 1))
    assert active.state == "active", "to say it again changes nothing"
    assert registry.change(BrokerStep("serve", "b1", 7)) == [("fenced", 1)]
    registry.change(BrokerStep("drain", "b1", 1))
    assert registry.change(BrokerStep("serve", "b1", 1))[0].state == "draining", "nor does it take a drain back"


def test_who_drains_goes_on() -> None:
    registry = Registry()
    registry.register("b1")
    (drains,) = registry.change(BrokerStep("drain", "b1", 1))
    assert (drains.state, drains.least_epoch) == ("draining", 1)
    (fenced,) = registry.change(BrokerStep("fenced", "b1", 1))
    assert (fenced.state, fenced.fenced) == ("draining", True)


def test_that_all_groups_have_a_fence_counts_for_this_fence_and_this_map_only() -> None:
    registry = Registry()
    registry.store_map(0)
    registry.register("b1")
    registry.register("b1")
    assert registry.change(BrokerStep("fenced", "b1", 3), map_version=0) == [("conflict", None)]
    assert registry.change(BrokerStep("fenced", "b1", 2), map_version=1) == [("conflict", 3)]
    epoch = read_brokers(registry.group.engine)["b1"].broker_epoch
    (active,) = registry.change(BrokerStep("fenced", "b1", epoch), map_version=1)
    assert (active.state, active.fenced) == ("active", True)
    epoch = registry.register("b1").broker_epoch
    registry.store_map(1)
    assert registry.change(BrokerStep("fenced", "b1", epoch), map_version=1) == [("conflict", None)]


def test_a_map_that_is_in_flight_counts() -> None:
    registry = Registry()
    registry.store_map(0)
    registry.register("b1")
    store = VERBS[CLUSTER_STORE.code].command(c.StoreMap(1, c.ClusterMap(2, [], [], {})))
    registry.group.propose([(store, None)], NOW_MS)
    assert registry.change(BrokerStep("fenced", "b1", 2), map_version=1) == [("conflict", None)]


def test_what_newer_nodes_have_put_into_a_row_is_kept() -> None:
    registry = Registry()
    registry.register("b1")
    ((key, value),) = [row for row in contents(registry.group.engine) if row[0][3] == 0x50]
    stored = [*msgspec.msgpack.decode(value), "newer"]
    for engine in (registry.group.engine, registry.group.follower_engine):
        engine.write({key: msgspec.msgpack.encode(stored)})
    registry.change(BrokerStep("drain", "b1", 1))
    assert msgspec.msgpack.decode(registry.group.engine.get(key) or b"")[-1] == "newer"


def test_a_step_that_nobody_knows_is_refused_alone() -> None:
    registry = Registry()
    outcome = registry.change(BrokerStep("dance", "b1"), registration("b2"), BrokerStep("register", "b3"))
    assert outcome[0] == ("conflict", None)
    assert outcome[1].broker == "b2"
    assert outcome[2] == ("conflict", None)


def test_all_brokers_are_read_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metad.state.cluster.brokers._LOAD_ROWS", 2)
    registry = Registry()
    names = [f"b{number}" for number in range(5)]
    for name in names:
        registry.register(name)
    assert sorted(read_brokers(registry.group.engine)) == names


def test_only_a_broker_that_has_ended_is_forgotten_and_by_the_map_whose_groups_were_asked() -> None:
    registry = Registry()
    registry.store_map(0)
    epoch = registry.register("b1").least_epoch
    assert registry.change(BrokerStep("forget", "b1", epoch), map_version=1) == [("conflict", epoch)]
    (ended,) = registry.change(BrokerStep("fence", "b1"), map_version=1)
    assert registry.change(BrokerStep("forget", "b1", epoch), map_version=1) == [("conflict", ended.least_epoch)]
    assert registry.change(BrokerStep("forget", "b1", ended.least_epoch), map_version=0) == [("conflict", None)]
    registry.change(BrokerStep("forget", "b1", ended.least_epoch), map_version=1)
    assert "b1" not in read_brokers(registry.group.engine)
