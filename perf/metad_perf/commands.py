"""The commands: what each takes, and which module runs it. A command's module is imported when it runs."""

from __future__ import annotations

import importlib
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import msgspec

from metad_spark.arguments import Command
from metad_wire.text.fields import BATCH_ITEMS_MAX

from .errors import UsageError

if TYPE_CHECKING:
    from typing import Self

    from .spawn import Shape

Verb = Literal[
    "session.create",
    "session.takeover",
    "session.update",
    "session.get",
    "offset.commit",
    "kv.put",
    "kv.get",
    "table.put",
    "table.get",
]
_NOT_TOLD: Final = frozenset({"json", "report", "server_config", "endpoint", "workers"})

FAULTS: Final = ("kill", "term", "pause", "partition", "oneway", "diskfull", "slowdisk", "disk-hang")
PEERS: Final = ("etcd", "zookeeper", "grpc", "oxia")

Config = Annotated[Path | None, "configuration of the started server", "FILE"]
Scheme = Annotated[
    Literal["metad", "metads", "metadq", "metad+auto"],
    "scheme to reach the started server by; all but metad give it certificates",
]
Nodes = Annotated[int, "nodes of the started cluster"]
Groups = Annotated[str, "groups of the started cluster, as in data=4,offset=2", "G"]
Workers = Annotated[int, "processes per node of the started cluster"]
Certs = Annotated[str, "directory written by `metadctl certs`, for --endpoint", "DIR"]
As = Annotated[str, "name of the certificate in --certs to use", "NAME", "--as"]
TokenFile = Annotated[str, "file with our token, for --endpoint", "FILE"]
ValueBytes = Annotated[int, "size of a value or payload"]
Lease = Annotated[float, "lease of a broker"]
Items = Annotated[int, "items in a request"]
Pairs = Annotated[int, "runs of each case on each side, alternating"]
Refused = Annotated[str | None, None]
"""An endpoint that a command does not take, to say why."""


class Runs(Command, frozen=True, kw_only=True):
    """Base of all commands."""

    RUNS: ClassVar[str]
    """The module below this package whose ``run`` takes the checked command and returns the exit code."""

    def checked(self) -> Self:
        """This, with what follows from it filled in. Raises UsageError."""
        return self

    def run(self) -> int:
        """Run it."""
        return int(importlib.import_module(f".{self._runs()}", __package__).run(self.checked()))

    def _runs(self) -> str:
        return self.RUNS


class Options(Runs, frozen=True, kw_only=True):
    """Base of all commands that write a report."""

    json: Annotated[Path | None, "write the report as JSON", "FILE"] = None

    @property
    def shape(self) -> Shape:
        """The servers to start. Raises UsageError."""
        from .spawn import Shape

        given = {name: getattr(self, name) for name in Shape.__struct_fields__ if hasattr(self, name)}
        return Shape(**given).checked()

    def told(self) -> dict[str, Any]:
        """The settings, for the report."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name not in _NOT_TOLD}

    def _want(self, what: str, *fields: str, least: float = 0) -> None:
        for field in fields:
            value = getattr(self, field)
            if not (value >= least if least else value > 0):
                raise UsageError(f"--{field.replace('_', '-')} must be {what}")

    def _over_0(self, *fields: str) -> None:
        self._want("over 0", *fields)

    def _at_least_1(self, *fields: str) -> None:
        self._want("at least 1", *fields, least=1)


class Load(Options, frozen=True, kw_only=True):
    ABOUT = "one verb under load: throughput, latency, server CPU"
    RUNS = "load.measure"
    ONE_OF = ("endpoint", "spawn")

    endpoint: Annotated[str | None, "a running server, or a cluster's nodes", "[SCHEME://]HOST:PORT[,...]"] = None
    spawn: Annotated[bool, "start servers in a temporary directory"] = False
    server_config: Config = None
    scheme: Scheme = "metad"
    certs: Certs = ""
    name: As = ""
    token_file: TokenFile = ""
    nodes: Nodes = 1
    groups: Groups = ""
    workers: Workers = 1
    verb: Annotated[Verb, ""]
    batch: Items = 1_000
    in_flight: Annotated[int, "requests in flight, over all processes"] = 8
    items: Annotated[int, "items to send, over all processes"] = 1_000_000
    value_bytes: ValueBytes = 200
    processes: Annotated[int, "load-generating processes, one connection each"] = 1
    rate: Annotated[float, "items/s of an open loop; 0: closed loop"] = 0.0
    keys: Annotated[int, "size of the key space; 0: min(items, 100,000)"] = 0
    restore: Annotated[bool, "session.takeover asks for the stored properties"] = False
    request_each: Annotated[bool, "with --batch 1: one request per item instead of the SDK's single calls"] = False
    seed: Annotated[int, ""] = 1

    def checked(self) -> Load:
        """Raises UsageError."""
        if self.server_config is not None and not self.spawn:
            raise UsageError("--server-config needs --spawn")
        if (self.nodes, self.workers, self.groups, self.scheme) != (1, 1, "", "metad") and not self.spawn:
            raise UsageError("--nodes, --workers, --groups and --scheme need --spawn")
        return self


class Grpc(Options, frozen=True, kw_only=True):
    ABOUT = "metad against grpc.aio: the same service on the same core"
    RUNS = "peers.grpc_baseline"

    server_config: Config = None
    scheme: Scheme = "metad"
    pairs: Pairs = 3
    seconds: Annotated[float, "length of one run"] = 3.0
    keys: Annotated[int, "sessions"] = 100_000


class Compare(Options, frozen=True, kw_only=True):
    ABOUT = "three nodes of metad against three nodes of other systems"
    RUNS = "peers.compare"
    ONE_OF = ("peers", "made")

    server_config: Config = None
    scheme: Scheme = "metad"
    peers: Annotated[
        str,
        f"NAME[=HOST:PORT,...],... of {', '.join(PEERS)}; `make peers` installs them; with endpoints: a running one",
        "P",
    ] = ""
    made: Annotated[Path | None, "measure nothing: take this report's JSON", "FILE", "--from"] = None
    pids: Annotated[
        str,
        "processes of systems that run already, whose CPU and memory count then; one system needs no NAME",
        "[NAME=]PID,...",
    ] = ""
    report: Annotated[Path | None, "write the report as a page with pictures", "FILE"] = None
    tables: Annotated[Path | None, "rewrite the tables between the marks in this page", "FILE"] = None
    loads: Annotated[str, "steady loads; default: all; -: none", "L"] = ""
    storm: Annotated[bool, "also restore --sessions sessions at once"] = False
    sessions: Annotated[int, "sessions of the storm"] = 100_000
    pairs: Annotated[int, "runs of each load on each side, alternating"] = 3
    seconds: Annotated[float, "length of one run"] = 6.0
    keys: Annotated[int, "keys, and sessions of the steady loads"] = 100_000
    processes: Annotated[int, "load-generating processes, the same for all systems"] = 2
    nodes: Nodes = 3
    groups: Groups = ""
    workers: Workers = 1


class Crash(Options, frozen=True, kw_only=True):
    ABOUT = "kill a server under load, or put a cluster under faults: is every write there, once?"
    server_config: Config = None
    scheme: Scheme = "metad"
    rounds: Annotated[int, "one node: number of kills"] = 20
    writers: Annotated[int, "one node: clients that write, each to its own records"] = 6
    nodes: Annotated[int, "3 or more: a cluster, one fault after the other"] = 1
    faults: Annotated[tuple[str, ...], f"faults of a cluster: {', '.join(FAULTS)}", "FAULTS"] = (
        "kill",
        "pause",
        "partition",
    )
    seconds: Annotated[float, "cluster: duration of the faults"] = 60.0
    groups: Annotated[str, "groups of a cluster, as in data=4,offset=2", "G"] = ""
    seed: Annotated[int | None, "seed of the writes and the moments; default: random"] = None

    def _runs(self) -> str:
        return "faults.cluster" if self.nodes > 1 else "faults.crash"

    def checked(self) -> Crash:
        """With a seed. Raises UsageError."""
        for name in self.faults if self.nodes > 1 else ():
            if name not in FAULTS:
                raise UsageError(f"--faults: there is no fault {name!r}, but {', '.join(FAULTS)}")
        if self.nodes > 1 and (self.nodes < 3 or self.seconds <= 0):
            raise UsageError("--faults needs --nodes 3 at least, and --seconds over 0")
        if self.rounds < 1 or self.writers < 1:
            raise UsageError("--rounds and --writers must be at least 1")
        return msgspec.structs.replace(self, seed=secrets.randbits(32) if self.seed is None else self.seed)


class Drill(Options, frozen=True, kw_only=True):
    ABOUT = "play the operator's drills of docs/OPERATE.md: what do status, logs and clients say in each?"
    RUNS = "drill.command"

    names: Annotated[tuple[str, ...], "drills to play; default: all", None, "NAME"] = ()
    shown: Annotated[bool, "list the drills instead", None, "--list"] = False
    seed: Annotated[int | None, "seed of the clients' writes; default: random"] = None


class Hold(Options, frozen=True, kw_only=True):
    ABOUT = "many sessions: memory, restart time, cost of a write"
    RUNS = "hold"

    server_config: Config = None
    scheme: Scheme = "metad"
    sessions: Annotated[int, "number of sessions to hold, as in 1e7"] = 10_000_000
    updates: Annotated[int, "items written per verb and size"] = 1_000_000
    value_bytes: Annotated[int, "payload of a session"] = 200


class Cost(Options, frozen=True, kw_only=True):
    ABOUT = "what each verb costs the nodes, by batch, stage and role, and by another version"
    RUNS = "cost.command"

    server_config: Config = None
    nodes: Nodes = 3
    groups: Groups = ""
    against: Annotated[
        str, "wheel of another release's server, with that of its SDK beside it, or a revision of git", "WHEEL|REV"
    ] = ""
    only: Annotated[str, "these loads", "NAME[,NAME]"] = ""
    batches: Annotated[str, "these batches", "1000,100,10,joined,alone"] = ""
    pairs: Pairs = 1
    seconds: Annotated[float, "length of a window"] = 3.0
    keys: Annotated[int, "sessions, and keys, of the loads"] = 100_000
    no_stages: Annotated[bool, "not by stage and role"] = False
    no_groups: Annotated[bool, "not with 12 and 48 groups"] = False
    no_one_node: Annotated[bool, "not on one node"] = False

    def checked(self) -> Cost:
        """Raises UsageError."""
        self._at_least_1("pairs", "keys", "nodes")
        self._over_0("seconds")
        return self


class Move(Options, frozen=True, kw_only=True):
    ABOUT = "move slots to a new group while sessions are written: how long does a write wait, is any lost?"
    RUNS = "move"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = ""
    workers: Workers = 1
    sessions: Annotated[int, "number of sessions, as in 1e6"] = 1_000_000
    writers: Annotated[int, "batches in flight, each of its own sessions"] = 4
    batch: Items = 100
    value_bytes: Annotated[int, "payload of a session"] = 200
    rate: Annotated[float, "requests/s of a writer; 0: closed loop"] = 0.0
    seed: Annotated[int, ""] = 1

    def checked(self) -> Move:
        """Raises UsageError."""
        if self.writers < 1 or self.batch < 1 or self.sessions < self.writers * self.batch:
            raise UsageError("--sessions must be at least --writers times --batch, and those at least 1")
        if self.value_bytes < 8:
            raise UsageError("--value-bytes must be at least 8: a payload says which write it is")
        return self


Phase = Literal["steady", "faults", "idle", "slow"]
PHASES: Final[tuple[Phase, ...]] = ("steady", "faults", "idle", "slow")
STRIKES: Final[tuple[str, ...]] = ("kill", "move", "compact")


class Watch(Options, frozen=True, kw_only=True):
    ABOUT = "watches: is every change delivered, once and in order, how soon, and what do watches cost?"
    RUNS = "watch.command"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = ""
    watchers: Annotated[int, "watches"] = 1_000
    fan_out: Annotated[float, "watches that each event goes to, on average"] = 3.0
    rate: Annotated[float, "events/s written"] = 10_000.0
    seconds: Annotated[float, "duration of each phase in which events are judged"] = 30.0
    faults: Annotated[tuple[str, ...], "kill, move, compact; none: no faults", "FAULT,..."] = STRIKES
    only: Annotated[tuple[str, ...] | None, "steady, faults, idle, slow; default: all", "PHASE,..."] = None
    skip: Annotated[tuple[str, ...], "phases to leave out", "PHASE,..."] = ()
    processes: Annotated[int, "client processes, each with watches and a writer"] = 2
    batch: Items = 250
    spread: Annotated[int, "namespaces or tenants of a request's items"] = 10
    records: Annotated[int, "records of a namespace or tenant"] = 64
    value_bytes: ValueBytes = 100
    watches_each: Annotated[int, "watches of one client, over its connections"] = 100
    idle_watchers: Annotated[int, "watches of phase idle"] = 1_000
    behind: Annotated[int, "events that the watch of phase slow is behind"] = 500_000
    pairs: Annotated[int, "pairs of windows of the phases idle and slow"] = 11
    window_s: Annotated[float, "length of such a window"] = 3.0
    seed: Annotated[int | None, "seed of the writes and faults; default: random"] = None

    @property
    def phases(self) -> list[str]:
        """Those to measure, in their order."""
        return [name for name in PHASES if name in (self.only or PHASES) and name not in self.skip]

    def checked(self) -> Watch:
        """With a seed, and faults that can be made. Raises UsageError."""
        for flag, names in (("", self.only or ()), ("--skip: ", self.skip)):
            for name in names:
                if name not in PHASES:
                    raise UsageError(f"{flag}there is no phase {name!r}, but {', '.join(PHASES)}")
        faults = () if self.faults == ("none",) else self.faults
        for name in faults:
            if name not in STRIKES:
                raise UsageError(f"--faults: there is no fault {name!r}, but {', '.join(STRIKES)}")
        if not self.phases:
            raise UsageError("nothing is left to be measured")
        self._over_0("pairs", "window_s", "idle_watchers", "behind", "rate", "seconds")
        self._at_least_1("watchers", "processes", "batch", "spread", "records", "watches_each")
        if not 1 <= self.fan_out <= self.watchers:
            raise UsageError("--fan-out must be 1 at least, and no more than --watchers")
        seed = secrets.randbits(32) if self.seed is None else self.seed
        processes = min(self.processes, self.watchers)
        return msgspec.structs.replace(self, processes=processes, faults=faults, seed=seed)


class Image(Options, frozen=True, kw_only=True):
    ABOUT = "a local image of many records: time, and memory of the nodes"
    RUNS = "image"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = ""
    records: Annotated[int, "key-value records, as in 1e6"] = 1_000_000
    value_bytes: Annotated[int, "size of a value"] = 32

    def checked(self) -> Image:
        """Raises UsageError."""
        self._at_least_1("records", "value_bytes")
        return self


class Sessions(Options, frozen=True, kw_only=True):
    ABOUT = "sessions that begin and end one by one, that are held, and that all end at once"
    RUNS = "sessions.command"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = ""
    workers: Workers = 1
    mode: Annotated[Literal["create-close", "live", "expiry-storm"], ""] = "create-close"
    rates: Annotated[tuple[float, ...], "pairs of calls a second", "R,..."] = (1_000.0, 2_500.0, 5_000.0)
    seconds: Annotated[float, "duration of a rate, or of a window"] = 10.0
    sessions: Annotated[int, "sessions that are held, as in 1e6"] = 1_000_000
    shares: Annotated[tuple[float, ...], "shares of them that end at once", "S,..."] = (0.1, 0.5, 1.0)
    windows: Annotated[int, "of each work of expiry-storm, before the end and while it lasts"] = 3
    pairs: Annotated[int, "of windows, before there are live sessions and with them"] = 11
    processes: Annotated[int, "client processes of create-close"] = 1
    in_flight: Annotated[int, "clients of create-close at a time, at most"] = 512

    def checked(self) -> Sessions:
        """Raises UsageError."""
        self._over_0("seconds", "sessions", "pairs", "windows", "processes")
        if self.in_flight < self.processes:
            raise UsageError("--in-flight must be no less than --processes")
        if not self.rates or min(self.rates) < 0:
            raise UsageError("--rates must not be negative")
        if not self.shares or min(self.shares) <= 0 or max(self.shares) > 1:
            raise UsageError("--shares must be over 0, and 1 at most")
        return self


class Failover(Options, frozen=True, kw_only=True):
    ABOUT = "brokers die: how soon is it known, does each of their sessions get what it is due, once, who feels it?"
    RUNS = "failover.command"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = ""
    workers: Workers = 1
    brokers: Annotated[int, "brokers"] = 50
    sessions: Annotated[int, "sessions of all brokers, as in 1e6"] = 1_000_000
    kill: Annotated[int, "brokers that are killed with SIGKILL, at once"] = 10
    probe: Annotated[bool, "brokers name a port that shows whether they live"] = False
    publishers: Annotated[int, "living brokers that publish wills; 0: all"] = 0
    lease_s: Lease = 10.0
    expiry_s: Annotated[int, "interval after which sessions end"] = 5
    delay_s: Annotated[int, "delay of wills"] = 2
    rate: Annotated[float, "requests/s of each verb of the other work"] = 100.0
    seconds: Annotated[float, "duration of the other work before the deaths"] = 20.0
    limit_s: Annotated[float, "for how long nothing may come of what is due"] = 120.0

    def checked(self) -> Failover:
        """With the number of publishers. Raises UsageError."""
        self._at_least_1("lease_s")
        self._over_0("rate", "seconds", "limit_s")
        if not 0 < self.kill < self.brokers:
            raise UsageError("--kill must be over 0 and less than --brokers: somebody has to publish the wills")
        living = self.brokers - self.kill
        if not 0 <= self.publishers <= living:
            raise UsageError("--publishers must be 0, or no more than live on")
        return msgspec.structs.replace(self, publishers=self.publishers or living)


class LeaderKill(Options, frozen=True, kw_only=True):
    ABOUT = "kill -9 of leaders under a paced load: when do others lead, which operations fail, is a write lost?"
    RUNS = "leader_kill.command"

    endpoint: Refused = None
    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = ""
    rate: Annotated[float, "operations (items) a second, of all processes"] = 10_000.0
    rounds: Annotated[int, "leaders that are killed, one after the other"] = 20
    batch: Annotated[int, "items of a request"] = 10
    processes: Annotated[int, "processes of brokers"] = 2
    clients: Annotated[int, "brokers of each process, each with a client of its own"] = 4
    value_bytes: ValueBytes = 100
    group: Annotated[str, "kill the leader of this group; default: the node that leads most", "NAME"] = ""
    quiet_s: Annotated[float, "seconds before a kill, and after others lead"] = 2.0
    limit_s: Annotated[float, "how long to wait until others lead"] = 30.0
    deadline_s: Annotated[float, "of a call, with the SDK's repetitions"] = 10.0
    seed: Annotated[int, "of the load, and of the choice among nodes"] = 1
    report: Annotated[Path | None, "write a picture of the rounds as one HTML page", "FILE"] = None

    def checked(self) -> LeaderKill:
        """Raises UsageError."""
        if self.endpoint is not None:
            raise UsageError("--endpoint: leader-kill kills only nodes that it has started itself")
        self._at_least_1("rounds", "batch", "processes", "clients")
        self._over_0("rate", "quiet_s", "limit_s", "deadline_s")
        self._want("at least 8: a value has its number", "value_bytes", least=8)
        if self.batch > BATCH_ITEMS_MAX:
            raise UsageError(f"--batch must be at most {BATCH_ITEMS_MAX}")
        return self


class Upgrade(Options, frozen=True, kw_only=True):
    ABOUT = "upgrade nodes of another release one by one, and back, under load: does a call fail, is a write lost?"
    RUNS = "upgrade.command"

    source: Annotated[
        str,
        "wheel of the other release's server, with that of its SDK beside it, or a revision of git",
        "WHEEL|REV",
        "--from",
    ]
    server_config: Config = None
    nodes: Nodes = 3
    groups: Groups = ""
    rate: Annotated[float, "operations (items) a second, of all processes"] = 1_000.0
    batch: Annotated[int, "items of a request"] = 10
    processes: Annotated[int, "processes of brokers"] = 1
    sessions: Annotated[int, "sessions of a storm"] = 5_000
    deadline_s: Annotated[float, "of a call, with the SDK's repetitions"] = 10.0
    seed: Annotated[int, "of the load"] = 1

    def checked(self) -> Upgrade:
        """Raises UsageError."""
        self._at_least_1("batch", "processes", "sessions")
        self._over_0("rate", "deadline_s")
        if self.batch > BATCH_ITEMS_MAX:
            raise UsageError(f"--batch must be at most {BATCH_ITEMS_MAX}")
        return self


class Overload(Options, frozen=True, kw_only=True):
    ABOUT = "more load than the cluster can take, from clients that do not slow down: what breaks, what comes back?"
    RUNS = "overload.command"

    endpoint: Refused = None
    server_config: Config = None
    nodes: Nodes = 3
    groups: Groups = ""
    factor: Annotated[float, "the load, by the capacity that is measured first"] = 3.0
    seconds: Annotated[float, "duration of the overload"] = 60.0
    base: Annotated[float, "the load before and after, by the capacity"] = 0.5
    window_s: Annotated[float, "duration of the load before, and after"] = 10.0
    gap_s: Annotated[float, "from the end of the overload to the window after it"] = 3.0
    batch: Annotated[int, "items of a request"] = 100
    timeout_s: Annotated[float, "after which a naive client gives a request up"] = 1.0
    processes: Annotated[int, "processes of naive clients"] = 2
    connections: Annotated[int, "connections of each process to each node"] = 2
    value_bytes: ValueBytes = 100
    brokers: Annotated[int, "brokers that must not suffer"] = 5
    lease_s: Lease = 3.0
    sessions: Annotated[int, "sessions of the brokers, half of them away"] = 2_000
    step_s: Annotated[float, "duration of each step of the ramp"] = 2.0
    seed: Annotated[int, "of the load"] = 1

    def checked(self) -> Overload:
        """Raises UsageError."""
        if self.endpoint is not None:
            raise UsageError("--endpoint: overload harms only nodes that it has started itself")
        self._over_0("seconds", "window_s", "timeout_s", "step_s")
        self._at_least_1("batch", "processes", "connections", "value_bytes", "brokers", "lease_s")
        if not self.factor > 1:
            raise UsageError("--factor must be over 1: less is no overload")
        if not 0 < self.base < 1:
            raise UsageError("--base must be over 0 and under 1")
        if self.batch > BATCH_ITEMS_MAX:
            raise UsageError(f"--batch must be at most {BATCH_ITEMS_MAX}")
        if not 0 <= self.gap_s <= 10:
            raise UsageError("--gap-s must be 0 to 10: a service that needs longer has not come back")
        if self.sessions < 2 * self.brokers:
            raise UsageError("--sessions must be at least two for each of --brokers")
        return self


class Outage(Options, frozen=True, kw_only=True):
    ABOUT = "three nodes stand still under MQTT brokers with their clients: nothing may end by it"
    RUNS = "outage.command"

    nodes: ClassVar[int] = 3
    server_config: Config = None
    seconds: Annotated[float, "how long nodes stand still"] = 30.0
    who: Annotated[
        Literal["all", "majority", "leader"] | None,
        "only this: all nodes, a majority, or the leader of metadata-0; without it one after the other",
    ] = None
    clients: Annotated[int, "MQTT connections with wills"] = 10_000
    brokers: Annotated[int, "processes of MQTT brokers that share them"] = 2
    publishers: Annotated[int, "clients that publish all the time"] = 20
    lease_s: Lease = 10.0

    def checked(self) -> Outage:
        """Raises UsageError."""
        if not 0 < self.seconds <= 600:
            raise UsageError("--seconds must be from 0 to 600")
        if not 1 <= self.brokers <= 8 or not self.brokers <= self.publishers <= self.clients:
            raise UsageError(
                "--brokers: 1 to 8; --publishers: one for each broker at least, and not more than --clients"
            )
        return self


class Topics(Options, frozen=True, kw_only=True):
    ABOUT = "the metadata of many topics in a declared table: creation, image, changes, an index, the lag of a watch"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Annotated[str, "groups of the started cluster, as in metadata=4; default: one of --kind", "G"] = ""
    topics: Annotated[int, "topics, as in 1e6; with --filters: to match, 2e5 by default"] = 0
    kind: Annotated[Literal["metadata", "data"], "of the groups that keep them"] = "metadata"
    batch: Items = 1_000
    in_flight: Annotated[int, "batches in flight"] = 8
    changes: Annotated[int, "topics changed in batches in a window; a quarter of it in single calls"] = 10_000
    pairs: Annotated[int, "of windows, with all topics and with a thousand"] = 5
    lists: Annotated[int, "owners whose topics are listed"] = 2_000
    rate: Annotated[float, "changes a second while the lag of the watch is measured"] = 200.0
    seconds: Annotated[float, "how long it is measured"] = 10.0
    seed: Annotated[int, "of the changes and the lists"] = 1
    filters: Annotated[int | None, "instead: a broker's trie of so many filters, and paho-mqtt's beside it"] = None

    def _runs(self) -> str:
        return "topics" if self.filters is None else "filters"

    def told(self) -> dict[str, Any]:
        if self.filters is None:
            return {name: value for name, value in super().told().items() if name != "filters"}
        return {"filters": self.filters, "topics": self.topics}

    def checked(self) -> Topics:
        """With the number of topics, and their groups. Raises UsageError."""
        topics = self.topics or (1_000_000 if self.filters is None else 200_000)
        made = msgspec.structs.replace(self, topics=topics, groups=self.groups or f"{self.kind}=1")
        made._at_least_1("topics", "batch", "in_flight", "changes", "pairs", "lists")
        made._over_0("rate", "seconds")
        if self.filters is not None:
            made._at_least_1("filters")
        return made


class Assignment(Options, frozen=True, kw_only=True):
    ABOUT = (
        "brokers and a leader die, and a broker is drained: who leads each partition, how soon? a million partitions"
    )
    RUNS = "assignment.command"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Annotated[str, "groups of the started cluster", "G"] = "metadata=1"
    brokers: Annotated[int, "brokers"] = 50
    partitions: Annotated[int, "partitions, of topics of four"] = 10_000
    kill: Annotated[int, "brokers that are killed with SIGKILL"] = 10
    kill_leader: Annotated[bool, "do not kill the leader of metadata-0 between them", None, "--no-kill-leader"] = True
    moves: Annotated[int, "of the plan that drains a broker: partitions at a time"] = 20
    batch: Annotated[int, "topics, or changes, in a request"] = 100
    in_flight: Annotated[int, "requests in flight that make topics"] = 8
    many: Annotated[int, "partitions whose memory and changes are compared with those of a thousand"] = 1_000_000
    skip_many: Annotated[bool, "leave that out"] = False
    changes: Annotated[int, "in batches in a window; a quarter of it in single calls"] = 10_000
    pairs: Annotated[int, "of windows, with many partitions and with a thousand"] = 5
    sessions: Annotated[int, "sessions that are updated beside metadata verbs"] = 100_000
    seconds: Annotated[float, "duration of the verbs alone, and of the verbs beside the updates"] = 20.0
    limit_s: Annotated[float, "how long deaths or moves may take"] = 120.0

    def checked(self) -> Assignment:
        """Raises UsageError."""
        self._at_least_1("partitions", "moves", "batch", "in_flight", "pairs", "changes")
        self._want("at least 100", "sessions", least=100)
        self._over_0("seconds")
        if self.kill < 1 or self.brokers < self.kill + 5:
            raise UsageError("--kill must be at least 1, and --brokers more by 5: logs have three, one is drained")
        if self.nodes < 3 and self.kill_leader:
            raise UsageError("--nodes must be at least 3: a leader is killed")
        if self.many < 1_000:
            raise UsageError("--many must be at least 1,000")
        return self


class Retained(Options, frozen=True, kw_only=True):
    ABOUT = "filters that match a hundred of many retained messages: latency"
    RUNS = "retained"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = ""
    topics: Annotated[int, "retained messages, as in 1e6"] = 1_000_000
    matches: Annotated[int, "filters of each of the four ways"] = 1_000
    value_bytes: Annotated[int, "size of a payload; at least 8 are written"] = 32


class Auth(Options, frozen=True, kw_only=True):
    ABOUT = "authorization under random roles and requests: leaks, its cost, how soon a right is gone"
    RUNS = "auth"

    server_config: Config = None
    nodes: Nodes = 3
    groups: Groups = "data=3,offset=1"
    requests: Annotated[int, "requests to judge"] = 200_000
    pairs: Annotated[int, "windows of each workload on two clusters at once, of which there are six pairs"] = 7
    seconds: Annotated[float, "length of a window"] = 2.0
    keys: Annotated[int, "sessions, and keys, of the workloads"] = 20_000
    changes: Annotated[int, "rights that are taken away while they are in use"] = 100
    seed: Annotated[int | None, "of roles and requests; default: random"] = None

    @property
    def scheme(self) -> str:
        """Certificates say who asks."""
        return "metads"

    def checked(self) -> Auth:
        """With a seed. Raises UsageError."""
        self._at_least_1("requests", "pairs", "keys", "changes")
        self._over_0("seconds")
        return msgspec.structs.replace(self, seed=secrets.randbits(32) if self.seed is None else self.seed)


class Lamps(Options, frozen=True, kw_only=True):
    ABOUT = "metrics and alerts: what they cost, and whether each alert fires and ends"
    RUNS = "lamps.command"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = ""
    sessions: Annotated[int, "sessions with which metrics are asked for, beside a thousand"] = 1_000_000
    pairs: Annotated[int, "windows of each workload with nodes that are scraped, and with others"] = 7
    seconds: Annotated[float, "length of a window"] = 4.0
    keys: Annotated[int, "sessions, and keys, of the workloads"] = 20_000
    no_alerts: Annotated[bool, "play no alerts"] = False
    only: Annotated[str, "play these alerts and do nothing else", "NAME[,NAME]"] = ""

    def checked(self) -> Lamps:
        """Raises UsageError."""
        self._at_least_1("pairs", "keys")
        self._over_0("seconds")
        if self.sessions < 1_000:
            raise UsageError("--sessions must be at least 1,000")
        if self.only and self.no_alerts:
            raise UsageError("--only and --no-alerts leave nothing to do")
        return self


class Backup(Options, frozen=True, kw_only=True):
    ABOUT = "a backup under load, the next one, and a restore into another shape: what they cost, and is all there?"
    RUNS = "backup"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = "metadata=1,offset=1,data=2"
    sessions: Annotated[int, "sessions in the backup, as in 1e7"] = 1_000_000
    value_bytes: Annotated[int, "payload of a session"] = 200
    keys: Annotated[int, "sessions that are written while it is taken"] = 20_000
    windows: Annotated[int, "windows of load before it and behind it, and at least while it is taken"] = 5
    seconds: Annotated[float, "length of a window"] = 4.0
    rate_mib: Annotated[int, "MiB a second that are copied at most"] = 32
    restored_nodes: Annotated[int, "nodes of the cluster that it is restored into"] = 5
    restored_groups: Annotated[str, "groups of that"] = "metadata=1,offset=2,data=6"

    def checked(self) -> Backup:
        """Raises UsageError."""
        self._at_least_1("sessions", "keys", "windows", "restored_nodes")
        self._over_0("seconds")
        return self


class TenantMove(Options, frozen=True, kw_only=True):
    ABOUT = "a tenant moves to another cluster beside its writer: what is lost, and for how long does nobody serve it?"
    RUNS = "drill.tenant_move"

    server_config: Config = None
    scheme: Scheme = "metad"
    nodes: Nodes = 3
    groups: Groups = "metadata=1,offset=1,data=2"
    to_nodes: Annotated[int, "nodes of the cluster to which it moves"] = 3
    to_groups: Annotated[str, "groups of that"] = "metadata=1,offset=2,data=3"
    rows: Annotated[int, "rows that it has, as in 1e6"] = 1_000_000
    value_bytes: Annotated[int, "value of a key, payload of a session or message"] = 100
    rate_mib: Annotated[int, "MiB a second that are copied at most; 0: no bound"] = 64

    def checked(self) -> TenantMove:
        """Raises UsageError."""
        self._at_least_1("to_nodes")
        self._want("at least 1,000", "rows", least=1_000)
        return self


class Storm(Options, frozen=True, kw_only=True):
    ABOUT = "a reconnect storm: every client of many brokers loses its connection, and comes back"
    RUNS = "storm.command"

    endpoint: Annotated[str, "a running cluster instead of a started one", "[SCHEME://]HOST:PORT[,...]"] = ""
    certs: Certs = ""
    name: As = ""
    token_file: TokenFile = ""
    server_config: Config = None
    nodes: Nodes = 3
    groups: Groups = ""
    workers: Workers = 1
    transport: Annotated[Literal["tcp", "tls", "quic"], "to the started cluster"] = "tcp"
    sessions: Annotated[int, "clients, each with a session"] = 1_000_000
    brokers: Annotated[int, "brokers, each with a client of the SDK"] = 20
    processes: Annotated[int, "processes of brokers"] = 2
    population: Annotated[Path | None, "kinds of clients, as TOML", "FILE"] = None
    trigger: Annotated[str, "all, rolling, region, leader-kill or expiry", "T"] = "all"
    policy: Annotated[
        str,
        "when a client that was turned away comes back: return-slot (when the server says), population (each kind "
        "by its own backoff), none, exponential, equal-jitter, full-jitter, decorrelated-jitter, proportional-jitter",
        "P",
    ] = "full-jitter"
    sdk_retries: Annotated[
        Literal["auto", "on", "off"],
        "whether the brokers' SDK repeats what a server has turned away; auto: with the policy return-slot only",
    ] = "auto"
    ignore_slots: Annotated[float, "share of the brokers that ignore return slots"] = 0.0
    region: Annotated[str, "of the trigger region; the first of the population by default"] = ""
    expiring: Annotated[float, "share of the sessions that the trigger expiry ends"] = 0.5
    rolling_s: Annotated[float, "in which all brokers restart, with rolling"] = 10.0
    kill_at: Annotated[float, "share that is back when the leader is killed"] = 0.25
    seconds_limit: Annotated[float, "who is not back by then is counted as away"] = 60.0
    lease_s: Lease = 10.0
    linger_ms: Annotated[float, "a broker collects clients for a call so long"] = 20.0
    background: Annotated[float, "items/s of other work, an open loop"] = 1_000.0
    steady_s: Annotated[float, "how long it is measured, before and after"] = 5.0
    seed: Annotated[int, "repeats population, places and schedule"] = 1
    trace: Annotated[Path | None, "write every attempt as Parquet (extra trace)", "DIR"] = None
    replay: Annotated[Path | None, "clients begin as `metad-spark schedule` has written (extra trace)", "DIR"] = None
    report: Annotated[Path | None, "write one HTML page with pictures", "FILE"] = None

    @property
    def scheme(self) -> str:
        """Of the started cluster."""
        return {"tcp": "metad", "tls": "metads", "quic": "metadq"}[self.transport]


class CalibrationGrid(Runs, frozen=True, kw_only=True):
    ABOUT = "a fixed grid of loads and storms, from which metad-spark calibrates and validates its predictions"
    RUNS = "calibration.command"

    out: Annotated[Path, "a file for each run; what is there is not run again", "DIR"]
    scale: Annotated[float, "smaller runs, to try the grid, as in 0.1"] = 1.0
    only: Annotated[tuple[str, ...], "some of its runs", "NAME[,NAME]"] = ()


class Demo(Options, frozen=True, kw_only=True):
    ABOUT = "a reconnect storm on three nodes in which the leader dies"
    sessions: Annotated[int, "sessions whose clients reconnect at once"] = 100_000
    brokers: Annotated[int, "brokers"] = 8
    report: Annotated[Path, "one HTML page with pictures of it", "FILE"] = Path("storm.html")

    def run(self) -> int:
        """A demo on a busy laptop is no test of leases."""
        return Storm(
            json=self.json,
            sessions=self.sessions,
            brokers=self.brokers,
            report=self.report,
            trigger="leader-kill",
            policy="return-slot",
            lease_s=30.0,
            seconds_limit=240.0,
            background=500.0,
            steady_s=2.0,
        ).run()


class Mqtt(Options, frozen=True, kw_only=True):
    ABOUT = "real MQTT clients on two brokers that share their sessions, while a broker and a leader are killed"
    RUNS = "mqtt.command"

    clients: Annotated[int, "clients of the broker that is killed"] = 20
    messages: Annotated[int, "messages that are published meanwhile"] = 1_000


class LogBroker(Options, frozen=True, kw_only=True):
    ABOUT = "a replicated log whose partitions metad assigns, under faults: is an acknowledged record lost?"
    RUNS = "log_broker.command"

    server_config: Config = None
    nodes: Nodes = 3
    brokers: Annotated[int, "brokers of the log"] = 5
    partitions: Annotated[int, "partitions of the topic, each with three replicas"] = 12
    consumers: Annotated[int, "members of the consumer group"] = 2
    only: Annotated[tuple[str, ...] | None, "faults; default: all", "NAME,..."] = None
    seconds: Annotated[float, "for how long there are faults"] = 120.0
    lease_s: Lease = 3.0
    seed: Annotated[int | None, "repeats the plan of a run; default: a new one"] = None

    def checked(self) -> LogBroker:
        """With a seed. Raises UsageError."""
        self._at_least_1("partitions", "consumers", "lease_s")
        self._over_0("seconds")
        if self.brokers < 4:
            raise UsageError("--brokers must be at least 4: three have a partition, and one is drained")
        return msgspec.structs.replace(self, seed=secrets.randbits(32) if self.seed is None else self.seed)


class Wan(Options, frozen=True, kw_only=True):
    ABOUT = "TCP and QUIC over emulated long paths: which wins where, and whether metad+auto:// chooses it"
    server_config: Config = None
    rtt_ms: Annotated[tuple[float, ...], "round-trip times", "MS,..."] = (1.0, 30.0, 100.0, 200.0)
    loss: Annotated[tuple[float, ...], "loss in each direction", "PCT,..."] = (0.0, 0.1, 1.0, 3.0)
    verbs: Annotated[tuple[str, ...], "put, batch", "VERB,..."] = ("put", "batch")
    report: Annotated[Path | None, "write a heat map as one HTML page", "FILE"] = None
    seconds: Annotated[float, "measured per transport and cell; twice that over long lossy paths"] = 3.0
    batch: Annotated[int, "items in a batch"] = 100
    puts_in_flight: Annotated[int, "requests in flight of verb put, one item each"] = 64
    batches_in_flight: Annotated[int, "requests in flight of verb batch"] = 16
    value_bytes: Annotated[int, "size of a value"] = 200
    controls: Annotated[tuple[str, ...], "congestion controls of TCP, beside the kernel's default", "NAME,..."] = (
        "bbr",
    )
    auto: Annotated[bool, "do not measure what metad+auto:// chooses", None, "--no-auto"] = True
    jitter_ms: Annotated[float, "jitter of the path, up and down"] = 0.0
    reorder: Annotated[float, "share of packets that are overtaken", "PCT"] = 0.0
    mbit_per_s: Annotated[float, "rate of the path's bottleneck; 0: none"] = 0.0
    queue_kib: Annotated[int, "queue of the bottleneck"] = 256
    seed: Annotated[int, "seed of keys, values and the path's losses"] = 1
    regions: Annotated[
        tuple[float, ...] | None, "instead: a cluster across regions with these RTTs in ms between them", "AB,AC,BC"
    ] = None
    reconnect: Annotated[bool, "instead: round trips until a reconnecting client is served"] = False
    cuts_s: Annotated[float, "with --regions: duration of the cuts"] = 40.0

    def _runs(self) -> str:
        return "wan.reconnect" if self.reconnect else "wan.command" if self.regions is None else "wan.regions"

    @property
    def one_loss(self) -> float:
        """For the measurements that take one value."""
        return self.loss[0] if len(self.loss) == 1 else 0.0


class Near(Options, frozen=True, kw_only=True):
    ABOUT = "reads that the nearest replica answers, far from the leader: their times, and how old they are"
    RUNS = "wan.near"

    rtt_ms: Annotated[float, "round-trip time between the places of the nodes"] = 100.0
    freshness_ms: Annotated[int, "how old the state may be that answers a read"] = 5_000
    seconds: Annotated[float, "for how long the times of reads are measured"] = 20.0
    trouble: Annotated[bool, "do not cut off and stop nodes afterwards", None, "--no-trouble"] = True
    seed: Annotated[int, "seed of the path"] = 1

    def checked(self) -> Near:
        """Raises UsageError."""
        self._at_least_1("freshness_ms")
        self._over_0("rtt_ms", "seconds")
        return self


class Attack(Options, frozen=True, kw_only=True):
    ABOUT = "floods, garbage, abuse and wrong certificates, while a good client is measured"
    RUNS = "attack.command"

    only: Annotated[tuple[str, ...] | None, "attacks, strangers or insiders; default: all", "NAME,..."] = None
    windows: Annotated[int, "runs of each attack; their median counts"] = 3
    seconds: Annotated[float, "duration of each run"] = 2.0
    quick: Annotated[bool, "run each attack once for a second, and as any process, to see whether it is refused"] = (
        False
    )
    attacker_cpu: Annotated[int | None, "core of the attacker; default: the first", "N"] = None


class Quic(Options, frozen=True, kw_only=True):
    ABOUT = "metad's QUIC transport against aioquic's own serve"
    RUNS = "peers.quic"

    pairs: Pairs = 3
    seconds: Annotated[float, "length of a run of puts"] = 3.0
    megabytes: Annotated[int, "size of a bulk transfer"] = 48


_ALL = (
    *(
        Load,
        Grpc,
        Compare,
        Crash,
        Drill,
        Hold,
        Cost,
        Move,
        Watch,
        Image,
        Sessions,
        Failover,
        LeaderKill,
        Upgrade,
        Overload,
    ),
    *(
        Overload,
        Outage,
        Topics,
        Assignment,
        Retained,
        Auth,
        Lamps,
        Backup,
        TenantMove,
        Storm,
        CalibrationGrid,
        Demo,
        Mqtt,
        LogBroker,
        Wan,
    ),
    *(Near, Attack, Quic),
)
COMMANDS: Final[dict[str, type[Command]]] = {
    re.sub("(?<=[a-z])(?=[A-Z])", "-", one.__name__).lower(): one for one in _ALL
}
"""By the word of the command line, in the order of the help."""
