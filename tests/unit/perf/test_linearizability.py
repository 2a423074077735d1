"""The checker against histories whose answer is known, and against a search of every order of small ones."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metad_judge.linearizability import Kind, Operation, Outcome, check

KINDS: tuple[Kind, ...] = ("put", "delete", "get", "compare_and_set", "get_and_set")


def put(value: Hashable, invoked: float, returned: float | None) -> Operation:
    return Operation("k", "put", value, None, invoked, returned)


def delete(invoked: float, returned: float | None) -> Operation:
    return Operation("k", "delete", None, None, invoked, returned)


def get(value: Hashable, invoked: float, returned: float | None) -> Operation:
    return Operation("k", "get", None, value, invoked, returned)


def cas(expected: Hashable, new: Hashable, done: bool, invoked: float, returned: float | None) -> Operation:
    return Operation("k", "compare_and_set", (expected, new), done, invoked, returned)


def swap(value: Hashable, before: Hashable, invoked: float, returned: float | None) -> Operation:
    return Operation("k", "get_and_set", value, before, invoked, returned)


LINEARIZABLE: dict[str, list[Operation]] = {
    "nothing at all": [],
    "a key that was never put": [get(None, 0, 1)],
    "one after the other": [
        put(1, 0, 1), get(1, 2, 3), delete(4, 5), get(None, 6, 7), swap(2, None, 8, 9), get(2, 10, 11),
    ],
    "concurrent puts in either order": [put(1, 0, 10), put(2, 0, 10), get(1, 11, 12)],
    "the put that returned first was done last": [put(1, 0, 5), put(2, 1, 4), get(1, 6, 7)],
    "a read of a put under way": [put(1, 0, 10), get(1, 1, 2), get(1, 3, 4)],
    "a read before a put under way": [put(1, 0, 10), get(None, 1, 2), get(1, 3, 4)],
    "concurrent reads that differ": [put(1, 0, 10), get(1, 1, 5), get(None, 2, 6)],
    "equal times are concurrent": [put(1, 0, 1), get(None, 1, 2)],
    "an unknown put is seen late": [put(1, 0, 1), put(2, 2, None), get(1, 10, 11), get(2, 20, 21)],
    "an unknown put is never seen": [put(1, 0, 1), put(2, 2, None), get(1, 10, 11), get(1, 20, 21)],
    "an unknown delete": [put(1, 0, 1), delete(2, None), get(1, 3, 4), get(None, 5, 6)],
    "unknown puts of one value twice": [
        put(2, 0, None), put(2, 0, None), get(2, 1, 2), put(1, 3, 4), get(2, 5, 6), put(1, 7, 8), get(1, 9, 10),
    ],
    "a compare-and-set was refused because of an unknown put": [put(1, 0, 1), put(9, 2, None), cas(1, 2, False, 3, 4)],
    "a chain of unknown compare-and-sets": [
        cas(2, 3, True, 0, None), cas(1, 2, True, 0, None), cas(None, 1, True, 0, None), get(None, 1, 2), get(3, 3, 4),
    ],
    "compare-and-set, done and refused": [put(1, 0, 1), cas(1, 2, True, 2, 6), cas(1, 3, False, 3, 5), get(2, 7, 8)],
    "takeovers hand the value on": [swap(1, None, 0, 9), swap(2, 1, 0, 9), swap(3, 2, 0, 9), get(3, 10, 11)],
    "a takeover without an answer": [swap(1, None, 0, 1), swap(2, None, 2, None), swap(3, 2, 4, 5)],
}  # fmt: skip


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_what_can_have_happened_is_accepted(name: str) -> None:
    assert check(LINEARIZABLE[name]).outcome is Outcome.LINEARIZABLE
    assert brute_force(LINEARIZABLE[name])


# The history, and which of its operations are to be shown.
VIOLATED: dict[str, tuple[list[Operation], list[int]]] = {
    "a value from nowhere": ([put(1, 0, 1), get(7, 2, 3)], [1]),
    "a stale read": ([put(1, 0, 1), put(2, 2, 3), get(2, 4, 5), get(1, 6, 7)], [0, 1, 2, 3]),
    "a stale read of absence": ([put(1, 0, 1), get(None, 2, 3)], [0, 1]),
    "a lost update": ([put(1, 0, 1), put(2, 2, 3), get(1, 4, 5)], [0, 1, 2]),
    "an update undone by a read": ([put(1, 0, 9), get(1, 1, 2), get(None, 3, 4)], [0, 1, 2]),
    "a compare-and-set that was done twice": (
        [put(1, 0, 1), cas(1, 2, True, 2, 3), cas(1, 3, True, 4, 5), get(3, 6, 7)],
        [0, 1, 2],
    ),
    "one lock for two": ([cas(None, 1, True, 0, 9), cas(None, 2, True, 0, 9)], [0, 1]),
    "a refusal without a reason": ([put(1, 0, 1), cas(1, 2, False, 2, 3)], [0, 1]),
    "an unknown write seen, then unseen": (
        [put(1, 0, 1), put(2, 2, None), get(2, 3, 4), get(1, 5, 6)],
        [0, 1, 2, 3],
    ),
    "an unknown write seen before it was asked for": ([get(2, 0, 1), put(2, 2, None)], [0, 1]),
    "two orders of one pair": (
        [put(1, 0, 9), put(2, 0, 9), get(1, 10, 11), get(2, 12, 13)],
        [0, 1, 2, 3],
    ),
    "two readers disagree about the order": (
        [put(1, 0, 20), put(2, 0, 20), get(1, 1, 2), get(2, 3, 4), get(1, 5, 6)],
        [0, 1, 2, 3, 4],
    ),
    "one owner taken over twice": ([swap(1, None, 0, 1), swap(2, 1, 2, 9), swap(3, 1, 2, 9)], [0, 1, 2]),
    "a delete that was forgotten": ([put(1, 0, 1), delete(2, 3), get(1, 4, 5)], [0, 1, 2]),
}


@pytest.mark.parametrize("name", VIOLATED)
def test_what_cannot_have_happened_is_rejected_and_the_reason_is_shown(name: str) -> None:
    history, shown = VIOLATED[name]
    assert not brute_force(history)
    verdict = check(history)
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.key == "k"
    assert [history.index(each) for each in verdict.window] == shown


def test_a_violation_is_found_among_many_keys_and_is_readable() -> None:
    history = [replace(put(1, 0, 1), key=f"key{i}") for i in range(50)]
    history += [replace(get(1, 2, 3), key=f"key{i}") for i in range(50)]
    history += [replace(delete(4, 5), key="key7"), replace(get(1, 6, 7), key="key7")]
    verdict = check(history)
    assert not verdict
    assert str(verdict) == (
        "NOT LINEARIZABLE: key 'key7'. No order explains\n"
        "  [0, 1] put 'key7' = 1\n"
        "  [4, 5] delete 'key7'\n"
        "  [6, 7] get 'key7' -> 1"
    )
    with pytest.raises(AssertionError, match="NOT LINEARIZABLE"):
        verdict.require()


def test_the_window_of_a_long_history_is_short() -> None:
    rng = random.Random(5)
    history = simulate(rng, 2000, clients=8, unknown=0.2, values=None, kinds=KINDS)
    reads = [at for at, each in enumerate(history) if each.kind == "get" and each.returned is not None]
    late, early = reads[len(reads) * 3 // 4], reads[len(reads) // 4]
    history[late] = replace(history[late], result=history[early].result)
    verdict = check(history)
    assert verdict.outcome is Outcome.VIOLATED
    assert len(verdict.window) <= 6
    assert history[late] in verdict.window


@pytest.mark.parametrize("unknown", [0.0, 0.3])
@pytest.mark.parametrize("values", [None, 4])
def test_a_long_concurrent_history_takes_few_steps(unknown: float, values: int | None) -> None:
    history = simulate(random.Random(1), 2000, clients=8, unknown=unknown, values=values, kinds=KINDS)
    verdict = check(history, steps_max=200_000)  # half a second
    assert verdict.outcome is Outcome.LINEARIZABLE


def test_hundreds_of_unknown_puts_that_nobody_saw_cost_nothing() -> None:
    history = [put(f"unseen{i}", i, None) for i in range(500)]
    history += [put("seen", 0, 1), *(get("seen", 1000 + i, 1001.5 + i) for i in range(1000))]
    history += [cas("other", "x", False, 3000 + i, 3001.5 + i) for i in range(100)]
    assert check(history, steps_max=5_000).outcome is Outcome.LINEARIZABLE
    rejected = check([*history, put("last", 4000, 4001), get("seen", 4002, 4003)], steps_max=50_000)
    assert rejected.outcome is Outcome.VIOLATED
    assert [str(each) for each in rejected.window] == [
        "[0, 1] put 'k' = 'seen'",
        "[4000, 4001] put 'k' = 'last'",
        "[4002, 4003] get 'k' -> 'seen'",
    ]


def test_too_few_steps_are_told_and_are_no_acceptance() -> None:
    history = simulate(random.Random(2), 300, clients=8, unknown=0.1, values=3, kinds=KINDS)
    verdict = check(history, steps_max=50)
    assert verdict.outcome is Outcome.UNDECIDED
    assert not verdict
    assert not verdict.linearizable
    with pytest.raises(AssertionError, match="UNDECIDED: key 'k' was given up after"):
        verdict.require()


def test_a_key_too_hard_to_decide_hides_no_violation_of_another() -> None:
    hard = simulate(random.Random(2), 300, clients=8, unknown=0.1, values=3, kinds=KINDS)
    broken = [replace(each, key="broken") for each in (put(1, 0, 1), get(None, 2, 3))]
    verdict = check([*hard, *broken], steps_max=100)
    assert (verdict.outcome, verdict.key) == (Outcome.VIOLATED, "broken")


def test_an_answer_before_its_question_is_a_broken_history() -> None:
    with pytest.raises(ValueError, match="returned before it was invoked"):
        check([put(1, 2, 1)])


values = st.sampled_from([None, 1, 2, 3])


@st.composite
def small_histories(draw: st.DrawFn) -> list[Operation]:
    """At most six operations that say anything at all; few of them are linearizable."""
    history = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(KINDS))
        invoked = draw(st.integers(0, 6))
        returned = draw(st.none() | st.integers(invoked, 8))
        argument: Hashable = draw(st.tuples(values, values)) if kind == "compare_and_set" else draw(values)
        result: Hashable = draw(st.booleans()) if kind == "compare_and_set" else draw(values)
        history.append(Operation("k", kind, argument, result, invoked, returned))
    return history


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(history=small_histories())
def test_it_agrees_with_trying_every_order(history: list[Operation]) -> None:
    compare(history)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    values=st.sampled_from([None, 2, 3]),
    unknown=st.sampled_from([0.0, 0.3]),
    change=st.integers(0, 5),
    result=values,
)
def test_it_agrees_with_trying_every_order_of_a_valid_history_and_of_one_changed_answer(
    seed: int, values: int | None, unknown: float, change: int, result: Hashable
) -> None:
    history = simulate(random.Random(seed), 6, clients=3, unknown=unknown, values=values, kinds=KINDS)
    assert brute_force(history)
    compare(history)
    at = history[change]
    history[change] = replace(at, result=not at.result if at.kind == "compare_and_set" else result)
    compare(history)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    operations=st.integers(1, 120),
    clients=st.integers(1, 8),
    unknown=st.sampled_from([0.0, 0.1, 0.5]),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
)
def test_a_history_that_happened_is_accepted(
    seed: int, operations: int, clients: int, unknown: float, kinds: list[Kind]
) -> None:
    rng = random.Random(seed)
    history = simulate(rng, operations, clients=clients, unknown=unknown, values=None, kinds=kinds)
    rng.shuffle(history)
    assert check(history).outcome is Outcome.LINEARIZABLE


def compare(history: list[Operation]) -> None:
    verdict = check(history)
    assert verdict.linearizable == brute_force(history)
    assert all(each in history for each in verdict.window)
    assert bool(verdict.window) == (not verdict.linearizable)


def brute_force(history: Sequence[Operation], state: Hashable = None) -> bool:
    """Try every order."""
    answered = [each for each in history if each.returned is not None]
    if not answered:
        return True
    for at, each in enumerate(history):
        if any(other.returned is not None and other.returned < each.invoked for other in answered):
            continue
        fits, after = apply(each, state)
        if fits and brute_force([*history[:at], *history[at + 1 :]], after):
            return True
    return False


def apply(operation: Operation, state: Hashable) -> tuple[bool, Hashable]:
    """Whether the answer is what the state gives, and the state after."""
    result, after = run(operation.kind, operation.argument, state)
    silent = operation.returned is None or operation.kind in ("put", "delete")
    return silent or result == operation.result, after


def run(kind: Kind, argument: Hashable, state: Hashable) -> tuple[Hashable, Hashable]:
    """What the register itself does: (result, state after)."""
    if kind == "get":
        return state, state
    if kind == "compare_and_set":
        assert isinstance(argument, tuple)
        return state == argument[0], argument[1] if state == argument[0] else state
    return (state if kind == "get_and_set" else None), (None if kind == "delete" else argument)


def simulate(
    rng: random.Random, operations: int, *, clients: int, unknown: float, values: int | None, kinds: Sequence[Kind]
) -> list[Operation]:
    """Clients that ask back to back; each operation is done at a random moment of its time. One without an answer is
    done then, much later or never. ``values`` is how many there are, None for one of its own per operation."""
    free_at = [rng.random() for _ in range(clients)]
    asked: list[tuple[float, float, float, bool, Kind]] = []  # moment, invoked, returned, unknown, kind
    for _ in range(operations):
        client = min(range(clients), key=free_at.__getitem__)
        invoked = free_at[client]
        returned = free_at[client] = invoked + rng.random() * (30 if rng.random() < 0.005 else 1)
        moment = rng.uniform(invoked, returned)
        lost = rng.random() < unknown
        if lost:
            moment = rng.choice((moment, moment + 50 * rng.random(), float("inf")))
        asked.append((moment, invoked, returned, lost, rng.choice(kinds)))
    asked.sort()
    state: Hashable = None
    history = []
    for number, (moment, invoked, returned, lost, kind) in enumerate(asked):
        new: Hashable = number if values is None else rng.randrange(values)
        argument: Hashable = new
        if kind == "compare_and_set":
            other = rng.randrange(max(0, number - 8), number + 1) if values is None else rng.randrange(values)
            argument = (rng.choice((state, other)), new)
        result: Hashable = None
        if moment != float("inf"):
            result, state = run(kind, argument, state)
        history.append(Operation("k", kind, argument, None if lost else result, invoked, None if lost else returned))
    return history
