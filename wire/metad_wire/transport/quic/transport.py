"""Dial and listen over QUIC: implements :class:`metad_wire.transport.Transport`.

One dial is one ordered stream, as everywhere. Dials of one transport to one endpoint share a connection, up to
``shared_streams``: its handshake, its congestion control and its keys, but no order; what is lost of one stream holds
up no other. So whoever wants control frames, data and bulk not to wait for each other dials once for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from .. import Handler, Listener, StreamHandler
from ..credentials import TlsFiles
from ..pace import Pace
from ..reload import Reloaded
from . import certificates
from .carrier import Carrier
from .dialled import Dialled
from .packets import PacketEngine
from .server import Server
from .settings import QuicSettings
from .sockets import connected, listening
from .tickets import KeptTickets

_STALE_S = 1.0  # a connection not heard of for as long is asked for a sign of life before a new dial relies on it


class QuicTransport:
    """See the module. Raises CertificateError where the files cannot be used. Files that change are read anew by the
    handshakes that follow.

    ``certificate_required``: a client without one is refused in the handshake; otherwise whoever accepts it looks at
    ``get_extra_info("peercert")`` and decides by something else. ``pace``: of the handshakes that are begun.
    """

    def __init__(
        self,
        files: TlsFiles,
        *,
        certificate_required: bool = True,
        settings: QuicSettings | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._files = files
        self._certificate_required = certificate_required
        self._settings = settings or QuicSettings()
        self._pace = pace or Pace()
        self._material = Reloaded(files, certificates.load)
        self._dialled: dict[tuple[str, int], list[Dialled]] = {}
        self._kept = KeptTickets()

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept streams; ``factory`` makes the handler of each, once its connection's peer is verified."""
        if not self._files.certificate:
            raise ValueError("listening needs a certificate")
        sock = await listening(host, port)
        return Server(
            sock,
            self._settings,
            self._material,
            factory,
            certificate_required=self._certificate_required,
            pace=self._pace,
        )

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        """Open a stream to a node. Raises TlsError, of which CertificateError is one, or another OSError."""
        async with asyncio.timeout(timeout_s):
            existing = await self._existing(host, port)
            if existing is not None:
                return await self._open(existing.carrier, factory, accepted=True)
            dialled = await self._connect(host, port)
            return await self._open(dialled.carrier, factory, accepted=False)

    async def _existing(self, host: str, port: int) -> Dialled | None:
        """A connection that has room and a living peer."""
        loop = asyncio.get_running_loop()
        for dialled in tuple(self._dialled.get((host, port), ())):
            carrier = dialled.carrier
            if carrier.over or len(carrier.ends) + carrier.reserved >= self._settings.shared_streams:
                continue
            with _reserved(carrier), contextlib.suppress(OSError):
                await asyncio.shield(carrier.connected)
                if loop.time() - carrier.engine.heard_s > _STALE_S:
                    async with asyncio.timeout(max(_STALE_S, 4 * carrier.engine.rtt_s)):
                        await carrier.ping()
            if not carrier.over:
                return dialled
        return None

    async def _connect(self, host: str, port: int) -> Dialled:
        sock = await connected(host, port)
        endpoint = host, port
        material = self._material.current()
        engine = PacketEngine(
            self._settings,
            material,
            kept=self._kept.take(endpoint, material.generation),
            token=self._kept.take_token(endpoint),
            ticket_handler=lambda kept: self._kept.keep(endpoint, kept),
            token_handler=lambda token: self._kept.keep_token(endpoint, token),
        )
        dialled = Dialled(sock, engine, lambda gone: self._forget(endpoint, gone))
        self._dialled.setdefault(endpoint, []).append(dialled)
        dialled.connect()
        return dialled

    async def _open(self, carrier: Carrier, factory: Callable[[], Handler], *, accepted: bool) -> Handler:
        with _reserved(carrier):
            if not carrier.engine.can_send_early:
                await asyncio.shield(carrier.connected)
            if carrier.over:  # perhaps refused: a client's handshake is over before its certificate was looked at
                raise carrier.failure or ConnectionResetError("the connection was closed")
            handler = factory()
            end = carrier.dial(handler)  # from here on it counts among the ends
        if accepted:
            try:
                await carrier.acceptance(end)
            except BaseException:
                end.abort()
                raise
        return handler

    def _forget(self, endpoint: tuple[str, int], dialled: Dialled) -> None:
        others = self._dialled.get(endpoint, [])
        if dialled in others:
            others.remove(dialled)
        if not others:
            self._dialled.pop(endpoint, None)


@contextlib.contextmanager
def _reserved(carrier: Carrier):  # type: ignore[no-untyped-def]
    carrier.reserved += 1
    try:
        yield
    finally:
        carrier.reserved -= 1
        carrier.close_if_unused()
