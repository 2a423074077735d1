"""A client that knows what ``metad protocol --json`` and wire/PROTOCOL.md say, levels 1 and 2. It imports nothing of
metad, and has a MessagePack of its own. It blocks, has one connection to each node, and sends many calls at once."""

from __future__ import annotations

import heapq
import random
import select
import socket
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HELLO, WELCOME, REQUEST, RESPONSE, ERROR, EVENT, CANCEL, CREDIT, PING, PONG, GOAWAY = range(1, 12)
DEADLINE_MS = 30_000
SEQ_MAX_ATTEMPTS = 100


def pack(value: Any) -> bytes:
    """A value as MessagePack."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _pack_int(value)
    if isinstance(value, str):
        data = value.encode()
        return (bytes([0xA0 | len(data)]) if len(data) < 32 else _head(len(data), 0xD9, 0xDA, 0xDB)) + data
    if isinstance(value, bytes):
        return _head(len(value), 0xC4, 0xC5, 0xC6) + value
    if isinstance(value, Mapping):
        body = b"".join(pack(key) + pack(each) for key, each in value.items())
        return (bytes([0x80 | len(value)]) if len(value) < 16 else _head(len(value), None, 0xDE, 0xDF)) + body
    body = b"".join(map(pack, value))
    return (bytes([0x90 | len(value)]) if len(value) < 16 else _head(len(value), None, 0xDC, 0xDD)) + body


def _pack_int(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack("b", value) if value < 0 else bytes([value])
    for first, code in ((0xCC, "B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q")) if value > 0 else ((0xD3, ">q"),):
        if first in (0xCF, 0xD3) or value < 1 << 8 * struct.calcsize(code):
            return bytes([first]) + struct.pack(code, value)
    raise ValueError(value)


def _head(length: int, one: int | None, two: int, four: int) -> bytes:
    if one is not None and length < 1 << 8:
        return bytes([one, length])
    return bytes([two]) + struct.pack(">H", length) if length < 1 << 16 else bytes([four]) + struct.pack(">I", length)


_NUMBERS = {0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LENGTHS = {  # first byte -> what it begins, and how many bytes the length has
    0xC4: ("bin", 1),
    0xC5: ("bin", 2),
    0xC6: ("bin", 4),
    0xD9: ("str", 1),
    0xDA: ("str", 2),
    0xDB: ("str", 4),
    0xDC: ("array", 2),
    0xDD: ("array", 4),
    0xDE: ("map", 2),
    0xDF: ("map", 4),
}


def unpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value at this position, and where it ends."""
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xE0:
        return (first if first < 0x80 else first - 256), at
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
    if first in _NUMBERS:
        code = _NUMBERS[first]
        return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
    if first in _LENGTHS:
        kind, size = _LENGTHS[first]
        length, at = int.from_bytes(data[at : at + size], "big"), at + size
    else:
        kind = "str" if first >= 0xA0 else "array" if first >= 0x90 else "map"
        length = first & (0x1F if kind == "str" else 0x0F)
    if kind in ("str", "bin"):
        raw = data[at : at + length]
        return (raw.decode() if kind == "str" else raw), at + length
    items = []
    for _ in range(length if kind == "array" else 2 * length):
        item, at = unpack(data, at)
        items.append(item)
    return (items if kind == "array" else dict(zip(items[::2], items[1::2], strict=True))), at


class Protocol:
    """What the description says: messages as dictionaries to arrays and back."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.version, self.magic, self.slots = description["version"], description["magic"], description["slots"]
        self.features = sum(description["features"].values())
        self.messages = description["messages"]
        self.methods = {method["name"]: method for method in description["methods"]}
        self.tables = {table["name"]: table for table in description["tables"]}
        self.errors = {error["code"]: error for error in description["errors"]}

    def array(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        """The message of this name. Fields that are not given have their defaults."""
        return [self._out(each["type"], values.get(each["name"], each.get("default"))) for each in self.fields(name)]

    def fields(self, name: str) -> list[dict[str, Any]]:
        """Of a message."""
        found: list[dict[str, Any]] = self.messages[name]["fields"]
        return found

    def _out(self, type_: Any, value: Any) -> Any:
        if type_ == "bin" and isinstance(value, str):
            return value.encode()
        if not isinstance(type_, dict) or value is None:
            return value
        if "message" in type_:
            return self.array(type_["message"], value or {}) if isinstance(value, dict) or not value else value
        return [self._out(type_["array"], each) for each in value] if "array" in type_ else value

    def read(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        """A message that has arrived. Elements after the fields that are known are skipped."""
        found = {}
        for number, each in enumerate(self.fields(name)):
            value = values[number] if number < len(values) else each["default"]
            found[each["name"]] = self._in(each["type"], value)
        return found

    def _in(self, type_: Any, value: Any) -> Any:
        if isinstance(type_, dict) and value is not None:
            if "message" in type_:
                return self.read(type_["message"], value)
            if "array" in type_:
                return [self._in(type_["array"], each) for each in value]
            if "map" in type_:
                return {key: self._in(type_["map"][1], each) for key, each in value.items()}
            if "or" in type_:
                return self._in(next(each for each in type_["or"] if each != "nil"), value)
        return value


class Refused(Exception):
    """The answer is an error, of a request or of one item."""

    def __init__(self, error: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        super().__init__(f"{error['name']}: {body['message']}")
        self.name, self.retryable, self.body = error["name"], error["retryable"], body


@dataclass
class Call:
    """One request for one group, until it is answered."""

    method: dict[str, Any]
    body: list[Any]
    group: str = ""
    identity: list[int] | None = None
    first_s: float | None = None
    attempts: int = 0
    at_node: str = ""
    positions: list[int] = field(default_factory=list)
    """Of its items in the batch that was asked for."""
    reply: dict[str, Any] | None = None
    error: Refused | None = None


class Connection:
    """One end of a connection: frames in and out, the window, and what is unanswered."""

    def __init__(self, protocol: Protocol, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self.protocol = protocol
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.unanswered: dict[int, tuple[Call, int]] = {}
        self._received = b""
        self._last_id = 0
        hello = {"magic": protocol.magic, "version_min": 1, "version_max": 1, "features": protocol.features}
        self.send(HELLO, pack(protocol.array("Hello", hello)))
        kind, _, payload = next(self.frames(wait=True))
        if kind != WELCOME:
            self.socket.close()
            raise self.refused(payload)
        self.welcome = protocol.read("Welcome", unpack(payload)[0])
        self.window = self.welcome["window_bytes"]

    def send(self, kind: int, payload: bytes, request_id: int = 0, method: int = 0) -> int:
        """Returns the size of the frame."""
        frame = struct.pack(">IBBHQ", 12 + len(payload), kind, 0, method, request_id) + payload
        self.socket.sendall(frame)
        return len(frame)

    def fits(self, payload: bytes) -> bool:
        """Whether the window has room for a request."""
        taken = sum(size for _, size in self.unanswered.values())
        return not self.unanswered or taken + 16 + len(payload) <= self.window

    def request(self, call: Call, payload: bytes) -> None:
        self._last_id += 1
        size = self.send(REQUEST, payload, self._last_id, call.method["code"])
        self.unanswered[self._last_id] = (call, size)

    def frames(self, *, wait: bool = False) -> Iterator[tuple[int, int, bytes]]:
        """The frames that have arrived; with ``wait`` it reads until there is one."""
        while True:
            while len(self._received) >= 16:
                length, kind, _, _, request_id = struct.unpack_from(">IBBHQ", self._received)
                if len(self._received) < length + 4:
                    break
                payload, self._received = self._received[16 : length + 4], self._received[length + 4 :]
                yield kind, request_id, payload
                wait = False
            if not wait and not select.select([self.socket], [], [], 0)[0]:
                return
            chunk = self.socket.recv(1 << 18)
            if not chunk:
                raise ConnectionError("the server has closed the connection")
            self._received += chunk

    def answers(self) -> Iterator[tuple[Call, dict[str, Any] | Refused]]:
        """The calls that are answered by what has arrived. Raises Refused if the connection is."""
        for kind, request_id, payload in self.frames():
            if kind == PING:
                self.send(PONG, payload if len(payload) <= 16 else b"")
            elif kind == CREDIT:
                self.window = self.protocol.read("Credit", unpack(payload)[0])["window_bytes"]
            elif kind == ERROR and request_id == 0:
                raise self.refused(payload)
            elif kind in (RESPONSE, ERROR):
                call, _ = self.unanswered.pop(request_id)
                if kind == ERROR:
                    yield call, self.refused(payload)
                else:
                    yield call, self.protocol.read(call.method["reply"], unpack(payload)[0])

    def refused(self, payload: bytes) -> Refused:
        body = self.protocol.read("ErrorBody", unpack(payload)[0])
        unknown = {"name": "internal", "retryable": False}
        return Refused(self.protocol.errors.get(body["code"], unknown), body)


class Client:
    """Sends what it is asked to the groups that have it, and comes back when it is told to."""

    def __init__(self, protocol: Protocol, endpoint: str) -> None:
        self.protocol = protocol
        self.told_to_come_back = 0
        self._series: dict[str, list[int]] = {}
        first = Connection(protocol, endpoint)
        self._connections = {first.welcome["node_id"]: first}
        self._map: dict[str, Any] = {}
        self._leaders: dict[str, str] = {}
        self.refresh()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.socket.close()

    def refresh(self) -> None:
        """Ask for a map until there is a newer one, or the same."""
        while True:
            call = self.call("cluster.map", {"version": self._map.get("version", 0)})
            self._leaders |= {group: node for group, node in call["leaders"].items() if node}
            self._map = call["map"] or self._map
            if self._map:
                return
            time.sleep(0.05)

    def group_of(self, table: str, values: Mapping[str, Any]) -> str:
        """The group that has a record: its routing fields, encoded, give the slot."""
        kind, routing = self.protocol.tables[table]["kind"], self.protocol.tables[table]["routing"]
        encoded = b"".join(values[name].encode().replace(b"\0", b"\0\xff") + b"\0\x01" for name in routing)
        slot = zlib.crc32(encoded) % self.protocol.slots
        return f"{kind}-{struct.unpack_from('>H', self._map['slots'][kind], 2 * slot)[0]}"

    def call(self, name: str, body: Mapping[str, Any], group: str = "") -> dict[str, Any]:
        """One call. Raises Refused."""
        call = self.prepared(name, body, group)
        self.run([call])
        if call.error is not None:
            raise call.error
        assert call.reply is not None
        return call.reply

    def prepared(self, name: str, body: Mapping[str, Any], group: str = "") -> Call:
        """A call with an identity, if it writes."""
        method = self.protocol.methods[name]
        call = Call(method, self.protocol.array(method["body"], body), group)
        if method["mutates"]:
            series = self._series.setdefault(group, [random.getrandbits(64), 0, 1])
            series[1] += 1
            call.identity = [series[0], series[1], series[2], 0]
        return call

    def batch(self, name: str, items: Sequence[Mapping[str, Any]], **others: Any) -> dict[str, Any]:
        """Items of any groups: ``errors`` by position, and what the replies have by position under their names."""
        parts: dict[str, list[int]] = {}
        for position, item in enumerate(items):
            parts.setdefault(self.group_of(name.partition(".")[0], item), []).append(position)
        calls = []
        for group, positions in parts.items():
            call = self.prepared(name, {"items": [items[at] for at in positions], **others}, group)
            call.positions = positions
            calls.append(call)
        self.run(calls)
        found: dict[str, Any] = {"errors": {}}
        for call in calls:
            if call.error is not None:
                raise call.error
            assert call.reply is not None
            for error in call.reply["errors"]:
                at = call.positions[error["index"]]
                found["errors"][at] = Refused(self.protocol.errors[error["code"]], error)
            for column in set(call.reply) - {"errors", "revisions"}:
                values = found.setdefault(column, [None] * len(items))
                for at, value in zip(call.positions, call.reply[column], strict=True):
                    values[at] = value
        return found

    def listed(self, name: str, body: Mapping[str, Any], group: str, limit: int) -> list[Any]:
        """All pages of a listing of one group."""
        found: list[Any] = []
        cursor = b""
        while True:
            reply = self.call(name, {**body, "page": {"limit": limit, "cursor": cursor}}, group)
            found += reply["found"]
            cursor = reply["cursor"]
            if not cursor:
                return found

    def run(self, calls: Sequence[Call]) -> None:
        """Send all of them, again where that helps, until each has a reply or an error."""
        ready, later, left = deque(calls), list[tuple[float, int, Call]](), len(calls)
        while left:
            while later and later[0][0] <= time.monotonic():
                ready.append(heapq.heappop(later)[2])
            for _ in range(len(ready)):
                call = ready.popleft()
                if not self._sent(call):
                    ready.append(call)
            sockets = {connection.socket: connection for connection in self._connections.values()}
            for one in select.select(list(sockets), [], [], 0.01)[0]:
                for call, answer in self._answers(sockets[one]):
                    pause_s = self._pause_s(call, answer)
                    if pause_s is None:
                        call.reply, call.error = (None, answer) if isinstance(answer, Refused) else (answer, None)
                        left -= 1
                    else:
                        heapq.heappush(later, (time.monotonic() + pause_s, id(call), call))

    def _sent(self, call: Call) -> bool:
        connection = self._connection(call.at_node or self._leaders.get(call.group, ""))
        now_s = time.monotonic()
        identity = call.identity
        if identity is not None and call.first_s is not None:
            identity = [*identity[:3], int(1000 * (now_s - call.first_s)) + 1]
        payload = pack([DEADLINE_MS, identity, call.body, call.group])
        if not connection.fits(payload):
            return False
        call.first_s = now_s if call.first_s is None else call.first_s
        call.attempts += 1
        connection.request(call, payload)
        return True

    def _connection(self, node: str) -> Connection:
        if node and node not in self._connections:
            for record in self._map["nodes"]:
                if record["node_id"] == node:
                    self._connections[node] = Connection(self.protocol, record["endpoint"])
        return self._connections.get(node) or next(iter(self._connections.values()))

    def _answers(self, connection: Connection) -> list[tuple[Call, Any]]:
        try:
            return list(connection.answers())
        except ConnectionError as gone:
            connection.socket.close()
            self._connections = {node: each for node, each in self._connections.items() if each is not connection}
            lost = Refused({"name": "connection_lost", "retryable": True}, {"message": str(gone), "leader": ""})
            return [(call, lost) for call, _ in connection.unanswered.values()]

    def _pause_s(self, call: Call, answer: Any) -> float | None:
        """When to send it again; None if it is over."""
        if not isinstance(answer, Refused) or not answer.retryable or call.attempts >= SEQ_MAX_ATTEMPTS:
            return None
        call.at_node = answer.body.get("leader", "")
        if answer.name == "stale_route":
            return None  # its items are for other groups: the caller asks for the map, and makes new calls
        if answer.body.get("retry_after_ms"):
            self.told_to_come_back += 1
            jitter_ms = answer.body["retry_jitter_ms"]
            return float(answer.body["retry_after_ms"] + random.uniform(-jitter_ms, jitter_ms)) / 1000
        return random.uniform(0, min(2.0, 0.02 * 2 ** min(call.attempts, 10)))
