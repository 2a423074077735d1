"""The probe of a container: asks the HTTP port of the node in it, with the node's own certificate if it has one.

``probe.py /livez`` or ``/readyz``, with the METAD_* variables of the node. Exit status 0: yes. 1: no, and one line says
why. It uses the standard library only.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

_WAIT_S = 4.0


def main() -> int:
    """Ask, and return the exit status."""
    bound, _, port = os.environ.get("METAD_HTTP", "127.0.0.1:7480").rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(bound, bound)
    certificate, context = os.environ.get("METAD_TLS_CERT", ""), None
    if certificate and bound not in ("127.0.0.1", "[::1]", "localhost"):  # there it is in clear text
        context = ssl.create_default_context(cafile=os.environ["METAD_TLS_CA"])
        context.check_hostname = False  # a certificate of metad names a node, not an address
        context.load_cert_chain(certificate, os.environ["METAD_TLS_KEY"])
    url = f"{'https' if context else 'http'}://{host}:{port}{sys.argv[1]}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with direct.open(url, timeout=_WAIT_S):
            return 0
    except urllib.error.HTTPError as error:
        print(f"{sys.argv[1]}: {error.code} {' '.join(error.read(1_000).decode(errors='replace').split())}")
    except OSError as error:
        print(f"{sys.argv[1]}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
