"""QUIC connections over a bad network, in virtual time: what is written arrives, whatever happens to the datagrams."""

from __future__ import annotations

import hashlib
from pathlib import Path

import aioquic
import aioquic.quic.connection
import pytest
from quic_rig import CLIENT, Link, Transfer

from metad_wire.transport.quic import engine
from metad_wire.transport.quic.packets import PacketEngine
from metad_wire.transport.quic.settings import KIB, QuicSettings
from metad_wire.transport.quic.tickets import GrantedTickets


def transfer(link: Link, *, streams: int = 3, total: int = 300_000, appetite: int = 1 << 30) -> list[Transfer]:
    """So much each way on each of some streams."""
    link.connect()
    ids = [link.client.open_stream().stream_id or 0 for _ in range(streams)]
    link.until(lambda: link.server is not None and len(link.server._streams) == streams)
    transfers = [Transfer(link, end, id_, total, appetite=appetite) for id_ in ids for end in ("client", "server")]

    def done() -> bool:
        for one in transfers:
            one.step()
        return all(one.done for one in transfers)

    link.until(done)
    for one in transfers:
        assert bytes(one.received) == one.data
    return transfers


@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_arrives_over_a_bad_network(seed: int) -> None:
    transfer(Link(seed=seed, loss=0.03, repeats=0.03, jitter_s=0.02))


def test_a_good_network_sees_hardly_more_packets_than_the_bytes_fill() -> None:
    link = Link(seed=1)
    transfer(link, streams=1, total=2_000_000)
    assert link.sent["client"] < 1.25 * 2 * 2_000_000 / 1_160
    assert link.client._loss.lost == 0


@pytest.mark.parametrize("seed", range(3))
def test_keys_are_replaced_under_way(seed: int) -> None:
    link = Link(seed=seed, loss=0.02, jitter_s=0.002, settings=QuicSettings(key_update_packets=60))
    phases = set()
    link.connect()
    stream = link.client.open_stream()
    transfer_one = Transfer(link, "client", stream.stream_id or 0, 400_000)

    def done() -> bool:
        transfer_one.step()
        phases.add(link.client._cryptos[engine.tls.Epoch.ONE_RTT].send.secret)
        return transfer_one.done

    link.until(done)
    assert bytes(transfer_one.received) == transfer_one.data
    assert len(phases) > 4


def test_a_change_of_the_clients_address_is_survived() -> None:
    link = Link(seed=3, loss=0.01)
    link.connect()
    stream = link.client.open_stream()
    up = Transfer(link, "client", stream.stream_id or 0, 200_000)
    down = Transfer(link, "server", stream.stream_id or 0, 200_000)
    moved = 0

    def done() -> bool:
        nonlocal moved
        up.step()
        down.step()
        if len(up.received) > 50_000 * (moved + 1):
            moved += 1
            link.client_address = ("198.51.100.7", 2_000 + moved)
        return up.done and down.done

    link.until(done)
    assert moved >= 2
    assert (bytes(up.received), bytes(down.received)) == (up.data, down.data)
    assert link.end("server").get_peer_address() == link.client_address


def ask(link: Link, *, early: bool) -> float:
    """Seconds from dialling to the first answer."""
    began = link.now
    if not early:
        link.connect()
    stream = link.client.open_stream()
    stream.sender.write(b"question")
    answered = False

    def done() -> bool:
        nonlocal answered
        if link.server is not None and 0 in link.server._streams and not answered:
            asked = link.server._streams[0]
            if asked.receiver.ready and asked.receiver.take(100) == b"question":
                asked.sender.write(b"answer")
                answered = True
        return bool(stream.receiver.ready) and stream.receiver.take(100) == b"answer"

    link.until(done)
    return link.now - began


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_a_ticket_brings_the_first_answer_in_one_round_trip(loss: float) -> None:
    granted = GrantedTickets(64, 3600.0)
    first = Link(granted=granted, delay_s=0.05)
    full_s = ask(first, early=False)
    first.until(lambda: first.kept)
    again = Link(granted=granted, delay_s=0.05, kept=first.kept[0], loss=loss, seed=2)
    early_s = ask(again, early=True)
    assert full_s >= 0.2
    if not loss:
        assert early_s == pytest.approx(0.1, abs=0.001)
    assert len(granted) in (0, 1)  # the first is used up; another may have been given


def test_a_repetition_of_early_data_is_not_read() -> None:
    """Who recorded a client's datagrams sends them again: the ticket is used up, so nothing of them is opened."""
    granted = GrantedTickets(64, 3600.0)
    first = Link(granted=granted)
    ask(first, early=False)
    first.until(lambda: first.kept)
    again = Link(granted=granted, kept=first.kept[0])
    ask(again, early=True)
    replayed = PacketEngine(
        QuicSettings(),
        again._server_material,
        certificate_required=True,
        granted=granted,
        resets=again.resets,
        original_connection_id=again.client.original_destination_connection_id,
    )
    replayed.receive_run(again.datagrams, CLIENT, again.now)
    assert not replayed._streams
    assert not replayed.handshaken


def test_early_data_that_is_refused_is_sent_again() -> None:
    first = Link(granted=GrantedTickets(64, 3600.0))
    ask(first, early=False)
    first.until(lambda: first.kept)
    again = Link(granted=GrantedTickets(64, 3600.0), kept=first.kept[0], delay_s=0.05)  # one that has forgotten it
    stream = again.client.open_stream()
    stream.sender.write(b"question")
    again.connect()
    again.client.send_again_what_was_early(again.now)
    again.until(lambda: 0 in again.end("server")._streams and again.end("server")._streams[0].receiver.ready)
    assert again.end("server")._streams[0].receiver.take(100) == b"question"


def test_a_slow_reader_bounds_what_is_held_and_gets_everything() -> None:
    settings = QuicSettings(window_bytes=16 * KIB, window_bytes_max=64 * KIB)
    link = Link(seed=4, loss=0.02, settings=settings)
    transfers = transfer(link, streams=2, total=400_000, appetite=700)
    assert max(one.most_held for one in transfers) <= 64 * KIB


def test_windows_widen_to_what_a_long_path_needs_and_no_further() -> None:
    settings = QuicSettings(window_bytes=16 * KIB, window_bytes_max=256 * KIB)
    link = Link(seed=5, delay_s=0.1, settings=settings)
    link.connect()
    stream = link.client.open_stream()
    up = Transfer(link, "client", stream.stream_id or 0, 3_000_000)

    def done() -> bool:
        up.step()
        return up.done

    began = link.now
    link.until(done)
    windows = link.end("server")._streams
    widest = max((s.receiver.window_bytes for s in windows.values()), default=256 * KIB)
    assert widest == 256 * KIB
    # 16 KiB per round trip of 0.2 s would take over 36 s.
    assert link.now - began < 12


def test_a_byte_far_ahead_costs_no_more_than_a_piece() -> None:
    """Guards against what aioquic does: fill the gap with zeros."""
    link = Link(seed=6, settings=QuicSettings(window_bytes=1024 * KIB))
    link.connect()
    sender = link.client.open_stream().sender
    sender.write(bytes(1_000_000))
    sender.highest_offset = 999_999
    sender.buffer_is_empty = False
    link.until(lambda: link.server is not None and link.server.held_bytes() > 0)
    server = link.end("server")
    assert server.held_bytes() < 1_000
    assert server.unconsumed_bytes() == 1_000_000


def test_an_offset_beyond_the_window_ends_the_connection() -> None:
    link = Link(seed=7)
    link.connect()
    stream = link.client.open_stream()
    stream.max_stream_data_remote = link.client._remote_max_data = 1 << 40
    stream.sender.write(bytes(10))
    stream.sender._buffer_start = stream.sender.highest_offset = (1 << 30) - 10
    stream.sender._buffer_stop = 1 << 30
    link.until(lambda: link.client.over)
    assert link.client.end_reason()[0] == 3  # FLOW_CONTROL_ERROR
    assert link.client.closed_by_peer


def test_the_source_that_was_read_is_the_source_that_runs() -> None:
    """Guards the overrides: they rely on aioquic's own names and ways."""
    assert aioquic.__version__ == engine.AUDITED_VERSION
    folder = Path(aioquic.__file__).parent
    digest = hashlib.sha256()
    for name in engine.AUDITED_FILES:
        digest.update((folder / name).read_bytes())
    assert digest.hexdigest() == engine.AUDITED_SHA256, "read what changed in these files, then renew the digest"
