"""Servers that a program starts itself: for tests of brokers, or as a part of the broker.

::

    async with metad.embedded.serve() as server:
        async with metad_client.connect(server.url) as m: ...

    with metad.embedded.cluster(nodes=3) as cluster:  # or async with
        with metad_client.blocking.connect(cluster.url) as m:
            cluster.kill(m.cluster.map().leaders["data-0"])

- :func:`serve`: in the running event loop; starts in milliseconds
- :func:`serve_in_thread`: the same, for code without asyncio
- :func:`cluster`: nodes that can be killed, stopped, paused and started again
- :func:`node`: for production: one node of a cluster, in the process of a broker, with its data on disk
"""

from metad_wire.program.extras import advice

from .nodes import Cluster, cluster

try:
    from .hosting import HostedNode, node
    from .serving import Serving, ServingInThread, serve, serve_in_thread
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"metad.embedded: {advice(missing, 'server')}", name=missing.name) from None

__all__ = ["Cluster", "HostedNode", "Serving", "ServingInThread", "cluster", "node", "serve", "serve_in_thread"]
