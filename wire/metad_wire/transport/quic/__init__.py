"""QUIC for long and lossy paths: the seam's transport on aioquic's state machine. Needs the extra ``quic``.

From the wire up: ``sockets`` moves datagrams, ``server`` gives them to connections and refuses strangers, ``dialled``
is the other end, ``carrier`` gives a connection its turns, ``engine`` is one connection (``handshake``, ``tickets``,
``certificates`` and ``tokens``: who is who; ``receiving``: what has come), ``stream`` is one stream as the seam has it,
``transport`` dials and listens.
"""

import logging

from .settings import ALPN, QuicSettings
from .transport import QuicTransport

# aioquic tells of every refused handshake here. An application may listen; stderr is not for strangers to write to.
logging.getLogger("quic").addHandler(logging.NullHandler())

__all__ = ["ALPN", "QuicSettings", "QuicTransport"]
