"""metadctl in this process: a process of its own takes half a second to start, and tests run hundreds. Those of the
README and of ``test_metadctl_*.py`` are processes."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from metad import embedded
from metad_client.cli.command_line import main


class Said(NamedTuple):
    """The exit status of a command, and what it has printed."""

    returncode: int
    stdout: str
    stderr: str


def ran(main: Callable[[list[str]], int], words: Sequence[str]) -> Said:
    """Run a program's main function, which may end by argparse."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([*words])
        except SystemExit as end:  # a wrong command line
            status = int(str(end.code))
    return Said(status, out.getvalue(), err.getvalue())


def metadctl(where: embedded.Server | embedded.Cluster | str, *arguments: str) -> Said:
    """Run a command: at a server, or at endpoints; with an empty text at none. One at a time in all threads."""
    endpoint = where if isinstance(where, str) else where.url.partition("//")[2]
    return ran(main, [*(("--endpoint", endpoint) if endpoint else ()), *arguments])


def printed(where: embedded.Server | embedded.Cluster | str, *arguments: str, status: int = 0) -> Any:
    """The document of a command that ends so."""
    said = metadctl(where, *arguments, "--json")
    assert said.returncode == status, said.stderr
    assert status or not said.stderr, arguments
    return json.loads(said.stdout)
