"""The keys by which the JWTs of clients are verified (RFC 7519), and what a JWT must say.

A JWT is refused with a reason that neither repeats any of it nor tells which keys there are. The package for the
signatures is imported where a file of keys is read, so a node without one does not need it.
"""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any, Final, NamedTuple

from metad_wire.errors import UnauthenticatedError
from metad_wire.tables.access import PRINCIPAL_BYTES_MAX
from metad_wire.transport.credentials import Principal, Role, principal_named

from ..config import SecurityConfig

LEEWAY_S: Final = 5.0
"""By how much the clocks of an issuer and of a node may differ: a JWT counts so long after its end, and before its
beginning."""
FILE_BYTES_MAX: Final = 1024 * 1024
"""Of a file of keys."""
KEYS_MAX: Final = 256
"""In a file."""
RSA_BITS: Final = range(2048, 8192 + 1)
"""Of the modulus of an RSA key: fewer are too weak, and more take a node too long for each client."""
TIME_MAX: Final = 2**53
"""The latest time that a JWT may name, in seconds since 1970: beyond it numbers of JSON are not exact."""
_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Final = {
    ("EC", "P-256"): "ES256",
    ("EC", "P-384"): "ES384",
    ("EC", "P-521"): "ES512",
    ("OKP", "Ed25519"): "EdDSA",
}
_NUMBERS: Final = {"RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",), "oct": ("k",)}
_UNREADABLE: Final = "the token is neither known here nor a JWT that can be read"
_SPIFFE: Final = "spiffe://"


class JwtKeysError(Exception):
    """The file of keys cannot be used; the message says why."""


class JwtKey(NamedTuple):
    """A key, and the only algorithm that it verifies."""

    kid: str | None
    """None: the file gives it no name."""
    algorithm: str
    material: Any
    """A public key, or the bytes of a secret."""


class Jwt(NamedTuple):
    """A JWT that was verified."""

    principal: Principal
    renewed_s: float
    """Unix time at which its client should come with another one: when it ends by the clock of its issuer. Infinite if
    it was shown later than that."""
    ends_s: float
    """Unix time from which on it does not count any more."""
    key: JwtKey
    """By which it was verified."""


class JwtKeys:
    """Those that a node accepts."""

    def __init__(self, keys: list[JwtKey]) -> None:
        self._keys = keys

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def parse(cls, text: str) -> JwtKeys:
        """Parse the text of a file: a JWKS (RFC 7517), or a public key in PEM. Keys of a JWKS that are not for
        signatures are left out. Raises JwtKeysError, and ModuleNotFoundError without the extra ``jwt``."""
        if text.lstrip().startswith("{"):
            return cls(_keys_of(text))
        if "-----BEGIN " in text:
            return cls([_key_of_pem(text)])
        raise JwtKeysError("it is neither a JWKS nor a public key in PEM")

    @classmethod
    def read(cls, path: str) -> JwtKeys:
        """Read a file. Raises as :meth:`parse`."""
        try:
            with Path(path).open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise JwtKeysError(f"it is longer than {FILE_BYTES_MAX} bytes")
            return cls.parse(data.decode("utf-8-sig"))
        except OSError as error:
            raise JwtKeysError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise JwtKeysError(f"{path} is not text") from None
        except JwtKeysError as error:
            raise JwtKeysError(f"{path}: {error}") from None

    def verified(self, credentials: bytes, security: SecurityConfig, now_s: float) -> Jwt:
        """The JWT that these bytes are, at this Unix time. Raises UnauthenticatedError."""
        parts = credentials.split(b".")
        if len(parts) != 3:
            raise UnauthenticatedError("the token is not known here")
        try:
            head, body, signature = map(_decoded, parts)
            header = _object(head)
        except ValueError:
            raise UnauthenticatedError(_UNREADABLE) from None
        key = self._named(header.get("kid"))
        if key is None or not _is_signed(header, credentials.rpartition(b".")[0], signature, key):
            raise UnauthenticatedError("the token is signed by no key that is known here")
        try:
            claims = _object(body)
        except ValueError:
            raise UnauthenticatedError(_UNREADABLE) from None
        exp_s = _end_of(claims, now_s)
        _check_purpose(claims, security)
        renewed_s = exp_s if exp_s > now_s else math.inf
        return Jwt(_principal_of(claims, security), renewed_s, exp_s + LEEWAY_S, key)

    def _named(self, kid: object) -> JwtKey | None:
        if kid is not None and not isinstance(kid, str):
            return None
        if len(self._keys) == 1 and None in (kid, self._keys[0].kid):
            return self._keys[0]
        return next((key for key in self._keys if key.kid is not None and key.kid == kid), None)


# --- tokens ----------------------------------------------------------------------------------------------


def _is_signed(header: dict[str, Any], text: bytes, signature: bytes, key: JwtKey) -> bool:
    """What the header says of the algorithm is compared, and never used. ``crit`` and ``b64`` would change what is
    signed, and mean nothing here."""
    import jwt

    algorithm = key.algorithm
    if header.get("alg") != algorithm or "crit" in header or "b64" in header:
        return False
    return bool(jwt.get_algorithm_by_name(algorithm).verify(text, key.material, signature))


def _end_of(claims: dict[str, Any], now_s: float) -> float:
    ends_s = _time_of(claims, "exp")
    if ends_s is None:
        raise UnauthenticatedError("the token does not say when it ends (exp)")
    if ends_s + LEEWAY_S <= now_s:
        raise UnauthenticatedError("the token has ended (exp)")
    for claim in ("nbf", "iat"):
        begins_s = _time_of(claims, claim)
        if begins_s is not None and begins_s - LEEWAY_S > now_s:
            raise UnauthenticatedError(f"the token is not valid yet ({claim})")
    return ends_s


def _time_of(claims: dict[str, Any], claim: str) -> float | None:
    if claim not in claims:
        return None
    value = claims[claim]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= TIME_MAX:
        raise UnauthenticatedError(f"the token's {claim} is no time")
    return float(value)


def _check_purpose(claims: dict[str, Any], security: SecurityConfig) -> None:
    if security.jwt_issuer and claims.get("iss") != security.jwt_issuer:
        raise UnauthenticatedError("the token is of another issuer (iss), or of none")
    if security.jwt_audience:
        audience = claims.get("aud")
        if security.jwt_audience not in (audience if isinstance(audience, list) else [audience]):
            raise UnauthenticatedError("the token is for another audience (aud), or for none")
    elif "aud" in claims:
        raise UnauthenticatedError("the token is for an audience (aud), and this node has none: security.jwt_audience")


def _principal_of(claims: dict[str, Any], security: SecurityConfig) -> Principal:
    claim = security.jwt_principal_claim
    name = claims.get(claim)
    if not isinstance(name, str) or not name:
        raise UnauthenticatedError(f"the token names nobody ({claim})")
    principal: Principal | None = Principal(Role.CLIENT, name)
    if name.startswith(_SPIFFE):
        principal = principal_named(name) if security.authorization else None
        if principal is None:
            raise UnauthenticatedError(f"the token names a SPIFFE id ({claim}) that does not count here")
    assert principal is not None
    try:
        size = len(principal.uri.encode())
    except UnicodeEncodeError:
        raise UnauthenticatedError(f"the token's name ({claim}) is no text") from None
    if size > PRINCIPAL_BYTES_MAX:
        raise UnauthenticatedError(f"the token's name ({claim}) is longer than {PRINCIPAL_BYTES_MAX} bytes as a URI")
    return principal


# --- keys ------------------------------------------------------------------------------------------------


def _keys_of(text: str) -> list[JwtKey]:
    try:
        jwks = _object(text.encode())
    except ValueError as error:
        raise JwtKeysError(f"it is no JSON of the right form: {error}") from None
    given = jwks.get("keys")
    if not isinstance(given, list):
        raise JwtKeysError('it has no list "keys"')
    if len(given) > KEYS_MAX:
        raise JwtKeysError(f"it has {len(given)} keys, {KEYS_MAX} are allowed")
    keys: list[JwtKey] = []
    for number, jwk in enumerate(given, 1):
        try:
            if not isinstance(jwk, dict):
                raise JwtKeysError("it is no JWK")
            if _verifies(jwk):
                keys.append(_key_of(jwk))
        except JwtKeysError as error:
            raise JwtKeysError(f"key {number}: {error}") from None
    if not keys:
        raise JwtKeysError("it has no key for signatures")
    kids = [key.kid for key in keys]
    if len(keys) > 1 and (None in kids or len(set(kids)) < len(kids)):
        raise JwtKeysError("each of several keys needs a kid of its own")
    return keys


def _verifies(jwk: dict[str, Any]) -> bool:
    uses = jwk.get("key_ops", ["verify"])
    return jwk.get("use", "sig") == "sig" and isinstance(uses, list) and "verify" in uses


def _key_of(jwk: dict[str, Any]) -> JwtKey:
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm

    kid, kty = jwk.get("kid"), jwk.get("kty")
    if kid is not None and not isinstance(kid, str):
        raise JwtKeysError("its kid is no text")
    if not isinstance(kty, str) or kty not in _NUMBERS:
        raise JwtKeysError("its kty is none of RSA, EC, OKP and oct")
    if "d" in jwk:
        raise JwtKeysError("it is a private key, which only the issuer may have")
    for field in _NUMBERS[kty]:
        try:
            _decoded(jwk[field].encode("ascii"))
        except (KeyError, AttributeError, ValueError):
            raise JwtKeysError(f"its {field} is missing, or no base64url") from None
    algorithm = _algorithm_of(jwk, kty)
    try:
        material = jwt.PyJWK(jwk, algorithm).key
    except (jwt.PyJWTError, ValueError, UnsupportedAlgorithm):
        raise JwtKeysError(f"it is no key for {algorithm}") from None
    if kty == "RSA" and material.key_size not in RSA_BITS:
        raise JwtKeysError(f"an RSA key has {RSA_BITS[0]} to {RSA_BITS[-1]} bits, not {material.key_size}")
    if kty == "oct" and len(material) < _SECRET_BYTES[algorithm]:
        raise JwtKeysError(f"a secret for {algorithm} has at least {_SECRET_BYTES[algorithm]} bytes")
    return JwtKey(kid, algorithm, material)


def _algorithm_of(jwk: dict[str, Any], kty: str) -> str:
    """The one algorithm of a key. A secret has to name its own, because it may have been a public key elsewhere."""
    if kty == "oct":
        default, allowed = None, frozenset(_SECRET_BYTES)
    elif kty == "RSA":
        default, allowed = "RS256", _RSA
    else:
        default = _CURVES.get((kty, str(jwk.get("crv"))))
        if default is None:
            raise JwtKeysError("its crv is none of P-256, P-384, P-521 and Ed25519")
        allowed = frozenset({default})
    algorithm = jwk.get("alg", default)
    if not isinstance(algorithm, str) or algorithm not in allowed:
        raise JwtKeysError(f"its alg is none of {', '.join(sorted(allowed))}")
    return algorithm


def _key_of_pem(text: str) -> JwtKey:
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    if text.count("-----BEGIN ") != 1:
        raise JwtKeysError("a file in PEM has one key; a JWKS may have several")
    if "PRIVATE KEY-----" in text:
        raise JwtKeysError("it is a private key, which only the issuer may have")
    try:
        loaded: Any = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise JwtKeysError("it is no public key in PEM") from None
    makers: tuple[Any, ...] = (RSAAlgorithm, ECAlgorithm, OKPAlgorithm)
    for maker in makers:
        try:
            return _key_of(maker.to_jwk(loaded, as_dict=True))
        except (jwt.InvalidKeyError, AttributeError):
            continue
    raise JwtKeysError("its key is none of RSA, EC and Ed25519")


# --- text ------------------------------------------------------------------------------------------------


def _decoded(part: bytes) -> bytes:
    """Base64url as RFC 7515 has it: without padding, and no other characters. Raises ValueError."""
    data = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    if base64.urlsafe_b64encode(data).rstrip(b"=") != part:
        raise ValueError("not in base64url")
    return data


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object of a text. Raises ValueError, also if a name occurs twice or the nesting is too deep."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value
