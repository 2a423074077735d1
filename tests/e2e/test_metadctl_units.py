"""What people see of metadctl has units that people read: no column and no field is a number of bytes or milliseconds.

The list of commands is the command line's own. Programs have the numbers, with ``--json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest
from e2e_metadctl import metadctl
from test_metadctl_unknown_names import leaves

from metad import embedded
from metad_client import Given, Record, SessionProperties, Subscription, SubscriptionOptions, Will, blocking
from metad_client.cli.command_line import build_parser
from metad_wire.families import PLURALS

ASKED: Final = {
    "status": [],
    "members": [],
    "members --wide": ["--wide"],
    "links": [],
    "events": [],
    "settings get": ["all", "log_level"],  # most keys end in a unit, as in the file
    "settings diff": [],
    "slow": [],
    "loud": [],
    "groups": [],
    "groups explain": [],
    "node": [],
    "groups consumer": ["--tenant", "x"],
    "groups consumer get": ["x", "x"],
    "brokers": [],
    "brokers get": ["x"],
    "sessions": [],
    "sessions get": ["x", "x"],
    "sessions count": [],
    "sessions endings": [],
    "subscriptions": [],
    "wills": [],
    "retained": ["--tenant", "x"],
    "retained get": ["x", "x"],
    "leases": ["--namespace", "x"],
    "leases get": ["x", "x"],
    "tables": [],
    "tables get": ["x"],
    "records list": ["x"],
    "records get": ["x", "x"],
    "records count": ["x"],
    "get kv": ["x", "x"],
    "get offset": ["x", "x", "x", "0"],
    "get sequence": ["x", "x"],
    "plans": [],
    "plans list": [],
    "plans show": ["x"],
    "plans recommend": [],
    "auth": [],
    "auth whoami": [],
    "auth can": ["x", "read", "kv", "x/x"],
    "auth roles": [],
    "auth bindings": [],
    "features": [],
    "quotas": [],
    "quotas use": [],
    "audit": [],
    "list kv": ["x"],
    "list sequences": ["x"],
}
"""Commands that only read, each with arguments that find a record."""
CHANGE: Final = re.compile(
    r"(join|leave|replace|transfer|compact|certs|token|watch|top|contexts|completion)|groups (add|rebalance)"
    r"|groups (move|split|merge|remove|prefer)|node (drain|undrain)"
    r"|groups consumer (reset|dismiss|delete)|settings (set|unset)"
    r"|brokers fence|sessions (takeover|delete|end-tenant)|subscriptions (add|remove)|retained (put|delete)"
    r"|plans (add|drain|rebalance|pause|resume|cancel|delete)|auth (role|drop|grant|revoke|deny|allow)"
    r"|quotas (set|delete)|features (hold|allow)|leases revoke"
    r"|(put|delete) (kv|offset|sequence)|tables (declare|drop)|records( put| delete|)"
)
RAW: Final = re.compile(r"\b\w+_(ms|us|ns|s|bytes)\b")


class X(Record, frozen=True):
    x: str


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with embedded.serve_in_thread() as server, blocking.connect(server.url) as m:
        life = m.brokers.register("x")
        properties = SessionProperties(3_600, will=Will("x", b"x", 1, False))
        m.sessions.takeover("x", life.epoch, "x", "x", properties=properties)
        m.subscriptions.add_many("x", life.epoch, [Subscription("x", "x", "x", SubscriptionOptions(1))])
        m.sessions.takeover("x", life.epoch, "x", "y", properties=properties)
        m.sessions.disconnect("x", life.epoch, "x", "y")
        m.retained.put("x", "x", b"x", expiry_interval_s=3_600)
        m.kv.put("x", "x", b"x")
        m.offsets.commit("x", "x", "x", 0, 1)
        m.sequences.add("x", "x")
        m.table(m.tables.declare("x", X, key=("x",))).put(X("x"))
        m.leases.grant("x", 60_000, lease="x")
        m.plans.create("x", "rebalance")
        m.principals.put("metad://client/x", [Given("reader", "x")])
        yield server.endpoint


def test_every_command_that_reads_is_here() -> None:
    known = {" ".join(command.split()[:3]).removesuffix(" --wide") for command in ASKED}
    commands = {command for command, _ in leaves(build_parser(), named=False)}
    # tests/e2e/test_families.py reads the records of each, tests/e2e/test_backup.py what is in backups,
    # tests/e2e/test_export_import.py and test_import_etcd.py what an export and an import say
    families = {*PLURALS.values(), "backup", "restore", "export", "import"}
    assert {one for one in commands if not CHANGE.fullmatch(one) and one.split()[0] not in families} <= known


@pytest.mark.parametrize("command", ASKED)
def test_no_raw_number_has_a_unit_in_its_name(endpoint: str, command: str) -> None:
    said = metadctl(endpoint, *command.removesuffix(" --wide").split(), *ASKED[command])
    assert said.returncode == 0, said.stderr
    assert not RAW.search(said.stdout), said.stdout
