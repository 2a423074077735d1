"""The doors of a real node, over TLS and over QUIC: who gets in, who does not and hears why, and what is replaced while
it runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_metadctl import metadctl
from e2e_server import Server, free_ports

from metad_client import Given, Grant, KvPutItem, Options, UnauthenticatedError, blocking
from metad_client.errors import (
    ConnectionLostError,
    FencedError,
    HandshakeError,
    MetadError,
    PermissionDeniedError,
    QuotaExceededError,
)
from metad_perf.attack import sites as certificates
from metad_wire.cluster import NodeRecord
from metad_wire.connection import peer as p
from metad_wire.connection.frame import Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.connection.session import decode_error
from metad_wire.errors import UnexpectedFrameError
from metad_wire.messages import Hello
from metad_wire.methods import encode
from metad_wire.operator.authority import issue_fleet
from metad_wire.operator.tokens import line_of, new_token
from metad_wire.transport import Transport
from metad_wire.transport.credentials import Role, TlsFiles
from metad_wire.transport.quic import QuicTransport
from metad_wire.transport.tcp import TcpTransport
from metad_wire.transport.tls import TlsTransport
from waiting import wait_until

TIMEOUT_S = 120.0
SCHEMES = ("metads", "metadq")
TRANSPORTS: dict[str, Callable[[TlsFiles], Transport]] = {
    "metads": lambda files: TlsTransport(TcpTransport(), files),
    "metadq": QuicTransport,
}


class Door:
    """A node with certificates, tokens, QUIC, and a peer listener of both kinds."""

    def __init__(self, home: Path, *, tokens: bool = True, required: bool = False, more: str = "") -> None:
        home.mkdir(exist_ok=True)
        self.files = copied(certificates.node("node-1"), home / "used")
        self.tokens_file = home / "tokens"
        self.token = new_token("app")
        self.tokens_file.write_text(line_of(self.token) + "\n")
        self.port, self.peer_port = free_ports(2)
        security = [f'certificate = "{self.files.certificate}"', f'key = "{self.files.key}"', f'ca = "{self.files.ca}"']
        if tokens:
            security += [f'tokens_file = "{self.tokens_file}"']
        if more:
            security += [more]
        if required:
            security += ["require_client_certificate = true"]
        config = "\n".join(
            [
                f'quic = "127.0.0.1:{self.port}"',
                "[security]",
                *security,
                "[cluster]",
                f'seeds = {{ node-1 = "127.0.0.1:{self.peer_port}" }}',
                'region = "eu"',
                "",
            ]
        )
        self.server = Server(home / "d", config=config, listen=f"127.0.0.1:{self.port}")

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.port}"

    def client(self, scheme: str, tls: TlsFiles | None, credentials: bytes = b"", **changes: Any) -> Any:
        options = Options(tls=tls, credentials=credentials, connect_timeout_s=0, deadline_s=TIMEOUT_S, **changes)
        return blocking.connect(self.url(scheme), options)

    def lets_in(self, scheme: str, tls: TlsFiles, credentials: bytes = b"") -> bool:
        """Whether a write gets through; False where it is told that it may not."""
        try:
            with self.client(scheme, tls, credentials) as client:
                client.kv.put("door", "key", b"value")
        except UnauthenticatedError:
            return False
        return True


def copied(files: TlsFiles, to: Path) -> TlsFiles:
    """The same files elsewhere, in place of what is there; certificate and key never differ for long."""
    to.mkdir(exist_ok=True)
    for source, name in ((files.ca, "ca.pem"), (files.key, "key.pem"), (files.certificate, "certificate.pem")):
        shutil.copy(source, to / "new.tmp")
        os.replace(to / "new.tmp", to / name)
    return TlsFiles(certificate=str(to / "certificate.pem"), key=str(to / "key.pem"), ca=str(to / "ca.pem"))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    door = Door(tmp_path_factory.mktemp("door"))
    with door.server as server:
        server.ready()
        yield door
        assert server.terminate() == 0
        assert "Traceback" not in server.stderr, server.stderr
        server.quiet()  # no stack trace, whoever knocked


# --- certificates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [*SCHEMES, "metad+auto"])
def test_a_client_with_a_certificate_is_let_in(door: Door, scheme: str) -> None:
    assert door.lets_in(scheme, certificates.client("app"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_administrators_change_the_cluster(door: Door, scheme: str) -> None:
    changes: list[Callable[[Any], Any]] = [
        lambda m: m.cluster.join(NodeRecord("n9", "127.0.0.1:1", "127.0.0.1:2")),
        lambda m: m.cluster.leave("n9"),
        lambda m: m.cluster.transfer("data-0", "node-1"),
        lambda m: m.cluster.add_group("data"),
        lambda m: m.cluster.rebalance(),
    ]
    with door.client(scheme, certificates.client("app")) as client:
        version = client.cluster.map().map.version
        for change in changes:
            with pytest.raises(PermissionDeniedError):
                change(client)
        assert client.cluster.map().map.version == version
        assert client.status().node_id == "node-1"
    token = door.token.encode()
    with door.client(scheme, certificates.anonymous(), token) as client, pytest.raises(PermissionDeniedError):
        client.cluster.add_group("data")
    with door.client(scheme, certificates.admin()) as client:
        assert client.cluster.add_group("data").version > version
        client.kv.put("door", "admin", b"is a client too")


def test_clients_that_are_configured_as_administrators_are(tmp_path: Path) -> None:
    door = Door(tmp_path, more='administrators = ["app"]')
    with door.server as server:
        server.ready()
        for tls, token in ((certificates.client("app"), b""), (certificates.anonymous(), door.token.encode())):
            with door.client("metads", tls, token) as client:
                assert client.cluster.add_group("data").version
        other = certificates.client("other")
        with door.client("metads", other) as client, pytest.raises(PermissionDeniedError):
            client.cluster.add_group("data")


@pytest.mark.parametrize("kind", certificates.WRONG)
@pytest.mark.parametrize("scheme", [*SCHEMES, "metad+auto"])
def test_a_wrong_certificate_is_refused(door: Door, scheme: str, kind: str) -> None:
    assert not door.lets_in(scheme, certificates.wrong(kind))


@pytest.mark.parametrize("kind", certificates.WRONG)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_wrong_certificate_is_refused_with_a_right_token_too(door: Door, scheme: str, kind: str) -> None:
    assert not door.lets_in(scheme, certificates.wrong(kind), door.token.encode())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_certificate_or_token_nothing_gets_through(door: Door, scheme: str) -> None:
    with pytest.raises(UnauthenticatedError, match="a certificate or a token is needed"):
        door.client(scheme, certificates.anonymous())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_server_of_another_authority_is_not_believed(door: Door, scheme: str, tmp_path: Path) -> None:
    other = issue_fleet(tmp_path, [], ["app"])["client-app"]
    with pytest.raises(UnauthenticatedError, match=r"certificate|refuse"):
        door.client(scheme, other)


# --- tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_token_is_the_other_way_in(door: Door, scheme: str) -> None:
    assert door.lets_in(scheme, certificates.anonymous(), door.token.encode())


@pytest.mark.parametrize("wrong", ["app.wrong", "other.token", "", "x" * 4_000], ids=["secret", "name", "none", "long"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_wrong_token_is_refused_and_not_repeated_in_the_log(door: Door, scheme: str, wrong: str) -> None:
    assert not door.lets_in(scheme, certificates.anonymous(), wrong.encode())
    assert not wrong or wrong not in door.server.stderr


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_token_that_is_withdrawn_is_told_so_and_no_outage(door: Door, scheme: str) -> None:
    """The client tried until its deadline, and told of that: a broker tried for ever."""
    kept = door.tokens_file.read_text()
    try:
        with door.client(scheme, certificates.anonymous(), door.token.encode()) as client:
            client.kv.put("door", "key", b"value")
            door.tokens_file.write_text(line_of(new_token("app")) + "\n")
            wait_until(
                lambda: not door.lets_in(scheme, certificates.anonymous(), door.token.encode()), "the withdrawal"
            )
            client.reconnect()
            began_s = time.monotonic()
            with pytest.raises(UnauthenticatedError, match="the token is not known here"):
                client.kv.put("door", "key", b"value", deadline_s=TIMEOUT_S)
            assert time.monotonic() - began_s < TIMEOUT_S / 2
            door.tokens_file.write_text(kept)

            def written() -> bool:
                try:
                    client.kv.put("door", "key", b"value")
                except UnauthenticatedError:
                    return False
                return True

            wait_until(written, "the token is back, and so is the client")
    finally:
        door.tokens_file.write_text(kept)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_token_that_is_withdrawn_ends_its_connections(door: Door, scheme: str) -> None:
    """They went on for as long as the client liked. Other tokens' and certificates' stay."""
    kept = door.tokens_file.read_text()
    other = new_token("other")
    door.tokens_file.write_text(kept + line_of(other) + "\n")
    wait_until(lambda: door.lets_in(scheme, certificates.anonymous(), other.encode()), "the other token")
    try:
        with (
            door.client(scheme, certificates.anonymous(), other.encode()) as client,
            door.client(scheme, certificates.anonymous(), door.token.encode()) as stays,
            door.client(scheme, certificates.client("app")) as certified,
        ):
            states: list[Any] = []
            for each in (stays, certified):
                each.kv.put("door", "key", b"value")
                each.on_state(states.append)
            client.kv.put("door", "key", b"value")
            watch = client.watch("kv").opened()
            door.tokens_file.write_text(kept)

            wait_until(lambda: _is_refused(client), "its calls are refused")
            with pytest.raises(UnauthenticatedError, match="the token is not known here"):
                watch.next()
            for each in (stays, certified):
                each.kv.put("door", "key", b"value")
            assert states == []
    finally:
        door.tokens_file.write_text(kept)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_authority_that_is_trusted_no_more_ends_the_connections_of_its_certificates(
    door: Door, scheme: str, tmp_path: Path
) -> None:
    """They went on for as long as the client liked. Both authorities have one name, so who is of the other one comes
    again, and has no error. Tokens do not notice."""
    issued = issue_fleet(tmp_path, [], ["late"])["client-late"]
    late = TlsFiles(certificate=issued.certificate, key=issued.key, ca=door.files.ca)
    trusted = Path(door.files.ca)
    kept = trusted.read_text()

    def replace(text: str) -> None:
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", trusted)

    try:
        replace(kept + Path(issued.ca).read_text())
        wait_until(lambda: _comes_in(door, scheme, late), "the other authority")
        with (
            door.client(scheme, late) as client,
            door.client(scheme, certificates.client("app")) as certified,
            door.client(scheme, certificates.anonymous(), door.token.encode()) as tokened,
        ):
            states: list[Any] = []
            tokened.on_state(states.append)
            for each in (certified, tokened, client):
                each.kv.put("door", "key", b"value")
            replace(kept)
            end_s = time.monotonic() + TIMEOUT_S
            while not _is_refused(client, ""):
                assert time.monotonic() < end_s, "its calls are not refused"
                for each in (certified, tokened):
                    each.kv.put("door", "key", b"value")
            assert states == []
    finally:
        replace(kept)


def _comes_in(door: Door, scheme: str, files: TlsFiles) -> bool:
    try:
        return door.lets_in(scheme, files)
    except MetadError:
        return False


def test_a_quota_of_no_connections_locks_no_administrator_out(door: Door) -> None:
    """Only one whose connection was open already could take it back."""
    with door.client("metads", certificates.admin()) as ops:
        ops.quotas.put("principal/*", connections=0)
    try:
        wait_until(lambda: _is_kept_out(door), "the quota counts")
    finally:
        with door.client("metads", certificates.admin()) as ops:
            ops.quotas.delete("principal/*")
    wait_until(lambda: not _is_kept_out(door), "it counts no more")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_connections_and_watches_of_a_principal_are_limited(door: Door, scheme: str) -> None:
    app, uri = certificates.client("app"), "principal/metad://client/app"
    with door.client(scheme, certificates.admin()) as ops:
        # A watch has a stream for each group, of which other tests may have added some.
        known = ops.cluster.map().map
        assert known is not None
        groups = sum(group.group_id.kind == "data" for group in known.groups)
        ops.quotas.put(uri, connections=1, watches=groups)
        try:
            with door.client(scheme, app) as client, client.watch("kv", tenant="a").opened():
                wait_until(lambda: [use.watches for use in ops.quotas.use(uri)] == [groups], "it is counted")
                assert [use.connections for use in ops.quotas.use(uri)] == [1]
                wait_until(lambda: _is_kept_out(door), "a second connection")
                with client.watch("kv", tenant="b") as second:
                    time.sleep(1)
                    assert [use.watches for use in ops.quotas.use(uri)] == [groups]
                    ops.quotas.put(uri, connections=1, watches=2 * groups)
                    second.opened()
            wait_until(lambda: not _is_kept_out(door), "the first has ended")
        finally:
            ops.quotas.delete(uri)


def test_a_watch_that_needs_more_than_a_quota_says_so(door: Door) -> None:
    """It waited for ever, and nothing said so."""
    app, uri = certificates.client("app"), "principal/metad://client/app"
    with door.client("metads", certificates.admin()) as ops, door.client("metads", app) as client:
        known = ops.cluster.map().map
        assert known is not None
        need = len({group.group_id for group in known.groups if group.kind in ("data", "offset")})
        try:
            ops.quotas.put(uri, watches=need - 1)
            with pytest.raises(QuotaExceededError, match=f"needs {need}, one for each group"):
                client.watch(("kv", "offset")).opened()
            ops.quotas.put(uri, watches=need)
            with client.watch(("kv", "offset")).opened():
                pass
        finally:
            ops.quotas.delete(uri)


def _is_kept_out(door: Door) -> bool:
    options = Options(tls=certificates.client("app"), connect_timeout_s=0, deadline_s=1.0)
    try:
        with blocking.connect(door.url("metads"), options) as client:
            client.kv.get("door", "key")
    except MetadError:
        return True
    return False


def test_tokens_are_replaced_without_a_restart(door: Door) -> None:
    kept = door.tokens_file.read_text()
    new = new_token("app")
    try:
        with door.client("metads", certificates.anonymous(), door.token.encode()) as client:
            door.tokens_file.write_text(line_of(new) + "\n")
            wait_until(lambda: door.lets_in("metads", certificates.anonymous(), new.encode()), "the new token")
            assert not door.lets_in("metads", certificates.anonymous(), door.token.encode())
            wait_until(lambda: _is_refused(client), "the client that was let in before is refused")
        door.tokens_file.write_text("half a li")
        wait_until(lambda: door.server.events("files_unusable") or _knock(door, new), "the complaint")
        assert door.lets_in("metads", certificates.anonymous(), new.encode())
    finally:
        door.tokens_file.write_text(kept)
        wait_until(lambda: door.lets_in("metads", certificates.anonymous(), door.token.encode()), "the old tokens")


def _is_refused(client: Any, why: str = "the token is not known here") -> bool:
    """Whether a client's call is refused; the connections of a token end soon after it was withdrawn."""
    try:
        client.kv.put("door", "key", b"value", deadline_s=TIMEOUT_S)
    except UnauthenticatedError as error:
        return why in str(error)
    return False


def _knock(door: Door, token: str) -> bool:
    """Files are looked at when somebody comes."""
    assert door.lets_in("metads", certificates.anonymous(), token.encode())
    return False


@pytest.mark.parametrize("scheme", SCHEMES)
def test_where_certificates_are_required_a_token_does_not_do(tmp_path: Path, scheme: str) -> None:
    strict = Door(tmp_path, required=True)
    with strict.server as server:
        server.ready()
        assert not strict.lets_in(scheme, certificates.anonymous(), strict.token.encode())
        assert strict.lets_in(scheme, certificates.client("app"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_strangers_do_not_lock_clients_out(tmp_path: Path, scheme: str) -> None:
    """Where there are tokens, a handshake needs no certificate: whoever has neither says nothing behind it."""
    door = Door(tmp_path, more="[limits]\nconnections_max = 60")  # a client over QUIC takes eight

    async def crowd() -> None:
        transport = TRANSPORTS[scheme](certificates.anonymous())
        strangers = []
        for _ in range(100):
            with contextlib.suppress(OSError):  # a stranger may be sent away at once
                strangers.append(await transport.dial("127.0.0.1", door.port, lambda: Visitor(b"\0"), TIMEOUT_S))
        await asyncio.to_thread(served)
        for stranger in strangers:
            stranger.stream.abort()

    def served() -> None:
        with contextlib.ExitStack() as clients:
            for number in range(5):
                client = clients.enter_context(door.client(scheme, certificates.client("app")))
                client.kv.put("door", f"key {number}", b"value")

    with door.server as server:
        server.ready()
        asyncio.run(crowd())


# --- nodes and clients -----------------------------------------------------------------------------------


class Visitor:
    """A handler that says one thing and remembers the answer."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._decoder = FrameDecoder()
        self.frames: list[Frame] = []
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.heard = asyncio.Event()
        self.stream: Any = None

    def connection_made(self, stream: Any) -> None:
        self.stream = stream
        stream.write(self._words)

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        while (frame := self._decoder.next()) is not None:
            self.frames.append(frame)
        self.heard.set()

    def eof_received(self) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set_result(exc)
        self.heard.set()


def say(scheme: str, files: TlsFiles, port: int, words: bytes, answers: int = 1) -> list[Frame]:
    """What a peer answers to these bytes, until it has given so many answers, or the end."""

    async def visit() -> list[Frame]:
        visitor: Visitor = await TRANSPORTS[scheme](files).dial("127.0.0.1", port, lambda: Visitor(words), TIMEOUT_S)
        async with asyncio.timeout(TIMEOUT_S):
            while len(visitor.frames) < answers and not visitor.over.done():
                visitor.heard.clear()
                await visitor.heard.wait()
        visitor.stream.abort()
        return visitor.frames

    return asyncio.run(visit())


def peer_hello(node_id: str) -> bytes:
    hello = p.PeerHello(p.PEER_MAGIC, p.PEER_VERSION, "", node_id, "store", "node-1")
    return encode_frame(FrameType.HELLO, p.encode(hello))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_node_speaks_to_nodes(door: Door, scheme: str) -> None:
    (frame,) = say(scheme, certificates.node("n9"), door.peer_port, peer_hello("n9"))
    assert frame.type == FrameType.WELCOME


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_client_never_speaks_to_nodes_as_one(door: Door, scheme: str) -> None:
    """Its certificate is of the right authority, its HELLO a node's, and a Raft message right behind it."""
    raft = encode_frame(FrameType.PEER, b"\x90", 0, p.Channel.RAFT)
    (frame,) = say(scheme, certificates.client("n9"), door.peer_port, peer_hello("n9") + raft)
    assert frame.type == FrameType.ERROR
    assert isinstance(decode_error(frame.payload), UnauthenticatedError)

    def is_logged() -> bool:  # once a minute for each reason
        refused = door.server.events("peer_refused")
        return any(line["error"] == "unauthenticated" and "nodes only" in line["detail"] for line in refused)

    wait_until(is_logged, "the line, which is written beside the loop")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_node_is_held_to_its_name(door: Door, scheme: str) -> None:
    (frame,) = say(scheme, certificates.node("n9"), door.peer_port, peer_hello("n8"))
    assert frame.type == FrameType.ERROR
    assert isinstance(decode_error(frame.payload), UnauthenticatedError)


@pytest.mark.parametrize("kind", certificates.WRONG)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_node_with_a_wrong_certificate_is_no_node(door: Door, scheme: str, kind: str) -> None:
    try:
        frames = say(scheme, certificates.wrong(kind, Role.NODE, "n9"), door.peer_port, peer_hello("n9"))
    except OSError:
        return  # the handshake failed on our side already
    assert FrameType.WELCOME not in [frame.type for frame in frames]


@pytest.mark.parametrize("files", [certificates.client, certificates.node], ids=["client", "node"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nobody_speaks_raft_where_clients_are_served(door: Door, scheme: str, files: Callable[[], TlsFiles]) -> None:
    hello = encode_frame(FrameType.HELLO, encode(Hello("metad", 1, 1)))
    raft = encode_frame(FrameType.PEER, b"\x90", 0, p.Channel.RAFT)
    frames = say(scheme, files(), door.port, hello + raft, answers=2)
    assert [frame.type for frame in frames] == [FrameType.WELCOME, FrameType.ERROR]
    assert isinstance(decode_error(frames[1].payload), UnexpectedFrameError)


# --- clear text ------------------------------------------------------------------------------------------


def test_clear_text_gets_nothing_but_a_hint(door: Door) -> None:
    with pytest.raises(MetadError, match="metads"):
        door.client("metad", None)


def test_tls_to_who_has_none_says_so(tmp_path: Path) -> None:
    with Server(tmp_path / "d") as server:
        server.ready()
        options = Options(tls=certificates.client(), connect_timeout_s=0)
        with pytest.raises(HandshakeError, match="does not speak TLS"):
            blocking.connect(f"metads://{server.endpoint}", options)
        with pytest.raises(ConnectionLostError):
            blocking.connect(f"metadq://{server.endpoint}", options)


# --- choosing --------------------------------------------------------------------------------------------


def test_auto_gets_through_where_udp_does_not(tmp_path: Path) -> None:
    """Nothing answers on UDP: as behind a filter, datagrams just go."""
    files = certificates.node("node-1")
    config = f'[security]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\nca = "{files.ca}"\n'
    with Server(tmp_path / "d", config=config) as server, socket.socket(type=socket.SOCK_DGRAM) as filtered:
        server.ready()
        filtered.bind(server.address)
        with blocking.connect(f"metad+auto://{server.endpoint}", Options(tls=certificates.client())) as client:
            assert client.kv.put("auto", "key", b"value") == 1
            assert client.statistics().via == {"node-1": "tls"}


def test_auto_gets_through_where_tcp_does_not(door: Door, tmp_path: Path) -> None:
    """TCP is taken by somebody who never answers; QUIC is on the same port."""
    files = certificates.node("node-1")
    config = f'[security]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\nca = "{files.ca}"\n'
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with Server(tmp_path / "d", config=f'quic = "127.0.0.1:{port}"\n{config}') as server:
            server.ready()
            with blocking.connect(f"metad+auto://127.0.0.1:{port}", Options(tls=certificates.client())) as client:
                assert client.kv.put("auto", "key", b"value") == 1
                assert client.statistics().via == {"node-1": "quic"}


def flags_of(files: TlsFiles) -> list[str]:
    return ["--tls-ca", files.ca, "--tls-cert", files.certificate, "--tls-key", files.key]


def test_metadctl_says_by_what_it_goes(door: Door) -> None:
    files = certificates.client("app")
    for scheme, via in (("metads", "tls"), ("metadq", "quic"), ("metad+auto", "tls")):
        done = metadctl(door.url(scheme), *flags_of(files), "status")
        assert done.returncode == 0, done.stderr
        assert f", via {via}\n" in done.stdout


def test_metadctl_with_certificates_never_speaks_clear_text(door: Door) -> None:
    files = certificates.client("app")
    for endpoint, code, words in (
        (f"127.0.0.1:{door.port}", 0, ", via tls\n"),
        (door.url("metad"), 2, "metad:// is in clear text, and certificates are given"),
    ):
        done = metadctl(endpoint, *flags_of(files), "status")
        assert done.returncode == code, done.stderr
        assert words in done.stdout + done.stderr


# --- new files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_certificates_are_replaced_without_a_restart(tmp_path: Path, scheme: str) -> None:
    """A whole other fleet: whoever is connected stays, the next needs the new one. Broken files then change nothing."""
    door = Door(tmp_path / "home", tokens=False)
    other = issue_fleet(tmp_path / "other", ["node-1"], ["app"])
    with door.server as server:
        server.ready()
        with door.client(scheme, certificates.client("app")) as client:
            client.kv.put("door", "key", b"before")
            copied(other["node-node-1"], Path(door.files.ca).parent)
            wait_until(lambda: door.lets_in(scheme, other["client-app"]), "the new fleet")
            assert not door.lets_in(scheme, certificates.client("app"))
            client.kv.put("door", "key", b"still here")
            Path(door.files.key).write_text("half a key")

            def complained() -> bool:
                assert door.lets_in(scheme, other["client-app"])
                return bool(server.events("files_unusable"))

            wait_until(complained, "the complaint")
            assert door.lets_in(scheme, other["client-app"])


def test_certificates_that_end_soon_are_said(tmp_path: Path) -> None:
    door = Door(tmp_path)
    ending = certificates.ending("node-1", days=3)
    copied(ending, Path(door.files.ca).parent)
    with door.server as server:
        server.ready()
        (said,) = server.events("certificates_end_soon")
        assert said["level"] == "warning"
        assert 2 < said["days"] < 4
        assert door.lets_in("metads", certificates.client("app"))
        assert server.terminate() == 0


def test_certificates_that_last_are_not_worth_a_word(door: Door) -> None:
    assert door.server.events("certificates_end_soon") == []


@pytest.mark.parametrize(
    ("security", "match"),
    [
        ("certificate = 'c'", "certificate, key and ca go together"),
        ("certificate = '/none'\nkey = '/none'\nca = '/none'", "security: cannot use the authorities"),
        ("tokens_file = 't'", "security.tokens_file: needs"),
        ("require_client_certificate = true", "security.require_client_certificate: needs"),
    ],
)
def test_a_configuration_that_does_not_hold_is_refused_in_one_line(tmp_path: Path, security: str, match: str) -> None:
    with Server(tmp_path / "d", config=f"[security]\n{security}\n") as server:
        assert match in server.refused()


def test_quic_without_certificates_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path / "d", config='quic = "127.0.0.1:0"\n') as server:
        assert "quic: needs security.certificate" in server.refused()


def test_clear_text_beyond_this_machine_must_be_meant_and_is_said(tmp_path: Path) -> None:
    told = '[cluster]\nadvertise_clients = "metad.example:1"\n'
    with Server(tmp_path / "no", config=told, listen="0.0.0.0:0") as server:
        assert "is not a loopback address" in server.refused()
    with Server(tmp_path / "yes", config=told + "[security]\nplaintext = true\n", listen="0.0.0.0:0") as server:
        server.ready()
        (said,) = server.events("clear_text")
        assert said["level"] == "warning"


# --- who may do what -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    door = Door(tmp_path_factory.mktemp("checked"), more='authorization = true\nadministrators = ["boss"]')
    with door.server as server:
        server.ready()
        yield door
        assert server.terminate() == 0
        server.quiet()


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except PermissionDeniedError:
        return True
    return False


def is_closed(call: Callable[[], object]) -> bool:
    try:
        call()
    except UnauthenticatedError:
        return True
    except PermissionDeniedError:
        return False
    return False


@pytest.mark.parametrize("scheme", SCHEMES)
def test_roles_count_at_once_for_connections_and_watches_that_are_open(checked: Door, scheme: str) -> None:
    app, token = "metad://client/app", checked.token.encode()
    with (
        checked.client(scheme, certificates.client("boss")) as boss,
        checked.client(scheme, certificates.client("app")) as client,
        checked.client(scheme, certificates.anonymous(), token) as by_token,
    ):

        def put() -> object:
            return client.kv.put("acme", "key", b"value")

        assert refused(put)
        assert refused(lambda: by_token.kv.put("acme", "key", b"value"))
        assert refused(lambda: client.principals.put(app, [Given("admin")]))
        boss.roles.put("writer", [Grant(["read", "write"], ["kv"], "acme")])
        boss.principals.put(app, [Given("writer")])
        wait_until(lambda: not refused(put), "the role counts")
        by_token.kv.put("acme", "key", b"a token and a certificate of one name are one principal")
        assert refused(lambda: client.kv.put("other", "key", b"value"))
        result = client.kv.put_many([KvPutItem("acme", "a", b""), KvPutItem("other", "a", b"")])
        assert {at: type(error) for at, error in result.errors.items()} == {1: PermissionDeniedError}
        watch = client.watch("kv", tenant="acme").opened()
        with pytest.raises(PermissionDeniedError):
            client.watch("kv").opened()

        began_s = time.monotonic()
        boss.principals.put(app, [Given("writer", "other")])
        wait_until(lambda: refused(watch.next), "the watch ends")
        assert refused(put)
        assert time.monotonic() - began_s < TIMEOUT_S / 10
        boss.principals.put(app, [Given("admin")], denied=True)
        wait_until(lambda: is_closed(put), "its connection is closed")
        with pytest.raises(UnauthenticatedError, match="denied everything"):
            checked.client(scheme, certificates.client("app"))
        boss.principals.delete(app)
        boss.principals.put("metad://client/boss", denied=True)
        boss.principals.delete("metad://client/boss")


def test_nobody_writes_in_the_name_of_a_life_that_no_registration_gave(checked: Door) -> None:
    app = "metad://client/app"
    with (
        checked.client("metads", certificates.client("boss")) as boss,
        checked.client("metads", certificates.client("app")) as client,
        checked.client("metads", certificates.client("app")) as free,
    ):
        boss.roles.put("lives", [Grant(["own"], ["broker"], "b1"), Grant(["read", "write", "delete"], scope="lives")])
        boss.principals.put(app, [Given("lives")])
        wait_until(lambda: not refused(lambda: client.sessions.get("lives", "device")), "the role counts")
        for epoch in (1, 2**62):
            with pytest.raises(FencedError, match="none that a registration gave"):
                free.sessions.takeover("b1", epoch, "lives", "device")
        life = client.brokers.register("b1")
        client.sessions.takeover(life.broker, life.epoch, "lives", "device")
        free.sessions.takeover(life.broker, life.epoch, "lives", "device")
        with pytest.raises(FencedError):
            free.sessions.takeover("b1", life.epoch + 1, "lives", "device")
        session = boss.sessions.get("lives", "device")
        assert (session.broker, session.broker_epoch) == ("b1", life.epoch)
        life.end()
        boss.principals.delete(app)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_certificate_that_ends_ends_its_connections(checked: Door, scheme: str) -> None:
    brief = certificates.short_lived(f"brief-{scheme}", 4.0)
    with checked.client(scheme, brief) as client:
        assert client.principals.may().principal == f"metad://client/brief-{scheme}"
        wait_until(lambda: is_closed(client.principals.may), "the certificate has ended")


def test_metadctl_says_and_changes_who_may_do_what(checked: Door, tmp_path: Path) -> None:
    def auth(files: TlsFiles, *words: str, status: int = 0) -> Any:
        where = f"metads://127.0.0.1:{checked.port}"
        ran = metadctl(where, *flags_of(files), "--json", "auth", *words)
        assert ran.returncode == status, ran.stderr
        return json.loads(ran.stdout) if ran.stdout else ran.stderr

    boss, team = certificates.client("boss"), certificates.client("team")
    assert auth(boss, "whoami")["administers"]
    auth(boss, "role", "topics-of-acme", "read,write:topic:acme*:orders/", "--about", "for tests")
    assert auth(boss, "grant", "team", "topics-of-acme", "reader@b")["roles"][1] == {"role": "reader", "scope": "b"}
    for right, key, may in (
        ("write", "acme1/orders/x", 0),
        ("write", "acme/x", 1),
        ("read", "b/x", 0),
        ("read", "*", 1),
    ):
        assert auth(boss, "can", "team", right, "topic", key, status=may)["may"] is not bool(may)
    assert "may not read principal" in auth(team, "bindings", status=1)
    assert {one["role"] for one in auth(boss, "roles")["roles"]} > {"admin", "reader", "topics-of-acme"}
    assert "has the role" in auth(boss, "drop", "topics-of-acme", status=1)
    assert auth(boss, "revoke", "team")["roles"] == []
    auth(boss, "drop", "topics-of-acme")
    assert auth(boss, "deny", "broker/b1")["principal"] == "metad://broker/b1"
    assert auth(boss, "bindings")["bindings"] == [{"principal": "metad://broker/b1", "roles": [], "denied": True}]
    auth(boss, "allow", "broker/b1")
