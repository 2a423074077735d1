"""Where metadctl finds its cluster, and with which files it goes there: flags, environment, contexts of a file.

It guards that a token or a certificate of one cluster never goes to the endpoint of another."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metad_client import cli
from metad_client.cli.command_line import build_parser
from metad_client.cli.shell.contexts import complete

FILE = """
context = "test"
[contexts.test]
endpoint = "a:1"
[contexts.prod]
endpoint = "metads://b:2,c:3"
certs = "prod-certs"
as = "ops"
[contexts.token]
endpoint = "metads://d:4"
tls_ca = "/etc/ca.pem"
token_file = "~/token"
"""


@pytest.fixture
def completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Namespace]:
    """The arguments of a command line, completed."""
    (tmp_path / "config.toml").write_text(FILE)
    monkeypatch.setenv("HOME", "/home/ada")

    def completed(line: str = "", **environment: str) -> Namespace:
        arguments = build_parser().parse_args([*line.split(), "status"])
        complete(arguments, {"METADCTL_CONFIG": str(tmp_path / "config.toml"), **environment})
        return arguments

    return completed


@pytest.mark.parametrize(
    ("line", "environment", "endpoint"),
    [
        ("", {}, "a:1"),
        ("--context prod", {}, "metads://b:2,c:3"),
        ("", {"METADCTL_CONTEXT": "prod"}, "metads://b:2,c:3"),
        ("--context test", {"METADCTL_CONTEXT": "prod"}, "a:1"),
        ("", {"METADCTL_ENDPOINT": "e:5"}, "e:5"),
        ("--endpoint f:6", {"METADCTL_ENDPOINT": "e:5"}, "f:6"),
        ("--endpoint f:6 --context prod", {}, "f:6"),
        ("--context prod", {"METADCTL_ENDPOINT": "e:5"}, "e:5"),
    ],
)
def test_flags_win_over_the_environment_and_that_over_the_file(
    completed: Callable[..., Namespace], line: str, environment: dict[str, str], endpoint: str
) -> None:
    assert completed(line, **environment).endpoint == endpoint


def test_files_are_found_from_the_folder_of_the_file(completed: Callable[..., Namespace], tmp_path: Path) -> None:
    prod, token = completed("--context prod"), completed("--context token")
    assert (prod.certs, prod.name, prod.token_file) == (str(tmp_path / "prod-certs"), "ops", None)
    assert (token.tls_ca, token.token_file) == ("/etc/ca.pem", "/home/ada/token")
    assert completed("--context prod --as app").name == "app"


def test_who_goes_there_is_said_in_one_place(completed: Callable[..., Namespace]) -> None:
    own = completed("--context token --certs mine")
    assert (own.certs, own.tls_ca, own.token_file) == ("mine", None, None)
    own = completed("--context prod --tls-ca ca.pem --token-file t")
    assert (own.certs, own.name, own.tls_ca, own.token_file) == (None, None, "ca.pem", "t")


def test_an_endpoint_alone_gets_nothing_of_the_context_that_the_file_chooses(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(FILE.replace('context = "test"', 'context = "token"'))
    for line, more in (("--endpoint evil:1", {}), ("", {"METADCTL_ENDPOINT": "evil:1"})):
        arguments = build_parser().parse_args([*line.split(), "status"])
        complete(arguments, {"METADCTL_CONFIG": str(tmp_path / "c"), **more})
        assert (arguments.endpoint, arguments.tls_ca, arguments.token_file) == ("evil:1", None, None)


def test_without_a_file_there_is_the_default(tmp_path: Path) -> None:
    arguments = build_parser().parse_args(["status"])
    complete(arguments, {"XDG_CONFIG_HOME": str(tmp_path)})
    assert arguments.endpoint == "127.0.0.1:7420"
    (tmp_path / "metadctl").mkdir()
    (tmp_path / "metadctl" / "config.toml").write_text(FILE)
    arguments = build_parser().parse_args(["status"])
    complete(arguments, {"XDG_CONFIG_HOME": str(tmp_path)})
    assert arguments.endpoint == "a:1"


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        (FILE, "--context none", "there is no context 'none'; there are test, prod, token"),
        ("context = 1", "", "Expected `str`, got `int`"),
        ("[contexts.a]", "", "missing required field `endpoint`"),
        ("[contexts.a]\nendpoint = 'a:b'", "", "contexts.a.endpoint: "),
        ("[contexts.a]\nendpoint = 'a:1'\ntokn_file = 'x'", "", "unknown field `tokn_file`"),
        ("context = 'b'\n[contexts.a]\nendpoint = 'a:1'", "", "context: there is no context 'b'; there are a"),
        ("context = ", "", "Invalid value"),
        ("\udcff", "", "can't decode"),
        (None, "", "there is no "),
    ],
)
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    line: str,
    complaint: str,
) -> None:
    path = tmp_path / "config.toml"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    monkeypatch.setenv("METADCTL_CONFIG", str(path))
    for command in ("groups", *(["contexts"] if not line else [])):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*line.split(), command])
        told = capsys.readouterr().err.splitlines()[-1]
        assert complaint in told
        assert str(path) in told
    assert cli.main([*line.split(), "status", "--check"]) == 3  # 2 would say that the cluster is unwell
    assert complaint in capsys.readouterr().out


def test_contexts_lists_them_and_the_chosen_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scripted_server: Any
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE.replace("a:1", "b:7420"))
    monkeypatch.setenv("METADCTL_CONFIG", str(path))
    assert cli.main(["contexts"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == f"{path}:"
    assert ["test", "yes", "b:7420", "-", "-"] in [line.split() for line in shown.splitlines()]
    assert cli.main(["contexts", "--json", "--context", "prod"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(path)
    assert [(one["context"], one["chosen"]) for one in found["contexts"]] == [
        ("prod", True),
        ("test", False),
        ("token", False),
    ]
    asyncio.run(scripted_server.listen("b"))
    assert cli.main(["status", "--check"], transport=scripted_server.transport) in (1, 2)
    assert "1 of 1 nodes up" in capsys.readouterr().out
