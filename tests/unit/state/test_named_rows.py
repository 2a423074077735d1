"""Records of ``metadata-0`` of which every node knows all: what it knows is what is stored, and there are no more than
there may be."""

from __future__ import annotations

from typing import Any

import pytest
from state_rig import Rig

from metad.state.cluster import quotas
from metad.state.cluster.quotas import Quotas
from metad_wire.errors import QuotaExceededError
from metad_wire.messages import Items
from metad_wire.methods import QUOTA_DELETE, QUOTA_PUT
from metad_wire.tables.tenants import Quota, QuotaKey

ROWS: Any = quotas._ROWS


def test_a_state_that_is_put_in_place_of_another_takes_away_what_it_lacks() -> None:
    """A node honoured quotas, roles and bindings that a snapshot did not have."""
    rig = Rig("metadata")
    rig.write(QUOTA_PUT, Items([Quota("tenant/a", 1), Quota("tenant/b", 2)]))
    part = rig.group.machine.parts[Quotas]
    assert [*part.shared.by_subject] == ["tenant/a", "tenant/b"]
    rig.group.engine.write({ROWS.key_of(QuotaKey("tenant/a")): None})
    part.load()
    assert [*part.shared.by_subject] == ["tenant/b"]


def test_a_batch_brings_no_more_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ROWS, "most", 2)
    rig = Rig("metadata")
    reply = rig.write(QUOTA_PUT, Items([Quota(f"tenant/{name}", 1) for name in "abcd"]))
    assert [(error.index, error.code) for error in reply.errors] == [(at, QuotaExceededError.code) for at in (2, 3)]
    assert not rig.write(QUOTA_PUT, Items([Quota("tenant/a", 2)])).errors, "it is there"
    assert not rig.write(QUOTA_DELETE, Items([QuotaKey("tenant/b")])).errors
    assert not rig.write(QUOTA_PUT, Items([Quota("tenant/c", 1)])).errors
