"""What a cluster takes of its machines: memory and disk of a node, replicas, slots.

Memory is bounded by configuration, not by the number of sessions, so it is a sum of budgets. The bytes of sessions,
subscriptions and groups are measured: see "Sizes" in docs/BENCHMARKS.md, and ``tests/spark/session_sizes.py``.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from metad_wire.cluster import SLOTS

from .scenario import Scenario

MIB = 1024 * 1024
REPLICAS = 3
"""``cluster.replicas``."""
SESSION_BYTES = 140
"""On disk, of a session without its payload."""
PAYLOAD_BYTES = 320
"""On disk, of a payload of 200 bytes that cannot be compressed: 1.6 times its size. Of a session with subscriptions it
is there twice: the row that counts them has a copy."""
SUBSCRIPTION_BYTES = 160
"""On disk, of a filter of 30 bytes: 110 once files are merged, 300 before."""
COMPACTION_FACTOR = 2.0
"""Disk that the store needs while it merges files, over what its data takes."""
PROCESS_BYTES = 68 * MIB
"""Memory of a node without sessions."""
GROUP_BYTES = 64 * 1024
"""Memory of a replica of a group, beside its cached log."""
CONNECTION_BYTES = 64 * 1024
"""Memory of an idle connection: 20 KB over QUIC, with TLS somewhat more."""
ITEM_BYTES = 256
"""What the server counts for an item in flight, beside its bytes on the wire."""
WIRE_BYTES = 100
"""Of an item in a request: a tenant, a client's name, and what is restored."""
OWNER_BYTES = 8
"""``storage.owner_cache_bytes`` of one session."""
# Budgets of metad's configuration, by its defaults; the tests compare them with metad's own.
BLOCK_CACHE_BYTES = 192 * MIB
MEMTABLE_BYTES = 272 * MIB
OWNER_CACHE_BYTES = 128 * MIB
ROW_CACHE_BYTES = 96 * MIB
LOG_RETAINED_BYTES = 96 * MIB
WATCH_RETAINED_BYTES = 256 * MIB
LOG_CACHE_BYTES = 8 * MIB
IN_FLIGHT_BYTES = 128 * MIB
UNFINISHED_BYTES = 24 * MIB
UNSENT_BYTES = 24 * MIB
CONNECTIONS_MAX = 4_096


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Of the node that has most. Bytes."""

    replicas_per_node: int
    """Replicas of groups that a node has, led or followed."""
    slots_per_group: tuple[int, int]
    """Fewest and most."""
    sessions_per_node: int
    """Sessions that a node stores, led or followed."""
    memory_bytes: int
    """A bound: every budget used up."""
    disk_bytes: int
    """Room to plan for: data, logs, and what merging them needs for a while."""
    in_flight_bytes: int
    """Of requests that wait when every queue is full."""
    owner_cache_bytes: int
    """A cache that knows the owner of every session of the node."""
    connections: int
    """Of brokers."""


def footprint(scenario: Scenario) -> Footprint:
    """What a node of this cluster takes."""
    cluster = scenario.cluster
    few, more = divmod(SLOTS, cluster.groups)
    slots_most = few + (more > 0)
    replicas = -(-cluster.groups * min(REPLICAS, cluster.nodes) // cluster.nodes)
    sessions = -(-scenario.clients * replicas * slots_most // SLOTS)
    led = -(-cluster.groups // cluster.nodes)
    queue = cluster.queue_items or -(-scenario.clients // cluster.groups)
    waiting = led * max(queue, cluster.batch_items)
    in_flight = max(IN_FLIGHT_BYTES, waiting * (WIRE_BYTES + ITEM_BYTES))
    owners = max(OWNER_CACHE_BYTES, sessions * OWNER_BYTES)
    connections = scenario.brokers.count
    memory = (
        PROCESS_BYTES
        + BLOCK_CACHE_BYTES
        + MEMTABLE_BYTES
        + ROW_CACHE_BYTES
        + owners
        + in_flight
        + UNFINISHED_BYTES
        + UNSENT_BYTES
        + replicas * (GROUP_BYTES + LOG_CACHE_BYTES)
        + connections * CONNECTION_BYTES
    )
    subscriptions = scenario.sessions.subscriptions
    payloads = PAYLOAD_BYTES * (2 if subscriptions else 1)
    session = SESSION_BYTES + payloads + subscriptions * SUBSCRIPTION_BYTES
    logs = LOG_RETAINED_BYTES + replicas * WATCH_RETAINED_BYTES
    return Footprint(
        replicas_per_node=replicas,
        slots_per_group=(few, slots_most),
        sessions_per_node=sessions,
        memory_bytes=memory,
        disk_bytes=round(COMPACTION_FACTOR * session * sessions) + logs,
        in_flight_bytes=in_flight,
        owner_cache_bytes=owners,
        connections=connections,
    )
