"""What is set while a node runs counts at once, in each place that has copied it, and after the next start; what does
not fit, or is not on the disk, does not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metad.config import Config, LimitsConfig, load_config
from metad.config.declarations import SETTINGS, value_in
from metad.config.files import Origins, origins_of
from metad.node.chores.group_expiry import GroupExpiry
from metad.node.chores.sweeps import UnclaimedWills
from metad.node.settings import FILE, Settings
from metad.server.network import Network
from metad.server.serve import Server
from metad_wire.errors import ConflictError, InvalidRequestError, MetadError, NoRoomError, NotFoundError
from metad_wire.methods import SETTING_SET
from metad_wire.operator.settings import GetSettings, NodeSetting, SetSetting


class World:
    """Work beside the loop is done when the test says so; ``error`` is what the disk says."""

    def __init__(self) -> None:
        self.works: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []
        self.error: OSError | None = None

    def beside(self, work: Callable[[], None], done: Callable[[BaseException | None], None], queue: Any) -> None:
        self.works.append((work, done))

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def step(self) -> None:
        work, done = self.works.pop(0)
        if self.error is None:
            work()
        done(self.error)


class Rig:
    """``heard``: the configurations that have counted, one after the other."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self.world, self.heard, self.place = World(), list[Config](), place
        world: Any = self.world
        self.settings = Settings(load_config(None, {"data_dir": str(place), **settings}), world, self.heard.append)

    def ask(self, setting: str, value: str | None) -> list[Any]:
        """The answers, once there are some."""
        found: list[Any] = []
        self.settings.set(SetSetting(setting, value), found.append)
        return found

    def set(self, setting: str, value: str | None) -> NodeSetting:
        found = self.ask(setting, value)
        assert not found, "it is not on the disk"
        self.world.step()
        assert not isinstance(found[0], MetadError), found[0]
        (one,) = SETTING_SET.decode_reply(found[0]).settings
        return one

    def get(self, setting: str) -> NodeSetting:
        (one,) = self.settings.get(GetSettings(setting)).settings
        return one


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """The level of the log is that of the whole process."""
    logger = logging.getLogger("metad")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        ("limits.slow_ms", "300", 300),
        ("limits.slow_ms", "2s", 2_000),
        ("limits.slow_ms", "1.5s", 1_500),
        ("storage.watch_retained_ms", "1 h", 3_600_000),
        ("expiry.will_keep_s", "2d", 172_800),
        ("storage.log_retained_bytes", "64MiB", 64 << 20),
        ("limits.in_flight_bytes_max", "1GiB", 1 << 30),
        ("storage.low_room_share", "0.25", 0.25),
        ("expiry.sessions_per_s", "7", 7),
        ("log_level", "debug", "debug"),
    ],
)
def test_it_counts_once_it_is_on_the_disk_and_after_the_next_start(
    tmp_path: Path, setting: str, text: str, value: Any
) -> None:
    rig = Rig(tmp_path)
    before = value_in(rig.settings.config, setting)
    assert not rig.ask(setting, text)
    assert value_in(rig.settings.config, setting) == before
    rig.world.step()
    assert value_in(rig.settings.config, setting) == value == value_in(rig.heard[-1], setting)
    assert rig.get(setting).source == "run time"
    after = Rig(tmp_path)
    assert value_in(after.settings.config, setting) == value
    assert after.get(setting).source == "run time"


def test_it_counts_over_the_file_until_it_is_unset(tmp_path: Path) -> None:
    rig = Rig(tmp_path, limits={"slow_ms": 700})
    rig.settings.origins = Origins("/etc/metad.toml", {"limits.slow_ms": "environment"})
    assert rig.set("limits.slow_ms", "300").value == "300"
    one = Rig(tmp_path, limits={"slow_ms": 900}).get("limits.slow_ms")
    assert (one.value, one.configured, one.default, one.live, one.least, one.most) == (
        *("300", "900", "1000", True, 0),
        86_400_000,
    )
    unset = rig.set("limits.slow_ms", None)
    assert (unset.value, unset.source) == ("700", "environment")
    assert Rig(tmp_path).get("limits.slow_ms").source == "default"
    assert (tmp_path / FILE).read_text().count("\n") == 1, "only the line that says what the file is"


@pytest.mark.parametrize(
    ("setting", "text", "error", "match"),
    [
        ("limits.frame_bytes_max", "32MiB", ConflictError, "needs a restart: set it in a file for `metad serve"),
        ("node_id", "n2", ConflictError, "needs a restart"),
        ("limits.slow", "1", NotFoundError, "did you mean limits.slow_ms"),
        ("slow_ms", "1", NotFoundError, "did you mean limits.slow_ms"),
        ("nothing", "1", NotFoundError, "there is no setting nothing$"),
        ("limits.slow_ms", "x", InvalidRequestError, "'x' is no number, as in 2ms, 2s"),
        ("limits.slow_ms", "2MiB", InvalidRequestError, "is no number"),
        ("limits.slow_ms", "1.0001s", InvalidRequestError, "no whole number"),
        ("limits.slow_ms", "-1", InvalidRequestError, "too small: at least 0"),
        ("limits.slow_ms", "2d", InvalidRequestError, "too large: at most 86,400,000"),
        ("limits.in_flight_bytes_max", "5MiB", InvalidRequestError, "must hold at least one frame"),
        ("expiry.sessions_per_s", "1s", InvalidRequestError, "is no number$"),
        ("log_level", "loud", InvalidRequestError, "is not one of debug"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(
    tmp_path: Path, setting: str, text: str, error: type[MetadError], match: str
) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(error, match=match):
        rig.ask(setting, text)
    assert not rig.world.works
    assert not rig.heard


def test_a_restart_is_asked_for_with_the_file_to_edit(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.settings.origins = Origins("/etc/metad.toml")
    with pytest.raises(ConflictError, match=r"set it in /etc/metad\.toml, and start the node again"):
        rig.ask("fsync", "false")


@pytest.mark.parametrize(("number", "error"), [(28, NoRoomError), (5, ConflictError)])
def test_what_the_disk_does_not_take_does_not_count(tmp_path: Path, number: int, error: type[MetadError]) -> None:
    rig = Rig(tmp_path)
    rig.world.error = OSError(number, "it says")
    found = rig.ask("limits.slow_ms", "300")
    rig.world.step()
    assert isinstance(found[0], error)
    assert "it says" in str(found[0])
    assert rig.get("limits.slow_ms").value == "1000"
    assert not rig.heard
    rig.world.error = None
    assert rig.set("limits.slow_ms", "300").value == "300"


def test_one_is_written_after_the_other_and_few_wait(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    answers = [rig.ask("limits.slow_ms", str(number)) for number in range(17)]
    with pytest.raises(ConflictError, match="try it again"):
        rig.ask("limits.queue_ms", "5s")
    assert len(rig.world.works) == 1
    while rig.world.works:
        rig.world.step()
    values = [SETTING_SET.decode_reply(answer).settings[0].value for (answer,) in answers]
    assert values == [str(number) for number in range(17)]
    assert Rig(tmp_path).get("limits.slow_ms").value == "16"


def test_a_start_takes_what_fits_of_what_another_version_has_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["limits.slow_ms = 300", "limits.gone_ms = 1", "limits.queue_ms = 'x'", "limits.frame_bytes_max = 9000000"]
    (tmp_path / FILE).write_text("\n".join([*lines, "limits.deadline_default_ms = 0", "expiry.will_keep_s = 60"]))
    with caplog.at_level(logging.WARNING, "metad"):
        rig = Rig(tmp_path)
    found = {key: value_in(rig.settings.config, key) for key in SETTINGS}
    changed = {key: value for key, value in found.items() if value != SETTINGS[key].default and key != "data_dir"}
    assert changed == {"limits.slow_ms": 300, "expiry.will_keep_s": 60}
    ignored = [record.fields["setting"] for record in caplog.records if record.message == "setting_ignored"]  # type: ignore[attr-defined]
    assert ignored == [f"limits.{name}" for name in ("gone_ms", "queue_ms", "frame_bytes_max", "deadline_default_ms")]
    (tmp_path / FILE).write_text("limits.slow_ms = ")
    assert Rig(tmp_path).get("limits.slow_ms").source == "default"


def test_where_a_setting_is_from(tmp_path: Path) -> None:
    file = tmp_path / "metad.toml"
    file.write_text("log_level = 'error'\n[limits]\nslow_ms = 1\n[cluster.seeds]\nn1 = 'a:1'\n")
    origins = origins_of(file, {"log_level": "debug", "cluster": {"region": "eu"}}, {"listen": "a:1"})
    assert origins.file == str(file)
    assert origins.given == {
        "log_level": "environment",
        "limits.slow_ms": "file",
        "cluster.seeds": "file",
        "cluster.region": "environment",
        "listen": "flag",
    }


# --- each of them, in a server ----------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    config = load_config(None, {"listen": "127.0.0.1:0", "storage": {"engine": "memory"}})
    made = await Server.start(config, Network.of(config))
    yield made
    await made.stop()


def chore(server: Server, kind: type, name: str) -> Any:
    """Of the first chore of a kind; of one that is made from now on, too."""
    sweeps = server.node.sweeps
    sweeps.stop()
    sweeps.start()  # which looks at once, and finds all groups
    driver, chores = next((driver, all_) for driver, all_ in sweeps._chores.items() if any_of(all_, kind))
    made = sweeps._of(driver, next(g.kind for g, d in server.node.groups.drivers.items() if d is driver))
    (mine,), (new,) = any_of(chores, kind), any_of(made, kind)
    assert getattr(mine, name) == getattr(new, name)
    return getattr(mine, name)


def any_of(chores: list[Any], kind: type) -> list[Any]:
    return [one for one in chores if isinstance(one, kind)]


class Connected:
    """A connection that was there before."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.limits = limits


PLACES: dict[str, tuple[Any, Callable[[Server], Any]]] = {
    "drain_timeout_ms": (5, lambda s: s.config.drain_timeout_ms),
    "log_level": ("error", lambda s: logging.getLevelName(logging.getLogger("metad").level).lower()),
    "storage.log_retained_bytes": (
        4_000,
        lambda s: (s.node.checkpoints.log_retained_bytes, 4 * s.node.watches.mark_bytes),
    ),
    "storage.watch_retained_bytes": (7, lambda s: s.node.watches.retained_bytes),
    "storage.watch_retained_ms": (7_000, lambda s: 1_000 * s.node.watches.retained_s),
    "storage.low_room_bytes": (7, lambda s: s.node.disk_room.config.low_room_bytes),
    "storage.low_room_share": (0.25, lambda s: s.node.disk_room.config.low_room_share),
    "storage.compare_every_ms": (7_000, lambda s: 1_000 * s.node.comparisons.every_s),
    "limits.in_flight_bytes_max": (1 << 30, lambda s: s.node.budget.room.size_max),
    "limits.unfinished_bytes_max": (1 << 30, lambda s: s._intake.bytes_max),
    "limits.unbegun_bytes_max": (1 << 30, lambda s: s._unbegun.size_max),
    "limits.unsent_bytes_max": (1 << 30, lambda s: s._unsent.bytes_max),
    "limits.handshake_timeout_ms": (7, lambda s: s.config.limits.handshake_timeout_ms),
    "limits.write_stall_timeout_ms": (7, lambda s: s.config.limits.write_stall_timeout_ms),
    "limits.slow_ms": (7, lambda s: [one.limits.slow_ms for one in s._connections]),
    "limits.watch_streams_max": (7, lambda s: s.node.watches.streams.size_max),
    "limits.connection_watch_streams_max": (
        7,
        lambda s: [one.limits.connection_watch_streams_max for one in s._connections],
    ),
    "limits.watch_held_bytes_max": (7, lambda s: s.node.watches.limits.watch_held_bytes_max),
    "limits.watch_silence_ms": (7, lambda s: s.node.watches.limits.watch_silence_ms),
    "limits.returning_per_s": (7, lambda s: s.node.return_share.per_s_max),
    "limits.queue_ms": (7_000, lambda s: 1_000 * s.node.gate.admission.wait_max_s),
    "limits.deadline_default_ms": (7, lambda s: s.node.requests.deadline_default_ms),
    "cluster.features_after_ms": (7_000, lambda s: 1_000 * s.node.controller.switches.after_s),
    "expiry.sessions_per_s": (7, lambda s: s.node.sweeps._turns._rate),
    "expiry.will_keep_s": (7, lambda s: chore(s, UnclaimedWills, "keep_ms") / 1_000),
    "expiry.consumer_group_ms": (7, lambda s: chore(s, GroupExpiry, "unused_ms")),
}
"""Where each counts; a tuple or a list: in each of these places."""


def test_each_is_looked_for_where_it_counts() -> None:
    assert PLACES.keys() == {key for key, declared in SETTINGS.items() if declared.live is not None}


@pytest.mark.parametrize("key", PLACES)
async def test_it_counts_in_each_place(server: Server, key: str) -> None:
    value, seen = PLACES[key]
    connection: Any = Connected(server.config.limits)
    server._connections.add(connection)
    answers: list[Any] = []

    def all_seen() -> list[Any]:
        found = seen(server)
        return list(found) if isinstance(found, tuple | list) else [found]

    assert value not in all_seen()
    server.node.settings.set(SetSetting(key, str(value)), answers.append)
    assert SETTING_SET.decode_reply(answers[0])
    assert {*all_seen()} == {value}
    server._connections.discard(connection)
