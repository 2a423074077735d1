"""The iteration over wills that are due: what it waits for, what it acknowledges, and what ends it."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from metad_client import FencedError, InvalidRequestError, WillKey
from metad_wire import messages as m
from metad_wire.errors import ConflictError, DeadlineExceededError, MetadError, OverloadedError
from metad_wire.tables.will import ClaimedWill, WillAcknowledge, WillClaim, WillClaimReply, WillDue, WillRelease

KEYS = [WillKey("t", f"c{n}", "1") for n in range(3)]


class Broken:
    """Answers the first requests of a type with errors, and claims of wills with these, each once."""

    def __init__(self, failing: type[m.Message] = m.Ping, *errors: MetadError, wills: int = 3) -> None:
        self._failing = failing
        self._errors = list(errors)
        self._keys = KEYS[:wills]

    def __call__(self, received: Any) -> None:
        if self._errors and isinstance(received.body, self._failing):
            received.fail(self._errors.pop(0))
        elif isinstance(received.body, WillClaim):
            keys, self._keys = self._keys, []
            claimed = [ClaimedWill(key.tenant, key.client_id, key.id, 1) for key in keys]
            wills = [WillDue(m.Will(key.client_id), 1) for key in keys]
            received.reply(WillClaimReply([m.Revision("data-0", 1)], claimed, wills, b""))
        else:
            received.reply()


def told(server: Any, kind: type[m.Message]) -> list[Any]:
    return [received.body for received in server.received if isinstance(received.body, kind)]


async def test_a_will_is_acknowledged_when_the_next_one_is_asked_for(server: Any, dial: Any) -> None:
    client, server.answer = await dial(), Broken()
    async with aclosing(client.wills.due("b", 7, lease_s=30)) as due:
        for key in KEYS:
            taken = await anext(due)
            assert (taken.key, taken.will, taken.claims) == (key, m.Will(key.client_id), 1)
        await server.until(lambda: bool(told(server, WillAcknowledge)))
    acknowledged = [key for body in told(server, WillAcknowledge) for key in body.items]
    assert acknowledged == KEYS[:2]
    assert told(server, WillClaim)[0] == WillClaim("b", 7, 30_000, 100)
    assert not told(server, WillRelease), "what was yielded may have been published"


async def test_what_was_not_yielded_is_released(server: Any, dial: Any) -> None:
    client, server.answer = await dial(), Broken()
    async with aclosing(client.wills.due("b", 7)) as due:
        await anext(due)
    assert told(server, WillRelease) == [WillRelease("b", 7, KEYS[1:])]


@pytest.mark.parametrize("error", [DeadlineExceededError(), OverloadedError(retry_after_ms=1)])
@pytest.mark.parametrize("failing", [WillClaim, WillAcknowledge])
async def test_it_waits_while_nobody_answers(server: Any, dial: Any, failing: Any, error: MetadError) -> None:
    client, server.answer = await dial(), Broken(failing, error)
    async with aclosing(client.wills.due("b", 7, poll_s=0.01)) as due:
        assert [(await anext(due)).key for _ in KEYS] == KEYS


async def test_an_acknowledgement_that_comes_too_late_ends_nothing(server: Any, dial: Any) -> None:
    client = await dial()
    usual = Broken()

    def answer(received: Any) -> None:
        if isinstance(received.body, WillAcknowledge):
            errors = [m.ItemError(at, ConflictError.code) for at in range(len(received.body.items))]
            received.reply(m.WriteReply([m.Revision("data-0", 1)], errors))
        else:
            usual(received)

    server.answer = answer
    async with aclosing(client.wills.due("b", 7)) as due:
        assert [(await anext(due)).key for _ in KEYS] == KEYS


@pytest.mark.parametrize("failing", [WillClaim, WillAcknowledge])
async def test_a_fenced_life_is_told(server: Any, dial: Any, failing: Any) -> None:
    client, server.answer = await dial(), Broken(failing, FencedError(), wills=1)
    with pytest.raises(FencedError):
        async for _ in client.wills.due("b", 7):
            pass


@pytest.mark.parametrize(
    "wrong", [{"poll_s": 0}, {"poll_s": "5"}, {"lease_s": 0}, {"lease_s": 3_601}, {"limit": 0}, {"tenant": 5}]
)
async def test_arguments_that_make_no_sense_are_refused(dial: Any, wrong: dict[str, Any]) -> None:
    client = await dial()
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        await anext(client.wills.due("b", 7, **wrong))
