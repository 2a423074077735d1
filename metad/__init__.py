"""metad: the metadata and coordination service that message brokers deserve.

The way of a request is the way through the folders: ``server`` (connection, dispatch, coalescer) ->
``routing`` (key -> slot -> group) -> ``state`` (evaluate on the leader) -> ``raft`` (log, commit) ->
``state`` (apply) -> ``server`` (reply), over ``storage`` (RocksDB). Each layer imports only from those
named after it in pyproject.toml's layer contract.
"""

from metad_wire import __version__

__all__ = ["__version__"]
