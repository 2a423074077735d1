"""What is read of certificates beside what ssl tells: on real ones, and on bytes that are none."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_perf.attack import sites as certificates
from metad_wire.transport.credentials import Role, TlsFiles
from metad_wire.transport.der import CLIENT_AUTH, SERVER_AUTH, uses_of


def der(files: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(files.certificate).read_text())


def test_purposes_and_names_are_read() -> None:
    assert uses_of(der(certificates.node("n1"))) == ({CLIENT_AUTH, SERVER_AUTH}, ("metad://node/n1",))
    assert uses_of(der(certificates.client("app"))) == ({CLIENT_AUTH}, ("metad://client/app",))
    assert uses_of(der(certificates.wrong("no-purpose"))) == (set(), ("metad://client/n1",))
    assert uses_of(der(certificates.wrong("no-role", Role.NODE))).uris == ("urn:name:n1",)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with them
        uses_of(data)


@given(st.data())
def test_a_damaged_certificate_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(der(certificates.node("n1")))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(ValueError):
        uses_of(cut)
