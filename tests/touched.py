"""Run the tests nearest to what changed, for some 20 seconds: ``make test-touched``.

The import map comes from the text of all Python files: which file imports which. A file of another kind belongs to the
tests that name it. The command follows the map backwards from each changed file and takes test files nearest first.

The map does not show code that a test starts as a process, nor imports by a computed name. Planted bugs name code by
strings, so the test that plants each bug always runs. The command runs the rings that need neither processes nor Spark,
and names the other rings that reach the change. It begins no test after its time, and says how many it left out. So it
finds mistakes early; only ``make test`` shows that there are none.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (".", "wire", "clients", "clients/metad_amqtt", "perf", "spark", "tests")
"""Folders in which Python finds modules."""
RINGS = ("unit", "golden", "contract")
BUGS = "simulation/test_mutants.py::test_every_bug_can_be_planted"
TIME_S = 15.0
"""For the tests. Finding and collecting them takes a few seconds more."""
FILES_MAX = 60
"""The command collects no more files: their tests would have no time left."""
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(.*))", re.MULTILINE)
_NAMED = re.compile(r"[\w.-]+\.(?:md|txt|toml|diff|proto|py|svg)\b|Makefile")


def tracked() -> list[str]:
    """Every file of the checkout that git does not ignore."""
    return _git("ls-files", "--cached", "--others", "--exclude-standard")


def changed(since: str) -> list[str]:
    """The files that differ from a commit, and new ones."""
    return sorted({*_git("diff", "--name-only", since), *_git("ls-files", "--others", "--exclude-standard")})


def importers(files: Iterable[str]) -> dict[str, set[str]]:
    """For each file, the Python files that import or name it."""
    every = list(files)
    modules, by_name = _modules(every), defaultdict(set)
    for file in every:
        if not file.endswith(".py") or file.startswith("tests/"):
            by_name[Path(file).name].add(file)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in every:
        if file.endswith(".py") and (ROOT / file).exists():
            text = (ROOT / file).read_text(encoding="utf-8")
            for name in _imported(file, text):
                for target in modules.get(name, ()):
                    found[target].add(file)
            if file.startswith("tests/"):
                for name in set(_NAMED.findall(text)):
                    for target in by_name.get(name, ()):
                        found[target].add(file)
    return found


def nearest(files: Iterable[str], by: dict[str, set[str]]) -> dict[str, int]:
    """The test files that reach a changed file, nearest first, and over how many imports."""
    steps = dict.fromkeys(files, 0)
    ring = list(steps)
    while ring:
        following = sorted({user for file in ring for user in by.get(file, ())} - steps.keys())
        steps |= dict.fromkeys(following, steps[ring[0]] + 1)
        ring = following
    return {file: far for file, far in steps.items() if Path(file).name.startswith("test_") and (ROOT / file).exists()}


def _modules(files: Iterable[str]) -> dict[str, set[str]]:
    """Files by the names they are imported by. A helper of tests has its bare name."""
    named: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        if not file.endswith(".py"):
            continue
        path = Path(file)
        for source in SOURCES:
            if path.is_relative_to(source):
                parts = path.relative_to(source).with_suffix("").parts
                named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)].add(file)
        if path.parts[0] == "tests":
            named[path.stem].add(file)
    return named


def _imported(file: str, text: str) -> Iterator[str]:
    """The modules that a file may import: ``from a import b`` means ``a``, and ``a.b`` if that is a module."""
    package = list(Path(file).parent.parts)
    for source, names, plain in _IMPORT.findall(text):
        if plain:
            yield from (name.split()[0] for name in plain.split(",") if name.strip())
            continue
        if source.startswith("."):
            level = len(source) - len(source.lstrip("."))
            source = ".".join([*package[: len(package) - level + 1], *filter(None, [source.lstrip(".")])])
        yield source
        for name in re.sub(r"#.*", "", names).strip("()").split(","):
            if name.strip():
                yield f"{source}.{name.split()[0]}"


class Bounded:
    """Begins no test after so many seconds, and counts the tests left out."""

    def __init__(self, seconds: float) -> None:
        self.end_s = time.monotonic() + seconds
        self.left = 0

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() < self.end_s:
            return None
        self.left += 1
        return True


def main() -> int:
    """The command. The exit code is that of pytest; 0 if no test is near."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="what the working tree is compared with")
    since = parser.parse_args().since
    touched = changed(since)
    if not touched:
        print(f"nothing differs from {since}; `make test-touched SINCE=HEAD~1` runs the tests of the last commit")
        return 0
    near = nearest(touched, importers(tracked()))
    chosen = [file for file in near if file in touched or file.split("/")[1] in RINGS]
    others = sorted({file.split("/")[1] for file in near} - {*RINGS})
    print(
        f"{len(touched)} changed files; {len(near)} test files reach them, {len(chosen)} of them in {', '.join(RINGS)}"
    )
    bounded = Bounded(TIME_S)
    names = [str(ROOT / file) for file in chosen[:FILES_MAX]]
    quick = "not slow and not alone and not long"
    code = pytest.main(["-q", "-m", quick, str(ROOT / "tests" / BUGS), *names], plugins=[bounded])
    if bounded.left or len(chosen) > FILES_MAX:
        print(f"Left out for lack of time: {bounded.left} tests, and {max(0, len(chosen) - FILES_MAX)} files.")
    if others:
        print(f"These rings reach the change, too, and did not run: {', '.join(others)}.")
    return int(code)


def _git(*arguments: str) -> list[str]:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
