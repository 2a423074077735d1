"""``metad-perf``: reads the command line, runs one command, turns errors into one line and an exit code.

Exit codes: 0 all well; 1 the run failed or found a fault; 2 the command line is wrong or a package is not installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import resources

from metad_spark.arguments import made, parser_of
from metad_wire.errors import MetadError
from metad_wire.program.build import build
from metad_wire.program.extras import advice
from metad_wire.program.output import escape_unprintable
from metad_wire.program.running import exit_on_sigterm
from metad_wire.program.signals import default_for_children
from metad_wire.transport.tcp import install_uvloop

from .commands import COMMANDS
from .errors import PerfError, UsageError

NOTES = resources.files(__package__) / "help.toml"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    escape_unprintable()
    default_for_children()
    command = made(_parser().parse_args(argv))
    exit_on_sigterm()
    install_uvloop()
    try:
        return command.run()
    except (MetadError, PerfError, OSError) as error:
        return _failed(error)
    except ExceptionGroup as group:
        return _failed(_leaf(group))
    except ModuleNotFoundError as missing:
        print(f"metad-perf: {advice(missing, 'perf')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("metad-perf: interrupted", file=sys.stderr)
        return 130


def _failed(error: BaseException) -> int:
    if not isinstance(error, MetadError | PerfError | OSError):
        raise error  # our bug: the traceback helps
    print(f"metad-perf: {getattr(error, 'name', type(error).__name__)}: {error}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _parser() -> argparse.ArgumentParser:
    return parser_of("metad-perf", "Measures metad, and tries to break it.", build(), COMMANDS, NOTES)


if __name__ == "__main__":
    sys.exit(main())
