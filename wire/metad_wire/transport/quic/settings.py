"""What can be set of the QUIC transport. Every bound is here, beside its reason."""

from __future__ import annotations

from typing import Final

import msgspec

ALPN: Final = "metad/1"
CONNECTION_ID_BYTES: Final = 8

KIB: Final = 1024
MIB: Final = 1024 * 1024


class QuicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and bytes. The defaults are for public paths; both ends may differ in all of them."""

    datagram_bytes: int = 1200
    """UDP payload of a full packet. Every path carries 1200; 1452 is for those known to be Ethernet from end to end,
    up to 16000 for jumbo frames and loopback. There is no discovery: too much here is a black hole."""
    idle_timeout_s: float = 30.0
    """A connection on which nothing was heard for as long is over, silently. The smaller of both ends' counts."""
    keepalive_s: float = 10.0
    """After so much silence the end that dialled asks for a sign of life: keeps NAT bindings and the idle timer."""
    unanswered_s: float = 4.0
    """A peer that leaves what was sent unacknowledged for as long, repeats included, is given up. It catches what a
    stateless reset does not: a machine or a path that is gone."""
    handshake_timeout_s: float = 5.0
    """For the handshake, and then for the first stream. Honest peers take a few round trips."""
    streams_max: int = 8
    """Streams of one connection at a time. Each packet costs a look at every one of them, so: a handful."""
    shared_streams: int = 8
    """Dials of one transport to one endpoint share a connection, up to so many."""
    window_bytes: int = 256 * KIB
    """What a peer may send on a stream beyond what was consumed; doubles while it proves too small for the path…"""
    window_bytes_max: int = 8 * MIB
    """…up to this: 40 MB/s at 200 ms."""
    connection_window_factor: float = 1.5
    """Window of a whole connection, in windows of its widest stream."""
    held_bytes_max: int = 32 * MIB
    """Received by one listener, or one dialled connection, and not consumed: out of order, or not read. Over it, the
    connection that holds most is closed, and windows stop growing at half of it."""
    unsent_bytes_high: int = MIB
    """Unsent bytes of a stream at which its handler is asked to pause…"""
    unsent_bytes_low: int = 256 * KIB
    """…and to which they must drain before it may go on."""
    connections_max: int = 20_000
    """Connections of a listener."""
    handshakes_max: int = 512
    """Of these, with a handshake under way."""
    retry_handshakes: int = 8
    """Handshakes under way from which on loopback peers have to prove their address too, as all others always have."""
    socket_buffer_bytes: int = 4 * MIB
    """Of the kernel, each way: must hold what arrives while the loop is busy elsewhere."""
    key_update_packets: int = 1 << 22
    """Packets sealed under one key; the limit for AES-GCM is 2^23."""
    tickets_max: int = 4_096
    """Session tickets that a listener remembers; each is good for one resumption."""
    ticket_life_s: float = 6 * 3600.0
    """How long one may be used."""
