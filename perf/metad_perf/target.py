"""The target of a load: a URL of any scheme, or plain ``host:port,...``, followed by a ``?`` and the credentials that
the scheme needs: ``metadq://127.0.0.1:7420?certs=DIR&as=NAME&token-file=FILE``.

It is one string, because it passes through every command and into the load-generating processes.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import msgspec

from metad_client import Client, InvalidRequestError, Observer, Options, connect
from metad_client.endpoint import SCHEMES, as_url
from metad_wire.transport.credentials import client_files

from .errors import UsageError


def target_of(endpoint: str, *, certs: str = "", name: str = "", token_file: str = "") -> str:
    """The target that the command line describes."""
    said = {"certs": certs, "as": name, "token-file": token_file}
    given = {key: value for key, value in said.items() if value}
    return endpoint + (f"?{urlencode(given)}" if given else "")


def scheme_checked(scheme: str) -> str:
    """The scheme. Raises UsageError."""
    if scheme not in SCHEMES:
        raise UsageError(f"--scheme: no {scheme}; there are {', '.join(SCHEMES)}")
    return scheme


def open_client(target: str, options: Options | None = None, observer: Observer | None = None) -> Client:
    """A client of a target, not opened yet. Raises UsageError if the target is malformed."""
    endpoint, _, query = target.partition("?")
    said = dict(parse_qsl(query))
    options = options or Options()
    try:
        if certs := said.pop("certs", ""):
            options = msgspec.structs.replace(options, tls=client_files(certs, said.pop("as", "")))
        if token_file := said.pop("token-file", ""):
            options = msgspec.structs.replace(options, credentials_file=token_file)
        if said:
            raise UsageError(f"{', '.join(said)}: of no use in {target!r}")
        return connect(as_url(endpoint, encrypted=options.tls is not None), options, observer=observer)
    except (ValueError, InvalidRequestError) as error:
        raise UsageError(str(error)) from None
