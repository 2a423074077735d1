"""Who may come in, by what a stream says of its peer; and what a configuration means for the transports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metad.config import SecurityConfig, load_config
from metad.errors import ConfigError
from metad.server.access import Access, Authorities
from metad.server.network import Network, in_clear
from metad.supervisor import local_cluster, local_fleet, parse_regions, workers_of
from metad_perf.attack import sites as certificates
from metad_wire.errors import UnauthenticatedError
from metad_wire.operator.tokens import line_of, new_token
from metad_wire.transport.credentials import Principal, Role, TlsFiles, principal_named
from metad_wire.transport.reload import Reloaded
from metad_wire.transport.tcp import TcpTransport
from metad_wire.transport.tls import TlsTransport
from metad_wire.transport.tls_context import server_context

NOW_S = 1_000_000.0
NODE, CLIENT = Principal(Role.NODE, "n1"), Principal(Role.CLIENT, "app")


class Shown:
    """A stream whose peer showed these URIs; None: no certificate."""

    def __init__(self, *uris: str, certificate: bool = True) -> None:
        self._peercert = {"subjectAltName": tuple(("URI", uri) for uri in uris)} if certificate else None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peercert if name == "peercert" else default


NOBODY = Shown(certificate=False)


def access(tmp_path: Path, *tokens: str, required: bool = False) -> Access:
    path = tmp_path / "tokens"
    path.write_text("".join(line_of(token) + "\n" for token in tokens))
    security = SecurityConfig(
        certificate="c", key="k", ca="a", tokens_file=str(path) if tokens else "", require_client_certificate=required
    )
    return Access(security, encrypted=True)


def test_a_certificate_says_who_comes(tmp_path: Path) -> None:
    rules = access(tmp_path)
    assert rules.admit(Shown(CLIENT.uri), b"", NOW_S).principal == CLIENT  # type: ignore[arg-type]
    assert rules.admit(Shown(NODE.uri), b"", NOW_S).principal == NODE  # type: ignore[arg-type]


def test_a_spiffe_id_is_a_client_where_roles_say_what_it_may(tmp_path: Path) -> None:
    workload, security = Shown("spiffe://acme.example/ns/orders"), SecurityConfig(certificate="c", authorization=True)
    found = Access(security, encrypted=True).admit(workload, b"", NOW_S).principal  # type: ignore[arg-type]
    assert found is not None
    assert (found.role, found.uri) == (Role.CLIENT, "spiffe://acme.example/ns/orders")
    assert principal_named(found.uri) == found
    with pytest.raises(UnauthenticatedError, match="names no role"):
        access(tmp_path).admit(workload, b"", NOW_S)  # type: ignore[arg-type]
    for other in (
        "metad://client/spiffe%3A%2F%2Facme.example%2Fns%2Forders",
        "spiffe:///x",
        "spiffe://",
        "spiffe://[x",
    ):
        assert principal_named(other) is None


@pytest.mark.parametrize("shown", [NOBODY, Shown(), Shown("urn:x"), Shown(CLIENT.uri, NODE.uri)])
def test_nobody_and_those_without_one_role_stay_out(tmp_path: Path, shown: Shown) -> None:
    token = new_token("app")
    with pytest.raises(UnauthenticatedError):
        access(tmp_path).admit(shown, b"", NOW_S)  # type: ignore[arg-type]
    if shown is not NOBODY:  # a token does not mend a certificate that is wrong
        with pytest.raises(UnauthenticatedError, match="names no role"):
            access(tmp_path, token).admit(shown, token.encode(), NOW_S)  # type: ignore[arg-type]


def test_a_token_says_who_comes_and_a_wrong_one_is_refused_with_a_certificate_too(tmp_path: Path) -> None:
    token = new_token("app")
    rules = access(tmp_path, token)
    assert rules.admit(NOBODY, token.encode(), NOW_S).principal == CLIENT  # type: ignore[arg-type]
    for shown in (NOBODY, Shown(CLIENT.uri)):
        with pytest.raises(UnauthenticatedError, match="not known"):
            rules.admit(shown, b"app.wrong", NOW_S)  # type: ignore[arg-type]


def test_a_required_certificate_is_required_of_who_has_a_token(tmp_path: Path) -> None:
    token = new_token("app")
    rules = access(tmp_path, token, required=True)
    with pytest.raises(UnauthenticatedError, match="certificate"):
        rules.admit(NOBODY, token.encode(), NOW_S)  # type: ignore[arg-type]
    assert rules.admit(Shown(CLIENT.uri), token.encode(), NOW_S).principal == CLIENT  # type: ignore[arg-type]


def test_administrators_have_a_certificate_that_says_so_or_are_configured(tmp_path: Path) -> None:
    admin, app = Principal(Role.ADMIN, "ops"), Principal(Role.CLIENT, "app")
    plain = Access(SecurityConfig(), encrypted=True)
    assert [plain.may_administer(who) for who in (admin, NODE, app, None)] == [True, True, False, False]
    named = Access(SecurityConfig(administrators=["app"]), encrypted=True)
    assert [named.may_administer(who) for who in (app, Principal(Role.CLIENT, "other"))] == [True, False]
    assert not named.may_administer(Principal(Role.BROKER, "app")), "a broker is no client of the same name"
    assert Access(SecurityConfig(), encrypted=False).may_administer(None), "where nobody is asked, everybody may"
    rules = access(tmp_path)
    assert rules.admit(Shown(admin.uri), b"", NOW_S).principal == admin  # type: ignore[arg-type]
    with pytest.raises(UnauthenticatedError):
        rules.check_node(Shown(Principal(Role.ADMIN, "n1").uri), "n1")  # type: ignore[arg-type]


def test_only_nodes_are_nodes_whatever_they_know(tmp_path: Path) -> None:
    rules = access(tmp_path, new_token("n1"))
    rules.check_node(Shown(NODE.uri), "n1")  # type: ignore[arg-type]
    rules.check_node(Shown(NODE.uri), "n1/3")  # type: ignore[arg-type]
    broker = Shown(Principal(Role.BROKER, "n1").uri)
    for shown, name in (
        (NOBODY, "n1"),
        (Shown(Principal(Role.CLIENT, "n1").uri), "n1"),
        (broker, "n1"),
        (Shown(NODE.uri), "n2"),
    ):
        with pytest.raises(UnauthenticatedError):
            rules.check_node(shown, name)  # type: ignore[arg-type]


def test_without_certificates_nobody_is_asked() -> None:
    rules = Access(SecurityConfig(), encrypted=False)
    assert rules.admit(NOBODY, b"anything", NOW_S).principal is None  # type: ignore[arg-type]
    rules.check_node(NOBODY, "n1")  # type: ignore[arg-type]


def test_a_tokens_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    security = SecurityConfig(certificate="c", key="k", ca="a", tokens_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"security\.tokens_file: cannot read"):
        Access(security, encrypted=True)


def test_a_tokens_file_that_is_deleted_revokes_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("metad_wire.transport.reload.LOOK_S", 0.0)
    token = new_token("app")
    rules = access(tmp_path, token)
    assert rules.admit(NOBODY, token.encode(), NOW_S).principal == CLIENT  # type: ignore[arg-type]
    text = (tmp_path / "tokens").read_text()
    (tmp_path / "tokens").unlink()
    with caplog.at_level("WARNING", "metad"):
        for _ in range(2):
            with pytest.raises(UnauthenticatedError):
                rules.admit(NOBODY, token.encode(), NOW_S)  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == ["files_gone"]
    assert rules.is_withdrawn(token.encode(), None), "its connections end"
    (tmp_path / "tokens").write_text(text)
    assert rules.admit(NOBODY, token.encode(), NOW_S).principal == CLIENT  # type: ignore[arg-type]


# --- transports ------------------------------------------------------------------------------------------


def configured(**settings: Any) -> Any:
    return load_config(None, {"data_dir": "d", **settings})


def secured(**settings: Any) -> Any:
    files = certificates.node("node-1")
    return configured(security={"certificate": files.certificate, "key": files.key, "ca": files.ca}, **settings)


def test_without_certificates_there_is_tcp_alone() -> None:
    network = Network.of(configured())
    assert isinstance(network.tcp, TcpTransport)
    assert (network.quic, network.far, network.encrypted) == (None, None, False)


def test_with_certificates_everything_is_encrypted() -> None:
    network = Network.of(secured(listen="10.0.0.1:7420"))
    assert isinstance(network.tcp, TlsTransport)
    assert isinstance(network.near, TlsTransport)
    assert (network.quic, network.far, network.encrypted) == (None, None, True)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (lambda: certificates.node("node-2"), "names node 'node-2', but this is node 'node-1'"),
        (lambda: certificates.client("node-1"), "names client 'node-1', but this is node 'node-1'"),
        (lambda: certificates.admin("node-1"), "names admin 'node-1', but this is node 'node-1'"),
        (lambda: certificates.wrong("no-role", Role.NODE, "node-1"), "names no holder"),
        (lambda: certificates.wrong("no-purpose", Role.NODE, "node-1"), "is not for servers and for clients"),
        (lambda: certificates.wrong("wrong-purpose", Role.NODE, "node-1"), "is not for servers and for clients"),
    ],
)
@pytest.mark.parametrize("quic", ["", "127.0.0.1:0"])
def test_a_node_does_not_start_with_a_certificate_that_is_not_its_own(files: Any, complaint: str, quic: str) -> None:
    wrong = files()
    security = {"certificate": wrong.certificate, "key": wrong.key, "ca": wrong.ca}
    with pytest.raises(ConfigError, match=complaint):
        Network.of(configured(security=security, quic=quic))
    Network.of(configured(security=security_of(certificates.node("machine")), node_id="machine/1"))


def security_of(files: TlsFiles) -> dict[str, str]:
    return {"certificate": files.certificate, "key": files.key, "ca": files.ca}


def test_another_nodes_certificate_does_not_take_the_place_of_ones_own(tmp_path: Path) -> None:
    def put(files: TlsFiles) -> None:
        for source, name in ((files.certificate, "certificate"), (files.key, "key"), (files.ca, "ca")):
            (tmp_path / name).write_bytes(Path(source).read_bytes())

    put(certificates.node("node-1"))
    used = TlsFiles(
        certificate=str(tmp_path / "certificate"), key=str(tmp_path / "key"), ca=str(tmp_path / "ca"), node="node-1"
    )
    now = 0.0
    watched = Reloaded(used, lambda files: server_context(files, certificate_required=True), clock=lambda: now)
    mine = watched.current()
    put(certificates.node("node-2"))
    now += 1.0
    assert watched.current() is mine


def test_quic_is_there_where_it_is_asked_for_and_between_regions() -> None:
    assert Network.of(secured(quic="127.0.0.1:0")).quic is not None
    assert Network.of(secured(cluster={"region": "eu"})).far is not None


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "metad.example:1", "[::ffff:10.0.0.1]:1"])
def test_clear_text_leaves_the_machine_only_where_that_is_meant(listen: str) -> None:
    told = {"advertise_clients": "metad.example:1"}
    with pytest.raises(ConfigError, match="not a loopback address"):
        Network.of(configured(listen=listen, cluster=told))
    meant = configured(listen=listen, cluster=told, security={"plaintext": True})
    Network.of(meant)
    assert in_clear(meant) == {"listen": listen}


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1"])
def test_loopback_is_nobody_elses(listen: str) -> None:
    Network.of(configured(listen=listen))
    assert in_clear(configured(listen=listen)) == {}


def test_the_peer_listener_counts_too() -> None:
    seeds = {"node-1": "10.0.0.1:1", "n2": "10.0.0.2:1"}
    with pytest.raises(ConfigError, match=r"cluster\.listen: 10\.0\.0\.1:1 is not a loopback address"):
        Network.of(configured(cluster={"seeds": seeds, "advertise_clients": "10.0.0.1:2"}))


# --- local clusters --------------------------------------------------------------------------------------


def test_regions_are_given_out_in_turn_and_certificates_to_each(tmp_path: Path) -> None:
    config = load_config(None, {"data_dir": str(tmp_path)})
    fleet = local_fleet(config, 4)
    configs = local_cluster(config, 4, 1, fleet=fleet, regions=parse_regions("eu, us"))
    assert [one.cluster.region for one in configs] == ["eu", "us", "eu", "us"]
    assert configs[0].cluster.seed_regions == {"n1": "eu", "n2": "us", "n3": "eu", "n4": "us"}
    workers = local_cluster(load_config(None, {"data_dir": str(tmp_path / "w")}), 2, 2, regions=["eu", "us"])
    assert workers[3].cluster.seed_regions == {"n1/0": "eu", "n1/1": "eu", "n2/0": "us", "n2/1": "us"}
    assert [one.cluster.region for one in workers] == ["eu", "eu", "us", "us"]
    assert [Path(one.security.certificate).name for one in configs] == [f"node-n{n}.pem" for n in range(1, 5)]
    assert all(one.quic == one.listen for one in configs)
    for one in configs:
        Network.of(one)


def test_workers_of_an_encrypted_node_share_its_certificate_and_not_its_port(tmp_path: Path) -> None:
    config = load_config(None, {"data_dir": str(tmp_path)})
    configs = local_cluster(config, 2, 2, fleet=local_fleet(config, 2))
    assert [one.node_id for one in configs] == ["n1/0", "n1/1", "n2/0", "n2/1"]
    assert len({one.quic for one in configs}) == 4
    assert len({one.security.certificate for one in configs}) == 2


@pytest.mark.parametrize("port", [7420, 7422])
def test_workers_need_ports_between_those_for_clients_and_those_for_nodes(port: int) -> None:
    """Once wrong: with the README's addresses and two workers, one of them found its port in use by the other."""
    cluster = {"seeds": {"node-1": "127.0.0.1:7421", "b": "127.0.0.1:8421"}}
    config = configured(listen=f"127.0.0.1:{port}", cluster=cluster)
    words = rf"^workers: node-1/\d would listen .* where node-1/\d listens .*, on 127\.0\.0\.1:{max(port, 7421)}\."
    with pytest.raises(ConfigError, match=words):
        workers_of(config, 2)
    apart = configured(listen="127.0.0.1:7423", cluster=cluster)
    assert [one.listen for one in workers_of(apart, 2)] == ["127.0.0.1:7423", "127.0.0.1:7424"]


@pytest.mark.parametrize("text", ["a,,b", "a,", "a,\n"])
def test_regions_have_names(text: str) -> None:
    with pytest.raises(ConfigError, match="not a valid region name"):
        parse_regions(text)


def test_who_is_trusted_for_sure_when_authorities_change() -> None:
    ours, other = (("CN", "ours"),), (("CN", "other"),)
    both = Authorities({b"1": ours, b"2": other})
    assert Authorities({b"1": ours}).trust(ours, both)
    assert not Authorities({b"1": ours}).trust(other, both), "it is gone"
    assert not Authorities({b"1": ours}).trust((("CN", "intermediate"),), both), "nobody knows who stands behind it"
    assert not Authorities({b"3": ours, b"2": other}).trust(ours, both), "another key of the same name"
    assert Authorities({b"1": ours, b"2": other, b"3": ours}).trust(ours, both), "one more takes nothing away"
    two = Authorities({b"1": ours, b"3": ours})
    assert not Authorities({b"1": ours}).trust(ours, two), "two of one name, of which one is gone"
