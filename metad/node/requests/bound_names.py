"""Whose name a client may speak in. Until there are permissions, a broker's certificate binds its name.

The holder of ``metad://broker/NAME`` speaks for that broker only. And once it has registered the name, nobody without
that certificate speaks for it: neither registers it, nor keeps it alive, nor ends it, nor writes in its name, whatever
the epoch. Names that were registered in another way are as free as they were. Where nobody is checked, nothing is
bound.

A node looks at its own copy of metadata-0, which may be a moment behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metad_wire import messages as m
from metad_wire.cluster import METADATA
from metad_wire.errors import PermissionDeniedError
from metad_wire.methods import BROKER_HEARTBEAT, BROKER_REGISTER, METHODS, For, Method
from metad_wire.transport.credentials import Principal, Role

from ...control.host import Hosted
from ...state.cluster.brokers import registered_by
from ...state.machine import Machine

_NAMING = {BROKER_REGISTER.code} | {
    method.code
    for method in METHODS.values()
    if method.whose is For.CLIENTS and {"broker", "broker_epoch"} <= set(method.body.__struct_fields__)
}
"""Methods whose body names the life of a broker that asks."""
_KNOWN_MAX = 4_096


class BoundNames:
    """Of one node."""

    def __init__(self, groups: Hosted) -> None:
        self._groups = groups
        self._known: dict[str, str] = {}  # broker -> the certificate that it is bound to; empty: none
        self._at: tuple[Machine | None, int] = None, 0  # the state in which that is so

    def check(self, method: Method[Any, Any], request: m.Request[Any], principal: Principal) -> None:
        """Raise PermissionDeniedError where a request names a broker for which this client may not speak."""
        for broker in _named(method, request):
            if principal.role is Role.BROKER and principal.name != broker:
                raise PermissionDeniedError(f"{principal.uri} speaks for no other broker: not for {broker[:256]!r}")
            bound = self._bound(broker)
            if bound and bound != principal.uri:
                raise PermissionDeniedError(
                    f"broker {broker!r} is bound to the certificate {bound}: {principal.uri} may not speak for it"
                )

    def _bound(self, broker: str) -> str:
        machine = self._groups.drivers[METADATA].machine
        at = machine, machine.applied
        if at != self._at or len(self._known) >= _KNOWN_MAX:
            self._known, self._at = {}, at
        bound = self._known.get(broker)
        if bound is None:
            holder = registered_by(machine.reader.engine, broker)
            bound = self._known[broker] = holder if holder.startswith(f"metad://{Role.BROKER.value}/") else ""
        return bound


def _named(method: Method[Any, Any], request: m.Request[Any]) -> Iterable[str]:
    if request.life is not None:
        yield request.life.broker
    if method.code in _NAMING:
        if request.body.broker or method is BROKER_REGISTER:
            yield request.body.broker
    elif method is BROKER_HEARTBEAT:
        yield from dict.fromkeys(beat.broker for beat in request.body.beats)
