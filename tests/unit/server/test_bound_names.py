"""Whose name a client may speak in: a broker's certificate binds it, in every request that names a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import inspect
from server_rig import Answer, Rig

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import PermissionDeniedError
from metad_wire.methods import Method
from metad_wire.tables import broker as b
from metad_wire.transport.credentials import Principal, Role


class Line:
    """The connection of a client whose certificate names it."""

    host = "10.0.0.7"

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.holder = principal.uri


B1, B2, APP = (
    Line(Principal(Role.BROKER, "b1")),
    Line(Principal(Role.BROKER, "b2")),
    Line(Principal(Role.CLIENT, "app")),
)


def naming(method: Method[Any, Any], broker: str) -> Any:
    """A body of this method that names a broker."""
    if method is methods.BROKER_REGISTER:
        return b.BrokerRegister(broker)
    if method is methods.BROKER_HEARTBEAT:
        return b.BrokerHeartbeat([b.BrokerBeat(broker, 2**62)])
    kind = inspect.type_info(method.body)
    assert isinstance(kind, inspect.StructType)
    made = {"broker": broker, "broker_epoch": 2**62}
    empty = {inspect.ListType: [], inspect.StrType: "", inspect.IntType: 500}
    required = {each.name: empty.get(type(each.type), 500) for each in kind.fields if each.required}
    return method.body(**(required | made))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.open()
    yield rig
    rig.node.will_turns.drain()
    await rig.close()


NAMING = [
    method
    for method in methods.METHODS.values()
    if method.whose is methods.For.CLIENTS
    and (
        {"broker", "broker_epoch"} <= set(method.body.__struct_fields__)
        or method in (methods.BROKER_REGISTER, methods.BROKER_HEARTBEAT)
    )
]


async def ask(rig: Rig, line: Line, method: Method[Any, Any], body: Any, life: m.Owner | None = None) -> Answer:
    answer = Answer()
    kind = "offset" if method.name.startswith(("offset", "consumer")) else "data"
    payload = method.encode_request(body, 0, None, f"{kind}-0" if method.by is methods.By.GROUP else "", life=life)
    rig.node.requests.submit(method.code, payload, answer, source=line)
    return await rig.answered(answer)


@pytest.mark.parametrize("method", NAMING, ids=lambda method: method.name)
async def test_a_brokers_certificate_binds_its_name(rig: Rig, method: Method[Any, Any]) -> None:
    (await ask(rig, B1, methods.BROKER_REGISTER, b.BrokerRegister("b1"))).reply(methods.BROKER_REGISTER)
    for line, name in ((B2, "b1"), (APP, "b1"), (B1, "b2")):
        answer = await ask(rig, line, method, naming(method, name))
        assert isinstance(answer.error, PermissionDeniedError), (line.principal, name)
    for line, name in ((B1, "b1"), (APP, "free")):
        answer = await ask(rig, line, method, naming(method, name))
        assert not any(isinstance(result, PermissionDeniedError) for result in answer.results), (line.principal, name)


async def test_a_write_in_the_name_of_a_life_is_bound_too(rig: Rig) -> None:
    await ask(rig, B1, methods.BROKER_REGISTER, b.BrokerRegister("b1"))
    body, life = m.KvPut([m.KvPutItem("n", "k", b"v")]), m.Owner("b1", 2**62)
    (await ask(rig, B1, methods.KV_PUT, body, life)).reply(methods.KV_PUT)
    assert isinstance((await ask(rig, APP, methods.KV_PUT, body, life)).error, PermissionDeniedError)
    (await ask(rig, APP, methods.KV_PUT, body, m.Owner("free", 2**62))).reply(methods.KV_PUT)
