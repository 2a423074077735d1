"""The verb of "Adding a verb" on a real node. Run by test_adding.py, where it is declared."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path

import pytest
from e2e_server import Server

import metad_client
from metad_client import InflightStates, ReadResult, SessionKey, blocking, connect
from metad_wire.methods import METHODS_BY_NAME, READS

KEYS = [SessionKey("acme", "c0"), SessionKey("acme", "c2"), SessionKey("acme", "nobody")]


async def test_both_clients_count(tmp_path: Path) -> None:
    with Server(tmp_path / "n1") as server:
        server.ready()
        async with connect(f"metad://{server.endpoint}") as m:
            for client in range(3):
                await m.sessions.takeover("b1", 1, "acme", f"c{client}")
                for number in range(client):
                    await m.inflight.put("b1", 1, "acme", f"c{client}", f"out/{number}", b"PUBREL")
            counts = await m.inflight.count_many(KEYS)
            counts.raise_for_error()
            assert counts == [0, 2, 0]
            assert await m.inflight.count("acme", "c1") == 1
            await m.inflight.delete("b1", 1, "acme", "c1", "out/0")
            assert await m.inflight.count("acme", "c1") == 0
            too_long = await m.inflight.count_many([SessionKey("acme", "c" * 5_000), KEYS[1]])
            assert too_long == [None, 2]
            with pytest.raises(metad_client.InvalidItemError):
                too_long.raise_for_error()
        with blocking.connect(f"metad://{server.endpoint}") as b:
            assert b.inflight.count_many(KEYS) == [0, 2, 0]
            assert b.inflight.count("acme", "c2", min_revisions=[]) == 2


def test_types_docstrings_and_rules_follow_from_the_declaration() -> None:
    hints = typing.get_type_hints(InflightStates.count_many)
    assert hints["return"] == ReadResult[int | None]
    assert typing.get_type_hints(InflightStates.count)["return"] is int
    assert (inspect.getdoc(InflightStates.count_many) or "").startswith("How many things are in flight for each client")
    assert METHODS_BY_NAME["inflight.count"].code in READS
