"""The extras of the distribution: what to install if a package is missing, and where its commands are.

The base distribution needs only msgspec and is the SDK over TCP. The other commands import what they need when they
run, and tell the user in one line which extra has it.
"""

from __future__ import annotations

import sys
from pathlib import Path

_OWN = frozenset(
    f"metad{part}"
    for part in ("", "_backup", "_client", "_console", "_import", "_judge", "_perf", "_pytest", "_spark", "_wire")
)
_EXTRA_OF = {
    "aioquic": "quic",
    "amqtt": "amqtt",
    "avro": "schemas",
    "cryptography": "quic",
    "dns": "srv",
    "fsspec": "backup",
    "grpc": "grpc",
    "grpc_tools": "grpc",
    "jsonschema": "schemas",
    "jwt": "jwt",
    "kazoo": "import",
    "metad_amqtt": "amqtt",
    "textual": "top",
}


def advice(missing: ModuleNotFoundError, extra: str) -> str:
    """Say what to install for ``missing``. ``extra`` has the packages of the command, except those that have an extra
    of their own. Raises ``missing`` again if the module is part of metad itself: that is a bug, not a missing extra."""
    package = (missing.name or "").partition(".")[0]
    if package in _OWN:
        raise missing
    wanted = _EXTRA_OF.get(package, extra)
    return f"the Python package {package} is not installed. It comes with the extra {wanted}: {install(wanted)}"


def install(extra: str) -> str:
    """How to get an extra."""
    own = {extra: f"'./clients[{extra}]'" for extra in ("otel", "prometheus", "quic", "schemas", "srv", "top")}
    own["amqtt"] = "./clients ./clients/metad_amqtt"
    wanted = own.get(extra, f"./clients '.[{extra}]'")  # the SDK is a distribution of its own
    return f"in a clone of metad, which is on no package index, run pip install {wanted}"


def installed(command: str) -> str | None:
    """Where a command is: beside this interpreter, or else on PATH; None: it is not installed."""
    import shutil  # with all its archives, of which the SDK needs nothing

    return shutil.which(command, path=str(Path(sys.executable).parent)) or shutil.which(command)
