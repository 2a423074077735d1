"""Two QUIC engines joined by a network of our own, in virtual time: it loses, repeats, reorders, readdresses."""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any, cast

from metad_perf.attack import sites as fleet
from metad_wire.transport.credentials import TlsFiles
from metad_wire.transport.quic.certificates import load
from metad_wire.transport.quic.flow.receiving import Receiver
from metad_wire.transport.quic.packets import PacketEngine
from metad_wire.transport.quic.settings import QuicSettings
from metad_wire.transport.quic.tickets import GrantedTickets, Kept
from metad_wire.transport.quic.tokens import ResetTokens

CLIENT, SERVER = ("192.0.2.1", 1000), ("192.0.2.2", 7420)


class Link:
    """``client``, ``server``, and what is on its way between them. ``loss`` and so on are shares of the datagrams."""

    def __init__(
        self,
        *,
        seed: int = 1,
        settings: QuicSettings | None = None,
        loss: float = 0.0,
        repeats: float = 0.0,
        jitter_s: float = 0.0,
        delay_s: float = 0.010,
        client_files: TlsFiles | None = None,
        certificate_required: bool = True,
        granted: GrantedTickets | None = None,
        kept: Kept | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        self.loss, self.repeats, self.jitter_s, self.delay_s = loss, repeats, jitter_s, delay_s
        self.client_address: tuple[str, int] = CLIENT
        self.sent = {"client": 0, "server": 0}
        self.kept: list[Kept] = []
        self._settings = settings or QuicSettings()
        self._counter = itertools.count()
        self._way: list[tuple[float, int, str, bytes, tuple[str, int]]] = []
        self._server_material = load(fleet.node())
        self._certificate_required = certificate_required
        self._granted = granted if granted is not None else GrantedTickets(64, 3600.0)
        self.resets = ResetTokens(self._server_material.secret)
        self.server: PacketEngine | None = None
        self.client = PacketEngine(
            self._settings, load(client_files or fleet.client()), kept=kept, ticket_handler=self.kept.append
        )
        self.client.connect(SERVER, self.now)
        self.datagrams: list[bytes] = []  # all that the client sent

    def end(self, name: str) -> PacketEngine:
        """One of the two."""
        engine = self.client if name == "client" else self.server
        assert engine is not None
        return engine

    def send(self) -> None:
        """Put on its way what the ends have to send."""
        for name, engine in (("client", self.client), ("server", self.server)):
            if engine is None:
                continue
            for datagram, address in engine.datagrams_to_send(self.now):
                self.sent[name] += 1
                if name == "client":
                    self.datagrams.append(datagram)
                    to, source = "server", self.client_address
                elif address == self.client_address:
                    to, source = "client", SERVER
                else:
                    continue  # to where the client has been
                for _ in range(1 + (self.rng.random() < self.repeats)):
                    if self.rng.random() >= self.loss:
                        at = self.now + self.delay_s + self.rng.random() * self.jitter_s
                        heapq.heappush(self._way, (at, next(self._counter), to, datagram, source))

    def step(self) -> None:
        """Go to whatever is next: an arrival, a timer, or 10 ms on, for who reads and writes does so at steps."""
        self.send()
        times = [self._way[0][0]] if self._way else []
        for engine in (self.client, self.server):
            if engine is not None and (at := engine.get_timer()) is not None:
                times.append(at)
        assert times, "nothing will ever happen again"
        self.now = max(self.now, min(*times, self.now + 0.01))
        arrived: dict[tuple[str, tuple[str, int]], list[bytes]] = {}
        while self._way and self._way[0][0] <= self.now:
            _, _, to, datagram, source = heapq.heappop(self._way)
            arrived.setdefault((to, source), []).append(datagram)
        for (to, source), datagrams in arrived.items():
            self._arrive(to, source, datagrams)
        for engine in (self.client, self.server):
            if engine is not None and (at := engine.get_timer()) is not None and at <= self.now:
                engine.handle_timer(self.now)

    def _arrive(self, to: str, source: tuple[str, int], datagrams: list[bytes]) -> None:
        if to == "server" and self.server is None:
            self.server = PacketEngine(
                self._settings,
                self._server_material,
                certificate_required=self._certificate_required,
                granted=self._granted,
                resets=self.resets,
                original_connection_id=self.client.original_destination_connection_id,
            )
        engine = self.end(to)
        engine.receive_run(datagrams, source, self.now)
        while engine.next_event() is not None:
            pass

    def until(self, condition: Any, *, steps: int = 200_000) -> None:
        """Step until it holds."""
        for _ in range(steps):
            if condition():
                return
            self.step()
        raise AssertionError(f"not within {steps} steps, {self.now - 100:.1f} s of virtual time")

    def connect(self) -> None:
        """Finish the handshake on both ends."""
        self.until(lambda: self.client._handshake_confirmed and self.server is not None and self.server.handshaken)


class Transfer:
    """Bytes from one end to the other on one stream, checked on arrival. The reader takes ``appetite`` at a step."""

    def __init__(self, link: Link, sender: str, stream_id: int, total: int, *, appetite: int = 1 << 30) -> None:
        self._link, self._sender, self._stream_id = link, sender, stream_id
        self._receiver = "server" if sender == "client" else "client"
        self.data = random.Random(stream_id * 7 + len(sender)).randbytes(total)
        self._written = 0
        self._appetite = appetite
        self.received = bytearray()
        self._reading: Receiver | None = None  # kept, for the connection forgets streams that are finished
        self.most_held = 0

    def step(self) -> None:
        """Write some, read some."""
        sender = self._link.end(self._sender)._streams.get(self._stream_id)
        if sender is not None and self._written < len(self.data) and sender.sender.unsent_bytes < 100_000:
            piece = self.data[self._written : self._written + self._link.rng.choice((1, 100, 3_000, 50_000))]
            self._written += len(piece)
            sender.sender.write(piece, end_stream=self._written == len(self.data))
        if self._reading is None:
            stream = self._link.end(self._receiver)._streams.get(self._stream_id)
            self._reading = cast("Receiver", stream.receiver) if stream is not None else None
        else:
            self.most_held = max(self.most_held, self._reading.held_bytes)
            if self._reading.ready:
                self.received += self._reading.take(self._appetite)

    @property
    def done(self) -> bool:
        """All of it has been read."""
        return len(self.received) >= len(self.data)


class Handler:
    """Of a stream; does nothing about what it is told."""

    def __init__(self) -> None:
        self.stream: Any = None

    def connection_made(self, stream: Any) -> None:
        self.stream = stream

    def data_received(self, data: bytes) -> None:
        pass

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        pass
