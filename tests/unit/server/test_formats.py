"""Formats of the data directory: one of the build before is taken over and says so, others are refused by what they
are; a feature that is switched on raises the format, so that an older build refuses the directory by itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from peer_rig import Stranger, node

from metad import formats
from metad.config import load_config
from metad.errors import ConfigError
from metad.node.disk.stores import StoreIdentity, pair_stores
from metad.state.core.entry import CHECKED_FORMAT, ENTRY_FORMAT
from metad.storage.log import LogStore
from metad.storage.memory import MemoryEngine
from metad_wire.connection import peer as p
from metad_wire.connection.frame import FrameType
from metad_wire.messages import Items
from metad_wire.methods import FEATURE_SWITCH
from metad_wire.program.build import build
from metad_wire.tables.feature import CHECKED_ENTRIES, FEATURES, FeatureRecord
from sim.memory import MemoryTransport
from waiting import until

CONFIG = load_config(None, {"storage": {"engine": "memory"}})
CARE = Path(__file__).resolve().parents[3] / "docs" / "CARE.md"
KEY = b"\0\0\0identity"


def stores_of(number: int, wrote: str = "") -> tuple[MemoryEngine, MemoryEngine]:
    """Log and state of a directory of this format."""
    identity = {"format": number, "store_id": "s", "node_id": CONFIG.node_id, "cluster_id": "", "build": wrote}
    engines = MemoryEngine(), MemoryEngine()
    for engine in engines:
        engine.write({KEY: msgspec.msgpack.encode(identity)})
    return engines


def kept(engine: MemoryEngine) -> StoreIdentity:
    value = engine.get(KEY)
    assert value is not None
    return msgspec.msgpack.decode(value, type=StoreIdentity)


def test_the_format_before_is_taken_over_and_known_to_be_converted() -> None:
    log, state = stores_of(3)
    for _ in range(2):  # also after a kill -9 in the middle
        identity = pair_stores(CONFIG, LogStore(log), state).identity
        assert (identity.format, identity.converts, identity.build) == (4, 3, build())
    stores = pair_stores(CONFIG, LogStore(log), state)
    stores.converted()
    assert (kept(log).format, kept(log).converts, kept(state).format) == (4, 0, 4)
    assert pair_stores(CONFIG, LogStore(log), state).identity.converts == 0


def test_a_format_that_is_raised_is_raised_in_both_stores_and_stays() -> None:
    log, state = stores_of(4)
    stores = pair_stores(CONFIG, LogStore(log), state)
    stores.reach(5)
    stores.reach(4)
    assert (kept(log).format, kept(state).format) == (5, 5)
    assert pair_stores(CONFIG, LogStore(log), state).identity.format == 5


@pytest.mark.parametrize(
    ("number", "wrote", "told"),
    [
        (
            2,
            "",
            "raft/ has format 2, this version reads 3 to 5: builds before commit 456b1767 read it: upgrade through",
        ),
        (6, "", "raft/ has format 6, this version reads 3 to 5: start a newer metad"),
        (6, "0.4.0+gabc", "this version reads 3 to 5: metad 0.4.0+gabc wrote it: start that or a newer one"),
    ],
)
def test_others_are_refused_and_the_text_names_what_reads_them(number: int, wrote: str, told: str) -> None:
    log, state = stores_of(number, wrote)
    with pytest.raises(ConfigError, match=told.replace("+", r"\+")):
        pair_stores(CONFIG, LogStore(log), state)
    assert kept(log).format == number, "nothing was changed"


def test_each_format_is_declared_once_and_written_within_what_is_read() -> None:
    for one in formats.FORMATS:
        assert one.oldest <= one.writes <= one.newest, one.what
        assert (one.writes < one.newest) <= (one.feature in FEATURES), "who writes a newer one needs a feature for it"
    assert (formats.LOG_ENTRY.writes, formats.LOG_ENTRY.newest) == (ENTRY_FORMAT, CHECKED_FORMAT)


@pytest.mark.skipif(not CARE.exists(), reason="the page is not written yet")
def test_the_page_has_the_table_as_it_is_printed() -> None:
    assert formats.table() in CARE.read_text(encoding="utf-8")


async def test_a_node_that_does_not_know_what_is_on_is_refused_and_told_what_to_start() -> None:
    network = MemoryTransport()
    async with node(network, cluster={"seeds": {"a": "a:1"}}) as server:
        await until(lambda: server.node.map is not None)
        knowing = await Stranger.dial(network)
        assert (await knowing.greet(server, "b", features=sorted(FEATURES))).type == FrameType.WELCOME
        older = await Stranger.dial(network)
        welcome = await older.greet(server, "c")
        assert welcome.type == FrameType.WELCOME, "until the switch an older node may take part"
        greeted = p.decode_welcome(welcome.payload)
        assert (greeted.build, greeted.features) == (build(), sorted(FEATURES))
        await server.node.requests.call(FEATURE_SWITCH, Items([FeatureRecord(CHECKED_ENTRIES, "on")]))
        known = server.node.lifecycle.features
        await until(lambda: CHECKED_ENTRIES in known.on)
        assert server.node.identity.format == 5
        for name, features, version in (("d", [], "of before"), ("e", ["other"], "0.1.5")):
            stranger = await Stranger.dial(network)
            said = await stranger.greet(server, name, features=features, build=version if features else "")
            assert said.type == FrameType.ERROR
            assert p.decode_error(said.payload).message == (
                f"{CHECKED_ENTRIES}: switched on in this cluster, and {name} with metad {version} does not know it: "
                "start metad 0.2.0 or newer"
            )
