"""Certificates that do not fit: of another authority, of a client, of another node. Both ends say what is wrong."""

from __future__ import annotations

from ..nodes import Nodes
from ..operator import Operator
from ..script import Drill

OTHER = "another authority than ours issued it"
OURS = "it does not trust the authority of our certificate"


async def play(nodes: Nodes, operator: Operator) -> None:
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


DRILL = Drill(
    name="wrong-certificate",
    about="a client and a node of another authority; a client's certificate for a node",
    play=play,
    commands=["metadctl get kv config greeting --certs other", "metadctl status --check"],
    encrypted=True,
    newcomers=True,
)
