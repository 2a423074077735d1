"""Install metad from this checkout into a virtual environment, and show all the time that it goes on.

``make`` runs it with the system's Python, so it uses the standard library only. constraints.txt has the versions.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOOK_S = 1.0
LINES_SHOWN = 30  # of pip, when it fails


class Line:
    """One line that says what is going on: rewritten in a terminal, printed once a second elsewhere."""

    def __init__(self, environment: Path) -> None:
        self._environment = environment
        self._begin_s = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self.text = ""

    def show(self) -> None:
        """Print the step, the time and the size of the environment."""
        size = _size(self._environment) // 1_000_000
        line = f"{time.monotonic() - self._begin_s:4.0f} s  {size:5,} MB  {self.text}"
        print(f"\r\033[K{line[:100]}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)

    def end(self, text: str) -> None:
        """Print the last line and leave it there."""
        self.text = text
        self.show()
        if self._terminal:
            print()


def _size(folder: Path) -> int:
    """Bytes of all files in a folder. Pip may remove any of them, and any folder, at any moment."""
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(path, name)).st_size
    return size


def run(line: Line, text: str, command: list[str]) -> None:
    """Run one command and show its steps. A command that fails ends the program with what the command said."""
    line.text = text
    said: deque[str] = deque(maxlen=LINES_SHOWN)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:

        def read() -> None:
            assert process.stdout is not None
            for one in process.stdout:
                said.append(one)
                if one.startswith(("Collecting", "  Downloading", "Installing", "Building")):
                    line.text = f"{text}: {' '.join(one.split())[:50]}"

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while reader.is_alive():
            line.show()
            reader.join(LOOK_S)
    if process.returncode:
        line.end(f"{text}: failed")
        sys.exit("".join(said))


def main() -> None:
    """``install.py ENVIRONMENT EXTRA``"""
    environment, extra = Path(sys.argv[1]).resolve(), sys.argv[2]
    line = Line(environment)
    run(line, "make the environment", [sys.executable, "-m", "venv", str(environment)])
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    pip += ["--progress-bar", "off", "--constraint", "constraints.txt"]
    run(line, "set up the build", [*pip, "setuptools"])
    # An older metad-service would take metadctl with it when it goes.
    remove = [pip[0], "-m", "pip", "--disable-pip-version-check", "uninstall", "--yes", "metad-service"]
    run(line, "remove what was there", remove)
    # The SDK and the MQTT brokers are distributions of their own, which are on no package index.
    brokers = ["clients/metad_amqtt"] if {"amqtt", "test", "console-test", "fuzz", "dev"} & {*extra.split(",")} else []
    folders = ["clients", *brokers, f".[{extra}]"]
    editable = [word for folder in folders for word in ("--editable", folder)]
    # Not isolated: an isolated build would download a setuptools of its own, which constraints.txt does not reach.
    run(line, f"install metad-service[{extra}]", [*pip, "--no-build-isolation", *editable])
    # Pip does this for what it copies, not for a checkout. A node that has to compile itself starts a third later, and
    # where the environment forbids it to write what it has compiled, it does so each time.
    sources = ["metad", "wire", "clients", "perf", "spark"]
    run(line, "compile", [str(environment / "bin" / "python"), "-m", "compileall", "-q", *sources])
    line.end(f"metad-service[{extra}] is installed in {environment.name}")


if __name__ == "__main__":
    main()
