"""Ports that are taken before they are told, and signals that children begin with."""

from __future__ import annotations

import multiprocessing
import random
import re
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from metad_wire.transport.claims import PORTS, Claim
from metad_wire.transport.tcp import bound

ROOT = Path(__file__).resolve().parents[3]


def claims(told: Connection) -> None:
    random.seed(7)  # all begin to look at the same place
    with Claim(6) as claim:
        told.send(list(claim.ports))
        told.recv()


def test_claims_that_are_made_at_once_never_meet() -> None:
    """Two clusters that were started together took the same ports, and one of them ended."""
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for _ in range(8):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=claims, args=(theirs,), daemon=True))
        pipes.append(ours)
    for process in processes:
        process.start()
    found = [port for pipe in pipes for port in pipe.recv()]
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()
    assert len(found) == len(set(found)) == 48
    assert set(found) <= set(PORTS)


async def test_a_server_listens_on_a_claimed_port_and_comes_back_to_it() -> None:
    with Claim(2) as claim:
        for _ in range(2):
            listening = await bound("127.0.0.1", claim.first)  # as a node does
            other = socket.socket()
            with socket.create_connection(("127.0.0.1", claim.first)), other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", claim.first))
            for sock in listening:
                sock.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", claim.first))


def test_ports_that_are_known_are_held_as_far_as_they_are_free() -> None:
    with Claim(3) as claim:
        first = claim.first
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", first + 1))
        listening.listen()
        with Claim(3, first) as again:
            assert again.ports == range(first, first + 3)
            for port in (first, first + 2):
                with socket.socket() as other, pytest.raises(OSError, match="in use"):
                    other.bind(("127.0.0.1", port))


def test_nobody_else_looks_for_ports_and_lets_them_go() -> None:
    """A search that closes its sockets hands out what another may take: :class:`Claim` is the only one."""
    found = []
    for top in ("metad", "wire", "clients", "perf", "spark"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.name != "claims.py" and re.search(r"def _?free_ports?\(", path.read_text()):
                found.append(path.relative_to(ROOT).as_posix())
    assert found == []


# --- signals ---

CHILD = "import signal; print([signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGTERM)])"
PARENT = f"""
import os, signal, subprocess, sys
from metad_wire.program.signals import default_for_children
{{call}}
ran = subprocess.run([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
os.kill(os.getpid(), signal.SIGINT)
print(ran.stdout, end="")
"""


@pytest.mark.parametrize(("call", "ignores"), [("default_for_children()", False), ("", True)])
def test_children_of_a_background_job_heed_signals(call: str, ignores: bool) -> None:
    """``make test &`` has SIGINT ignored, and so had every program that a test started."""

    def in_the_background() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    ran = subprocess.run(
        [sys.executable, "-c", PARENT.format(call=call)],
        preexec_fn=in_the_background,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == f"[{ignores}, False]\n", "and the job itself goes on to ignore it"


@pytest.mark.parametrize(
    "program", ["metad/cli.py", "perf/metad_perf/cli.py", "spark/metad_spark/cli.py", "tests/conftest.py"]
)
def test_whatever_starts_programs_sees_to_it(program: str) -> None:
    assert "default_for_children()" in (ROOT / program).read_text()
