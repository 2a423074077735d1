"""QUIC for long and lossy paths: the seam's transport on aioquic's state machine. Needs the extra ``quic``.

From the wire up: ``sockets`` moves datagrams; ``server`` passes them to connections and refuses strangers; ``dialled``
is the client's end; ``carrier`` gives a connection its turns; ``engine`` is one connection (``handshake``, ``tickets``,
``certificates`` and ``tokens`` establish identities, ``receiving`` holds what has arrived); ``stream`` is one stream of
the seam; ``transport`` dials and listens.
"""

import logging

from .settings import ALPN, QuicSettings
from .transport import QuicTransport

# aioquic reports every refused handshake here. An application may listen; strangers must not write to stderr.
logging.getLogger("quic").addHandler(logging.NullHandler())

__all__ = ["ALPN", "QuicSettings", "QuicTransport"]
