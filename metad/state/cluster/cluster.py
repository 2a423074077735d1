"""The cluster map's only row, in metadata-0. It is replaced as a whole, and only by who has seen the newest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA
from metad_wire.errors import ConflictError
from metad_wire.methods import encode
from metad_wire.tables.cluster import CLUSTER, GROUP

from ...storage import keys
from ...storage.engine import Engine
from ..core import tails
from ..core.entry import decode_record
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.slot_assignment import AssignedSlots, state_key
from ..core.verb import Command, Verb, mismatch, written
from ..core.view import View

_MAP, _STATE = CLUSTER.rows["map"], GROUP.rows["state"]
MAP_KEY = keys.table_prefix(keys.group_prefix(METADATA), _MAP) + b"map"

_SHAPE = (
    tails.fields(c.ClusterMap),
    tails.inner(c.ClusterMap, "nodes", c.NodeRecord, lambda node: node[0]),
    tails.inner(c.ClusterMap, "groups", c.GroupRecord, lambda group: tuple(group[:2])),
    tails.inner(c.ClusterMap, "moves", c.SlotMove, lambda move: move[0]),
)

decode_map = msgspec.msgpack.Decoder(c.ClusterMap).decode
"""The map in a row."""


def read_map(engine: Engine) -> c.ClusterMap | None:
    """The applied map; None before the cluster was formed."""
    stored = engine.get(MAP_KEY)
    return None if stored is None else decode_map(stored)


def logged_map(record: bytes, index: int) -> c.ClusterMap | None:
    """The map that a record of the log of ``metadata-0`` puts in place; None if it puts none. Raises
    DamagedStoreError."""
    entry = decode_record(METADATA.name, index, record)
    stored = next((value for writes in entry if (value := writes.get(MAP_KEY)) is not None), None)
    return None if stored is None else decode_map(stored)


def map_version(view: View) -> int:
    """The version of the map as a command must believe it; 0 before the cluster was formed."""
    stored = view.get(MAP_KEY)
    return 0 if stored is None else decode_map(stored).version


def _evaluate_store(view: View, command: Command[c.StoreMap]) -> m.WriteReply:
    body = command.body
    stored, version = view.get(MAP_KEY), map_version(view)
    if version != body.expected:
        return written(view, [mismatch(0, ConflictError, "the map's version", version)])
    if stored is None and (formed := body.map.group(METADATA)) is not None and formed.initial_slots:
        # The group was there before it was decided which slots it is made with, and had all until now.
        view.writes_of(_STATE)[state_key(view.group)] = encode(AssignedSlots(formed.initial_slots))
    replaced = encode(body.map)
    view.writes_of(_MAP)[MAP_KEY] = replaced if stored is None else tails.keep(stored, replaced, *_SHAPE)
    return written(view, [])


class MapChanges(StatePart):
    """Tells its listener that an applied entry has changed the map."""

    rows = (_MAP,)

    def __init__(self, context: PartContext) -> None:
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call it after every change, once the engine has the new map."""
        self._listeners.append(listener)

    def stage(self, index: int, origin: Origin, writes: Writes) -> bool:
        return True

    def applied(self) -> None:
        for listener in tuple(self._listeners):
            listener()


VERBS = (Verb(methods.CLUSTER_STORE, CLUSTER, evaluate=_evaluate_store, origin=Origin.CONTROLLER, grows=False),)
