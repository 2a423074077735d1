"""The arguments of a command are UTF-8, whatever the locale is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_server import METAD

from metad import embedded
from metad_wire.operator.authority import issue_fleet

LOCALES = {
    "ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "UTF-8": {"LC_ALL": "C.UTF-8"},
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with embedded.serve_in_thread() as server:
        yield server.endpoint


def metadctl(locale: str, *arguments: str | bytes | Path) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    command = [str(METAD.with_name("metadctl")), *arguments]
    return subprocess.run(command, env=clean | LOCALES[locale], capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("locale", LOCALES)
def test_names_and_values_are_what_their_bytes_say(endpoint: str, locale: str) -> None:
    put = metadctl(locale, "--endpoint", endpoint, "put", "kv", "größe", "schlüssel", "値")
    assert put.returncode == 0, put.stderr
    for each in LOCALES:
        got = metadctl(each, "--endpoint", endpoint, "--json", "get", "kv", "größe", "schlüssel")
        assert json.loads(got.stdout)["value"] == "値", got.stderr


@pytest.mark.parametrize("locale", LOCALES)
def test_bytes_that_are_no_text_are_refused(endpoint: str, locale: str) -> None:
    refused = metadctl(locale, "--endpoint", endpoint, "get", "kv", "ns", b"\xff\xfe")
    assert refused.returncode == 2
    assert refused.stderr.endswith(b"metadctl get kv: error: an argument is not UTF-8\n")


@pytest.mark.parametrize("locale", LOCALES)
def test_a_path_is_the_systems(tmp_path: Path, locale: str) -> None:
    """Also one whose bytes are no text."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xc3\xb6\xff"))
    made = metadctl(locale, "certs", "--out", folder, "--nodes", "n1")
    assert made.returncode == 0, made.stderr
    issue_fleet(folder, ["n2"], [])
