"""Notes in the wheel which commit it is built from: ``metad_wire/_commit.py``. All else is in pyproject.toml.

The commit is ``METAD_COMMIT`` of the environment, as in ``METAD_COMMIT=$(git rev-parse HEAD)`` for a build from files
without their history; else git is asked. A commit with a tag must be of the version that the tag names.
"""

import os
import re
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "wire" / "metad_wire" / "__init__.py").read_text())[1]


def git(*arguments: str) -> str:
    """What git says of the checkout; empty if this is none, or git is not here."""
    try:
        said = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said.stdout.strip()


def commit() -> str:
    """The commit, and ``.dirty`` behind it if files have changed since; empty if nobody knows."""
    given = os.environ.get("METAD_COMMIT", "")
    if given:
        if not re.fullmatch(r"[0-9a-f]{10,64}", given):
            raise SystemExit(f"METAD_COMMIT is {given!r}: expected the hexadecimal name of a commit")
        return given
    top = git("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != ROOT:  # a copy within another repository has none of its own
        return ""
    tags = [tag.removeprefix("v") for tag in git("tag", "--points-at", "HEAD").split()]
    if tags and VERSION not in tags:
        raise SystemExit(f"the commit has the tag {tags[0]}, and metad_wire.__version__ is {VERSION}: correct it")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "HEAD") + (".dirty" if changed else "")


class BuildPy(build_py):
    """Also writes the module with the commit, but not into a checkout that is installed as it is."""

    def run(self) -> None:
        super().run()
        if (found := commit()) and not self.editable_mode:
            written = Path(self.build_lib) / "metad_wire" / "_commit.py"
            written.write_text(f'"""Written while the wheel was built."""\n\nCOMMIT = "{found}"\n')


setup(cmdclass={"build_py": BuildPy})
