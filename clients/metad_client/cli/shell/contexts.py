"""Where ``metadctl`` finds its cluster: flags, then the environment, then a context of the user's file.

A context has a name, and says where a cluster is and with which files to go there::

    context = "test"                      # for command lines that name none

    [contexts.test]
    endpoint = "127.0.0.1:7420"

    [contexts.prod]
    endpoint = "metads://a:7420,b:7420"
    certs = "prod-certs"                  # from the folder of this file
    as = "ops"

Who goes there is said in one place: a command line that names files of its own takes none of the context. Nor does one
that only names an endpoint: a token is for the cluster of its context.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ...endpoint import PORT_DEFAULT, as_url, parse_url
from ..grammar import Arguments, Commands
from ..printing import Printer

ENDPOINT, CONTEXT, CONFIG = "METADCTL_ENDPOINT", "METADCTL_CONTEXT", "METADCTL_CONFIG"
ENDPOINT_DEFAULT: Final = f"127.0.0.1:{PORT_DEFAULT}"
_FILES: Final = ("certs", "tls_ca", "tls_cert", "tls_key", "token_file")


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"name": "as"}):
    """A cluster, and who goes there. Paths begin at the folder of the file; ``~`` is the user's."""

    endpoint: str
    """As of ``--endpoint``."""
    certs: str = ""
    name: str = ""
    """As of ``--as``."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""

    @property
    def encrypted(self) -> bool:
        """Whether it has files of TLS."""
        return bool(self.certs or self.tls_ca or self.tls_cert or self.tls_key)


class _Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    context: str = ""
    contexts: dict[str, Context] = {}


class File(NamedTuple):
    """The contexts of a user."""

    path: Path
    chosen: str
    """That of command lines which name none; empty: none."""
    contexts: dict[str, Context]


def read(environment: Mapping[str, str]) -> File:
    """Read the user's file. Without one there are no contexts, unless the environment names it. Raises ValueError."""
    given = environment.get(CONFIG, "")
    home = environment.get("XDG_CONFIG_HOME", "") or "~/.config"
    path = Path(given or f"{home}/metadctl/config.toml").expanduser()
    try:
        config = msgspec.convert(tomllib.loads(path.read_text()), _Config)
    except FileNotFoundError:
        if given:
            raise ValueError(f"{CONFIG}: there is no {path}") from None
        config = _Config()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path}: {error}") from None
    for name, context in config.contexts.items():
        try:
            parse_url(as_url(context.endpoint, encrypted=context.encrypted))
        except ValueError as error:
            raise ValueError(f"{path}: contexts.{name}.endpoint: {error}") from None
    chosen = environment.get(CONTEXT, "") or config.context
    if config.context and config.context not in config.contexts:
        raise ValueError(f"{path}: context: {_none(config.context, config.contexts)}")
    return File(path, chosen, config.contexts)


def _none(name: str, known: Mapping[str, Context]) -> str:
    return f"there is no context {name!r}" + (f"; there are {', '.join(known)}" if known else ", and no other")


def complete(a: Arguments, environment: Mapping[str, str]) -> None:
    """Fill in what the command line leaves open: the endpoint, and the files. Raises ValueError."""
    endpoint = a.endpoint or environment.get(ENDPOINT, "")
    named = a.context or environment.get(CONTEXT, "")
    if endpoint and not named:
        a.endpoint = endpoint
        return
    file = read(environment)
    name = named or file.chosen
    if not name:
        a.endpoint = ENDPOINT_DEFAULT
        return
    if (context := file.contexts.get(name)) is None:
        raise ValueError(f"{file.path}: {_none(name, file.contexts)}")
    a.endpoint = endpoint or context.endpoint
    if not any(getattr(a, field) for field in _FILES):
        for field in _FILES:
            if text := getattr(context, field):
                setattr(a, field, str(file.path.parent / Path(text).expanduser()))
        a.name = a.name or context.name or None


def add(commands: Commands) -> None:
    """Add the command."""
    commands.offline("contexts", f"the clusters of your file (${CONFIG}), and which one is chosen", _list)


def _list(a: Arguments) -> int:
    try:
        file = read(os.environ)
    except ValueError as error:
        a.complain(str(error))
    chosen = a.context or file.chosen
    rows = [
        {"context": name, "chosen": name == chosen, **_shown(context)}
        for name, context in sorted(file.contexts.items())
    ]
    printer = Printer(a.json)
    if a.json:
        printer.one({"file": str(file.path), "contexts": rows})
    else:
        printer.page(rows, [f"{file.path}:"], [rows])
    return 0


def _shown(context: Context) -> dict[str, Any]:
    files = {field: text for field in _FILES if (text := getattr(context, field))}
    return {"endpoint": context.endpoint, "as": context.name or None, "files": list(files.values())}
