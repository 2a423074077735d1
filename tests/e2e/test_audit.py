"""The audit trail of a real cluster, over TLS and with permissions: what was administered, who was refused, whose name
was taken; as ``metadctl audit`` shows it, also behind a restart of all nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import Said, metadctl
from e2e_nodes import NAMES, Nodes

from metad_client import Given, Grant, Options, PermissionDeniedError, blocking
from metad_wire.operator.authority import issue_fleet
from metad_wire.transport.credentials import TlsFiles
from waiting import WAIT_S, wait_until

FLOOD = 300
APP, OTHER, ONE, TWO = (f"metad://client/{name}" for name in ("app", "other", "one", "two"))


class Trail:
    """A cluster, and who talks to it."""

    def __init__(self, home: Path) -> None:
        self.certs = home / "certs"
        made = issue_fleet(self.certs, NAMES, ["app", "other", "one", "two"], admins=["ops"])
        self.made: dict[str, TlsFiles] = made

        def flags(name: str, _: str) -> list[str]:
            files = made[f"node-{name}"]
            return ["--tls-cert", files.certificate, "--tls-key", files.key, "--tls-ca", files.ca]

        self.nodes = Nodes(home, config="[security]\nauthorization = true\n", flags=flags)

    def client(self, name: str, node: str = "") -> Any:
        where = self.nodes.endpoints[node] if node else self.nodes.where
        return blocking.connect(f"metads://{where}", Options(tls=self.made[name], deadline_s=WAIT_S))

    def shown(self, *arguments: str) -> list[dict[str, Any]]:
        """What ``metadctl audit --json`` says, the oldest first."""
        found = self.metadctl("audit", "--json", *arguments)
        assert found.returncode == 0, found.stderr
        lines: list[dict[str, Any]] = json.loads(found.stdout)["audit"]
        return lines[::-1]

    def metadctl(self, *arguments: str, who: str = "ops") -> Said:
        return metadctl(f"metads://{self.nodes.where}", *arguments, "--certs", str(self.certs), "--as", who)


def test_what_was_administered_refused_and_taken_stands_in_the_trail(tmp_path: Path) -> None:
    trail = Trail(tmp_path)
    with trail.nodes:
        with trail.client("admin-ops") as ops:
            ops.roles.put("own-b1", [Grant(["own"], ["broker"], "b1")])
            for who in (ONE, TWO):
                ops.principals.put(who, [Given("own-b1")])

            def known() -> bool:
                return all(ops.principals.may(principal=TWO, node=node).roles for node in NAMES)

            wait_until(known, "every node knows the roles")
        with trail.client("client-app") as app:
            for _ in range(FLOOD):
                with pytest.raises(PermissionDeniedError):
                    app.kv.put("acme", "key", b"value")
        with trail.client("client-other") as other, pytest.raises(PermissionDeniedError):
            other.kv.get("acme", "key")
        with trail.client("client-one") as one, trail.client("client-two") as two:
            first = one.brokers.register("b1").epoch
            second = two.brokers.register("b1").epoch

        # What nodes tell of it is for whoever may read the audit trail.
        told = json.loads(trail.metadctl("events", "--json").stdout)["events"]
        assert {"role.put", "principal.put"} <= {one["fields"]["method"] for one in told if one["event"] == "audited"}

        def written() -> bool:
            lines = trail.shown("--kind", "refused")
            return {line["who"] for line in lines} == {APP, OTHER} and _times(lines, APP) == FLOOD

        wait_until(written, "what was refused is written")
        lines = trail.shown()
        check(lines, first, second)
        assert trail.shown("--who", "other") == [line for line in lines if line["who"] == OTHER]
        assert trail.shown("--method", "role.", "--since", "1h") == [
            one for one in lines if one["method"] == "role.put"
        ]
        assert not trail.shown("--since", "2100-01-01T00:00:00Z")
        assert len(trail.shown("--limit", "2")) == 2

        assert "ago" in (table := trail.metadctl("audit", "--kind", "life").stdout)
        assert "broker.register" in table
        refused = trail.metadctl("audit", who="app")
        assert refused.returncode == 1
        assert "may not read audit" in refused.stderr

        for name in NAMES:
            if name == NAMES[0]:
                trail.nodes.kill(name)
            else:
                assert trail.nodes.servers[name].terminate() == 0
        trail.nodes.start_all(NAMES)
        after = trail.shown()
        assert after[: len(lines)] == lines
        assert {line["who"] for line in after[len(lines) :]} <= {APP}, "who was refused just before they ended"
        with trail.client("admin-ops") as ops:
            ops.roles.put("again", [Grant(["read"])])
            wait_until(lambda: trail.shown("--limit", "1")[0]["names"] == "again", "it goes on")
        ids = [line["id"] for line in trail.shown()]
        assert ids == sorted({*ids})


def _times(lines: list[dict[str, Any]], who: str) -> int:
    return sum(line["times"] for line in lines if line["who"] == who)


def check(lines: list[dict[str, Any]], first: int, second: int) -> None:
    """What the trail says of all that has happened."""
    administered = [line for line in lines if line["kind"] == "admin"]
    assert [(line["method"], line["names"]) for line in administered] == [
        ("role.put", "own-b1"),
        ("principal.put", ONE),
        ("principal.put", TWO),
    ]
    assert all(line["who"] == "metad://admin/ops" and line["outcome"] == "done" for line in administered)
    assert all(line["host"] == "127.0.0.1" and line["node"] in NAMES for line in lines)
    (taken,) = [line for line in lines if line["kind"] == "life"]
    assert (taken["who"], taken["method"]) == (TWO, "broker.register")
    assert taken["names"] == f"b1: epoch {second} ends epoch {first}, registered by {ONE}"
    refused = [line for line in lines if line["kind"] == "refused"]
    (other,) = [line for line in refused if line["who"] == OTHER]
    assert (other["method"], other["times"], other["outcome"]) == ("kv.get", 1, "permission_denied")
    assert "may not read kv of 'acme'" in other["names"]
    flood = [line for line in refused if line["who"] == APP]
    assert sum(line["times"] for line in flood) == FLOOD
    span_ms = flood[-1]["when_ms"] - flood[0]["when_ms"]
    nodes = {line["node"] for line in flood}
    assert len(flood) <= len(nodes) * (2 + span_ms / 1_000), "a line a second"
    assert not any(line["dropped"] for line in lines)
