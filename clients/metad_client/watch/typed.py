"""What a watch and an image show of each table, for type checkers. Of a declared table its Struct says it.

This module is made of the declarations by ``python tests/unit/client/typed_tables.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from metad_wire.cluster import ClusterMap
from metad_wire.messages import (
    ConsumerGroup,
    Kv,
    KvKey,
    Message,
    Offset,
    OffsetKey,
    Session,
    SessionKey,
    SessionOwner,
    SessionProperties,
    SubscriptionOptions,
    TableRecord,
)
from metad_wire.table import Table
from metad_wire.tables.broker import Broker, BrokerKey
from metad_wire.tables.consumer import ConsumerGroupInfo, Member, MemberKey
from metad_wire.tables.declaration import DeclarationKey, DeclaredTable
from metad_wire.tables.inflight import Inflight, InflightKey
from metad_wire.tables.lease import Lease, LeaseKey
from metad_wire.tables.plan import Plan, PlanKey
from metad_wire.tables.retained import Retained, RetainedKey
from metad_wire.tables.sequence import SequenceKey, SequenceRecord
from metad_wire.tables.subscription import Subscription, SubscriptionKey
from metad_wire.tables.table import PlainTable
from metad_wire.tables.will import DueWill, WillClaimant, WillDue, WillKey

from .event import Event, Listened, Wanted, WatchEvent
from .image_table import ImageTable

Record = TypeVar("Record", bound=Message)
TableName = Literal[
    "broker",
    "cluster",
    "consumer",
    "declaration",
    "inflight",
    "kv",
    "lease",
    "offset",
    "plan",
    "retained",
    "sequence",
    "session",
    "subscription",
    "will",
]
"""A table that has rules of its own, by its name."""
AnyTable: TypeAlias = TableName | Table[Any]
"""A table, by its name or its declaration."""
_BrokerEvent: TypeAlias = WatchEvent[BrokerKey, Broker, Literal["broker"]]
_ClusterEvent: TypeAlias = WatchEvent[None, ClusterMap, Literal["cluster"]]
_ConsumerEvent: TypeAlias = WatchEvent[MemberKey | ConsumerGroup, Member | ConsumerGroupInfo, Literal["consumer"]]
_DeclarationEvent: TypeAlias = WatchEvent[DeclarationKey, DeclaredTable, Literal["declaration"]]
_InflightEvent: TypeAlias = WatchEvent[InflightKey, bytes, Literal["inflight"]]
_KvEvent: TypeAlias = WatchEvent[KvKey, Kv, Literal["kv"]]
_LeaseEvent: TypeAlias = WatchEvent[LeaseKey, Lease, Literal["lease"]]
_OffsetEvent: TypeAlias = WatchEvent[OffsetKey | ConsumerGroup, Offset | int, Literal["offset"]]
_PlanEvent: TypeAlias = WatchEvent[PlanKey, Plan, Literal["plan"]]
_RetainedEvent: TypeAlias = WatchEvent[RetainedKey, Retained, Literal["retained"]]
_SequenceEvent: TypeAlias = WatchEvent[SequenceKey, SequenceRecord, Literal["sequence"]]
_SessionEvent: TypeAlias = WatchEvent[SessionKey, SessionOwner | SessionProperties, Literal["session"]]
_SubscriptionEvent: TypeAlias = WatchEvent[SubscriptionKey, SubscriptionOptions, Literal["subscription"]]
_WillEvent: TypeAlias = WatchEvent[WillKey, WillDue | WillClaimant, Literal["will"]]
AnyEvent: TypeAlias = (
    _BrokerEvent
    | _ClusterEvent
    | _ConsumerEvent
    | _DeclarationEvent
    | _InflightEvent
    | _KvEvent
    | _LeaseEvent
    | _OffsetEvent
    | _PlanEvent
    | _RetainedEvent
    | _SequenceEvent
    | _SessionEvent
    | _SubscriptionEvent
    | _WillEvent
)
"""An event of any table. Its ``table`` says of which."""


class _Unsaid:
    """Stands first, so that ``WatchBatch`` without more is one of anything."""


class OfTables(Generic[Wanted]):
    """What tells of the tables that a program wants."""

    @overload
    def _told(self: OfTables[_Unsaid]) -> list[WatchEvent[Any, Any, Any]]: ...
    @overload  # a declared table is a table
    def _told(  # type: ignore[overload-overlap]
        self: OfTables[PlainTable[Record]],
    ) -> list[WatchEvent[Any, TableRecord[Record]]]: ...
    @overload
    def _told(self: OfTables[Literal["broker"] | Table[Broker]]) -> list[_BrokerEvent]: ...
    @overload
    def _told(self: OfTables[Literal["cluster"]]) -> list[_ClusterEvent]: ...
    @overload
    def _told(self: OfTables[Literal["consumer"] | Table[Member]]) -> list[_ConsumerEvent]: ...
    @overload
    def _told(self: OfTables[Literal["declaration"] | Table[DeclaredTable]]) -> list[_DeclarationEvent]: ...
    @overload
    def _told(self: OfTables[Literal["inflight"] | Table[Inflight]]) -> list[_InflightEvent]: ...
    @overload
    def _told(self: OfTables[Literal["kv"] | Table[Kv]]) -> list[_KvEvent]: ...
    @overload
    def _told(self: OfTables[Literal["lease"] | Table[Lease]]) -> list[_LeaseEvent]: ...
    @overload
    def _told(self: OfTables[Literal["offset"] | Table[Offset]]) -> list[_OffsetEvent]: ...
    @overload
    def _told(self: OfTables[Literal["plan"] | Table[Plan]]) -> list[_PlanEvent]: ...
    @overload
    def _told(self: OfTables[Literal["retained"] | Table[Retained]]) -> list[_RetainedEvent]: ...
    @overload
    def _told(self: OfTables[Literal["sequence"] | Table[SequenceRecord]]) -> list[_SequenceEvent]: ...
    @overload
    def _told(self: OfTables[Literal["session"] | Table[Session]]) -> list[_SessionEvent]: ...
    @overload
    def _told(self: OfTables[Literal["subscription"] | Table[Subscription]]) -> list[_SubscriptionEvent]: ...
    @overload
    def _told(self: OfTables[Literal["will"] | Table[DueWill]]) -> list[_WillEvent]: ...
    @overload
    def _told(self: OfTables[TableName]) -> list[AnyEvent]: ...
    @overload
    def _told(self: OfTables[AnyTable]) -> list[AnyEvent | WatchEvent]: ...
    def _told(self) -> Any:
        raise NotImplementedError("for type checkers")


class ImageTables(OfTables[Wanted]):
    """The tables of an image, by name or by declaration."""

    def on_change(self: Listened[Event], listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``listener`` with each event, once the image shows it, in the client's own thread: also with each record
        that a snapshot has changed. Returns what ends that."""
        return self._listen(listener)

    def _listen(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        raise NotImplementedError

    def _table(self, name: str) -> ImageTable[Any, Any]:
        raise NotImplementedError

    @overload  # a declared table is a table
    def __getitem__(  # type: ignore[overload-overlap]
        self, table: PlainTable[Record]
    ) -> ImageTable[Any, TableRecord[Record]]: ...
    @overload
    def __getitem__(self, table: Literal["broker"] | Table[Broker]) -> ImageTable[BrokerKey, Broker]: ...
    @overload
    def __getitem__(self, table: Literal["cluster"]) -> ImageTable[None, ClusterMap]: ...
    @overload
    def __getitem__(self, table: Literal["consumer"] | Table[Member]) -> ImageTable[MemberKey, Member]: ...
    @overload
    def __getitem__(self, table: Literal["consumer/group"]) -> ImageTable[ConsumerGroup, ConsumerGroupInfo]: ...
    @overload
    def __getitem__(
        self, table: Literal["declaration"] | Table[DeclaredTable]
    ) -> ImageTable[DeclarationKey, DeclaredTable]: ...
    @overload
    def __getitem__(self, table: Literal["inflight"] | Table[Inflight]) -> ImageTable[InflightKey, bytes]: ...
    @overload
    def __getitem__(self, table: Literal["kv"] | Table[Kv]) -> ImageTable[KvKey, Kv]: ...
    @overload
    def __getitem__(self, table: Literal["lease"] | Table[Lease]) -> ImageTable[LeaseKey, Lease]: ...
    @overload
    def __getitem__(self, table: Literal["offset"] | Table[Offset]) -> ImageTable[OffsetKey, Offset]: ...
    @overload
    def __getitem__(self, table: Literal["offset/generation"]) -> ImageTable[ConsumerGroup, int]: ...
    @overload
    def __getitem__(self, table: Literal["plan"] | Table[Plan]) -> ImageTable[PlanKey, Plan]: ...
    @overload
    def __getitem__(self, table: Literal["retained"] | Table[Retained]) -> ImageTable[RetainedKey, Retained]: ...
    @overload
    def __getitem__(
        self, table: Literal["sequence"] | Table[SequenceRecord]
    ) -> ImageTable[SequenceKey, SequenceRecord]: ...
    @overload
    def __getitem__(self, table: Literal["session/owner"]) -> ImageTable[SessionKey, SessionOwner]: ...
    @overload
    def __getitem__(self, table: Literal["session/properties"]) -> ImageTable[SessionKey, SessionProperties]: ...
    @overload
    def __getitem__(self, table: Literal["session"] | Table[Session]) -> ImageTable[SessionKey, Session]: ...
    @overload
    def __getitem__(
        self, table: Literal["subscription"] | Table[Subscription]
    ) -> ImageTable[SubscriptionKey, SubscriptionOptions]: ...
    @overload
    def __getitem__(self, table: Literal["will"] | Table[DueWill]) -> ImageTable[WillKey, WillDue]: ...
    @overload
    def __getitem__(self, table: Literal["will/claim"]) -> ImageTable[WillKey, WillClaimant]: ...
    def __getitem__(self, table: str | Table[Any]) -> ImageTable[Any, Any]:
        return self._table(table.name if isinstance(table, Table) else table)
