"""``python -m sim.assignment [WORLD …] [--trace] [--states N]``: explore these worlds, or all of them."""

from __future__ import annotations

import argparse
import sys

from .exploring import explore
from .in_sync import InSync
from .worlds import IN_SYNC


def main() -> int:
    """The command. 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m sim.assignment")
    parser.add_argument("worlds", nargs="*", choices=[*IN_SYNC, []], metavar="WORLD", help=", ".join(IN_SYNC))
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--states", type=int, default=0, metavar="N", help="of each world at most")
    options = parser.parse_args()
    wrong = 0
    for name in options.worlds or IN_SYNC:
        found = explore(InSync(IN_SYNC[name]), options.states, tracing=options.trace)
        print(f"{name:8}: {found}", flush=True)
        for line in found.trace:
            print("    ", line)
        wrong += bool(found.violation)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
