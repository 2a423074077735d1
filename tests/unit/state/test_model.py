"""Key-values against a plain dict, with entries of many commands that are applied late.

What a command must see is spread over its own writes, two generations of the overlay and the engine; the model knows
one dict. At the end, and whenever everything is applied, a follower that only read the entries holds the same bytes.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from state_rig import Group, contents, item_errors

from metad.config import DedupeConfig
from metad.state.core.verb import Command
from metad.state.registry import VERBS
from metad.state.session.owners import SessionOwners
from metad_wire import messages as m
from metad_wire import methods

names = st.sampled_from(["", "a", "a\0", "b", "\0", "é"])
namespaces = st.sampled_from(["n", "n\0", "m"])
values = st.sampled_from([b"", b"1", b"2", b"\0\xff"])
versions = st.none() | st.integers(0, 3)

puts = st.builds(m.KvPutItem, namespaces, names, values, versions)
deletes = st.builds(m.KvDeleteItem, namespaces, names, versions)
compares = st.builds(m.KvCompare, names, versions, st.none() | values)
operations = st.builds(m.KvOperation, names, st.none() | values)
transactions = st.builds(
    m.KvTransaction,
    namespaces,
    st.lists(compares, max_size=2),
    st.lists(operations, max_size=3),
    st.lists(operations, max_size=2),
    st.lists(names, max_size=2),
)
bodies = st.one_of(
    st.builds(m.KvPut, st.lists(puts, min_size=1, max_size=4)),
    st.builds(m.KvDelete, st.lists(deletes, min_size=1, max_size=4)),
    st.builds(m.KvTransact, st.lists(transactions, min_size=1, max_size=3)),
)
METHOD = {m.KvPut: methods.KV_PUT, m.KvDelete: methods.KV_DELETE, m.KvTransact: methods.KV_TRANSACT}


State = dict[tuple[str, str], m.Kv]


class Model:
    """What key-values should do, said as plainly as possible."""

    def __init__(self) -> None:
        self.state: State = {}

    def version(self, namespace: str, key: str) -> int:
        record = self.state.get((namespace, key))
        return record.version if record else 0

    def put(self, namespace: str, key: str, value: bytes, index: int) -> int:
        old = self.state.get((namespace, key))
        created = old.create_revision if old else index
        new = m.Kv(namespace, key, value, self.version(namespace, key) + 1, created, index)
        self.state[namespace, key] = new
        return new.version

    def run(self, body: Any, index: int) -> Any:
        """What the reply must say, in a form that is easy to compare."""
        if isinstance(body, m.KvPut):
            done = []
            for item in body.items:
                if item.expected_version not in (None, self.version(item.namespace, item.key)):
                    done.append("conflict")
                else:
                    done.append(self.put(item.namespace, item.key, item.value, index))
            return done
        if isinstance(body, m.KvDelete):
            results: list[Any] = []
            for item in body.items:
                version = self.version(item.namespace, item.key)
                if not version:
                    results.append("not_found")
                elif item.expected_version not in (None, version):
                    results.append("conflict")
                else:
                    del self.state[item.namespace, item.key]
                    results.append("ok")
            return results
        return [self.transact(transaction, index) for transaction in body.items]

    def transact(self, transaction: m.KvTransaction, index: int) -> Any:
        namespace = transaction.namespace
        holds = True
        for compare in transaction.compares:
            record = self.state.get((namespace, compare.key))
            holds &= compare.version in (None, self.version(namespace, compare.key))
            holds &= compare.value is None or (record is not None and record.value == compare.value)
        for operation in transaction.then if holds else transaction.otherwise:
            if operation.value is None:
                self.state.pop((namespace, operation.key), None)
            else:
                self.put(namespace, operation.key, operation.value, index)
        return holds, [self.state.get((namespace, key)) for key in transaction.reads]


def told(body: Any, reply: Any) -> Any:
    """A reply in the model's form."""
    errors = item_errors(reply)
    if isinstance(body, m.KvPut):
        return [errors.get(i, version) for i, version in enumerate(reply.versions)]
    if isinstance(body, m.KvDelete):
        return [errors.get(i, "ok") for i in range(len(body.items))]
    return [(result.succeeded, result.records) for result in reply.results]


class KvAgainstModel(RuleBasedStateMachine):
    """Entries of several commands, several entries in flight, restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group("data", 0, DedupeConfig())
        self.model = Model()

    @rule(commands=st.lists(bodies, min_size=1, max_size=4))
    def propose(self, commands: list[Any]) -> None:
        prepared = []
        for body in commands:
            method = METHOD[type(body)]
            prepared.append((Command(method, body, VERBS[method.code].rows(body)), None))
        while commands:  # one that writes a row again waits for the next entry
            index = self.group.last + 1
            outcomes = self.group.propose(prepared, 1_000 + index)
            written: dict[tuple[str, str], m.Kv | None] = {}
            for body, outcome in zip(commands, outcomes, strict=False):
                assert isinstance(outcome, bytes), outcome
                before = dict(self.model.state)
                assert told(body, METHOD[type(body)].decode_reply(outcome)) == self.model.run(body, index)
                for key in before.keys() | self.model.state.keys():
                    if before.get(key) is not (now := self.model.state.get(key)):
                        assert key not in written, "an entry writes a row once"
                        written[key] = now
            prepared, commands = prepared[len(outcomes) :], commands[len(outcomes) :]

    @precondition(lambda self: self.group.in_flight)
    @rule(count=st.integers(1, 3))
    def apply(self, count: int) -> None:
        self.group.apply(count)

    @rule()
    def restart(self) -> None:
        self.group.restart()
        self.compare_state()

    @precondition(lambda self: not self.group.in_flight)
    @rule()
    def read(self) -> None:
        self.compare_state()

    def compare_state(self) -> None:
        keys = [m.KvKey(namespace, key) for namespace in ("n", "n\0", "m") for key in ("", "a", "a\0", "b", "\0", "é")]
        body = methods.KV_GET.body(keys)
        verb = VERBS[methods.KV_GET.code]
        rows = verb.rows(body)
        assert verb.read is not None
        reply = verb.read(self.group.machine.reader, Command(methods.KV_GET, body, rows))
        records = methods.KV_GET.decode_reply(methods.encode(reply)).found
        assert records == [self.model.state.get((key.namespace, key.key)) for key in keys]

    @invariant()
    def the_follower_has_the_same_bytes(self) -> None:
        assert contents(self.group.engine) == contents(self.group.follower_engine)

    def teardown(self) -> None:
        self.group.apply(len(self.group.in_flight))
        self.compare_state()
        # A replica that has nothing but the log ends with the same bytes too.
        fresh = Group("data", 0, DedupeConfig())
        fresh.log, fresh.last = self.group.log, self.group.last
        fresh.restart()
        assert contents(fresh.engine) == contents(self.group.engine)


KvAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestKvAgainstModel = KvAgainstModel.TestCase


def test_evaluate_is_a_function_of_state_command_and_time() -> None:
    # No clock, no randomness, no order of a set may leak into an entry: two leaders make the same bytes.
    bodies_ = [
        m.KvPut([m.KvPutItem("n", f"k{i}", b"v%d" % i) for i in range(50)]),
        m.KvTransact([m.KvTransaction("n", [], [m.KvOperation("k1", b"x")], reads=["k2"])]),
    ]
    entries = []
    for _ in range(2):
        group = Group("data", 0, DedupeConfig())
        for seq, body in enumerate(bodies_):
            method = METHOD[type(body)]
            command = Command(method, body, VERBS[method.code].rows(body))
            group.propose([(command, m.Identity(7, seq, 0))], 5_000)
        entries.append(list(group.log))
    assert entries[0] == entries[1]


def test_owner_cache_size_changes_nothing() -> None:
    # It is a cache: evaluation with a full one and an empty one agree.
    items = [m.SessionTakeoverItem("acme", f"c{i}") for i in range(300)]
    logs = []
    for forget in (False, True):
        group = Group("data", 0, DedupeConfig())
        for epoch, broker in enumerate(("b1", "b2", "b1")):
            body = m.SessionTakeover(broker, epoch, items, True)
            rows = VERBS[methods.SESSION_TAKEOVER.code].rows(body)
            group.propose([(Command(methods.SESSION_TAKEOVER, body, rows), None)], 5_000)
            group.apply(1)
            if forget:
                group.machine.parts[SessionOwners].cache.clear()
        logs.append(group.log)
    assert logs[0] == logs[1]
