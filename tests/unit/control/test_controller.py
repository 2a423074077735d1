"""What the controller decides and what it refuses, on a host that is nothing but a map and some peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from metad.config import ClusterConfig, Config, load_config
from metad.control import host as control_host
from metad.control.controller import RECONCILE_S, TEND_S, WAITING_MAX, Controller
from metad.control.host import Done
from metad.control.map.decisions import SettledSlots, founders
from metad.control.map.presence import Presence
from metad.errors import ServerError
from metad.node.disk.stores import Recovery, StoreIdentity, Stores
from metad.node.replicas.groups import Groups
from metad.raft.messages import Configuration
from metad.raft.roles.membership import ChangeRefusedError
from metad.state.cluster.features import KnownFeatures
from metad.state.cluster.quotas import KnownQuotas
from metad.storage.keys import group_prefix
from metad.storage.log import LogStore
from metad.storage.memory import MemoryEngine
from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire.cluster import (
    GROUP_KINDS,
    METADATA,
    SLOTS,
    ClusterMap,
    GroupId,
    GroupRecord,
    NodeRecord,
    SlotMove,
    pack_slots,
    slot_bits,
    unpack_slots,
)
from metad_wire.errors import (
    ConflictError,
    InvalidRequestError,
    MetadError,
    NoRoomError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
)
from metad_wire.methods import (
    CLUSTER_ADD_GROUP,
    CLUSTER_JOIN,
    CLUSTER_LEAVE,
    CLUSTER_MAP,
    CLUSTER_MOVED,
    CLUSTER_REBALANCE,
    CLUSTER_REMOVE_GROUP,
    CLUSTER_RETURNS,
    CLUSTER_TRANSFER,
    GROUP_COMMAND,
    STATUS,
    encode,
)
from metad_wire.tables.feature import FEATURES, LEADER_REGIONS, REMOVED_GROUPS, FeatureRecord

NODES = ["n1", "n2", "n3"]
NOBODY = Configuration(())
LEVEL: dict[str, Any] = {"behind_s": lambda _: 0.0, "silent_s": lambda _: 0.0}
"""Of a replica that has heard everything."""


def cluster(nodes: list[str] = NODES, **fields: Any) -> ClusterMap:
    """A formed cluster with one group of each kind on all of its nodes."""
    groups = [GroupRecord(kind, 0, nodes, nodes, preferred=nodes[0]) for kind in ("metadata", "offset", "data")]
    slots = {kind: pack_slots([0] * SLOTS) for kind in ("metadata", "offset", "data")}
    records = [
        NodeRecord(node, f"{node}:1", f"{node}:2", store_id=f"store of {node}", features=sorted(FEATURES))
        for node in nodes
    ]
    return ClusterMap(fields.pop("version", 7), records, groups, slots, **fields)


class Host:
    """Stores the map at once, or when :attr:`held` is called; peers answer :attr:`statuses`, or nothing."""

    def __init__(self, known: ClusterMap | None) -> None:
        self.map = known
        self.drivers: dict[GroupId, Any] = {
            METADATA: SimpleNamespace(
                group=SimpleNamespace(ready=True, leader="n1", name="metadata-0", **LEVEL),
                doubted=(),
                no_room=lambda: self.no_room,
            )
        }
        self.no_room = ""
        self.connected = {"n2", "n3"}
        self.statuses: dict[str, list[m.GroupStatus] | MetadError] = {}
        self.hold = False
        self.held: list[Callable[[], None]] = []
        self.answer: m.WriteReply | MetadError = m.WriteReply([], [])
        self.closed: list[GroupId] = []
        self.switched: list[m.Items[FeatureRecord]] = []
        self.left: list[int] = []
        self.failures: list[ServerError] = []
        self.busy: c.ReturnReport | None = None
        self.grants: list[tuple[c.ReturnGrant, float]] = []
        self.asked_for_returns: list[str] = []
        self.ordered: list[tuple[str, str, str]] = []
        """Node, group, step."""
        self.before_sweep: Callable[[], None] = lambda: None
        self.swept: c.GroupReply | MetadError = c.GroupReply([], [])
        self.returns: c.ReturnGrant | MetadError = NotLeaderError()

    def crowded(self) -> bool:
        return False

    def store(self, order: c.StoreMap, done: Done) -> None:
        def store() -> None:
            if isinstance(self.answer, MetadError):
                done(self.answer)
                return
            if not self.answer.errors:
                version = 0 if self.map is None else self.map.version
                assert (order.expected, order.map.version) == (version, version + 1)
                self.map = order.map
            done(encode(self.answer))

        self.held.append(store) if self.hold else store()

    def report(self, now_s: float) -> c.ReturnReport | None:
        return self.busy

    def granted(self, grant: c.ReturnGrant, asked_s: float) -> None:
        self.grants.append((grant, asked_s))

    def connect(self, *nodes: str) -> None:
        """These nodes, and no others, are connected from now on."""
        self.connected.clear()
        self.connected.update(nodes)

    def status(self) -> m.StatusReply:
        return status_of(self.statuses.get("n1", []))

    def call_peer(self, node: str, code: int, payload: bytes, done: Done) -> None:
        if code == CLUSTER_MAP.code:
            done(encode(c.MapReply(0, None, {})))  # it has no newer one
            return
        if code == CLUSTER_RETURNS.code:
            self.asked_for_returns.append(node)
            done(self.returns if isinstance(self.returns, MetadError) else encode(self.returns))
            return
        if code == GROUP_COMMAND.code:
            self.before_sweep()
            request = GROUP_COMMAND.decode_request(payload)
            self.ordered.append((node, request.group, request.body.step))
            done(self.swept if isinstance(self.swept, MetadError) else encode(self.swept))
            return
        assert code == STATUS.code
        said = self.statuses.get(node, [])
        done(said if isinstance(said, MetadError) else encode(status_of(said)))

    def close(self, group: GroupId) -> None:
        self.closed.append(group)

    def stop(self, error: BaseException) -> None:
        raise error


def status_of(groups: Any) -> m.StatusReply:
    return m.StatusReply("", "c1", "", 0, 0, 0, 0, True, 3, 0, 0, 0, 0, groups)


def leads(kind: str, voters: list[str], learners: tuple[str, ...] = (), *, configured: int = 5) -> m.GroupStatus:
    """What the leader of a group says of it."""
    return m.GroupStatus(f"{kind}-0", kind, 0, 9, 1, 9, 0, "leader", "", 1, 9, voters, list(learners), configured)


class Rig:
    def __init__(self, known: ClusterMap | None = None, *, empty: bool = False, config: Config | None = None) -> None:
        self.host = Host(None if empty else known or cluster())
        config = config or Config(node_id="n1")
        self.presence = Presence(config, "store of n1")
        self.features = KnownFeatures()
        mover: Any = SimpleNamespace(follow=lambda known: None)
        brokers: Any = SimpleNamespace(follow=lambda known: None)
        self.now_s = 0.0
        clock: Any = SimpleNamespace(now=lambda: self.now_s)
        host = self.host
        identity = StoreIdentity(4, "store of n1", config.node_id, "")
        stores = Stores(LogStore(MemoryEngine()), MemoryEngine(), identity, rebuild=False)
        self.controller = Controller(
            config,
            self.presence,
            stores,
            clock,
            control_host.Host(
                host,
                host.connected,
                host.status,
                host.store,
                lambda body, _: host.switched.append(body),
                self.features,
                host.call_peer,
                host.close,
                host.left.append,
                host.failures.append,
                host.stop,
                host,
                KnownQuotas(),
            ),
            mover,
            brokers,
        )
        self.answers: list[Any] = []

    @property
    def map(self) -> ClusterMap:
        assert self.host.map is not None
        return self.host.map

    def ask(self, method: Any, body: Any) -> c.Done:
        """Raises what it is refused with."""
        answers: list[Any] = []
        self.controller.handle(body, answers.append, 0.0)
        (answer,) = answers
        if isinstance(answer, MetadError):
            raise answer
        done: c.Done = method.decode_reply(answer)
        return done

    def tend(self) -> None:
        """Reconcile when it is time to look after the cluster as a whole."""
        self.now_s += TEND_S
        self.controller.reconcile()

    def group(self, kind: str, ordinal: int = 0) -> GroupRecord:
        found = self.map.group(GroupId(kind, ordinal))
        assert found is not None
        return found


def node(name: str, **fields: Any) -> NodeRecord:
    said = {"store_id": f"store of {name}", "features": sorted(FEATURES), **fields}
    return NodeRecord(name, f"{name}:1", f"{name}:2", **said)


# --- who may decide ------------------------------------------------------------------------------------------


def test_only_the_leader_of_the_metadata_decides_and_says_who_does() -> None:
    rig = Rig()
    rig.host.drivers[METADATA].group.ready = False
    rig.host.drivers[METADATA].group.leader = "n2"
    with pytest.raises(NotLeaderError) as caught:
        rig.ask(CLUSTER_REBALANCE, c.Rebalance())
    assert caught.value.leader == "n2"


def test_nothing_is_done_with_a_map_of_before_a_recovery() -> None:
    """No slots move and nothing is granted before the map says what was decided about slots."""
    moving = SlotMove(70_000, "data", 0, 1, slot_bits([1]))
    rig, followed = Rig(cluster(cluster_id="c", moves=[moving])), list[ClusterMap]()
    idle(rig)
    rig.controller._migrations = cast("Any", SimpleNamespace(follow=followed.append))
    stores = cast("Stores", rig.controller._directory)
    settled = SettledSlots(8, {"data": pack_slots([3] * SLOTS)}, [], [])
    stores.identity = msgspec.structs.replace(
        stores.identity, cluster_id="c~1-0123456789abcdef", recovery=Recovery(0, [], ["n3"], settled=settled)
    )
    with pytest.raises(NotLeaderError, match="the cluster was recovered, and its map does not say so yet"):
        rig.ask(CLUSTER_REBALANCE, c.Rebalance())
    rig.tend()
    assert not followed
    assert [one.node_id for one in rig.map.nodes] == ["n1", "n2"]
    assert (rig.map.cluster_id, rig.map.moves) == ("c~1-0123456789abcdef", [])
    assert unpack_slots(rig.map.slots["data"]) == [3] * SLOTS
    assert unpack_slots(rig.map.slots["offset"]) == [0] * SLOTS
    rig.tend()
    assert [one.version for one in followed] == [8]


def test_nothing_is_decided_before_there_is_a_map() -> None:
    with pytest.raises(NotLeaderError) as caught:
        Rig(empty=True).ask(CLUSTER_REBALANCE, c.Rebalance())
    assert caught.value.retry_after_ms


def test_one_change_at_a_time_and_the_next_may_come_when_it_is_stored() -> None:
    rig = Rig()
    rig.host.hold = True
    first: list[Any] = []
    rig.controller.handle(c.AddGroup("data"), first.append, 0.0)
    assert not first
    second: list[Any] = []
    rig.controller.handle(c.AddGroup("data"), second.append, 0.0)
    assert (len(rig.host.held), second) == (1, [])
    rig.host.held.pop()()
    assert CLUSTER_ADD_GROUP.decode_reply(first[0]).version == 8
    rig.host.held.pop()()
    assert CLUSTER_ADD_GROUP.decode_reply(second[0]).version == 9
    rig.host.hold = False
    assert rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data")).version == 10


@pytest.mark.parametrize(
    "answer",
    [OverloadedError("busy"), m.WriteReply([], [m.ItemError(0, ConflictError.code, "the map has version 9")])],
)
def test_a_map_that_could_not_be_stored_is_no_success(answer: Any) -> None:
    rig = Rig()
    rig.host.answer = answer
    with pytest.raises(OverloadedError if isinstance(answer, MetadError) else ConflictError):
        rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))
    rig.host.answer = m.WriteReply([], [])
    assert rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data")).version == 8


# --- joining and leaving -------------------------------------------------------------------------------------


def test_a_node_that_joins_follows_the_metadata_and_gets_nothing_else_yet() -> None:
    rig = Rig()
    rig.ask(CLUSTER_JOIN, c.Join(node("n4")))
    assert [one.node_id for one in rig.map.nodes] == ["n1", "n2", "n3", "n4"]
    assert rig.group("metadata").replicas == ["n1", "n2", "n3", "n4"]
    assert rig.group("data").replicas == NODES


def test_a_node_that_says_again_who_it_is_changes_nothing_and_one_that_moved_changes_its_address() -> None:
    rig = Rig()
    assert rig.ask(CLUSTER_JOIN, c.Join(node("n2"))).version == 7
    moved = msgspec.structs.replace(node("n2"), endpoint="elsewhere:1")
    assert rig.ask(CLUSTER_JOIN, c.Join(moved)).version == 8
    assert rig.map.nodes[1] == moved


def test_a_node_with_another_data_directory_is_refused() -> None:
    with pytest.raises(ConflictError, match="its own data directory"):
        Rig().ask(CLUSTER_JOIN, c.Join(node("n2", store_id="new")))


def test_a_node_that_was_let_go_and_says_where_it_is_is_not_taken_in_again() -> None:
    rig = Rig()
    with pytest.raises(NotFoundError, match="n4 was a member in map 3 and has left since"):
        rig.ask(CLUSTER_JOIN, c.Join(node("n4"), member_at=3))
    rig.ask(CLUSTER_JOIN, c.Join(node("n4")))
    assert rig.ask(CLUSTER_JOIN, c.Join(node("n4"), member_at=3)).text == "already known"


def test_a_node_cannot_stop_leaving_by_joining_again() -> None:
    rig = Rig()
    rig.ask(CLUSTER_LEAVE, c.Leave("n2", fewer=True))
    rig.ask(CLUSTER_JOIN, c.Join(msgspec.structs.replace(node("n2"), endpoint="elsewhere:1")))
    assert rig.map.nodes[1].leaving


def test_replicas_of_a_node_that_leaves_go_to_those_that_stay() -> None:
    rig = Rig()
    rig.ask(CLUSTER_JOIN, c.Join(node("n4")))
    rig.ask(CLUSTER_LEAVE, c.Leave("n1", fewer=True))
    for kind in ("offset", "data"):
        assert rig.group(kind).replicas == ["n2", "n3", "n4"]
        assert rig.group(kind).preferred != "n1"
    # It follows the map to the end, without a vote.
    assert (rig.group("metadata").replicas, rig.group("metadata").learners) == (["n2", "n3", "n4"], ["n1"])


def test_who_may_not_leave() -> None:
    with pytest.raises(NotFoundError):
        Rig().ask(CLUSTER_LEAVE, c.Leave("n9"))
    with pytest.raises(InvalidRequestError, match="last node"):
        Rig(cluster(["n1"])).ask(CLUSTER_LEAVE, c.Leave("n1"))
    rig = Rig(cluster(["n1", "n2"]))
    rig.ask(CLUSTER_LEAVE, c.Leave("n1", fewer=True))
    with pytest.raises(InvalidRequestError, match="last node"):
        rig.ask(CLUSTER_LEAVE, c.Leave("n2", fewer=True))


@pytest.mark.parametrize(
    ("reports", "needed"),
    [
        ({}, "data-0, metadata-0, offset-0"),
        ({"n2": [leads("data", ["n1", "n2"])], "n1": [leads("offset", ["n1", "n2", "n3"])]}, "data-0"),
        ({"n2": [leads("data", ["n2", "n3"], ("n1",))]}, "data-0"),
        ({"n2": [leads("data", ["n2", "n3"], configured=10)]}, "data-0"),  # not committed yet
        ({"n2": OverloadedError("busy"), "n3": [leads("offset", ["n2"])]}, "data-0"),
    ],
)
def test_a_node_is_not_forgotten_while_a_group_may_need_it(reports: Any, needed: str) -> None:
    rig = Rig()
    rig.ask(CLUSTER_LEAVE, c.Leave("n1", fewer=True))
    rig.host.statuses = reports
    with pytest.raises(ConflictError, match="may still be needed for") as caught:
        rig.ask(CLUSTER_LEAVE, c.Leave("n1", fewer=True))
    assert set(needed.split(", ")) <= set(str(caught.value).split("needed for ")[1].split(";")[0].split(", "))
    assert "n1" in [one.node_id for one in rig.map.nodes]


def test_a_node_that_nobody_counts_on_is_forgotten() -> None:
    rig = Rig()
    rig.ask(CLUSTER_LEAVE, c.Leave("n1", fewer=True))
    rest = ["n2", "n3"]
    rig.host.statuses = {
        "n1": [leads("offset", rest)],
        "n2": [leads("metadata", rest, ("n1",)), leads("data", rest)],
    }
    rig.ask(CLUSTER_LEAVE, c.Leave("n1", fewer=True))
    assert [one.node_id for one in rig.map.nodes] == rest
    assert all("n1" not in (*g.replicas, *g.learners, *g.initial) for g in rig.map.groups)


def test_the_cluster_itself_forgets_a_node_that_nobody_counts_on() -> None:
    rig = Rig(cluster(replicas=3))
    idle(rig)
    rig.ask(CLUSTER_LEAVE, c.Leave("n1", fewer=True))
    rest = ["n2", "n3"]
    rig.host.statuses = {"n2": [leads("metadata", rest, ("n1",)), leads("data", rest)]}
    rig.tend()
    assert "n1" in [one.node_id for one in rig.map.nodes], "offset-0 may need it"
    rig.host.statuses["n3"] = [leads("offset", rest)]
    rig.tend()
    assert [one.node_id for one in rig.map.nodes] == rest


def test_the_cluster_itself_adds_replicas_where_there_are_too_few() -> None:
    known = cluster(["n1", "n2", "n3", "n4"], replicas=3)
    groups = [msgspec.structs.replace(g, replicas=["n1", "n2"]) if g.kind == "data" else g for g in known.groups]
    rig = Rig(msgspec.structs.replace(known, groups=groups))
    idle(rig)
    rig.tend()
    assert rig.group("data").replicas == ["n1", "n2"], "nobody says that it leads the group"
    rig.host.statuses = {"n2": [leads("data", ["n1", "n2"])]}
    rig.tend()
    assert rig.group("data").replicas == ["n1", "n2", "n3"], "n4 is not connected"
    version = rig.map.version
    rig.tend()
    assert rig.map.version == version


def test_rebalancing_says_which_replicas_change_and_notes_how_many_are_wanted() -> None:
    known = cluster(["n1", "n2", "n3", "n4"], replicas=3)
    on = {"metadata": known.groups[0].replicas, "offset": ["n1", "n2", "n3"], "data": ["n1", "n2"]}
    groups = [msgspec.structs.replace(g, replicas=on[g.kind]) for g in known.groups]
    rig = Rig(msgspec.structs.replace(known, groups=groups))
    rig.host.connect("n2", "n3", "n4")
    done = rig.ask(CLUSTER_REBALANCE, c.Rebalance())
    assert done.text == "data-0: n4 is added; 0 slots move"
    rig.ask(CLUSTER_REBALANCE, c.Rebalance(1))
    assert (rig.map.replicas, len(rig.group("data").replicas)) == (1, 1)
    with pytest.raises(InvalidRequestError, match="99 replicas"):
        rig.ask(CLUSTER_REBALANCE, c.Rebalance(99))


def test_a_node_that_has_left_ends() -> None:
    rig = Rig(cluster(["n1", "n2"], version=7))
    idle(rig)
    rig.controller.reconcile()
    rig.host.drivers[METADATA].group.ready = False
    rig.host.map = cluster(["n2"], version=9)
    rig.controller.reconcile()
    assert rig.host.left == [9]


def test_a_cluster_of_an_older_version_notes_how_many_replicas_it_wants() -> None:
    rig = Rig(cluster(), config=load_config(None, {"node_id": "n1", "data_dir": ".", "cluster": {"replicas": 2}}))
    idle(rig)
    rig.tend()
    assert (rig.map.replicas, rig.map.version) == (2, 8)
    rig.tend()
    assert rig.map.version == 8


# --- regions -------------------------------------------------------------------------------------------------

WHERE = {"a1": "eu", "a2": "eu", "b1": "us", "b2": "us", "c1": "ap", "c2": "ap"}


def formed(regions: dict[str, str] = WHERE, **groups: int) -> Rig:
    """A cluster as its founders form it."""
    config = load_config(
        None,
        {
            "node_id": "a1",
            "storage": {"engine": "memory"},
            "listen": "a1:2",
            "cluster": {"seeds": {node: f"{node}:1" for node in WHERE}, "seed_regions": regions},
            "groups": {"offset": 2, "data": 4, **groups},
        },
    )
    rig = Rig(empty=True, config=config)
    rig.host.connect(*set(WHERE) - {"a1"})

    idle(rig, founders(config))
    rig.controller.reconcile()
    return rig


def idle(rig: Rig, configuration: Configuration = NOBODY) -> None:
    """Have the node lead metadata-0, whose replicas stay as they are."""

    def refuse(member: str) -> None:
        raise ChangeRefusedError(f"{member}: not now")

    rig.host.drivers[METADATA].group = SimpleNamespace(
        ready=True,
        leader=rig.presence.record.node_id,
        name="metadata-0",
        **LEVEL,
        configuration=configuration,
        lag=lambda peer: None,
        log=SimpleNamespace(last_index=9),
        add_learner=refuse,
        promote=refuse,
        remove=refuse,
    )


def regions_of(rig: Rig) -> set[tuple[str, ...]]:
    """In which regions the groups but metadata-0 are."""
    where = {one.node_id: one.region for one in rig.map.nodes}
    groups = [group for group in rig.map.groups if group.kind != "metadata"]
    return {tuple(sorted(where[each] for each in group.replicas)) for group in groups}


EVERYWHERE = {("ap", "eu", "us")}


def test_the_first_groups_are_in_every_region_as_are_the_voters_of_the_metadata() -> None:
    rig = formed(data=12)
    assert {one.node_id: one.region for one in rig.map.nodes} == WHERE
    assert regions_of(rig) == EVERYWHERE
    voters = rig.group("metadata").replicas
    assert len(voters) == 5
    assert voters == list(rig.host.drivers[METADATA].group.configuration.voters)
    leaders = Counter(WHERE[group.preferred] for group in rig.map.groups if group.kind == "data")
    assert leaders == {"eu": 4, "us": 4, "ap": 4}


def test_groups_that_are_added_and_those_of_a_node_that_leaves_are_in_every_region() -> None:
    rig = formed()
    for _ in range(3):
        rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))
    for name in ("a2", "c1"):
        rig.ask(CLUSTER_LEAVE, c.Leave(name))
    assert regions_of(rig) == EVERYWHERE
    assert not any({"a2", "c1"} & {*group.replicas} for group in rig.map.groups)


def test_rebalancing_mends_what_was_placed_before_the_regions_were_known() -> None:
    rig = formed({})
    assert regions_of(rig) == {("", "", "")}
    for name, region in WHERE.items():
        rig.ask(CLUSTER_JOIN, c.Join(NodeRecord(name, f"{name}:2", f"{name}:1", region)))
    assert len(regions_of(rig)) > 1
    rig.ask(CLUSTER_REBALANCE, c.Rebalance())
    assert regions_of(rig) == EVERYWHERE
    assert {WHERE[node] for node in rig.group("metadata").replicas} == {"eu", "us", "ap"}


def test_where_a_region_is_down_replicas_go_to_those_that_are_up() -> None:
    rig = formed()
    rig.host.connect("a2", "b1", "b2")
    rig.controller.reconcile()
    rig.ask(CLUSTER_LEAVE, c.Leave("c1"))
    moved = [group for group in rig.map.groups if group.kind != "metadata" and "c2" not in group.replicas]
    assert moved
    assert all({*group.replicas} <= {"a1", "a2", "b1", "b2"} for group in moved)


# --- replicas that should not be here ------------------------------------------------------------------------


class Stray:
    """A replica of data-0 on n1, which the map gives to n2 and n3."""

    def __init__(self) -> None:
        known = cluster()
        groups = [msgspec.structs.replace(g, replicas=["n2", "n3"]) if g.kind == "data" else g for g in known.groups]
        self.rig = Rig(msgspec.structs.replace(known, groups=groups))
        self.rig.presence.serves("n1:1", "")
        self.rig.presence.meets("n1:2")
        group = SimpleNamespace(
            ready=False,
            is_leader=False,
            name="data-0",
            prefix=group_prefix(GroupId("data", 0)),
            log=SimpleNamespace(configuration_index=5),
        )
        self.driver = SimpleNamespace(group=group, installing=False, doubted=())
        self.rig.host.drivers = {
            METADATA: SimpleNamespace(group=SimpleNamespace(ready=False, leader="n2", name="metadata-0", **LEVEL)),
            GroupId("data", 0): self.driver,
        }

    def closed(self, said: Any) -> bool:
        self.rig.host.statuses = {"n2": said}
        self.rig.controller.reconcile()
        return self.rig.host.closed == [GroupId("data", 0)]


def test_a_replica_that_its_leader_has_let_go_is_closed() -> None:
    assert Stray().closed([leads("data", ["n2", "n3"])])


@pytest.mark.parametrize(
    "said",
    [
        [],  # whoever was asked leads it not
        [leads("data", ["n1", "n2"])],
        [leads("data", ["n2", "n3"], ("n1",))],
        [leads("data", ["n2", "n3"], configured=4)],  # older than what the replica knows
        [leads("offset", ["n2", "n3"])],
        OverloadedError("busy"),
    ],
)
def test_a_replica_stays_until_its_leader_says_that_it_is_out_and_is_asked_about_again(said: Any) -> None:
    stray = Stray()
    assert not stray.closed(said)
    assert stray.closed([leads("data", ["n2", "n3"])])


def test_a_replica_that_leads_or_is_being_replaced_is_not_closed() -> None:
    stray = Stray()
    stray.driver.group.is_leader = True
    assert not stray.closed([leads("data", ["n2", "n3"])])
    stray.driver.group.is_leader, stray.driver.installing = False, True
    assert not stray.closed([leads("data", ["n2", "n3"])])


# --- many groups ---------------------------------------------------------------------------------------------


def test_a_thousand_groups_are_not_looked_for_one_by_one_in_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a node with so many does nothing else, and never leads them."""
    stray = Stray()
    known = stray.rig.host.map
    assert known is not None
    more = [GroupRecord("data", ordinal, ["n1"], ["n1"]) for ordinal in range(1, 1_000)]
    stray.rig.host.map = msgspec.structs.replace(known, groups=[*known.groups, *more])
    stray.rig.host.drivers |= {record.group_id: stray.driver for record in more}
    looked, group = [], ClusterMap.group
    monkeypatch.setattr(ClusterMap, "group", lambda known, wanted: (looked.append(wanted), group(known, wanted))[1])
    stray.rig.controller.reconcile()
    assert stray.rig.host.failures == []
    assert len(looked) < 10


def test_what_changes_in_one_turn_is_told_once() -> None:
    turns: list[Callable[[], None]] = []
    told: list[str] = []
    groups = Groups(SimpleNamespace(call_soon=turns.append), SimpleNamespace(failure=None))  # type: ignore[arg-type]
    groups.on_change.append(lambda: told.append("told"))
    for _ in range(2):
        for _ in range(1_000):
            groups.tell_soon()
        assert len(turns) == 1
        turns.pop()()
    assert told == ["told"] * 2


# --- groups, slots, leaders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GROUP_KINDS)
def test_a_group_is_added_without_slots_behind_the_last_of_its_kind(kind: str) -> None:
    rig = Rig()
    for ordinal in (1, 2):
        rig.ask(CLUSTER_ADD_GROUP, c.AddGroup(kind))
        added = rig.group(kind, ordinal)
        assert (added.replicas, added.initial, added.initial_slots) == (NODES, NODES, b"")
    assert set(unpack_slots(rig.map.slots[kind])) == {0}
    assert {rig.group(kind, at).preferred for at in range(3)} == set(NODES)
    for kind in ("session", ""):
        with pytest.raises(InvalidRequestError, match="cannot be added"):
            rig.ask(CLUSTER_ADD_GROUP, c.AddGroup(kind))


def test_no_group_is_added_while_the_disks_are_short_of_room() -> None:
    rig = Rig()
    rig.host.no_room = "the disk of n1 is nearly full"
    with pytest.raises(NoRoomError, match="n1"):
        rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))
    rig.host.no_room = ""
    rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))


def test_slots_are_shared_out_and_move_one_order_at_a_time() -> None:
    rig = Rig()
    rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))
    rig.ask(CLUSTER_REBALANCE, c.Rebalance())
    (move,) = rig.map.moves
    assert (move.kind, move.source, move.target, len(c.slots_in(move.slots))) == ("data", 0, 1, SLOTS // 2)
    assert set(unpack_slots(rig.map.slots["data"])) == {0}, "they are where they were until they have moved"
    with pytest.raises(ConflictError, match="under way"):
        rig.ask(CLUSTER_REBALANCE, c.Rebalance())
    rig.ask(CLUSTER_MOVED, c.Moved(move.move))
    assert unpack_slots(rig.map.slots["data"]).count(1) == SLOTS // 2
    assert not rig.map.moves
    version = rig.map.version
    assert rig.ask(CLUSTER_MOVED, c.Moved(move.move)).version == version, "it was heard before"
    rig.ask(CLUSTER_REBALANCE, c.Rebalance())
    assert not rig.map.moves, "they are even"


class Together:
    """Asks while another change is being stored; each answer is noted under a name."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.answers: dict[str, bytes | MetadError] = {}
        rig.host.hold = True

    def ask(self, name: str, body: Any) -> None:
        self.rig.controller.handle(body, lambda answer: self.answers.__setitem__(name, answer), 0.0)

    def done(self, name: str) -> c.Done:
        answer = self.answers[name]
        assert not isinstance(answer, MetadError)
        return CLUSTER_TRANSFER.decode_reply(answer)

    def store(self) -> None:
        """Store what is being stored."""
        self.rig.host.held.pop(0)()


def test_changes_that_meet_are_decided_one_after_the_other() -> None:
    """Once one of two operators was told to try again, though their changes had nothing to do with each other."""
    known = cluster()
    groups = [*known.groups, GroupRecord("data", 1, NODES, NODES)]
    slots = known.slots | {"data": pack_slots([slot % 2 for slot in range(SLOTS)])}
    together = Together(Rig(msgspec.structs.replace(known, groups=groups, slots=slots)))
    together.ask("split", c.MoveSlots(group="data-0", half=True))
    together.ask("another", c.MoveSlots(group="data-1", half=True))
    together.ask("the same", c.MoveSlots(group="data-0", half=True))
    together.ask("lead", c.Transfer("offset-0", "n2"))
    assert together.answers == {}
    for _ in range(3):
        together.store()
    assert together.rig.host.held == []
    refused = together.answers.pop("the same")
    assert isinstance(refused, ConflictError)
    assert "data-0 has a part in a move of slots that is under way, from data-0 to data-2" in str(refused)
    versions = {name: together.done(name).version for name in ("split", "another", "lead")}
    assert versions == {"split": 8, "another": 9, "lead": 10}
    assert [(one.source, one.target) for one in together.rig.map.moves] == [(0, 2), (1, 3)]
    assert together.rig.group("offset").preferred == "n2"


def test_a_group_is_removed_after_a_change_that_began_while_the_group_was_looked_at() -> None:
    together = Together(removable())
    together.rig.host.before_sweep = lambda: together.ask("first", c.Transfer("offset-0", "n2"))
    together.ask("remove", c.RemoveGroup("data-1"))
    assert together.answers == {}
    for _ in range(2):
        together.store()
    assert together.done("remove").version == together.done("first").version + 1
    assert together.rig.map.group(GroupId("data", 1)) is None


def test_who_waits_is_told_that_another_node_leads_by_now_and_how_many_may_wait() -> None:
    together = Together(Rig())
    together.ask("first", c.Transfer("data-0", "n2"))
    for number in range(WAITING_MAX + 1):
        together.ask(str(number), c.Transfer("data-0", "n3"))
    refused = together.answers.pop(str(WAITING_MAX))
    assert isinstance(refused, OverloadedError)
    assert refused.retryable
    together.rig.host.drivers[METADATA].group.ready = False
    together.rig.host.answer = NotLeaderError()
    together.store()
    assert len(together.answers) == WAITING_MAX + 1
    assert all(isinstance(answer, NotLeaderError) for answer in together.answers.values())


def test_one_of_several_moves_is_done() -> None:
    moves = [SlotMove(1, "data", 0, 1, slot_bits([5])), SlotMove(2, "data", 0, 1, slot_bits([6]))]
    rig = Rig(cluster(moves=moves))
    rig.ask(CLUSTER_MOVED, c.Moved(2))
    assert rig.map.moves == moves[:1]
    assert [at for at, group in enumerate(unpack_slots(rig.map.slots["data"])) if group == 1] == [6]


def test_leadership_goes_to_a_voter_of_the_group() -> None:
    rig = Rig()
    rig.ask(CLUSTER_TRANSFER, c.Transfer("data-0", "n3"))
    assert rig.group("data").preferred == "n3"
    with pytest.raises(NotFoundError):
        rig.ask(CLUSTER_TRANSFER, c.Transfer("data-7", "n3"))
    with pytest.raises(InvalidRequestError, match="voters"):
        rig.ask(CLUSTER_TRANSFER, c.Transfer("data-0", "n9"))


def test_a_group_prefers_a_region_only_if_all_nodes_know_that() -> None:
    known = cluster()
    nodes = [msgspec.structs.replace(one, region="eu" if one.node_id == "n3" else "us") for one in known.nodes]
    rig = Rig(msgspec.structs.replace(known, nodes=nodes))
    with pytest.raises(ConflictError, match="features allow leader-regions"):
        rig.ask(CLUSTER_TRANSFER, c.Transfer("data-0", "", "eu"))
    rig.features.know(LEADER_REGIONS, FeatureRecord(LEADER_REGIONS, "on"))
    assert rig.ask(CLUSTER_TRANSFER, c.Transfer("data-0", "", "eu")).text == "data-0 is to be led in eu"
    assert (rig.group("data").region, rig.group("data").preferred) == ("eu", "n3")
    assert rig.ask(CLUSTER_TRANSFER, c.Transfer("data-0", "", "")).text == "data-0 may be led in any region"
    assert rig.group("data").region == ""


# --- groups that are removed ---------------------------------------------------------------------------------


def removable(**fields: Any) -> Rig:
    """A cluster with a group that has no slots and is led by n2."""
    rig = Rig(cluster())
    rig.host.map = msgspec.structs.replace(
        rig.map, groups=[*rig.map.groups, GroupRecord("data", 1, *[["n2", "n3"]] * 2)]
    )
    rig.features.know(REMOVED_GROUPS, FeatureRecord(REMOVED_GROUPS, "on"))
    rig.host.statuses["n2"] = [
        msgspec.structs.replace(leads("data", ["n2", "n3"]), name="data-1", leader="n2", **fields)
    ]
    return rig


def test_a_group_is_removed_once_its_leader_has_dropped_what_rows_it_had() -> None:
    rig = removable()
    done = rig.ask(CLUSTER_REMOVE_GROUP, c.RemoveGroup("data-1"))
    assert rig.host.ordered == [("n2", "data-1", "sweep")]
    assert (done.text, rig.map.group(GroupId("data", 1))) == ("data-1 is removed, with its replicas", None)
    assert (rig.map.ordinals, rig.map.has_removed(GroupId("data", 1))) == ({"data": 2}, True)
    assert "already" in rig.ask(CLUSTER_REMOVE_GROUP, c.RemoveGroup("data-1")).text
    rig.ask(CLUSTER_ADD_GROUP, c.AddGroup("data"))
    assert rig.group("data", 2), "the name was used again"


def test_a_group_stays_that_its_leader_does_not_let_go() -> None:
    rig = removable()
    rig.host.swept = ConflictError("slots are sealed")
    with pytest.raises(ConflictError, match="sealed"):
        rig.ask(CLUSTER_REMOVE_GROUP, c.RemoveGroup("data-1"))
    for rig in (removable(slots=1), removable(role="follower")):
        with pytest.raises(ConflictError, match="has not said"):
            rig.ask(CLUSTER_REMOVE_GROUP, c.RemoveGroup("data-1"))
        assert rig.group("data", 1)
    rig = removable()
    rig.features.know(REMOVED_GROUPS, None)
    with pytest.raises(ConflictError, match="features allow removed-groups"):
        rig.ask(CLUSTER_REMOVE_GROUP, c.RemoveGroup("data-1"))


def test_a_replica_of_a_removed_group_is_closed_unless_a_snapshot_is_being_put_into_it() -> None:
    rig = removable()
    rig.ask(CLUSTER_REMOVE_GROUP, c.RemoveGroup("data-1"))
    idle(rig)
    gone = SimpleNamespace(installing=True, group=SimpleNamespace(ready=True))
    rig.host.drivers[GroupId("data", 1)] = gone
    rig.host.drivers[GroupId("data", 7)] = SimpleNamespace(installing=False)  # of a newer map than this one
    rig.controller.reconcile()
    assert rig.host.closed == []
    gone.installing = False
    rig.controller.reconcile()
    assert rig.host.closed == [GroupId("data", 1)]


# --- the budget of returns -----------------------------------------------------------------------------------


def test_a_busy_node_asks_for_its_part_once_a_second() -> None:
    rig = Rig(cluster(replicas=3))
    idle(rig)
    rig.tend()
    assert rig.host.grants == []
    rig.host.busy = c.ReturnReport("n1", 900, 900)
    for _ in range(8):
        rig.now_s += RECONCILE_S
        rig.controller.reconcile()
    assert [asked_s for _, asked_s in rig.host.grants] == [2.0, 3.0, 4.0, 5.0]
    assert {grant.per_s for grant, _ in rig.host.grants} == {900}


def test_a_node_that_does_not_lead_asks_the_leader() -> None:
    rig = Rig()
    rig.host.busy = c.ReturnReport("n1", 900, 900)
    rig.host.drivers[METADATA].group = SimpleNamespace(ready=False, leader="n2", name="metadata-0", **LEVEL)
    rig.tend()
    assert (rig.host.asked_for_returns, rig.host.grants) == (["n2"], [])  # it is refused
    rig.host.returns = c.ReturnGrant(300, 3_000)
    rig.tend()
    assert rig.host.grants == [(c.ReturnGrant(300, 3_000), rig.now_s)]
    rig.host.drivers[METADATA].group = SimpleNamespace(ready=False, leader=None, name="metadata-0", **LEVEL)
    rig.tend()
    assert len(rig.host.asked_for_returns) == 2


def test_members_are_granted_parts_of_one_budget_and_strangers_none() -> None:
    rig = Rig()

    def ask(name: str) -> int:
        answers: list[Any] = []
        rig.controller.handle(c.ReturnReport(name, 900, 300), answers.append, 0.0)
        return CLUSTER_RETURNS.decode_reply(answers[0]).per_s

    for _ in range(2):
        granted = [ask(name) for name in ("n1", "n2", "n3")]
    assert granted == [300, 300, 300]
    with pytest.raises(NotFoundError, match="n9"):
        ask("n9")


def test_the_leader_of_metadata_0_switches_features_on_once_all_nodes_know_them() -> None:
    rig = Rig(config=Config(node_id="n1", cluster=ClusterConfig(features_after_ms=10_000)))
    knowing = msgspec.structs.replace(rig.map, groups=[])
    older = [*knowing.nodes[:2], msgspec.structs.replace(knowing.nodes[2], features=[])]
    rig.host.map = msgspec.structs.replace(knowing, nodes=older)
    for seconds in (0, 100):
        rig.now_s = float(seconds)
        rig.controller.reconcile()
    assert rig.host.switched == [], "n3 does not know it"
    rig.host.map = knowing
    for seconds in (200, 209):
        rig.now_s = float(seconds)
        rig.controller.reconcile()
    assert rig.host.switched == []
    rig.now_s = 210.0
    rig.controller.reconcile()
    assert [one.feature for one in rig.host.switched[0].items] == sorted(FEATURES)
