"""Overview: whether all is well, and what is not, as ``metadctl status`` says it."""

from __future__ import annotations

from typing import Final

from metad_client.cli import overview
from metad_client.cli.verdict import lines

from ..frame import each_reading, frame, headline, label, tag
from ..listings import Sliced

LINES_MAX: Final = 100
"""Problems that are shown. Groups and nodes with the same problem share a line."""


def page() -> None:
    """Build it."""
    with frame("/", "Overview") as session:
        said = tag("div", classes="card verdict", role="status")
        with said:
            verdict = label("")
        troubles = tag("div", classes="card")
        with tag("div", classes="card"):
            numbers = tag("div", classes="numbers")
            about = tag("div", classes="soft")
        tag("h2", "Nodes")
        nodes = Sliced("Nodes", "No node is known.")

    def show() -> None:
        reading = session.poll.reading
        verdict.set_text(headline(session))
        failed = reading is None or reading.error is not None
        said.classes(replace=f"card verdict {'unknown' if reading is None or failed else reading.judged}")
        troubles.set_visibility(reading is not None and bool(reading.found) and not failed)
        if reading is None or reading.cluster is None:
            return
        troubles.clear()
        with troubles:
            tag("h2", "Problems")
            found = lines(reading.found)
            with tag("ul", classes="problems"):
                for line in found[:LINES_MAX]:
                    severity, _, rest = line.partition(" ")
                    with tag("li"):
                        label(severity, f"chip {severity}")
                        tag("span", f" {rest}")
                if len(found) > LINES_MAX:
                    tag("li", f"and {len(found) - LINES_MAX:,} others: metadctl status shows all")
        numbers.clear()
        with numbers:
            for name, value in _numbers(session.poll.reading).items():
                with tag("div"):
                    tag("b", value)
                    tag("span", name)
        about.clear()
        with about:
            if reading.judged != "unknown":
                for line in [overview.facts(reading.row), *overview.room(reading.cluster), *overview.life(reading.row)]:
                    tag("div", line)
        nodes.show(overview.node_table(reading.cluster))

    each_reading(session, show)


def _numbers(reading: object) -> dict[str, str]:
    row = getattr(reading, "row", {})
    cluster = getattr(reading, "cluster", None)
    if cluster is None or row.get("verdict") == "unknown":
        return {}
    statuses = [node.status for node in cluster.nodes if node.status is not None]
    return {
        "nodes up": f"{row['nodes_up']} of {row['nodes_total']}",
        "groups led": f"{row['groups_led']:,} of {row['groups_total']:,}",
        "client connections": f"{sum(status.connections for status in statuses):,}",
        "slot moves": f"{row['slot_moves']:,}",
    }
