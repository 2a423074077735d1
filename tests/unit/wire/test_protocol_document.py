"""The protocol's pages are what others implement: their tables and transcripts must say what the code does."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable

import pytest
from golden_rows import FRAMES, MESSAGES, RAFT, SNAPSHOTS
from wire_document import INTERNAL, PROTOCOL, TABLES, hex_blocks, tables

from metad import cli
from metad.raft import messages as raft
from metad.raft.snapshots.transfer import StreamMessage
from metad.state.registry import VERBS
from metad_wire import cluster, declaration, described, messages, watch
from metad_wire import tables as modules
from metad_wire.connection import peer
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.connection.session import FEATURES, TRANSITIONS, ClientSession, Role, ServerSession, State
from metad_wire.errors import ErrorBody, OverloadedError
from metad_wire.families import FAMILIES
from metad_wire.methods import KV_GET, KV_PUT, METHODS, READS, WATCH_OPEN, By, For, Method, encode
from metad_wire.operator import backup, moving, settings
from metad_wire.tables.kv import KV

TEXT, TABLES_TEXT, INTERNAL_TEXT = (page.read_text(encoding="utf-8") for page in (PROTOCOL, TABLES, INTERNAL))
ROWS, INTERNAL_ROWS = tables(TEXT), tables(INTERNAL_TEXT)
MESSAGE_CLASSES = {
    "ErrorBody": ErrorBody,
    **{
        name: class_
        for module in (
            messages,
            cluster,
            declaration,
            peer,
            watch,
            backup,
            moving,
            settings,
            *(sys.modules[f"{modules.__name__}.{name}"] for name in modules.NAMES),
        )
        for name, class_ in vars(module).items()
        if inspect.isclass(class_) and messages.Message in class_.__mro__[1:]
    },
}
"""Every message that is declared, but for those that a table makes of general ones."""
RAFT_MESSAGES: dict[str, type] = {class_.__name__: class_ for class_ in raft.Message.__subclasses__()}
STREAM_MESSAGES: dict[str, type] = {class_.__name__: class_ for class_ in StreamMessage.__subclasses__()}
BETWEEN_NODES = {
    "PeerHello": peer.PeerHello,
    "PeerWelcome": peer.PeerWelcome,
    "Configuration": raft.Configuration,
    **RAFT_MESSAGES,
    **STREAM_MESSAGES,
}
SAY_IT_THEMSELVES = {
    *("bulk", "cluster_id", "data", "granted", "node_id", "stream", "tenant", "client_id"),
    *("items", "steps", "revisions", "errors"),
}
"""Fields whose names need no words."""


def reached(*whose: For, apart: bool = False) -> set[str]:
    """The messages of methods, by name; ``apart``: of those that TABLES.md leaves to ``metad protocol --json``."""
    methods = [m for m in METHODS.values() if m.whose in whose and described.apart(m) == apart]
    return {class_.__name__ for class_ in described.reached(c for m in methods for c in (m.body, m.reply))}


def headings(text: str) -> list[str]:
    return re.findall(r"(?m)^\*\*`(\w+)`\*\*", text)


def test_the_page_of_tables_is_what_the_declarations_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["protocol"]) == 0
    assert TABLES_TEXT == capsys.readouterr().out == described.page(), "run `metad protocol > wire/TABLES.md`"


SAID_OTHERWISE = {"Record", "Traced"}
"""The first has the fields of its table; PROTOCOL.md says in a sentence what the second has beside a ``Request``."""


def test_every_message_of_a_client_is_on_the_page_once() -> None:
    clients = reached(For.CLIENTS)
    plain = {one.__name__ for one in described.reached(table.record for table in FAMILIES.values())} - clients
    others = (reached(For.NODES) | reached(For.CLIENTS, For.ADMINS, apart=True)) - clients
    listed = headings(TABLES_TEXT)
    assert len(listed) == len(set(listed))
    assert set(listed) == {*MESSAGE_CLASSES} - others - BETWEEN_NODES.keys() - plain - SAID_OTHERWISE
    assert {"StatusReply", "Join", "StoreMap"} <= others


def test_every_field_between_nodes_has_a_meaning_where_it_is_declared() -> None:
    """INTERNAL.md leaves the fields to the declarations."""
    nodes = reached(For.NODES) - reached(For.CLIENTS, For.ADMINS)
    declared = {name: MESSAGE_CLASSES[name] for name in nodes & MESSAGE_CLASSES.keys()}
    silent = {
        (name, field)
        for name, class_ in (BETWEEN_NODES | declared).items()
        for field in class_.__struct_fields__
        if not any(
            described.texts(sys.modules[owner.__module__]).fields.get((owner.__name__, field))
            for owner in class_.__mro__
            if owner.__module__.startswith("metad")
        )
    }
    assert {field for _, field in silent} <= SAY_IT_THEMSELVES, silent


def test_every_method_of_a_client_is_on_the_page_with_its_code() -> None:
    clients = {m.code: m.name for m in METHODS.values() if m.whose is not For.NODES}
    sections = re.findall(r"(?m)^### `([\w.]+)` (0x\w+)$", TABLES_TEXT)
    apart = [*tables(TABLES_TEXT)["Assignment"], *tables(TABLES_TEXT)["Monitors and administrators"]]
    rows = [(row[1], row[0]) for row in apart]
    listed = [(int(code, 16), name) for name, code in sections + rows]
    assert sorted(listed) == sorted(clients.items())


def test_the_line_of_a_method_says_how_it_differs_from_the_rule() -> None:
    """The rule stands at the head of the page: who answers, in which lane, whether early."""
    for method in (m for m in METHODS.values() if m.whose is For.CLIENTS and not described.apart(m)):
        line = TABLES_TEXT.partition(f"### `{method.name}` {method.code:#06x}\n\n")[2].partition(". ")[0]
        reads_keys = line.startswith("`Get`")
        assert ("writes" in line) == method.mutates
        assert ("answered by" in line) == (method.by is not By.GROUP), line
        assert ("not early" in line) == (not method.mutates and method.code not in READS), line
        lane = re.search(r"lane `(\w+)`", line)
        rule = "records" if method.mutates or reads_keys else "scans"
        assert (lane[1] if lane else rule) == method.lane.name.lower(), line


def test_every_limit_and_error_has_a_meaning() -> None:
    assert [name for name, limit in described.limits().items() if not limit["meaning"]] == []
    assert [error["name"] for error in described.errors_by_code() if not error["meaning"]] == []


def test_every_method_and_message_has_a_meaning() -> None:
    protocol = described.described()
    assert [method["name"] for method in protocol["methods"] if not method["meaning"]] == []
    made = {table.plain.key.__name__ for table in FAMILIES.values() if not table.ruled_by}
    assert {name for name, message in protocol["messages"].items() if not message["meaning"]} == made


def test_a_field_that_the_head_of_the_page_explains_has_its_meaning_for_programs_too() -> None:
    fields = {
        (name, field["name"]): field["meaning"]
        for name, message in described.described()["messages"].items()
        for field in message["fields"]
    }
    assert fields["KvPutItem", "expected_version"].startswith("only if this is the current version")
    assert fields["SessionTakeover", "broker_epoch"].startswith("its life")
    assert fields["Identity", "client_id"].startswith("Random"), "another type, and a meaning of its own"


def test_a_title_that_the_tables_name_is_a_section_of_the_protocol() -> None:
    sections = {line.lstrip("# ") for text in (TEXT, TABLES_TEXT) for line in text.splitlines() if line.startswith("#")}
    sections |= set(re.findall(r"\*\*([\w ]+)\.\*\*", TEXT + TABLES_TEXT))
    named = set(re.findall(r"(?<!\*)[Ss]ee \*([\w ]+)\*(?!\*)", TABLES_TEXT + INTERNAL_TEXT))
    assert named
    assert named - sections == set()


@pytest.mark.parametrize(("heading", "classes"), [("Raft", RAFT_MESSAGES), ("Snapshots", STREAM_MESSAGES)])
def test_messages_of_the_channels_are_listed_with_their_tags(heading: str, classes: dict[str, type]) -> None:
    assert INTERNAL_ROWS[heading] == [
        [str(class_.__struct_config__.tag), name]  # type: ignore[attr-defined]
        for name, class_ in classes.items()
    ]


def test_channels() -> None:
    assert [row[:2] for row in INTERNAL_ROWS["Channels"]] == [[str(int(c)), c.name] for c in peer.Channel]


def test_methods_between_nodes() -> None:
    nodes = [method for _, method in sorted(METHODS.items()) if method.whose is For.NODES]

    def row(e: Method) -> list[str]:  # type: ignore[type-arg]
        mutates = "yes" if e.mutates else "no"
        return [f"0x{e.code:04X}", e.name, e.body.__name__, e.reply.__name__, mutates, e.by.value, e.lane.name.lower()]

    assert INTERNAL_ROWS["Methods between nodes"] == [row(method) for method in nodes]
    for method in nodes:
        assert described.meaning(method.body), "what it does"


def test_features() -> None:
    assert [(int(row[0]), row[1]) for row in ROWS["Features"]] == [(f.value, f.name) for f in messages.Feature]
    assert sum(messages.Feature) == FEATURES


def test_every_read_of_records_takes_revisions() -> None:
    for verb in VERBS.values():
        taken = "min_revisions" in verb.method.body.__struct_fields__
        assert taken == (verb.read is not None) == (not verb.method.mutates), verb.method


def test_methods_of_early_data() -> None:
    assert {method["code"] for method in described.described()["methods"] if method["early"]} == READS


def test_frame_types() -> None:
    assert [row[:2] for row in ROWS["Frame types"]] == [[str(int(t)), t.name] for t in FrameType]
    senders = {row[1]: row[2] for row in ROWS["Frame types"]}
    for type_ in FrameType:
        receivers = {role for (role, _), allowed in TRANSITIONS.items() if type_ in allowed}
        # A server that is refused learns it by ERROR too, but has nothing left to decide: it closes in any case.
        if type_ is not FrameType.ERROR:
            who = {"client": {Role.SERVER}, "server": {Role.CLIENT}, "both": set(Role), "node": set[Role]()}
            assert receivers == who[senders[type_.name]]


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_states(role: Role) -> None:
    expected = []
    for type_ in FrameType:
        cells = [TRANSITIONS[role, state].get(type_) for state in (State.OPENING, State.OPEN, State.DRAINING)]
        if any(cells):
            expected.append([type_.name, *(cell.value if cell else "-" for cell in cells)])
    assert (ROWS if role is Role.CLIENT else INTERNAL_ROWS)[f"States of a {role.value}"] == expected


class Talk:
    """Both ends of a connection; what each call sends."""

    def __init__(self) -> None:
        self.client, self.server = ClientSession(client_name="go-1"), ServerSession()

    def asked(self, act: Callable[[ClientSession], object]) -> bytes:
        """What the client sends."""
        act(self.client)
        data = self.client.data_to_send()
        self.server.receive_data(data)
        self.server.next_event()
        return data

    def told(self, act: Callable[[ServerSession], object]) -> bytes:
        """What the server sends."""
        act(self.server)
        data = self.server.data_to_send()
        self.client.receive_data(data)
        self.client.next_event()
        return data


def test_the_transcripts_are_what_both_ends_send() -> None:
    talk = Talk()
    kv = messages.Kv("config", "/rate", b"500", 1, 17, 17)
    read = KV_GET.encode_request(KV_GET.body([messages.KvKey("config", "/rate")]), 5000, group="data-0")
    puts = [messages.KvPutItem("config", "/rate", b"600"), messages.KvPutItem("config", "/burst", b"9", 4)]
    client_id = 0x0123456789ABCDEF
    busy = OverloadedError("busy", retry_after_ms=1500, retry_jitter_ms=20)
    written = messages.KvPutReply([messages.Revision("data-0", 18)], [messages.ItemError(1, 203, "is 0", 0)], [2, 0])
    opened = watch.WatchOpened(17, False, b"\xff" * 128, leader=True, revision=17)
    changed = messages.Kv("config", "/rate", b"600", 2, 17, 18)
    change = watch.WatchChange(KV.rows["record"], 2, KV.key_of(["config", "/rate"]), encode(changed))
    events = watch.WatchEvents(18, [watch.WatchEntry(18, 18, 1_700_000_000_000, [change])])
    stream = watch.WatchOpen([watch.WatchFilter("kv", ["config"])], 17)

    def put(age_ms: int) -> bytes:
        return KV_PUT.encode_request(messages.KvPut(puts), 5000, messages.Identity(client_id, 1, 1, age_ms), "data-0")

    said = {
        "HELLO": talk.asked(lambda client: None),
        "WELCOME": talk.told(
            lambda s: s.welcome(messages.Welcome(1, s.features, "node-1", "metad", 4194304, 16777216, 60000))
        ),
        "kv.get": talk.asked(lambda client: client.request(KV_GET.code, read)),
        "kv.get, answered": talk.told(lambda server: server.respond(1, encode(KV_GET.reply([kv])))),
        "kv.put": talk.asked(lambda client: client.request(KV_PUT.code, put(0))),
        "kv.put, refused": talk.told(lambda server: server.fail(2, busy)),
    }
    again = talk.asked(lambda client: client.request(KV_PUT.code, put(1503)))
    assert again[16:] == said["kv.put"][16:].replace(b"\x01\x01\x00", b"\x01\x01\xcd\x05\xdf")
    said["kv.put, answered"] = talk.told(lambda server: server.respond(3, encode(written)))
    said["watch.open"] = talk.asked(
        lambda client: client.request(WATCH_OPEN.code, WATCH_OPEN.encode_request(stream, 5000, group="data-0"))
    )
    said["watch.open, answered"] = talk.told(lambda server: server.begin_stream(4, encode(opened)))
    talk.client.stream_begun(4)
    said["EVENT"] = talk.told(lambda server: server.event(4, encode(events)))
    said["CREDIT"] = talk.asked(lambda client: client.grant(4, 4096))
    said["CANCEL"] = talk.asked(lambda client: client.cancel(4))
    assert said == hex_blocks(TEXT)


def test_the_header_is_as_described() -> None:
    rows = ROWS["Frames"]
    sizes = [int(row[1]) for row in rows[:-1]]
    assert [int(row[0]) for row in rows] == [sum(sizes[:i]) for i in range(len(rows))]
    data = encode_frame(3, b"pp", request_id=0x0102030405060708, method=0x0A0B)
    assert data.hex() == "0000000e" + "03" + "00" + "0a0b" + "0102030405060708" + b"pp".hex()


def test_the_test_vectors_are_where_it_says() -> None:
    for path, text in ((MESSAGES, TEXT), (FRAMES, TEXT), (RAFT, INTERNAL_TEXT), (SNAPSHOTS, INTERNAL_TEXT)):
        assert f"../tests/golden/{path.name}" in text
        assert path.exists()


def test_no_server_sends_credit() -> None:
    """The document says so. Whoever adds a caller says when it is sent, there."""
    assert "The servers of this repository send none so far" in TEXT
    sources = (PROTOCOL.parents[1] / "metad").rglob("*.py")
    assert [path.name for path in sources if "set_window(" in path.read_text(encoding="utf-8")] == []
    assert "set_window(" in inspect.getsource(ServerSession)
