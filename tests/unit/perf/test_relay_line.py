"""One direction of an emulated path: what is asked of it is what befalls packets, and nothing else."""

from __future__ import annotations

import pytest

from metad_perf.wan.relay_line import PACKETS_HELD_MAX, Line, Path

MS = 1_000_000


def _dues(line: Line, count: int, size_bytes: int = 1_000, gap_ns: int = 0) -> list[int | None]:
    return [line.due_ns(n * gap_ns, size_bytes) for n in range(count)]


def test_a_path_without_anything_delivers_at_once() -> None:
    assert _dues(Line(Path(), "1"), 3, gap_ns=5) == [0, 5, 10]


def test_delay() -> None:
    assert _dues(Line(Path(delay_ms=2.5), "1"), 2, gap_ns=MS) == [2_500_000, 3_500_000]


@pytest.mark.parametrize("loss_pct", [0.1, 1.0, 3.0, 50.0])
def test_loss_is_what_was_asked(loss_pct: float) -> None:
    line = Line(Path(loss_pct=loss_pct), "seed")
    count = 200_000
    lost = 0
    for _ in range(count):
        if line.due_ns(0, 100) is None:
            lost += 1
        line.held = 0
    share = loss_pct / 100
    assert abs(lost - count * share) < 5 * (count * share * (1 - share)) ** 0.5  # five standard deviations
    assert line.counts.lost == lost
    assert line.counts.packets == count


def test_a_seed_is_a_fate() -> None:
    path = Path(delay_ms=20, jitter_ms=5, loss_pct=10, reorder_pct=10)
    assert _dues(Line(path, "7"), 500, gap_ns=MS) == _dues(Line(path, "7"), 500, gap_ns=MS)
    assert _dues(Line(path, "7"), 500, gap_ns=MS) != _dues(Line(path, "8"), 500, gap_ns=MS)


def test_jitter_keeps_the_order_and_its_bounds() -> None:
    line = Line(Path(delay_ms=20, jitter_ms=5), "1")
    dues = _dues(line, 2_000, gap_ns=MS // 10)
    known = [due for due in dues if due is not None]
    assert known == sorted(known)
    delays = [due - n * MS // 10 for n, due in enumerate(known)]
    assert min(delays) >= 15 * MS
    assert max(delays) <= 25 * MS
    assert max(delays) - min(delays) > 5 * MS


def test_late_packets_are_overtaken_and_nobody_waits_for_them() -> None:
    line = Line(Path(delay_ms=10, reorder_pct=20, reorder_ms=3), "1")
    dues = [due for due in _dues(line, 1_000, gap_ns=MS) if due is not None]
    late = [n for n, due in enumerate(dues) if due == n * MS + 13 * MS]
    assert line.counts.overtaken == len(late)
    assert 150 < len(late) < 250
    assert all(due == n * MS + 10 * MS for n, due in enumerate(dues) if n not in set(late))


def test_the_bottleneck_spaces_packets_and_its_queue_drops_what_it_cannot_hold() -> None:
    line = Line(Path(delay_ms=1, mbit_per_s=8, queue_bytes=10_000), "1")  # a byte a microsecond
    dues = _dues(line, 20)
    assert dues[:11] == [MS + MS * (n + 1) for n in range(11)]  # one is sent while ten wait
    assert dues[11:] == [None] * 9
    assert line.counts.dropped == 9
    assert line.due_ns(20 * MS, 1_000) == 22 * MS  # the queue has drained


def test_a_cut_path_delivers_nothing_and_a_healed_one_everything() -> None:
    line = Line(Path(cut=True), "1")
    assert _dues(line, 5) == [None] * 5
    assert line.counts.cut == 5
    line.shape(Path(delay_ms=1))
    assert line.due_ns(7, 100) == 7 + MS


def test_what_is_held_is_bounded() -> None:
    line = Line(Path(delay_ms=60_000), "1")
    line.held = PACKETS_HELD_MAX
    assert line.due_ns(0, 100) is None
    assert line.counts.dropped == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"delay_ms": -1.0},
        {"delay_ms": 1e9},
        {"delay_ms": 1.0, "jitter_ms": 2.0},
        {"loss_pct": 101.0},
        {"reorder_pct": -1.0},
        {"mbit_per_s": -1.0},
    ],
)
def test_paths_that_make_no_sense_are_refused(asked: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"are|is"):
        Path(**asked)  # type: ignore[arg-type]
