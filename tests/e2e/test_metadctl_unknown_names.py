"""Every command of metadctl that is given a name which nothing has says so, and fails.

The list is the command line's own: a new command is tried as soon as it is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

import pytest
from e2e_metadctl import metadctl

from metad import embedded
from metad_client.cli.command_line import build_parser
from metad_wire.families import PLURALS

MAKES: Final = {
    "join": "the node that joins",
    "groups add": "a group",
    "put kv": "a record",
    "put offset": "an offset",
    "put sequence": "a sequence",
    "retained put": "a message",
    "sessions takeover": "a session",
    "certs": "certificates, offline",
    "token": "a token, offline",
    "completion": "a script, offline",
    "backup take": "a repository",
    "export": "a directory",
    "auth can": "an answer",
    "auth role": "a role",
    "auth deny": "what is said of a principal",
    "auth allow": "the same",
    # Nobody is waited for until --timeout: test_import_zookeeper.py does that once.
    **{f"import zookeeper {phase}": "an import" for phase in ("prepare", "copy")},
    **{f"plans {rule}": "a plan" for rule in ("add", "drain", "rebalance")},
}
"""Commands that make what they name."""
FOLLOWS: Final = {"watch": "changes that are still to come"}
VALUES: Final = {
    "generation": "1",
    "right": "read",
    "partition": "0",
    "offset": "1",
    "--epoch": "1",
    "--keep": "1",
    "--expected": "1",
    "--wills": "drop",
    "--partitions": "1",
    "--path": "/nobody",
}
NAME: Final = "nobody"


def leaves(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = (), *, named: bool = True
) -> Iterator[tuple[str, list[str]]]:
    """The commands (those that name something, or all): their words, and the arguments that they need."""
    families = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for family in families:
        for word, each in family.choices.items():
            yield from leaves(each, (*words, word), named=named)
    if families and (named or "command" not in parser._defaults):
        return
    arguments: list[str] = []
    for action in parser._actions:
        if not action.option_strings:
            arguments.append(VALUES.get(action.dest, NAME))
        elif action.required:
            arguments += [(option := action.option_strings[-1]), VALUES.get(option, NAME)]
    if not named or NAME in arguments:
        yield " ".join(words), arguments


ALIKE: Final = {*PLURALS.values()} - {"topics", "connector-tasks", "resources", "partitions"}
"""Commands of the tables of families, which are those of ``records``."""
COMMANDS: Final = {words: needs for words, needs in leaves(build_parser()) if words.split()[0] not in ALIKE}
COMMANDS["topics delete"] = [NAME, NAME]
COMMANDS["connector-tasks delete"] = [NAME, NAME, "0"]
COMMANDS["groups move"] = [NAME, "--from", NAME, "--to", NAME]
COMMANDS["groups prefer"] = [NAME, "--none"]
COMMANDS["partitions get"] = [NAME, NAME, NAME, "0"]
LISTS: Final = {
    *("list kv", "list sequences"),
    *(f"{words} list" for words in ("topics", "connector-tasks", "resources", "partitions")),
    *(f"{words} count" for words in ("topics", "connector-tasks", "resources", "partitions")),
}
"""Of a namespace or a tenant: that is no record, so any is there, and empty."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with embedded.serve_in_thread() as server:
        yield server.endpoint


def test_the_list_is_the_command_lines_own() -> None:
    assert len(COMMANDS) > 25
    assert {*MAKES, *FOLLOWS, *LISTS} - {*COMMANDS} <= {"groups add"}


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in {*MAKES, *FOLLOWS, *LISTS}])
def test_a_name_that_nothing_has_is_an_error(endpoint: str, command: str) -> None:
    said = metadctl(endpoint, *command.split(), *COMMANDS[command])
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("metadctl: ")
    assert said.stderr.count("\n") == 1
    assert NAME in said.stderr
