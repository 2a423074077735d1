"""Which losses shrink the window of our QUIC: those of a full path, and not those of a noisy one."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from metad_wire.transport.quic.flow.recovery import NOISE_PACKETS, NoiseTolerantCubic

SIZE = 1_200


class Bottleneck:
    """A sender that always has something to send, over a line of a rate, a delay, a buffer and a loss of its own."""

    def __init__(self, *, rtt_s: float, packets_per_s: float, buffer_packets: int, loss: float, seed: int = 1) -> None:
        self.control = NoiseTolerantCubic(SIZE)
        self._rtt_s, self._gap_s, self._buffer, self._loss = rtt_s, 1 / packets_per_s, buffer_packets, loss
        self._rng = random.Random(seed)
        self._flying: deque[tuple[float, bool, Any]] = deque()  # when its fate is known, whether it came, packet
        self._free_s = 0.0
        self.delivered = self.overflown = 0
        self.queue_s_max = 0.0

    def run(self, seconds: float) -> None:
        now_s = 0.0
        while now_s < seconds:
            while self.control.bytes_in_flight + SIZE <= self.control.congestion_window:
                self._send(now_s)
            now_s, arrived, packet = self._flying.popleft()
            if arrived:
                self.delivered += 1
                self.control.on_packet_acked(now=now_s, packet=packet)
                self.control.on_rtt_measurement(now=now_s, rtt=now_s - packet.sent_time)
            else:
                self.control.on_packets_lost(now=now_s, packets=[packet])

    def _send(self, now_s: float) -> None:
        packet: Any = SimpleNamespace(sent_time=now_s, sent_bytes=SIZE)
        self.control.on_packet_sent(packet=packet)
        waits_s = max(0.0, self._free_s - now_s)
        arrived = waits_s <= self._buffer * self._gap_s
        if arrived:
            self._free_s = now_s + waits_s + self._gap_s
            self.queue_s_max = max(self.queue_s_max, waits_s)
        else:
            self.overflown += 1
        known_s = now_s + min(waits_s, self._buffer * self._gap_s) + self._gap_s + self._rtt_s
        self._flying.append((known_s, arrived and self._rng.random() >= self._loss, packet))


def _used(line: Bottleneck, packets_per_s: float, seconds: float) -> float:
    return line.delivered / (packets_per_s * seconds)


@pytest.mark.parametrize("loss", [0.0, 0.001, 0.01, 0.03])
@pytest.mark.parametrize("rtt_s", [0.03, 0.2])
def test_a_noisy_path_is_used(loss: float, rtt_s: float) -> None:
    line = Bottleneck(rtt_s=rtt_s, packets_per_s=2_000, buffer_packets=int(2_000 * rtt_s), loss=loss)
    line.run(20)
    assert _used(line, 2_000, 20) > 0.5  # CUBIC: 0.02 at 0.2 s and 1 %


def test_a_full_path_is_given_way_to() -> None:
    """As many packets overflow as with CUBIC's sawtooth, not a stream of them."""
    line = Bottleneck(rtt_s=0.05, packets_per_s=2_000, buffer_packets=100, loss=0.0)
    line.run(30)
    assert _used(line, 2_000, 30) > 0.7
    assert line.overflown < 0.01 * line.delivered


def test_a_shallow_buffer_is_no_noise() -> None:
    """No queue ever tells of it, but the share of loss does."""
    line = Bottleneck(rtt_s=0.05, packets_per_s=2_000, buffer_packets=4, loss=0.0)
    line.run(30)
    assert line.overflown < 0.08 * (line.delivered + line.overflown)


def test_heavy_loss_is_congestion_whatever_the_delay() -> None:
    line = Bottleneck(rtt_s=0.05, packets_per_s=20_000, buffer_packets=2_000, loss=0.2)
    line.run(10)
    assert line.control.congested
    assert line.control.congestion_window < 40 * SIZE


def test_the_first_losses_prove_nothing() -> None:
    control = NoiseTolerantCubic(SIZE)
    for number in range(NOISE_PACKETS + 1):
        packet: Any = SimpleNamespace(sent_time=float(number), sent_bytes=SIZE)
        control.on_packet_sent(packet=packet)
        window = control.congestion_window
        control.on_packets_lost(now=number + 0.5, packets=[packet])
        assert (control.congestion_window < window) == (number == NOISE_PACKETS)
    assert control.bytes_in_flight == 0


def test_a_window_that_is_not_used_does_not_grow() -> None:
    control = NoiseTolerantCubic(SIZE)
    window = control.congestion_window
    for number in range(100):
        packet: Any = SimpleNamespace(sent_time=number / 10, sent_bytes=SIZE)
        control.on_packet_sent(packet=packet)
        control.on_packet_acked(now=number / 10 + 0.05, packet=packet)
    assert control.congestion_window == window


def test_a_longer_path_is_believed_after_a_while() -> None:
    control = NoiseTolerantCubic(SIZE)
    for number in range(100):
        control.on_rtt_measurement(now=number / 10, rtt=0.02)
    for number in range(100, 800):
        control.on_rtt_measurement(now=number / 10, rtt=0.1)
        if number == 120:
            assert control.congested
    assert not control.congested
