"""``metad-spark orphans``: records whose owners are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from .asking import of_one_moment, rows
from .output import say, table, warn, write_json
from .queries import orphans as q
from .wording import seconds

_TABLES = ["session", "subscription", "inflight", "will", "broker", "offset", "consumer", "consumer.group"]


def run(
    *,
    source: str,
    options: dict[str, str],
    late_s: float,
    left_s: float,
    master: str | None,
    connect: bool,
    json: Path | None,
) -> int:
    """Print them. Returns the exit code: 1 if something is there that must not be."""
    with of_one_moment(source, options, _TABLES, master=master, connect=connect) as tables:
        found = q.orphans(
            sessions=tables.read("session.owner"),
            subscriptions=tables.read("subscription", ["tenant", "client_id", "filter"]),
            inflight=tables.read("inflight", ["tenant", "client_id", "name"]),
            wills=tables.read("will"),
            brokers=tables.whole("broker"),
            offsets=tables.read("offset"),
            members=tables.read("consumer", ["tenant", "group", "member"]),
            groups=tables.read("consumer.group"),
            now_ms=tables.now_ms,
            late_s=late_s,
            left_s=left_s,
        )
        counted = {row["name"]: row for row in rows(q.summary(found))}
    nothing = {"orphans": 0, "tenants": 0, "since_s": None, "first": None, "last": None}
    checks = [msgspec.to_builtins(check) | nothing | counted.get(name, {}) for name, check in q.CHECKS.items()]
    broken = sum(check["orphans"] for check in checks if check["severity"] == q.BROKEN)
    told: dict[str, Any] = {"source": source, "now_ms": tables.now_ms, "broken": broken, "checks": checks}
    write_json(json, told)
    table(
        "Orphans",
        ["what", "is", "how many", "tenants", "the oldest for", "as"],
        [
            [check["text"], check["severity"], f"{check['orphans']:,}", f"{check['tenants']:,}", *_oldest(check)]
            for check in checks
        ],
    )
    if broken:
        warn(f"{broken:,} records should not be there: report this, with the directory of `metad-spark export`.")
        return 1
    say("Nothing is broken.")
    return 0


def _oldest(check: dict[str, Any]) -> list[str]:
    return ["" if check["since_s"] is None else seconds(check["since_s"]), check["first"] or ""]
