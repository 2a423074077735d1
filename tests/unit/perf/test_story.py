"""A long run is never silent: in a terminal a picture moves, and in a pipe there is a line at every interval."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

from rich.console import Console

from metad_perf.report.story import Story


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_in_a_pipe_steps_events_and_progress_are_plain_lines() -> None:
    out = io.StringIO()
    with Story(Console(file=out), plain_s=0.01) as story:
        story.step("metad starts")
        until(lambda: "metad starts …\n" in out.getvalue())
        story.step("every client comes back", 1_000)
        story.add(400)
        until(lambda: " 400 of 1,000 sessions" in out.getvalue())
        story.event("n1 is killed")
        story.add(-100)
        until(lambda: " 300 of 1,000 sessions, 0 a second\n" in out.getvalue())
        story.also("7 refused")
        until(lambda: " 300 of 1,000 sessions, 0 a second; 7 refused\n" in out.getvalue())
        story.step("metad stops")
        until(lambda: "metad stops …\n" in out.getvalue())
    assert "\x1b" not in out.getvalue()
    assert " s  n1 is killed\n" in out.getvalue()
    assert "-" not in out.getvalue(), "a rate is never negative"


def test_in_a_terminal_a_bar_and_a_curve_are_redrawn_and_events_stay() -> None:
    out = io.StringIO()
    with Story(Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"})) as story:
        story.step("metad starts")
        until(lambda: "metad starts …" in out.getvalue())
        story.step("every client comes back", 1_000)
        until(lambda: "0 of 1,000 sessions" in out.getvalue())
        story.add(400)
        until(lambda: "400 of 1,000 sessions" in out.getvalue() and "up to" in out.getvalue())
        story.event("n1 is killed")
    assert "█" in out.getvalue()
    assert "n1 is killed" in out.getvalue()


def test_a_run_that_fails_leaves_a_clean_terminal() -> None:
    out = io.StringIO()
    try:
        with Story(Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"})) as story:
            story.step("every client comes back", 1_000)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1, "the cursor is back"
