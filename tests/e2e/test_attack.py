"""``metad-perf attack`` in small: the keys of its JSON, attacks of each family refused, and a judge that can say no.
How much a good client feels of it is for a machine that does nothing else to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_perf import metad_perf

from metad_perf.attack import command
from metad_perf.attack.kinds import KINDS, STRANGER

NAMES = (
    "tls_wrong_certificates",
    "quic_stream_abuse",
    "insider_tls_cancelled_requests",
    "insider_tls_reused_identities",
    "insider_tls_registrations",
    "insider_tls_names_of_others",
    "tokens_tls_key_updates",
    "insider_tenants_tls_reads",
    "insider_tenants_tls_wipes",
)
"""One of each module of attacks. Each takes five seconds of two processors: the command itself runs all of them."""

GOOD: dict[str, Any] = {
    "refused": True,
    "server_rss_growth_mib": 5.0,
    "good_client_p99_ratio": 1.1,
    "tried": 10,
    "p99_ms": 5.0,
    "quiet_p99_ms": 4.5,
    "good_client_failed": 0,
    "longest_stand_ms": 120.0,
    "quiet_longest_stand_ms": 40.0,
    "elections": 0,
    "leaked": 0,
    "problem": "",
}


def test_every_family_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "attack.json"
    done = metad_perf("attack", "--quick", "--only", ",".join(NAMES), "--json", path)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    attacks = json.loads(path.read_text())["attacks"]
    assert set(attacks) == set(NAMES)
    for name, one in attacks.items():
        assert one["refused"] is True, (name, one["problem"])
        assert one["tried"] >= 1, name
        assert one["server_rss_growth_mib"] <= command.GROWTH_MIB_MAX, name
        assert one["good_client_p99_ratio"] > 0, name
        assert one["good_client_failed"] == 0, name
        assert one["elections"] == 0, name
        assert one["longest_stand_ms"] > 0, name
        assert one["leaked"] == 0, name
        assert one["good_client_throughput_ratio"] > 0, name
        assert one["denied"] == (one["tried"] if "tenants" in name else 0), name


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 0),
        ({"refused": False}, 1),
        ({"server_rss_growth_mib": 65.0}, 1),
        ({"good_client_p99_ratio": 2.1}, 1),
        ({"good_client_failed": 1}, 1),
        ({"elections": 1}, 1),
        ({"leaked": 1}, 1),
        ({"longest_stand_ms": 251.0}, 1),
        ({"longest_stand_ms": 400.0, "quiet_longest_stand_ms": 410.0}, 0),
    ],
    ids=str,
)
def test_the_judge(change: dict[str, Any], code: int) -> None:
    assert command._show({"tls_garbage": GOOD, "quic_garbage": GOOD | change}) == code


def test_one_attack_in_ten_may_slow_the_good_client_down() -> None:
    slow = GOOD | {"good_client_p99_ratio": 5.0}
    nine = {f"a{n}": GOOD for n in range(9)}
    assert command._show(nine | {"b": slow}) == 0
    assert command._show(nine | {"b": slow, "c": slow}) == 1


def test_an_attack_of_each_module_is_run() -> None:
    assert {KINDS[name].run.__module__ for name in NAMES} == {kind.run.__module__ for kind in KINDS.values()}


def test_both_transports_meet_every_common_attack() -> None:
    by_transport = {
        transport: {
            name.removeprefix(f"{transport}_")
            for name, kind in KINDS.items()
            if kind.transport == transport and kind.who == STRANGER
        }
        for transport in ("tls", "quic")
    }
    common = {"handshake_flood", "wrong_certificates", "garbage", "half_open", "frame_bombs", "slow_readers"}
    assert common <= by_transport["tls"]
    assert common <= by_transport["quic"]
