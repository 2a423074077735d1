"""``m.features``: what the cluster switches on once all its nodes know it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from metad_wire.tables.feature import FEATURE_LIST, FeatureRecord, FeatureWish

from ..namespaces.declared import _FEATURE_CHANGE, _FeatureDeclared
from ..requests.listing import Listing


class Features(_FeatureDeclared):
    """Features of the cluster, which may be held back until an upgrade is sure. Only administrators change them. A
    ``*_many`` method reports errors per item in its result. Which nodes know a feature is in their records of the
    cluster map."""

    async def hold(self, feature: str, *, deadline_s: float | None = None) -> None:
        """Do not switch it on until it is allowed: so nodes may go back to the version before. Raises ConflictError if
        it is on, which is for ever, and InvalidItemError if the cluster knows no such feature."""
        await _FEATURE_CHANGE.one(self._requests, FeatureWish(feature, "held"), deadline_s)

    async def allow(self, feature: str, *, deadline_s: float | None = None) -> None:
        """Switch it on some seconds after all nodes know it, for ever. Raises as :meth:`hold` does."""
        await _FEATURE_CHANGE.one(self._requests, FeatureWish(feature, "allowed"), deadline_s)

    def list(
        self, prefix: str = "", *, page_size: int = 1000, deadline_s: float | None = None
    ) -> AsyncIterator[FeatureRecord]:
        """What is kept of the features whose names start with ``prefix``, in order. Of one that was neither held, nor
        allowed, nor switched on, nothing is kept."""
        return _FEATURES.of_group(self._requests, page_size, deadline_s, (), prefix=prefix)


_FEATURES: Final[Listing[FeatureRecord]] = Listing(FEATURE_LIST)
