"""The connections of a process end with it, also if a fork of it lives on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from metad import embedded
from metad_client import blocking
from waiting import wait_until

PROGRAM = """
import os, sys, time
from metad_client import blocking
client = blocking.connect(sys.argv[1])
client.__enter__()
client.kv.put("n", "k", b"v")
child = os.fork()
if child == 0:
    time.sleep(300)
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
client.kv.put("n", "k", b"the parent's connection goes on")
print("done", flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_does_not_outlive_its_process_in_a_fork(loop: str) -> None:
    """The server took a program that was killed for alive until the connection had been silent for too long."""
    install = "import metad_wire.transport.tcp as tcp\ntcp.install_uvloop()\n" if loop == "uvloop" else ""
    with embedded.serve_in_thread() as server, blocking.connect(server.url) as m:

        def connections() -> int:
            (status,) = m.cluster.statuses().values()
            return status.connections

        before = connections()
        command = [sys.executable, "-c", install + PROGRAM, server.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdin is not None
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            try:
                parent.stdin.write("go on\n")
                parent.stdin.flush()
                assert parent.stdout.readline() == "done\n"
                assert connections() > before
                parent.kill()
                parent.wait()
                wait_until(lambda: connections() == before, "its connections end")
            finally:
                parent.kill()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
