"""The verb of adding_a_write.diff on a real node. Run by test_adding_a_verb.py, where it is declared."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from e2e_server import Server

import metad_client
from metad_client import ConflictError, InvalidItemError, SequenceSetItem, WriteResult, blocking, connect
from metad_client.cli.command_line import main
from metad_wire.methods import METHODS_BY_NAME, READS


@pytest.fixture
def server(tmp_path: Path) -> Server:
    with Server(tmp_path / "n1") as server:
        server.ready()
        yield server


async def test_items_are_done_or_refused_each_by_itself(server: Server) -> None:
    async with connect(f"metad://{server.endpoint}") as m:
        await m.sequences.add("n", "a", 5)
        items = [SequenceSetItem("n", "a", 7, 5), SequenceSetItem("n", "b", 9, 1), SequenceSetItem("n", "b", 9)]
        again = SequenceSetItem("n", "a", 8, 7)  # what an item before it has made
        done = await m.sequences.set_many([*items, SequenceSetItem("n", "x" * 5_000, 1), again])
        assert isinstance(done, WriteResult)
        assert {at: type(error) for at, error in done.errors.items()} == {1: ConflictError, 3: InvalidItemError}
        found = await m.sequences.get_many([metad_client.SequenceKey("n", name) for name in "ab"])
        assert [one and (one.value, one.version) for one in found] == [(8, 3), (9, 1)]
        with pytest.raises(ConflictError) as refused:
            await m.sequences.set("n", "a", 9, expected=7)
        assert refused.value.current == 8


def test_the_blocking_client_and_metadctl_have_it(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with blocking.connect(f"metad://{server.endpoint}") as b:
        b.sequences.set("n", "a", 3)
        assert b.sequences.set_many([SequenceSetItem("n", "a", 4, 3)]).ok
    assert main(["--endpoint", server.endpoint, "--json", "set", "sequence", "n", "a", "6", "--expected", "4"]) == 0
    assert json.loads(capsys.readouterr().out) == {"value": 6}
    assert main(["--endpoint", server.endpoint, "set", "sequence", "n", "a", "7"]) == 1
    assert "value is 6, and the request says 0" in capsys.readouterr().err


def test_its_docstring_and_rules_follow_from_the_declaration() -> None:
    documented = inspect.getdoc(metad_client.Sequences.set_many) or ""
    assert documented == "Set sequences. Item errors: ConflictError (it is not at the expected value)."
    method = METHODS_BY_NAME["sequence.set"]
    assert method.mutates
    assert method.code not in READS
