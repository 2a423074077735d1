"""The README's commands, taken from the page and run word by word in an empty directory, do what the page says.

The directory has the Makefile and the environment of the checkout, and nothing else: data goes there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pages import blocks

from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PLACEHOLDER = "HOST:PORT"


def section(title: str) -> str:
    """The text under a heading, up to the next heading of any level."""
    return re.split(r"(?m)^#+ ", README.partition(f" {title}\n")[2])[0]


def commands(text: str) -> list[str]:
    """The commands in the blocks that name no language, without comments, continued lines joined."""
    lines = "".join(blocks(text)).replace("\\\n", " ").splitlines()
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if re.match(r"make |\.venv/", line)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty directory in which the README's commands work."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "clients" / "metad_amqtt").mkdir(parents=True)
    for name in ("clients/pyproject.toml", "clients/metad_amqtt/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return tmp_path


def surroundings() -> dict[str, str]:
    """The environment of a person who types the command. A make that runs below ``make test`` would take itself for a
    part of that one, and say which directory it enters."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


def argv(command: str) -> list[str]:
    """The environment is set up already, and is not to be set up anew from a copy of the Makefile."""
    words = shlex.split(command)
    return ["make", "-o", ".venv/.installed-small", *words[1:]] if words[0] == "make" else words


def done(home: Path, command: str, timeout_s: float = 600) -> str:
    """What a command prints. It must succeed."""
    ran = subprocess.run(
        argv(command), cwd=home, env=surroundings(), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    return ran.stdout


@contextmanager
def running(home: Path, command: str) -> Iterator[list[str]]:
    """A command that serves until it is stopped; gives the endpoints that it logs."""
    log = home / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv(command), cwd=home, env=surroundings(), stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        wait_until(lambda: served(log) or process.poll() is not None, command)
        assert process.poll() is None, log.read_text()
        yield served(log)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)
        print(log.read_text())  # shown if the test fails


def served(log: Path) -> list[str]:
    """The endpoints in the last line that says that all nodes serve."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    for line in reversed(lines):
        if line["event"] == "serving" and (endpoints := line.get("endpoints") or [line.get("endpoint")]):
            return list(endpoints)
    return []


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("sessions", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_the_first_command_runs_the_main_job_and_prints_what_the_page_shows(home: Path, sessions: int) -> None:
    first, tests = commands(README.partition("\n## ")[0])
    assert (first, tests) == ("make demo", "make test")
    small = "" if sessions == 100_000 else f" 'DEMO=--sessions {sessions}'"
    printed = done(home, first + small)
    came = f"{sessions:,} sessions came back in [\\d.]+ s.*nothing was lost\\."
    assert re.search(came, printed, re.DOTALL), printed
    steps = ["metad starts", "brokers store", "comes back at once", "kill -9 of", "serves again", "is read back"]
    assert [step for step in steps if step not in printed] == [], "it is told as it happens"
    page = (home / "storm.html").read_text()
    assert re.search(f"{sessions:,} clients of \\d+ brokers came back to 3 nodes", page)
    (shown,) = (block for block in blocks(README) if block.startswith("A reconnect storm"))
    rows = [line.split("│")[1] for line in shown.splitlines() if line.startswith("│")]
    assert len(rows) > 5
    for row in rows:
        # Numbers, and with them the names of nodes and brokers, differ from run to run.
        words = [word for word in row.split() if not re.search(r"\d", word)]
        assert [word for word in words if word not in printed] == [], row


def test_the_second_command_runs_every_test(home: Path) -> None:
    command = ["make", "-n", "-o", ".venv/.installed-dev", "test"]
    planned = subprocess.run(command, cwd=home, env=surroundings(), capture_output=True, text=True, check=True).stdout
    lines = [line.partition(" || ") for line in planned.splitlines() if "-m pytest" in line]
    assert all(again.endswith(" -m pytest --last-failed; }") for _, _, again in lines), "what has failed, once more"
    runs = [shlex.split(first.partition("-m pytest ")[2]) for first, _, _ in lines]
    chosen = [["-m", "not alone and not long"], ["-m", "alone and not long", "e2e"]]
    assert [run[run.index("-m") :] for run in runs] == chosen, "together all tests but those for `make test-long`"
    assert not any(word.startswith("--ignore") or word.endswith(".py") for run in runs for word in run)
    others = {path for path in (ROOT / "tests").rglob("test_*.py") if "@pytest.mark." + "alone" in path.read_text()}
    assert all(path.parent.name == "e2e" for path in others), "the second run looks for them there"


def test_the_commands_of_a_first_server(home: Path) -> None:
    if not is_free(7420):
        pytest.skip("port 7420, which the page names, is in use")
    assert "`make run` serves on 127.0.0.1:7420" in README
    block, cluster = section("Use it").split("Start a cluster of three nodes")
    with running(home, "make run"):
        printed = [done(home, command) for command in commands(block)]
    verbs = [command.split()[1] for command in commands(block)]
    assert verbs == ["put", "get", "sessions", "sessions", "sessions", "status"]
    assert "hello" in printed[1]
    assert "device-1" in printed[3]
    assert "device-1" in printed[4]
    assert printed[5].startswith("OK: ")
    assert (home / ".data").is_dir()
    start, *more = commands(cluster)
    with running(home, start) as endpoints:
        shown, *rest = (command.replace(PLACEHOLDER, endpoints[0]) for command in more)
        _all_answer(home, shown)
        for command in rest:
            done(home, command)


def test_the_commands_for_regions_and_certificates(home: Path) -> None:
    certs, serve, remote, start, status = commands(section("Across regions, with TLS"))
    done(home, certs)
    for flag, file in re.findall(r"(--tls-\w+) (\S+)", serve):
        assert (home / file).is_file(), flag
    (home / "a.toml").write_text(blocks(section("Across regions, with TLS"), "toml")[0])
    checked = [".venv/bin/metad", "config", "--check", "a.toml", *flags_of(serve)]
    assert "no problems" in done(home, shlex.join(checked))
    assert remote.split()[1] == "--endpoint"
    with running(home, start) as endpoints:
        _all_answer(home, status.replace(PLACEHOLDER, endpoints[0]))


def _all_answer(home: Path, status: str) -> None:
    """On a busy machine a node that has only just begun may not answer within the two seconds of a status."""
    wait_until(lambda: done(home, status).startswith("OK: 3 of 3 nodes up"), "three nodes that answer")


def flags_of(serve: str) -> Sequence[str]:
    """The settings of ``metad serve`` without those that ``metad config --check`` has of its own."""
    words = shlex.split(serve)[2:]
    at = words.index("--config")
    return words[:at] + words[at + 2 :]
