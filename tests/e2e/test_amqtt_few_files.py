"""A broker whose process may open few files: clients that hang up, and clients without number, take none that others
need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from metad import embedded
from metad_perf.mqtt.brokers import BrokerProcess

FILES: Final = 128
FOR_CLIENTS: Final = FILES - 64 - FILES // 8
LOG_BYTES_MAX: Final = 20_000
CONNECT: Final = b"\x00\x04MQTT\x04\x00\x00\x00"


def connect_packet(client_id: bytes) -> bytes:
    body = CONNECT + len(client_id).to_bytes(2, "big") + client_id
    return bytes([0x10, len(body)]) + body


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with embedded.serve_in_thread() as server:
        running = BrokerProcess(server.url, "broker-1", tmp_path, files=FILES)
        try:
            yield running
        finally:
            running.end()


def open_files(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


async def connects(port: int, client_id: bytes) -> float:
    """Seconds until CONNACK, over as many connections as that takes."""
    begun = time.monotonic()
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(connect_packet(client_id))
                assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
                writer.close()
                return time.monotonic() - begun


async def hangs_up(port: int, ends: float, after_s: float) -> int:
    """One client id again and again. Returns how often."""
    count = 0
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(connect_packet(b"hasty"))
            await asyncio.sleep(after_s)
            writer.close()
            count += 1
    return count


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.2])
async def test_an_id_that_connects_and_hangs_up_takes_no_descriptor_of_others(
    broker: BrokerProcess, after_s: float
) -> None:
    """Twenty loops piled up 1,024 sockets in 14 s, and a stack trace for each attempt to accept the next one."""
    ends = time.monotonic() + 6
    loops = [asyncio.create_task(hangs_up(broker.port, ends, after_s)) for _ in range(20)]
    waited: list[float] = []
    most = 0
    while time.monotonic() < ends:
        waited.append(await connects(broker.port, b"honest-%d" % len(waited)))
        most = max(most, open_files(broker))
    assert sum([await one for one in loops]) > 100
    assert most < FILES - 16, "a reserve is left"
    assert sorted(waited)[len(waited) // 2] < 1.0
    assert await connects(broker.port, b"after") < 1.0
    assert len(broker.log) < LOG_BYTES_MAX, broker.log[-2_000:]
    assert "Traceback" not in broker.log


STRANGERS: Final = {
    "silent": b"",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "MQTT 5": b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\x00\x00",
    "MQTT 3": b"\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x00\x00\x00",
    "half": b"\x10\x40\x00\x04MQTT\x04",
    "no id": b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x00\x00\x00",
    "zeros": bytes(64),
}


async def test_strangers_do_not_fill_the_log(broker: BrokerProcess) -> None:
    """There was a line for each of them: a megabyte in three seconds."""

    async def knocks(words: bytes) -> None:
        for _ in range(150):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                writer.write(words)
                with contextlib.suppress(OSError):
                    writer.write_eof()
                    await reader.read()
                writer.close()

    begun = time.monotonic()
    await asyncio.gather(*(knocks(words) for words in STRANGERS.values()))
    lasted = time.monotonic() - begun
    assert await connects(broker.port, b"after") < 5.0
    assert len(broker.log) < 2_000 * (2 + lasted), broker.log[-2_000:]
    assert "Traceback" not in broker.log


async def test_clients_without_number_wait_outside(broker: BrokerProcess) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(3 * FOR_CLIENTS):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", broker.port))
        async with asyncio.timeout(30):
            while "no connection is accepted" not in broker.log:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert open_files(broker) < FILES - 16
    assert await connects(broker.port, b"after") < 5.0
    assert broker.log.count("no connection is accepted") <= 3
    assert len(broker.log) < LOG_BYTES_MAX, broker.log[-2_000:]
    assert "Traceback" not in broker.log
