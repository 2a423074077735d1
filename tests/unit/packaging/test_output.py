"""What commands print, wherever it goes: no encoding of stdout ends one or loses anything, nor does ``python -OO``."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "client"))  # the tests have no packages

from scripted import Received, Server

from metad_client import cli
from metad_wire import messages as m
from sim.memory import MemoryTransport

ROOT = Path(__file__).resolve().parents[3]
MODULES = ["metad.cli", "metad_client.cli", "metad_perf.cli", "metad_spark.cli", "metad_console.cli", "simulate"]
PAGES = [["metad.cli", "config"], ["metad.cli", "config", "--sample"], ["metad.cli", "logs"], ["metad.cli", "metrics"]]
COMMANDS = [*PAGES, *([module, "--help"] for module in MODULES)]
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "the C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


EACH = """
import importlib, json, os, runpy, sys
commands, folder = json.loads(sys.argv[1]), sys.argv[2]
before = sys.stdout.encoding, sys.stdout.errors
for module, *_ in commands:
    importlib.import_module(module)
if (sys.stdout.encoding, sys.stdout.errors) != before:
    sys.exit("what is imported changes stdout")
for command in commands:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.path.join(folder, " ".join(command)), os.O_WRONLY | os.O_CREAT), 1)
        sys.argv[:] = command
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{command} fails")
"""
"""Runs each command in a process of its own, which has imported what all of them need: that is what takes long."""


def run(*options: str, **environment: str) -> dict[str, bytes]:
    """What each command prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *options, "-c", EACH, json.dumps(COMMANDS), folder],
            env=clean | {"COLUMNS": "80", "LC_ALL": "C.UTF-8"} | environment,
            cwd=ROOT / "tests",  # simulate is there
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        return {" ".join(command): (Path(folder) / " ".join(command)).read_bytes() for command in COMMANDS}


@pytest.fixture(scope="module")
def whole() -> dict[str, bytes]:
    """What is printed where everything can be printed."""
    return run()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_encoding_of_stdout_ends_a_command(whole: dict[str, bytes], encoding: str) -> None:
    name = ENCODINGS[encoding].get("PYTHONIOENCODING", "ascii")
    escaped = {command: text.decode().encode(name, "backslashreplace") for command, text in whole.items()}
    assert run(**ENCODINGS[encoding]) == escaped, "what cannot be printed is escaped"


@pytest.mark.slow
def test_nothing_is_lost_without_docstrings(whole: dict[str, bytes]) -> None:
    """``metad config`` said what msgspec says of its base class instead."""
    assert all(whole.values())
    assert run("-OO") == whole


def test_no_text_for_people_is_a_docstring_at_run_time() -> None:
    """``python -OO`` has none. Help of the interpreter is no output of a command."""
    allowed = {
        "wire/metad_wire/errors.py",
        "clients/metad_client/blocking/verbs.py",
        "spark/examples/session_history.py",
    }
    found = set()
    for top in ("metad", "wire", "clients", "perf", "spark"):
        for path in (ROOT / top).rglob("*.py"):
            text = path.read_text()
            if "__doc__" not in text and "getdoc" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                named = getattr(node, "attr", getattr(node, "id", ""))
                if named in ("__doc__", "getdoc"):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found <= allowed


# --- metadctl ---

NAME = "gerät-→-😀"


@pytest.fixture
def server() -> Server:
    server = Server(MemoryTransport())
    asyncio.run(server.listen())
    return server


def metadctl(server: Server, encoding: str, *arguments: str) -> tuple[int, str]:
    """Exit status, and what was printed as the terminal shows it."""
    raw = io.BytesIO()
    stdout = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        status = cli.main(["--endpoint", "a", *arguments], transport=server.transport)
    shown = raw.getvalue().decode(encoding)
    stdout.close()
    return status, shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_metadctl_loses_no_name(server: Server, encoding: str) -> None:
    def answer(received: Received) -> None:
        records = [m.Kv("ns", f"{NAME}-{number}", NAME.encode(), 1, 1, 1) for number in range(3)]
        received.reply(m.ListReply(records, b""))

    server.answer = answer
    status, shown = metadctl(server, encoding, "list", "kv", "ns")
    escaped = NAME.encode(encoding, "backslashreplace").decode(encoding)
    assert status == 0
    assert [f"{escaped}-{number}" in shown for number in range(3)] == [True] * 3
    status, shown = metadctl(server, encoding, "list", "kv", "ns", "--json")
    assert status == 0
    keys = [record["key"] for record in json.loads(shown)]
    assert keys == [f"{NAME}-{number}" for number in range(3)], "JSON stays JSON"
