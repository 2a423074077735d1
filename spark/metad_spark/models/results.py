"""The results of one node, small and additive, and of a whole storm.

A :class:`NodeResult` is what a task sends back: counts, histograms and waves, whatever the number of clients.
:func:`merge` adds them up to the :class:`StormResult` for the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import SimulationError
from ..scenario import Disconnect
from .collapse import collapsed, keepalive_s
from .histogram import BINS, bin_of, quantile_s

Array = npt.NDArray[np.float64]
_DISCONNECT = Disconnect()


class NodeResult(msgspec.Struct, kw_only=True):
    """One node's part of a storm. Counts are floats, and whole."""

    node: int
    copies: float = 1.0
    clients: float
    restored: float
    attempts: float
    rejected: float
    """Refusals: by a full queue, or while nobody leads."""
    unheard: float
    """Refusals of items whose clients had given up."""
    timeouts: float
    """Attempts that their client gave up."""
    left: float
    """Of the timeouts, those of clients that waited at a broker's door."""
    wasted: float
    """Items served for clients that had given up."""
    queue_max: float
    """Most items that waited for one group."""
    own_s_sum: float
    """Over restored clients, the summed times from the first attempt to CONNACK."""
    storm: Array
    """Histogram of times from the storm's begin to CONNACK."""
    own: Array
    """Histogram of times from a client's first attempt to its CONNACK."""
    restored_by_s: Array
    """(region, second): CONNACKs."""
    attempts_by_s: Array
    """(region, second): attempts begun."""
    rejected_by_s: Array
    """(second)."""
    served_by_s: Array
    """(second): items, those in vain included."""
    restored_fine: Array
    """(region, point): CONNACKs of the first seconds."""
    attempts_fine: Array
    served_fine: Array
    """(point)."""
    queue_by_s: Array
    """(second): most items that waited for one group."""
    capacity_by_s: Array
    """(second): items that could have been served."""
    passed_by_s: Array
    """(region, second): clients that brokers let through, where they keep clients waiting."""
    kept_max_s: float
    """The longest that a broker kept a client waiting that it let through."""
    held_s: Array
    """(point): over items admitted then, the summed seconds between arrival at the leader and answer."""
    held: Array
    """(point): the number of these items."""
    wave_s: float

    def encode(self) -> bytes:
        """The bytes to send back."""
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> NodeResult:
        """The inverse of :meth:`encode`. Raises msgspec.DecodeError."""
        return _DECODER.decode(data)


def _pack(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.shape, value.astype("<f8").tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"no encoding of {type(value)}")


def _unpack(kind: Any, value: Any) -> Any:
    shape, data = value
    return np.frombuffer(data, dtype="<f8").reshape(shape).copy()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack)
_DECODER = msgspec.msgpack.Decoder(NodeResult, dec_hook=_unpack)


class StormResult(msgspec.Struct, kw_only=True):
    """A whole storm. ``t*_s``: time from the storm's begin until that share of *all* clients was back; None if it was
    not by the horizon. ``p*_s``: quantiles of the restored clients' waits, each from its own first attempt."""

    clients: int
    restored: int
    t50_s: float | None
    t99_s: float | None
    t999_s: float | None
    p50_s: float | None
    p99_s: float | None
    p999_s: float | None
    attempts_per_client: float
    rejected: int
    queue_max: int | None
    """None, as ``wasted`` and ``expired``: the model of requests does not count it."""
    collapsed: bool
    """As :mod:`.collapse` has it."""
    timeouts: int
    wasted: int | None
    expired: int | None
    """Sessions that expired before their client was back."""
    restored_by_s: list[list[float]]
    """(region, second)."""
    attempts_by_s: list[list[float]]
    rejected_by_s: list[float]
    served_by_s: list[float]
    restored_fine: list[list[float]]
    """(region, point of :data:`metad_spark.models.node_input.FINE_US`): of the first ten seconds."""
    attempts_fine: list[list[float]]
    served_fine: list[float]
    queue_by_s: list[float]
    capacity_by_s: list[float]
    regions: list[str]
    model: str = "vector"


def added(results: Sequence[NodeResult]) -> NodeResult:
    """The sum of results, with ``copies`` multiplied out, and the maximum of maxima. Raises SimulationError if there is
    none, or they are of different storms."""
    if not results:
        raise SimulationError("there is nothing to merge")
    shapes = {(result.restored_by_s.shape, result.held.shape) for result in results}
    if len(shapes) > 1:
        raise SimulationError("results of different storms cannot be merged")
    maxima = {"queue_max", "queue_by_s", "kept_max_s"}
    fixed = {"node", "copies", "wave_s"}
    total: dict[str, Any] = {"node": -1, "wave_s": results[0].wave_s}
    for field in NodeResult.__struct_fields__:
        if field in fixed:
            continue
        values = [getattr(result, field) for result in results]
        if field in maxima:
            total[field] = np.maximum.reduce(values) if isinstance(values[0], np.ndarray) else max(values)
        else:
            first, *rest = (value * result.copies for value, result in zip(values, results, strict=True))
            for value in rest:
                first = first + value
            total[field] = first
    return NodeResult(**total)


def merge(
    results: Sequence[NodeResult],
    regions: Sequence[str],
    expiries: Sequence[tuple[float, float]] = (),
    disconnect: Disconnect = _DISCONNECT,
) -> StormResult:
    """All nodes' results as one. ``expiries``: (share, seconds) of sessions. Raises SimulationError like
    :func:`added`."""
    total = added(results)
    restored, attempts = total.restored_by_s.sum(axis=0), total.attempts_by_s.sum(axis=0)
    expired = 0.0
    for share, expiry_s in expiries:
        reached = float(total.storm[: _bins_until(expiry_s)].sum())
        expired += share * (total.clients - reached)
    times = [quantile_s(total.storm, share, total.clients) for share in (0.5, 0.99, 0.999)]
    waits = [quantile_s(total.own, share, total.restored) for share in (0.5, 0.99, 0.999)]
    return StormResult(
        clients=round(total.clients),
        restored=round(total.restored),
        t50_s=times[0],
        t99_s=times[1],
        t999_s=times[2],
        p50_s=waits[0],
        p99_s=waits[1],
        p999_s=waits[2],
        attempts_per_client=total.attempts / total.clients,
        rejected=round(total.rejected),
        queue_max=round(total.queue_max),
        collapsed=collapsed(total.clients, restored, attempts, keepalive_s(disconnect)),
        timeouts=round(total.timeouts),
        wasted=round(total.wasted),
        expired=round(expired),
        restored_by_s=total.restored_by_s.tolist(),
        attempts_by_s=total.attempts_by_s.tolist(),
        rejected_by_s=total.rejected_by_s.tolist(),
        served_by_s=total.served_by_s.tolist(),
        restored_fine=total.restored_fine.tolist(),
        attempts_fine=total.attempts_fine.tolist(),
        served_fine=total.served_fine.tolist(),
        queue_by_s=total.queue_by_s.tolist(),
        capacity_by_s=total.capacity_by_s.tolist(),
        regions=list(regions),
    )


def _bins_until(time_s: float) -> int:
    return BINS if time_s == float("inf") else int(bin_of(np.array([time_s]))[0]) + 1
