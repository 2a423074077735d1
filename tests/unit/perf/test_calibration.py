"""The calibration grid: which runs it has, that it goes on where it stopped, and what it counts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from metad_perf.calibration.command import Load, StormRun, loads, run, scaled, storms
from metad_perf.cli import _parser
from metad_perf.commands import CalibrationGrid
from metad_perf.errors import UsageError
from metad_perf.storm.accounts import NodeAccount, Others, of_nodes, since
from metad_wire.messages import GroupStatus, LaneStatus, StatusReply


def test_every_run_has_a_name_of_its_own() -> None:
    names = [*(one.name for one in loads()), *(one.run for one in storms())]
    assert len(set(names)) == len(names)
    assert not set(names) & {one.name for one in storms()}  # so that --only may name a setting, too


def test_settings_are_run_in_rounds_and_unseen_ones_have_a_median() -> None:
    found = storms()
    rounds = [one.number for one in found]
    assert rounds == sorted(rounds)
    for name in {one.name for one in found}:
        of_it = [one for one in found if one.name == name]
        assert len({msgspec.structs.replace(one, number=1) for one in of_it}) == 1
        assert of_it[0].seen or len(of_it) % 2


def test_a_setting_names_all_its_runs(tmp_path: Path) -> None:
    """Of which none is made here, because all are there."""
    for one in storms():
        if one.name == "unseen-slots":
            (tmp_path / f"{one.run}.json").write_text("{}")
    assert run(CalibrationGrid(out=tmp_path, scale=1.0, only=("unseen-slots",))) == 0
    assert sorted(file.stem for file in tmp_path.glob("unseen*")) == [f"unseen-slots-{at}" for at in (1, 2, 3)]


def test_loads_differ_in_what_is_to_be_told_apart() -> None:
    """Requests from entries, items from requests, restoring from taking over, leaders from followers."""
    found = loads()
    assert {(one.batch, one.in_flight) for one in found if one.restore} == {
        (one.batch, one.in_flight) for one in found if not one.restore
    }
    assert {one.batch for one in found} == {1, 10, 100, 1_000}
    assert {one.groups for one in found} == {1, 3}


def test_unseen_storms_are_of_other_sizes_brokers_policies_and_triggers() -> None:
    seen, unseen = ([one for one in storms() if one.seen is which] for which in (True, False))
    assert len(unseen) >= 6
    assert len(seen) >= 2
    assert not {(one.sessions, one.brokers, one.seed) for one in seen} & {
        (one.sessions, one.brokers, one.seed) for one in unseen
    }
    assert {one.trigger for one in unseen} > {one.trigger for one in seen}
    assert {one.policy for one in unseen} - {one.policy for one in seen}
    assert {one.groups for one in unseen} - {one.groups for one in seen}


def test_the_arguments_are_those_of_the_command() -> None:
    parser = _parser()
    for one in storms():
        for scale in (1.0, 0.001):
            smaller = scaled(one, scale)
            assert isinstance(smaller, StormRun)
            args = parser.parse_args(smaller.arguments())
            assert args.sessions == smaller.sessions >= 10 * args.brokers
            assert (args.policy, args.trigger, args.seed) == (one.policy, one.trigger, one.seed)


def test_a_small_load_still_lasts() -> None:
    smaller = scaled(loads()[0], 1e-6)
    assert isinstance(smaller, Load)
    assert smaller.seconds == 0.5


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    assert run(CalibrationGrid(out=tmp_path, scale=0.01, only=("fsync",))) == 0
    first = (tmp_path / "fsync.json").read_bytes()
    found = msgspec.json.decode(first)["seconds"]
    assert found == sorted(found)
    assert found[0] > 0
    assert run(CalibrationGrid(out=tmp_path, scale=0.01, only=("fsync",))) == 0
    assert (tmp_path / "fsync.json").read_bytes() == first


def test_a_folder_is_of_one_scale(tmp_path: Path) -> None:
    run(CalibrationGrid(out=tmp_path, scale=0.01, only=("fsync",)))
    with pytest.raises(UsageError, match="another scale"):
        run(CalibrationGrid(out=tmp_path, scale=0.02, only=("fsync",)))


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--scale"):
        run(CalibrationGrid(out=tmp_path, scale=0.0, only=()))
    with pytest.raises(UsageError, match="no run storm-of-the-century; there are fsync, refused-1, refused-100, load"):
        run(CalibrationGrid(out=tmp_path, scale=1.0, only=("storm-of-the-century",)))


def _status(entries: int, refused: int) -> StatusReply:
    groups = [GroupStatus(name, name.partition("-")[0], 1, 1, 1, 1, 1, role=role) for name, role in _ROLES]
    lanes = [LaneStatus("control", 5, 5), LaneStatus("records", 100, refused)]
    return StatusReply("n1", "c", "v", 1, 1, entries * 1000, 1, True, 3, 1, 1, entries, 1, groups, lanes=lanes)


_ROLES = [("metadata-0", "leader"), ("data-0", "leader"), ("data-1", "follower"), ("offset-0", "leader")]


def test_a_node_counts_what_it_did_since() -> None:
    before, after = (of_nodes([_status(*each)]) for each in ((1_000, 3), (3_000, 10)))
    assert since(before, after) == {"n1": NodeAccount(leads=1, cpu_s=2.0, entries=2_000, admitted=0, refused=7)}
    assert since(after, before) == {}, "it was started again in between"
    assert since({}, after) == {}


def test_what_others_use_is_never_below_nothing() -> None:
    others = Others()
    sum(range(200_000))
    assert others.cores(0.01) >= 0.0
    assert others.cores(0.0) == 0.0


def test_threads_that_want_a_core_are_counted_without_ours() -> None:
    others = Others()
    assert others.running() == 0.0
    others.look()
    first = others.running()
    others.look()  # so soon after it costs nothing, and changes nothing
    assert others.running() == first >= 0.0
