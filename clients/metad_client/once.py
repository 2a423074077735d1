"""Writes that another process may repeat: their identities are named by the program, and not drawn by the client.

A program that is started again after a crash does not know which of its writes were done. If it can say of each which
one it is, it sends all of them again, the same requests with the same identities, and each is done once.
wire/PROTOCOL.md, "Doing a write once", has the rules: a series of numbers for each group, and a request never changes.
"""

from __future__ import annotations

from typing import TypeVar

from metad_wire.messages import Message
from metad_wire.method import Method
from metad_wire.text.fields import U63, U64

from .client import Client
from .dispatch.calls.call import GivenIdentity
from .requests.wrong import argument

Body = TypeVar("Body", bound=Message)
Reply = TypeVar("Reply", bound=Message)


async def write_once(
    client: Client,
    method: Method[Body, Reply],
    body: Body,
    group: str,
    *,
    client_id: int,
    seq: int,
    low: int,
    age_ms: int = 0,
    version: int | None = None,
    deadline_s: float | None = None,
) -> Reply:
    """The reply of a write to one group; of a repeated one, the reply of the first. ``age_ms``: for how long it may
    have been tried before; 0: never. ``version``: of the map that named the group; None: the newest one. Raises
    StaleRouteError with nothing done, now or before, if the group does not hold all items; IdentityExpiredError if the
    group cannot tell whether it was done; InvalidRequestError."""
    argument("group", group, str)
    argument("client_id", client_id, U64)
    for name, number in (("seq", seq), ("low", low), ("age_ms", age_ms)):
        argument(name, number, U63)
    if version is not None:
        argument("version", version, U63)
    identity = GivenIdentity(client_id, seq, low, age_ms)
    return await client._requests.given(method, body, group, identity, deadline_s, version)
