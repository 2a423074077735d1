"""Access: who may do what, to whose records, and what came of it. Rights count where nodes have ``[security]
authorization = true``.

A *principal* is who a connection has proven to be: ``metad://client/app`` by a certificate or a token of that name, or
the SPIFFE id of a certificate. A *role* is a list of grants. A *binding* gives a principal roles, each for one *scope*,
which is a tenant or a namespace, or denies it everything. A principal may do what one of its grants says, and nothing
else. Roles and bindings are in ``metadata-0``, and each node knows them by its copy: what has changed counts there as
soon as that has come, for connections and watches that are open, too.

| right | what it is about |
|---|---|
| ``read`` | methods that read, and watches |
| ``write`` | methods that write, and what keeps somebody alive |
| ``delete`` | methods that delete; to end a session drops what belongs to it |
| ``own`` | to register a broker, to speak as one of its lives, and to end it |
| ``admin`` | what is for administrators, and to end a tenant |

A request needs the right for each record: of its table, with the first field of its key as the scope, and with a second
one that begins with the prefix of the grant. One item that is not allowed is refused with ``permission_denied``, and
the others are done. What lists, counts, matches or watches many records is refused as a whole where one of them might
not be read. Claiming wills shows them, so it needs ``read``, too; a key that is to go with a lease needs ``write`` of
that and ``delete`` of the key, and whoever changes roles or bindings needs ``admin`` of all of them. What names the
life of a broker needs ``own`` of table ``broker`` with its name as the scope, beside.

Administrators may do everything: by their certificate, or by name in ``[security] administrators``. So nobody is
locked out for good. The certificate of a broker owns its own name. Everybody may ask for the map of the cluster, and
what it may do itself. The table ``cluster`` stands for what is about nodes and groups; ``resource`` and ``partition``
are ``assignment``. A grant that names no table is about those that programs keep records in: those of the cluster
(``cluster``, ``broker``, ``plan``, ``declaration``, ``role``, ``principal``, ``audit``, ``quota``, ``feature``,
``tenants``, ``backup``) are named, or ``*`` is. To read ``backup`` is to read everything.

The *audit trail* says who has administered what, who was refused, and whose life another has ended. The node that has
answered a request notes it a moment later, and the answer does not wait for that. A node that dies at once has not
noted it; its log has the same (``audited``, ``client_denied``). What ends a life is noted by the entry that ends it.

| kind | what | lines that are kept |
|---|---|---|
| ``admin`` | a request that needs the right ``admin``, and a backup that is begun, whatever came of it | 8,000 |
| ``life`` | a registration that ended another life, which was alive; an administrator's fence | 2,000 |
| ``refused`` | a request that roles do not allow | 2,000 |

No kind takes the room of another. Where a kind is full, the oldest line goes of the principal that has the most, so
whoever has many makes room for whoever has few; where nobody is identified, hosts count. A node writes one line a
second for all that it refuses a principal: it is about the first of these requests, and ``times`` says how many they
are.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from .. import messages as m
from ..method import By, For, Lane, Method
from ..table import Table
from ..text.fields import U32, U63

ROLES_MAX = 1_000
"""Roles that are kept: ``quota_exceeded``."""
BINDINGS_MAX = 4_096
"""Bindings that are kept: ``quota_exceeded``."""
PRINCIPAL_BYTES_MAX = 512
"""The name of a principal or a role, as UTF-8: ``invalid_item``."""
ROLES_HELD_MAX = 64
"""Roles that a principal has: ``invalid_item``."""
WISHES_MAX = 100
"""Wishes of one ``access.may``."""
Right = Literal["read", "write", "delete", "own", "admin"]
AuditKind = Literal["admin", "life", "refused"]


class Grant(m.Message, frozen=True):
    """Gives rights to some records."""

    rights: Annotated[list[Right], Meta(max_length=5)]
    tables: Annotated[list[str], Meta(max_length=64)] = []  # noqa: RUF012 - msgspec copies it
    """By name; none: all that programs keep records in; ``*``: those of the cluster, too."""
    scope: str = "*"
    """A tenant or a namespace: the first field of the keys. With ``*`` at its end: all that begin so."""
    prefix: str = ""
    """What the second field of the keys begins with; empty: anything."""


class RoleKey(m.Message, frozen=True):
    """The name of a role."""

    role: str


class Role(m.Message, frozen=True):
    """What those may do to whom it is given."""

    role: str
    grants: Annotated[list[Grant], Meta(max_length=64)]
    about: str = ""
    """For people."""


class Given(m.Message, frozen=True):
    """A role that a principal has."""

    role: str
    scope: str = "*"
    """Only for this tenant or namespace, as in a grant. Of tables whose keys begin with neither, only grants count that
    name them."""


class PrincipalKey(m.Message, frozen=True):
    """A principal: the URI of its certificate, or ``metad://client/NAME`` of a token."""

    principal: str


class PrincipalRoles(m.Message, frozen=True):
    """What a principal may do."""

    principal: str
    roles: Annotated[list[Given], Meta(max_length=ROLES_HELD_MAX)] = []  # noqa: RUF012
    denied: bool = False
    """Whether it may do nothing at all: its connections are closed."""


class BindingChange(m.Message, frozen=True):
    """Changes what a principal may do, and leaves the rest of its binding as it is. A binding that says nothing any
    more is deleted."""

    principal: str
    give: Annotated[list[Given], Meta(max_length=ROLES_HELD_MAX)] = []  # noqa: RUF012
    """Beside the roles that it has and keeps."""
    take: Annotated[list[Given], Meta(max_length=ROLES_HELD_MAX)] | None = []  # noqa: RUF012
    """nil: all that it has."""
    denied: bool | None = None
    """nil: as before."""


class RoleList(m.Message, frozen=True):
    """Lists roles."""

    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


class PrincipalList(m.Message, frozen=True):
    """Lists bindings."""

    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


class Wish(m.Message, frozen=True):
    """Something that somebody may be allowed to do."""

    right: Right
    table: str
    scope: str = ""
    key: str = ""
    """What the second field of the keys begins with."""


class May(m.Message, frozen=True):
    """Asks what a principal may do, by what the node that answers knows."""

    principal: str = ""
    """Empty: who asks. Others are for those who may read the table ``principal``."""
    wishes: Annotated[list[Wish], Meta(max_length=WISHES_MAX)] = []  # noqa: RUF012


class MayReply(m.Message, frozen=True):
    """Says what it may do."""

    principal: str
    """Empty: nobody is checked here."""
    enforced: bool
    """Whether the node checks at all."""
    administers: bool
    """Whether it may do everything."""
    denied: bool
    roles: list[Given]
    allowed: list[bool]
    """Of each wish."""


class AuditEntry(m.Message, frozen=True):
    """A line of the audit trail. Its texts have 1,024 bytes of UTF-8 at most: they are cut."""

    id: str
    """Orders the lines as they were written: 16 hexadecimal digits. Empty in ``audit.note``."""
    when_ms: U63
    """When it was written, in Unix milliseconds: by the calendar of the leader of ``metadata-0``, and not before the
    line in front of it."""
    kind: AuditKind
    """Says what it is about."""
    node: str
    """Which node has answered."""
    who: str
    """The URI of a principal; empty where nobody is identified."""
    host: str
    """Its address, without the port."""
    method: str
    """What it asked for."""
    names: str = ""
    """What it is about: the first names, or what was not allowed."""
    items: U32 = 0
    """How many the request had."""
    failed: U32 = 0
    """How many of these failed."""
    outcome: str = "done"
    """Or the name of the error."""
    times: U32 = 1
    """How many requests the line is about."""
    waited_ms: U63 = 0
    """For how long the node had it before it was written."""
    dropped: U32 = 0
    """Requests that this node has not noted since its line before, because it had no room for more."""


class AuditNote(m.Message, frozen=True):
    """From a node to the leader of ``metadata-0``: writes lines, in this order."""

    lines: Annotated[list[AuditEntry], Meta(max_length=100)]
    """As they are kept, but for their ids and times."""


class AuditList(m.Message, frozen=True):
    """Lists lines."""

    since_ms: U63 = 0
    """Only lines that were written then or later, in Unix milliseconds."""
    until_ms: U63 = 0
    """Only lines that were written before that; 0: all."""
    who: str = ""
    """Only of this principal; empty: of all."""
    kind: Literal["", "admin", "life", "refused"] = ""
    """Only of this kind; empty: of all."""
    method_prefix: str = ""
    """Only of methods whose names start so."""
    newest_first: bool = False
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


ALL: Final = "*"
OF_THE_CLUSTER: Final = frozenset(
    {"cluster", "broker", "plan", "declaration", "role", "principal", "audit", "quota", "feature", "tenants", "backup"}
)
"""Tables that are no program's."""
BUILT_IN: Final[dict[str, Role]] = {
    role.role: role
    for role in (
        Role("admin", [Grant(["read", "write", "delete", "own", "admin"], [ALL])], "everything"),
        Role(
            "operator",
            [Grant(["read"], [*sorted(OF_THE_CLUSTER - {"backup"}), "assignment"])],
            "reads what administrators read, and no records",
        ),
        Role(
            "broker",
            [
                Grant(["read"], ["cluster", "broker", "declaration", "plan"]),
                Grant(["read", "write", "delete"]),
            ],
            "the records of its tenants; its certificate owns its name",
        ),
        Role("reader", [Grant(["read"])], "reads all records"),
        Role("backup", [Grant(["read"], [ALL])], "reads everything"),
    )
}
"""The roles that nobody has to make, by name."""

ROLE = Table("role", kind="metadata", rows={"role": 0x08}, record=Role, key=("role",), routing=())
ROLE_PUT = ROLE.batches(
    0x0721,
    "put",
    Role,
    "Make roles, or replace them. Item errors: conflict (it is built in), invalid_item, quota_exceeded.",
    named="roles",
    by=By.METADATA,
    whose=For.ADMINS,
)
ROLE_DELETE = ROLE.batches(
    0x0722,
    "delete",
    RoleKey,
    "Delete roles that nobody has. Item errors: not_found, conflict.",
    named="keys",
    by=By.METADATA,
    whose=For.ADMINS,
)
ROLE_LIST = ROLE.lists(0x0723, "list", RoleList, Role, "Roles whose names start with ``prefix``.", by=By.METADATA)

PRINCIPAL = Table(
    "principal",
    kind="metadata",
    rows={"binding": 0x09},
    record=PrincipalRoles,
    key=("principal",),
    routing=(),
)
PRINCIPAL_PUT = PRINCIPAL.batches(
    0x0725,
    "put",
    PrincipalRoles,
    "Say what principals may do, instead of what was said before. Item errors: not_found (no such role), invalid_item "
    "(it is no principal, or an administrator or a node, which may do everything), quota_exceeded.",
    named="bindings",
    by=By.METADATA,
    whose=For.ADMINS,
)
PRINCIPAL_DELETE = PRINCIPAL.batches(
    0x0726,
    "delete",
    PrincipalKey,
    "Take everything from principals. Item errors: not_found.",
    named="keys",
    by=By.METADATA,
    whose=For.ADMINS,
)
PRINCIPAL_GET = PRINCIPAL.gets(
    0x0727, "get", PrincipalKey, PrincipalRoles, "What each principal may do.", by=By.METADATA
)
PRINCIPAL_LIST = PRINCIPAL.lists(
    0x0728,
    "list",
    PrincipalList,
    PrincipalRoles,
    "Bindings whose principals start with ``prefix``.",
    by=By.METADATA,
)
PRINCIPAL_CHANGE = PRINCIPAL.batches(
    0x072A,
    "change",
    BindingChange,
    "Give principals roles, take roles from them, deny them everything or end that. Item errors: as of put.",
    named="changes",
    by=By.METADATA,
    whose=For.ADMINS,
)

ACCESS_MAY = Method(0x0729, "access.may", May, MayReply, Lane.CONTROL, mutates=False, by=By.ANY)

KEPT: Final[dict[AuditKind, int]] = {"admin": 8_000, "life": 2_000, "refused": 2_000}
"""Lines of the audit trail that are kept of each kind."""
AUDIT = Table("audit", kind="metadata", rows={"line": 0x0A}, record=AuditEntry, key=("id",), routing=())
AUDIT_NOTE = AUDIT.writes(
    0x0731, "note", AuditNote, m.WriteReply, Lane.SCANS, by=By.METADATA, whose=For.NODES, routed=False
)
AUDIT_LIST = AUDIT.lists(0x0732, "list", AuditList, AuditEntry, "Lines of the audit trail.", by=By.METADATA)
