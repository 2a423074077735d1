"""Coverage-guided fuzzing of the frame decoder and the session: ``fuzz_wire.py frame|session --seconds N``.

Ends with 0 when nothing was found. A finding is an exception other than MetadError, a broken promise (an
assertion in wire_drivers), an input that takes over a second, or memory that keeps growing; the input is kept
and the command to replay it is printed.

The search runs in a child process, because libFuzzer ends its process as it likes; the parent watches the
child's memory and judges.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "golden")]

INPUT_BYTES_MAX = 4096
# libFuzzer's own corpus and coverage tables grow by a few MiB at most; a leak of 200 bytes per input passes this
# within a minute at a few thousand inputs per second.
RSS_GROWTH_MIB_MAX = 16
WARM_UP = 0.3  # share of the time after which memory should have settled


def main() -> int:
    parser = argparse.ArgumentParser(description="Coverage-guided fuzzing of metad's wire layer.")
    parser.add_argument("target", choices=["frame", "session"])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--input-seconds", type=int, default=1, help="an input that takes longer is a finding")
    parser.add_argument("--seed", type=int, default=None, help="of the search; random by default")
    parser.add_argument("--corpus", type=Path, default=None, help="directory to keep interesting inputs in")
    parser.add_argument("--replay", type=Path, default=None, help="run one kept input, without fuzzing")
    parser.add_argument("--child", nargs=argparse.REMAINDER, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        return search(arguments.target, arguments.child)
    if arguments.replay is not None:
        return replay(arguments.target, arguments.replay)
    seed = random.SystemRandom().randrange(1, 2**31) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory(prefix="metad-fuzz-") as scratch:
        corpus = arguments.corpus or Path(scratch) / "corpus"
        return watch(arguments.target, arguments.seconds, arguments.input_seconds, seed, corpus, Path(scratch))


def search(target: str, libfuzzer_arguments: list[str]) -> int:
    """In the child: hand the target to libFuzzer. Does not return."""
    import atheris

    with atheris.instrument_imports(include=["metad_wire", "wire_drivers"]):
        import wire_drivers

    atheris.Setup([sys.argv[0], *libfuzzer_arguments], wire_drivers.TARGETS[target])
    atheris.Fuzz()
    return 0


def replay(target: str, path: Path) -> int:
    """Run one input in the open."""
    import wire_drivers

    wire_drivers.TARGETS[target](path.read_bytes())
    print(f"{path}: no finding")
    return 0


def watch(target: str, seconds: int, input_seconds: int, seed: int, corpus: Path, scratch: Path) -> int:
    """In the parent: run the child, sample its memory, and tell what came of it."""
    import psutil
    import wire_drivers

    corpus.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(wire_drivers.seeds(target)):
        (corpus / f"golden-{index:03}").write_bytes(data)
    findings = Path(tempfile.gettempdir()) / f"metad-fuzz-{target}-{seed}-"
    log_path = scratch / "log"
    command = [
        *(sys.executable, str(HERE / "fuzz_wire.py"), target, "--child", str(corpus)),
        *(f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}", f"-timeout={input_seconds}"),
        *("-rss_limit_mb=1024", "-print_final_stats=1", f"-artifact_prefix={findings}"),
    ]
    began = time.monotonic()
    samples: list[tuple[float, int]] = []
    hung = False
    with log_path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as child:
        process = psutil.Process(child.pid)
        while child.poll() is None:
            elapsed = time.monotonic() - began
            try:
                samples.append((elapsed, process.memory_info().rss))
            except psutil.Error:
                break
            if elapsed > seconds + 60:
                child.kill()
                hung = True
            time.sleep(0.2)
    growth_mib = growth(samples)
    log_text = log_path.read_text(encoding="utf-8", errors="replace")
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", log_text)
    executions = int(executed[1]) if executed else 0
    complaints = []
    if hung:
        complaints.append("the search did not end in time")
    elif child.returncode != 0:
        complaints.append(f"the search ended with exit code {child.returncode}")
    elif executions == 0:
        complaints.append("nothing was executed")
    if growth_mib > RSS_GROWTH_MIB_MAX:
        complaints.append(f"memory grew by {growth_mib:.1f} MiB after warm-up, the bound is {RSS_GROWTH_MIB_MAX}")
    if complaints:
        print(log_text[-6000:], file=sys.stderr)
        for kept in sorted(findings.parent.glob(findings.name + "*")):
            print(f"replay: python {Path(__file__).name} {target} --replay {kept}", file=sys.stderr)
    verdict = "; ".join(complaints) or "no finding"
    print(
        f"fuzz {target}: {executions} executions in {time.monotonic() - began:.0f} s, seed {seed}, "
        f"rss growth {growth_mib:.1f} MiB: {verdict}"
    )
    return 1 if complaints else 0


def growth(samples: list[tuple[float, int]]) -> float:
    """MiB between the largest memory just after warm-up and the smallest at the end, never negative."""
    if not samples:
        return 0.0
    end = samples[-1][0]
    settled = [rss for at, rss in samples if WARM_UP * end <= at <= 2 * WARM_UP * end]
    last = [rss for at, rss in samples if at >= 0.9 * end]
    if not settled or not last:
        return 0.0
    return max(0.0, (min(last) - max(settled)) / 2**20)


if __name__ == "__main__":
    sys.exit(main())
