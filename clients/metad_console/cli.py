"""``metad-console``: reads its command line, and refuses what would let strangers in.

Exit status: 0 after a signal, 1 if it cannot serve, 2 for a wrong command line, or without the extra ``console``.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from metad_client import MetadError, Options
from metad_client.cli.command_line import PATHS, add_connection, options_of, url_of
from metad_client.cli.grammar import endpoint
from metad_client.connections.transport_choice import transports_of
from metad_client.endpoint import parse_url, scheme_of
from metad_wire.program.build import build
from metad_wire.program.extras import advice
from metad_wire.program.output import decode_arguments, escape_unprintable
from metad_wire.transport import split_endpoint

from .admission import Place, hosts_of
from .sessions import Sessions

LISTEN: Final = "127.0.0.1:8480"
DEADLINE_S: Final = 5.0
"""A person waits for a page: what takes longer is told to have failed."""
HANDSHAKE_S: Final = 2.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def parser() -> argparse.ArgumentParser:
    """The grammar."""
    made = argparse.ArgumentParser(
        prog="metad-console",
        description="Show a cluster of metad in a browser. On loopback it shows what the identity may see that it is "
        "started with. Beyond loopback, or with --sign-in, people sign in with a token, and each sees what his may.",
    )
    made.add_argument("--version", action="version", version=f"metad-console {build()}")
    add_connection(made)
    made.add_argument("--listen", type=endpoint, default=LISTEN, metavar="HOST:PORT", help=f"default {LISTEN}")
    made.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME[:PORT]",
        help="a name by which browsers reach it, beside the address that it listens on; may be given again",
    )
    made.add_argument("--https-cert", default="", metavar="F", help="PEM file: the certificate that browsers see")
    made.add_argument("--https-key", default="", metavar="F", help="PEM file: its key")
    made.add_argument("--sign-in", action="store_true", help="have people sign in with a token on loopback, too")
    made.add_argument("--write", action="store_true", help="offer actions that change the cluster; each asks before")
    made.set_defaults(timeout=DEADLINE_S)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit status."""
    escape_unprintable()
    grammar = parser()
    arguments = grammar.parse_args(argv)
    try:
        decode_arguments(arguments, PATHS | {"https_cert", "https_key"})
    except UnicodeError:
        grammar.error("an argument is not UTF-8")
    try:
        url = url_of(arguments, os.environ)
        parse_url(url)
        options = options_of(arguments, scheme_of(url), "metad-console")
        options = msgspec.structs.replace(options, handshake_timeout_s=HANDSHAKE_S)
        transports_of(scheme_of(url), options)
        signs_in = _signs_in(arguments, options)
        _check_hosts(arguments)
    except ValueError as error:
        grammar.error(str(error))
    try:
        from .server import Files, serve
    except ModuleNotFoundError as missing:
        return _failed(advice(missing, "console"), 2)
    try:
        listening = _listening(arguments.listen)
    except OSError as error:
        return _failed(f"cannot listen on {arguments.listen}: {error.strerror}")
    metadctl = _metadctl(arguments, url, signs_in=signs_in)
    files = Files(arguments.https_cert, arguments.https_key)

    async def run() -> None:
        sessions = Sessions(url, options, metadctl, may_write=arguments.write, signs_in=signs_in)
        await serve(sessions, _place(arguments, listening), listening, files)

    try:
        asyncio.run(run())
    except (MetadError, OSError) as error:
        return _failed(str(error))
    return 0


def _failed(complaint: str, status: int = 1) -> int:
    sys.stderr.write(f"metad-console: {complaint}\n")
    return status


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _signs_in(arguments: argparse.Namespace, options: Options) -> bool:
    """Whether people sign in. Raises ValueError for what would be open to strangers."""
    host, _ = split_endpoint(arguments.listen)
    beyond = not is_loopback(host)
    if bool(arguments.https_cert) != bool(arguments.https_key):
        raise ValueError("--https-cert and --https-key go together")
    if beyond and not arguments.https_cert:
        raise ValueError(
            f"{host} is not loopback: give --https-cert and --https-key, so that nobody on the way reads tokens"
        )
    if not beyond and not arguments.sign_in:
        return False
    if options.tls is None:
        raise ValueError(
            "people sign in with tokens, which are not sent to the cluster in clear text: give --tls-ca or --certs"
        )
    if options.credentials or options.credentials_file:
        raise ValueError("people sign in with tokens of their own: leave --token-file out")
    return True


def _check_hosts(arguments: argparse.Namespace) -> None:
    host, _ = split_endpoint(arguments.listen)
    if host in ("0.0.0.0", "::") and not arguments.host:
        raise ValueError(f"{host} is every address of this machine: name those that browsers use with --host NAME")
    for name in arguments.host:
        if not name or any(mark in name for mark in "/ @?#,"):
            raise ValueError(f"no name of a host: {name!r}")


def _place(arguments: argparse.Namespace, listening: socket.socket) -> Place:
    host, _ = split_endpoint(arguments.listen)
    port = listening.getsockname()[1]
    names = [*arguments.host, host, *(_LOOPBACK if is_loopback(host) else ())]
    encrypted = bool(arguments.https_cert)
    return Place(hosts_of(names, port, encrypted=encrypted), encrypted)


def _listening(listen: str) -> socket.socket:
    host, port = split_endpoint(listen)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _metadctl(arguments: argparse.Namespace, url: str, *, signs_in: bool) -> list[str]:
    """How a command line begins that reaches the cluster as the console does. Who signed in has his token in a file."""
    words = ["metadctl", "--endpoint", url.removeprefix("metad://")]
    given = {"--certs": arguments.certs, "--as": arguments.name, "--tls-ca": arguments.tls_ca}
    given |= {"--tls-cert": arguments.tls_cert, "--tls-key": arguments.tls_key, "--token-file": arguments.token_file}
    if signs_in:
        files = arguments.tls_ca or f"{arguments.certs}/ca.pem"
        given = {"--tls-ca": files, "--token-file": "TOKEN_FILE"}
    for option, value in given.items():
        words += [option, value] if value else []
    return words


if __name__ == "__main__":
    sys.exit(main())
