"""What a node says of itself to the cluster."""

from __future__ import annotations

import msgspec

from metad_wire.cluster import NodeRecord
from metad_wire.tables.feature import FEATURES

from ...config import Config, told_to_nodes


class Presence:
    """The node's own record. Its endpoints are empty until the listeners are open."""

    def __init__(self, config: Config, store_id: str) -> None:
        self._config = config
        self.record = NodeRecord(config.node_id, "", "", config.cluster.region, store_id, features=sorted(FEATURES))

    def serves(self, endpoint: str, quic_endpoint: str) -> None:
        """Clients reach the node here, or at the configured endpoints, if the way goes through others."""
        self._replace(
            endpoint=self._config.cluster.advertise_clients or endpoint,
            quic_endpoint=self._config.cluster.advertise_quic or quic_endpoint,
        )

    def meets(self, endpoint: str) -> None:
        """Other nodes reach the node here, or at the configured endpoint."""
        self._replace(peer_endpoint=told_to_nodes(self._config, endpoint))

    def _replace(self, **fields: str) -> None:
        self.record = msgspec.structs.replace(self.record, **fields)
