"""The client for code without asyncio: a background thread runs the event loop, and this package is a portal to it.

::

    from metad_client import blocking

    with blocking.connect("metad://127.0.0.1:7420") as m:
        m.kv.put("config", "greeting", b"hello")
        for record in m.kv.scan("config"):
            print(record.key)

Names, arguments, results and errors are those of the async client, for the type checker too: a coroutine becomes a
blocking call, an async iterator becomes an iterator. Several threads may use one client; their single calls then share
requests.

- :mod:`metad_client.blocking.portal`: the thread
- :mod:`metad_client.blocking.verbs`: turns one async method into a blocking one, its signature included
- :mod:`metad_client.blocking.watching`: watches
- :mod:`metad_client.blocking.namespaces` and :mod:`metad_client.blocking.client`: which methods there are
"""

from .client import BlockingClient, connect
from .holding import Generation, HeldLease, Lock, Membership, Owned, OwnedResult, PartitionRoute, Route
from .namespaces import (
    Assigned,
    Assignments,
    Audit,
    Backups,
    BrokerLife,
    Brokers,
    Cluster,
    Config,
    Consumers,
    Features,
    InflightStates,
    KeyValue,
    Leases,
    Offsets,
    Plans,
    Principals,
    Quotas,
    Records,
    RetainedMessages,
    Roles,
    Schemas,
    Sequences,
    Sessions,
    Subscriptions,
    Tables,
    Tenants,
    Topics,
    Users,
    Wills,
)
from .verbs import CHUNK_RECORDS
from .watching import Image, Snapshot, Watch

__all__ = [
    "CHUNK_RECORDS",
    "Assigned",
    "Assignments",
    "Audit",
    "Backups",
    "BlockingClient",
    "BrokerLife",
    "Brokers",
    "Cluster",
    "Config",
    "Consumers",
    "Features",
    "Generation",
    "HeldLease",
    "Image",
    "InflightStates",
    "KeyValue",
    "Leases",
    "Lock",
    "Membership",
    "Offsets",
    "Owned",
    "OwnedResult",
    "PartitionRoute",
    "Plans",
    "Principals",
    "Quotas",
    "Records",
    "RetainedMessages",
    "Roles",
    "Route",
    "Schemas",
    "Sequences",
    "Sessions",
    "Snapshot",
    "Subscriptions",
    "Tables",
    "Tenants",
    "Topics",
    "Users",
    "Watch",
    "Wills",
    "connect",
]
