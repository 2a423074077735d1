"""What a node promises fits what its process may have: files first for storage and nodes, then for clients."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

from metad import process_limits
from metad.config import Config, LimitsConfig, StorageConfig
from metad.errors import ConfigError
from metad.process_limits import fitted, memory_shortage
from metad_wire.program.open_files import peer_files, raise_files_limit
from metad_wire.transport.pace import greeting_max

CONFIG = Config(data_dir="d")
STORE_FILES = 48
"""Of both stores, beside the table files."""


@pytest.mark.parametrize("files", [*range(200, 2_000, 50), 4_096, 10_000, 65_536, 1 << 20])
def test_all_that_is_promised_fits(files: int) -> None:
    config, lowered = fitted(CONFIG, files)
    served = config.limits.connections_max
    clients = served + 2 * greeting_max(served)
    promised = clients + peer_files(files) + 2 * config.storage.open_files + STORE_FILES + 40
    assert promised <= files
    assert bool(lowered) == (config != CONFIG)
    assert {one.possible for one in lowered} <= {served, config.storage.open_files}


def test_with_enough_files_nothing_is_lowered() -> None:
    assert fitted(CONFIG, 8_192 + 512) == (CONFIG, [])


def test_with_256_files_clients_are_served() -> None:
    config, lowered = fitted(CONFIG, 256)
    assert config.limits.connections_max >= 32
    assert [one.key for one in lowered] == ["storage.open_files", "limits.connections_max"]
    assert "256 files" in lowered[0].reason


def test_too_few_files_are_refused() -> None:
    with pytest.raises(ConfigError, match="leaves none for clients"):
        fitted(CONFIG, 128)


def test_memory_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_limits, "_memory", lambda: (1 << 30, "the container"))
    short = memory_shortage([CONFIG])
    assert short is not None
    assert short.configured > short.possible == 1 << 30
    small = Config(
        data_dir="d",
        storage=StorageConfig(
            block_cache_bytes=1 << 20, memtable_bytes=1 << 20, owner_cache_bytes=1, row_cache_bytes=1
        ),
        limits=LimitsConfig(in_flight_bytes_max=16 << 20),
    )
    assert memory_shortage([small]) is None
    assert memory_shortage([small] * 8) is not None, "all processes of a machine count"


def test_the_limit_of_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_files_limit() == (before[1] if before[1] != resource.RLIM_INFINITY else 1 << 62)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
@pytest.mark.parametrize("set_up", [False, True])
def test_large_blocks_go_back_to_the_system_and_threads_share_a_heap(set_up: bool) -> None:
    """Without the setting, glibc takes a large block from its heap once it has seen a larger one go."""
    program = f"""
import ctypes, threading
from metad.process import bound_heap
{"bound_heap()" if set_up else ""}
gone = bytearray(1 << 20)
del gone
blocks = [bytearray(512 * 1024)]
thread = threading.Thread(target=lambda: blocks.append(bytearray(100_000)))
thread.start()
thread.join()
ats = [ctypes.addressof(ctypes.c_char.from_buffer(block)) for block in blocks]
(heap,) = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]")]
print(*(int(heap[0], 16) <= at < int(heap[1], 16) for at in ats))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(not set_up), str(set_up)]
