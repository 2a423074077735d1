"""Which groups of a cluster have what is to be read. Needs no Spark."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import msgspec

from metad_client import Client, ClusterMap, GroupId, MapReply, MetadError, connect
from metad_wire.cluster import SLOTS, slot_bits, slots_in

from .errors import ClusterError
from .options import Settings
from .shapes import Shape

MAP_RETRY_S: Final = 0.1
"""How long to wait for a map that says where slots have gone."""


class Share(msgspec.Struct, frozen=True):
    """What one task reads: slots of one group. ``least``: of a stream, where it begins in the groups' logs; what has
    changed since follows in the stream."""

    kind: str
    ordinal: int
    slots: bytes
    least: dict[str, int] = {}

    @property
    def group(self) -> GroupId:
        """The group that held them when the shares were made."""
        return GroupId(self.kind, self.ordinal)


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Client]:
    """A client of the cluster. Raises ClusterError for everything that goes wrong within."""
    try:
        async with connect(settings.source, settings.client_options()) as client:
            yield client
    except MetadError as error:
        raise ClusterError(f"{settings.source}: {error}") from None
    except TimeoutError:
        waited = f"no node has said within {settings.timeout_s:.3g} s which groups there are"
        raise ClusterError(f"{settings.source}: {waited}") from None


def declaration_of(settings: Settings) -> bytes:
    """What the cluster says of a table that a program has declared; empty if there is none of the name."""

    async def asked() -> bytes:
        async with opened(settings) as client:
            found = await client.tables.get(settings.table, deadline_s=settings.timeout_s)
            return b"" if found is None else msgspec.msgpack.encode(found)

    return asyncio.run(asked())


async def shares(client: Client, settings: Settings, shape: Shape) -> list[Share]:
    """The shares of a table: every slot that is wanted in one of them."""
    reply = await map_of(client, settings)
    if not shape.slotted:
        return [Share(shape.table.kind, 0, slot_bits(range(SLOTS)))]
    found: list[Share] = []
    for group, slots in reply.holders(shape.table.kind).items():
        wanted = [slot for slot in slots if settings.slots is None or slot in settings.slots]
        for part in ranges_of(wanted, settings.slot_ranges):
            found.append(Share(group.kind, group.ordinal, slot_bits(part)))
    return found


def ranges_of(slots: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """The slots in so many parts of about the same size, or in one for each slot if there are fewer."""
    count = min(most, len(slots))
    ends = [len(slots) * number // count for number in range(count + 1)] if count else []
    for begin, end in itertools.pairwise(ends):
        yield slots[begin:end]


async def moved(client: Client, settings: Settings, share: Share, slots: set[int]) -> dict[GroupId, list[int]]:
    """Where slots are now that their group does not hold any more."""
    await asyncio.sleep(MAP_RETRY_S)
    known = await map_of(client, settings)
    return {group: mine for group, held in known.holders(share.kind).items() if (mine := sorted(slots & {*held}))}


def slots_of(share: Share) -> set[int]:
    """As a set."""
    return set(slots_in(share.slots))


async def map_of(client: Client, settings: Settings) -> ClusterMap:
    """The cluster map, once there is one."""
    async with asyncio.timeout(settings.timeout_s):
        while True:
            reply: MapReply = await client.cluster.map()
            if reply.map is not None:
                return reply.map
            await asyncio.sleep(MAP_RETRY_S)
