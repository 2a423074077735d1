"""Features of the cluster: what is on stays on, what is held is not switched on, and a leader writes entries with
checksums from the switch on and not before: an older node could not read them."""

from __future__ import annotations

import pytest
from state_rig import Rig

from metad.raft.log.journal import REGULAR, record
from metad.state.cluster.features import KnownFeatures
from metad.state.core.entry import CHECKED_FORMAT, ENTRY_FORMAT, Entry, decode_entry
from metad_wire.errors import ConflictError, InvalidItemError
from metad_wire.messages import Items
from metad_wire.methods import FEATURE_CHANGE, FEATURE_LIST, FEATURE_SWITCH
from metad_wire.tables.feature import CHECKED_ENTRIES, FEATURES, FeatureList, FeatureRecord, FeatureWish


def change(rig: Rig, state: str, name: str = CHECKED_ENTRIES) -> list[int]:
    reply = rig.write(FEATURE_CHANGE, Items([FeatureWish(name, state)]))  # type: ignore[arg-type]
    return [error.code for error in reply.errors]


def switch(rig: Rig, name: str = CHECKED_ENTRIES) -> list[int]:
    return [error.code for error in rig.write(FEATURE_SWITCH, Items([FeatureRecord(name, "on")])).errors]


def listed(rig: Rig) -> dict[str, str]:
    return {one.feature: one.state for one in rig.read(FEATURE_LIST, FeatureList()).found}


def test_what_is_on_stays_on() -> None:
    rig = Rig("metadata")
    assert listed(rig) == {}
    assert switch(rig) == []
    assert listed(rig) == {CHECKED_ENTRIES: "on"}
    assert change(rig, "held") == change(rig, "allowed") == [ConflictError.code]
    assert switch(rig) == []
    assert listed(rig) == {CHECKED_ENTRIES: "on"}
    (found,) = rig.read(FEATURE_LIST, FeatureList()).found
    assert (found.since, found.when_ms > 0) == (FEATURES[CHECKED_ENTRIES].since, True)


def test_what_is_held_is_not_switched_on_until_it_is_allowed() -> None:
    rig = Rig("metadata")
    assert change(rig, "held") == []
    assert switch(rig) == [ConflictError.code]
    assert listed(rig) == {CHECKED_ENTRIES: "held"}
    assert change(rig, "allowed") == switch(rig) == []
    assert listed(rig) == {CHECKED_ENTRIES: "on"}


def test_a_feature_that_nobody_knows_cannot_be_held() -> None:
    """A word that was mistyped held nothing, and the operator believed that it did."""
    rig = Rig("metadata")
    assert change(rig, "held", "checked-entry") == [InvalidItemError.code]
    assert listed(rig) == {}


def test_entries_have_checksums_from_the_switch_on() -> None:
    rig = Rig("metadata", lag=1)

    def newest() -> Entry:
        return rig.group.in_flight[-1][2]

    for step in (lambda: change(rig, "held"), lambda: change(rig, "allowed"), lambda: switch(rig)):
        step()
        assert newest().format == ENTRY_FORMAT, "the entry that switches it on is of the older format"
    rig.settle()
    change(rig, "held")
    assert newest().format == CHECKED_FORMAT
    assert decode_entry("metadata-0", 9, record(1, REGULAR, newest().encoded())) == newest()


def test_listeners_hear_once_of_what_is_on() -> None:
    known, heard = KnownFeatures(), []
    known.listeners.append(lambda one: heard.append(one.feature))
    for state in ("held", "on", "on"):
        known.know("f", FeatureRecord("f", state, "0.3.0"))  # type: ignore[arg-type]
    known.know("g", FeatureRecord("g", "allowed"))
    assert (heard, known.on) == (["f"], {"f"})
    assert known.refusal(["f", "other"], "n1") == ""
    assert known.refusal(["g"], "n1 with metad 0.1.0") == (
        "f: switched on in this cluster, and n1 with metad 0.1.0 does not know it: start metad 0.3.0 or newer"
    )


@pytest.mark.parametrize("name", FEATURES)
def test_names_can_be_typed(name: str) -> None:
    assert name == name.lower()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz-")
