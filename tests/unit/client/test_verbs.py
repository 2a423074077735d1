"""Every verb asks what it should and returns what it promises."""

from __future__ import annotations

from metad_client import KvPutItem
from metad_wire import messages as m


async def test_a_put_returns_the_new_version(server, dial):
    client = await dial()
    assert await client.kv.put("ns", "key", b"7") == 7
    assert server.received[0].body == m.KvPut([m.KvPutItem("ns", "key", b"7")])


async def test_status(dial):
    client = await dial()
    status = await client.status()
    assert status.node_id == "n1"
    assert status.groups[0].name == "data-0"


async def test_put_many(dial):
    client = await dial()
    result = await client.kv.put_many([KvPutItem("ns", "a", b"1"), KvPutItem("ns", "b", b"2")])
    assert result.ok
    assert result.versions == [1, 2]
