"""Arguments that make no sense, for each parameter of each verb and each field of each item, against a real server: the
caller hears of it as a MetadError that names the field, and the other items of the batch are carried out."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import msgspec
import pytest
from good_arguments import GOOD, verbs_of

import metad_client as sdk
from metad import embedded
from metad_client import blocking
from metad_wire import messages as m

WRONG: list[Any] = [
    None, 0, -1, 1, 2**63, 2**70, 1.5, float("nan"), float("inf"), True, "", "text", "sur\ud800rogate", "x" * 5_000,
    b"", b"bytes", [], [None], {}, {"a": 1}, (), object(), m.KvKey("ns", "k"), [m.KvKey("ns", "k")],
]  # fmt: skip
HUGE_TEXTS = ["y" * 3_000_000, "é" * 600_000, "w" * 17_000_000]
HUGE_BYTES = [b"z" * 3_000_000, b"v" * 17_000_000]
"""Each parameter meets one of each: all of them at each would take minutes. Verbs begin with another one."""
ONE_CALL_S = 5.0
GROUPS = {"groups": {"data": 3, "offset": 2}}


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """A message with each of its fields replaced by each wrong value, fields of fields included."""
    for field in msgspec.structs.fields(type(value)):
        now = getattr(value, field.name)
        for wrong in WRONG:
            yield field.name, msgspec.structs.replace(value, **{field.name: wrong})
        inside = now[0] if isinstance(now, list) and now else now
        if isinstance(inside, msgspec.Struct):
            for _, changed in fields_of(inside):
                put = [changed] if isinstance(now, list) else changed
                yield field.name, msgspec.structs.replace(value, **{field.name: put})


def wrong_arguments(name: str, *, huge: bool = True) -> Iterator[dict[str, Any]]:
    """The good arguments of a verb with one of them replaced by something else."""
    good = GOOD[name]
    texts, octets = (islice(cycle(values), len(name), None) for values in (HUGE_TEXTS, HUGE_BYTES))
    for parameter, value in good.items():
        values = WRONG + ([next(texts), next(octets)] if huge else [])
        for wrong in values:
            yield {**good, parameter: wrong}
        element = value[0] if isinstance(value, list) and value else None
        if isinstance(element, msgspec.Struct):
            for wrong in values:
                yield {**good, parameter: [element, wrong]}
            for _, changed in fields_of(element):
                yield {**good, parameter: [element, changed]}
        elif isinstance(value, msgspec.Struct):
            for _, changed in fields_of(value):
                yield {**good, parameter: changed}
    for wrong in WRONG:
        if wrong is None or (isinstance(wrong, bool | int | float) and 0 < wrong < 10):
            continue
        yield {**good, "deadline_s": wrong}


def positions(text: str) -> bool:
    """Whether a message tells a place instead of a name."""
    return "$" in text or re.search(r"\[\d+\]\[\d+\]", text) is not None


def told(name: str, arguments: dict[str, Any]) -> str:
    """A call, for a message: some arguments are megabytes."""
    return f"{name}({arguments!s:.300})"


@contextmanager
def nothing_but_metad_errors(name: str, arguments: dict[str, Any]) -> Iterator[None]:
    raised: sdk.MetadError | None = None
    try:
        yield
    except sdk.MetadError as error:
        raised = error
    except Exception as error:
        raise AssertionError(f"{told(name, arguments)}: {error!r}") from error
    if raised is not None:
        assert not positions(str(raised)), told(name, arguments)
        not_these = sdk.InternalError | sdk.DeadlineExceededError | sdk.ConnectionLostError
        assert not isinstance(raised, not_these), told(name, arguments)
        assert raised.outcome_known, told(name, arguments)


def check_result(name: str, arguments: dict[str, Any], result: Any) -> None:
    for error in getattr(result, "errors", {}).values():
        assert isinstance(error, sdk.MetadError), name
        assert not positions(str(error)), (name, str(error))
        assert not isinstance(error, sdk.InternalError), (name, str(arguments)[:300], str(error))


async def finished(result: Any) -> Any:
    if isinstance(result, AsyncIterator):
        return [each async for each in result]
    return await result


@pytest.mark.parametrize("name", GOOD)
async def test_no_verb_raises_anything_but_metad_errors(name: str) -> None:
    options = sdk.Options(deadline_s=ONE_CALL_S)
    async with embedded.serve(**GROUPS) as server, sdk.connect(f"metad://{server.endpoint}", options) as client:
        verb = verbs_of(client)[name]
        for arguments in wrong_arguments(name):
            with nothing_but_metad_errors(name, arguments):
                check_result(name, arguments, await finished(verb(**arguments)))
        assert client.statistics().reconnects == 0, "no argument ends the connection"
        # not through the client, which may by now act for a broker whose lease ended
        async with sdk.connect(f"metad://{server.endpoint}", options) as other:
            assert await other.kv.put("alive", "k", b"") == 1


async def test_the_blocking_client_raises_nothing_else_either() -> None:
    async with embedded.serve(**GROUPS) as server:

        def everything() -> None:
            with blocking.connect(f"metad://{server.endpoint}", sdk.Options(deadline_s=ONE_CALL_S)) as client:
                verbs = verbs_of(client)
                rng = random.Random(5)
                for name in GOOD:
                    cases = list(wrong_arguments(name, huge=False))
                    for arguments in rng.sample(cases, min(20, len(cases))):
                        with nothing_but_metad_errors(name, arguments):
                            result = verbs[name](**arguments)
                            check_result(name, arguments, list(result) if isinstance(result, Iterator) else result)

        await asyncio.to_thread(everything)
