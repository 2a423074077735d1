"""``python -m sim.assignment [WORLD …] [--trace] [--states N]``: explore these worlds, or all of them."""

from __future__ import annotations

import argparse
import sys

from .exploring import explore
from .worlds import WORLDS


def main() -> int:
    """The command. 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m sim.assignment")
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=", ".join(WORLDS))
    parser.add_argument("--trace", action="store_true", help="say what leads to a violation")
    parser.add_argument("--states", type=int, default=0, metavar="N", help="of each world at most")
    options = parser.parse_args()
    if unknown := {*options.worlds} - WORLDS.keys():
        parser.error(f"no world: {', '.join(sorted(unknown))}")
    wrong = 0
    for name in options.worlds or WORLDS:
        found = explore(WORLDS[name](), options.states, tracing=options.trace)
        print(f"{name:21}: {found}", flush=True)
        for line in found.trace:
            print("    ", line)
        wrong += bool(found.violation)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
