"""Directories and nodes of other releases, for real. A directory that the build of commit 70d03914 wrote (format 3) is
taken over, converted while the node serves, and again after kill -9 in the middle; nothing of it is lost on the way."""

from __future__ import annotations

import tarfile
from pathlib import Path

import msgspec
import pytest
from e2e_perf import metad_perf, report_of
from e2e_server import Server

from metad.config import StorageConfig
from metad.node.disk.stores import StoreIdentity
from metad.state.core.counts import COPY_BYTES_MAX, decode_counts
from metad.storage import keys
from metad.storage.rocks import RocksEngine, Shared, log_options, state_options
from metad_client import SessionKey, SessionTakeoverItem, blocking
from metad_wire.cluster import GroupId
from metad_wire.messages import SessionProperties
from metad_wire.tables.session import SESSION
from waiting import wait_until

RELEASES = Path(__file__).resolve().parents[1] / "releases"
CONFIG = 'node_id = "n1"\n[groups]\ndata = 2\noffset = 1\n'
DEVICES = [f"device-{number:03}" for number in range(300)]
IDENTITY = b"\0\0\0identity"


def payload(number: int) -> bytes:
    return b"short %03d" % number if number % 10 else b"long %03d " % number * 100


def filters(number: int) -> set[str]:
    return {f"topic/{n}" for n in range(1 + number % 2)} if number % 3 else set()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(RELEASES / "data-directory-format-3.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def identity_in(directory: Path) -> StoreIdentity:
    engine = RocksEngine(directory / "raft", log_options(Shared(StorageConfig()), 1 << 20), wal=True)
    try:
        value = engine.get(IDENTITY)
        assert value is not None
        return msgspec.msgpack.decode(value, type=StoreIdentity)
    finally:
        engine.close()


def uncopied(directory: Path) -> tuple[int, int]:
    """How many sessions with counts there are, and how many lack a copy of properties that are short."""
    engine = RocksEngine(directory / "state", state_options(Shared(StorageConfig())), wal=False)
    found = lacking = 0
    try:
        for ordinal in (0, 1):
            group = keys.group_prefix(GroupId("data", ordinal))
            prefix, properties = (keys.table_prefix(group, SESSION.rows[row]) for row in ("parts", "properties"))
            for key, row in engine.scan(prefix, keys.after_prefix(prefix), 1_000):
                stored = engine.get(properties + key[len(prefix) :])
                assert stored is not None
                (counts,) = decode_counts([row])
                found += 1
                lacking += len(stored) <= COPY_BYTES_MAX and bytes(counts.properties) != stored
    finally:
        engine.close()
    return found, lacking


def check_all(server: Server) -> None:
    with blocking.connect(server.url) as m:
        sessions = m.sessions.get_many([SessionKey("acme", name) for name in DEVICES])
        sessions.raise_for_error()
        found = m.subscriptions.get_many([SessionKey("acme", name) for name in DEVICES])
        found.raise_for_error()
        for number, (session, subscribed) in enumerate(zip(sessions, found, strict=True)):
            assert session is not None
            assert (session.properties.payload, session.properties.expiry_interval_s) == (payload(number), 86_400_000)
            assert {one.filter for one in subscribed or ()} == filters(number)
        kept = m.kv.get("config", "greeting")
        assert kept is not None
        assert kept.value == b"hello"
        committed = m.offsets.fetch("acme", "billing", "orders", 0)
        assert committed is not None
        assert committed.offset == 42


def test_a_directory_of_format_3_is_converted_while_its_node_serves(directory: Path) -> None:
    assert identity_in(directory).format == 3
    assert uncopied(directory) == (200, 180)
    with Server(directory, config=CONFIG) as server:  # killed as soon as it serves
        check_all(server.ready())
        assert server.events("converting")
    with Server(directory, config=CONFIG) as server:
        server.ready()
        wait_until(lambda: server.events("converted"), "the end of the conversion")
        check_all(server)
        with blocking.connect(server.url) as m:  # the copies are what a storm restores
            items = [SessionTakeoverItem("acme", name) for name in DEVICES]
            taken = m.sessions.takeover_many("b2", 1, items, restore=True)
            taken.raise_for_error()
            for number in range(len(DEVICES)):
                assert taken.properties(number) == SessionProperties(86_400_000, payload(number))
        assert server.terminate() == 0
    assert uncopied(directory) == (200, 0)
    identity = identity_in(directory)
    assert (identity.format, identity.converts) == (4, 0)
    with Server(directory, config=CONFIG) as server:
        check_all(server.ready())
        assert not server.events("converting")


WHEEL = RELEASES / "metad_service-0.1.0-py3-none-any.whl"


@pytest.mark.slow
def test_nodes_are_upgraded_and_go_back_under_load(tmp_path: Path) -> None:
    """Release 0.1.0 is that of commit 07f471a2, the last one without features. What is judged here is that nothing is
    lost and no call fails; how long a write takes is measured where nothing else runs."""
    report = report_of(tmp_path, "upgrade", "--from", WHEEL, "--rate", 200, "--sessions", 500)
    assert (report["failed_calls"], report["lost"]) == (0, 0)
    assert report["downgraded"]
    assert report["refused_after_switch"]
    assert report["from"] == "0.1.0" != report["to"]
    assert report["slots_moved"] > 0
    assert [(one["step"], one["node"]) for one in report["steps"][1:]] == [
        (step, node) for step in ("upgrade", "downgrade") for node in ("n1", "n2", "n3")
    ]
    assert report["longest_write_ms"] > 0


@pytest.mark.parametrize(
    ("source", "word"),
    [("nowhere-0.1.0-py3-none-any.whl", "is no wheel of metad's server"), ("no-such-revision", "git rev-parse")],
)
def test_what_is_no_release_is_named_in_one_line(source: str, word: str) -> None:
    done = metad_perf("upgrade", "--from", source)
    (line,) = done.stderr.splitlines()
    assert word in line
    assert done.returncode in (1, 2)
