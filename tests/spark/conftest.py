"""One Spark for all tests here. Without Java they are skipped, and say so; METAD_REQUIRE_JVM=1 (CI) lets them fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metad_spark.errors import JavaMissing
from metad_spark.pipeline.context import Context, open_context
from metad_spark.pipeline.java import find_java

sys.path.insert(0, str(Path(__file__).resolve().parent))

from spark_rig import SMALL

os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""Every query here is another plan of a few rows: to optimize its machine code takes longer than to run it."""


@pytest.fixture(scope="session")
def java() -> None:
    try:
        find_java()
    except JavaMissing as missing:
        if os.environ.get("METAD_REQUIRE_JVM") == "1":
            raise
        pytest.skip(f"needs a JVM: {missing}")


@pytest.fixture(scope="session")
def context(java: None) -> Iterator[Context]:
    with open_context(master="local[2]", connect=False, quiet=True) as opened:
        for key, value in SMALL.items():
            opened.session.conf.set(key, value)
        yield opened
