"""The published metadata has ranges, constraints.txt has the exact versions, and each version is written once."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import metad
import metad_client
import metad_wire
from metad_wire.program.build import build

ROOT = Path(__file__).resolve().parents[3]
PROJECT, SDK, BROKERS = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    for folder in ("", "clients", "clients/metad_amqtt")
)
OWN = {PROJECT["name"], SDK["name"], BROKERS["name"]}
REPLACED_IN_PART = {
    "aioquic",
    "amqtt",
    "pysyncobj",
}  # metad depends on their inside, which tests compare with one version


def requirements() -> list[Requirement]:
    """What the metadata asks for, but not the distributions of each other."""
    texts = [
        *PROJECT["dependencies"],
        *SDK["dependencies"],
        *BROKERS["dependencies"],
        *(text for extra in SDK["optional-dependencies"].values() for text in extra),
        *(text for extra in PROJECT["optional-dependencies"].values() for text in extra),
    ]
    return [one for text in texts if (one := Requirement(text)).name not in OWN]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    """A download address would tie everybody to one machine's package index."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"#.*|[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line), line
    assert len(pins()) > 30


@pytest.mark.parametrize("wanted", requirements(), ids=str)
def test_every_requirement_is_a_range_that_holds_its_pin(wanted: Requirement) -> None:
    known = {name.lower().replace("_", "-"): version for name, version in pins().items()}
    assert wanted.specifier.contains(known[wanted.name.lower()])
    assert wanted.url is None
    exact = any(one.operator == "==" for one in wanted.specifier)
    assert exact == (wanted.name in REPLACED_IN_PART)


def test_the_base_needs_msgspec_only() -> None:
    assert [Requirement(text).name for text in SDK["dependencies"]] == ["msgspec"]


def test_there_is_one_version() -> None:
    assert metad.__version__ == metad_client.__version__ == metad_wire.__version__
    for project in (PROJECT, SDK):
        assert "version" in project["dynamic"]
        assert "version" not in project
    assert BROKERS["version"] == metad.__version__
    for project in (PROJECT, BROKERS):
        assert f"metad-client=={metad.__version__}" in project["dependencies"]
    assert PROJECT["optional-dependencies"]["amqtt"] == [f"metad-amqtt=={metad.__version__}"]


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("metad", "metad.cli"),
        ("metadctl", "metad_client.cli"),
        ("metad-perf", "metad_perf.cli"),
        ("metad-spark", "metad_spark.cli"),
        ("metad-console", "metad_console.cli"),
    ],
)
def test_a_command_and_its_module_do_the_same(command: str, module: str) -> None:
    """`python -m metad_perf.cli nonsense` did nothing and ended with status 0."""
    for argument, status in (("--version", 0), ("nonsense", 2)):  # test_output.py has their help
        by_name, by_module = (
            subprocess.run([*start, argument], capture_output=True, text=True, timeout=300)
            for start in ([str(Path(sys.executable).with_name(command))], [sys.executable, "-m", module])
        )
        assert by_name.returncode == by_module.returncode == status
        assert (by_name.stdout, by_name.stderr) == (by_module.stdout, by_module.stderr)
        if argument == "--version":
            assert by_name.stdout == f"{command} {build()}\n"
