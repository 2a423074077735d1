"""Chooses the transport for an endpoint: the one that a URL's scheme names, or with ``metad+auto://`` the one that
suits the measured path and gets through."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path

from metad_wire.policy import PathChoice, PathRule, Way
from metad_wire.program.extras import install
from metad_wire.transport import Transport
from metad_wire.transport.credentials import CertificateError, PathSample, TlsFiles
from metad_wire.transport.reload import Watched
from metad_wire.transport.tcp import TcpTransport
from metad_wire.transport.tls import TlsTransport

from ..endpoint import Endpoint
from ..options import Options

BLOCKED_S = 30.0
"""After a transport did not get through to an endpoint, it is not preferred there for this long."""

_NAMES = {Way.TCP: "tls", Way.QUIC: "quic"}
_BY_NAME = {name: way for way, name in _NAMES.items()}


class TransportChoice:
    """The transports of one client by name (``tcp``, ``tls``, ``quic``). ``rule`` chooses between two."""

    def __init__(
        self, transports: Mapping[str, Transport], rule: PathRule, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.by_name = transports
        self._rule = rule
        self._clock = clock
        self._choices: dict[Endpoint, PathChoice] = {}
        self._noted_s: dict[Endpoint, float] = {}
        self._blocked: dict[tuple[Endpoint, str], float] = {}
        self._twins: Mapping[Endpoint, Endpoint] = {}

    @property
    def chooses(self) -> bool:
        """Whether there is more than one transport."""
        return len(self.by_name) > 1

    @property
    def by_quic(self) -> bool:
        """Whether QUIC is the only transport. Then all endpoints are QUIC endpoints."""
        return list(self.by_name) == ["quic"]

    def learn(self, twins: Mapping[Endpoint, Endpoint]) -> None:
        """Learn the QUIC endpoints of TCP endpoints. An endpoint that is not named has the same address for both."""
        for endpoint, twin in twins.items():
            if self._twins.get(endpoint) != twin:
                self._blocked.pop((endpoint, "quic"), None)  # it was blocked at another address
        self._twins = twins

    def knows_twins(self, endpoints: Iterable[Endpoint]) -> bool:
        """Whether the QUIC endpoint of each of these is known."""
        return all(endpoint in self._twins for endpoint in endpoints)

    def plan(self, endpoint: Endpoint) -> list[str]:
        """All transports, the one to try first in front."""
        if not self.chooses:
            return list(self.by_name)
        best = self._choices[endpoint].way if endpoint in self._choices else Way.TCP
        names = [_NAMES[best], _NAMES[best.other]]
        return sorted(names, key=lambda name: self.is_blocked(endpoint, name))

    def place(self, endpoint: Endpoint, name: str) -> Endpoint:
        """The address that a transport dials for an endpoint."""
        return self._twins.get(endpoint, endpoint) if name == "quic" and self.chooses else endpoint

    def is_blocked(self, endpoint: Endpoint, name: str) -> bool:
        """Whether a transport did not get through lately."""
        return self._blocked.get((endpoint, name), 0.0) > self._clock()

    def failed(self, endpoint: Endpoint, name: str) -> None:
        """Note that a transport did not get through, or later than the other one."""
        self._blocked[endpoint, name] = self._clock() + BLOCKED_S

    def note(self, endpoint: Endpoint, name: str, path: PathSample | None) -> str:
        """Note a measurement of a connection's path. Returns the transport to use from now on."""
        if not self.chooses:
            return name
        choice = self._choices.get(endpoint)
        if choice is None or choice.way is not _BY_NAME[name]:  # the connection uses the other transport than before
            choice = self._choices[endpoint] = PathChoice(self._rule, _BY_NAME[name])
            self._noted_s.pop(endpoint, None)
        if path is None:
            return name
        now_s, before_s = self._clock(), self._noted_s.get(endpoint)
        self._noted_s[endpoint] = now_s
        seconds = now_s - before_s if before_s is not None else 0.0
        wanted = _NAMES[choice.note(path.rtt_s, path.sent, path.lost, seconds)]
        return name if self.is_blocked(endpoint, wanted) else wanted


def transports_of(scheme: str, options: Options) -> TransportChoice:
    """The transports that a URL's scheme names. Raises ValueError if options that they need are missing or unusable."""
    makers: dict[str, tuple[tuple[str, Callable[[TlsFiles], Transport]], ...]] = {
        "metads": (("tls", _tls),),
        "metadq": (("quic", _quic),),
        "metad+auto": (("tls", _tls), ("quic", _quic)),
    }
    if scheme == "metad":
        if options.credentials or options.credentials_file:
            raise ValueError("a token is not sent in clear text: use metads://, metadq:// or metad+auto://")
        if options.tls is not None:
            raise ValueError(
                "metad:// is in clear text, and certificates are given: use metads://, metadq:// or metad+auto://"
            )
        return TransportChoice({"tcp": TcpTransport()}, options.path_rule)
    if options.tls is None:
        raise ValueError(f"{scheme}:// needs an authority to trust: give Options.tls at least ca")
    files = options.tls
    try:
        return TransportChoice({name: make(files) for name, make in makers[scheme]}, options.path_rule)
    except CertificateError as error:
        raise ValueError(str(error)) from None


def credentials_of(options: Options) -> Callable[[], bytes]:
    """Gives the token for the next connection: that of the file as it is then. Raises ValueError if the file cannot be
    used. One that is broken later does not replace the token."""
    path = options.credentials_file
    if not path:
        return lambda: options.credentials
    return Watched([path], lambda: token_in(Path(path)), error=ValueError, what="token file").current


def token_in(path: Path | None) -> bytes:
    """The first line of a file; None: of stdin. Raises ValueError if it cannot be read, or is empty."""
    try:
        with nullcontext(sys.stdin) if path is None else path.open() as file:
            token = file.readline().strip().encode()
    except OSError as error:
        raise ValueError(f"cannot read the token in {path or '-'}: {error.strerror}") from None
    except UnicodeError:
        raise ValueError(f"cannot read the token in {path or '-'}: it is no text") from None
    if not token:
        raise ValueError(f"cannot read the token in {path or '-'}: its first line is empty")
    return token


def _tls(files: TlsFiles) -> Transport:
    return TlsTransport(TcpTransport(), files)


def _quic(files: TlsFiles) -> Transport:
    try:
        from metad_wire.transport.quic import QuicTransport
    except ImportError:
        raise ValueError(f"QUIC needs the aioquic package: {install('quic')}") from None
    return QuicTransport(files)
