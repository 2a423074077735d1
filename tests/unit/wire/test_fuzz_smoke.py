"""The fuzzer's own targets on a fixed seed: a short walk through the golden inputs and their mutations."""

from __future__ import annotations

import gc
import random
import tracemalloc
from itertools import pairwise

import pytest
import wire_drivers

SEED = 20_240_601


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(6)):
        position = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[position : position + 1] = rng.randbytes(1)
            case 1:
                changed[position:position] = rng.randbytes(rng.randrange(20))
            case 2:
                del changed[position : position + rng.randrange(8)]
            case 3:
                changed += changed[position : position + 40]
    return bytes(changed)


@pytest.mark.parametrize("target", wire_drivers.TARGETS)
def test_golden_inputs(target: str) -> None:
    for data in wire_drivers.seeds(target):
        wire_drivers.TARGETS[target](data)


@pytest.mark.parametrize("target", wire_drivers.TARGETS)
def test_mutated_inputs_break_no_promise_and_hold_no_memory(target: str) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    corpus = list(wire_drivers.seeds(target))
    run = wire_drivers.TARGETS[target]

    def round_of_inputs(count: int) -> None:
        for _ in range(count):
            data = mutate(b"".join(rng.choices(corpus, k=rng.randrange(1, 3))), rng)
            try:
                run(data)
            except BaseException:
                print(f"input {data.hex()}")
                raise

    round_of_inputs(6_000)
    held = []
    tracemalloc.start()
    try:
        round_of_inputs(100)
        for _ in range(4):
            gc.collect()  # what it has not looked at yet is no leak
            held.append(tracemalloc.get_traced_memory()[0])
            round_of_inputs(100)
    finally:
        tracemalloc.stop()
    grown = [after - before for before, after in pairwise(held)]
    assert min(grown) < 20 * 1024, f"every round holds more: {grown}"  # a table of the interpreter grows once
