"""A node whose process may open few files: strangers and clients without number are refused, and the node lives."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from pathlib import Path

from e2e_server import Server

from metad_client import MetadError, Options, OverloadedError, connect

FILES = 256


class FewFiles(Server):
    """A server whose process may open few files."""

    def __init__(self, data_dir: Path) -> None:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        super().__init__(data_dir)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


async def works(server: Server) -> None:
    """A client that comes now is served, and what it writes reaches the disk."""
    async with connect(server.url, Options(deadline_s=30.0)) as m:
        await m.kv.put("n", "k", b"v" * 10_000)
        assert await m.kv.get("n", "k") is not None


async def test_strangers_take_no_descriptor_that_is_needed(tmp_path: Path) -> None:
    with FewFiles(tmp_path / "data") as server:
        server.ready()
        assert {line["key"] for line in server.events("limit_lowered")} == {
            "storage.open_files",
            "limits.connections_max",
        }
        strangers: list[socket.socket] = []
        with contextlib.ExitStack() as held:
            for _ in range(3):
                for _ in range(300):
                    sock = held.enter_context(socket.socket())
                    sock.settimeout(5)
                    with contextlib.suppress(OSError):
                        sock.connect(server.address)
                    strangers.append(sock)
                await works(server)
        await works(server)
        assert server.process.poll() is None
        assert not server.events("node_failed")
        assert server.terminate() == 0, server.stderr


async def test_clients_without_number_are_told_so(tmp_path: Path) -> None:
    with FewFiles(tmp_path / "data") as server:
        server.ready()
        (lowered,) = [one for one in server.events("limit_lowered") if one["key"] == "limits.connections_max"]
        async with contextlib.AsyncExitStack() as clients:
            served = 0
            refused: list[MetadError] = []
            for _ in range(lowered["possible"] + 30):
                client = connect(server.url, Options(deadline_s=3.0))
                try:
                    await clients.enter_async_context(client)
                    await client.kv.put("n", f"{served}", b"v")
                    served += 1
                except MetadError as error:
                    refused.append(error)
                if len(refused) >= 2:
                    break
            assert served >= lowered["possible"] - 2
            assert refused
            assert any(isinstance(error, OverloadedError) or "too many connections" in str(error) for error in refused)
        for _ in range(50):
            if server.process.poll() is None:
                with contextlib.suppress(MetadError):
                    await works(server)
                    break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError("nobody is served any more")
        assert server.terminate() == 0, server.stderr
