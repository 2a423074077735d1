"""``metadctl tenants move``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from metad_client import Client, InvalidRequestError, connect
from metad_client.cli.grammar import Arguments, Commands, count
from metad_client.cli.printing import Printer, progress
from metad_client.endpoint import as_url

if TYPE_CHECKING:
    from .moving import Progress

_MIB: Final = 1024 * 1024
_RATE_MIB: Final = 64
_SAID: Final = {
    "copy": "all is copied; what is written meanwhile follows",
    "follow": "little is left",
    "freeze": "neither cluster serves the tenant",
    "came": "the other cluster serves the tenant",
}


def add_tenants(verbs: Commands) -> None:
    """Add the command beside those of tenants."""
    move = verbs.add("move", "move a tenant to another cluster, while both serve", _move)
    move.add_argument("tenant", metavar="TENANT")
    move.add_argument("--to", required=True, metavar="ENDPOINT", help="of the other cluster, as of --endpoint")
    move.add_argument("--to-certs", default="", metavar="DIR", help="as --certs, for the other cluster")
    move.add_argument("--to-as", default="", metavar="NAME", help="as --as, for the other cluster")
    move.add_argument("--to-token-file", default="", metavar="F", help="as --token-file, for the other cluster")
    move.add_argument(
        "--rate", type=count, default=_RATE_MIB, metavar="MIB", help=f"MiB a second; default {_RATE_MIB}, 0: no bound"
    )
    move.add_argument(
        "--cancel", action="store_true", help="give up a move, as long as the other cluster does not serve the tenant"
    )


async def _move(m: Client, a: Arguments, printer: Printer) -> None:
    from metad_client.cli.command_line import options_of

    from .moving import cancel, move

    there = argparse.Namespace(
        certs=a.to_certs,
        name=a.to_as,
        token_file=a.to_token_file,
        tls_ca="",
        tls_cert="",
        tls_key="",
        timeout=a.timeout,
    )
    try:
        url = as_url(a.to, encrypted=bool(a.to_certs))
        options = options_of(there, url.partition(":")[0])
    except (ValueError, OSError) as error:
        raise InvalidRequestError(f"--to: {error}") from None

    def tell(at: Progress) -> None:
        if at.what in _SAID and a.json:
            return
        if at.what in ("copy", "freeze"):
            line.end()
            sys.stderr.write(f"metadctl: {_SAID[at.what]} ({at.rows} rows)\n")
            sys.stderr.flush()
        else:
            line.say(f"{at.rows} rows have come", last=at.what == "done")

    with progress(a.json) as line:
        async with connect(url, options) as to:
            if a.cancel:
                dropped = await cancel(m, to, a.tenant, address=a.to)
                printer.one({"tenant": a.tenant, "cancelled": True, "dropped": dropped})
                return
            done = await move(m, to, a.tenant, address=a.to, bytes_per_s=a.rate * _MIB, tell=tell)
    row = {"tenant": a.tenant, **done._asdict(), "seconds": round(done.seconds, 1)}
    printer.one(row)
