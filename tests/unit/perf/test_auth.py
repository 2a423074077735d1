"""``metad-perf auth`` on a node in this process: its judge has nothing to say of the node as it is, and finds what is
let through by planted bugs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from metad import embedded
from metad_client import Client, Grant, Options, connect
from metad_perf import auth
from metad_perf.attack import sites
from metad_perf.auth import LIFE, may, paths_of, search
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
MUTANTS = {bug.name: bug for bug in UNIT_MUTANTS}


@contextlib.asynccontextmanager
async def clients() -> AsyncIterator[tuple[Client, Client]]:
    """An administrator, and the client whose rights are tried, of a node of their own."""
    files, tls = sites.node("n1"), [Options(tls=sites.client(name)) for name in ("ops", "app")]
    security = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    checked = {**security, "authorization": True, "administrators": ["ops"]}
    async with embedded.serve(node_id="n1", security=checked) as node:
        broker, admin, app = (connect(f"metads://{node.endpoint}", tls[which]) for which in (0, 0, 1))
        async with broker, admin, app:
            await broker.brokers.register(LIFE)
            yield admin, app


async def test_nothing_is_let_through() -> None:
    async with clients() as (admin, app):
        result = await search(admin, app, ["n1"], 1_200, 5, lambda _: None)
    assert (result.leaks, result.wrong_refusals, result.errors) == (0, 0, {}), result.examples
    assert sum(result.paths.values()) == 1_200
    assert len(result.paths) > 100
    assert sum(result.allowed.values()) > 100


async def test_what_bugs_let_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "ROUND", 15)
    through = []
    async with clients() as (admin, app):
        kept = await auth.prepare(admin)

        async def prepared(_: Client) -> object:
            return kept

        monkeypatch.setattr(auth, "prepare", prepared)
        for name, part in BUGS.items():
            tried = {path: ask for path, ask in paths_of(kept).items() if part in path}
            monkeypatch.setattr(auth, "paths_of", lambda _, tried=tried: tried)
            with planted(MUTANTS[name]):
                for seed in range(10):
                    if (await search(admin, app, ["n1"], 150, seed, lambda _: None)).leaks:
                        break
                else:
                    through.append(name)
    assert not through


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
