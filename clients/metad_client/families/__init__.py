"""The verbs of families that have rules, over the records of several of their tables: ``m.topics`` and others.

A verb looks at what is there, decides, and writes in a transaction that holds only if nothing has changed meanwhile;
else it looks again. So however many programs use a verb at once, its rule holds. The rules are kept by the client: a
plain put into one of the tables is bound by none of them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

import msgspec

from metad_wire.faults import fault
from metad_wire.methods import encode

from ..errors import ConflictError, InvalidItemError, MetadError
from ..namespaces import Facade
from ..namespaces.tables import Tables, Transaction
from ..requests.requests import Requests
from ..requests.wrong import UNFIT, decoder_of, sequence

Item = TypeVar("Item")
Value = TypeVar("Value")

ATTEMPTS_MAX = 30
"""Of one step, before it is given up because others are always faster."""
PAUSE_S = 0.005
"""Before the second attempt, at most; it grows with each."""


class Step(msgspec.Struct, Generic[Value], frozen=True):
    """What is to be written next for an item."""

    transaction: Transaction
    value: Value | None = None
    """The item's result once this is done; None: the item is looked at again."""


class Rules(Facade):
    """The base of what has rules."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self._tables = Tables(requests)

    async def _done(
        self,
        items: Sequence[Item],
        look: Callable[[Sequence[Item]], Awaitable[Sequence[Value | Step[Value] | MetadError]]],
        what: Callable[[Item], str],
        deadline_s: float | None,
    ) -> list[Value | MetadError]:
        """The result of each item. ``look`` says of items their results, or what is to be written next. ``what``: an
        item in words."""
        found: dict[int, Value | MetadError] = {}
        lost: Counter[int] = Counter()
        left = list(range(len(items)))
        while left:
            steps: dict[int, Step[Value]] = {}
            for at, next_one in zip(left, await look([items[at] for at in left]), strict=True):
                if isinstance(next_one, Step):
                    steps[at] = next_one
                else:
                    found[at] = next_one
            if not steps:
                break
            done = await self._tables.transact_many([one.transaction for one in steps.values()], deadline_s=deadline_s)
            left = []
            for place, (at, step) in enumerate(steps.items()):
                result = done.results[place]
                if result is None:
                    found[at] = done.errors[place]
                elif result.succeeded and step.value is not None:
                    found[at] = step.value
                else:
                    lost[at] = 0 if result.succeeded else lost[at] + 1
                    left.append(at)
            for at in [at for at in left if lost[at] >= ATTEMPTS_MAX]:
                left.remove(at)
                found[at] = ConflictError(f"{what(items[at])} was changed by others {ATTEMPTS_MAX} times meanwhile")
            if left and (most := max(lost[at] for at in left)):
                await asyncio.sleep(random.uniform(0, PAUSE_S * most))
        return [found[at] for at in range(len(items))]


def checked(items: object, kind: type[Item]) -> list[Item | InvalidItemError]:
    """The items of a batch, each as it is or what is wrong with it. Raises InvalidRequestError if it is no batch."""
    decode = decoder_of(cast("Any", kind))

    def looked_at(item: Any) -> Item | InvalidItemError:
        with suppress(*UNFIT):  # most are right, and this is quick
            if isinstance(item, kind):
                decode(encode(item))
                return item
        why = fault(item, kind)
        return InvalidItemError(why) if why is not None else cast("Item", item)

    return [looked_at(one) for one in sequence("items", items, kind.__name__)]


def only(found: Sequence[Value | MetadError]) -> Value:
    """The one result. Raises it if it is an error."""
    (one,) = found
    if isinstance(one, MetadError):
        raise one
    return one


async def of_fit(
    items: Sequence[Item | InvalidItemError], do: Callable[[list[Item]], Awaitable[Sequence[Any]]]
) -> list[Any]:
    """What ``do`` makes of the items that nothing is wrong with, and the errors of the others, in their places."""
    fit = [one for one in items if not isinstance(one, InvalidItemError)]
    results = iter(await do(fit)) if fit else iter(())
    return [one if isinstance(one, InvalidItemError) else next(results) for one in items]
