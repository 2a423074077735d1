"""A missing, old or broken Java is told in one line that says what to install, before Spark is asked to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from metad_spark.errors import JavaMissing
from metad_spark.pipeline.java import find_java


def _java(folder: Path, script: str) -> Path:
    made = folder / "bin" / "java"
    made.parent.mkdir(parents=True)
    made.write_text(f"#!/bin/sh\n{script}\n")
    made.chmod(0o755)
    return made


@pytest.mark.parametrize("said", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19'])
def test_a_new_enough_java_is_found(tmp_path: Path, said: str) -> None:
    java = _java(tmp_path, f"echo '{said}' >&2")
    assert find_java({"JAVA_HOME": str(tmp_path)}) == java
    assert find_java({"PATH": str(java.parent)}) == java


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "is 11"),
        ("echo 'java version \"1.8.0_392\"' >&2", "is 8"),
        ("exit 3", "does not run"),
        ("echo hello", "does not say which version"),
    ],
)
def test_an_unusable_java_is_refused_with_what_to_install(tmp_path: Path, script: str, why: str) -> None:
    _java(tmp_path, script)
    with pytest.raises(JavaMissing, match=why) as caught:
        find_java({"JAVA_HOME": str(tmp_path)})
    assert "openjdk-17-jre-headless" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_java_at_all(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"none is on the path.*apt-get install"):
        find_java({"PATH": str(tmp_path)})


def test_java_home_goes_before_the_path_as_in_sparks_own_launcher(tmp_path: Path) -> None:
    java = _java(tmp_path, "echo 'openjdk version \"17.0.1\"' >&2")
    with pytest.raises(JavaMissing, match="JAVA_HOME is /nowhere"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(java.parent)})
