"""What a long measurement says meanwhile."""

from __future__ import annotations

import pytest

from metad_perf.report import output


def test_in_a_log_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with output.progress("runs", 1_500) as progress:
        progress(1)
        assert not capsys.readouterr().err, "half a minute is not over"
        monkeypatch.setattr(output, "_LINE_EVERY_S", 0.0)
        progress(1_000)
        progress(2)
    assert capsys.readouterr().err.splitlines() == ["runs: 1,001 of 1,500", "runs: 1,003 of 1,500"]
