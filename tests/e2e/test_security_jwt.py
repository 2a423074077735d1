"""JWTs at the doors of a real node, over TLS and over QUIC: for whom they count, for how long, and by which keys."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from e2e_metadctl import printed
from jwt.algorithms import ECAlgorithm
from test_security import SCHEMES, TIMEOUT_S, Door, is_closed, refused

from metad.server.jwt_keys import LEEWAY_S
from metad_client import Given, Grant, UnauthenticatedError
from metad_perf.attack import sites as certificates
from waiting import wait_until


class Issuer:
    """Signs tokens, and says by which keys they are verified."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self._listed: list[str] = []

    def lists(self, *kids: str) -> None:
        """Replace the file by one with these keys, which are made if they are new."""
        for kid in kids:
            self._keys.setdefault(kid, ec.generate_private_key(ec.SECP256R1()))
        found = [ECAlgorithm.to_jwk(self._keys[kid].public_key(), as_dict=True) | {"kid": kid} for kid in kids]
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"keys": found}))
        os.replace(new, self._file)

    def token(self, name: str, kid: str = "a", *, lasts_s: float = 3_600, **more: Any) -> bytes:
        claims = {"azp": name, "iss": "https://issuer.example", "aud": ["other", "metad"], "exp": time.time() + lasts_s}
        return jwt.encode(claims | more, self._keys[kid], "ES256", headers={"kid": kid}).encode()


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    issuer = Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")
    issuer.lists("a")
    return issuer


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Door]:
    more = [
        "authorization = true",
        'administrators = ["boss"]',
        f'jwt_keys_file = "{issuer._file}"',
        'jwt_issuer = "https://issuer.example"',
        'jwt_audience = "metad"',
        'jwt_principal_claim = "azp"',
    ]
    door = Door(tmp_path_factory.mktemp("door"), more="\n".join(more))
    with door.server as server:
        server.ready()
        with door.client("metads", certificates.client("boss")) as boss:
            boss.roles.put("writer", [Grant(["read", "write"], ["kv"], "acme")])
            for name in ("robot", "auth0|5", "renewed-metads", "renewed-metadq"):
                boss.principals.change(f"metad://client/{name.replace('|', '%7C')}", [Given("writer")])
        yield door
        assert server.terminate() == 0
        assert "Traceback" not in server.stderr, server.stderr
        server.quiet()


ANYBODY = certificates.anonymous


def why(door: Door, scheme: str, token: bytes) -> str:
    """Why a token is refused; empty: it is not. No token is in the log."""
    reason = ""
    try:
        with door.client(scheme, ANYBODY(), token) as client:
            client.principals.may()
    except UnauthenticatedError as error:
        reason = str(error)
    assert token.decode() not in door.server.stderr + reason
    return reason


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_roles_of_its_principal_count_for_a_jwt(door: Door, issuer: Issuer, scheme: str) -> None:
    with door.client(scheme, ANYBODY(), issuer.token("auth0|5")) as client:
        assert client.principals.may().principal == "metad://client/auth0%7C5"
        client.kv.put("acme", "key", b"value")
        assert refused(lambda: client.kv.put("other", "key", b"value"))
    with door.client(scheme, ANYBODY(), issuer.token("stranger")) as client:
        assert refused(lambda: client.kv.put("acme", "key", b"value"))
    with door.client(scheme, ANYBODY(), issuer.token("spiffe://acme.example/orders")) as client:
        assert client.principals.may().principal == "spiffe://acme.example/orders"
    with door.client(scheme, ANYBODY(), issuer.token("node-1", role="admin")) as client:
        assert not client.principals.may().administers
    with door.client(scheme, ANYBODY(), issuer.token("boss")) as client:
        assert client.principals.may().administers, "its name is in the configuration"
    assert door.lets_in(scheme, certificates.client("boss"))
    with door.client(scheme, ANYBODY(), door.token.encode()) as client:
        assert client.principals.may().principal == "metad://client/app", "other tokens go on"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_jwt_that_does_not_count_is_told_why(door: Door, issuer: Issuer, scheme: str) -> None:
    stranger = Issuer(door.tokens_file.with_name("strangers"))
    stranger.lists("a", "b")
    unsigned = jwt.encode({"azp": "boss", "exp": 9e9}, "", "none").encode()
    for token, reason in (
        (stranger.token("robot"), "signed by no key"),
        (stranger.token("robot", "b"), "signed by no key"),
        (unsigned, "signed by no key"),
        (issuer.token("robot", lasts_s=-60), "has ended"),
        (issuer.token("robot", nbf=time.time() + 60), "not valid yet"),
        (issuer.token("robot", iss="other"), "another issuer"),
        (issuer.token("robot", aud="other"), "another audience"),
        (issuer.token(""), "names nobody"),
        (b"a.b.c", "nor a JWT"),
        (b"x" * 9_000, "not known here"),
    ):
        assert reason in why(door, scheme, token)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_ends_with_its_jwt(door: Door, issuer: Issuer, scheme: str) -> None:
    lasts_s = 3.0
    began_s = time.time()
    with (
        door.client(scheme, ANYBODY(), issuer.token("robot", lasts_s=lasts_s)) as client,
        door.client(scheme, ANYBODY(), issuer.token("robot")) as other,
    ):
        states: list[Any] = []
        other.kv.put("acme", "key", b"value")
        other.on_state(states.append)
        while time.time() < began_s + lasts_s:
            client.kv.put("acme", "key", b"value")
        wait_until(lambda: is_closed(client.principals.may), "the token has ended")
        assert time.time() - began_s >= lasts_s + LEEWAY_S - 1
        with pytest.raises(UnauthenticatedError, match="the token has ended"):
            client.kv.put("acme", "key", b"value")
        assert states == [], "other connections stay"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_has_a_new_jwt_in_time_notices_nothing(door: Door, issuer: Issuer, scheme: str, tmp_path: Path) -> None:
    file, lasts_s = tmp_path / "token", 4.0
    file.write_bytes(issuer.token(f"renewed-{scheme}", lasts_s=lasts_s) + b"\n")
    ends_s = time.time() + lasts_s
    with door.client(scheme, ANYBODY(), credentials_file=str(file)) as client:
        watch = client.watch("kv", tenant="acme").opened()
        client.kv.put("acme", "key", b"value")
        file.with_suffix(".new").write_bytes(issuer.token(f"renewed-{scheme}"))
        os.replace(file.with_suffix(".new"), file)
        count = 0
        while time.time() < ends_s + LEEWAY_S + 2:
            client.kv.put("acme", f"key {count}", b"value", deadline_s=TIMEOUT_S)
            count += 1
            time.sleep(0.005)
        seen = set()
        while f"key {count - 1}" not in seen:
            seen |= {event.key.key for event in watch.next().events}
        assert len(seen) > count, "the watch goes on, too"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_keys_are_replaced_without_a_restart(door: Door, issuer: Issuer, scheme: str) -> None:
    old, new = f"old-{scheme}", f"new-{scheme}"
    try:
        issuer.lists("a", old)
        with contextlib.ExitStack() as stack:

            def let_in(token: bytes) -> Any:
                wait_until(lambda: not why(door, scheme, token), "the key is known")
                return stack.enter_context(door.client(scheme, ANYBODY(), token))

            by_old, by_a = let_in(issuer.token("robot", old)), let_in(issuer.token("robot"))
            issuer.lists("a", old, new)
            by_new = let_in(issuer.token("robot", new))
            for client in (by_old, by_a, by_new):
                client.kv.put("acme", "key", b"value")
            issuer.lists("a", new)
            wait_until(lambda: is_closed(by_old.principals.may), "the old key's connection ends")
            assert "signed by no key" in why(door, scheme, issuer.token("robot", old))
            for client in (by_a, by_new):
                client.kv.put("acme", "key", b"value")
            issuer._file.write_text("half a fi")
            wait_until(lambda: bool(why(door, scheme, b"x.y.z")) and _complaints(door) > 0, "the complaint")
            assert not why(door, scheme, issuer.token("robot", new))
            issuer._file.unlink()
            for client in (by_new, by_a):
                wait_until(functools.partial(is_closed, client.principals.may), "without a file no token counts")
            assert "signed by no key" in why(door, scheme, issuer.token("robot"))
            assert door.lets_in(scheme, certificates.client("boss"))
    finally:
        issuer.lists("a")
        wait_until(lambda: not why(door, scheme, issuer.token("robot")), "the file is back")


def _complaints(door: Door) -> int:
    return sum(said.get("what") == "keys of JWTs" for said in door.server.events("files_unusable"))


def test_metadctl_shows_the_principal_of_a_jwt(door: Door, issuer: Issuer, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(issuer.token("auth0|5") + b"\n")
    flags = ("--tls-ca", ANYBODY().ca, "--token-file", str(tmp_path / "token"))
    found = printed(f"metads://127.0.0.1:{door.port}", *flags, "auth", "whoami")
    assert (found["principal"], found["administers"]) == ("metad://client/auth0%7C5", False)
    assert found["roles"] == [{"role": "writer", "scope": "*"}]
