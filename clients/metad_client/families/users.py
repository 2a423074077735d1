"""``m.users``: users who prove a password. What is kept of it is salt, iterations and a hash; it never leaves the
program, and stands in no log and no error."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import stringprep
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from metad_wire.families.core import USERS, User

from ..errors import InvalidItemError, MetadError, NotFoundError
from ..namespaces.tables import Compare, Put, Records, Transaction
from ..requests.requests import Requests
from ..requests.wrong import argument
from . import Rules, Step, only

Mechanism = Literal["scram_sha_256", "scram_sha_512", "pbkdf2_sha_256", "pbkdf2_sha_512"]
ITERATIONS: Final = {
    "scram_sha_256": 16_384,  # the most that Kafka's own tools allow: a client of SCRAM takes them at each connection
    "scram_sha_512": 16_384,
    "pbkdf2_sha_256": 600_000,
    "pbkdf2_sha_512": 210_000,
}
"""By mechanism, if no other number is given."""
Iterations = Annotated[int, Meta(ge=4_096, le=10_000_000)]
Password = Annotated[str, Meta(max_length=1_024)]
SALT_BYTES: Final = 16


class Proof(NamedTuple):
    """What is kept of a password."""

    hash: bytes
    server_key: bytes = b""


class Users(Rules):
    """Makes users, and checks their passwords. ``deadline_s`` is that of each request, and None means the client's
    default. Deriving a hash takes from some milliseconds to a second, in a thread: the event loop goes on."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self._users: Records[User] = Records(requests, USERS)

    async def create(
        self,
        tenant: str,
        user: str,
        password: str,
        *,
        mechanism: Mechanism = "scram_sha_256",
        iterations: int | None = None,
        superuser: bool = False,
        enabled: bool = True,
        attributes: dict[str, str] | None = None,
        deadline_s: float | None = None,
    ) -> int:
        """Make a user, with a salt of its own. Returns the version of the record. ``iterations``: 4,096 to 10,000,000,
        by default what suits the mechanism. Raises ConflictError if there is such a user, InvalidRequestError, and
        InvalidItemError for a password that is empty or has characters that no password has."""
        _check_password(password, mechanism, iterations)
        proof, salt, rounds = await _derived(password, mechanism, iterations)
        record = User(
            tenant, user, mechanism, salt, rounds, proof.hash, proof.server_key, superuser, enabled, attributes or {}
        )
        return await self._users.put(record, expected_version=0, deadline_s=deadline_s)

    async def set_password(
        self,
        tenant: str,
        user: str,
        password: str,
        *,
        mechanism: Mechanism | None = None,
        iterations: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Give a user another password, with a new salt; all else stays, whoever changes it meanwhile. Without
        ``mechanism`` it stays as it is. Raises NotFoundError, and the errors of :meth:`create`."""
        _check_password(password, mechanism or "scram_sha_256", iterations)
        known: dict[str, tuple[Proof, bytes, int]] = {}

        async def look(_: Sequence[None]) -> list[bool | Step[bool] | MetadError]:
            found = await self._users.get(tenant, user, deadline_s=deadline_s)
            if found is None:
                return [NotFoundError(f"there is no user {tenant}/{user}")]
            kind: Mechanism = mechanism or found.record.mechanism
            if kind not in known:
                known[kind] = await _derived(password, kind, iterations)
            proof, salt, rounds = known[kind]
            record = replace(
                found.record,
                mechanism=kind,
                salt=salt,
                iterations=rounds,
                **proof._asdict(),
            )
            compare = Compare(USERS, (tenant, user), found.version)
            return [Step(Transaction(compares=[compare], then=[Put(USERS, record)]), True)]

        done: list[bool | MetadError] = await self._done([None], look, lambda _: f"user {tenant}/{user}", deadline_s)
        only(done)

    async def check(self, tenant: str, user: str, password: str, *, deadline_s: float | None = None) -> bool:
        """Whether this is the password of a user who may connect. False also for a user who is not there or not
        enabled; the time that it takes does not say which, where users have the iterations of a default."""
        argument("password", password, str)
        found = await self._users.get(tenant, user, deadline_s=deadline_s)
        record = _NOBODY if found is None else found.record
        return await asyncio.to_thread(_matches, record, password) and record.enabled


_NOBODY: Final = User("", "", "scram_sha_256", bytes(SALT_BYTES), ITERATIONS["scram_sha_256"], bytes(32), enabled=False)


def _check_password(password: str, mechanism: Mechanism, iterations: int | None) -> None:
    argument("password", password, Password)
    argument("mechanism", mechanism, Mechanism)
    argument("iterations", iterations, Iterations | None)
    if not password:
        raise InvalidItemError("password: it is empty")
    if mechanism.startswith("scram") and _prepared(password) is None:
        raise InvalidItemError("password: it has characters that RFC 4013 forbids")


async def _derived(password: str, mechanism: Mechanism, iterations: int | None) -> tuple[Proof, bytes, int]:
    """What is kept of a password, with a new salt, and the number of iterations."""
    salt, rounds = os.urandom(SALT_BYTES), iterations or ITERATIONS[mechanism]
    return await asyncio.to_thread(derive, mechanism, password, salt, rounds), salt, rounds


def derive(mechanism: str, password: str, salt: bytes, iterations: int) -> Proof:
    """What a mechanism keeps of a password: for SCRAM the StoredKey and ServerKey of RFC 5802, else the output of
    PBKDF2 for the password in UTF-8. Raises InvalidItemError for a password that SCRAM does not allow."""
    kind, _, digest = mechanism.partition("_")
    digest = digest.replace("_", "")
    if kind == "pbkdf2":
        return Proof(hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations))
    prepared = _prepared(password)
    if not prepared:
        raise InvalidItemError("password: it has characters that RFC 4013 forbids")
    salted = hashlib.pbkdf2_hmac(digest, prepared.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return Proof(hashlib.new(digest, client_key).digest(), hmac.digest(salted, b"Server Key", digest))


def _matches(user: User, password: str) -> bool:
    try:
        found = derive(user.mechanism, password, user.salt, user.iterations)
    except InvalidItemError:  # nobody has such a password
        return False
    return hmac.compare_digest(found.hash, user.hash)


_PROHIBITED: Final = (
    *(stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4),
    *(stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8),
    stringprep.in_table_c9,
)


def _prepared(password: str) -> str | None:
    """A password as SASLprep (RFC 4013) has it, so that each keyboard's spelling of it is the same. Characters that are
    newer than Unicode 3.2 are allowed. None if it has some that are forbidden."""
    mapped = "".join(
        " " if stringprep.in_table_c12(one) else one for one in password if not stringprep.in_table_b1(one)
    )
    text = unicodedata.normalize("NFKC", mapped)
    if any(prohibits(one) for one in text for prohibits in _PROHIBITED):
        return None
    if any(map(stringprep.in_table_d1, text)):  # from right to left: all of it, or none
        ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
        if not ends or any(map(stringprep.in_table_d2, text)):
            return None
    return text
