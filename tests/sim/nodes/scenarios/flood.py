"""A server reads all connections, whatever waits: heartbeats and cancels pass what cannot begin, what waited too long
is not done, and a flood leaves others their share. The clients are raw connections: the SDK would not do this."""

from __future__ import annotations

from typing import Any

from metad.config import MIB, LimitsConfig
from metad_wire import messages as m
from metad_wire.cluster import METADATA
from metad_wire.connection.frame import FrameDecoder, FrameType, encode_frame
from metad_wire.connection.session import decode_error
from metad_wire.errors import CancelledError, MetadError, OverloadedError
from metad_wire.methods import BROKER_HEARTBEAT, BROKER_REGISTER, KV_GET, KV_PUT, Method, encode
from metad_wire.tables import broker as b
from metad_wire.transport import Stream

from ..cluster import CLIENT_PORT, DATA
from ..links import Wire
from ..loop import Process
from .scene import Scene, scenario

_LEASE_MS = 2_000
_LONG_MS = 60_000
_DELAY_S = 0.0005


class _Line:
    """A connection that sends what it is told."""

    def __init__(self) -> None:
        self.stream: Stream
        self.answers: dict[int, bytes | MetadError] = {}
        self._decoder = FrameDecoder()
        self._asked = 0

    def connection_made(self, stream: Stream) -> None:
        self.stream = stream
        stream.write(encode_frame(FrameType.HELLO, encode(m.Hello(m.MAGIC, 1, 1))))

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        while (frame := self._decoder.next()) is not None:
            if frame.type == FrameType.ERROR:
                self.answers[frame.request_id] = decode_error(frame.payload)
            elif frame.type == FrameType.RESPONSE:
                self.answers[frame.request_id] = frame.payload

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        pass

    def request(self, method: Method[Any, Any], body: Any, group: str = "") -> tuple[int, bytes]:
        """Its id, and its frame, which is not sent."""
        self._asked += 1
        payload = method.encode_request(body, _LONG_MS, None, group)
        return self._asked, encode_frame(FrameType.REQUEST, payload, self._asked, method.code)

    def send(self, method: Method[Any, Any], body: Any, group: str = "") -> int:
        """Ask; the id of the request."""
        number, frame = self.request(method, body, group)
        self.stream.write(frame)
        return number

    def cancel(self, number: int) -> None:
        """Give a request up."""
        self.stream.write(encode_frame(FrameType.CANCEL, b"", number))


def _lines(scene: Scene, count: int) -> list[_Line]:
    """To the node that leads all."""
    leader = scene.lead(METADATA)
    if scene.lead(DATA) is not leader:
        scene.transfer(leader.name)
    process = Process(scene.loop, "raw")
    transport = scene.network.transport("raw")
    lines = []
    for _ in range(count):
        task = process.start(transport.dial(leader.name, CLIENT_PORT, _Line, 5.0))
        assert scene.run_until(task.done, 5.0)
        lines.append(task.result())
    scene.run(0.1)
    return lines


def _put(key: str, size: int = 10) -> m.KvPut:
    return m.KvPut([m.KvPutItem("space", key, bytes(size))])


@scenario
def who_does_not_read_its_answers_is_heard_and_what_it_asked_too_long_ago_is_not_done() -> None:
    """A broker reads no answers for longer than its lease, and goes on sending heartbeats."""
    with Scene(limits=LimitsConfig(queue_ms=1_000, write_stall_timeout_ms=60_000)) as scene:
        (line,) = _lines(scene, 1)
        register = line.send(BROKER_REGISTER, b.BrokerRegister("alive", _LEASE_MS))
        assert scene.run_until(lambda: register in line.answers, 5.0)
        answer = line.answers[register]
        assert isinstance(answer, bytes), answer
        beat = b.BrokerHeartbeat([b.BrokerBeat("alive", BROKER_REGISTER.decode_reply(answer).broker_epoch)])
        for key in ("long-1", "long-2"):
            scene.put(scene.one, key, bytes(MIB - 1_000))

        def stop_reading() -> None:
            line.stream.pause_reading()
            line.send(KV_GET, KV_GET.body([m.KvKey("space", f"long-{n}") for n in (1, 2)]), DATA.name)
            scene.run(0.1)  # the answer fills the connection

        stop_reading()
        late = line.send(KV_PUT, _put("late"), DATA.name)
        beats = []
        for _ in range(12):
            beats.append(line.send(BROKER_HEARTBEAT, beat))
            scene.run(0.5)
        broker = scene.ask(scene.one, lambda client: client.brokers.get("alive"))
        assert broker is not None
        assert broker.state == "active", "its heartbeats were not heard"
        line.stream.resume_reading()
        assert scene.run_until(lambda: {late, *beats} <= line.answers.keys(), 5.0), "not all is answered"
        assert isinstance(line.answers[late], OverloadedError), line.answers[late]
        assert scene.get(scene.one, "late") is None
        wrong = [line.answers[number] for number in beats if not isinstance(line.answers[number], bytes)]
        assert wrong == []

        stop_reading()
        given_up, wanted = (line.send(KV_PUT, _put(key), DATA.name) for key in ("given-up", "wanted"))
        line.cancel(given_up)
        scene.run(0.2)
        line.stream.resume_reading()
        assert scene.run_until(lambda: {given_up, wanted} <= line.answers.keys(), 5.0), "not all is answered"
        assert isinstance(line.answers[given_up], CancelledError), line.answers[given_up]
        assert scene.get(scene.one, "given-up") is None
        assert scene.get(scene.one, "wanted") is not None


@scenario
def a_flood_is_turned_away_at_its_bound_and_leaves_others_their_share() -> None:
    """Three connections send as much as they may, all at the same moment, and a fourth one little."""
    limits = LimitsConfig(
        frame_bytes_max=4 * MIB,
        connection_window_bytes=4 * MIB,
        unfinished_bytes_max=4 * MIB,
        unbegun_bytes_max=4 * MIB,
    )
    with Scene(limits=limits, wire=Wire(delay=(_DELAY_S, _DELAY_S))) as scene:
        *flooding, modest = _lines(scene, 4)
        asked: list[list[int]] = []
        for number, line in enumerate(flooding):
            made = [line.request(KV_PUT, _put(f"{number}/{at}", 10_000), DATA.name) for at in range(400)]
            line.stream.write(b"".join(frame for _, frame in made))
            asked.append([request_id for request_id, _ in made])
        little = modest.send(KV_PUT, _put("little"), DATA.name)

        def answered() -> bool:
            all_in = all(set(ids) <= line.answers.keys() for line, ids in zip(flooding, asked, strict=True))
            return all_in and little in modest.answers

        assert scene.run_until(answered, 20.0), "not all is answered"
        assert isinstance(modest.answers[little], bytes), modest.answers[little]
        for line, ids in zip(flooding, asked, strict=True):
            refused = [line.answers[one] for one in ids if not isinstance(line.answers[one], bytes)]
            assert {type(error) for error in refused} == {OverloadedError}, refused[:3]
            assert len(refused) < len(ids), "a connection has no share"
            slots = [error.retry_after_ms for error in refused if isinstance(error, OverloadedError)]
            assert all(slots), "turned away, and not told when to come back"
