"""What a shell completes, in a real bash: every command, option and value that the parser has, and nothing else.

The expected words are the parser's own, so a new command is tried as soon as it is there."""

from __future__ import annotations

import argparse
import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metad_client.cli.command_line import PATHS, build_parser
from metad_client.cli.shell.completion import script
from waiting import WAIT_S

METADCTL = Path(sys.executable).with_name("metadctl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, as the command prints it."""
    path = tmp_path_factory.mktemp("completion") / "metadctl.bash"
    with path.open("wb") as out:
        subprocess.run([str(METADCTL), "completion", "bash"], stdout=out, timeout=WAIT_S, check=True)
    return path


def completed(made: Path, *lines: str, cwd: Path | None = None) -> list[list[str]]:
    """What bash offers for the last word of each line, which may be empty."""
    asked = [shlex.split(line) + ([""] if line.endswith(" ") else []) for line in lines]
    calls = "".join(
        f'COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _metadctl; echo "${{COMPREPLY[*]}}"\n'
        for words in asked
    )
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-u"],
        input=f"source {shlex.quote(str(made))}\n{calls}",
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
        cwd=cwd,
    )
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def parsers(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, each in action.choices.items():
                yield from parsers(each, (*words, word))


def test_every_command_and_every_option_of_the_parser_is_offered(made: Path) -> None:
    known = [*parsers(build_parser())]
    assert len(known) > 200
    commands, options, where = [], [], []
    for words, parser in known:
        inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        strings = [string for action in parser._actions for string in action.option_strings]
        places = [action for action in parser._actions if not action.option_strings and action not in inner]
        commands.append({word for action in inner for word in action.choices} if not places else None)
        options.append({*strings})
        where.append(" ".join(("metadctl", *words)))
    found = completed(made, *(f"{line} " for line in where))
    for line, offered, expected in zip(where, found, commands, strict=True):
        assert expected is None or {*offered} == expected, line
    for line, offered, strings in zip(where, completed(made, *(f"{line} -" for line in where)), options, strict=True):
        assert {*offered} == strings, line


def test_values_files_and_options_between(made: Path, tmp_path: Path) -> None:
    (tmp_path / "ops.pem").write_text("")
    (tmp_path / "other").write_text("")
    found = completed(
        made,
        "metadctl sta",
        "metadctl --endpoint a:1 --json brokers --state a",
        "metadctl brokers --state ",
        "metadctl auth can app r",
        "metadctl auth --timeout 5 c",
        "metadctl --endpoint ",
        "metadctl --tls-ca op",
        "metadctl completion ",
        "metadctl completion bash ",
        "metadctl status --despite versions",
        "metadctl topics ass",
        "metadctl nonsense st",
        cwd=tmp_path,
    )
    assert found == [
        ["status"],
        ["active"],
        ["loading", "registered", "active", "draining", "fenced", "gone"],
        ["read"],
        ["can"],
        [],
        ["ops.pem"],
        ["bash", "zsh"],
        [],
        ["versions_differ"],
        ["assign"],
        [],
    ]


def test_a_press_of_tab_in_a_bash_of_a_terminal(made: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "PS1": "$ "}
    command = ["bash", "--norc", "--noprofile", "-i"]
    bash = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    seen = b""

    def until_seen(text: bytes) -> None:
        nonlocal seen
        ends_s = time.monotonic() + WAIT_S
        while text not in seen:
            assert select.select([ours], [], [], max(0.0, ends_s - time.monotonic()))[0], (text, seen)
            seen += os.read(ours, 4_096)

    try:
        os.write(ours, f"source {made}; echo re''ady\n".encode())
        until_seen(b"ready")
        os.write(ours, b"metadctl mem\t--w\t")
        until_seen(b"metadctl members --wide ")
    finally:
        bash.kill()
        bash.wait()
        os.close(ours)


def test_zsh_runs_the_same_function() -> None:
    """Where there is a zsh, it is asked; everywhere, the script differs in its head only."""
    bash, zsh = (script(shell, build_parser(), PATHS) for shell in ("bash", "zsh"))
    assert zsh.endswith(bash.partition("\n")[2])
    if (program := shutil.which("zsh")) is None:
        return
    asked = "COMP_WORDS=(metadctl --json brokers --state a); COMP_CWORD=4; _metadctl; print -r -- ${COMPREPLY[@]}"
    run = f"{zsh}\nprobe() {{ emulate -L sh; setopt kshglob noshglob braceexpand; {asked} }}\nprobe\n"
    done = subprocess.run([program, "-f"], input=run, capture_output=True, text=True, timeout=WAIT_S, check=False)
    # zsh itself leaves out what does not begin with the word.
    assert done.stdout.splitlines()[-1:] == ["loading registered active draining fenced gone"], done.stderr
