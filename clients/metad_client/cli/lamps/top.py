"""``metadctl top``: the cluster on a screen, as it is now, until ``q``.

The screen needs a package that the SDK does without (extra ``top``): it is imported when it is drawn.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from metad_wire.program.extras import advice

from ...client import Client
from ..grammar import Arguments, Commands, seconds
from ..looking import look
from ..printing import Printer

EVERY_S = 2.0


def add(commands: Commands) -> None:
    """Add the command."""
    top = commands.add("top", "nodes and groups live, on the terminal", _top, _check)
    said = f"look again after so long; default {EVERY_S:g} s"
    top.add_argument("--every", type=seconds, default=EVERY_S, metavar="S", help=said)


def _check(a: Arguments) -> None:
    """Raise ValueError if nothing can be drawn."""
    if a.json:
        raise ValueError("top is for people: `status --json` has the numbers")
    if find_spec("textual") is None:
        raise ValueError(advice(ModuleNotFoundError(name="textual"), "top"))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError("top draws on a terminal, and this is none: `status` prints")


async def _top(m: Client, a: Arguments, printer: Printer) -> None:
    from .screen import Top

    await Top(lambda: look(m, a), a.every).run_async()
