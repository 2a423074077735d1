"""A UDP socket that moves many datagrams per wake-up: if the kernel can split and join runs of equal datagrams (GSO and
GRO, Linux), a run takes one system call, otherwise each datagram takes one.

A socket bound to all addresses of a machine must answer from the address that was asked, or the peer would not
recognise the answer. On such a socket an :data:`Address` also names our own address.

Knows nothing of QUIC. Works on asyncio's and uvloop's loops alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

Address = tuple[Any, ...]
"""A peer's address as in the socket module, (host, port) or (host, port, flow, scope). On a socket bound to all
addresses, the control message that names our own address follows."""

DATAGRAMS_PER_WAKE_UP: Final = 64
"""Datagrams received before the loop does anything else. More would make others wait."""
UNSENT_DATAGRAMS_MAX: Final = 4_096
"""Bytes kept while the kernel accepts no more; the rest is lost, as on any network, and QUIC sends it again."""

_UDP_SEGMENT: Final = 103  # linux/udp.h
_UDP_GRO: Final = 104
_SEGMENTS_MAX: Final = 64  # UDP_MAX_SEGMENTS of older kernels
_RUN_BYTES_MAX: Final = 65_000  # of one split or joined datagram, without headers
_BUFFER_BYTES: Final = 65_536
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(4) + socket.CMSG_SPACE(20)
_IP_PKTINFO: Final = 8  # linux/in.h; the socket module has it from 3.14 on
_segment_size = struct.Struct("=H")
_gro_size = struct.Struct("=i")

# Errors of one datagram that say nothing of the next: no route, no buffer, a filter…
_TRANSIENT: Final = frozenset(
    {
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.EADDRNOTAVAIL,
        errno.EPERM,
        errno.ENOBUFS,
        errno.EMSGSIZE,
        errno.EINVAL,
    }
)


class DatagramSocket:
    """A non-blocking UDP socket. It calls ``received`` with one peer's datagrams at a time, ``swept`` once after all
    datagrams of a wake-up, and ``refused`` if the kernel reports that nobody listens at the peer's address (connected
    sockets only)."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        buffer_bytes: int,
        received: Callable[[list[bytes], Address], None],
        swept: Callable[[], None],
        refused: Callable[[], None],
        segmentation: bool = True,
        datagrams_at_once: int = DATAGRAMS_PER_WAKE_UP,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._received = received
        self._swept = swept
        self._refused = refused
        self._datagrams_at_once = datagrams_at_once
        self._peer: Address | None = None
        self._unsent: deque[tuple[bytes, Address]] = deque()
        self._buffer = bytearray(_BUFFER_BYTES)
        self.closed = False
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
        self.gso = segmentation and _can(sock, _UDP_SEGMENT, 0)
        self.gro = segmentation and _can(sock, _UDP_GRO, 1)
        self._plain = 2 if sock.family == socket.AF_INET else 4  # parts of an address without our own
        self._names_own = _bound_to_all(sock) and _tell_own_address(sock)
        self.unreachable = 0  # datagrams in a row without a route
        with contextlib.suppress(OSError):
            self._peer = sock.getpeername()
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def address(self) -> Address:
        """The address that the socket is bound to."""
        address: Address = self._sock.getsockname()
        return address

    def close(self) -> None:
        """Stop sending and receiving."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()

    # --- receiving ---------------------------------------------------------------------------------------

    def _readable(self) -> None:
        count = 0
        sock, buffer, peer, gro, names_own = self._sock, self._buffer, self._peer, self.gro, self._names_own
        view = memoryview(buffer)
        try:
            while count < self._datagrams_at_once and not self.closed:
                segment = 0
                if gro or names_own:
                    size, ancillary, flags, address = sock.recvmsg_into((buffer,), _ANCILLARY_BYTES)
                    for level, kind, content in ancillary:
                        if level == socket.IPPROTO_UDP and kind == _UDP_GRO:
                            segment = _gro_size.unpack_from(content)[0]
                        elif names_own:
                            address = (*address, _answer_from(level, kind, content))
                    if flags & socket.MSG_TRUNC:
                        continue
                else:
                    size, address = sock.recvfrom_into(buffer)
                if segment and segment < size:
                    datagrams = [bytes(view[start : min(start + segment, size)]) for start in range(0, size, segment)]
                else:
                    datagrams = [bytes(view[:size])]
                count += len(datagrams)
                self._received(datagrams, peer or address)
        except (BlockingIOError, InterruptedError):
            pass
        except ConnectionRefusedError:
            self._refused()
        except OSError as error:
            if error.errno not in _TRANSIENT:
                raise
        finally:
            if count:
                self._swept()

    # --- sending -----------------------------------------------------------------------------------------

    def send(self, datagrams: list[bytes], address: Address) -> None:
        """Send datagrams to one peer, in order. Never blocks; may lose them."""
        if self.closed:
            return
        if self._unsent:
            self._keep(datagrams, address)
            return
        first, count, gso = 0, len(datagrams), self.gso
        control: list[tuple[int, int, bytes]] = []
        if len(address) > self._plain:
            address, control = address[: self._plain], [address[self._plain]]
        while first < count:
            end = first + 1
            size = len(datagrams[first])
            if gso:
                most = min(count, first + min(_SEGMENTS_MAX, _RUN_BYTES_MAX // size))
                while end < most and len(datagrams[end]) == size:
                    end += 1
                if end < most and len(datagrams[end]) < size:
                    end += 1  # the last of a run may be shorter
            try:
                if end - first == 1 and not control:
                    if self._peer is not None:
                        self._sock.send(datagrams[first])
                    else:
                        self._sock.sendto(datagrams[first], address)
                else:
                    ancillary = control
                    if end - first > 1:
                        ancillary = [*control, (socket.IPPROTO_UDP, _UDP_SEGMENT, _segment_size.pack(size))]
                    if self._peer is not None:
                        self._sock.sendmsg(datagrams[first:end], ancillary)
                    else:
                        self._sock.sendmsg(datagrams[first:end], ancillary, 0, address)
                self.unreachable = 0
            except (BlockingIOError, InterruptedError):
                self._keep(datagrams[first:], (*address, *control))
                return
            except ConnectionRefusedError:
                self._refused()  # of an earlier datagram; these are lost
                return
            except OSError as error:
                if end - first > 1 and error.errno in (errno.EIO, errno.EINVAL, errno.EMSGSIZE):
                    self.gso = gso = False  # the device does not support it: one by one from here on
                    continue
                if error.errno not in _TRANSIENT:
                    raise
                self.unreachable += 1
            first = end

    def _keep(self, datagrams: list[bytes], address: Address) -> None:
        if not self._unsent:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        room = UNSENT_DATAGRAMS_MAX - len(self._unsent)
        self._unsent.extend((datagram, address) for datagram in datagrams[:room])

    def _writable(self) -> None:
        unsent, self._unsent = self._unsent, deque()
        self._loop.remove_writer(self._sock.fileno())
        while unsent:
            datagram, address = unsent.popleft()
            self.send([datagram], address)
            if self._unsent:
                self._unsent.extend(unsent)
                return


def _can(sock: socket.socket, option: int, value: int) -> bool:
    """Whether the kernel knows this option of UDP sockets."""
    try:
        sock.setsockopt(socket.IPPROTO_UDP, option, value)
    except OSError:
        return False
    return True


def _bound_to_all(sock: socket.socket) -> bool:
    return str(sock.getsockname()[0]) in ("0.0.0.0", "::")


def _tell_own_address(sock: socket.socket) -> bool:
    """Whether the kernel will say which of our addresses each datagram was sent to."""
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    except OSError:
        return False
    return True


def _answer_from(level: int, kind: int, content: bytes) -> tuple[int, int, bytes]:
    """The control message that answers from the address of an arrived datagram. The interface is left to the routes."""
    if level == socket.IPPROTO_IP:
        return level, kind, bytes(4) + content[4:8] + bytes(4)  # in_pktinfo: interface, our address, the header's
    return level, kind, content[:16] + bytes(4)  # in6_pktinfo: our address, interface


def peer_of(address: Address) -> Address:
    """The address as in the socket module, without ours."""
    return tuple(part for part in address if not isinstance(part, tuple))


async def resolve(host: str, port: int, *, passive: bool) -> tuple[socket.AddressFamily, Address]:
    """The first address of a host. Raises OSError, also for invalid names and ports."""
    loop = asyncio.get_running_loop()
    try:
        if not 0 <= port <= 65_535:
            raise ValueError("port out of range")
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE if passive else 0)
    except (ValueError, OverflowError) as error:  # UnicodeError is one
        raise OSError(f"cannot resolve {host!r} port {port}: {error}") from error
    family, _, _, _, address = found[0]
    return family, address


async def listening(host: str, port: int) -> socket.socket:
    """A bound socket. Raises OSError."""
    family, address = await resolve(host, port, passive=True)
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


async def connected(host: str, port: int) -> socket.socket:
    """A socket for one peer, so that the kernel reports refusals and drops datagrams of others. Raises OSError."""
    family, address = await resolve(host, port, passive=False)
    return connected_to(family, address)


def connected_to(family: int, address: Address) -> socket.socket:
    """A socket connected to a resolved address. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock
