"""``metad-spark verify``: makes the proofs, prints each with its error, and fails if one does. Needs no Java."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .errors import UsageError
from .output import say, write_json
from .pipeline.memory import watched
from .proofs.proof import Proof
from .proofs.verify import PROOFS, verify


def run(*, only: Sequence[str], json: Path | None) -> int:
    """Returns 0 if every proof passes, else 1. Raises UsageError for an unknown proof."""
    unknown = [name for name in only if name not in PROOFS]
    if unknown:
        raise UsageError(f"no such proofs: {', '.join(unknown)}; there are {', '.join(PROOFS)}")
    began = time.monotonic()
    with watched() as peak:
        proofs = verify(_tell, only)
    wall_s = time.monotonic() - began
    failed = sum(not proof.passed for proof in proofs)
    report = {
        "passed": not failed,
        "failed": failed,
        "proofs": [msgspec.to_builtins(proof) for proof in proofs],
        "wall_s": wall_s,
        "rss_max_mib": peak.rss_max_mib,
    }
    write_json(json, report)
    say(f"{len(proofs) - failed} of {len(proofs)} proofs passed in {wall_s:.0f} s.")
    return 1 if failed else 0


def _tell(proof: Proof) -> None:
    error, bar = (
        f"{value * 100:.3g} %" if proof.unit == "of itself" else f"{value:.3g}" for value in (proof.error, proof.bar)
    )
    unit = "" if proof.unit == "of itself" else f" {proof.unit}"
    say(f"{'passed' if proof.passed else 'FAILED'}  {proof.name}")
    say(f"        expected {proof.expected}; measured {proof.measured}; error {error}{unit}, at most {bar}")
