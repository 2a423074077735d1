"""The places that say on what a node spends its time are in the code, and what is counted is shared out whole."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

from metad_perf.commands import Cost
from metad_perf.cost import command
from metad_perf.cost.command import _shares
from metad_perf.cost.sampler import PLACES, REST, STAGES, Spent, place
from metad_perf.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("where", PLACES)
def test_each_place_is_in_the_code(where: str) -> None:
    base = ROOT / ("wire" if where.startswith("metad_wire") else "") / where
    files = [base] if base.is_file() else base.rglob("*.py")
    names = {name for path in files for name in re.findall(r"(?m)^ *(?:async )?def (\w+)", path.read_text())}
    assert names
    for begin in PLACES[where]:
        assert any(name.startswith(begin) for name in names), begin


def test_each_stage_has_a_place() -> None:
    found = {stage for functions in PLACES.values() for stage in functions.values()}
    assert found | {"flush", REST} == {*STAGES}  # RocksDB flushes in threads of its own


def test_a_function_belongs_to_one_stage_or_to_that_of_its_caller() -> None:
    def code(file: str, name: str) -> types.CodeType:
        return (lambda: None).__code__.replace(co_filename=f"/x/{file}", co_name=name)

    assert place(code("metad/server/connection.py", "_answer")) == "answers"
    assert place(code("metad/server/connection.py", "data_received")) == "frames"
    assert place(code("metad/node/replicas/driver.py", "stage")) == "apply"
    assert place(code("metad/node/replicas/driver.py", "pump")) is None
    assert place(code("metad/storage/rocks.py", "write")) is None
    assert place(code("metad/raft/log/journal.py", "append")) == "log"
    assert place(code("metad/raft/replicas.py", "flush")) == "peers"


def test_all_that_a_node_has_spent_is_shared_out() -> None:
    before = Spent(1, {"log": 10, "apply": 30}, 0.5, {"log": 0.2})
    after = Spent(2, {"log": 30, "apply": 90, REST: 20}, 1.5, {"log": 0.4, "flush": 0.3})
    shares = _shares(before, after)
    assert shares.keys() == {*STAGES}
    assert sum(shares.values()) == pytest.approx(1.0 + 0.2 + 0.3)
    assert shares["log"] == pytest.approx(0.2 + 0.2)
    assert shares["apply"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (Cost(only="created"), "--only: no created; there is create, takeover"),
        (Cost(batches="5"), "--batches: no 5; there is 1000, 100"),
        (Cost(pairs=0), "at least 1"),
    ],
)
def test_what_cannot_be_done_is_refused(options: Cost, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        command.run(options.checked())
