"""``metadctl certs`` and ``metadctl token``: certificates and tokens of nodes and clients. No cluster is contacted."""

from __future__ import annotations

import argparse
import datetime
import os
import stat
import sys
from pathlib import Path

from metad_wire.operator.authority import AuthorityError, ends_at, issue_fleet
from metad_wire.operator.tokens import TokenFileError, Tokens, line_of, new_token

from .printing import Printer


def certs(arguments: argparse.Namespace) -> int:
    """Issue certificates, or list those that there are; returns the exit status."""
    if arguments.what == "list":
        return _list(Path(arguments.out), arguments.json)
    given = (arguments.nodes, arguments.clients, arguments.admins, arguments.brokers, arguments.hosts)
    nodes, clients, admins, brokers, hosts = map(_names, given)
    if not (nodes or clients or admins or brokers):
        return _failed("no names to issue for: give --nodes, --clients, --admins or --brokers", 2)
    directory = Path(arguments.out)
    try:
        made = issue_fleet(directory, nodes, clients, hosts, admins=admins, brokers=brokers, days=arguments.days)
    except AuthorityError as error:
        return _failed(str(error), 1)
    Printer(arguments.json).many(
        [
            {"for": name, "certificate": files.certificate, "key": files.key, "ca": files.ca}
            for name, files in made.items()
        ]
    )
    if not arguments.json:
        sys.stderr.write(
            f"{directory / 'ca-key.pem'} signs for the whole fleet: keep it off the nodes.\n"
            "Each node needs its own two files and ca.pem; so does each client, each administrator and each broker.\n"
        )
    return 0


def _list(directory: Path, as_json: bool) -> int:
    """Print which certificates a directory has, and when each ends, the first first."""
    now = datetime.datetime.now(datetime.UTC)
    found = [(ends_at(str(path)), path) for path in directory.glob("*.pem") if not path.stem.endswith("-key")]
    rows = [
        {"for": path.stem, "ends": ends.isoformat(), "days": (ends - now).days, "certificate": str(path)}
        for ends, path in sorted((ends, path) for ends, path in found if ends is not None)
    ]
    if not rows:
        return _failed(f"{directory} has no certificates", 1)
    Printer(as_json).many(rows)
    return 0


def token(arguments: argparse.Namespace) -> int:
    """Make a token; returns the exit status. The token is printed once and stored nowhere."""
    path = Path(arguments.file)
    try:
        made = new_token(arguments.name)
        before = path.read_text() if path.exists() else ""
        Tokens.parse(before)  # a file that nodes would refuse stays as it is
        _replace(path, before + ("" if not before or before.endswith("\n") else "\n") + line_of(made) + "\n")
    except ValueError as error:
        return _failed(str(error), 2)
    except (TokenFileError, UnicodeDecodeError) as error:
        return _failed(f"{path}: {error}", 1)
    except OSError as error:
        return _failed(f"cannot write {path}: {error.strerror}", 1)
    if arguments.json:
        Printer(True).one({"name": arguments.name, "token": made})
    else:
        sys.stdout.write(made + "\n")
    return 0


def _replace(path: Path, text: str) -> None:
    """Replace a file whole or not at all, because nodes read it while they run; owner and mode stay. Raises OSError."""
    path = path.resolve()  # a symbolic link stays a link
    temporary = path.with_name(path.name + ".tmp")
    before = path.stat() if path.exists() else None
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            if before is not None:  # otherwise its readers could not read it any more
                made = os.fstat(file.fileno())
                if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _failed(complaint: str, status: int) -> int:
    sys.stderr.write(f"metadctl: {complaint}\n")
    return status
