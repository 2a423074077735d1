"""The fixture that needs pytest-asyncio. Imported only if that is installed and in use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from metad.embedded import ServingInThread
    from metad_client import Client


@pytest_asyncio.fixture
async def metad_async(metad_server: ServingInThread) -> AsyncIterator[Client]:
    """An asyncio client of ``metad_server``."""
    from metad_client import connect

    async with connect(metad_server.url) as client:
        yield client
