"""The HTTP port: what it shows of a node, to whom, and that nobody who asks can hold anything up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as of_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from metad.config import load_config
from metad.errors import ConfigError
from metad.logs import COUNTS
from metad.node.meters import REQUEST_S, UNKNOWN, Meters
from metad.server.access import Access
from metad.server.lamps import http_port
from metad.server.lamps import machine as lamps_machine
from metad.server.lamps.machine import ShowsWorkers
from metad.server.lamps.metrics import (
    LATENCY,
    METRICS,
    TIMES,
    Reading,
    merged,
    page,
    page_of_missing,
    reference,
)
from metad.server.network import Network
from metad.server.serve import Server
from metad.storage.engine import Figures
from metad.supervisor import workers_of
from metad_client import Client, Given, Options, SessionProperties, SessionTakeoverItem, connect
from metad_perf.attack import sites as certificates
from metad_wire import messages as m
from metad_wire.errors import OverloadedError, PermissionDeniedError
from metad_wire.methods import KV_GET, KV_PUT, STATUS
from metad_wire.transport.credentials import TlsFiles


def status() -> m.StatusReply:
    """Of a node that has some of everything."""
    followers = [m.FollowerStatus("n2", "replicate", 70, True)]
    groups = [m.GroupStatus("data-0", "data", 128, 90, 1, 100, 65_536, "leader", "n1", 3, 95, followers=followers)]
    return m.StatusReply(
        *("n1", "c1", "0.1.0", 7, 60_000, 2_500_000, 4_096, True, 3, 12, 100, 11, 5, groups),
        links=[m.PeerLink("n2", "tls", True, 800)],
        lanes=[m.LaneStatus("records", 5, 2)],
        disk=m.DiskStatus(1_000, 2_000, 100, 0, 3_600_000),
        backlog=m.Backlog(1, 2, 3, 4),
        certificates=[m.CertificateStatus("certificate", 1_800_000_000_000, 5)],
    )


def metered() -> Meters:
    meters = Meters()
    meters.answered(KV_PUT.code, 100, 0.003, b"")
    meters.answered(KV_PUT.code, 50, 0.04, OverloadedError())
    meters.answered(KV_GET.code, 10, 99.0, b"")
    meters.entry_begun(5, 99.5, 100.0)
    meters.apply_s.add(0.002)
    meters.sync_s.add(0.003)
    meters.loop_late_s.add(0.001)
    meters.refused["quota_exceeded"] = 4
    return meters


def reading(said: m.StatusReply | None = None, meters: Meters | None = None) -> Reading:
    return Reading(
        said or status(),
        (found := meters or metered()),
        found.by_name(),
        {"state": Figures(1, 2, 3, 4, 5, 6, 7, 1, 9, 10), "log": Figures(11)},
        {"leader_gained": 2},
        {"active": 3, "fenced": 1},
        0.25,
        6,
    )


def samples(text: str, parse: Any = text_string_to_metric_families) -> dict[tuple[str, ...], float]:
    """Name and values of the labels, in order -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_every_metric_is_on_the_page_and_in_the_reference() -> None:
    text, content_type = page(reading())
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert families.keys() == {declared.name for declared in (*METRICS, *TIMES)}
    assert all(family.samples for family in families.values())
    found = samples(text.decode())
    assert found["metad_follower_lag_entries", "n2", "data-0"] == 30
    assert found["metad_cpu_seconds_total",] == 2.5
    assert found["metad_disk_lasts_seconds",] == 3_600
    assert found["metad_requests_total", "kv.put", "done"] == found["metad_requests_total", "kv.put", "overloaded"] == 1
    assert found["metad_request_bytes_total", "kv.put"] == 150
    assert found[f"{LATENCY}_bucket", "0.005", "kv.put"] == 1
    assert found[f"{LATENCY}_bucket", "0.05", "kv.put"] == found[f"{LATENCY}_count", "kv.put"] == 2
    assert found[f"{LATENCY}_sum", "kv.put"] == pytest.approx(0.043)
    assert (found[f"{LATENCY}_bucket", "30.0", "kv.get"], found[f"{LATENCY}_bucket", "+Inf", "kv.get"]) == (0, 1)
    assert found["metad_items_total", "kv.put"] == 0
    assert found["metad_items_refused_total", "quota_exceeded"] == 4
    assert found["metad_queue_wait_seconds_sum",] == 0.5
    assert found["metad_queue_wait_seconds_bucket", "0.5"] == found["metad_entry_items_bucket", "16.0"] == 1
    assert (found["metad_entry_items_bucket", "4.0"], found["metad_entry_items_count",]) == (0, 1)
    assert found["metad_log_sync_duration_seconds_count",] == 1
    assert (found["metad_store_files_bytes", "state"], found["metad_store_files_bytes", "log"]) == (1, 11)
    assert found["metad_store_stopped", "state"] == 1
    assert found["metad_store_pairs", "state"] == 10
    assert found["metad_brokers", "active"] == 3
    assert (found["metad_broker_silence_ratio",], found["metad_watch_streams_behind",]) == (0.25, 6)
    assert found["metad_certificate_end_timestamp_seconds", "certificate"] == 1.8e9
    assert found["metad_events_total", "leader_gained"] == 2
    assert found["metad_group_unapplied_entries", "data-0"] == 5
    said = reference()
    assert all(f"| `{name}" in said for name in families)
    assert all(metric.help.endswith(".") for metric in METRICS)


def test_openmetrics_has_the_same() -> None:
    text, content_type = page(reading(), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.decode().endswith("# EOF\n")
    assert samples(text.decode(), of_openmetrics) == samples(page(reading())[0].decode())


def test_a_disk_that_does_not_shrink_has_no_end() -> None:
    text, _ = page(reading(m.StatusReply("n1", "c", "v", 1, 0, 0, 0, False, 1, 0, 0, 0, 0, [])))
    assert ("metad_disk_lasts_seconds",) not in samples(text.decode())
    assert samples(text.decode())["metad_fsync",] == 0


def test_methods_that_there_are_not_share_a_meter() -> None:
    meters = Meters()
    for code in range(0xF000, 0xF200):
        meters.answered(code, 1, REQUEST_S[0], b"")
    assert meters.by_name().keys() == {UNKNOWN}
    assert meters.by_name()[UNKNOWN].seconds.buckets[0] == 0x200, "a bound is within its bucket"


# --- a node -------------------------------------------------------------------------------------------------------


@dataclass
class Shown:
    """A node with a port, and who asks."""

    server: Server
    tls: ssl.SSLContext | None = None

    @property
    def endpoint(self) -> str:
        assert self.server.http is not None
        return self.server.http.endpoint

    @property
    def url(self) -> str:
        return f"metad://{self.server.endpoint}"

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and body."""
        return await asyncio.to_thread(self.ask, path, headers)

    def ask(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, str]:
        scheme = "https" if self.tls else "http"
        request = urllib.request.Request(f"{scheme}://{self.endpoint}{path}", headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.tls) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Server]:
    of_memory = {"storage": {"engine": "memory"}, "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
    config = load_config(None, of_memory | settings)
    server = await Server.start(config, Network.of(config))
    running = asyncio.create_task(server.run())
    await server.node.serving()
    yield server
    await server.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def shown() -> AsyncIterator[Shown]:
    async with serving() as server:
        yield Shown(server)


async def test_what_clients_ask_is_counted(shown: Shown) -> None:
    async with connect(shown.url) as client:
        await client.kv.put("n", "k", b"v")
        await client.status()
    _, text = await shown.get("/metrics")
    found = samples(text)
    assert found["metad_requests_total", "kv.put", "done"] == 1
    assert found["metad_requests_total", STATUS.name, "done"] == 1
    assert found["metad_group_leads", "metadata-0"] == 1
    assert found["metad_items_total", "kv.put"] == 1
    assert found["metad_entry_items_count",] >= found["metad_queue_wait_seconds_count",] >= 1
    assert found["metad_apply_duration_seconds_count",] >= 1
    assert found["metad_brokers", "active"] == found["metad_broker_silence_ratio",] == 0
    assert found["metad_events_total", "listening"] >= 1
    assert found["metad_events_total", "bug"] == COUNTS["bug"], "also those that have not come about"


async def test_what_was_slow_says_what_it_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "metad")
    async with serving(limits={"slow_ms": 1}) as server, connect(f"metad://{server.endpoint}") as client:
        node = server.node.identity.node_id
        await client.kv.put("ns", "k", b"v")
        for _ in range(200):
            server.node.requests.note_slow(KV_GET.code, 9, 0.5, OverloadedError(), "c", None)
        replies = await client.cluster.activity(300)
        assert replies.keys() == {node}
        reply = replies[node]
        assert isinstance(reply, m.ActivityReply)
        read = reply.slow[0]
        assert (read.method, read.outcome, read.took_us, read.queued_us) == ("kv.get", "overloaded", 500_000, 0)
        assert reply.slow_count >= 200
        # What takes longer than a millisecond is slow here: the loop is held up for 50, while a write waits.
        writing = asyncio.create_task(client.kv.put("ns", "k2", b"v"))
        while not (slow := [one for one in await of(client, node) if one.tenant == "ns"]):
            writing = asyncio.create_task(client.kv.put("ns", "k2", b"v"))
            await asyncio.sleep(0)
            time.sleep(0.05)  # noqa: ASYNC251 - as work of others would
            await writing
        one = slow[0]
        assert (one.method, one.group, one.outcome, one.items) == ("kv.put", "data-0", "done", 1)
        assert 0 <= one.queued_us <= one.applying_us <= one.took_us
        assert one.identity.endswith(":2") or one.identity.partition(":")[0].isdigit()
        (_, text) = await Shown(server).get("/metrics")
        assert samples(text)["metad_requests_slow_total",] >= 201
    lines = [record for record in caplog.records if record.msg == "slow_request"]
    assert lines
    assert {"method", "took_ms", "queued_ms", "outcome"} <= vars(lines[0])["fields"].keys()


async def test_who_waits_as_long_as_it_said_is_not_slow() -> None:
    async with serving(limits={"slow_ms": 100}) as server, connect(f"metad://{server.endpoint}") as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.6):
                async for _ in client.wills.due("b", 1, poll_s=0.3):
                    pytest.fail("nobody has a will")
        assert "will.wait" in server.node.requests.meters.by_name()
        assert [one.method for one in await of(client, server.node.identity.node_id)] == []


async def of(client: Client, node: str) -> list[m.SlowRequest]:
    reply = (await client.cluster.activity(nodes=[node]))[node]
    assert isinstance(reply, m.ActivityReply)
    return reply.slow


async def test_more_records_make_no_more_series(shown: Shown) -> None:
    async def series(sessions: int) -> set[tuple[str, ...]]:
        async with connect(shown.url) as client:
            for start in range(0, sessions, 500):
                items = [
                    SessionTakeoverItem(f"t{at % 50}", f"c{at}", True, SessionProperties(60))
                    for at in range(start, start + 500)
                ]
                (await client.sessions.takeover_many("b", 1, items)).raise_for_error()
        return set(samples((await shown.get("/metrics"))[1]))

    few = await series(500)
    assert await series(5_000) == few


async def test_it_lives_while_the_loop_is_held_up(shown: Shown) -> None:
    asked = asyncio.get_running_loop().run_in_executor(None, _timed, shown)
    await asyncio.sleep(0)
    time.sleep(1.5)  # noqa: ASYNC251 - as a batch that takes long would
    livez, took_s = await asked
    assert livez == (200, "alive\n")
    assert took_s < 1.5


def _timed(shown: Shown) -> tuple[tuple[int, str], float]:
    time.sleep(0.2)  # the loop is held up by now
    begin_s = time.monotonic()
    return shown.ask("/livez"), time.monotonic() - begin_s


async def test_a_loop_that_is_held_up_is_not_ready(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "LOOP_S", 0.3)
    asked = asyncio.get_running_loop().run_in_executor(None, shown.ask, "/readyz")
    await asyncio.sleep(0)
    time.sleep(1.5)  # noqa: ASYNC251
    assert await asked == (503, "the node did not answer within 0 s\n")


async def test_ready_says_what_is_not_as_it_should_be(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await shown.get("/readyz") == (200, "ready\n")
    checks = "[+] storage: ok\n[+] draining: ok\n[+] groups: ok\n[+] read: ok\nready\n"
    assert await shown.get("/readyz?verbose") == (200, checks)
    monkeypatch.setattr(http_port, "READ_S", 0.05)
    monkeypatch.setattr(shown.server.node.leaders, "last", lambda done: None)
    assert await shown.get("/readyz") == (503, "[-] read: not answered within 0 s\nnot ready\n")
    monkeypatch.setattr(shown.server.node.requests, "draining", True)
    assert (await shown.get("/readyz"))[1].startswith("[-] draining: the node ends\n")


async def test_what_else_is_asked(shown: Shown) -> None:
    assert await shown.get("/") == (404, "there are /livez, /readyz and /metrics\n")
    assert await asyncio.to_thread(shown.ask, "/livez", None, "HEAD") == (200, "")
    assert (await asyncio.to_thread(shown.ask, "/livez", None, "POST"))[0] == 501


async def test_who_says_nothing_holds_nobody_up(shown: Shown) -> None:
    host, _, number = shown.endpoint.rpartition(":")
    silent = [socket.create_connection((host, int(number))) for _ in range(http_port._AT_ONCE - 1)]
    try:
        assert await shown.get("/livez") == (200, "alive\n")
        silent += [socket.create_connection((host, int(number))) for _ in range(5)]
        silent[0].settimeout(30)
        assert await asyncio.to_thread(silent[0].recv, 1) == b"", "beyond the bound the oldest is closed"
        assert await shown.get("/livez") == (200, "alive\n")
    finally:
        for each in silent:
            each.close()


async def test_who_sends_a_byte_now_and_then_holds_nobody_up(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "_WHOLE_S", 1.0)
    host, _, number = shown.endpoint.rpartition(":")
    slow = [socket.create_connection((host, int(number))) for _ in range(2 * http_port._AT_ONCE)]
    over = 0
    try:
        for each in slow:
            with contextlib.suppress(OSError):
                each.send(b"GET /livez HTTP/1.1\r\nX-a: ")
        for _ in range(100):
            assert await shown.get("/livez") == (200, "alive\n")
            for each in slow:
                with contextlib.suppress(OSError):
                    each.send(b"a")
            over = sum(_is_closed(each) for each in slow)
            if over == len(slow):
                break
            await asyncio.sleep(0.05)
        assert over == len(slow), "none may last for as long as it likes"
    finally:
        for each in slow:
            each.close()


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


# --- who sees it --------------------------------------------------------------------------------------------------


def context_of(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    context.check_hostname = False
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key)
    return context


async def test_beyond_the_machine_peers_show_who_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "is_loopback", lambda host: False)
    files = certificates.node("n1")
    security = {"certificate": files.certificate, "key": files.key, "ca": files.ca, "authorization": True}
    async with serving(node_id="n1", security=security | {"administrators": ["app"]}) as server:
        app = Shown(server, context_of(certificates.client("app")))
        assert (await app.get("/metrics"))[0] == (await app.get("/readyz"))[0] == 200
        other = Shown(server, context_of(certificates.client("other")))
        refused, why = await other.get("/metrics")
        assert (refused, "may not read cluster of all" in why) == (403, True)
        assert (await other.get("/livez"))[0] == 200
        stranger = Shown(server, context_of(certificates.anonymous()))
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            await stranger.get("/livez")
        async with connect(f"metads://{server.endpoint}", Options(tls=certificates.client("app"))) as admin:
            await admin.principals.put("metad://client/one", [Given("broker", "acme")])
            await admin.principals.put("metad://client/other", [Given("operator")])
            for _ in range(200):
                if (await other.get("/metrics"))[0] == 200:
                    break
                await asyncio.sleep(0.05)
            else:
                pytest.fail("operators see it")
            for _ in range(2 * Meters.SAMPLE):
                await admin.kv.put("ns", "hot", b"v")
            seen = await loud_keys(admin)
            assert seen == ["kv ns/hot"]
            async with connect(f"metads://{server.endpoint}", Options(tls=certificates.client("other"))) as operator:
                assert await loud_keys(operator) == [], "records' keys are for administrators"
                (of_operator,) = (await operator.cluster.activity()).values()
                assert isinstance(of_operator, m.ActivityReply)
                assert (of_operator.clients, {one.client for one in of_operator.slow} - {""}) == ([], set())
            async with connect(f"metads://{server.endpoint}", Options(tls=certificates.client("one"))) as one:
                assert (await one.status()).node_id == "n1"
                (refused_too,) = (await one.cluster.activity()).values()
                assert isinstance(refused_too, PermissionDeniedError), "it would name other tenants"


async def loud_keys(client: Client) -> list[str]:
    (reply,) = (await client.cluster.activity()).values()
    assert isinstance(reply, m.ActivityReply)
    assert "ns" in [one.name for one in reply.tenants]
    return [one.name for one in reply.keys if one.name.startswith("kv ")]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"http": "nonsense"}, "http:"),
        ({"http": "127.0.0.1:7420"}, "http: 127.0.0.1:7420 is the address of listen"),
        ({"http": "unix:"}, "http: the path of a socket has 1 to 107 bytes"),
        ({"http": f"unix:/{'x' * 200}"}, "http: the path of a socket has 1 to 107 bytes"),
    ],
)
def test_addresses_that_cannot_work_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_config(None, {"data_dir": "d"} | changes)


# --- the workers of a machine -------------------------------------------------------------------------------------


def test_the_pages_of_workers_are_one_page() -> None:
    other = msgspec.structs.replace(status(), node_id="n1/1", uptime_ms=9_000)
    pages = {"n1/0": page(reading(msgspec.structs.replace(status(), node_id="n1/0"))), "n1/1": page(reading(other))}
    text = merged({node: found.decode() for node, (found, _) in pages.items()} | {"": page_of_missing(["n1/2"], "")})
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert len(names) == len(set(names)), "a metric is named once"
    found = samples(text)
    assert (found["metad_uptime_seconds", "n1/0"], found["metad_uptime_seconds", "n1/1"]) == (60, 9)
    assert [found["metad_node_up", f"n1/{number}"] for number in range(3)] == [1, 1, 0]
    assert found[f"{LATENCY}_bucket", "0.005", "kv.put", "n1/1"] == 1
    assert found["metad_node", "c1", "n1/0", "", "0.1.0"] == 1, "it says by itself which node it is"
    assert len(found) == 2 * len(samples(pages["n1/0"][0].decode())) + 1


def test_the_pages_of_workers_are_openmetrics_where_that_is_asked_for() -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    found, _ = page(reading(), accept)
    text = merged({"n1/0": found.decode(), "": page_of_missing(["n1/1"], accept)})
    assert text.count("# EOF") == 1
    assert samples(text, of_openmetrics)["metad_node_up", "n1/1"] == 0
    assert samples(text, of_openmetrics)["metad_log_entries_total", "n1/0"] == 11


@asynccontextmanager
async def machine(sockets: dict[str, str], by: http_port.Door | None = None) -> AsyncIterator[http_port.HttpPort]:
    port = http_port.HttpPort("127.0.0.1:0", ShowsWorkers(lambda: sockets), by)
    try:
        yield port
    finally:
        await port.close()


@dataclass
class Asked(Shown):
    """The port of a machine."""

    at: str = ""

    @property
    def endpoint(self) -> str:
        return self.at


async def test_a_worker_that_stands_still_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a socket, takes connections, and says nothing."""
    monkeypatch.setattr(lamps_machine, "_WITHIN_S", 0.5)
    at = str(tmp_path / "0.http")
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "1.http"))
    silent.listen()
    sockets = {"node-1": at, "n2": str(tmp_path / "1.http"), "n3": "", "n4": str(tmp_path / "nobody")}
    async with serving(http=f"unix:{at}") as server, machine(sockets) as port:
        assert server.http is not None
        assert server.http.endpoint == f"unix:{at}"
        shown = Asked(server, None, port.endpoint)
        code, text = await shown.get("/metrics")
        found = samples(text)
        assert (code, found["metad_group_leads", "metadata-0", "node-1"]) == (200, 1)
        assert [found["metad_node_up", node] for node in sockets] == [1, 0, 0, 0]
        code, text = await shown.get("/readyz")
        assert (code, text.splitlines()) == (
            503,
            [
                "[-] n2: the process did not answer within 0.5 s",
                "[-] n3: the process does not run",
                "[-] n4: the process does not answer: No such file or directory",
                "not ready",
            ],
        )
        assert await shown.get("/livez") == (200, "alive\n")
        del sockets["n2"], sockets["n3"], sockets["n4"]
        assert await shown.get("/readyz") == (200, "ready\n")
        assert (await shown.get("/readyz?verbose"))[1].startswith("[+] node-1 storage: ok\n")
        monkeypatch.setattr(server.node.requests, "draining", True)
        assert await shown.get("/readyz") == (503, "[-] node-1 draining: the node ends\nnot ready\n")
    silent.close()
    assert not os.path.exists(at)  # noqa: ASYNC240 - one look


async def test_a_machine_without_a_worker_that_answers_has_no_metrics(tmp_path: Path) -> None:
    async with serving() as server, machine({"n1": ""}) as port:
        shown = Asked(server, None, port.endpoint)
        assert await shown.get("/metrics") == (503, "no worker answers\n")


async def test_workers_decide_who_may_ask_the_port_of_their_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificates.node("n1")
    security = {"certificate": files.certificate, "key": files.key, "ca": files.ca, "authorization": True}
    at = str(tmp_path / "0.http")
    async with serving(node_id="n1", http=f"unix:{at}", security=security | {"administrators": ["app"]}) as server:
        door = http_port.Door(server.config, Access(server.config.security, encrypted=True), time.time)
        async with machine({"n1": at}, door) as port:
            app = Asked(server, context_of(certificates.client("app")), port.endpoint)
            assert (await app.get("/metrics"))[0] == (await app.get("/readyz"))[0] == 200
            other = Asked(server, context_of(certificates.client("other")), port.endpoint)
            for path in ("/metrics", "/readyz"):
                refused, why = await other.get(path)
                assert (refused, "may not read cluster of all" in why) == (403, True)
            stranger = Asked(server, context_of(certificates.anonymous()), port.endpoint)
            with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                await stranger.get("/livez")


def test_a_port_of_a_machine_is_not_its_workers_other_port(tmp_path: Path) -> None:
    config = load_config(None, {"data_dir": str(tmp_path), "listen": "127.0.0.1:7430", "http": "127.0.0.1:7431"})
    with pytest.raises(ConfigError, match=r"http: 127\.0\.0\.1:7431 is the address of listen"):
        workers_of(config, 2)
    apart = load_config(None, {"data_dir": str(tmp_path), "listen": "127.0.0.1:7430", "http": "127.0.0.1:7480"})
    assert {one.http for one in workers_of(apart, 2)} == {"127.0.0.1:7480"}
