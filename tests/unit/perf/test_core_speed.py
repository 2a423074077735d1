from __future__ import annotations

import threading
import time

from metad_perf.core_speed import CoreSpeed


def test_the_work_takes_some_microseconds_of_a_core() -> None:
    """Whoever else runs: it is the thread's own time."""
    with CoreSpeed() as speed:
        time.sleep(0.3)
    assert 10 < speed.us < 100_000
    samples = len(speed._samples_ns)
    assert samples >= 2
    assert "core-speed" not in {thread.name for thread in threading.enumerate()}
    time.sleep(0.1)
    assert len(speed._samples_ns) == samples, "it ends"


def test_all_samples_count() -> None:
    speed = CoreSpeed()
    speed._samples_ns[:] = [200_000, 400_000]
    assert speed.us == 300.0
