"""Commands whose output nobody reads to its end, as `| head`, or that cannot be written: no stack trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = ("metad config", "metad protocol --json", "metad logs", "metad --help", "metadctl --help")


def ended(command: str, stdout: int) -> tuple[int, str]:
    """The exit status of a command with this output, and what it says on stderr."""
    program, *words = command.split()
    asked = [str(Path(sys.executable).with_name(program)), *words]
    done = subprocess.run(asked, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_who_has_read_enough_may_leave(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert ended(command, write) == (0, "")
    finally:
        os.close(write)


def test_a_full_disk_is_a_line() -> None:
    with Path("/dev/full").open("w") as full:
        assert ended("metad config", full.fileno()) == (
            1,
            "metad: cannot write the output: No space left on device\n",
        )
