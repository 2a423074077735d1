"""``m.schemas``: versions of schemas that go with each other, and the topics that follow them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from metad_wire.families.core import SCHEMA_BINDINGS, SCHEMA_SUBJECTS, SCHEMAS, Schema, SchemaBinding, SchemaSubject
from metad_wire.messages import TableRecord

from ..errors import IncompatibleSchemaError, InvalidItemError, MetadError, NotFoundError
from ..namespaces.tables import Compare, Put, Records, Transaction
from ..requests.requests import Requests
from ..requests.wrong import argument
from ..results import RuleResult
from . import Rules, Step, checked, of_fit, only
from .compatibility import LANGUAGES, problems, read, same

Kind = Literal["avro", "json", "protobuf"]
Compatibility = Literal[
    "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive"
]
PROBLEMS_SHOWN: Final = 5
AT_ONCE_MAX: Final = 32
"""Schemas of a batch whose earlier versions are read or compared at once: all of these may be in memory."""


class NewSchema(msgspec.Struct, frozen=True):
    """A schema to register."""

    tenant: str
    subject: str
    kind: Kind
    text: str
    compatibility: Compatibility | None = None
    """What the versions of the subject are to be from now on; None: as they were, at first ``backward``."""
    about: str = ""
    """For people."""


class Followed(NamedTuple):
    """A schema that messages follow."""

    binding: SchemaBinding
    schema: Schema | None
    """None: it was deleted."""


class Schemas(Rules):
    """Registers schemas, and says who follows them. A ``*_many`` method reports errors per item in its result;
    ``deadline_s`` is that of each request, and None means the client's default."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self._subjects: Records[SchemaSubject] = Records(requests, SCHEMA_SUBJECTS)
        self._schemas: Records[Schema] = Records(requests, SCHEMAS)
        self._bindings: Records[SchemaBinding] = Records(requests, SCHEMA_BINDINGS)

    async def register_many(self, items: Sequence[NewSchema], *, deadline_s: float | None = None) -> RuleResult[int]:
        """Give schemas versions of their subjects. The result has their versions; a schema that its subject has already
        keeps the one that it has, whatever its spaces and the order of its fields.

        A new one is compared with the version before it, or with all of them (``…_transitive``): *backward*, it can
        read what they have written; *forward*, they can read what it writes; *full*, both. Avro is compared by Apache's
        library, JSON Schema by careful rules (:mod:`metad_client.families.json_schema`), Protobuf not at all: its
        subjects have the compatibility ``none``. This takes place in this program, in a thread, because a schema of a
        stranger may take long: no node waits for it. So a plain put of a schema is compared with nothing.

        Item errors: IncompatibleSchemaError, InvalidItemError, MissingExtraError without the extra ``schemas``, and
        ConflictError if others change the subject all the time.
        """
        return RuleResult(await self._registered(items, deadline_s))

    async def register(
        self,
        tenant: str,
        subject: str,
        kind: Kind,
        text: str,
        *,
        compatibility: Compatibility | None = None,
        about: str = "",
        deadline_s: float | None = None,
    ) -> int:
        """Register one schema as :meth:`register_many` does, and return its version. Raises the error of its item."""
        item = NewSchema(tenant, subject, kind, text, compatibility, about)
        return only(await self._registered([item], deadline_s))

    async def newest(self, tenant: str, subject: str, *, deadline_s: float | None = None) -> Schema | None:
        """Read the newest version; None if there is none."""
        versions = await self._versions(tenant, subject, deadline_s)
        return versions[-1] if versions else None

    async def bind(
        self,
        tenant: str,
        resource: str,
        subject: str,
        *,
        part: Literal["value", "key"] = "value",
        schema_version: int | None = None,
        refuse: bool = True,
        deadline_s: float | None = None,
    ) -> int:
        """Have the messages of a topic follow a schema: its newest version, or ``schema_version``. Returns the version
        of the record. Raises NotFoundError if there is no such schema."""
        binding = SchemaBinding(tenant, resource, subject, part, schema_version, refuse)
        argument("binding", binding, SchemaBinding)
        versions = await self._versions(tenant, subject, deadline_s)
        if not any(schema_version in (None, one.schema_version) for one in versions):
            which = "" if schema_version is None else f" version {schema_version} of"
            raise NotFoundError(f"there is no{which} schema {tenant}/{subject}")
        return await self._bindings.put(binding, deadline_s=deadline_s)

    async def followed(self, tenant: str, resource: str, *, deadline_s: float | None = None) -> list[Followed]:
        """Read the schemas that the messages of a topic follow now."""
        found = []
        async for bound in self._bindings.list(tenant, resource, deadline_s=deadline_s):
            subject, wanted = bound.record.subject, bound.record.schema_version
            versions = await self._versions(tenant, subject, deadline_s)
            fit = [one for one in versions if wanted in (None, one.schema_version)]
            found.append(Followed(bound.record, fit[-1] if fit else None))
        return found

    async def followers(
        self, tenant: str, subject: str, *, page_size: int = 1000, deadline_s: float | None = None
    ) -> AsyncIterator[SchemaBinding]:
        """List the topics that follow a subject, a page at a time. The deadline is that of each page."""
        listing = self._bindings.list_by("by_subject", tenant, subject, page_size=page_size, deadline_s=deadline_s)
        async for found in listing:
            yield found.record

    async def _versions(self, tenant: str, subject: str, deadline_s: float | None) -> list[Schema]:
        """All of a subject, the oldest first."""
        return [found.record async for found in self._schemas.list(tenant, subject, deadline_s=deadline_s)]

    async def _registered(self, items: Sequence[NewSchema], deadline_s: float | None) -> list[int | MetadError]:
        async def look(some: Sequence[NewSchema]) -> list[int | Step[int] | MetadError]:
            keys = [(one.tenant, one.subject) for one in some]
            subjects = await self._subjects.get_many(keys, deadline_s=deadline_s)
            failed, turns = subjects.errors, asyncio.Semaphore(AT_ONCE_MAX)

            async def next_of(at: int) -> int | Step[int] | MetadError:
                if at in failed:
                    return failed[at]
                item = some[at]
                async with turns:
                    try:
                        versions = await self._versions(item.tenant, item.subject, deadline_s)
                        return await asyncio.to_thread(_next, item, subjects[at], versions)
                    except MetadError as error:
                        return error

            return await asyncio.gather(*map(next_of, range(len(some))))

        return await of_fit(checked(items, NewSchema), lambda fit: self._done(fit, look, _name, deadline_s))


def _name(item: NewSchema) -> str:
    return f"subject {item.tenant}/{item.subject}"


def _next(item: NewSchema, found: TableRecord[SchemaSubject] | None, versions: Sequence[Schema]) -> int | Step[int]:
    """The version that a schema has, or how it gets one. Raises what is wrong with it."""
    subject = SchemaSubject(item.tenant, item.subject) if found is None else found.record
    wanted = msgspec.structs.replace(subject, compatibility=item.compatibility or subject.compatibility)
    key = (item.tenant, item.subject)
    compares = [Compare(SCHEMA_SUBJECTS, key, 0 if found is None else found.version)]
    for one in reversed(versions):
        if one.kind == item.kind and same(item.kind, one.text, item.text):
            if wanted == subject:
                return one.schema_version
            return Step(Transaction(compares=compares, then=[Put(SCHEMA_SUBJECTS, wanted)]), one.schema_version)
    _check(item, wanted.compatibility, versions)
    number = max([subject.newest, *(one.schema_version for one in versions)]) + 1
    schema = Schema(*key, number, item.kind, item.text, about=item.about)
    compares.append(Compare(SCHEMAS, (*key, number), 0))
    then = [Put(SCHEMA_SUBJECTS, msgspec.structs.replace(wanted, newest=number)), Put(SCHEMAS, schema)]
    return Step(Transaction(compares=compares, then=then), number)


def _check(item: NewSchema, compatibility: str, versions: Sequence[Schema]) -> None:
    """Raise what is wrong with a schema that its subject does not have."""
    if item.kind not in LANGUAGES:
        if compatibility != "none":
            raise InvalidItemError(f"compatibility: schemas of {item.kind} are not compared, so it has to be none")
        return
    read(item.kind, item.text)
    if compatibility == "none":
        return
    others = [one for one in versions if one.kind != item.kind]
    if others:
        found = [f"version {others[-1].schema_version} is one of {others[-1].kind}"]
    else:
        earlier = [(one.schema_version, one.text) for one in reversed(versions)]
        found = problems(item.kind, compatibility, item.text, earlier)
    if found:
        more = f"; and {len(found) - PROBLEMS_SHOWN} more" if len(found) > PROBLEMS_SHOWN else ""
        raise IncompatibleSchemaError(
            f"{_name(item)}, {compatibility}: {'; '.join(found[:PROBLEMS_SHOWN])}{more}"[:4_000]
        )
