"""``python -m sim.assignment [WORLD …] [--trace] [--states N]``: explore these worlds, or all. ``--seeds 0..2999``:
walk at random instead, each seed through a larger world."""

from __future__ import annotations

import argparse
import sys

from .exploring import explore
from .walking import walk
from .worlds import WORLDS


def _seeds(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def _walk(seeds: range, trace: bool) -> int:
    wrong = 0
    for seed in seeds:
        why, way = walk(seed)
        if why:
            wrong += 1
            print(f"seed {seed}: {why}", flush=True)
        for line in way if trace else ():
            print("    ", line)
    print(f"{len(seeds)} seeds from {seeds.start} on: {wrong} violations")
    return int(wrong > 0)


def main() -> int:
    """The command. 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m sim.assignment")
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=", ".join(WORLDS))
    parser.add_argument("--trace", action="store_true", help="say what leads to a violation")
    parser.add_argument("--states", type=int, default=0, metavar="N", help="of each world at most")
    parser.add_argument("--seeds", type=_seeds, metavar="A..B", help="walk at random: A and B included")
    options = parser.parse_args()
    if options.seeds is not None:
        return _walk(options.seeds, options.trace)
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
