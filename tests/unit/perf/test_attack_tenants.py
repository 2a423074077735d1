"""Insiders that attack another tenant, on a node in this process: all is refused, and planted leaks are found."""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from metad import embedded
from metad_client import Client, Options, connect
from metad_perf.attack import sites, tenants
from metad_perf.attack.peer import Outcome, Target
from metad_perf.attack.tenants import HONEST, MALLORY
from sim.mutants.planting import planted
from sim.mutants.units import UNIT_MUTANTS

BUGS = {
    "lists_unchecked": tenants.reads,
    "watches_unchecked": tenants.reads,
    "items_unchecked": tenants.wipes,
    "lives_unchecked": tenants.lives,
    "lives_of_nobody": tenants.epochs,
}


class Place:
    """A node with an honest tenant."""

    def __init__(self, target: Target, tenant: sites.HonestTenant, own: Client, admin: Client) -> None:
        self.target, self._tenant, self._own, self.admin = target, tenant, own, admin

    async def attacked(self, attack: Callable[[Target, float], Outcome]) -> Outcome:
        """For as short as can be: each attempt is made once."""
        return await asyncio.to_thread(attack, self.target, time.monotonic())

    async def harm(self) -> str:
        return await self._tenant.harm(self._own, self.admin)


@asynccontextmanager
async def place(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(sites, "DUE", 50)
    monkeypatch.setattr(sites, "KEYS", 100)
    files, doors = sites.node("n1"), sites.Doors(home)
    told: dict[str, Any] = tomllib.loads("\n".join(f"{name} = {value}" for name, value in doors.security().items()))
    security = {"certificate": files.certificate, "key": files.key, "ca": files.ca, **told}
    tenant = sites.HonestTenant(doors)
    async with embedded.serve(node_id="n1", security=security, groups={"data": 1, "offset": 1}) as node:
        host, _, port = node.endpoint.rpartition(":")
        target = Target(
            addresses=[(host, int(port))],
            transport="tls",
            good=sites.client(MALLORY),
            other=sites.client(HONEST),
            none=sites.anonymous(),
            secret=tenant.secret,
            token=doors.token,
            public_key=doors.public_key,
        )
        own, admin = (
            connect(f"metads://{node.endpoint}", Options(tls=sites.client(name))) for name in (HONEST, "perf")
        )
        async with own, admin:
            await tenant.admit(admin, ["n1"])
            await tenant.settle(own, admin)
            yield Place(target, tenant, own, admin)


async def test_everything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(tmp_path, monkeypatch) as there:
        for attack in tenants.ATTACKS:
            outcome = await there.attacked(attack)
            assert (outcome.problem, outcome.leaked) == ("", 0), attack.__name__
            assert outcome.denied == outcome.tried > 5, attack.__name__
        assert await there.harm() == ""


@pytest.mark.parametrize("name", BUGS)
async def test_what_a_bug_lets_through_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bug,) = [one for one in UNIT_MUTANTS if one.name == name]
    async with place(tmp_path, monkeypatch) as there:
        with planted(bug):
            outcome = await there.attacked(BUGS[name])
        assert outcome.leaked > 0
        assert outcome.problem


async def test_what_was_changed_is_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(tmp_path, monkeypatch) as there:
        await there.admin.kv.delete(HONEST, "k3")
        await there.admin.retained.put(HONEST, "t1", b"other")
        await there.admin.sessions.end_tenant("another", publish_wills=False)
        assert await there.harm() == "not as before: key-values, retained"
