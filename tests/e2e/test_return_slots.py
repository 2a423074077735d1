"""A real server with little room and a low pace: whoever is turned away comes back at its slot, and all are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from e2e_server import SMALL, Server

from metad_client import Backoff, Client, KvPutItem, Options, TurnedAway, connect

MIB = 1024 * 1024
PER_S = 4
CONFIG = f"""
log_level = "warning"
[limits]
frame_bytes_max = {4 * MIB}
in_flight_bytes_max = {4 * MIB}
returning_per_s = {PER_S}
[groups]
offset = 1
data = 1
{SMALL}
"""
AT_ONCE = 30
ROUNDS_MAX = 100


async def crowd(client: Client, enough: Callable[[TurnedAway], bool]) -> TurnedAway:
    """Ask for more than the server has room for, again and again, until it has turned away enough."""
    value = bytes(MIB - 100)
    for number in range(ROUNDS_MAX):
        items = [KvPutItem("space", f"{number}/{i}", value) for i in range(AT_ONCE)]
        for result in await asyncio.gather(*(client.kv.put_many([item], deadline_s=60) for item in items)):
            result.raise_for_error()
        turned_away = (await client.status()).turned_away
        if enough(turned_away):
            return turned_away
    raise AssertionError("nobody was turned away")


def test_who_is_turned_away_comes_back_at_its_slot(tmp_path: Path) -> None:
    async def heeds(server: Server) -> int:
        async with connect(server.url) as client:
            turned_away = await crowd(client, lambda turned_away: turned_away.requests >= 5)
            statistics = client.statistics()
            assert statistics.turned_away == statistics.retries == turned_away.requests
            assert statistics.returning == 0
            assert (turned_away.early, turned_away.per_s) == (0, PER_S)
            return turned_away.requests

    async def ignores(server: Server, before: int) -> None:
        naive = Options(backoff=Backoff(base_s=0.01, cap_s=0.01, retry_after="ignore"))
        async with connect(server.url, naive) as client:
            turned_away = await crowd(client, lambda turned_away: turned_away.early >= 5)
            assert client.statistics().turned_away == turned_away.early + turned_away.requests - before

    with Server(tmp_path / "d", config=CONFIG) as server:
        server.ready()
        asyncio.run(ignores(server, asyncio.run(heeds(server))))
        assert server.terminate() == 0
        server.quiet()
