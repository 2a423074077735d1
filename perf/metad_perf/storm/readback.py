"""Reads sessions back through a fresh connection, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence

from metad_client import Client
from metad_wire.messages import Owner, SessionKey

from .judge import Found, Judge
from .population import Clients, Kind, client_id


async def read_back(
    client: Client,
    clients: Clients,
    judge: Judge,
    described: Sequence[tuple[int, Kind]],
    ends: Sequence[bool],
    owners: Sequence[Sequence[Owner]],
) -> None:
    """Up to 1,000 clients: what is stored must be what was stored. ``ends``: their sessions must be gone. ``owners``:
    the lives that may own each."""
    keys = [SessionKey(kind.tenant, client_id(number)) for number, kind in described]
    sessions = await client.sessions.get_many(keys)
    sessions.raise_for_error()
    filters = await client.subscriptions.get_many(keys)
    filters.raise_for_error()
    waiting = await client.inflight.get_many(keys)
    waiting.raise_for_error()
    found: list[Found] = []
    stored: list[object] = []
    for (number, kind), session, some, states in zip(described, sessions, filters, waiting, strict=True):
        stored.append(clients.stored(number, kind))
        if session is None:
            found.append(Found(None, None))
        else:
            owner = Owner(session.broker, session.broker_epoch)
            found.append(Found(owner, (session.properties, list(some or ()), list(states or ()))))
    stay = [at for at, gone in enumerate(ends) if not gone]
    judge.batch(
        [described[at][0] for at in stay],
        [owners[at] for at in stay],
        [stored[at] for at in stay],
        [found[at] for at in stay],
        "at the end",
    )
    for at, gone in enumerate(ends):
        if gone and found[at].owner is not None:
            judge.not_ended(described[at][0])
