"""wire/PROTOCOL.md is what others implement: its tables and examples must say what the code does."""

from __future__ import annotations

import inspect
import re
import sys

import pytest
from golden_rows import FRAMES, MESSAGES, RAFT, SNAPSHOTS
from wire_document import PROTOCOL, batch_rows, fields_of, hex_blocks, list_rows, read_rows, table_rows, tables

from metad.raft import messages as raft
from metad.raft.snapshots.transfer import StreamMessage
from metad.state.registry import VERBS
from metad_wire import cluster, messages, watch
from metad_wire import tables as modules
from metad_wire.connection import frame, peer
from metad_wire.connection.frame import FrameType, encode_frame
from metad_wire.connection.session import FEATURES, TRANSITIONS, ClientSession, Role, ServerSession, State
from metad_wire.errors import ERRORS, ErrorBody
from metad_wire.methods import KV_PUT, METHODS, READS, encode
from metad_wire.tables import TABLES as declared
from metad_wire.text import fields

TEXT = PROTOCOL.read_text(encoding="utf-8")
TABLES = tables(TEXT)
PLAIN = {
    method for table in declared.values() for method in (table.methods if table.plain else [*table.got, *table.batched])
}
"""Methods of all plain tables, and those that read keys or write what items say: described once."""
PLAIN_RECORDS = {table.record.__module__ for table in declared.values() if table.plain is not None}
"""Modules of plain tables, whose records the table of tables describes."""
TABLE_MODULES = [
    sys.modules[name] for name in (f"{modules.__name__}.{n}" for n in modules.NAMES) if name not in PLAIN_RECORDS
]
NAMED = {code: method for code, method in sorted(METHODS.items()) if method not in PLAIN}
TABLE_MODULES = [
    sys.modules[name] for name in (f"{modules.__name__}.{n}" for n in modules.NAMES) if name not in PLAIN_RECORDS
]
MESSAGE_CLASSES = {
    "ErrorBody": ErrorBody,
    **{
        name: class_
        for module in (messages, cluster, peer, watch, *TABLE_MODULES)
        for name, class_ in vars(module).items()
        if inspect.isclass(class_) and messages.Message in class_.__mro__[1:]
    },
}
RAFT_MESSAGES: dict[str, type] = {class_.__name__: class_ for class_ in raft.Message.__subclasses__()}
STREAM_MESSAGES: dict[str, type] = {class_.__name__: class_ for class_ in StreamMessage.__subclasses__()}
RAFT_CLASSES: dict[str, type] = {"Configuration": raft.Configuration, **RAFT_MESSAGES, **STREAM_MESSAGES}


@pytest.mark.parametrize("name", [*MESSAGE_CLASSES, *RAFT_CLASSES])
def test_fields_are_listed_in_wire_order_with_their_types_and_defaults(name: str) -> None:
    expected = fields_of({**MESSAGE_CLASSES, **RAFT_CLASSES}[name])
    if not expected:
        assert f"#### `{name}`\n\nAn empty array.\n" in TEXT
        return
    rows = [(row[0].strip("`"), row[1], row[2]) for row in TABLES[name]]
    assert rows == expected


def test_no_message_is_listed_that_does_not_exist() -> None:
    listed = [line[6:-1] for line in TEXT.splitlines() if line.startswith("#### `")]
    assert sorted(listed) == sorted([*MESSAGE_CLASSES, *RAFT_CLASSES])


@pytest.mark.parametrize(("heading", "classes"), [("Raft", RAFT_MESSAGES), ("Snapshots", STREAM_MESSAGES)])
def test_messages_of_the_channels_are_listed_with_their_tags(heading: str, classes: dict[str, type]) -> None:
    assert TABLES[heading] == [
        [str(class_.__struct_config__.tag), name]  # type: ignore[attr-defined]
        for name, class_ in classes.items()
    ]


def test_channels() -> None:
    assert [row[:2] for row in TABLES["Channels"]] == [[str(int(c)), c.name] for c in peer.Channel]


def test_error_codes() -> None:
    def yes(value: bool) -> str:
        return "yes" if value else "no"

    assert TABLES["Error codes"] == [
        [str(e.code), e.name, yes(e.retryable), yes(e.outcome_known), (e.__doc__ or "").splitlines()[0]]
        for e in ERRORS.values()
    ]


def test_method_codes() -> None:
    assert TABLES["Methods"] == [
        [
            f"0x{e.code:04X}",
            e.name,
            e.body.__name__,
            e.reply.__name__,
            "yes" if e.mutates else "no",
            e.by.value,
            e.whose.value,
            e.lane.name.lower(),
        ]
        for e in NAMED.values()
    ]
    for method in NAMED.values():
        assert f"### `{method.name}`\n" in TEXT


def test_tables() -> None:
    """`python tests/unit/wire/wire_document.py` writes these rows, and those of the methods that have a shape."""
    assert "\n".join(table_rows()) in TEXT
    assert "\n".join(read_rows()) in TEXT
    assert "\n".join(batch_rows()) in TEXT
    assert "\n".join(list_rows()) in TEXT
    assert [row[0] for row in TABLES["Tables"]] == sorted(name for name, table in declared.items() if table.routing)


def test_features() -> None:
    assert [(int(row[0]), row[1]) for row in TABLES["Features"]] == [(f.value, f.name) for f in messages.Feature]
    assert sum(messages.Feature) == FEATURES


def test_every_read_of_records_takes_revisions() -> None:
    for verb in VERBS.values():
        taken = "min_revisions" in verb.method.body.__struct_fields__
        assert taken == (verb.read is not None) == (not verb.method.mutates), verb.method


def test_methods_of_early_data() -> None:
    (listed,) = re.findall(r"there that change nothing: (.*?)\.\s", TEXT, re.DOTALL)
    assert re.findall(r"`(.*?)`", listed) == [method.name for code, method in NAMED.items() if code in READS]


def test_frame_types() -> None:
    assert [row[:2] for row in TABLES["Frame types"]] == [[str(int(t)), t.name] for t in FrameType]
    senders = {row[1]: row[2] for row in TABLES["Frame types"]}
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
    assert TABLES[role.value.capitalize()] == expected


def test_limits() -> None:
    constants = {**vars(messages), **vars(fields), **vars(frame), **vars(watch)}
    listed = {row[0]: int(row[1]) for row in TABLES["Limits"]}
    assert listed == {name: value for name, value in constants.items() if name.endswith("_MAX")}


def test_the_example_is_what_both_ends_send() -> None:
    blocks = hex_blocks(TEXT)
    client, server = ClientSession(client_name="go-1"), ServerSession()
    hello = client.data_to_send()
    assert hello == blocks["HELLO"]
    server.receive_data(hello)
    assert server.next_event() is not None
    server.welcome(messages.Welcome(1, server.features, "node-1", "metad", 4194304, 16777216, 60000))
    welcome = server.data_to_send()
    assert welcome == blocks["WELCOME"]
    client.receive_data(welcome)
    assert client.next_event() is not None
    identity = messages.Identity(0x0123456789ABCDEF, 1, 1)
    body = messages.KvPut([messages.KvPutItem("config", "/limits/rate", b"500")])
    assert client.request(KV_PUT.code, KV_PUT.encode_request(body, 5000, identity, "data-0")) == 1
    request = client.data_to_send()
    assert request == blocks["REQUEST"]
    server.receive_data(request)
    assert server.next_event() is not None
    server.respond(1, encode(messages.KvPutReply([messages.Revision("data-0", 17)], [], [1])))
    assert server.data_to_send() == blocks["RESPONSE"]
    assert set(blocks) == {"HELLO", "WELCOME", "REQUEST", "RESPONSE"}


def test_the_header_is_as_described() -> None:
    rows = TABLES["Frames"]
    sizes = [int(row[1]) for row in rows[:-1]]
    assert [int(row[0]) for row in rows] == [sum(sizes[:i]) for i in range(len(rows))]
    data = encode_frame(3, b"pp", request_id=0x0102030405060708, method=0x0A0B)
    assert data.hex() == "0000000e" + "03" + "00" + "0a0b" + "0102030405060708" + b"pp".hex()


def test_the_test_vectors_are_where_it_says() -> None:
    for path in (MESSAGES, FRAMES, RAFT, SNAPSHOTS):
        assert f"../tests/golden/{path.name}" in TEXT
        assert path.exists()


def test_no_server_sends_credit() -> None:
    """The document says so. Whoever adds a caller says when it is sent, there."""
    assert "The servers of this repository send none so far" in TEXT
    sources = (PROTOCOL.parents[1] / "metad").rglob("*.py")
    assert [path.name for path in sources if "set_window(" in path.read_text(encoding="utf-8")] == []
    assert "set_window(" in inspect.getsource(ServerSession)
