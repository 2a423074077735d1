"""Without the extra ``quic`` everything else works, and what does not says which extra it wants."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from metad.config import load_config
from metad.errors import ConfigError
from metad.server.network import Network
from metad_client import Options
from metad_client.connections.transport_choice import transports_of
from metad_perf.attack import sites as certificates
from metad_wire.operator.authority import AuthorityError, issue_fleet


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter on which aioquic and cryptography are not installed."""
    certificates.node("node-1")
    certificates.client()
    for name in list(sys.modules):
        if name.partition(".")[0] in ("aioquic", "cryptography") or name.startswith("metad_wire.transport.quic"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aioquic", None)
    monkeypatch.setitem(sys.modules, "cryptography", None)


@pytest.mark.usefixtures("bare")
def test_a_node_says_what_quic_needs() -> None:
    files = certificates.node("node-1")
    security = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    settings = {"data_dir": "d", "security": security}
    assert Network.of(load_config(None, settings)).encrypted
    for wanted in ({"quic": "127.0.0.1:0"}, {"cluster": {"region": "eu"}}):
        with pytest.raises(ConfigError, match=r"in a clone of metad, .*pip install"):
            Network.of(load_config(None, settings | wanted))


@pytest.mark.usefixtures("bare")
def test_a_client_says_what_quic_needs() -> None:
    options = Options(tls=certificates.client())
    assert list(transports_of("metads", options).by_name) == ["tls"]
    for scheme in ("metadq", "metad+auto"):
        with pytest.raises(ValueError, match=r"in a clone of metad, .*pip install"):
            transports_of(scheme, options)


@pytest.mark.usefixtures("bare")
def test_issuing_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(AuthorityError, match=r"in a clone of metad, .*pip install"):
        issue_fleet(tmp_path / "certs", ["a"], [])
    assert not (tmp_path / "certs").exists()
