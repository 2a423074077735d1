"""The stream reader: what has changed, in batches that Spark may ask for again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from metad_client import Client, OffsetCommitItem, Watch
from metad_client.watch.watch import BUFFER_BYTES

from . import changes
from .errors import OptionError
from .groups import Share, opened
from .options import Settings
from .reader import SharePartition, chosen
from .schema import arrow_of

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before 4.2 a batch has all that there is

    class ReadLimit:  # type: ignore[no-redef]
        """What Spark before 4.2 does not know."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """The same."""

        max_rows = 0

    ReadAllAvailable = ReadLimit  # type: ignore[misc,assignment]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The same."""


_QUIET_S: Final = 10.0
"""A stream without changes moves on so often: the logs behind its position may be cut."""
T = TypeVar("T")
Offset = dict[str, str]
"""``token``: that of a watch; empty: before the rows that there are at the beginning."""


class ChangesPartition(InputPartition):
    """What happened between two tokens in a group, or in some slots of it."""

    def __init__(self, value: changes.Piece) -> None:
        super().__init__(value)


class MetadStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of one table. Lives as long as the query, but for :meth:`read`, which runs in tasks."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        if not settings.is_live:
            raise OptionError(f"source: {settings.source} is a directory, and nothing changes in it")
        self._settings = settings
        self._schema = chosen(settings, schema)
        self._service: _Service | None = None
        self._target = ""

    def __getstate__(self) -> tuple[Settings, StructType]:
        return self._settings, self._schema

    def __setstate__(self, state: tuple[Settings, StructType]) -> None:
        self._settings, self._schema = state
        self._service, self._target = None, ""

    # --- in the driver ---

    def initialOffset(self) -> Offset:
        """Before the records that there are, or now."""
        return {"token": "" if self._settings.start == "snapshot" else self._here()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """As many changes in one batch as the options say."""
        return ReadMaxRows(self._settings.rows_max) if self._settings.rows_max else ReadAllAvailable()

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Where the next batch ends. Spark before 4.2 does not say where it begins."""
        if start is None:
            return {"token": self._here()}
        if not start["token"]:
            return {"token": self._target or self._here()}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        if self._target and not rows_max:
            return {"token": self._target}  # nothing has to be counted
        return {"token": self._opened().next(start["token"], self._target or None, rows_max)}

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends with what there is now."""
        self._target = self._here()

    def reportLatestOffset(self) -> Offset | None:
        """How far the logs are, as the stream has heard last."""
        latest = self._service.latest if self._service is not None else ""
        return {"token": latest} if latest else None

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of one batch: of the first one, shares of the records that there are."""
        if start["token"] == end["token"]:
            return []
        if start["token"]:
            shape, ranges = self._settings.shape, self._settings.slot_ranges
            return [ChangesPartition(piece) for piece in changes.pieces(start["token"], end["token"], shape, ranges)]
        return [SharePartition(share) for share in changes.shares(end["token"], self._settings.shape)]

    def commit(self, end: Offset) -> None:
        """Spark has written everything up to here. With the option ``query`` the service keeps it, as offsets of a
        consumer group, so that operators see how far the query is."""
        if self._settings.query and end["token"]:
            self._opened().tell(end["token"])

    def stop(self) -> None:
        """The query has ended."""
        if self._service is not None:
            self._service.close()
            self._service = None

    def _opened(self) -> _Service:
        if self._service is None:
            self._service = _Service(self._settings)
        return self._service

    def _here(self) -> str:
        return self._opened().here()

    # --- in a task ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes between two tokens, or the rows of a share."""
        settings, shape, schema = self._settings, self._settings.shape, arrow_of(self._schema)
        value = partition.value
        if isinstance(value, Share):
            return changes.read_rows(settings, shape, value, schema)
        if isinstance(value, changes.Piece):
            return changes.read(settings, shape, value, schema)
        return iter(())  # Spark makes a partition of nothing where there is none


class _Service:
    """A client with a watch, in a thread of its own, while a query runs."""

    def __init__(self, settings: Settings) -> None:
        self.latest = ""
        self._settings = settings
        self._shape = settings.shape
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="metad-stream", daemon=True)
        self._thread.start()
        self._stack = opened(settings)
        self._client: Client | None = None
        self._watch: Watch | None = None
        self._at = ""
        self._told_at = time.monotonic()

    def here(self) -> str:
        """A token of now."""

        async def asked() -> str:
            return await changes.here(await self._connected(), self._settings, self._shape)

        self.latest = self._run(asked())
        return self.latest

    def next(self, begin: str, until: str | None, rows_max: int) -> str:
        """Where a batch ends that begins at a token: the same token if nothing has happened. Without ``rows_max`` no
        change has to be counted: once anything has happened, the batch ends now, and its tasks alone read it."""

        async def moved() -> str:
            since = time.monotonic()
            if self._watch is None or self._at != begin:
                if self._watch is not None:
                    await self._watch.close()
                client = await self._connected()
                self._watch = changes.watch_of(
                    client,
                    self._settings,
                    self._shape,
                    token=begin,
                    until=until,
                    keys_only=True,
                    buffer_bytes=BUFFER_BYTES if rows_max else changes.FEW_BYTES,
                )
            most = rows_max or 1
            end, count = await changes.next_token(self._watch, self._settings, most, None if until else since)
            if count and not rows_max:
                await self._watch.close()
                self._watch = await self._watch_from_now()
                end = await changes.settled(self._watch, self._settings)
            if not count and since - self._told_at < _QUIET_S:
                self._at = begin  # the watch is ahead by what is no change of this table
                return begin
            self._told_at = since
            self._at = begin if until and not count else end
            return self._at

        self.latest = self._run(moved())
        return self.latest

    def tell(self, token: str) -> None:
        """Keep how far the query is."""
        settings = self._settings
        items = [
            OffsetCommitItem("metad-spark", settings.query, f"{settings.table}/{group}", 0, index)
            for group, index in changes.indexes_of(token).items()
        ]

        async def told() -> None:
            (await (await self._connected()).offsets.commit_many(items)).raise_for_error()

        self._run(told())

    def close(self) -> None:
        """End the client and the thread."""

        async def closed() -> None:
            if self._watch is not None:
                await self._watch.close()
            if self._client is not None:
                await self._stack.__aexit__(None, None, None)

        self._run(closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _watch_from_now(self) -> Watch:
        client = await self._connected()
        few = changes.FEW_BYTES
        return changes.watch_of(
            client, self._settings, self._shape, token=None, until=None, keys_only=True, buffer_bytes=few
        )

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await self._stack.__aenter__()
        return self._client

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
