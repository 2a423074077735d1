"""Tickets, proofs of an address and reset tokens: who may use them, where, and how long."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509

from metad_perf.attack import sites as certificates
from metad_wire.transport.quic.flow.recovery import BURST_PACKETS, GAIN, Pacer
from metad_wire.transport.quic.tickets import SERVERS_MAX, GrantedTickets, Kept, KeptTickets
from metad_wire.transport.quic.tokens import AddressTokens, ResetTokens

HERE, PORT_2, ELSEWHERE = ("192.0.2.1", 1000), ("192.0.2.1", 1001), ("192.0.2.2", 1000)
CA, OTHER_CA = b"authorities", b"others"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def ticket(name: bytes = b"t") -> Any:
    return SimpleNamespace(ticket=name, is_valid=True)


def holder(files: Any) -> x509.Certificate:
    with open(files.certificate, "rb") as file:
        return x509.load_pem_x509_certificate(file.read())


def test_a_ticket_is_good_once_for_whom_it_was_given() -> None:
    granted = GrantedTickets(10, 60.0, clock=Clock())
    client = holder(certificates.client())
    granted.grant(ticket(), client, CA)
    redeemed = granted.redeem(b"t", CA, certificate_required=True)
    assert redeemed is not None
    assert redeemed.holder is client
    assert granted.redeem(b"t", CA, certificate_required=True) is None


def test_a_ticket_is_no_way_round_the_rules_of_today() -> None:
    clock = Clock()
    granted = GrantedTickets(10, 60.0, clock=clock)
    for name, who in ((b"none", None), (b"expired", holder(certificates.wrong("expired")))):
        granted.grant(ticket(name), who, CA)
        assert granted.redeem(name, CA, certificate_required=True) is None
    granted.grant(ticket(b"other ca"), holder(certificates.client()), CA)
    assert granted.redeem(b"other ca", OTHER_CA, certificate_required=False) is None
    granted.grant(ticket(b"old"), holder(certificates.client()), CA)
    clock.now += 61
    assert granted.redeem(b"old", CA, certificate_required=False) is None
    granted.grant(ticket(b"anonymous"), None, CA)
    assert granted.redeem(b"anonymous", CA, certificate_required=False) is not None


def test_tickets_are_bounded_on_both_ends() -> None:
    granted = GrantedTickets(3, 60.0)
    for at in range(10):
        granted.grant(ticket(bytes((at,))), None, CA)
    assert len(granted) == 3
    assert granted.redeem(b"\x06", CA, certificate_required=False) is None
    assert granted.redeem(b"\x07", CA, certificate_required=False) is not None
    kept = KeptTickets()
    for at in range(SERVERS_MAX + 10):
        for _ in range(10):
            kept.keep(("host", at), Kept(ticket(), holder(certificates.node()), CA))
        kept.keep_token(("host", at), b"token")
    assert len(kept._servers) == len(kept._tokens) == SERVERS_MAX
    assert max(map(len, kept._servers.values())) <= 4


def test_a_client_uses_a_ticket_once_and_only_while_its_server_is_believed() -> None:
    kept = KeptTickets()
    endpoint = ("host", 1)
    node = holder(certificates.node())
    kept.keep(endpoint, Kept(ticket(), node, CA))
    assert kept.take(endpoint, CA) is not None
    assert kept.take(endpoint, CA) is None
    kept.keep(endpoint, Kept(ticket(), node, CA))
    assert kept.take(endpoint, OTHER_CA) is None
    kept.keep(endpoint, Kept(ticket(), holder(certificates.wrong("expired")), CA))
    assert kept.take(endpoint, CA) is None
    kept.keep_token(endpoint, b"token")
    assert (kept.take_token(endpoint), kept.take_token(endpoint)) == (b"token", b"")


def test_a_retry_token_is_for_one_address_port_and_moment() -> None:
    clock = Clock()
    tokens = AddressTokens(b"secret", clock=clock)
    token = tokens.retry(HERE, b"original", b"retried!")
    proof = tokens.check(token, HERE, b"retried!")
    assert proof == (b"original", b"retried!")
    for address, connection_id in ((PORT_2, b"retried!"), (ELSEWHERE, b"retried!"), (HERE, b"another!")):
        assert tokens.check(token, address, connection_id) is None
    assert AddressTokens(b"another secret", clock=clock).check(token, HERE, b"retried!") is None
    clock.now += 16
    assert tokens.check(token, HERE, b"retried!") is None


def test_an_address_token_is_for_one_address_any_port_and_a_day() -> None:
    clock = Clock()
    token = AddressTokens(b"secret", clock=clock).address(HERE)
    restarted = AddressTokens(b"secret", clock=clock)
    assert restarted.check(token, PORT_2, b"any") == (b"any", None)
    assert restarted.check(token, ELSEWHERE, b"any") is None
    clock.now += 25 * 3600
    assert restarted.check(token, HERE, b"any") is None


@pytest.mark.parametrize("token", [b"", b"x", bytes(40), bytes(300)])
def test_nonsense_proves_nothing(token: bytes) -> None:
    assert AddressTokens(b"secret").check(token, HERE, b"any") is None


def test_a_reset_is_smaller_than_what_it_answers_and_the_same_after_a_restart() -> None:
    resets = ResetTokens(b"secret")
    for size in range(1, 1_500):
        packet = resets.packet(b"12345678", size)
        assert packet is None or 21 <= len(packet) < size
        if packet is not None:
            assert packet[0] & 0xC0 == 0x40
            assert packet[-16:] == ResetTokens(b"secret").of(b"12345678")
    assert resets.of(b"12345678") != resets.of(b"12345679")
    assert resets.of(b"12345678") != ResetTokens(b"other").of(b"12345678")


@pytest.mark.parametrize(("window", "rtt_s"), [(12_000, 0.1), (120_000, 0.05), (1_000_000, 0.2)])
def test_pacing_sends_at_the_windows_rate_in_bounded_bursts(window: int, rtt_s: float) -> None:
    pacer = Pacer(max_datagram_size=1_200)
    pacer.update_rate(congestion_window=window, smoothed_rtt=rtt_s)
    now, sent, longest = 100.0, 0, 0
    while now < 102.0:
        burst = 0
        while (at := pacer.next_send_time(now)) is None:
            pacer.update_after_send(now)
            burst += 1
        longest = max(longest, burst)
        sent += burst
        assert at > now
        now = at
    rate = sent * 1_200 / 2.0
    assert rate == pytest.approx(GAIN * window / rtt_s, rel=0.1)
    assert longest <= max(BURST_PACKETS, 0.002 * GAIN * window / rtt_s / 1_200) + 2


def test_dates_of_certificates_are_looked_at_in_utc() -> None:
    """Guards the helper's own certificates: an hour's shift must not make an expired one good."""
    assert holder(certificates.wrong("expired")).not_valid_after_utc < datetime.datetime.now(datetime.UTC)
