"""The settings of the QUIC transport: every bound, with its reason."""

from __future__ import annotations

from typing import Final

import msgspec

ALPN: Final = "metad/1"
CONNECTION_ID_BYTES: Final = 8

KIB: Final = 1024
MIB: Final = 1024 * 1024


class QuicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and bytes. The defaults are for public paths; the two ends may differ in all of them."""

    datagram_bytes: int = 1200
    """UDP payload of a full packet. Every path carries 1200; 1452 is for paths known to be Ethernet from end to end, up
    to 16000 for jumbo frames and loopback. There is no path MTU discovery: packets over the path's limit vanish."""
    idle_timeout_s: float = 30.0
    """A connection that heard nothing for this long ends silently. The smaller value of both ends counts."""
    keepalive_s: float = 10.0
    """After this much silence the dialling end sends a ping: it keeps NAT bindings and the idle timer alive."""
    unanswered_s: float = 4.0
    """A peer that leaves data unacknowledged for this long, repeats included, is given up. This detects a machine or a
    path that is gone, which sends no stateless reset."""
    handshake_timeout_s: float = 5.0
    """Time limit of the handshake, and then of the first stream. Honest peers take a few round trips."""
    streams_max: int = 8
    """Streams of one connection at a time. Each packet costs a look at every one of them, so there are few."""
    shared_streams: int = 8
    """Dials of one transport to one endpoint share a connection, up to this many."""
    window_bytes: int = 256 * KIB
    """Bytes that a peer may send on a stream beyond the consumed ones; doubles while it is too small for the path…"""
    window_bytes_max: int = 8 * MIB
    """…up to this: 40 MB/s at 200 ms."""
    connection_window_factor: float = 1.5
    """Window of a whole connection, in multiples of its widest stream's window."""
    held_bytes_max: int = 32 * MIB
    """Bytes received by one listener, or one dialled connection, and not consumed: out of order, or not read. Over this
    limit, the connection that holds most is closed; windows stop growing at half of it."""
    unsent_bytes_high: int = MIB
    """Unsent bytes of a stream at which its handler is asked to pause…"""
    unsent_bytes_low: int = 256 * KIB
    """…and to which they must drain before it may go on."""
    connections_max: int = 20_000
    """Connections of one listener."""
    handshakes_max: int = 512
    """Connections of one listener with a handshake under way."""
    retry_handshakes: int = 8
    """From so many handshakes under way on, loopback peers must prove their address too, as all others always must."""
    socket_buffer_bytes: int = 4 * MIB
    """Kernel buffer in each direction: must hold what arrives while the loop is busy elsewhere."""
    key_update_packets: int = 1 << 22
    """Packets sealed under one key; the limit for AES-GCM is 2^23."""
    tickets_max: int = 4_096
    """Session tickets that a listener remembers; each is good for one resumption."""
    ticket_life_s: float = 6 * 3600.0
    """Lifetime of a session ticket."""
