"""The verbs' batches and what counts as a right answer, against a client that answers what the test says."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from metad_client.results import Piece, PutResult, ReadResult, TakeoverResult, WriteResult
from metad_perf.errors import UsageError
from metad_perf.load.workload import BROKER, TENANT, VERBS, Item, Settings, kv_keys
from metad_wire import messages as m
from metad_wire.errors import ConflictError, NotOwnerError
from metad_wire.methods import KV_GET, SESSION_GET


def _settings(verb: str, **changes: Any) -> Settings:
    return Settings(**({"verb": verb, "batch": 100, "keys": 1_000, "value_bytes": 50, "epoch": 7} | changes))


def _client(**answers: Any) -> Any:
    """``sessions_update_many=result`` answers ``client.sessions.update_many`` with it."""
    client = SimpleNamespace(sessions=SimpleNamespace(), offsets=SimpleNamespace(), kv=SimpleNamespace())

    def answering(result: Any) -> Any:
        async def method(*_: Any, **__: Any) -> Any:
            return result

        return method

    for name, result in answers.items():
        part, _, method = name.partition("_")
        setattr(getattr(client, part), method, answering(result))
    return client


def _records(batch: Any) -> list[Any]:
    return batch[1] if isinstance(batch, tuple) else batch


@pytest.mark.parametrize("verb", VERBS)
def test_batches_are_fresh_and_by_seed(verb: str) -> None:
    first, again = (VERBS[verb](_client(), _settings(verb)) for _ in range(2))
    other = VERBS[verb](_client(), _settings(verb, seed=2))
    batches = [first.batch() for _ in range(3)]
    assert batches == [again.batch() for _ in range(3)]
    assert batches[0] != other.batch()
    assert batches[0] != batches[1] != batches[2]
    assert {len(_records(batch)) for batch in batches} == {100}


@pytest.mark.parametrize("verb", ["session.update", "session.get", "kv.put", "table.get", "offset.commit"])
def test_processes_draw_differently(verb: str) -> None:
    shares = [VERBS[verb](_client(), _settings(verb, share=share, shares=2)).batch() for share in range(2)]
    assert shares[0] != shares[1]


def test_updates_are_of_known_sessions_with_a_value_each() -> None:
    batch = VERBS["session.update"](_client(), _settings("session.update")).batch()
    assert {item.tenant for item in batch} == {TENANT}
    assert {item.client_id for item in batch} <= {f"client-{i:010d}" for i in range(1_000)}
    assert {len(item.properties.payload) for item in batch} == {50}
    assert len({item.properties.payload for item in batch}) == 100


def test_takeovers_go_to_another_broker_each_round() -> None:
    """Guards what the verb claims to measure: nobody takes over what is already his."""
    shares = [VERBS["session.takeover"](_client(), _settings("session.takeover", share=s, shares=2)) for s in range(2)]
    owner = {f"client-{i:010d}": BROKER for i in range(1_000)}
    taken: Counter[str] = Counter()
    for _ in range(40):
        for share in shares:
            broker, items = share.batch()
            for item in items:
                assert owner[item.client_id] != broker
                owner[item.client_id] = broker
                taken[item.client_id] += 1
    assert set(taken.values()) == {8}


def test_a_takeover_batch_larger_than_its_sessions_is_refused() -> None:
    with pytest.raises(UsageError, match="100"):
        VERBS["session.takeover"](_client(), _settings("session.takeover", keys=150, shares=2))


def test_offsets_grow() -> None:
    workload = VERBS["offset.commit"](_client(), _settings("offset.commit"))
    offsets = [item.offset for _ in range(3) for item in workload.batch()]
    assert offsets == sorted(set(offsets))


def test_keys_are_of_many_namespaces() -> None:
    assert len({namespace for namespace, _ in kv_keys(1_000)}) == 64
    assert len(set(kv_keys(1_000))) == 1_000


def _piece(reply: Any, count: int = 2) -> list[Piece[Any]]:
    return [Piece(0, count, reply, None)]


async def test_failed_writes_are_named() -> None:
    right = WriteResult(_piece(m.WriteReply([], [])))
    wrong = WriteResult(_piece(m.WriteReply([], [m.ItemError(1, NotOwnerError.code)])))
    for verb, method in (("session.update", "sessions_update_many"), ("offset.commit", "offsets_commit_many")):
        assert list(await VERBS[verb](_client(**{method: right}), _settings(verb)).send([])) == []
        assert list(await VERBS[verb](_client(**{method: wrong}), _settings(verb)).send([])) == ["not_owner"]


async def test_a_put_without_a_version_has_failed() -> None:
    right = PutResult(_piece(m.KvPutReply([], [], [3, 4])))
    wrong = PutResult(_piece(m.KvPutReply([], [m.ItemError(0, ConflictError.code)], [0, 4])))
    silent = PutResult(_piece(m.KvPutReply([], [], [0, 4])))
    for result, expected in ((right, []), (wrong, ["conflict"]), (silent, ["absent"])):
        workload = VERBS["kv.put"](_client(kv_put_many=result), _settings("kv.put"))
        assert list(await workload.send([])) == expected


async def test_a_takeover_of_what_was_not_there_has_failed() -> None:
    items = [m.SessionTakeoverItem(TENANT, "a"), m.SessionTakeoverItem(TENANT, "b")]
    owners = [m.Owner("broker-0", 1)]
    right = TakeoverResult(_piece(m.SessionTakeoverReply([], [], owners, [0, 0], [])), items)
    absent = TakeoverResult(_piece(m.SessionTakeoverReply([], [], owners, [0, -1], [])), items)
    for result, expected in ((right, []), (absent, ["absent"])):
        workload = VERBS["session.takeover"](_client(sessions_takeover_many=result), _settings("session.takeover"))
        assert list(await workload.send(("broker-1", items))) == expected


async def test_a_restoring_takeover_must_restore() -> None:
    items = [m.SessionTakeoverItem(TENANT, "a"), m.SessionTakeoverItem(TENANT, "b")]
    reply = m.SessionTakeoverReply([], [], [m.Owner("broker-0", 1)], [0, 0], [m.SessionProperties(), None])
    workload = VERBS["session.takeover"](
        _client(sessions_takeover_many=TakeoverResult(_piece(reply), items)),
        _settings("session.takeover", restore=True),
    )
    assert list(await workload.send(("broker-1", items))) == ["absent"]


def _read(reply: Any, *lost: Piece[Any]) -> ReadResult[Any]:
    records = list(reply.found)
    return ReadResult([Piece(0, len(records), reply, None), *lost], lambda _: records, None)


async def test_gets_must_find_the_record_asked_for_whole() -> None:
    def session(client_id: str, size: int) -> m.Session:
        return m.Session(
            tenant=TENANT,
            client_id=client_id,
            broker=BROKER,
            broker_epoch=1,
            connected=True,
            disconnected_ms=0,
            properties=m.SessionProperties(0, bytes(size)),
        )

    keys = [m.SessionKey(TENANT, name) for name in "abcd"]
    found = [session("a", 50), None, session("x", 50), session("d", 49)]
    workload = VERBS["session.get"](
        _client(sessions_get_many=_read(SESSION_GET.reply(found))), _settings("session.get")
    )
    assert list(await workload.send(keys)) == ["absent", "different", "different"]

    kv = [m.Kv("n", "a", bytes(50), 1, 1, 1), None, m.Kv("n", "x", bytes(50), 1, 1, 1), m.Kv("n", "d", b"", 1, 1, 1)]
    workload = VERBS["kv.get"](_client(kv_get_many=_read(KV_GET.reply(kv))), _settings("kv.get"))
    assert list(await workload.send([m.KvKey("n", name) for name in "abcd"])) == ["absent", "different", "different"]

    records = [one and m.TableRecord(Item(one.namespace, one.key, one.value), 1, 1, 1) for one in kv]
    reply = _read(KV_GET.reply(records))
    workload = VERBS["table.get"](_client(kv_get_many=reply).kv, _settings("table.get"))
    assert list(await workload.send([m.KvKey("n", name) for name in "abcd"])) == ["absent", "different", "different"]


@pytest.mark.parametrize("verb", ["session.get", "kv.get"])
async def test_what_could_not_be_read_is_a_failure_and_not_an_absent_record(verb: str) -> None:
    empty = SESSION_GET.reply([]) if verb == "session.get" else KV_GET.reply([])
    found = _read(empty, Piece(0, 1, None, NotOwnerError("lost")))
    workload = VERBS[verb](_client(sessions_get_many=found, kv_get_many=found), _settings(verb))
    with pytest.raises(NotOwnerError, match="lost"):
        await workload.send([m.KvKey("n", "a")])
