"""The protocol: frames, messages, the sans-IO session of both ends, policies and transports.

Layer rule: this package knows nothing of metad's server, client or storage. Everything outside ``transport/`` and
``operator/`` is pure: no socket, no event loop, no clock, no randomness of its own.

Where to look:

- :mod:`metad_wire.connection.frame`: where bytes become frames and frames bytes
- :mod:`metad_wire.messages`: the payloads, one Struct each
- :mod:`metad_wire.text.fields`: what a field of a payload may hold: integer ranges, list lengths
- :mod:`metad_wire.methods`: method code -> request body, reply body, properties
- :mod:`metad_wire.cluster`, :mod:`metad_wire.routing`: which nodes and groups there are; which group an item is for
- :mod:`metad_wire.errors`: error code -> exception, retryable or not
- :mod:`metad_wire.connection.session`: handshake, request ids, credit, ping, goaway, as a value
- :mod:`metad_wire.policy`: backoff, retry budgets, batching windows, admission, return slots, TCP or QUIC; shared by
  server, SDK, harness and simulation
- :mod:`metad_wire.program.extras`: which extra of the distribution to install if a package is missing
- :mod:`metad_wire.transport`: the seam to a byte stream, and its TCP and in-memory implementations
"""

__version__ = "0.1.0"
"""The version of the distribution, of all its packages and commands."""
