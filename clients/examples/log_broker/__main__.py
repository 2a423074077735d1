"""``python -m log_broker --metad URL --name NAME --folder DIR``: one broker, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from metad_client import MetadError, connect

from .broker import Broker, Listener
from .protocol import KIND

_AGAIN_S = 0.5


async def main(url: str, name: str, folder: Path, host: str, lease_s: float) -> None:
    listener, ended = Listener(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    with socket.create_server((host, 0)) as listening, ExitStack() as ends:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        ends.callback(asyncio.create_task(listener.accept(listening)).cancel)
        while not ended.is_set():
            try:
                async with connect(url) as metad:
                    at, note = f"{host}:{port}", folder / "life"  # records are on the disk before they count
                    life = await metad.brokers.register(
                        name, lease_s=lease_s, address=at, probe_port=port, sole=True, note=note
                    )
                    broker = listener.broker = Broker(metad, life.owner, folder)
                    async with metad.serve(
                        KIND, on_lead=broker.lead, on_follow=broker.follow, on_release=broker.release
                    ) as serving:
                        print(f"{name} serves on {at} in life {life.epoch}", flush=True)
                        tasks = [*map(asyncio.create_task, (serving.lost(), ended.wait(), broker.tidy(serving)))]
                        await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
                        for task in tasks:
                            task.cancel()
                    if ended.is_set():
                        await life.end()
            except (MetadError, OSError) as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(_AGAIN_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="log_broker", description="One broker, until SIGTERM.")
    for word, kind in (("--metad", str), ("--name", str), ("--folder", Path)):
        parser.add_argument(word, type=kind, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--lease-s", type=float, default=3.0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with (given.folder / "lock").open("w") as lock:  # one process of a broker at a time: so its life is the sole one
        fcntl.flock(lock, fcntl.LOCK_EX)
        asyncio.run(main(given.metad, given.name, given.folder, given.host, given.lease_s))
