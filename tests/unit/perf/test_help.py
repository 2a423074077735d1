"""What stands at the end of the help of a command: what it does, and what its report says."""

from __future__ import annotations

import re
import tomllib

import pytest

import metad_perf.cli
import metad_spark.cli


@pytest.mark.parametrize("program", [metad_perf.cli, metad_spark.cli], ids=["metad-perf", "metad-spark"])
def test_the_help_of_a_command_ends_with_its_notes(program: object, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tomllib.loads(program.NOTES.read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    assert notes.keys() <= program.COMMANDS.keys()  # type: ignore[attr-defined]
    for command, text in notes.items():
        with pytest.raises(SystemExit):
            program.main([command, "--help"])  # type: ignore[attr-defined]
        assert capsys.readouterr().out.endswith(text), command


@pytest.mark.parametrize("program", [metad_perf.cli, metad_spark.cli], ids=["metad-perf", "metad-spark"])
def test_the_commands_and_flags_that_notes_name_exist(program: object) -> None:
    notes = tomllib.loads(program.NOTES.read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    for command, text in notes.items():
        parser = program._parser()._subparsers._group_actions[0].choices[command]  # type: ignore[attr-defined]
        flags = set(
            re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"(?m)^  metad-.*$|metad-\w+\s+[a-z-]+\s+--\w+", "", text))
        )
        assert flags <= parser._option_string_actions.keys(), command
