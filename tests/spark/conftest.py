"""One Spark for all tests here. Without Java they are skipped, and say so; METAD_REQUIRE_JVM=1 (CI) lets them fail."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metad_spark.errors import JavaMissing
from metad_spark.pipeline.context import Context, open_context
from metad_spark.pipeline.java import find_java

sys.path.insert(0, str(Path(__file__).resolve().parent))

from spark_rig import SMALL, delta_jars

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
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            if jars := delta_jars():
                extension = "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"
                patch.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {','.join(jars)} --conf {extension} pyspark-shell")
            opened = stack.enter_context(open_context(master="local[2]", connect=False, quiet=True))
        for key, value in SMALL.items():
            opened.session.conf.set(key, value)
        yield opened


@pytest.fixture(scope="session")
def delta(context: Context) -> None:
    """Delta Lake is on the class path of the session."""
    if not delta_jars():
        assert os.environ.get("METAD_REQUIRE_JVM") != "1", "make setup could not fetch Delta's jars"
        pytest.skip("needs Delta's jars: python tests/spark/delta_jars.py fetches them")
