"""What of a request an identity is bound to: all that a retry repeats, and nothing that it does not."""

from __future__ import annotations

import pytest

from metad.node.requests.requests import digest_of
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.methods import Method

BODY = m.KvPut([m.KvPutItem("n", "k", b"v")])


def digest(payload: bytes, method: Method[m.KvPut, m.KvPutReply] = methods.KV_PUT) -> int:
    return digest_of(method, method.decode_request(payload), payload)


def encoded(body: m.KvPut = BODY, deadline_ms: int = 5, low: int = 1, age_ms: int = 0, group: str = "data-0") -> bytes:
    return methods.KV_PUT.encode_request(body, deadline_ms, m.Identity(2**64 - 1, 7, low, age_ms), group)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1])
def test_every_attempt_of_a_request_has_the_same(number: int) -> None:
    first = digest(encoded())
    assert first
    assert digest(encoded(deadline_ms=number)) == first
    assert digest(encoded(low=number, age_ms=number << 31)) == first


def test_another_request_has_another() -> None:
    other = m.KvPut([m.KvPutItem("n", "l", b"v")])
    found = {digest(encoded()), digest(encoded(other)), digest(encoded(group="data-1"))}
    found.add(digest(encoded(m.KvPut([*BODY.items, *BODY.items]))))
    delete = methods.KV_DELETE.encode_request(m.KvDelete([m.KvDeleteItem("n", "k")]), 5, m.Identity(1, 7, 1))
    found.add(digest_of(methods.KV_DELETE, methods.KV_DELETE.decode_request(delete), delete))
    assert len(found) == 5


def test_another_method_with_the_same_bytes_has_another() -> None:
    body = m.SessionDisconnect("b", 1, [m.SessionDisconnectItem("t", "c")])
    payload = methods.SESSION_DISCONNECT.encode_request(body, 5, m.Identity(1, 7, 1))
    request = methods.SESSION_DISCONNECT.decode_request(payload)
    assert digest_of(methods.SESSION_DISCONNECT, request, payload) != digest_of(
        methods.SESSION_UPDATE, request, payload
    )


def test_integers_may_be_wider_than_they_need() -> None:
    payload = encoded(deadline_ms=5)
    assert payload[1] == 5
    assert digest(payload[:1] + b"\xcf" + (5).to_bytes(8, "big") + payload[2:]) == digest(payload)


def test_an_identity_that_a_newer_client_has_extended_is_bound_as_well() -> None:
    """What follows the fields we know may be anything."""
    request = methods.KV_PUT.decode_request(encoded())
    extended = methods.encode([5, [1, 7, 1, 0, {"new": [1]}], BODY, "data-0"])
    assert methods.KV_PUT.decode_request(extended).body == BODY
    assert digest(extended) == digest_of(methods.KV_PUT, request, None)
    other = methods.encode([5, [1, 7, 1, 0, {"new": [1]}], m.KvPut([]), "data-0"])
    assert digest(other) != digest(extended)


def test_a_request_from_inside_the_process_is_bound_too() -> None:
    request = m.Request(5, m.Identity(1, 7, 1), BODY)
    assert digest_of(methods.KV_PUT, request, None) == digest_of(methods.KV_PUT, request, None) != 0
