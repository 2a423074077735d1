"""Whatever bounds what clients share is a :class:`FairRoom`, or stands here with the one thing that it bounds.

A bound that many share and that is no such room is filled by the first who tries, and everybody else is refused. So a
new limit fails this test until somebody has decided which of the two it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import metad
import metad_wire
from metad.config import LimitsConfig

METAD, WIRE = Path(metad.__file__).parent, Path(metad_wire.__file__).parent
PLACES = [METAD / name for name in ("node", "server", "control", "state", "watch")] + [WIRE / "policy"]

OF_ONE: dict[str, str] = {
    "a request, an entry, a reply or a page": (
        "ATTRIBUTES_BYTES_MAX AT_LEAST_EPOCH_MAX CARRIED_BYTES_MAX ENDED_BYTES_MAX ENTRY_BYTES_MAX "
        "LOOKED_AT_BYTES_MAX PAGE_BYTES_MAX PREVIOUS_BYTES_MAX READ_ROWS_MAX REPLY_BYTES_MAX REVOKED_KEYS_MAX "
        "SCAN_ROWS_MAX TEXT_BYTES_MAX _DELETED_MAX _LOOKS_MAX _NAMED_MAX _PAGE_BYTES_MAX _READ_BYTES_MAX "
        "_COUNTED_MAX _LOADS_MAX _SCAN_BYTES_MAX _SPENT_MAX _WAITING_BYTES_MAX@state.wills _WAIT_MS_MAX frame_bytes_max"
    ),
    "a connection": ("_CREDIT_MAX _NAME_CHARACTERS_MAX _STALLED_BYTES_MAX connection_watch_streams_max"),
    "a broker's name": ("LEASE_MS_MAX _ASKED_MAX"),
    "a file of keys, which no client fills": ("FILE_BYTES_MAX KEYS_MAX"),
    "a JWT": ("TIME_MAX"),
    "a session": ("COPY_BYTES_MAX PARTS_MAX"),
    "a group's own work, in one go or on its way": (
        "INLINE_MAX LAG_ENTRIES_MAX LOOKED_AT_MAX STEPS_MAX _BYTES_MAX _DRAINS_MAX _FOREIGN_MAX _MISSED_MAX "
        "_ORDERED_MAX _OVER_MAX _PIPELINE_BYTES_MAX _PIPELINE_ITEMS_MAX _QUEUE_ITEMS_MAX _TAILS_MAX _TOLD_MAX"
    ),
    "peers and the cluster's map, which no client fills": (
        "AT_ONCE_MAX DIALS_MAX GREETING_MAX GROUPS_MAX MAP_BYTES_MAX NODE_ID_BYTES_MAX ORDINALS_MAX PER_NODE_MAX "
        "STORE_ID_BYTES_MAX VOTERS_MAX _UNSENT_BYTES_MAX"
    ),
    "an administrator's orders, one after the other": "WAITING_MAX@control.controller _WAITING_MAX@node.settings",
    "what is forgotten, and found again or done without": (
        "CLIENTS_MAX PROMISES_MAX RETRY_DELAY_S_MAX _DOUBLINGS_MAX _KNOWN_MAX _NOTED_MAX _OWING_MAX _ROWS_MAX "
        "_SOURCES_MAX _SPARE_MAX _TABLES_MAX"
    ),
    "what a stream holds before it reads the log instead": ("watch_held_bytes_max"),
    "lengths of prefixes that one group looks for": ("LENGTHS_MAX"),
    "what is measured and not taken: who does not go on for a moment is cut off": (
        "_UNFINISHED_S_MAX unfinished_bytes_max unsent_bytes_max"
    ),
    "one room's own work": ("_TAKEN_BACK_MAX"),
    "who may read everything: what nobody reads makes room after a minute": ("KEPT_MAX"),
}
"""What each bound that is no room is a bound of."""


def trees(word: str) -> Iterator[tuple[str, ast.Module]]:
    """The modules in which a word occurs."""
    for place in PLACES:
        for path in sorted(place.rglob("*.py")):
            base = METAD if path.is_relative_to(METAD) else WIRE
            if word in (text := path.read_text()):
                yield ".".join(path.relative_to(base).with_suffix("").parts), ast.parse(text)


def declared() -> dict[str, set[str]]:
    """Every constant that ends in MAX, and every such limit of the configuration: by name, where it stands."""
    found: dict[str, set[str]] = {name: {"config"} for name in LimitsConfig.__struct_fields__ if name.endswith("_max")}
    for module, tree in trees("_MAX"):
        for node in tree.body:
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for name in names:
                    if isinstance(name, ast.Name) and name.id.endswith("_MAX"):
                        found.setdefault(name.id, set()).add(module)
    return found


def calls(name: str) -> list[ast.Call]:
    return [
        node
        for _, tree in trees(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def bounds_of_rooms() -> set[str]:
    """By how they are called where a room is made, or the budget that is one."""
    sizes = [call.args[1] for call in calls("FairRoom")] + [call.args[0] for call in calls("InFlightBudget")]
    return {size.id if isinstance(size, ast.Name) else getattr(size, "attr", "?") for size in sizes}


def test_a_bound_that_clients_share_is_a_fair_room() -> None:
    of_one = {name for names in OF_ONE.values() for name in names.split()}
    rooms = bounds_of_rooms()
    unknown = {
        f"{name} ({module})"
        for name, modules in declared().items()
        for module in modules
        if not {name, f"{name}@{module}"} & of_one and name not in rooms
    }
    assert not unknown, "a room that clients share belongs to FairRoom; any other bound into OF_ONE"


def test_what_stands_here_is_there() -> None:
    found = declared()
    names = {name.partition("@")[0] for names in OF_ONE.values() for name in names.split()}
    assert names <= found.keys()


def test_every_room_says_what_it_is_for_and_when_it_is_free_again_and_the_page_does() -> None:
    section = (Path(metad_wire.__file__).parents[1] / "INTERNAL.md").read_text()
    section = re.search(r"### Shared room\n(.*?)\n### ", section, re.DOTALL)[1]  # type: ignore[index]
    for call in calls("FairRoom"):
        what, ends = call.args[0], call.keywords[0].value
        assert isinstance(what, ast.Constant)
        assert isinstance(ends, ast.Constant | ast.JoinedStr)
        assert f"| {what.value} |" in section, what.value
