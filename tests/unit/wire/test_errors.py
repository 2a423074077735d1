"""The error table: one code, one class, and nothing lost between an exception and its wire form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metad_wire import errors
from metad_wire.connection.session import decode_error
from metad_wire.errors import ERRORS, ErrorBody, InternalError, MetadError, OverloadedError, error_of
from metad_wire.methods import encode

each_error = pytest.mark.parametrize("class_", ERRORS.values(), ids=lambda c: c.name)


def test_codes_and_names_are_unique() -> None:
    assert [class_.code for class_ in ERRORS.values()] == list(ERRORS)
    names = [class_.name for class_ in ERRORS.values()]
    assert len(set(names)) == len(names)
    assert 0 not in ERRORS


def test_a_taken_code_is_refused() -> None:
    taken = OverloadedError.code
    with pytest.raises(TypeError, match="taken by OverloadedError"):
        type("Copy", (errors._Coded,), {}, code=taken, name="copy")
    assert ERRORS[taken] is OverloadedError


@each_error
def test_every_error_is_registered_documented_and_in_a_range_of_the_table(class_: type[MetadError]) -> None:
    assert issubclass(class_, MetadError)
    assert class_.__doc__
    assert str(class_()) == class_.__doc__.splitlines()[0]
    assert 1 <= class_.code < 300


@each_error
@settings(max_examples=20)
@given(
    message=st.text(min_size=1),
    after=st.integers(0, 2**63 - 1),
    jitter=st.integers(0, 2**63 - 1),
    leader=st.text(),
)
def test_round_trip(class_: type[MetadError], message: str, after: int, jitter: int, leader: str) -> None:
    sent = class_(message, retry_after_ms=after, retry_jitter_ms=jitter, leader=leader)
    got = decode_error(encode(sent.body()))
    assert type(got) is class_
    assert got.body() == sent.body()
    assert str(got) == message


@pytest.mark.parametrize("code", [-1, 0, 99, 299, 2**64 - 1])
def test_an_unknown_code_is_taken_for_the_worst(code: int) -> None:
    error = error_of(ErrorBody(code, "from the future"))
    assert type(error) is InternalError
    assert not error.retryable
    assert not error.outcome_known
    assert "from the future" in str(error)
    assert str(code) in str(error)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x80", b"\x91\xa1x", b"\x92\x01\xa1\xff", b"\x92\x01\xa0x", b"\x96" + b"\x91" * 10_000]
)
def test_a_malformed_error_is_an_error_too(payload: bytes) -> None:
    assert type(decode_error(payload)) is errors.FrameError
