"""One request to each group that holds slots, for all that it holds: what is about records of no single slot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from metad_wire.cluster import SLOTS, GroupId
from metad_wire.messages import Message, TenantEnd
from metad_wire.methods import Method

from ..dispatch.calls.call import Call
from ..errors import StaleRouteError
from .requests import Requests

_ALL = (1 << SLOTS) - 1
Reply = TypeVar("Reply", bound=Message)


async def everywhere(
    requests: Requests,
    method: Method[Any, Reply],
    body_of: Callable[[bytes], Message],
    deadline_s: float | None,
) -> list[tuple[str, bytes, Reply]]:
    """The groups that were asked, the slots for which, and their replies, until all slots of all kinds have answered
    that the method is about. ``body_of`` makes the body of a bit map of slots. Slots that have moved meanwhile are
    asked of whoever holds them then. ``deadline_s`` is that of each round."""
    left: dict[str, int] = defaultdict(lambda: _ALL)
    answered: list[tuple[str, bytes, Reply]] = []
    while True:
        calls: list[tuple[str, int, Call]] = []
        moved = False
        try:
            for group, bits in (await requests.slots(method, deadline_s)).items():
                slots = int.from_bytes(bits, "big") & left[_kind_of(group)]
                if slots:
                    body = body_of(slots.to_bytes(SLOTS // 8, "big"))
                    calls.append((group, slots, requests.begin(method, body, deadline_s, group)))
            while calls:
                group, slots, call = calls[0]
                try:
                    answered.append((group, slots.to_bytes(SLOTS // 8, "big"), await requests.reply(call)))
                    left[_kind_of(group)] &= ~slots
                except StaleRouteError:
                    if not call.moved:
                        raise
                    moved = True
                calls.pop(0)
        finally:
            for _, _, call in calls:
                requests.abandon(call)
        if not any(left.values()):
            return answered
        if not moved:
            raise StaleRouteError


def _kind_of(group: str) -> str:
    known = GroupId.parse(group)
    return "" if known is None else known.kind


def in_order(pieces: Iterable[tuple[str, bytes, Any]]) -> list[TenantEnd]:
    """The orders to end tenants in such replies, in the order of their tenants."""
    found = {(end.tenant, number, group): end for group, _, reply in pieces for number, end in enumerate(reply.endings)}
    return [found[key] for key in sorted(found)]
