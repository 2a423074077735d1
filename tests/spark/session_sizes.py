"""What sessions, subscriptions and groups take of a node's disk and memory, as ``metad_spark/sizing.py`` says.

    python tests/spark/session_sizes.py --sessions 1000000

One node with fsync, filled through the SDK. Memory is read when the node is quiet, the disk after it was drained. Work
beside it changes times, not sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from metad_client import SessionProperties, SessionTakeoverItem, connect
from metad_perf.spawn import Server, disk_directory
from metad_wire.tables.subscription import Subscription

QUIET_CPU_SHARE = 0.05
QUIET_LOOKS = 3
BATCH = 1_000
IN_FLIGHT = 6


def client_id(number: int) -> str:
    return f"client-{number:09d}"


async def fill(url: str, first: int, last: int, payload_bytes: int, subscriptions: int) -> None:
    """Sessions with payloads that cannot be compressed, each with filters of 30 bytes."""
    async with connect(url) as m:

        async def writer(number: int) -> None:
            for begin in range(first + number * BATCH, last, IN_FLIGHT * BATCH):
                names = [client_id(at) for at in range(begin, min(last, begin + BATCH))]
                items = [
                    SessionTakeoverItem(
                        f"tenant-{at % 20}", name, False, SessionProperties(86_400, os.urandom(payload_bytes))
                    )
                    for at, name in enumerate(names)
                ]
                (await m.sessions.takeover_many("broker", 1, items, deadline_s=120)).raise_for_error()
                for each in range(subscriptions):
                    filters = [
                        Subscription(f"tenant-{at % 20}", name, f"site/{at % 977:04d}/{each}/{name}")
                        for at, name in enumerate(names)
                    ]
                    (await m.subscriptions.add_many("broker", 1, filters, deadline_s=120)).raise_for_error()

        await asyncio.gather(*[writer(number) for number in range(IN_FLIGHT)])


def disk_bytes(directory: Path) -> int:
    """What the files of a directory take, by the blocks that they have."""
    found = 0
    for path in directory.rglob("*"):
        try:
            found += path.stat().st_blocks * 512
        except FileNotFoundError:  # a compaction has just removed it
            continue
    return found


def wait_until_quiet(server: Server) -> None:
    quiet = 0
    while quiet < QUIET_LOOKS:
        before = server.cpu_s()
        time.sleep(1)
        quiet = quiet + 1 if server.cpu_s() - before < QUIET_CPU_SHARE else 0


def measure(sessions: int, payload_bytes: int, subscriptions: int, groups: int) -> None:
    """Print the sizes when empty, with a quarter of the sessions, and with all of them."""
    with tempfile.TemporaryDirectory(dir=disk_directory()) as directory:
        config = Path(directory) / "metad.toml"
        config.write_text(f"[groups]\ndata = {groups}\n")
        server = Server(Path(directory), config=config)
        try:
            server.start()
            done = 0
            for wanted in (0, sessions // 4, sessions):
                asyncio.run(fill(f"metad://{server.target}", done, wanted, payload_bytes, subscriptions))
                done = wanted
                wait_until_quiet(server)
                rss_bytes = server.rss_bytes()
                server.stop()  # it writes its state to disk, so that no log is left that it would need
                row = {
                    "groups": groups,
                    "sessions": wanted,
                    "payload_bytes": payload_bytes,
                    "subscriptions": subscriptions,
                    "disk_bytes": disk_bytes(Path(directory)),
                    "rss_bytes": rss_bytes,
                }
                server.start()
                print(json.dumps(row), flush=True)
        finally:
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    chosen = parser.parse_args()
    few = chosen.sessions // 2
    for sessions, payload_bytes, subscriptions, groups in (
        (chosen.sessions, 32, 0, 2),
        (few, 200, 0, 2),
        (few, 32, 5, 2),
        (few, 200, 5, 2),
        (few, 32, 0, 32),
    ):
        measure(sessions, payload_bytes, subscriptions, groups)


if __name__ == "__main__":
    main()
