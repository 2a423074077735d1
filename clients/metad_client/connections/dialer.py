"""Turns an endpoint into a connection whose node has greeted, or into a typed error. Only this module maps the
operating system's errors to metad's.

If two transports reach an endpoint, the second is tried when the first has failed or has not come up in a second, and
the first that greets is used. A path that filters UDP, or everything else, costs that second once in a while.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from metad_wire.messages import Welcome

from ..causes import error_of_dial, stays
from ..dispatch.node_connection import ConnectionListener, NodeConnection
from ..endpoint import Endpoint, name_of
from ..errors import ConnectionLostError, MetadError, UnauthenticatedError
from ..options import Options
from .connection import Connection
from .multi_stream import MultiStreamConnection
from .transport_choice import TransportChoice

HEAD_START_S = 1.0
"""Head start of the preferred transport: three round trips of a path around the world."""


class Dialer:
    """Opens connections for one listener."""

    def __init__(self, transports: TransportChoice, listener: ConnectionListener, options: Options) -> None:
        self._transports = transports
        self._listener = listener
        self._options = options
        self._welcomes: dict[Endpoint, Welcome] = {}  # of QUIC connections, for the next one's 0-RTT data

    async def dial(self, endpoint: Endpoint) -> NodeConnection:
        """Connect and shake hands within the handshake timeout. Raises ConnectionLostError if nothing answers,
        HandshakeError or UnauthenticatedError if the peer refuses us."""
        first, *others = self._transports.plan(endpoint)
        if not others:
            return await self.dial_by(endpoint, first)
        return await self._race(endpoint, first, others[0])

    async def _race(self, endpoint: Endpoint, first: str, second: str) -> NodeConnection:
        attempts = {asyncio.create_task(self.dial_by(endpoint, first)): first}
        errors: list[MetadError] = []
        try:
            await asyncio.wait(attempts, timeout=HEAD_START_S)
            while attempts or second:
                for done in [task for task in attempts if task.done()]:
                    name = attempts.pop(done)
                    try:
                        connection = done.result()
                    except UnauthenticatedError:
                        raise  # the other transport would use the same certificate or token
                    except MetadError as error:
                        self._transports.failed(endpoint, name)
                        errors.append(error)
                        continue
                    if name != first:
                        self._transports.failed(endpoint, first)
                    return connection
                if second:
                    attempts[asyncio.create_task(self.dial_by(endpoint, second))] = second
                    second = ""
                if attempts:
                    await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in attempts:
                task.add_done_callback(_hang_up)
                task.cancel()
        raise errors[0]

    async def dial_by(self, endpoint: Endpoint, name: str) -> NodeConnection:
        """Connect by one transport. A QUIC connection has several streams, and only the first is waited for."""
        if name != "quic":
            return await self._stream(endpoint, name, self._listener)
        connection = MultiStreamConnection(
            name_of(endpoint),
            name,
            self._listener,
            lambda listener: self._stream(endpoint, name, listener),
            self._options.quic_streams,
        )
        await connection.open()
        return connection

    async def _stream(self, endpoint: Endpoint, name: str, listener: ConnectionListener) -> Connection:
        transport, place = self._transports.by_name[name], self._transports.place(endpoint, name)
        endpoint_name = name_of(endpoint)
        connection = Connection(
            endpoint_name,
            listener,
            via=name,
            assumed=self._welcomes.pop(endpoint, None) if name == "quic" else None,
            ping_interval_s=self._options.ping_interval_s,
            credentials=self._options.credentials,
            client_name=self._options.client_name,
        )
        timeout_s = self._options.handshake_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await transport.dial(*place, lambda: connection, timeout_s)
                if connection.early:
                    # However the handshake ends, calls see the same as when a connection is lost.
                    connection.welcomed.add_done_callback(lambda _: self._remember(endpoint, connection))
                    return connection
                await connection.welcomed
        except BaseException as error:
            connection.abort()  # nobody else knows it, so nobody would wait for a polite end
            if isinstance(error, ConnectionLostError):
                if name == "tcp" and connection.bytes_received == 0 and connection.bytes_sent:
                    hint = "hung up before it greeted; a server with certificates is reached by metads:// or metadq://"
                    raise ConnectionLostError(f"{endpoint_name} {hint}") from error
            elif isinstance(error, (MetadError, OSError)):
                told = typed(error, endpoint_name, timeout_s)
                if told is not error:
                    raise told from error
            raise
        self._remember(endpoint, connection)
        return connection

    def _remember(self, endpoint: Endpoint, connection: Connection) -> None:
        welcomed, welcome = connection.welcomed, connection.session.welcome
        if connection.via != "quic" or welcome is None or welcomed.cancelled() or welcomed.exception() is not None:
            return
        self._welcomes[endpoint] = welcome


def typed(error: OSError | MetadError, name: str, timeout_s: float) -> MetadError:
    """metad's error for the end of a dial."""
    kind = error_of_dial(error)
    if kind is ConnectionLostError and isinstance(error, OSError):
        return kind(explain(error, name, timeout_s))
    if kind is not None:
        what = "does not speak metad's protocol: " if isinstance(error, MetadError) else ""
        return kind(f"{name}{' ' if what else ': '}{what}{error}")
    assert isinstance(error, MetadError)
    if stays(error) and not error.message.startswith(name):
        return type(error)(f"{name} refuses this client: {error}")
    return error


def _hang_up(task: asyncio.Task[NodeConnection]) -> None:
    """Close the connection of a lost race: it may have come up just then."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


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
