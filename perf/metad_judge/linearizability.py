"""Decides whether the answers about a register can be explained by operations that happened one at a time.

The search of Wing & Gong, with Lowe's memory of (operations done, state) and no recursion: choose an operation that was
invoked before every remaining operation had returned, and continue with the state that it leaves. Keys are independent
and are searched one by one. Five observations keep the search short; none loses an order that would have been found:

- A read that fits the state is done at once, because it changes nothing.
- Of equal operations, the one that returned first is done first.
- A state that must still be read and that no operation can make again is not overwritten.
- Values that no remaining operation asks for are interchangeable.
- An operation with an unknown outcome is done only to make the operation after it possible. If it is not needed it
  never happened, so hundreds of unknown writes that nobody saw cost nothing.

A rejected history is reduced to the fewest operations that contradict each other even if the client of every other
write had got no answer.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

Kind = Literal["put", "delete", "get", "compare_and_set", "get_and_set"]

STEPS_MAX: Final = 1_000_000
"""Steps of the search per history: some three seconds."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One client's request and answer. A key's value is None until it is put and after it is deleted.

    ======================  =====================  ==========================
    kind                    argument               result
    ======================  =====================  ==========================
    ``put``                 the value              ignored
    ``delete``              ignored                ignored
    ``get``                 ignored                the value
    ``compare_and_set``     ``(expected, new)``    True if it was done
    ``get_and_set``         the value              the value before
    ======================  =====================  ==========================
    """

    key: Hashable
    kind: Kind
    argument: Hashable
    result: Hashable
    invoked: float
    returned: float | None
    """None if no answer came: the operation took effect at any time since ``invoked``, will yet, or never. Two
    operations are ordered if one returned *before* the other was invoked, so equal times are concurrent; number the
    events to order them all."""

    def __str__(self) -> str:
        if self.kind == "get":
            said = f"{self.key!r} -> {self.result!r}"
        elif self.kind == "delete":
            said = f"{self.key!r}"
        elif self.kind == "put":
            said = f"{self.key!r} = {self.argument!r}"
        elif self.kind == "compare_and_set":
            expected, new = _pair(self.argument)
            said = f"{self.key!r}: {expected!r} = {new!r}"
            if self.returned is not None:
                said += " -> done" if self.result else " -> refused"
        else:
            said = f"{self.key!r} = {self.argument!r}"
            if self.returned is not None:
                said += f" -> {self.result!r}"
        if self.returned is None:
            return f"[{self.invoked}, no answer] {self.kind} {said}"
        return f"[{self.invoked}, {self.returned}] {self.kind} {said}"


class Outcome(enum.Enum):
    """The result of a search."""

    LINEARIZABLE = "linearizable"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, with its evidence."""

    outcome: Outcome
    steps: int
    key: Hashable = None
    """The key of the first violation, else of the first key that was not decided."""
    window: tuple[Operation, ...] = ()
    """Operations that contradict each other, in order of invocation."""

    @property
    def linearizable(self) -> bool:
        """Whether the history is linearizable; False if that was not decided."""
        return self.outcome is Outcome.LINEARIZABLE

    def __bool__(self) -> bool:
        return self.linearizable

    def __str__(self) -> str:
        if self.outcome is Outcome.LINEARIZABLE:
            return f"linearizable ({self.steps} steps)"
        if self.outcome is Outcome.UNDECIDED:
            return (
                f"UNDECIDED: key {self.key!r} was given up after {self.steps} steps. Nothing is known about it: allow "
                "more steps, or make the history shorter or less concurrent."
            )
        lines = [f"NOT LINEARIZABLE: key {self.key!r}. No order explains", *(f"  {each}" for each in self.window)]
        return "\n".join(lines)

    def require(self) -> None:
        """Raise AssertionError unless the history is linearizable."""
        if self.outcome is not Outcome.LINEARIZABLE:
            raise AssertionError(str(self))


def check(history: Iterable[Operation], steps_max: int = STEPS_MAX) -> Verdict:
    """Search every key of a history, in any order of operations. A violation is reported even if another key was not
    decided."""
    keys: dict[Hashable, list[Operation]] = {}
    for operation in history:
        if operation.returned is not None and operation.returned < operation.invoked:
            raise ValueError(f"returned before it was invoked: {operation}")
        keys.setdefault(operation.key, []).append(operation)
    steps = 0
    # First a fair share for each key, so that a hard key does not hide a violation of another; then the rest.
    for share in (steps_max // max(1, len(keys)), steps_max):
        undecided: dict[Hashable, list[Operation]] = {}
        for key, operations in keys.items():
            operations.sort(key=_invoked)
            found, taken = _Search(operations).run(min(share, steps_max - steps))
            steps += taken
            if found is Outcome.VIOLATED:
                return Verdict(found, steps, key, _window(operations, steps_max))
            if found is Outcome.UNDECIDED:
                undecided[key] = operations
        if not undecided or len(keys) == 1:
            break
        keys = undecided
    for key in undecided:
        return Verdict(Outcome.UNDECIDED, steps, key)
    return Verdict(Outcome.LINEARIZABLE, steps)


# --- the search ------------------------------------------------------------------------------------------

_ANY: Final = -1  # no state is needed
_KEEP: Final = -2  # the state is left as it is
_JUNK: Final = 0  # the number of every value that no operation asks for
_NEVER: Final = float("inf")

_Choice = tuple[tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class _Effect:
    """An operation as the search sees it; values are numbers."""

    need: int
    avoid: int
    new: int


class _Search:
    """The search of one key. Known operations are numbered by invocation, and the remaining ones are kept in a doubly
    linked list. Unknown ones are numbered by their effect; of equal ones, the one invoked first is used first."""

    def __init__(self, operations: Sequence[Operation], first: Hashable = None) -> None:
        known = [each for each in operations if each.returned is not None]
        unknown = [each for each in operations if each.returned is None and each.kind != "get"]
        self._number(known, unknown)
        self._first = self._numbers.get(first, _JUNK)
        effects = [self._effect(each) for each in known]
        self._need = [each.need for each in effects]
        self._avoid = [each.avoid for each in effects]
        self._new = [each.new for each in effects]
        alike: dict[_Effect, int] = {}
        self._alike = [alike.setdefault(each, len(alike)) for each in effects]
        self._invoked = [each.invoked for each in known]
        self._returned = [_NEVER if each.returned is None else each.returned for each in known]
        self._head = len(known)
        self._next = [*range(1, len(known) + 1), 0]
        self._before = [len(known), *range(len(known))]
        self._invoked.append(_NEVER)  # the head of the list ends every walk along it

        self._wanted = [0] * self._values  # by value: remaining known operations that need it
        self._makers = [0] * self._values  # remaining operations that make it
        self._asked = [0] * self._values  # operations that could distinguish it from another value
        for each in effects:
            if each.need != _ANY:
                self._wanted[each.need] += 1
                self._asked[each.need] += 1
            if each.avoid != _ANY:
                self._asked[each.avoid] += 1
            if each.new != _KEEP:
                self._makers[each.new] += 1
        self._group(unknown)

        self._done = 0  # a bit per known operation
        self._used = 0  # a bit per unknown operation; equal ones are neighbours and are set from below
        self._steps = self._steps_max = 0

    def _number(self, known: Sequence[Operation], unknown: list[Operation]) -> None:
        """Number every value that is asked for, and drop the unknown operations that cannot make a difference."""
        refusals = any(each.kind == "compare_and_set" and not each.result for each in known)
        while True:
            *asked, _ = _asked([*known, *unknown])
            numbers = {value: number for number, value in enumerate(asked, _JUNK + 1)}
            # A value that nobody asks for can still explain why a compare-and-set was refused.
            needed = [each for each in unknown if refusals or _written(each) in numbers]
            if len(needed) == len(unknown):
                break
            unknown[:] = needed
        self._numbers = numbers
        self._values = len(numbers) + _JUNK + 1

    def _effect(self, operation: Operation) -> _Effect:
        number = self._numbers
        if operation.kind == "get":
            return _Effect(number[operation.result], _ANY, _KEEP)
        new = number.get(_written(operation), _JUNK)
        if operation.kind == "get_and_set":
            return _Effect(number[operation.result], _ANY, new)
        if operation.kind == "compare_and_set":
            expected = number[_pair(operation.argument)[0]]
            return _Effect(expected, _ANY, new) if operation.result else _Effect(_ANY, expected, _KEEP)
        return _Effect(_ANY, _ANY, new)

    def _group(self, unknown: Sequence[Operation]) -> None:
        groups: dict[tuple[int, int], list[float]] = {}
        for each in unknown:
            need = self._numbers[_pair(each.argument)[0]] if each.kind == "compare_and_set" else _ANY
            groups.setdefault((need, self._numbers.get(_written(each), _JUNK)), []).append(each.invoked)
        self._group_need = [need for need, _ in groups]
        self._group_new = [new for _, new in groups]
        self._group_invoked = [[*times, _NEVER] for times in groups.values()]
        self._group_used = [0] * len(groups)
        self._group_bit: list[int] = []
        self._groups_making: list[list[int]] = [[] for _ in range(self._values)]
        bits = 0
        for group, ((need, new), times) in enumerate(groups.items()):
            self._group_bit.append(bits)
            bits += len(times)
            self._groups_making[new].append(group)
            self._makers[new] += len(times)
            if need != _ANY:
                self._asked[need] += 1
        # Junk first: it is the cheapest way to make a compare-and-set fail.
        self._groups = sorted(range(len(groups)), key=lambda group: self._group_new[group] != _JUNK)

    def run(self, steps_max: int) -> tuple[Outcome, int]:
        """Returns the outcome and the number of steps."""
        state = self._first
        if any(self._wanted[value] and not self._makers[value] for value in range(self._values) if value != state):
            return Outcome.VIOLATED, 1
        self._steps_max = steps_max
        open_: list[int] = []  # known operations that may be next
        undo: list[int] = []  # known operations done, in order
        latest = self._read(state, open_, undo)
        seen: dict[tuple[int, int, int], list[int]] = {}
        # A frame is a node of the search: its remaining choices, its state, and the steps that led to it.
        frames: list[tuple[Iterator[_Choice], int, tuple[int, ...], list[int]]] = []
        frames.append((self._choices(state, open_, latest), state, (), undo))
        while self._next[self._head] != self._head:
            choices, state, used, undo = frames[-1]
            choice = next(choices, None)
            if self._steps >= steps_max:
                return Outcome.UNDECIDED, self._steps
            if choice is None:
                self._take_back(used, undo)
                frames.pop()
                if not frames:
                    return Outcome.VIOLATED, self._steps
                continue
            self._steps += 1
            groups, operation = choice
            undo = []
            for group in groups:
                self._use(group)
            self._do(operation, undo)
            after = self._new[operation]
            need = self._need[operation]
            if after == _KEEP:
                after = need if need != _ANY else self._group_new[groups[-1]]
            lost = (after != state and self._wanted[state] and not self._makers[state]) or (
                need not in (_ANY, after) and self._wanted[need] and not self._makers[need]
            )
            if lost:
                self._take_back(groups, undo)
                continue
            open_ = []
            latest = self._read(after, open_, undo)
            if not self._asked[after]:
                after = _JUNK
            head = self._next[self._head]
            visits = seen.setdefault((head, self._done >> head, after), [])
            # A visit with no more unused unknown operations than an earlier visit finds nothing new.
            if any(not earlier & ~self._used for earlier in visits):
                self._take_back(groups, undo)
                continue
            visits.append(self._used)
            frames.append((self._choices(after, open_, latest), after, groups, undo))
        return Outcome.LINEARIZABLE, self._steps

    def _read(self, state: int, open_: list[int], undo: list[int]) -> float:
        """Do every operation that may be next, fits and changes nothing; put the others that may be next into
        ``open_``. Returns when the first of all other remaining operations returned."""
        latest = _NEVER
        operation = self._next[self._head]
        while self._invoked[operation] <= latest and operation != self._head:
            following = self._next[operation]
            avoid = self._avoid[operation]
            if self._new[operation] == _KEEP and (
                self._need[operation] == state if avoid == _ANY else avoid != state
            ):  # fmt: skip
                self._do(operation, undo)
            else:
                open_.append(operation)
                latest = min(latest, self._returned[operation])
            operation = following
        return latest

    def _choices(self, state: int, open_: list[int], latest: float) -> Iterator[_Choice]:
        """The possible next steps: unknown operations, by group, and the known one that they make possible. Steps
        without unknown operations come first: an unknown operation spent in vain is missed much later."""
        tried: set[int] = set()
        rest: list[int] = []
        for operation in sorted(open_, key=self._returned.__getitem__):
            if self._alike[operation] in tried:
                continue
            tried.add(self._alike[operation])
            if self._avoid[operation] == _ANY and self._need[operation] in (_ANY, state):
                yield (), operation
            else:
                rest.append(operation)
        for operation in rest:
            need, avoid = self._need[operation], self._avoid[operation]
            if avoid != _ANY:  # it was refused, and the state is the value it compared with
                for group in self._groups:
                    if (
                        self._group_new[group] != avoid
                        and self._group_need[group] in (_ANY, state)
                        and self._usable(group, latest)
                    ):
                        yield (group,), operation
            else:
                for groups in self._chains(state, need, latest):
                    yield groups, operation

    def _chains(self, state: int, need: int, latest: float) -> Iterator[tuple[int, ...]]:
        """Unknown operations that lead from one state to another without a detour."""
        ends: list[tuple[int, tuple[int, ...]]] = [(need, ())]
        while ends and self._steps < self._steps_max:
            value, chain = ends.pop()
            self._steps += 1
            for group in self._groups_making[value]:
                if not self._usable(group, latest):
                    continue
                before = self._group_need[group]
                if before in (_ANY, state):
                    yield (group, *chain)
                elif before != need and all(before != self._group_new[each] for each in (group, *chain)):
                    ends.append((before, (group, *chain)))

    def _usable(self, group: int, latest: float) -> bool:
        invoked = self._group_invoked[group][self._group_used[group]]
        return invoked <= latest and invoked != _NEVER

    def _do(self, operation: int, undo: list[int]) -> None:
        undo.append(operation)
        self._done |= 1 << operation
        before, following = self._before[operation], self._next[operation]
        self._next[before], self._before[following] = following, before
        self._count(operation, -1)

    def _use(self, group: int) -> None:
        self._used |= 1 << (self._group_bit[group] + self._group_used[group])
        self._group_used[group] += 1
        self._makers[self._group_new[group]] -= 1

    def _take_back(self, groups: tuple[int, ...], undo: list[int]) -> None:
        for operation in reversed(undo):
            self._done ^= 1 << operation
            self._next[self._before[operation]] = self._before[self._next[operation]] = operation
            self._count(operation, 1)
        for group in groups:
            self._group_used[group] -= 1
            self._used ^= 1 << (self._group_bit[group] + self._group_used[group])
            self._makers[self._group_new[group]] += 1

    def _count(self, operation: int, by: int) -> None:
        need, avoid, new = self._need[operation], self._avoid[operation], self._new[operation]
        if need != _ANY:
            self._wanted[need] += by
            self._asked[need] += by
        if avoid != _ANY:
            self._asked[avoid] += by
        if new != _KEEP:
            self._makers[new] += by


# --- evidence of a violation -----------------------------------------------------------------------------


def _window(operations: Sequence[Operation], steps_max: int) -> tuple[Operation, ...]:
    """The fewest operations found, in bounded time, that contradict each other if all other writes are unknown."""
    budget = [steps_max]
    # The first answer with a contradiction: later answers had not come then, later operations had not begun.
    answers = sorted(each.returned for each in operations if each.returned is not None)
    low, high = 0, len(answers) - 1
    while low < high:
        middle = (low + high) // 2
        if _contradict(*_until(operations, answers[middle]), False, budget):
            high = middle
        else:
            low = middle + 1
    kept, loose = _until(operations, answers[high])
    # The last moment from which no state at all explains the rest.
    anywhere = False
    size = 2
    while size < len(kept) and not anywhere:
        last, under_way = _since(kept, loose, kept[-size].invoked)
        anywhere = _contradict(last, under_way, True, budget)
        if anywhere:
            kept, loose = last, under_way
        size *= 2
    size = (len(kept) + 1) // 2
    while size:
        start = 0
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            more = loose + _unanswered(kept[start : start + size])
            if _contradict(rest, more, anywhere, budget):
                kept, loose = rest, more
            else:
                start += size
        size //= 2
    return tuple(sorted([*kept, *_writers(kept, operations)], key=_invoked))


def _contradict(kept: Sequence[Operation], loose: Sequence[Operation], anywhere: bool, budget: list[int]) -> bool:
    """Whether it is certain that no order explains these operations, starting from None or from any state at all."""
    merged = sorted((*kept, *loose), key=_invoked)
    firsts: list[Hashable] = _asked(merged) if anywhere else [None]
    for first in firsts:
        found, taken = _Search(merged, first).run(min(budget[0], 10_000 + budget[0] // 10))
        budget[0] -= taken
        if found is not Outcome.VIOLATED:
            return False
    return True


def _until(operations: Sequence[Operation], moment: float) -> tuple[list[Operation], list[Operation]]:
    """The operations answered by a moment, and the writes that were in progress then or unanswered before."""
    begun = [each for each in operations if each.invoked <= moment]
    kept = [each for each in begun if each.returned is not None and each.returned <= moment]
    return kept, _unanswered([each for each in begun if each.returned is None or each.returned > moment])


def _since(
    kept: Sequence[Operation], loose: Sequence[Operation], moment: float
) -> tuple[list[Operation], list[Operation]]:
    """The operations invoked from a moment on, and the writes that may have been in progress then."""
    under_way = [
        each for each in kept if each.invoked < moment and each.returned is not None and moment <= each.returned
    ]
    return [each for each in kept if each.invoked >= moment], [*loose, *_unanswered(under_way)]


def _unanswered(operations: Sequence[Operation]) -> list[Operation]:
    """The writes among them, as if they had not been answered."""
    return [
        replace(each, result=None, returned=None)
        for each in operations
        if each.kind != "get" and not (each.kind == "compare_and_set" and each.returned is not None and not each.result)
    ]


def _asked(operations: Sequence[Operation]) -> list[Hashable]:
    """Every value that these operations could distinguish from another, and one that they could not."""
    values: dict[Hashable, None] = {None: None}
    for each in operations:
        if each.kind == "compare_and_set":
            values[_pair(each.argument)[0]] = None
        elif each.returned is not None and each.kind in ("get", "get_and_set"):
            values[each.result] = None
    return [*values, object()]


def _writers(kept: Sequence[Operation], operations: Sequence[Operation]) -> Iterator[Operation]:
    """For each value that was seen and that none of these operations wrote, the first operation that could have."""
    written = {_written(each) for each in kept if each.kind != "get"}
    for each in kept:
        if each.kind in ("get", "get_and_set"):
            value = each.result
        elif each.kind == "compare_and_set" and each.result:
            value = _pair(each.argument)[0]
        else:
            continue
        if value is None or value in written:
            continue
        written.add(value)
        for writer in operations:
            refused = writer.kind == "compare_and_set" and writer.returned is not None and not writer.result
            if writer.kind not in ("get", "delete") and not refused and _written(writer) == value:
                yield writer
                break


def _invoked(operation: Operation) -> float:
    return operation.invoked


def _written(operation: Operation) -> Hashable:
    """The value that an operation leaves if it is done."""
    if operation.kind == "delete":
        return None
    return _pair(operation.argument)[1] if operation.kind == "compare_and_set" else operation.argument


def _pair(argument: Hashable) -> tuple[Hashable, Hashable]:
    if not isinstance(argument, tuple) or len(argument) != 2:
        raise TypeError(f"compare_and_set takes (expected, new), not {argument!r}")
    return argument
