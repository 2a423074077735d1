"""The blocking watch, and the blocking image: what is closed with ``with``, and what is iterated over with ``for``
until it ends."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ..errors import ClosedError, MetadError
from ..watch import image, snapshot, watch
from ..watch.event import Wanted
from ..watch.events import WatchBatch
from ..watch.image_table import ImageTable
from ..watch.snapshot import SnapshotPart
from ..watch.typed import ImageTables
from .portal import Portal
from .verbs import Twin, forgetting

Part = TypeVar("Part", covariant=True)


class Closing(ABC):
    """Is closed at the end of a ``with``."""

    @abstractmethod
    def close(self) -> None:
        """End it. Safe to call again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Parts(Closing, Generic[Part]):
    """Gives its parts by :meth:`next`, and ends with None: the twin of :class:`metad_client.iterating.AsyncParts`."""

    @abstractmethod
    def next(self) -> Part | None:
        """The next part; None behind the last one."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Part:
        part = self.next()
        if part is None:
            raise StopIteration
        return part


def _token(portal: Portal, target: watch.Watch | image.Image) -> str:
    try:
        return portal.call(lambda: target.token)
    except ClosedError:  # nothing changes it any more
        return target.token


class Watch(Twin, Parts[WatchBatch[Wanted]]):
    """Changes as batches, each as soon as it comes: ``for batch in watch``. See :class:`metad_client.Watch`."""

    def __init__(self, portal: Portal, target: watch.Watch[Wanted]) -> None:
        super().__init__(portal, target)
        self._watch = target

    def opened(self) -> Self:
        """Wait until every group that the watch reads has begun its stream: changes from now on are seen. Raises the
        error that ends the watch, or ClosedError if it is closed meanwhile."""
        self._portal.run(self._watch.opened())
        return self

    @property
    def token(self) -> str:
        """Where a watch resumes, so that it delivers exactly what this one has not delivered; the token that it was
        given, or empty, until it has begun."""
        return _token(self._portal, self._watch)

    @property
    def is_settled(self) -> bool:
        """Whether each slot is read from the group that holds it: none is missing, on its way between two groups, or
        read from a group that is still to be found."""
        self._portal.check()
        return self._watch.is_settled

    @property
    def age_ms(self) -> float | None:
        """How old what was delivered may be, by the last words of the servers; None while that is not known. Without
        ``progress_s`` they say it only when the watch begins."""
        self._portal.check()
        return self._watch.age_ms

    def close(self) -> None:
        """End it: the server sends nothing more, and the iteration ends. Safe to call again."""
        with contextlib.suppress(ClosedError):  # the client was closed, and so was the watch
            self._portal.run(self._watch.close())

    def next(self) -> WatchBatch[Wanted] | None:
        """The next batch; None once the watch is closed, or its client."""
        try:
            return self._portal.run(self._watch.next())
        except ClosedError:
            return None


class Image(Twin, Closing, ImageTables[Wanted]):
    """Tables as they are, in this process: ``image["kv"][KvKey("config", "greeting")]``. See
    :class:`metad_client.Image`. Any thread may read it."""

    def __init__(self, portal: Portal, target: image.Image[Wanted]) -> None:
        super().__init__(portal, target)
        self._image = target

    def _table(self, name: str) -> ImageTable[Any, Any]:
        return self._image._table(name)

    def caught_up(self, timeout_s: float | None = None) -> Self:
        """Wait until the image has everything that was acknowledged before it was opened, whoever wrote it; after a
        gap, until it is whole again. Slots that are on their way between two groups are waited for. Raises
        DeadlineExceededError after ``timeout_s``, the error that has ended the image, or ClosedError."""
        self._portal.run(self._image.caught_up(timeout_s))
        return self

    @property
    def token(self) -> str:
        """Where a watch of these tables goes on from what the image shows; empty until it has begun."""
        return _token(self._portal, self._image)

    @property
    def age_ms(self) -> float | None:
        """How old the picture may be at most: since when it may lack something that was acknowledged, by the servers'
        last words. It grows while the service is away or a slot is not read. None while it is not known: only before
        :meth:`caught_up`."""
        self._portal.check()
        return self._image.age_ms

    @property
    def error(self) -> MetadError | None:
        """Why the image follows no longer; None if it does, or was closed."""
        return self._image.error

    def _listen(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        return forgetting(self._portal, self._portal.call(self._image._listen, listener))

    def close(self) -> None:
        """Follow no longer. Safe to call again."""
        with contextlib.suppress(ClosedError):
            self._portal.run(self._image.close())


class Snapshot(Twin, Parts[SnapshotPart]):
    """The rows of one group: ``for part in snapshot``. See :class:`metad_client.Snapshot`."""

    def __init__(self, portal: Portal, target: snapshot.Snapshot) -> None:
        super().__init__(portal, target)
        self._snapshot = target

    @property
    def index(self) -> int:
        """The index of the group's log at the moment of the snapshot; 0 before the first part."""
        return self._snapshot.index

    @property
    def revision(self) -> int:
        """The number of the group's revision at that moment; 0 if the server is too old to say."""
        return self._snapshot.revision

    @property
    def slots(self) -> frozenset[int]:
        """The slots that the group held at that moment. The rows of others are not all there, or not the newest."""
        return self._snapshot.slots

    @property
    def is_cut(self) -> bool:
        """Whether no replica has the log from the position on: changes before the moment were not told."""
        return self._snapshot.is_cut

    def next(self) -> SnapshotPart | None:
        """The next part; None behind the last one."""
        return self._portal.run(self._snapshot.next())

    def close(self) -> None:
        """End it: the server sends nothing more. Safe to call again."""
        with contextlib.suppress(ClosedError):
            self._portal.run(self._snapshot.close())
