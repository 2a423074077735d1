"""What a program sees of the SDK: the blocking client has all that the async one has and the type checker knows it,
every type of a signature can be imported from ``metad_client``, and the limits are documented as they are."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import typed_tables
import typed_verbs

import metad_client
import metad_wire
from metad_client import blocking, limits
from metad_client.blocking.verbs import Call, Listing, Twin
from metad_wire.errors import ErrorBody
from metad_wire.families import FAMILIES
from metad_wire.messages import ItemError, Page, TableList
from metad_wire.tables.assignment import Move, Report
from metad_wire.tables.table import Index, Plain

ROOT = Path(__file__).resolve().parents[3]

TWINS: list[tuple[type, type[Twin]]] = [
    (metad_client.Brokers, blocking.Brokers),
    (metad_client.Sessions, blocking.Sessions),
    (metad_client.Subscriptions, blocking.Subscriptions),
    (metad_client.InflightStates, blocking.InflightStates),
    (metad_client.Wills, blocking.Wills),
    (metad_client.Offsets, blocking.Offsets),
    (metad_client.KeyValue, blocking.KeyValue),
    (metad_client.RetainedMessages, blocking.RetainedMessages),
    (metad_client.Cluster, blocking.Cluster),
    (metad_client.Leases, blocking.Leases),
    (metad_client.Sequences, blocking.Sequences),
    (metad_client.Tables, blocking.Tables),
    (metad_client.Consumers, blocking.Consumers),
    (metad_client.Records, blocking.Records),
    (metad_client.Assignments, blocking.Assignments),
    (metad_client.Plans, blocking.Plans),
    (metad_client.Principals, blocking.Principals),
    (metad_client.Roles, blocking.Roles),
    (metad_client.Audit, blocking.Audit),
    (metad_client.Tenants, blocking.Tenants),
    (metad_client.Quotas, blocking.Quotas),
    (metad_client.Features, blocking.Features),
    (metad_client.Assigned, blocking.Assigned),
    (metad_client.Topics, blocking.Topics),
    (metad_client.Schemas, blocking.Schemas),
    (metad_client.Users, blocking.Users),
    (metad_client.Config, blocking.Config),
    (metad_client.HeldLease, blocking.HeldLease),
    (metad_client.Lock, blocking.Lock),
    (metad_client.Owned, blocking.Owned),
    (metad_client.OwnedResult, blocking.OwnedResult),
    (metad_client.Membership, blocking.Membership),
    (metad_client.Generation, blocking.Generation),
    (metad_client.BrokerLife, blocking.BrokerLife),
    (metad_client.Watch, blocking.Watch),
    (metad_client.Image, blocking.Image),
    (metad_client.Client, blocking.BlockingClient),
    (metad_client.Backups, blocking.Backups),
]
README = (ROOT / "clients" / "README.md").read_text()
# The blocking client is opened by connect(), and its portal runs it. A client begins and ends the lives of its broker,
# and has them hurry.
OPENING = {"open", "run", "begin", "stop", "closed", "hurry"}

MYPY = ("--strict", "--config-file", "", "--no-pretty", "--hide-error-context", "--no-error-summary")


def public(owner: type) -> dict[str, typing.Any]:
    """What the class has, and what it has from a private base."""
    bases = [base for base in reversed(owner.__mro__) if base.__name__.startswith("_")]
    return {name: it for base in (*bases, owner) for name, it in vars(base).items() if not name.startswith("_")}


def test_the_readme_names_each_method_for_many_and_says_how_it_is_called_for_one() -> None:
    """It said "without `_many`", which is not true of `generations_many`."""
    names = (
        "brokers",
        "sessions",
        "subscriptions",
        "inflight",
        "wills",
        "offsets",
        "kv",
        "retained",
        "cluster",
        "leases",
        "sequences",
        "tables",
        "consumers",
        "table(TABLE)",
        "assignments",
        "plans",
        "principals",
        "roles",
        "audit",
        "tenants",
        "quotas",
        "features",
    )
    rows = re.findall(rf"^\| `m\.({'|'.join(map(re.escape, names))})` \| (.*?) \|", README, re.MULTILINE)
    assert len(rows) == len(names)
    owners = dict(zip(names, [one for one, _ in TWINS], strict=False))
    for name, methods in rows:
        named = set(re.findall(r"`(\w+)`", methods))
        single = {method.removesuffix("_many") for method in named if method.endswith("_many")}
        # One is paused, resumed or cancelled; or held, or allowed.
        single -= {"plans": {"set"}, "features": {"change"}}.get(name, set())
        renamed = {method for method in single if method not in public(owners[name])}
        assert renamed <= {"generations", "reset_generations"}
        assert named | (single - renamed) | {method.removesuffix("s") for method in renamed} == set(
            public(owners[name])
        )
    assert "(without `_many`, and in the singular: `generation`)" in README


@pytest.mark.parametrize(("one", "twin"), TWINS, ids=[one.__name__ for one, _ in TWINS])
def test_the_blocking_client_has_each_method_of_the_async_one_and_no_other(one: type, twin: type[Twin]) -> None:
    opening = OPENING - {"open"} if one is metad_client.Tables else OPENING
    opening |= {"serve"} if one is metad_client.Client else set()  # it calls the broker's coroutines
    methods = {name: method for name, method in public(one).items() if name not in opening}
    assert set(methods) == set(public(twin))
    for name, method in methods.items():
        face = public(twin)[name]
        if typed_verbs.is_listing(method):
            assert isinstance(face, Listing), name
            assert face.verb is method
        elif isinstance(face, Call):
            assert face.verb is method, name
        elif isinstance(method, property):
            assert isinstance(face, property), name
            assert inspect.getdoc(face) == inspect.getdoc(method), name
        else:  # written out, as its signature says the same of another class
            assert inspect.isfunction(face), name
            assert inspect.signature(face).parameters == inspect.signature(method).parameters, name
            assert inspect.getdoc(face) == inspect.getdoc(method), name


def test_the_blocking_client_has_each_namespace(scripted_server) -> None:
    with blocking.connect("metad://a", transport=scripted_server.transport) as client:
        opened = client._client
        namespaces = {name for name in vars(opened) if not name.startswith("_")}
        assert namespaces == {name for name in vars(client) if not name.startswith("_")} > {"kv"}
        twins = dict(TWINS)
        assert {name: twins[type(getattr(opened, name))] for name in namespaces} == {
            name: type(getattr(client, name)) for name in namespaces
        }


def test_both_connect_alike() -> None:
    one, twin = inspect.signature(metad_client.connect), inspect.signature(blocking.connect)
    assert one.parameters == twin.parameters


PROGRAM = """
from collections.abc import Sequence

from metad_client import KvPutItem, OffsetKey, SessionTakeoverItem, blocking
from metad_wire.messages import Message
from metad_wire.tables.table import PlainTable


class Retained(Message, frozen=True):
    tenant: str
    topic: str


def use(retained: PlainTable[Retained], keys: Sequence[OffsetKey]) -> None:
    with blocking.connect("metad://127.0.0.1:7420") as m:
        reveal_type(m)  # R: metad_client.blocking.client.BlockingClient
        reveal_type(m.kv.put("ns", "key", b"value", expected_version=1))  # R: int
        reveal_type(m.kv.get("ns", "key"))  # R: metad_wire.messages.Kv | None
        reveal_type(m.kv.put_many([KvPutItem("ns", "key", b"")]))  # R: metad_client.results.PutResult
        reveal_type(m.kv.scan("ns", page_size=10))  # R: typing.Iterator[metad_wire.messages.Kv]
        reveal_type(m.offsets.fetch_many(keys))  # R: metad_client.results.ReadResult[metad_wire.messages.Offset | None]
        reveal_type([one.client_id for one in m.sessions.list("acme")])  # R: list[str]
        reveal_type(m.cluster.map().leaders)  # R: dict[str, str]
        reveal_type(m.status("n1").node_id)  # R: str
        reveal_type(m.statistics().retries)  # R: int
        reveal_type(m.table(retained).get("acme", "t"))  # R: metad_wire.messages.TableRecord[PROGRAM.Retained] | None
        for row in m.table(retained).list("acme"):
            reveal_type(row.record)  # R: PROGRAM.Retained
        taken = m.sessions.takeover_many("b", 7, [SessionTakeoverItem("acme", "c")], restore=True)
        reveal_type(taken.previous(0))  # R: metad_wire.messages.Owner | None
        m.kv.put("ns", 7, b"value")  # E: Argument 2 has incompatible type "int"; expected "str"
        m.kv.put("ns", "key")  # E: Too few arguments
        m.kv.put("ns", "key", b"", version=1)  # E: Unexpected keyword argument "version"
        m.kv.pot("ns", "key", b"")  # E: "KeyValue" has no attribute "pot"
        m.topic  # E: "BlockingClient" has no attribute "topic"
        m.sessions.takeover_many("b", "7", [])  # E: Argument 2 has incompatible type "str"; expected "int"
        offset: int = m.offsets.fetch("acme", "g", "t", 0)  # E: Incompatible types in assignment
        for record in m.kv.scan(1):  # E: Argument 1 has incompatible type "int"; expected "str"
            record.nonsense  # E: "Kv" has no attribute "nonsense"
"""

WATCHING = """
from collections.abc import Callable

from metad_client import AnyEvent, AnyTable, Client, Image, KvKey, Kv, Offset, SessionKey, Watch, WatchEvent, Watched
from metad_client import Message, SessionProperties, TableRecord, blocking
from metad_wire.tables.kv import KV
from metad_wire.tables.table import PlainTable


class Reading(Message, frozen=True):
    tenant: str
    payload: bytes


READING = PlainTable("reading", number=1_024, kind="data", record=Reading, key=("tenant",))


async def watches(m: Client, name: str, any_watch: Watch) -> None:
    async for batch in m.watch("kv", tenant="config"):
        for event in batch.events:
            reveal_type(event.key)  # R: metad_wire.messages.KvKey
            reveal_type(event.record)  # R: metad_wire.messages.Kv | None
            reveal_type(event.previous)  # R: metad_wire.messages.Kv | None
            if event.record is not None:
                event.record.valu  # E: "Kv" has no attribute "valu"
            event.key.tenant  # E: "KvKey" has no attribute "tenant"
    async for session in m.watch(Watched("session", tenant="acme", rows=("owner",)), start="snapshot"):
        if not isinstance(owner := session.events[0].record, SessionProperties):
            reveal_type(owner)  # R: metad_wire.messages.SessionOwner | None
    several_of = m.watch(["kv", Watched("offset", tenant="acme")])
    async for several in several_of:
        for one in several.events:
            if one.table == "offset":
                reveal_type(one.key)  # R: metad_wire.messages.OffsetKey | metad_wire.messages.ConsumerGroup
            elif one.table == "kv":
                reveal_type(one.record)  # R: metad_wire.messages.Kv | None
            elif one.table == "kw":  # E: Non-overlapping equality check
                pass
            if isinstance(one.record, Offset):
                one.record.ofset  # E: "Offset" has no attribute "ofset"
    async for declared in m.watch(KV):
        reveal_type(declared.events[0].record)  # R: metad_wire.messages.Kv | None
    async for plain in m.watch(READING):
        record = plain.events[0].record
        reveal_type(record)  # R: metad_wire.messages.TableRecord[PROGRAM.Reading] | None
        if record is not None:
            record.record.paylod  # E: "Reading" has no attribute "paylod"
    mixed: list[AnyTable] = ["kv", READING]
    async for batch_of_both in m.watch(mixed):
        if isinstance(it := batch_of_both.events[0].record, TableRecord):
            reveal_type(it.version)  # R: int
    async for anything in m.watch(keys=[KvKey("a", "b")]):
        handle(anything.events[0])
    async for untyped in any_watch:
        untyped.events[0].record.anything  # E: Item "None" of "Any | None" has no attribute "anything"
    m.watch("kw")  # E: Argument 1 to "watch" of "Client" has incompatible type "Literal['kw']"
    m.watch(["kv", "kw"])  # E: List item 1 has incompatible type "Literal['kw']"
    Watched("kw")  # E: Value of type variable "WatchedTable" of "Watched" cannot be "Literal['kw']"
    m.watch(name)  # E: Argument 1 to "watch" of "Client" has incompatible type "str"
    m.watch("kv", tenat="a")  # E: Unexpected keyword argument "tenat" for "watch" of "Client"; did you mean "tenant"?
    m.table(KV)  # E: Argument 1 to "table" of "Client" has incompatible type "Table[Kv]"


def handle(event: AnyEvent) -> None:
    if event.table == "session":
        reveal_type(event.key)  # R: metad_wire.messages.SessionKey


def on_kv(event: WatchEvent[KvKey, Kv]) -> None: ...


def images(m: blocking.BlockingClient, changed: Callable[[WatchEvent], None]) -> None:
    image = m.image("kv", tenant="config").caught_up()
    reveal_type(image["kv"][KvKey("config", "greeting")])  # R: metad_wire.messages.Kv
    reveal_type(image[KV].get(KvKey("config", "greeting")))  # R: metad_wire.messages.Kv | None
    image["kv"][KvKey("config", "greeting")].valu  # E: "Kv" has no attribute "valu"
    image["kv"][SessionKey("acme", "c")]  # E: Invalid index type "SessionKey" for "ImageTable[KvKey, Kv]"
    image["kw"]  # E: No overload variant of "__getitem__" of "ImageTables" matches argument type "str"
    image.on_change(on_kv)
    image.on_change(changed)
    m.image("session").on_change(on_kv)  # E: Argument 1 to "on_change" of "ImageTables" has incompatible type
    m.image(["kv", "session"]).on_change(handle)
    sessions = m.image(Watched("session", broker="b1"))
    reveal_type(sessions["session/owner"][SessionKey("acme", "c")].broker)  # R: str
    reveal_type(m.image("session")["session"][SessionKey("acme", "c")].properties.payload)  # R: bytes
    reveal_type(m.image("cluster")["cluster"][None].cluster_id)  # R: str
    readings = m.image(READING)[READING]
    reveal_type([one.record.payload for one in readings.values()])  # R: list[bytes]
    [one.record.paylod for one in readings.values()]  # E: "Reading" has no attribute "paylod"
    for batch in m.watch("broker"):
        reveal_type(batch.events[0].key)  # R: metad_wire.tables.broker.BrokerKey


async def both_alike(m: Client) -> None:
    image: Image = await m.image(["kv", "session"]).caught_up()
    reveal_type(image["session"].get(SessionKey("acme", "c")))  # R: metad_wire.messages.Session | None
    m.image("kv").on_change(lambda event: print(event.key.tenant))  # E: "KvKey" has no attribute "tenant"
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy keeps of the SDK, for the next program."""
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.slow
@pytest.mark.parametrize("program", [PROGRAM, WATCHING], ids=["blocking", "watching"])
def test_a_type_checker_knows_what_a_program_gets(program: str, known: Path, tmp_path: Path) -> None:
    """mypy --strict reports what is marked E, shows what is marked R, and nothing else."""
    (tmp_path / "PROGRAM.py").write_text(textwrap.dedent(program))
    sources = {Path(one.__path__[0]).parent for one in (metad_client, metad_wire)}
    found = os.pathsep.join(str(path) for path in sources if path.name != "site-packages")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *MYPY, "--cache-dir", str(known), "PROGRAM.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": found},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    said = re.findall(r'^PROGRAM\.py:(\d+): (?:error: (.*?)|note: Revealed type is "(.*)")$', done.stdout, re.MULTILINE)
    notes = re.findall(r"^PROGRAM\.py:\d+: note: (?!Revealed).*$", done.stdout, re.MULTILINE)
    assert len(said) + len(notes) == len(done.stdout.splitlines()), done.stdout
    expected = [
        (line, mark, text)
        for line, source in enumerate(program.splitlines(), 1)
        for mark, text in re.findall(r"# ([ER]): (.*)$", source)
    ]
    assert [int(line) for line, _, _ in said] == [line for line, _, _ in expected], done.stdout
    for (_, error, revealed), (line, mark, text) in zip(said, expected, strict=True):
        assert error.startswith(text) if mark == "E" else revealed == text, (line, error or revealed)


def test_what_a_type_checker_knows_of_each_table_is_what_is_declared() -> None:
    """`python tests/unit/client/typed_tables.py` writes it."""
    assert typed_tables.PATH.read_text(encoding="utf-8") == typed_tables.text()


def test_what_follows_from_declarations_is_written_out_as_they_are() -> None:
    """`python tests/unit/client/typed_verbs.py` writes it."""
    assert typed_verbs.DECLARED.read_text(encoding="utf-8") == typed_verbs.declared()
    assert typed_verbs.TWINS.read_text(encoding="utf-8") == typed_verbs.faces()
    assert typed_verbs.README.read_text(encoding="utf-8") == typed_verbs.readme()


def classes(hint: object) -> Iterator[type]:
    """The classes of metad that a type is made of."""
    if isinstance(hint, type) and hint.__module__.startswith("metad"):
        yield hint
    for part in typing.get_args(hint):
        yield from classes(part)


def test_every_type_of_a_signature_can_be_imported_from_the_package() -> None:
    """A program that annotates what it gets and gives must not import from where metad moves things."""
    exported = {getattr(metad_client, name) for name in metad_client.__all__}
    waiting = [member for member in exported if isinstance(member, type) and not issubclass(member, Exception)]
    seen: set[type] = set()
    while waiting:
        owner = waiting.pop()
        if owner in seen:
            continue
        seen.add(owner)
        holders = [owner, *(getattr(member, "fget", member) for member in public(owner).values())]
        for holder in holders:
            if isinstance(holder, type) or inspect.isfunction(holder):
                for hint in typing.get_type_hints(holder).values():
                    waiting += classes(hint)
    assert len(seen) > 40
    # What an error and a declared table are made of; a program looks at the error, and passes the table on. The records
    # of families come with their tables. A step of a restore has no errors of items.
    of_families = {table.record for table in FAMILIES.values()} | {Move, Report}
    assert seen - exported - of_families == {ErrorBody, Index, ItemError, Page, Plain, TableList}


@pytest.mark.parametrize(
    ("row", "one"),
    [
        ("m.sessions", metad_client.Sessions),
        ("m.offsets", metad_client.Offsets),
        ("m.kv", metad_client.KeyValue),
        ("m.retained", metad_client.RetainedMessages),
        ("m.table(TABLE)", metad_client.Records),
        ("m.cluster", metad_client.Cluster),
        ("m.brokers", metad_client.Brokers),
    ],
)
def test_the_methods_are_documented(row: str, one: type) -> None:
    found = re.search(rf"^\| `{re.escape(row)}` \| ([^|]*) \|", (ROOT / "clients/README.md").read_text(), re.MULTILINE)
    assert found is not None
    listed = set(re.findall(r"`(\w+)`", found[1]))
    many = {name.removesuffix("_many") for name in listed if name.endswith("_many")}
    singles = {name for name in public(one) if name in many or f"{name}s" in many}
    assert listed == set(public(one)) - singles
    assert len(singles) == len(many)


def test_the_limits_are_documented() -> None:
    assert limits.__doc__ is not None
    assert set(re.findall(r"^- ``(\w+)``", limits.__doc__, re.MULTILINE)) == set(limits.__all__)
