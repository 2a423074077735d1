"""The page for authors of brokers, followed word by word: its files are written and type-checked, its commands run in
order, against a real server and real clusters.

Two things differ from what a reader does: metad is installed already, and the port is a free one.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_server import free_ports
from pages import fenced

import metad
import metad_client

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "WRITE_A_BROKER.md").read_text()
BLOCKS = fenced(PAGE)
INSTALL = "pip install ./clients '.[server]' pytest pytest-asyncio\n"
PORT = "127.0.0.1:7430"
HANDLED_BY_THE_SDK = {
    "CancelledError",  # the answer to a request that its caller has given up
    *("CreditError", "FrameError", "FrameTooLargeError", "SlowReaderError", "UnexpectedFrameError"),  # connections
    *(
        "DrainingError",
        "NotFreshError",
        "NotLeaderError",
        "StaleRouteError",
        "TooEarlyError",
    ),  # tried again
    *("LogCutError", "NotReplicaError", "PositionAheadError"),  # of a watch, which asks another node
}
INSTALLED = any(entry.value == "metad_pytest.plugin" for entry in importlib.metadata.entry_points(group="pytest11"))


def files() -> dict[str, str]:
    """The blocks of each file, one after the other."""
    found: dict[str, str] = {}
    for language, text in BLOCKS:
        if language != "sh":
            head, _, rest = text.partition("\n")
            name = head.removeprefix("# ")
            assert re.fullmatch(r"# \w+\.(py|ini)", head), f"a block that does not say which file it is: {text[:80]!r}"
            found[name] = found[name] + rest if name in found else rest
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_page_is_made_of_files_and_commands() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "ini", "sh"}
    assert list(files()) == ["broker.py", "partitions.py", "pytest.ini", "test_broker.py"]
    assert next(text for language, text in BLOCKS if language == "sh") == INSTALL


def test_it_does_not_meet_the_server_of_the_readme() -> None:
    """Both served on one port and used one broker name: an example of the README fenced the storm of the page."""
    assert PORT in PAGE
    assert PORT not in (ROOT / "README.md").read_text()
    assert f":{metad_client.PORT_DEFAULT}" not in PAGE
    for command in re.findall(r"^metadctl .*$", PAGE, re.MULTILINE):
        assert command.startswith(f"metadctl --endpoint {PORT} "), command


def test_its_commands_do_what_it_says(folder: Path) -> None:
    commands = "".join(text for language, text in BLOCKS if language == "sh").removeprefix(INSTALL)
    assert commands.count("\n") == 3
    (port,) = free_ports(1)
    # The trap ends the server that the page leaves running; every command but that one must succeed.
    script = f"set -euo pipefail\ntrap 'kill %1; wait' EXIT\n{commands}".replace(PORT, f"127.0.0.1:{port}")
    plugin = "" if INSTALLED else "-p metad_pytest.plugin"
    around = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTEST_ADDOPTS": plugin}
    command = ["bash", "-c", script]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=around,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, complained = process.communicate(timeout=300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed + complained
    assert re.search(r"^6 passed", printed, re.MULTILINE), printed
    assert "warning" not in printed.lower(), printed


def test_its_programs_pass_a_strict_type_checker(folder: Path) -> None:
    sources = {Path(one).parent for one in (*metad_client.__path__, *metad.__path__)} | {ROOT / "wire"}
    around = os.pathsep.join(str(path) for path in sources if path.name != "site-packages")
    programs = [name for name in files() if name.endswith(".py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file", "", *programs],
        cwd=folder,
        env={**os.environ, "MYPYPATH": around},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_table_of_errors_has_every_error_of_the_sdk() -> None:
    """A class has a row, or the row of any other error covers it because the SDK handles it itself."""
    exported = {
        name
        for name, value in vars(metad_client).items()
        if isinstance(value, type) and issubclass(value, metad_client.MetadError)
    }
    rows = re.findall(r"^\| .*Error` .*$", PAGE, re.MULTILINE)
    assert sum("any other `MetadError`" in row for row in rows) == 1
    named = {name for row in rows for name in re.findall(r"`(\w+Error)`", row)}
    assert named <= exported
    assert exported - named - HANDLED_BY_THE_SDK == set()
    assert not named & HANDLED_BY_THE_SDK
