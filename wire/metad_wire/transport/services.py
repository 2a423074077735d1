"""Services of the DNS: a record of type SRV says at which hosts and ports a service is, so no page or file says it.

Where an address is expected, a name that begins with an underscore and has no port is that of a service, such as
``_metad._tcp.example.com``. It is looked up whenever it is dialled, so the records may change.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any, Final

from ..program.extras import advice

LOOKUP_S: Final = 5.0
"""How long a look-up may take."""
ENDPOINTS_MAX: Final = 64
"""Of one service; what the records have behind them is not dialled."""
_NAME: Final = re.compile(r"_[A-Za-z0-9-]{1,15}\._(tcp|udp)(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)+\.?")


def is_service(endpoint: str) -> bool:
    """Whether this is the name of a service, and not HOST:PORT."""
    return endpoint.startswith("_") and ":" not in endpoint


def service_problem(name: str) -> str:
    """Why a service cannot be looked up, as the end of a sentence that begins with its name. Empty: it can."""
    if len(name) > 253 or not _NAME.fullmatch(name):
        return "is no service: write _SERVICE._tcp.DOMAIN, or HOST:PORT"
    if importlib.util.find_spec("dns") is None:
        return f"cannot be looked up: {advice(ModuleNotFoundError(name='dns'), 'srv')}"
    return ""


async def endpoints_of(name: str) -> list[tuple[str, int]]:
    """Hosts and ports of a service, in the order in which to try them: by priority, and within that by chance and
    weight (RFC 2782). Raises OSError, with why in words, where there are none."""
    import dns.asyncresolver
    import dns.exception

    try:
        answer = await dns.asyncresolver.resolve(name, "SRV", lifetime=LOOKUP_S, raise_on_no_answer=False)
    except (dns.exception.DNSException, OSError, ValueError) as error:
        raise OSError(f"the service {name} was not found: {error or type(error).__name__}") from None
    records: list[Any] = [] if answer.rrset is None else answer.rrset.processing_order()
    found = [(record.target.to_text(omit_final_dot=True), record.port) for record in records]
    known = [(host, port) for host, port in dict.fromkeys(found) if host and port]  # "." says: there is none
    if not known:
        raise OSError(f"the service {name} has no records of type SRV")
    return known[:ENDPOINTS_MAX]
