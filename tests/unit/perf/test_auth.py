"""``metad-perf auth`` on a node in this process: its judge has nothing to say of the node as it is, and finds what is
let through by planted bugs."""

from __future__ import annotations

import pytest

from metad import embedded
from metad_client import Grant, Options, connect
from metad_perf import auth
from metad_perf.attack import sites
from metad_perf.auth import LIFE, Found, may, paths_of, search
from sim.mutants.planting import planted
from sim.mutants.units import UNIT_MUTANTS

BUGS = {
    "items_unchecked": "kv.",
    "lists_unchecked": "list",
    "prefix_ignored": ".get",
    "lives_unchecked": "sessions.",
    "watches_unchecked": "watch",
    "keys_of_leases": "leases.keys",
    "parts_of_sessions": "sessions.takeover",
    "wills_unread": "wills.claim",
    "filters_of_topics": "retained.match",
}
"""And of which paths they are: only those are tried."""


async def found(requests: int) -> Found:
    """What a search finds on a node of its own."""
    files, tls = sites.node("n1"), [Options(tls=sites.client(name)) for name in ("ops", "app")]
    security = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    checked = {**security, "authorization": True, "administrators": ["ops"]}
    async with embedded.serve(node_id="n1", security=checked) as node:
        broker, admin, app = (connect(f"metads://{node.endpoint}", tls[which]) for which in (0, 0, 1))
        async with broker, admin, app:
            await broker.brokers.register(LIFE)
            return await search(admin, app, ["n1"], requests, 5, lambda _: None)


async def test_nothing_is_let_through() -> None:
    result = await found(1_200)
    assert (result.leaks, result.wrong_refusals, result.errors) == (0, 0, {}), result.examples
    assert sum(result.paths.values()) == 1_200
    assert len(result.paths) > 100
    assert sum(result.allowed.values()) > 100


@pytest.mark.parametrize("name", BUGS)
async def test_what_a_bug_lets_through_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        auth, "paths_of", lambda kept: {path: ask for path, ask in paths_of(kept).items() if BUGS[name] in path}
    )
    monkeypatch.setattr(auth, "ROUND", 15)
    (bug,) = [one for one in UNIT_MUTANTS if one.name == name]
    with planted(bug):
        result = await found(900)
    assert result.leaks > 0


def test_the_judge_says_what_a_grant_means() -> None:
    grants = [("a", Grant(["read"])), ("*", Grant(["write"], ["kv", "plan"], "b*", "k"))]
    assert may(grants, "read", "session", "a", "any")
    assert not may(grants, "read", "session", "ab", "any")
    assert not may(grants, "read", "session", None)
    assert not may(grants, "read", "plan", "a")
    assert may(grants, "write", "kv", "bb", "k1")
    assert not may(grants, "write", "kv", "bb", "x")
    assert not may(grants, "write", "offset", "bb", "k")
    assert may([("a", Grant(["read"], ["plan"]))], "read", "plan", "p")
    assert not may([("a", Grant(["read"], ["*"]))], "read", "plan", "p")
