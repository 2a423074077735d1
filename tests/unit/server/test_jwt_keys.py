"""JWTs: which keys a file may have, which tokens they verify, and for whom these count."""

from __future__ import annotations

import base64
import functools
import json
import math
import random
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from metad.config import SecurityConfig, load_config
from metad.errors import ConfigError
from metad.server.access import Access, Trust
from metad.server.jwt_keys import FILE_BYTES_MAX, KEYS_MAX, LEEWAY_S, TIME_MAX, Jwt, JwtKeys, JwtKeysError
from metad.server.network import Network
from metad.server.serve import _ended, _is_to_renew
from metad_perf.attack import sites as certificates
from metad_wire.connection.frame import HANDSHAKE_BYTES_MAX
from metad_wire.errors import UnauthenticatedError
from metad_wire.operator.tokens import line_of, new_token
from metad_wire.tables.access import PRINCIPAL_BYTES_MAX
from metad_wire.transport.credentials import Principal, Role, principal_named

NOW_S = 1_800_000_000.0
CLAIMS = {"sub": "app", "exp": NOW_S + 60}
PLAIN = SecurityConfig()
SIGNED_BY_NO_KEY = "signed by no key that is known here"
UNREADABLE = "nor a JWT that can be read"


def private(kind: str, number: int = 0) -> Any:
    """A key of an issuer."""
    return _made(kind, number)


@functools.cache
def _made(kind: str, number: int) -> Any:
    return {
        "RSA": lambda: rsa.generate_private_key(65537, 2048),
        "weak RSA": lambda: rsa.generate_private_key(65537, 1024),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
        "ES256K": lambda: ec.generate_private_key(ec.SECP256K1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
        "Ed448": ed448.Ed448PrivateKey.generate,
        "DSA": lambda: dsa.generate_private_key(1024),
    }[kind]()


def public_pem(kind: str, number: int = 0) -> str:
    public = private(kind, number).public_key()
    return str(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def jwk(kind: str, number: int = 0, **more: Any) -> dict[str, Any]:
    maker: Any = RSAAlgorithm if "RSA" in kind else ECAlgorithm if kind.startswith("ES") else OKPAlgorithm
    made = maker.to_jwk(private(kind, number).public_key(), as_dict=True)
    made.pop("key_ops", None)
    return made | more


def secret(size: int, **more: Any) -> dict[str, Any]:
    return HMACAlgorithm.to_jwk(bytes(range(size)), as_dict=True) | more


def jwks(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": keys})


def part(data: bytes | dict[str, Any]) -> bytes:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def signed(claims: dict[str, Any] | bytes = CLAIMS, alg: str = "ES256", key: Any = None, **header: Any) -> bytes:
    """A token; ``claims`` may be any bytes."""
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    key = private("RSA" if alg[:2] in ("RS", "PS") else alg) if key is None else key
    return jwt.PyJWS().encode(body, key, alg, headers=header or None).encode()


def of(token: bytes, keys: JwtKeys | None = None, security: SecurityConfig = PLAIN, now_s: float = NOW_S) -> Jwt:
    return (ONE if keys is None else keys).verified(token, security, now_s)


def refusal(token: bytes, keys: JwtKeys | None = None, security: SecurityConfig = PLAIN, now_s: float = NOW_S) -> str:
    """Why it is refused; the reason repeats nothing of the token."""
    with pytest.raises(UnauthenticatedError) as caught:
        of(token, keys, security, now_s)
    for piece in token.split(b"."):
        assert len(piece) < 8 or piece.decode("latin-1") not in str(caught.value)
    return str(caught.value)


ONE = JwtKeys.parse(jwks(jwk("ES256")))
TWO = JwtKeys.parse(jwks(jwk("ES256", kid="a"), jwk("RSA", kid="b")))


# --- algorithms and keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "alg"),
    [
        (jwk("RSA"), "RS256"),
        (jwk("RSA", alg="RS512"), "RS512"),
        (jwk("RSA", alg="PS384"), "PS384"),
        (jwk("ES256"), "ES256"),
        (jwk("ES384"), "ES384"),
        (jwk("ES512", alg="ES512"), "ES512"),
        (jwk("EdDSA"), "EdDSA"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_public_key_verifies_its_own_algorithm(key: dict[str, Any], alg: str) -> None:
    found = of(signed(alg=alg), JwtKeys.parse(jwks(key)))
    assert found.principal == Principal(Role.CLIENT, "app")
    assert (found.ends_s, found.key.algorithm) == (NOW_S + 60 + LEEWAY_S, alg)


@pytest.mark.parametrize(("alg", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_verifies_where_it_names_its_algorithm(alg: str, size: int) -> None:
    keys = JwtKeys.parse(jwks(secret(size, alg=alg)))
    assert of(signed(alg=alg, key=bytes(range(size))), keys).principal.name == "app"
    assert SIGNED_BY_NO_KEY in refusal(signed(alg=alg, key=bytes(size)), keys)


@pytest.mark.parametrize("kind", ["RSA", "ES256", "ES384", "ES512", "EdDSA"])
def test_a_public_key_in_pem_verifies_whatever_name_the_issuer_gives_it(kind: str) -> None:
    keys = JwtKeys.parse(public_pem(kind))
    alg = "RS256" if kind == "RSA" else kind
    assert of(signed(alg=alg), keys).principal.name == "app"
    assert of(signed(alg=alg, kid="x"), keys).key in keys


@pytest.mark.parametrize("alg", ["RS384", "RS512", "PS256"])
def test_the_key_decides_the_algorithm_and_not_the_token(alg: str) -> None:
    """The signature is right, and by the right key."""
    assert SIGNED_BY_NO_KEY in refusal(signed(alg=alg), JwtKeys.parse(jwks(jwk("RSA"))))


def test_a_public_key_is_no_secret() -> None:
    """Whoever signs with the public key as the secret of an HMAC is nobody."""
    import hashlib
    import hmac

    pem, head = public_pem("RSA"), part({"alg": "HS256", "typ": "JWT"}) + b"." + part(CLAIMS)
    spki = private("RSA").public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for known in (pem, pem.strip(), spki, jwks(jwk("RSA"))):
        shared = known.encode() if isinstance(known, str) else known
        token = head + b"." + part(hmac.new(shared, head, hashlib.sha256).digest())
        for keys in (JwtKeys.parse(pem), JwtKeys.parse(jwks(jwk("RSA")))):
            assert SIGNED_BY_NO_KEY in refusal(token, keys)


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None, 5, [], "HS256", "ES384", "ES256K", "RS256"])
@pytest.mark.parametrize("signature", [b"", b"right"])
def test_no_other_algorithm_and_none_at_all_is_accepted(alg: Any, signature: bytes) -> None:
    head = part({"alg": alg}) + b"." + part(CLAIMS)
    end = part(ECAlgorithm(ECAlgorithm.SHA256).sign(head, private("ES256"))) if signature else b""
    assert SIGNED_BY_NO_KEY in refusal(head + b"." + end)


def test_a_token_without_an_algorithm_is_refused() -> None:
    assert SIGNED_BY_NO_KEY in refusal(part({}) + b"." + part(CLAIMS) + b"." + part(b"x" * 64))


def test_a_kid_selects_and_one_answer_says_all() -> None:
    """Which keys there are is not told."""
    a, b = signed(kid="a"), signed(alg="RS256", kid="b")
    assert of(a, TWO).key.kid == "a"
    assert of(b, TWO).key.kid == "b"
    wrong = [
        signed(),  # several keys, and no kid
        signed(kid="c"),
        signed(kid="b"),  # another kind of key
        signed(kid="a", key=private("ES256", 1)),
        signed(kid=""),
        a[:-4] + (b"AAAA" if a[-4:] != b"AAAA" else b"BBBB"),
        part({"alg": "ES256", "kid": None}) + a[a.index(b".") :],
        part({"alg": "ES256", "kid": ["a"]}) + a[a.index(b".") :],
        part({"alg": "ES256", "kid": {"a": 1}}) + a[a.index(b".") :],
    ]
    assert {refusal(token, TWO) for token in wrong} == {f"the token is {SIGNED_BY_NO_KEY}"}


def test_one_key_with_a_name_takes_tokens_of_that_name_or_of_none() -> None:
    keys = JwtKeys.parse(jwks(jwk("ES256", kid="a")))
    assert of(signed(), keys).key == of(signed(kid="a"), keys).key
    assert SIGNED_BY_NO_KEY in refusal(signed(kid="b"), keys)


def test_without_keys_nobody_is_known() -> None:
    assert SIGNED_BY_NO_KEY in refusal(signed(), JwtKeys([]))


def test_headers_that_change_the_meaning_are_refused() -> None:
    for header in ({"crit": ["exp"], "exp": 1}, {"crit": []}, {"crit": "b64"}, {"b64": False, "crit": ["b64"]}):
        token = part({"alg": "ES256", **header}) + b"." + part(CLAIMS)
        token += b"." + part(ECAlgorithm(ECAlgorithm.SHA256).sign(token, private("ES256")))
        assert SIGNED_BY_NO_KEY in refusal(token)


@pytest.mark.parametrize("kind", ["RSA", "ES256", "ES384", "ES512", "EdDSA"])
def test_signatures_of_any_length_are_refused(kind: str) -> None:
    keys, alg = JwtKeys.parse(public_pem(kind)), "RS256" if kind == "RSA" else kind
    head = part({"alg": alg}) + b"." + part(CLAIMS)
    for size in (0, 1, 31, 63, 64, 65, 96, 132, 255, 256, 257, 4_000):
        for data in (bytes(size), random.Random(size).randbytes(size)):
            assert SIGNED_BY_NO_KEY in refusal(head + b"." + part(data), keys)


# --- what cannot be read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [b"", b"app.secret", b"a.b.c.d", b"....", b"x"])
def test_what_has_not_three_parts_is_an_unknown_token(token: bytes) -> None:
    assert refusal(token) == "the token is not known here"


GOOD = signed()
HEAD, BODY, END = GOOD.split(b".")
BOMB = b"[" * 12_000


@pytest.mark.parametrize(
    "token",
    [
        b"..",
        b"a.b.c",
        b"\xff\xfe.\xff.\xff",
        b".".join([HEAD + b"=", BODY, END]),
        b".".join([HEAD, BODY + b"==", END]),
        b".".join([HEAD, BODY, END + b"\n"]),
        b" " + GOOD,
        b".".join([HEAD, BODY, END.replace(b"_", b"/").replace(b"-", b"+") + b"/+A"]),
        b".".join([part(b"[]"), BODY, END]),
        b".".join([part(b"null"), BODY, END]),
        b".".join([part(b"\xff"), BODY, END]),
        b".".join([part(BOMB), BODY, END]),
        b".".join([part(b'{"alg":' * 1_500), BODY, END]),
        b".".join([part(b'{"alg":"none","alg":"ES256"}'), BODY, END]),
        b".".join([part(b'{"alg":"ES256","x":NaN}'), BODY, END]),
        b".".join([part(b'{"alg":"ES256","x":1e999}'), BODY, END]),
        b".".join([part(b'{"alg":"ES256","x":' + b"9" * 9_000 + b"}"), BODY, END]),
        b".".join([part('{"alg":"ES256"}'.encode("utf-16")), BODY, END]),
    ],
)
def test_what_cannot_be_read_is_refused(token: bytes) -> None:
    assert len(token) < HANDSHAKE_BYTES_MAX, "a handshake holds no more"
    assert UNREADABLE in refusal(token)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"app"',
        BOMB,
        b'{"exp":' * 2_000,
        b"\xff",
        b'{"sub":"app","sub":"boss","exp":1800000060}',
        b'{"sub":"app","exp":1,"exp":1800000060}',
        b'{"sub":"app","exp":NaN}',
        b'{"sub":"app","exp":Infinity}',
        b'{"sub":"app","exp":1e999}',
        b'{"sub":"app","exp":' + b"9" * 9_000 + b"}",
        b'{"sub":"app","exp":1800000060,"x":{"a":1,"a":2}}',
    ],
)
def test_claims_that_cannot_be_read_are_refused_though_they_are_signed(body: bytes) -> None:
    assert UNREADABLE in refusal(signed(body))


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=100))
def test_no_bytes_get_in_by_chance(header: bytes, body: bytes, end: bytes) -> None:
    refusal(b".".join(map(part, (header, body, end))))


@given(
    st.dictionaries(
        st.sampled_from(["sub", "exp", "nbf", "iat", "aud", "iss", "x"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        ),
    )
)
def test_claims_of_any_type_are_refused_or_name_a_client(claims: dict[str, Any]) -> None:
    try:
        found = of(signed(claims), security=SecurityConfig(jwt_issuer="i", jwt_audience="a", authorization=True))
    except UnauthenticatedError:
        return
    assert found.principal.role is Role.CLIENT
    assert principal_named(found.principal.uri) == found.principal


# --- times -----------------------------------------------------------------------------------------------


def test_a_token_counts_until_its_end() -> None:
    token = signed()
    assert of(token, now_s=NOW_S + 60 + LEEWAY_S - 0.1).principal.name == "app"
    for late_s in (60 + LEEWAY_S, 61 + LEEWAY_S, 1e9):
        assert refusal(token, now_s=NOW_S + late_s) == "the token has ended (exp)"
    assert "has ended" in refusal(signed(CLAIMS | {"exp": 0}))


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_a_token_does_not_count_before_it_begins(claim: str) -> None:
    token = signed(CLAIMS | {claim: NOW_S + 30})
    assert refusal(token) == f"the token is not valid yet ({claim})"
    assert of(token, now_s=NOW_S + 30 - LEEWAY_S).principal.name == "app"


def test_a_token_without_end_is_refused() -> None:
    assert refusal(signed({"sub": "app"})) == "the token does not say when it ends (exp)"


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "value", [None, True, "1800000060", [], {}, -1, -0.5, 10**300, TIME_MAX + 1, float(10**300)], ids=repr
)
def test_a_time_is_a_number_of_seconds(claim: str, value: Any) -> None:
    assert refusal(signed(CLAIMS | {claim: value})) == f"the token's {claim} is no time"


def test_parts_of_seconds_count() -> None:
    assert of(signed(CLAIMS | {"exp": NOW_S + 0.5})).ends_s == NOW_S + 0.5 + LEEWAY_S


# --- issuer, audience, name ------------------------------------------------------------------------------


@pytest.mark.parametrize("issuer", ["other", "us.evil.example", "", None, ["us"], {"us": 1}, 5])
def test_the_issuer_is_the_one_that_is_configured(issuer: Any) -> None:
    security = SecurityConfig(jwt_issuer="us")
    assert of(signed(CLAIMS | {"iss": "us"}), security=security).principal.name == "app"
    assert "another issuer" in refusal(signed(CLAIMS | {"iss": issuer}), security=security)
    assert "another issuer" in refusal(signed(), security=security)
    assert of(signed(CLAIMS | {"iss": issuer})).principal.name == "app", "where none is configured"


@pytest.mark.parametrize("audience", ["other", "", None, [], ["other", 5], {"metad": 1}, 5, "metad2", [["metad"]]])
def test_the_audience_is_the_one_that_is_configured(audience: Any) -> None:
    security = SecurityConfig(jwt_audience="metad")
    for right in ("metad", ["metad"], ["other", "metad"]):
        assert of(signed(CLAIMS | {"aud": right}), security=security).principal.name == "app"
    assert "another audience" in refusal(signed(CLAIMS | {"aud": audience}), security=security)
    assert "another audience" in refusal(signed(), security=security)
    assert "this node has none" in refusal(signed(CLAIMS | {"aud": audience})), "where none is configured"


@pytest.mark.parametrize("name", [None, "", 5, True, ["app"], {"name": "app"}, 1.5])
def test_a_name_is_text(name: Any) -> None:
    assert refusal(signed(CLAIMS | {"sub": name})) == "the token names nobody (sub)"


def test_a_token_without_name_is_nobodys() -> None:
    assert refusal(signed({"exp": NOW_S + 60})) == "the token names nobody (sub)"
    security = SecurityConfig(jwt_principal_claim="azp")
    assert refusal(signed(), security=security) == "the token names nobody (azp)"
    assert of(signed(CLAIMS | {"azp": "other"}), security=security).principal.name == "other"


def test_a_name_is_no_longer_than_a_role_may_be_bound_to() -> None:
    long = PRINCIPAL_BYTES_MAX - len("metad://client/")
    assert len(of(signed(CLAIMS | {"sub": "x" * long})).principal.uri) == PRINCIPAL_BYTES_MAX
    for name in ("x" * (long + 1), "ü" * (long // 6 + 1), "x" * 8_000):
        assert "longer than 512 bytes" in refusal(signed(CLAIMS | {"sub": name}))
    assert "is no text" in refusal(signed(b'{"sub":"\\ud800","exp":1800000060}'))


@pytest.mark.parametrize("name", ["system:serviceaccount:a:b", "auth0|5", "a/b", "metad://node/n1", "node", "ü ?#%2F"])
def test_whatever_its_name_a_token_makes_a_client(name: str) -> None:
    principal = of(signed(CLAIMS | {"sub": name})).principal
    assert principal == Principal(Role.CLIENT, name)
    assert principal_named(principal.uri) == principal


def test_a_spiffe_id_counts_where_roles_say_what_it_may() -> None:
    token, on = signed(CLAIMS | {"sub": "spiffe://acme.example/ns/orders"}), SecurityConfig(authorization=True)
    assert of(token, security=on).principal.uri == "spiffe://acme.example/ns/orders"
    assert "SPIFFE id" in refusal(token)
    for name in ("spiffe://", "spiffe:///x", "spiffe://[x"):
        assert "SPIFFE id" in refusal(signed(CLAIMS | {"sub": name}), security=on)
    long = signed(CLAIMS | {"sub": "spiffe://acme/" + "x" * 600})
    assert "longer than" in refusal(long, security=on)


# --- files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "neither a JWKS nor"),
        ("half a li", "neither a JWKS nor"),
        ("[]", "neither a JWKS nor"),
        ("{", "no JSON of the right form"),
        ('{"keys": [], "keys": []}', "a name occurs twice"),
        ('{"keys": ' + "[" * 100_000, "nested too deeply"),
        ("{}", 'no list "keys"'),
        ('{"keys": {}}', 'no list "keys"'),
        (json.dumps(jwk("ES256")), 'no list "keys"'),
        ('{"keys": []}', "no key for signatures"),
        ('{"keys": [5]}', "key 1: it is no JWK"),
        (jwks(*([{}] * (KEYS_MAX + 1))), "257 keys, 256 are allowed"),
        (jwks(jwk("ES256"), {}), "key 2: its kty is none of"),
        (jwks(jwk("ES256") | {"kty": ["EC"]}), "its kty is none of"),
        (jwks(jwk("ES256", kid=5)), "its kid is no text"),
        (jwks(jwk("ES256"), jwk("RSA")), "each of several keys needs a kid of its own"),
        (jwks(jwk("ES256", kid="a"), jwk("RSA")), "each of several keys needs a kid of its own"),
        (jwks(jwk("ES256", kid="a"), jwk("RSA", kid="a")), "each of several keys needs a kid of its own"),
        (jwks(jwk("ES256", d="AAAA")), "a private key"),
        (jwks({"kty": "RSA", "e": "AQAB"}), "its n is missing, or no base64url"),
        (jwks(jwk("ES256", x=5)), "its x is missing, or no base64url"),
        (jwks(jwk("ES256", x="ü")), "its x is missing, or no base64url"),
        (jwks(jwk("ES256", x="AAAA=")), "its x is missing, or no base64url"),
        (jwks(jwk("ES256", x="AAAA")), "it is no key for ES256"),
        (jwks(jwk("ES256", x="A" * 43)), "it is no key for ES256"),
        (jwks(jwk("EdDSA", x="AAAA")), "it is no key for EdDSA"),
        (jwks({"kty": "RSA", "n": "", "e": "AQAB"}), "it is no key for RS256"),
        (jwks(jwk("ES256", alg="ES384")), "its alg is none of ES256"),
        (jwks(jwk("RSA", alg="HS256")), "its alg is none of PS256"),
        (jwks(jwk("RSA", alg="none")), "its alg is none of PS256"),
        (jwks(jwk("RSA", alg=["RS256"])), "its alg is none of PS256"),
        (jwks(jwk("RSA", alg="RSA-OAEP")), "its alg is none of PS256"),
        (jwks(jwk("ES256K")), "its crv is none of"),
        (jwks(jwk("Ed448")), "its crv is none of"),
        (jwks(jwk("weak RSA")), "2048 to 8192 bits, not 1024"),
        (jwks(secret(32)), "its alg is none of HS256, HS384, HS512"),
        (jwks(secret(32, alg="RS256")), "its alg is none of HS256, HS384, HS512"),
        (jwks(secret(31, alg="HS256")), "at least 32 bytes"),
        (jwks(secret(47, alg="HS384")), "at least 48 bytes"),
        (jwks(secret(63, alg="HS512")), "at least 64 bytes"),
        (jwks({"kty": "oct", "alg": "HS256"}), "its k is missing"),
        ("-----BEGIN PUBLIC KEY-----\nhalf", "no public key in PEM"),
        (public_pem("ES256") + public_pem("RSA"), "a file in PEM has one key"),
        (public_pem("weak RSA"), "2048 to 8192 bits, not 1024"),
        (public_pem("ES256K"), "its crv is none of"),
        (public_pem("Ed448"), "its crv is none of"),
        (public_pem("DSA"), "none of RSA, EC and Ed25519"),
        (
            private("ES256").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
            "a private key",
        ),
    ],
)
def test_a_file_of_no_use_says_why(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(JwtKeysError, match=complaint) as caught:
        JwtKeys.read(str(path))
    assert str(caught.value).startswith(str(path))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(JwtKeysError, match="cannot read"):
        JwtKeys.read(str(path))
    path.write_bytes(b"{\xff")
    with pytest.raises(JwtKeysError, match="is not text"):
        JwtKeys.read(str(path))
    path.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(JwtKeysError, match="longer than"):
        JwtKeys.read(str(path))


def test_keys_that_are_not_for_signatures_are_left_out() -> None:
    """Issuers list those for encryption beside."""
    others = (jwk("RSA", 1, use="enc", alg="RSA-OAEP"), jwk("RSA", 1, key_ops=["encrypt"]), jwk("RSA", 1, key_ops=5))
    keys = JwtKeys.parse(jwks(jwk("ES256", use="sig", key_ops=["verify"]), *others))
    assert len(keys) == 1
    assert of(signed(), keys).principal.name == "app"


# --- the door --------------------------------------------------------------------------------------------


class Anonymous:
    """A stream whose peer showed no certificate."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


NOBODY: Any = Anonymous()


class Certified(Anonymous):
    """A stream of the client ``app``."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"subjectAltName": (("URI", "metad://client/app"),)} if name == "peercert" else default


def access(tmp_path: Path, text: str = "", *tokens: str, **more: Any) -> Access:
    (tmp_path / "keys").write_text(text or jwks(jwk("ES256")))
    (tmp_path / "tokens").write_text("".join(line_of(token) + "\n" for token in tokens))
    files = {"jwt_keys_file": str(tmp_path / "keys")} | ({"tokens_file": str(tmp_path / "tokens")} if tokens else {})
    return Access(SecurityConfig(certificate="c", key="k", ca="a", **files, **more), encrypted=True)


def test_tokens_of_the_list_come_first_and_others_may_be_jwts(tmp_path: Path) -> None:
    token = new_token("other")
    rules = access(tmp_path, "", token, "listed.with.dots")
    assert rules.admit(NOBODY, token.encode(), NOW_S) == (Principal(Role.CLIENT, "other"), None)
    assert rules.admit(NOBODY, b"listed.with.dots", NOW_S) == (Principal(Role.CLIENT, "listed"), None)
    admitted = rules.admit(NOBODY, signed(), NOW_S)
    assert admitted.jwt is not None
    assert admitted.principal == admitted.jwt.principal == Principal(Role.CLIENT, "app")
    for wrong in (b"app.secret", b"x", b"a.b.c"):
        with pytest.raises(UnauthenticatedError, match="known here"):
            rules.admit(NOBODY, wrong, NOW_S)
    with pytest.raises(UnauthenticatedError, match="a certificate or a token is needed"):
        rules.admit(NOBODY, b"", NOW_S)


def test_a_jwt_beside_a_certificate_is_checked_and_names_nobody_else(tmp_path: Path) -> None:
    rules, certified = access(tmp_path), Certified()
    admitted = rules.admit(certified, signed(CLAIMS | {"sub": "other"}), NOW_S)  # type: ignore[arg-type]
    assert admitted.principal == Principal(Role.CLIENT, "app")
    assert admitted.jwt is not None
    with pytest.raises(UnauthenticatedError, match="has ended"):
        rules.admit(certified, signed(CLAIMS | {"exp": 5}), NOW_S)  # type: ignore[arg-type]
    strict = access(tmp_path, require_client_certificate=True)
    with pytest.raises(UnauthenticatedError, match="a certificate or a token is needed"):
        strict.admit(NOBODY, signed(), NOW_S)


def test_the_claim_of_a_jwt_makes_nobody_an_administrator_who_is_not_named(tmp_path: Path) -> None:
    rules = access(tmp_path, administrators=["app"])
    for claims, administers in ((CLAIMS, True), (CLAIMS | {"sub": "ops", "role": "admin"}, False)):
        assert rules.may_administer(rules.admit(NOBODY, signed(claims), NOW_S).principal) is administers


def test_a_key_that_is_removed_withdraws_its_tokens_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metad_wire.transport.reload.LOOK_S", 0.0)
    old, new = jwk("ES256", kid="old"), jwk("RSA", kid="new")
    rules = access(tmp_path, jwks(old, new))
    of_old, of_new = signed(kid="old"), signed(alg="RS256", kid="new")
    by_old, by_new = (rules.admit(NOBODY, token, NOW_S).jwt for token in (of_old, of_new))
    before = rules.accepted
    assert not rules.is_withdrawn(of_old, by_old)
    (tmp_path / "keys").write_text(jwks(new))
    assert rules.accepted != before
    assert rules.is_withdrawn(of_old, by_old)
    assert not rules.is_withdrawn(of_new, by_new)
    with pytest.raises(UnauthenticatedError, match=SIGNED_BY_NO_KEY):
        rules.admit(NOBODY, of_old, NOW_S)
    (tmp_path / "keys").write_text("half a fi")
    assert not rules.is_withdrawn(of_new, by_new), "a broken file does not replace a good one"
    assert rules.admit(NOBODY, of_new, NOW_S).jwt == by_new
    (tmp_path / "keys").write_text(jwks(jwk("RSA", 1, kid="new")))
    assert rules.is_withdrawn(of_new, by_new), "another key of the same name"
    (tmp_path / "keys").write_text(jwks(new))
    assert not rules.is_withdrawn(of_new, by_new)
    (tmp_path / "keys").unlink()
    assert rules.is_withdrawn(of_new, by_new)
    with pytest.raises(UnauthenticatedError, match=SIGNED_BY_NO_KEY):
        rules.admit(NOBODY, of_new, NOW_S)


def test_a_file_of_keys_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"security\.jwt_keys_file: .*neither a JWKS nor"):
        access(tmp_path, "junk")


def test_a_missing_package_is_said_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    for text in (jwks(jwk("ES256")), public_pem("ES256")):
        with pytest.raises(
            ConfigError, match=r"security\.jwt_keys_file: the Python package jwt .* the extra jwt: .*\[jwt\]"
        ):
            access(tmp_path, text)


def test_a_node_without_keys_imports_no_package_for_them() -> None:
    program = "import sys, metad.server.serve, metad.cli; sys.exit('jwt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=100, check=False).returncode == 0


def test_where_jwts_are_known_a_handshake_needs_no_certificate() -> None:
    files = certificates.node("node-1")
    security = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    for more, required in (({}, True), ({"jwt_keys_file": "keys"}, False)):
        network = Network.of(load_config(None, {"data_dir": "d", "security": security | more}))
        assert (network.tcp._accepting.current().verify_mode is ssl.CERT_REQUIRED) is required  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"jwt_keys_file": "k"}, "jwt_keys_file: needs security.certificate"),
        ({"jwt_issuer": "i"}, "jwt_issuer: needs security.jwt_keys_file"),
        ({"jwt_audience": "a"}, "jwt_audience: needs security.jwt_keys_file"),
        ({"jwt_principal_claim": ""}, "jwt_principal_claim: must name a claim"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config(None, {"data_dir": "d", "security": given})


def test_a_connection_ends_with_its_token() -> None:
    found = of(signed())

    class Connected:
        certificate_ends_s, trust, jwt = NOW_S + 90, Trust(), found

    connection: Any = Connected()
    ends_s = NOW_S + 60 + LEEWAY_S
    assert [_ended(connection, at_s) for at_s in (ends_s - 0.1, ends_s, NOW_S + 90)] == ["", "token", "certificate"]
    assert [_is_to_renew(connection, NOW_S + after_s) for after_s in (59.9, 60)] == [False, True]
    late = of(signed(), now_s=NOW_S + 61)
    assert late.renewed_s == math.inf, "who is let in during the leeway is not sent for another one again and again"
