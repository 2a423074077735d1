"""The Parquet files of ``metad-spark export`` come into another cluster by ``metadctl import``."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import msgspec

from metad import embedded
from metad_client import U32, KvPutItem, OffsetCommitItem, Record, SessionProperties, Will, blocking
from metad_client.cli.command_line import main as metadctl
from metad_spark.cli import main as metad_spark


class Meter(Record, frozen=True):
    """Of a program."""

    tenant: str
    meter: str
    scale: U32 = 1
    raw: bytes = b""
    more: dict[str, bytes] = {}  # noqa: RUF012 - msgspec copies it


def test_parquet_comes_over(tmp_path: Path) -> None:
    with embedded.serve_in_thread() as one, embedded.serve_in_thread(groups={"data": 2}) as other:
        with blocking.connect(one.url) as m:
            m.kv.put_many([KvPutItem("ns", f"k{at}", bytes([at, 255])) for at in range(50)]).raise_for_error()
            will = Will("gone", b"\xff")
            for at in range(20):
                m.sessions.takeover("b", 1, "acme", f"c{at}", properties=SessionProperties(600, b"\xfe", will))
                m.subscriptions.add("b", 1, "acme", f"c{at}", f"to/{at}")
            m.offsets.commit_many([OffsetCommitItem("acme", "g", "t", at, at) for at in range(5)]).raise_for_error()
            meters = m.tables.declare("meter", Meter, key=("tenant", "meter"))
            m.table(meters).put(Meter("acme", "m1", 3, b"\x80", {"a": b"\xff"}))
        assert metad_spark(["export", "--source", one.url, "--out", str(tmp_path / "x")]) == 0
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert metadctl(["--endpoint", other.endpoint, "import", str(tmp_path / "x"), "--json"]) == 0
        done = json.loads(out.getvalue())["tables"]
        assert {name: one["written"] for name, one in done.items() if one["lines"]} == {
            "declaration": 1,
            "kv": 50,
            "meter": 1,
            "offset": 5,
            "session": 20,
            "subscription": 20,
        }
        with blocking.connect(other.url) as n:
            assert {one.value for one in n.kv.scan("ns")} == {bytes([at, 255]) for at in range(50)}
            found = [*n.sessions.list("acme")]
            assert {one.properties for one in found} == {SessionProperties(600, b"\xfe", will)}
            assert not any(one.connected for one in found)
            meter = n.table(n.tables.open("meter")).get("acme", "m1")
            assert meter is not None
            assert msgspec.structs.asdict(meter.record) == msgspec.structs.asdict(
                Meter("acme", "m1", 3, b"\x80", {"a": b"\xff"})
            )
            assert sum(1 for _ in n.subscriptions.list("acme")) == 20
