"""A storm's first attempts as rows, made and sorted by the task that writes them: a part for each load generator.

Only first attempts: a replay is a closed loop, in which retries follow the cluster's answers. A generator plays whole
brokers, because clients of one broker share its batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..calibration import Calibration
from ..errors import UsageError
from ..models.node_input import NodeInput, node_inputs, transport_name
from ..models.population import broker_bases, firsts_us, kinds_of
from ..scenario import Scenario

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "t_ns long, client_id long, group int, region string, transport string, policy string, batch_hint int"
ROWS_MAX = 25_000_000
"""Rows of one generator: they are sorted in memory, at some 60 bytes each."""
_BATCH_ROWS = 65_536
Ints = npt.NDArray[np.int64]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule of one load generator."""

    generator: int
    generators: int
    seed: int
    inputs: tuple[bytes, ...]
    """All nodes, encoded."""


def parts(scenario: Scenario, calibration: Calibration, *, seed: int, generators: int) -> list[Part]:
    """The part of each generator. Raises UsageError if that is more than one can sort."""
    rows = scenario.clients / generators
    if rows > ROWS_MAX:
        wanted = -(-scenario.clients // ROWS_MAX)
        raise UsageError(
            f"{scenario.clients:,} clients are too many for {generators} generators; take {wanted}, or a lower --scale"
        )
    if generators > scenario.brokers.count:
        raise UsageError(f"--generators must be at most the scenario's brokers, {scenario.brokers.count}")
    inputs = tuple(node_input.encode() for node_input in node_inputs(scenario, calibration))
    return [
        Part(generator=generator, generators=generators, seed=seed, inputs=inputs) for generator in range(generators)
    ]


def rows(part: Part) -> dict[str, Any]:
    """The part's rows as columns, sorted by time and client: ``t_ns, client_id, group`` as numbers, ``kind`` as an
    index into ``names`` (region, transport, policy), and ``batch_hint``: the number of clients that its broker has for
    the group within the same linger."""
    found: list[tuple[Ints, ...]] = []
    names: list[tuple[str, str, str]] = []
    first_group = 0
    linger_us = items_max = 1
    for data in part.inputs:
        node_input = NodeInput.decode(data)
        kind = kinds_of(node_input)
        number = np.arange(node_input.clients, dtype=np.int64)
        bases = broker_bases(node_input)
        region_of = np.array([each.region for each in node_input.kinds], dtype=np.int64)[kind]
        place = number // node_input.groups % np.array(node_input.brokers, dtype=np.int64)[region_of]
        broker = np.array(bases, dtype=np.int64)[region_of] + place
        mine = broker % part.generators == part.generator
        times = firsts_us(node_input, part.seed)[mine]
        number, broker = number[mine], broker[mine]
        found.append(
            (
                times,
                number + node_input.first_client,
                number % node_input.groups + first_group,
                kind[mine].astype(np.int64) + len(names),
                broker,
            )
        )
        names += [
            (node_input.regions[each.region], transport_name(each.transport), node_input.sdks[each.sdk])
            for each in node_input.kinds
        ]
        first_group += node_input.groups
        linger_us, items_max = max(1, node_input.window.linger_us), node_input.window.items_max
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    times, client, group, kinds, brokers = (column[order] for column in columns)
    together = (times // linger_us * (int(brokers.max(initial=0)) + 1) + brokers) * first_group + group
    _, inverse, counts = np.unique(together, return_inverse=True, return_counts=True)
    hint = np.minimum(counts, items_max)[inverse]
    return {
        "t_ns": times * 1000,
        "client_id": client,
        "group": group,
        "kind": kinds,
        "names": names,
        "batch_hint": hint,
    }


def batches(part: Part) -> Iterator[pa.RecordBatch]:
    """:func:`rows` as Arrow, by :data:`SCHEMA`."""
    import pyarrow as pa

    columns = rows(part)
    words: Sequence[Any] = [pa.array(column) for column in zip(*columns["names"], strict=True)]
    for at in range(0, len(columns["t_ns"]), _BATCH_ROWS):
        here = slice(at, at + _BATCH_ROWS)
        kind = pa.array(columns["kind"][here])
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(columns["t_ns"][here], pa.int64()),
                pa.array(columns["client_id"][here], pa.int64()),
                pa.array(columns["group"][here].astype(np.int32), pa.int32()),
                *(column.take(kind) for column in words),
                pa.array(columns["batch_hint"][here].astype(np.int32), pa.int32()),
            ],
            names=["t_ns", "client_id", "group", "region", "transport", "policy", "batch_hint"],
        )
