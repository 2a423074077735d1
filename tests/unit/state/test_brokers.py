"""The registry of brokers: what each step makes of a broker, and which step is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_rig import Group, contents

from metad.config import DedupeConfig
from metad.state.cluster.brokers import LEASE_MS_MAX, fence_of, read_brokers
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


def noted(record: Broker) -> BrokerStep:
    """All groups know of the broker what the record says."""
    return BrokerStep("fenced", record.broker, told=fence_of(record))


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
        quiet_epoch=1,
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
    steps = [BrokerStep("serve", "b1", 1), noted(begun)]
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
    (fenced,) = registry.change(noted(drains))
    assert (fenced.state, fenced.fenced) == ("draining", True)


def test_that_all_groups_have_a_fence_counts_for_this_fence_and_this_map_only() -> None:
    registry = Registry()
    registry.store_map(0)
    first, second = registry.register("b1"), registry.register("b1")
    assert registry.change(noted(second), map_version=0) == [("conflict", None)]
    assert registry.change(noted(first), map_version=1) == [("conflict", 3)]
    assert registry.change(BrokerStep("fenced", "b1", 3), map_version=1) == [("conflict", 3)]
    (active,) = registry.change(noted(second), map_version=1)
    assert (active.state, active.fenced, active.told) == ("active", True, True)
    third = registry.register("b1")
    assert not third.told
    registry.store_map(1)
    assert registry.change(noted(third), map_version=1) == [("conflict", None)]


def test_the_fence_of_a_death_is_not_that_of_the_life_that_begins_with_its_epoch() -> None:
    registry = Registry()
    registry.register("b1", at_least_epoch=70)
    (dead,) = registry.change(BrokerStep("expire", "b1", 70))
    born = registry.register("b1")
    assert (fence_of(dead).values, fence_of(born).values) == ((71, False, 0, 71), (71, True, 71, 71))
    assert registry.change(noted(dead)) == [("conflict", 71)]


# --- quiet -----------------------------------------------------------------------------------------------


def quiet(record: Broker) -> tuple[int, int, int]:
    return record.least_epoch, record.quiet_epoch, record.quiet_ms


def test_who_has_stopped_is_quiet_at_once() -> None:
    for step in ("expire", "deregister"):
        registry = Registry()
        assert quiet(registry.register("b1")) == (1, 1, 0), "nobody was there"
        (ended,) = registry.change(BrokerStep(step, "b1", 1))
        assert quiet(ended) == (2, 2, 0)
        epoch = (again := registry.register("b1")).broker_epoch
        assert quiet(again) == (epoch, epoch, 0), "the life before was quiet"
        sole = registry.register("b1", sole=True, registration=11)
        assert quiet(sole) == (epoch + 1, epoch + 1, 0), "the process before has ended"
        assert quiet(registry.register("b1", sole=True))[1:] == (epoch + 1, 10_000), "it may have come late"


def test_who_was_ended_while_its_lease_ran_is_quiet_once_that_is_noted() -> None:
    registry = Registry()
    registry.store_map(0)
    registry.register("b1", lease_ms=7_000)
    second = registry.register("b1", lease_ms=3_000)
    assert quiet(second) == (3, 2, 7_000)
    assert registry.change(BrokerStep("quiet", "b1", 4), BrokerStep("quiet", "b1", 2)) == [("conflict", 2)] * 2
    (told,) = registry.change(noted(second), map_version=1)
    assert (told.told, told.state) == (True, "active")
    (noted_quiet,) = registry.change(BrokerStep("quiet", "b1", 3))
    assert quiet(noted_quiet) == (3, 3, 0)
    assert (noted_quiet.fenced, noted_quiet.told) == (True, False), "the groups have the fence, and do not know this"
    assert registry.change(noted(second), map_version=1) == [("conflict", 3)]
    assert registry.change(noted(noted_quiet), map_version=1)[0].told
    (ended,) = registry.change(BrokerStep("fence", "b1"))
    assert quiet(ended) == (4, 3, 3_000)
    assert quiet(registry.register("b1"))[1:] == (3, 3_000), "the dead one may still serve"
    assert quiet(registry.register("b1", sole=True, registration=11))[1:] == (3, 3_000), (
        "an earlier life than the last may serve"
    )
    assert quiet(registry.register("b1"))[1:] == (3, 10_000)
    assert registry.change(BrokerStep("quiet", "nobody", 1)) == [("not_found", None)]


def test_who_may_load_for_longer_than_its_lease_may_serve_for_as_long() -> None:
    registry = Registry()
    registry.register("b1", loading_ms=60_000)
    assert registry.register("b1", loading_ms=60_000).quiet_ms == 60_000
    registry.change(BrokerStep("serve", "b1", 2))
    assert registry.register("b1").quiet_ms == 60_000, "of the life before the last"
    registry.change(BrokerStep("quiet", "b1", 4))
    assert registry.register("b1").quiet_ms == 10_000


def test_the_death_of_a_life_says_nothing_of_the_one_before() -> None:
    registry = Registry()
    registry.register("b1", lease_ms=60_000)
    registry.register("b1", lease_ms=500)
    (ended,) = registry.change(BrokerStep("expire", "b1", 2))
    assert quiet(ended) == (3, 1, 60_000)
    (noted_quiet,) = registry.change(BrokerStep("quiet", "b1", 2))
    assert quiet(noted_quiet) == (3, 3, 0), "what was waited for was the first, and the second has stopped"


def test_of_lives_that_end_one_after_the_other_the_first_are_quiet_first() -> None:
    registry = Registry()
    for _ in range(3):
        registry.register("b1")
    (second,) = registry.change(BrokerStep("quiet", "b1", 2))
    assert quiet(second) == (3, 2, 10_000)
    registry.change(BrokerStep("fence", "b1"))
    (third,) = registry.change(BrokerStep("quiet", "b1", 3))
    assert quiet(third) == (4, 3, 10_000), "an administrator has ended the last, and it may serve"


def test_an_older_versions_lives_may_serve_for_the_longest_lease() -> None:
    registry = Registry()
    first = registry.register("b1")
    key = next(key for key, _ in contents(registry.group.engine) if key[3] == 0x50)
    older = msgspec.msgpack.encode([*msgspec.structs.astuple(first)[:20]])
    for engine in (registry.group.engine, registry.group.follower_engine):
        engine.write({key: older})
    (known,) = read_brokers(registry.group.engine).values()
    assert (known.quiet_epoch, known.told) == (0, False), "all groups are to be told"
    assert quiet(registry.register("b1")) == (2, 0, LEASE_MS_MAX)


# --- clean -----------------------------------------------------------------------------------------------


def test_a_registration_is_clean_that_names_the_last_life() -> None:
    registry = Registry()
    assert registry.register("b1").unclean_epoch == 0, "there was none"
    assert registry.register("b1", clean_epoch=1).unclean_epoch == 0
    assert registry.register("b1", clean_epoch=1).unclean_epoch == 3, "the second has not closed in order"
    assert registry.register("b1", clean_epoch=3).unclean_epoch == 3
    assert registry.register("b1").unclean_epoch == 5
    (ended,) = registry.change(BrokerStep("expire", "b1", 5))
    assert ended.unclean_epoch == 5
    assert registry.register("b1", clean_epoch=ended.least_epoch).unclean_epoch == 7, "no life, but a fence"


def test_a_retry_is_as_clean_as_the_attempt_before() -> None:
    registry = Registry()
    registry.register("b1", registration=11)
    first, second = (registry.register("b1", registration=12, clean_epoch=1) for _ in range(2))
    assert (first.unclean_epoch, second.unclean_epoch) == (0, 0)
    first, second = (registry.register("b1", registration=13) for _ in range(2))
    assert first.unclean_epoch == second.unclean_epoch == first.broker_epoch, "the first of both was not clean"
    first, second = (registry.register("b1") for _ in range(2))
    assert first.unclean_epoch < second.unclean_epoch, "no retry"


@pytest.mark.parametrize(
    ("others", "is_retry"),
    [
        (["metad://client/a", "metad://client/a"], True),
        (["metad://client/a", "metad://client/b"], False),
        (["spiffe://acme/a", "metad://client/a"], False),
        (["10.0.0.7", "10.0.0.8"], True),
        (["", "metad://client/a"], True),
    ],
)
def test_a_registration_comes_again_from_the_principal_that_has_drawn_its_number(
    others: list[str], is_retry: bool
) -> None:
    registry = Registry()
    registry.change(registration("b1"))
    (first,) = registry.change(
        msgspec.structs.replace(registration("b1", registration=12, clean_epoch=1), by=others[0])
    )
    (second,) = registry.change(msgspec.structs.replace(registration("b1", registration=12), by=others[1]))
    assert first.unclean_epoch == 0
    assert (second.unclean_epoch == 0) is is_retry


def test_an_attempt_that_comes_late_makes_nobody_quiet() -> None:
    """The process lives already, by another attempt."""
    registry = Registry()
    registry.register("b1", registration=11)
    lives = registry.register("b1", registration=12, sole=True)
    assert quiet(lives) == (2, 2, 0)
    assert quiet(registry.register("b1", registration=12, sole=True)) == (3, 2, 10_000)


def test_a_map_that_is_in_flight_counts() -> None:
    registry = Registry()
    registry.store_map(0)
    record = registry.register("b1")
    store = VERBS[CLUSTER_STORE.code].command(c.StoreMap(1, c.ClusterMap(2, [], [], {})))
    registry.group.propose([(store, None)], NOW_MS)
    assert registry.change(noted(record), map_version=1) == [("conflict", None)]


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
