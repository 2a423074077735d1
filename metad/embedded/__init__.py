"""Servers for tests of brokers and for experiments: one inside this process, or a cluster of processes on this machine.

::

    async with metad.embedded.serve() as server:
        async with metad_client.connect(server.url) as m: ...

    with metad.embedded.cluster(nodes=3) as cluster:  # or async with
        with metad_client.blocking.connect(cluster.url) as m:
            cluster.kill(m.cluster.map().leaders["data-0"])

- :func:`serve`: in the running event loop; starts in milliseconds
- :func:`serve_in_thread`: the same, for code without asyncio
- :func:`cluster`: nodes that can be killed, stopped, paused and started again
"""

from metad_wire.extras import advice

from .nodes import Cluster, cluster

try:
    from .serving import Serving, serve, serve_in_thread
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"metad.embedded: {advice(missing, 'server')}", name=missing.name) from None

__all__ = ["Cluster", "Serving", "cluster", "serve", "serve_in_thread"]
