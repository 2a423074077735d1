"""All drills, in the order of docs/OPERATE.md. Each is a script: what happens, and what its operator sees and does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .nodes import Nodes
from .operator import Operator
from .script import Drill, Script

DRILLS: Final[dict[str, Drill]] = {}


def _drill(name: str, **what: Any) -> Callable[[Script], Script]:
    """Make a script the one of this drill."""

    def add(play: Script) -> Script:
        DRILLS[name] = Drill(name=name, play=play, **what)
        return play

    return add


@_drill("leader-killed", about="kill -9 of a node that leads groups", commands=["metadctl status --check"])
async def _leader_killed(nodes: Nodes, operator: Operator) -> None:
    """The process of a node that leads groups ends at once: the others go on, and it comes back by a restart."""
    leader = await operator.leader_of("data-0")
    nodes.kill(leader)
    await operator.status("warning", f"node_unreachable {leader}", "group_under_replicated")
    await operator.writes_go_on()
    await nodes.start(leader)
    await operator.status("ok")


@_drill("rolling-restart", about="SIGTERM to one node after the other", commands=["metadctl status --check"])
async def _rolling_restart(nodes: Nodes, operator: Operator) -> None:
    """One node after the other is told to end and started again, as in an upgrade: no call fails."""
    for node in nodes.names:
        await nodes.stop(node)
        await operator.log(node, "stopped", drained=True)
        await nodes.start(node)
        await operator.status("ok")


FORGOTTEN = "n3 was here with another data directory"


@_drill(
    "node-lost-with-disk",
    about="kill -9 of a node, and its data directory is lost",
    commands=["metadctl status --check", "metadctl replace n3", "metadctl replace n3 --wait"],
)
async def _node_lost_with_disk(nodes: Nodes, operator: Operator) -> None:
    """A node loses its disk and comes back empty: the others refuse it until it is replaced, and fill the new one."""
    nodes.kill("n3")
    nodes.wipe("n3")
    nodes.launch("n3")
    await operator.status("warning", "node_refused n3", "group_under_replicated")
    await operator.writes_go_on()
    await operator.ends("n3", says=FORGOTTEN, exit_status=3, within_s=60.0)

    nodes.kill("n3")  # nobody may start it again
    said = await operator.runs("metadctl replace n3", says="n3 is no member any more")
    nodes.wipe("n3")
    nodes.configure("n3", toml_in(said))
    nodes.launch("n3")
    await operator.runs("metadctl replace n3 --wait", says="every group has all its replicas")
    await operator.status("ok")


def toml_in(said: str) -> str:
    """The configuration that ``metadctl replace`` prints."""
    lines = [line for line in said.splitlines() if " = " in line or line.startswith("[")]
    return "\n".join([*lines, ""])


@_drill(
    "disk-full",
    about="the disk of a node that leads groups is filled up",
    commands=["metadctl status --check"],
    small_disks=True,
)
async def _disk_full(nodes: Nodes, operator: Operator) -> None:
    """The disk of a node is full: others lead what it led. It takes part as far as it can, and starts without room."""
    full = await operator.leader_of("data-0")
    await nodes.fill_disk(full)
    await operator.status("critical", f"disk_full {full}")
    await operator.log(full, "leader_lost", group="data-0")
    await operator.writes_go_on()

    nodes.kill(full)
    await nodes.start(full)
    await operator.status("critical", f"disk_full {full}")
    await operator.writes_go_on()

    nodes.free_disk(full)
    await operator.status("ok")


@_drill(
    "majority-lost",
    about="kill -9 of two of three nodes",
    commands=["metadctl status --check", "metadctl --timeout 5 put kv config greeting hello"],
)
async def _majority_lost(nodes: Nodes, operator: Operator) -> None:
    """Two of three nodes are gone: nothing can be written, status and clients say why. After a restart all is well."""
    nodes.kill("n2", "n3")
    await operator.status("critical", "node_unreachable n2", "node_unreachable n3", "group_no_leader data-1")
    await operator.runs(
        "metadctl --timeout 5 put kv config greeting hello",
        exit_status=1,
        says="has no leader; 1 of 3 replicas reachable",
    )
    await nodes.start("n2", "n3")
    await operator.status("ok")
    await operator.writes_go_on()


REGIONS = ("eu", "us", "ap")


@_drill(
    "region-dark",
    about="one of three regions is cut off from the others and from all clients",
    commands=["metadctl status --check"],
    nodes=6,
    regions=REGIONS,
    encrypted=True,
    own_network=True,
)
async def _region_dark(nodes: Nodes, operator: Operator) -> None:
    """One of three regions is cut off from everything: the others go on, and its nodes come back by themselves."""
    dark = nodes.names[0 :: len(REGIONS)]
    nodes.cut_off(*dark)
    await operator.status("warning", *(f"node_unreachable {node}" for node in dark), "group_under_replicated")
    await operator.writes_go_on()
    await operator.log(nodes.names[1], "peer_silent", peer=dark[0])
    await operator.log(nodes.names[1], "peer_lost", peer=dark[0])
    nodes.heal()
    await operator.status("ok")


@_drill(
    "second-node-of-one-name",
    about="another machine starts with the node id of a living node",
    commands=["metadctl status --check"],
    newcomers=True,
)
async def _second_node_of_one_name(nodes: Nodes, operator: Operator) -> None:
    """A second machine is configured as n3 while n3 lives: it is refused and told so, and n3 goes on."""
    nodes.newcomer("n3", called="the second n3")
    nodes.launch("the second n3")
    await operator.log("the second n3", "refused_by_peer", says="another node named n3 is alive at")
    await operator.log("n1", "peer_refused", says="another node named n3 is alive at")
    await operator.ends("the second n3", says="another node named n3 is alive at", exit_status=3, within_s=60.0)
    await operator.status("ok")
    await operator.writes_go_on()


OTHER = "another authority than ours issued it"


OURS = "it does not trust the authority of our certificate"


@_drill(
    "wrong-certificate",
    about="a client and a node of another authority; a client's certificate for a node",
    commands=["metadctl get kv config greeting --certs other", "metadctl status --check"],
    encrypted=True,
    newcomers=True,
)
async def _wrong_certificate(nodes: Nodes, operator: Operator) -> None:
    """Certificates that do not fit: of another authority, of a client, of another node. Both ends say what is wrong."""
    strangers = nodes.another_authority("other", nodes=["n4"], clients=["app"])
    said = await operator.runs("metadctl get kv config greeting --certs other", exit_status=1, says=OTHER)
    await operator.log(nodes.named_in(said), "tls_refused", says=OURS)

    nodes.newcomer("n4", called="n4 of another authority", files=strangers["node-n4"])
    nodes.launch("n4 of another authority")
    await operator.log("n4 of another authority", "cannot_join_yet", says=OTHER)
    nodes.kill("n4 of another authority")

    nodes.newcomer("n4", called="n4 with a client's certificate", files=nodes.files("client-perf"))
    nodes.launch("n4 with a client's certificate")
    await operator.ends("n4 with a client's certificate", says="names client 'perf', but this is node 'n4'")

    nodes.newcomer("n4", called="n4 with the certificate of n1", files=nodes.files("node-n1"))
    nodes.launch("n4 with the certificate of n1")
    await operator.ends("n4 with the certificate of n1", says="names node 'n1', but this is node 'n4'")

    await operator.status("ok")
    await operator.writes_go_on()
