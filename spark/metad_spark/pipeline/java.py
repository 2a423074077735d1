"""Checks for a Java that Spark can run on, and reports in one line instead of Spark's stack trace.

It looks only where Spark's own launcher looks: ``JAVA_HOME``, then the path. Knows nothing of Spark itself, so that
``python -m metad_spark.pipeline.java`` answers (exit code 0 or 1) before anything heavy is installed or loaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import JavaMissing

JAVA_MIN = 17
"""The oldest Java that PySpark 4 runs on."""

HOW = "install one with: apt-get install -y openjdk-17-jre-headless (Debian), or set JAVA_HOME to one"
_ANSWER_S = 30.0
"""A Java that does not report its version within this time hangs."""


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """The program that Spark will start. Raises :class:`JavaMissing` if there is none, or it is too old or broken."""
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaMissing(f"JAVA_HOME is {home}, and there is no {java}; unset it, or {HOW}")
    else:
        found = shutil.which("java", path=environ.get("PATH"))
        if found is None:
            raise JavaMissing(f"Spark needs Java {JAVA_MIN} or newer and none is on the path; {HOW}")
        java = Path(found)
    major = _major(java)
    if major < JAVA_MIN:
        raise JavaMissing(f"Spark needs Java {JAVA_MIN} or newer and {java} is {major}; {HOW}")
    return java


def _major(java: Path) -> int:
    """17 of ``version "17.0.15"``, 8 of ``version "1.8.0_392"``."""
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{java} does not run ({error}); {HOW}") from None
    said = re.search(r'version "(\d+)(?:\.(\d+))?', asked.stderr + asked.stdout)
    if said is None:
        raise JavaMissing(f"{java} does not say which version it is; {HOW}")
    first, second = int(said[1]), int(said[2] or 0)
    return second if first == 1 else first


def main() -> int:
    """Print the missing requirement, if any."""
    try:
        find_java()
    except JavaMissing as missing:
        print(f"metad-spark: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
