"""Cluster: nodes, groups and who leads them, the slots as a picture, what moves, and the connections between nodes."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any, Final

from nicegui import ui

from metad_client.cli import overview
from metad_client.cli.view import ClusterView, GroupView
from metad_wire.cluster import ClusterMap, GroupId

from ..actions import leave, transfer
from ..frame import each_reading, frame, headline, label, problem, tag
from ..listings import Row, Sliced
from ..polling import Reading

WIDTH: Final = 128
"""Slots in a row of the picture, which has eight rows."""
COLOURS: Final = ("#3b82a6", "#d28a2d", "#5a9e62", "#a5638f", "#8a7fc0", "#b9574d", "#4f9d9b", "#9a8a4a")
"""Of the nodes that lead, in order. Beyond so many they begin again."""
NOBODY: Final = "#9aa1a9"
MOVES_MAX: Final = 20
"""Moves that are named."""


class _Page:
    """What is on the page, and what is shown on it."""

    def __init__(self) -> None:
        self.cluster: ClusterView | None = None
        self.drawn: tuple[int, tuple[tuple[str, str], ...]] | None = None

    def groups(self) -> list[GroupView]:
        """Those that are shown, in order."""
        return [] if self.cluster is None else self.cluster.groups


def page() -> None:
    """Build it."""
    shown = _Page()
    with frame("/cluster", "Cluster", "Nodes, groups, and where the slots are.") as session:
        failed = problem("")
        tag("h2", "Nodes")
        chosen = (lambda n: leave(session, _node(shown, n))) if session.may_write else None
        nodes = Sliced("Nodes", "No node is known.", chosen)
        tag("h2", "Slots")
        with tag("div", classes="card slots"):
            picture = ui.html("", sanitize=False)
            moves = label("", "soft")
        tag("h2", "Groups")
        if session.may_write:
            label("Choose a node to let it leave, a group to move its leader.", "soft")
        moved = (lambda n: transfer(session, shown.groups()[n])) if session.may_write else None
        groups = Sliced("Groups", "No group is known.", moved)
        tag("h2", "Connections between nodes")
        links = Sliced("Connections between nodes", "There is one node, or none answered.")

    def show() -> None:
        reading = session.poll.reading
        failed.set_text(headline(session) if reading is not None and reading.error is not None else "")
        if reading is None or reading.cluster is None:
            return
        cluster = shown.cluster = reading.cluster
        nodes.show(overview.member_table(cluster, reading.found))
        groups.show([_group_row(row, group) for row, group in zip(overview.group_table(cluster), cluster.groups)])  # noqa: B905
        links.show(overview.link_table(cluster))
        drawn = (cluster.version, tuple((group.name, group.leader) for group in cluster.groups))
        if drawn != shown.drawn:
            shown.drawn = drawn
            picture.set_content(_picture(reading, dict(drawn[1])))
        moves.set_text(_moves(reading))

    each_reading(session, show)


def _node(shown: _Page, number: int) -> str:
    return "" if shown.cluster is None else shown.cluster.nodes[number].node


def _group_row(row: Row, group: GroupView) -> Row:
    status = group.status
    waits = {} if status is None else {"items that wait": status.waiting_items, "items/s": status.served_per_s}
    return {**row, "term": None if status is None else status.term, **waits}


def _moves(reading: Reading) -> str:
    current = None if reading.known is None else reading.known.map
    if current is None or not current.moves:
        return "No slots move."
    shown = [
        f"{int.from_bytes(move.slots, 'big').bit_count()} slots of {GroupId(move.kind, move.source).name} to "
        f"{GroupId(move.kind, move.target).name}"
        for move in current.moves[:MOVES_MAX]
    ]
    more = f", and {len(current.moves) - MOVES_MAX} others" if len(current.moves) > MOVES_MAX else ""
    return f"On the move: {', '.join(shown)}{more}."


# --- the picture ---


def _picture(reading: Reading, leaders: Mapping[str, str]) -> str:
    """The slots of each kind of groups, coloured by the node that leads, as SVG; names are escaped."""
    current = None if reading.known is None else reading.known.map
    if current is None:
        return "<p>There is no map yet.</p>"
    names = sorted(node.node_id for node in current.nodes)
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    parts = [_kind(current, kind, leaders, colours) for kind in sorted(current.slots)]
    used = {leader for leader in leaders.values() if leader}
    legend = "".join(
        f'<span><i style="background:{colours.get(name, NOBODY)}"></i>{html.escape(name)}</span>'
        for name in sorted(used)
    )
    if not all(leaders.values()):
        legend += f'<span><i style="background:{NOBODY}"></i>nobody leads</span>'
    return "".join(parts) + f'<p class="legend">{legend}</p>'


def _kind(current: ClusterMap, kind: str, leaders: Mapping[str, str], colours: Mapping[str, str]) -> str:
    packed = current.slots[kind]
    owners = [int.from_bytes(packed[at : at + 2], "big") for at in range(0, len(packed), 2)]
    runs: dict[int, list[tuple[int, int]]] = {}  # group -> (first slot, slots), within a row
    for slot, owner in enumerate(owners):
        mine = runs.setdefault(owner, [])
        if mine and sum(mine[-1]) == slot and slot % WIDTH:
            mine[-1] = (mine[-1][0], mine[-1][1] + 1)
        else:
            mine.append((slot, 1))
    drawn = [_group(GroupId(kind, owner).name, runs[owner], leaders, colours) for owner in sorted(runs)]
    rows = -(-len(owners) // WIDTH)
    said = f"{len(owners):,} slots in {len(runs):,} {'group' if len(runs) == 1 else 'groups'}"
    return (
        f'<h3>{html.escape(kind)} <span class="soft">{said}</span></h3>'
        f'<svg viewBox="0 0 {WIDTH} {rows * 2}" preserveAspectRatio="none" style="height:{rows * 9}px" role="img" '
        f'aria-label="{html.escape(kind)}: {said}">{"".join(drawn)}</svg>'
    )


def _group(name: str, runs: list[tuple[int, int]], leaders: Mapping[str, str], colours: Mapping[str, Any]) -> str:
    """One group as a path, with its name and leader for who points at it. Neighbours differ a little in shade."""
    leader = leaders.get(name, "")
    path = "".join(f"M{slot % WIDTH} {slot // WIDTH * 2}h{count}v1.8h-{count}z" for slot, count in runs)
    held = sum(count for _, count in runs)
    led = f"led by {leader}" if leader else "nobody leads it"
    shade = 1 if int(name.rpartition("-")[2]) % 2 == 0 else 0.72
    return (
        f'<path d="{path}" fill="{colours.get(leader, NOBODY)}" fill-opacity="{shade}">'
        f"<title>{html.escape(f'{name}: {held} slots, {led}')}</title></path>"
    )
