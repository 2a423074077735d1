"""QUIC for long and lossy paths: the seam's transport on aioquic's state machine. Needs the extra ``quic``.

From the wire up: ``sockets`` moves datagrams, ``endpoint`` gives them to connections and refuses strangers, ``carrier``
gives a connection its turns, ``engine`` is one connection (``handshake``, ``certificates``, ``tickets`` and ``tokens``:
who is who; ``receiving``: what has come), ``stream`` is one stream as the seam has it, ``transport`` dials and listens.
"""

from .settings import ALPN, QuicSettings
from .transport import QuicTransport

__all__ = ["ALPN", "QuicSettings", "QuicTransport"]
