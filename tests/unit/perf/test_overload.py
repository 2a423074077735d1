"""metad-perf overload: what naive clients send, what is counted of it, and the judge of what must not happen."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from metad_client.observer import Ended
from metad_judge.undisturbed import Verdict, judge, leaders, terms
from metad_perf.commands import Overload as Settings
from metad_perf.errors import UsageError
from metad_perf.overload.guard import Beats, Pulse, broker_name, left, names_of
from metad_perf.overload.naive import Naive, Pace, Tell
from metad_perf.overload.plan import GUARD_TENANT, MIX, requests
from metad_perf.overload.tally import Tally, curve, goes_on, heartbeats, peak, phase_row, reached, recovered_s, summed
from metad_perf.report.histogram import Latencies
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SLOTS, ClusterMap, GroupRecord, NodeRecord, pack_slots, unpack_slots
from metad_wire.connection.frame import FrameDecoder, FrameType, encode_frame
from metad_wire.errors import ErrorBody, OverloadedError
from metad_wire.methods import encode
from metad_wire.routing import ROUTES, SLOT_MASK
from metad_wire.tables.broker import ACTIVE, FENCED, Broker

SMALL = Settings(brokers=2, sessions=8, batch=5)
GROUPS = {"data-0": "n1", "data-1": "n2", "offset-0": "n3"}


def cluster() -> ClusterMap:
    def slots(groups: int) -> bytes:
        return pack_slots([slot % groups for slot in range(SLOTS)])

    nodes = [NodeRecord("n1", "", "")]
    groups = [GroupRecord("data", n, ["n1"], ["n1"], "n1") for n in range(2)]
    groups += [GroupRecord("offset", 0, ["n1"], ["n1"], "n1")]
    return ClusterMap(1, nodes, groups, {"data": slots(2), "offset": slots(1)})


# --- the plan ---


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({"factor": 1.0}, "--factor"),
        ({"seconds": 0.0}, "--seconds"),
        ({"base": 1.0}, "--base"),
        ({"base": 0.0}, "--base"),
        ({"batch": 0}, "--batch"),
        ({"batch": m.BATCH_ITEMS_MAX + 1}, "--batch"),
        ({"timeout_s": 0.0}, "--timeout-s"),
        ({"gap_s": 11.0}, "--gap-s"),
        ({"lease_s": 0.5}, "--lease-s"),
        ({"sessions": 9}, "--sessions"),
        ({"processes": 0}, "--processes"),
        ({"connections": 0}, "--connections"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Settings(**setting).checked()


def test_requests_are_of_their_group_and_verbs_by_their_shares() -> None:
    following = requests(SMALL, cluster(), 0)
    by_verb: Counter[str] = Counter()
    slots = {kind: unpack_slots(cluster().slots[kind]) for kind in ("data", "offset")}
    for _ in range(2_000):
        ready = following()
        method = methods.METHODS[ready.method]
        by_verb[method.name] += 1
        payload = ready.payload(1_000)
        assert len(payload) <= ready.size
        asked = method.decode_request(payload)
        assert (asked.group, asked.deadline_ms, len(asked.body.items)) == (ready.group, 1_000, 5)
        route = ROUTES[method.code]
        assert {f"{route.kind}-{slots[route.kind][crc & SLOT_MASK]}" for crc in route.crcs(asked.body.items)} == {
            ready.group
        }
    for verb, share in MIX.items():
        assert by_verb[verb] == pytest.approx(2_000 * share, rel=0.15)


# --- what is counted ---


class Node(asyncio.Protocol):
    """Greets, and answers requests as it is told: "ok", "refuse", or not at all."""

    def __init__(self, say: str, got: list[int]) -> None:
        self._say = say
        self._got = got
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        while (frame := self._decoder.next()) is not None:
            if frame.type == FrameType.HELLO:
                welcome = m.Welcome(m.PROTOCOL_VERSION, 0, "n1", "c", 1 << 20, 1 << 20, 60_000)
                self._transport.write(encode_frame(FrameType.WELCOME, encode(welcome)))
            elif frame.type == FrameType.REQUEST:
                self._got.append(frame.request_id)
                if self._say == "ok":
                    self._transport.write(encode_frame(FrameType.RESPONSE, b"\x90", frame.request_id))
                elif self._say == "refuse":
                    body = ErrorBody(OverloadedError.code, "too much")
                    self._transport.write(encode_frame(FrameType.ERROR, encode(body), frame.request_id))


async def paced(say: str, *, rate: float = 2_000.0, timeout_s: float = 0.3) -> tuple[Tally, int]:
    """Pace against one node until a few hundred items are done with."""
    got: list[int] = []
    server = await asyncio.get_running_loop().create_server(lambda: Node(say, got), "127.0.0.1", 0)
    measurement = Settings(batch=10, timeout_s=timeout_s, connections=1)
    naive = Naive(measurement, cluster(), dict.fromkeys(GROUPS, "n1"), 0)
    async with server:
        await naive.open([f"127.0.0.1:{server.sockets[0].getsockname()[1]}"])
        await naive.carry_out(Pace("during", rate))
        for _ in range(2_000):
            await asyncio.sleep(0.01)
            tally = (await naive.carry_out(Tell()))["during"]
            if tally.answered + tally.unanswered + tally.unsent >= 300:
                break
        await naive.carry_out(Pace("", 0.0))
        await naive.close()
    return tally, len(got)


def test_what_is_acknowledged_in_time_is_good() -> None:
    tally, got = asyncio.run(paced("ok", timeout_s=20.0))
    assert tally.good == tally.answered >= 300
    assert (tally.refused, tally.late, tally.unanswered, tally.unsent, tally.errors) == (0, 0, 0, 0, {})
    assert tally.offered >= tally.sent >= 10 * got - 100
    assert sum(tally.good_by_second.values()) == tally.good


def test_a_refusal_slows_nobody_down_and_is_not_tried_again() -> None:
    tally, got = asyncio.run(paced("refuse", timeout_s=20.0))
    assert (tally.good, tally.errors) == (0, {"overloaded": tally.refused})
    assert tally.refused >= 300
    assert 10 * got <= tally.offered


def test_what_is_not_answered_in_time_is_given_up_and_the_pace_goes_on() -> None:
    tally, _ = asyncio.run(paced("nothing"))
    assert (tally.good, tally.late, tally.refused) == (0, 0, 0)
    assert tally.unanswered >= 300
    assert tally.offered >= tally.unanswered


def test_tallies_of_processes_are_summed() -> None:
    latencies = Latencies()
    latencies.note(2_000_000)
    one = Tally(offered=5, good=3, errors={"a": 1}, good_by_second={0: 3}, latencies=latencies.encode())
    total = summed([one, one, Tally(offered=1, errors={"b": 2}, good_by_second={1: 1})])
    assert (total.offered, total.good, total.errors, total.good_by_second) == (11, 6, {"a": 2, "b": 2}, {0: 6, 1: 1})
    row = phase_row(total, 2.0, 1.0)
    assert (row["offered_per_s"], row["goodput_per_s"]) == (5.5, 3.0)
    assert row["p99_ms"] == pytest.approx(2.0, rel=0.01)


def test_a_factor_that_is_not_reached_is_said() -> None:
    assert reached(Settings(), phase_row(Tally(offered=290, sent=100), 1.0, 100.0)) == ""
    assert "2.50" in reached(Settings(), phase_row(Tally(offered=300, sent=300, lagged=50), 1.0, 100.0))


def test_the_ramp_ends_where_more_brings_nothing() -> None:
    assert goes_on([(2, 10.0), (4, 10.0)])
    assert goes_on([(2, 10.0), (4, 20.0), (8, 30.0)])
    assert goes_on([(2, 10.0), (4, 9.0), (8, 12.0)])
    assert not goes_on([(2, 10.0), (4, 20.0), (8, 20.5), (16, 19.0)])
    assert peak([(2, 10.0), (4, 20.0), (8, 15.0)]) == 20.0
    assert peak([]) == 0.0


def test_the_goodput_over_time_and_when_it_is_back() -> None:
    tallies = {phase: Tally(good_by_second={0: 10, 1: 10}) for phase in ("before", "during", "gap", "after")}
    tallies["gap"] = Tally(good_by_second={1: 4})
    seconds = {"before": 2.0, "during": 2.0, "gap": 2.0, "after": 2.0}
    points = curve(tallies, seconds)
    assert points == [[-4, 10], [-3, 10], [-2, 10], [-1, 10], [0, 0], [1, 4], [2, 10], [3, 10]]
    assert recovered_s(points, 10.0) == 2
    assert recovered_s([*points[:-1], [3, 5]], 10.0) is None
    assert recovered_s([*points[:4], [0, 10]], 10.0) == 0


# --- the heartbeats ---


def beat(seconds: float, outcome: str = "ok", verb: str = methods.BROKER_HEARTBEAT.name) -> Ended:
    return Ended(verb=verb, group="", seconds=seconds, attempts=1, outcome=outcome, error=None, refused=0)


def test_a_heartbeat_counts_from_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("metad_perf.overload.guard.time.monotonic", lambda: now[0])
    noted: list[tuple[float, bool]] = []
    pulse = Pulse(4.0, lambda seconds, ok: noted.append((round(seconds, 6), ok)))
    pulse.ended(beat(0.5))  # begun at 99.5: the next is due at 100.5
    pulse.ended(beat(9.0, verb="kv.put"))
    now[0] = 103.0
    pulse.ended(beat(2.0, "deadline_exceeded"))  # begun at 101: half a second late
    now[0] = 101.3
    pulse.ended(beat(0.1))  # a hurried one, before it was due
    assert noted == [(0.5, True), (2.5, False), (0.1, True)]


def test_heartbeats_of_phases_are_put_together() -> None:
    def beats(count: int, failed: int, ms: float) -> Beats:
        latencies = Latencies()
        latencies.extend([round(ms * 1e6)] * count)
        return Beats(count, failed, latencies.encode())

    count, failed, p99_ms = heartbeats([beats(99, 0, 1.0), beats(10, 2, 500.0)])
    assert (count, failed) == (109, 2)
    assert p99_ms == pytest.approx(500.0, rel=0.01)
    assert heartbeats([]) == (0, 0, 0.0)


# --- the judge ---


def status(node: str, term: int = 3, wills: int = 0, leads: dict[str, str] | None = None) -> m.StatusReply:
    led = GROUPS if leads is None else leads
    groups = [
        m.GroupStatus(name, name.split("-")[0], 0, 0, 0, 0, 0, role="leader" if who == node else "follower", term=term)
        for name, who in led.items()
    ]
    return m.StatusReply(node, "c", "v", 1, 0, 0, 0, True, 3, 0, 0, 0, 0, groups, wills_due=wills)


def session(client: str, n: int, *, connected: bool) -> m.Session:
    return m.Session(GUARD_TENANT, client, connected, broker_name(n), 7, 0, m.SessionProperties())


class Run:
    """A run in which all is as it must be, but for what a test changes."""

    def __init__(self) -> None:
        self.before = [status(node) for node in ("n1", "n2", "n3")]
        self.after = list(self.before)
        self.lives = {broker_name(n): 7 for n in range(SMALL.brokers)}
        self.lost = 0
        self.brokers: list[Broker | None] = [registered(n) for n in range(SMALL.brokers)]
        self.sessions: dict[str, m.Session] = {}
        for n in range(SMALL.brokers):
            for names, connected in zip(names_of(SMALL, n), (True, False), strict=True):
                self.sessions |= {name: session(name, n, connected=connected) for name in names}
        self.wills: list[str] = []

    def judge(self) -> dict[str, int]:
        verdict: Verdict = judge(
            left(SMALL),
            before=self.before,
            after=self.after,
            lives=self.lives,
            lost_lives=self.lost,
            brokers=self.brokers,
            sessions=self.sessions.values(),
            waiting_wills=self.wills,
        )
        fields = ("elections", "leaders_changed", "brokers_fenced", "expired_wrongly", "wills_fired_wrongly")
        return {name: getattr(verdict, name) for name in fields if getattr(verdict, name)}


def registered(n: int, *, state: str = ACTIVE, epoch: int = 7) -> Broker:
    return Broker(broker=broker_name(n), broker_epoch=epoch, state=state, lease_ms=3_000)


def test_all_is_well() -> None:
    assert len(Run().sessions) == SMALL.sessions
    assert Run().judge() == {}


def test_elections_are_seen() -> None:
    run = Run()
    run.after = [status(node, term=5, leads={**GROUPS, "data-0": "n2"}) for node in ("n1", "n2", "n3")]
    assert run.judge() == {"elections": 6, "leaders_changed": 1}
    assert terms(run.after)["data-0"] == 5
    assert leaders(run.after)["data-0"] == "n2"


@pytest.mark.parametrize("broker", [None, registered(0, state=FENCED), registered(0, epoch=8)])
def test_a_broker_whose_life_is_over_is_seen(broker: Broker | None) -> None:
    run = Run()
    run.brokers[0] = broker
    assert run.judge() == {"brokers_fenced": 1}


def test_a_life_that_the_sdk_has_given_up_is_seen() -> None:
    run = Run()
    run.lost = 2
    assert run.judge() == {"brokers_fenced": 2}


def test_sessions_that_are_gone_or_changed_are_seen() -> None:
    run = Run()
    connected, away = names_of(SMALL, 1)
    del run.sessions[away[0]]
    run.sessions[away[1]] = session(away[1], 1, connected=True)
    run.sessions[connected[0]] = session(connected[0], 0, connected=True)
    assert run.judge() == {"expired_wrongly": 3}


def test_wills_that_are_due_are_seen_also_if_somebody_has_published_them() -> None:
    run = Run()
    run.wills = ["guard-0-0"]
    assert run.judge() == {"wills_fired_wrongly": 1}
    run = Run()
    run.after = [status("n1", wills=4), status("n2"), status("n3")]
    assert run.judge() == {"wills_fired_wrongly": 4}
