"""metadctl in this process, at a server."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from metad import embedded
from metad_client.cli.command_line import main


def metadctl(server: embedded.Server, *arguments: str) -> tuple[int, str, str]:
    """The exit status of a command, and what it prints on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["--endpoint", server.endpoint, *arguments])
    return status, out.getvalue(), err.getvalue()


def printed(server: embedded.Server, *arguments: str) -> Any:
    """The document of a command that succeeds."""
    status, out, err = metadctl(server, *arguments, "--json")
    assert (status, err) == (0, ""), arguments
    return json.loads(out)
