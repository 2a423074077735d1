"""``metad-perf attack`` in small: the keys of its JSON, attacks of each family refused, and a judge that can say no.
How much a good client feels of it is for a machine that does nothing else to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metad_perf import attack
from metad_perf.attack_kinds import KINDS

METAD_PERF = Path(sys.executable).with_name("metad-perf")
NAMES = (
    "tls_wrong_certificates",
    "quic_wrong_certificates",
    "tls_frame_bombs",
    "quic_stream_abuse",
    "quic_garbage",
    "quic_early_replays",
)


def test_every_family_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "attack.json"
    done = subprocess.run(
        [str(METAD_PERF), "attack", "--attacks", ",".join(NAMES), "--seconds", "1", "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    attacks = json.loads(path.read_text())["attacks"]
    assert tuple(attacks) == NAMES
    for name, one in attacks.items():
        assert one["refused"] is True, name
        assert one["tried"] >= 4, name
        assert one["server_rss_growth_mib"] <= attack.GROWTH_MIB_MAX, name
        assert one["good_client_p99_ratio"] > 0, name
        assert one["good_client_failed"] == 0, name


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0),
        ({"refused": False}, 1),
        ({"server_rss_growth_mib": 65.0}, 1),
        ({"good_client_p99_ratio": 2.1}, 1),
        ({"good_client_failed": 1}, 1),
    ],
)
def test_the_judge(change: dict[str, Any], code: int) -> None:
    good = {
        "refused": True,
        "server_rss_growth_mib": 5.0,
        "good_client_p99_ratio": 1.1,
        "tried": 10,
        "p99_ms": 5.0,
        "quiet_p99_ms": 4.5,
        "good_client_failed": 0,
    }
    assert attack._show({"tls_garbage": good, "quic_garbage": good | change}) == code


def test_both_transports_meet_every_common_attack() -> None:
    by_transport = {
        transport: {name.removeprefix(f"{transport}_") for name, (of, _) in KINDS.items() if of == transport}
        for transport in ("tls", "quic")
    }
    common = {"handshake_flood", "wrong_certificates", "garbage", "half_open", "frame_bombs", "slow_readers"}
    assert common <= by_transport["tls"]
    assert common <= by_transport["quic"]
