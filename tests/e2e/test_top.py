"""``metadctl top`` on real nodes, driven by the pilot of the screen's own package: what it shows of work that is done,
in 80 columns; its keys; and a node that dies while somebody looks."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from e2e_nodes import Nodes
from textual.pilot import Pilot

from metad_client import connect
from metad_client.cli import main
from metad_client.cli.lamps import top
from metad_client.cli.lamps.screen import Rows, Top
from metad_client.cli.looking import look
from waiting import WAIT_S, until

METADCTL = Path(sys.executable).with_name("metadctl")
COLUMNS, LINES = 80, 24
EVERY_S = 0.1


def table(screen: Top, name: str) -> list[dict[str, str]]:
    """What a table shows, by the titles of its columns without the mark of the order."""
    rows = screen.query_one(f"#{name}", Rows)
    titles = [str(column.label).rstrip("▲▼") for column in rows.ordered_columns]
    return [dict(zip(titles, map(str, rows.get_row_at(at)), strict=True)) for at in range(rows.row_count)]


def drawn(screen: Top) -> list[str]:
    """The lines of the terminal."""
    return [strip.text for strip in screen.screen._compositor.render_strips()]


async def looked(screen: Top, pilot: Pilot[None], times: int = 1) -> None:
    """It has looked so often again, and has drawn."""
    before = screen.looks
    await until(lambda: screen.looks >= before + times, "another look")
    await pilot.pause()


async def test_a_screen_shows_the_work_of_the_nodes_and_who_is_gone(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        async with connect(nodes.url) as m:
            screen = Top(lambda: look(m, SimpleNamespace(timeout=WAIT_S)), EVERY_S)
            async with screen.run_test(size=(COLUMNS, LINES)) as pilot:
                await until(lambda: screen.looks >= 2, "two looks")
                await pilot.pause()

                async def writes() -> bool:
                    await m.kv.put("top", "key", b"value")
                    return any(row["writes/s"] not in ("-", "0") for row in table(screen, "nodes"))

                await until(writes, "writes per second")
                shown = table(screen, "nodes")
                assert [(row["node"], row["state"]) for row in shown] == [(name, "up") for name in ("n1", "n2", "n3")]
                assert all(row["CPU"].endswith("%") and row["memory"].endswith("MiB") for row in shown)
                groups = {row["group"]: row for row in table(screen, "groups")}
                assert groups.keys() == {"metadata-0", "offset-0", "offset-1", "data-0", "data-1"}
                assert {row["replicas"] for row in groups.values()} == {"3 of 3"}
                assert {row["leader"] for row in groups.values()} <= {"n1", "n2", "n3"}
                text = drawn(screen)
                assert (len(text), {len(line) for line in text}) == (LINES, {COLUMNS})
                assert text[0].startswith("OK: 3 of 3 nodes up, 5 of 5 groups led")
                for seen in ("writes/s", "metadata-0", "data-1", "q quit", "p pause", "t other table"):
                    assert any(seen in line for line in text), f"{seen} is not on the screen: {text}"

                await keys(screen, pilot)

                nodes.kill("n3")

                def is_told() -> bool:
                    row = next(row for row in table(screen, "nodes") if row["node"] == "n3")
                    return row["state"] == "unreachable" and "node_unreachable" in "\n".join(drawn(screen))

                await until(is_told, "n3 is unreachable on the screen")
                row = next(row for row in table(screen, "nodes") if row["node"] == "n3")
                assert (row["CPU"], row["memory"], row["writes/s"]) == ("-", "-", "-")
                await pilot.press("q")
                await pilot.pause()
            assert screen.return_code == 0


async def keys(screen: Top, pilot: Pilot[None]) -> None:
    rows = screen.query_one("#nodes", Rows)
    await pilot.press("r")
    assert [row["node"] for row in table(screen, "nodes")] == ["n3", "n2", "n1"]
    await pilot.press("s", "s", "s")
    title = [str(column.label) for column in rows.ordered_columns][rows.sorted_by]
    assert title == "memory▼"
    await looked(screen, pilot, 2)
    sizes = [float(row["memory"].split()[0]) for row in table(screen, "nodes")]
    assert sizes == sorted(sizes, reverse=True), "the order stays"
    await pilot.press("down")
    at = rows.coordinate_to_cell_key(rows.cursor_coordinate).row_key.value
    await looked(screen, pilot)
    assert rows.coordinate_to_cell_key(rows.cursor_coordinate).row_key.value == at, "the cursor stays with its row"

    await pilot.press("p")
    await asyncio.sleep(0)
    await until(lambda: "paused" in drawn(screen)[0], "it is paused")
    looks = screen.looks
    await asyncio.sleep(3 * EVERY_S)
    assert screen.looks <= looks + 1, "one may have been under way"
    await pilot.press("p")
    await looked(screen, pilot)
    assert "paused" not in drawn(screen)[0]

    await pilot.press("t", "r")
    groups = [row["group"] for row in table(screen, "groups")]
    assert groups == sorted(groups, reverse=True)


def test_the_command_draws_on_a_terminal_and_ends_with_q(tmp_path: Path) -> None:
    with Nodes(tmp_path, ("n1",)) as nodes:
        ours, theirs = pty.openpty()
        command = [str(METADCTL), "--endpoint", nodes.where, "top", "--every", "0.5"]
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            seen = b""
            while b"metadata-0" not in seen:
                seen += os.read(ours, 65_536)
            os.write(ours, b"q")
            while True:
                try:
                    if not os.read(ours, 65_536):
                        break
                except OSError:  # its end of the terminal is closed
                    break
            assert process.wait(WAIT_S) == 0
        os.close(ours)
        piped = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert piped.returncode == 2
        assert "top draws on a terminal, and this is none" in piped.stderr


def test_without_its_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        main(["top"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert "textual is not installed. It comes with the extra top: " in told
    assert "pip install './clients[top]'" in told
    with pytest.raises(SystemExit, match="2"):
        main(["top", "--json"])
    assert "`status --json` has the numbers" in capsys.readouterr().err
