"""From an endpoint to a connection that has greeted, or to a typed error. The one place where the operating
system's errors become metad's."""

from __future__ import annotations

import asyncio
import errno
import socket

from metad_wire.errors import (
    ConnectionLostError,
    FrameError,
    FrameTooLargeError,
    HandshakeError,
    MetadError,
    UnexpectedFrameError,
)
from metad_wire.transport import Transport

from .connection import Connection, Owner
from .endpoint import name_of
from .options import Options


class Dialer:
    """Opens connections for one owner."""

    def __init__(self, transport: Transport, owner: Owner, options: Options) -> None:
        self._transport = transport
        self._owner = owner
        self._options = options

    async def dial(self, endpoint: tuple[str, int]) -> Connection:
        """Connect and shake hands within the handshake timeout. Raises ConnectionLostError where nobody answers,
        HandshakeError or UnauthenticatedError where the peer does not want us."""
        name = name_of(endpoint)
        connection = Connection(
            name,
            self._owner,
            ping_interval_s=self._options.ping_interval_s,
            credentials=self._options.credentials,
            client_name=self._options.client_name,
        )
        timeout_s = self._options.handshake_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._transport.dial(*endpoint, lambda: connection, timeout_s)
                await connection.welcomed
        except (FrameError, FrameTooLargeError, UnexpectedFrameError) as error:
            raise HandshakeError(f"{name} does not speak metad's protocol: {error}") from error
        except MetadError:
            raise
        except OSError as error:  # TimeoutError is one
            connection.abort()
            raise ConnectionLostError(explain(error, name, timeout_s)) from error
        except BaseException:
            connection.abort()
            raise
        return connection


def explain(error: OSError, name: str, timeout_s: float) -> str:
    """Why an endpoint could not be reached, in one line."""
    # asyncio joins the errors of several addresses of one host into a text.
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return f"connection refused by {name}"
    if isinstance(error, TimeoutError):
        return f"no answer from {name} within {timeout_s:.3g} s"
    if isinstance(error, socket.gaierror):
        return f"cannot resolve {name}: {error.strerror}"
    return f"cannot reach {name}: {error.strerror or error}"
