"""README, "A lost or damaged disk", word by word on real nodes: its commands are run as they stand there."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from pathlib import Path

from e2e_nodes import Nodes
from e2e_server import METAD, SMALL
from pages import blocks

from metad_client import KvKey, KvPutItem, blocking
from waiting import WAIT_S, wait_until

README = Path(__file__).resolve().parents[2] / "README.md"
SECTION = README.read_text().partition("### A lost or damaged disk\n")[2].partition("\n## ")[0]
REPLACE, SERVE, WAIT = (block.rstrip("\n") for block in blocks(SECTION))
PUTS = [KvPutItem(f"w{number}", "k", b"%d" % number) for number in range(50)]


def command(line: str, endpoint: str) -> list[str]:
    """The words of a command of the README, with a real endpoint."""
    words = shlex.split(line.replace("HOST:PORT", endpoint))
    assert words[0].startswith(".venv/bin/")
    return [str(METAD.with_name(words[0].removeprefix(".venv/bin/"))), *words[1:]]


def done(line: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    line, _, target = line.partition(" > ")
    ran = subprocess.run(command(line, endpoint), cwd=home, capture_output=True, text=True, timeout=300, check=False)
    if target:
        (home / target).write_text(ran.stdout)
    return ran


def status(nodes: Nodes) -> tuple[int, str]:
    checked = done(".venv/bin/metadctl --endpoint HOST:PORT status --check", nodes.endpoints["n1"], nodes.home)
    return checked.returncode, checked.stdout


def lose_disk(nodes: Nodes) -> None:
    nodes.kill("n3")
    nodes.lose_disk("n3")


def test_a_node_that_has_lost_its_disk_is_replaced_as_the_readme_says(nodes: Nodes, tmp_path: Path) -> None:
    with blocking.connect(nodes.url) as client:
        client.kv.put_many(PUTS).raise_for_error()
    lose_disk(nodes)
    wiped = nodes.start("n3")
    wait_until(lambda: "with another data directory" in wiped.stderr, "the others refuse it")

    replaced = done(REPLACE, nodes.endpoints["n1"], tmp_path)
    assert replaced.returncode == 0, replaced.stderr
    assert "n3 is no member any more" in replaced.stderr
    assert "groups lack a replica" in replaced.stderr
    assert status(nodes)[0] == 1, "it must not look healthy"

    # Nobody has stopped it. It has seeds, and these do not know it any more.
    assert "'n3' is no member of it (any more). To join it, replace cluster.seeds by cluster.join" in wiped.refused()

    # Interrupted and run again, it goes on, and does not take it for a stranger.
    again = done(REPLACE.replace("> n3.toml", "> again.toml"), nodes.endpoints["n1"], tmp_path)
    assert again.returncode == 0, again.stderr
    assert "check the name" not in again.stderr
    printed = (tmp_path / "n3.toml").read_text()
    assert tomllib.loads(printed)["cluster"]["listen"] == nodes.peers["n3"]
    assert set(tomllib.loads(printed)) == {"node_id", "cluster"}

    (tmp_path / "n3.toml").write_text(printed + "\n" + SMALL)
    with (tmp_path / "n3.stderr").open("w") as stderr:
        node = subprocess.Popen(command(SERVE, nodes.endpoints["n3"]), cwd=tmp_path, stderr=stderr)
    try:
        waited = done(WAIT, nodes.endpoints["n1"], tmp_path)
        assert waited.returncode == 0, waited.stderr
        assert "every group has all its replicas" in waited.stdout + waited.stderr
        # Another node may go now.
        nodes.servers["n2"].kill()
        with blocking.connect(f"metad://{nodes.endpoints['n1']},{nodes.endpoints['n3']}") as client:
            client.kv.put("w0", "k", b"again")
            found = client.kv.get_many([KvKey(put.namespace, put.key) for put in PUTS])
            found.raise_for_error()
            assert [kv and kv.value for kv in found][1:] == [put.value for put in PUTS][1:]
        assert node.poll() is None
    finally:
        node.terminate()
        node.wait(WAIT_S)
    assert node.returncode == 0, (tmp_path / "n3.stderr").read_text()


def test_a_node_that_is_alive_is_not_replaced(nodes: Nodes, tmp_path: Path) -> None:
    def refused() -> str:
        ran = done(REPLACE, nodes.endpoints["n1"], tmp_path)
        assert ran.returncode == 1
        return ran.stderr

    expected = (
        "metadctl: conflict: n3 is alive: n1 and n2 are connected to it. To remove a node that is alive, use: metadctl "
        "leave n3\n"
    )
    wait_until(lambda: refused() == expected, "every node has told n1 whom it is connected to")
    assert nodes.servers["n3"].process.poll() is None
    assert status(nodes)[0] == 0


def test_a_name_that_no_node_has_is_not_replaced(nodes: Nodes, tmp_path: Path) -> None:
    """Also while another node is lost: it is not taken for one that has left."""
    wrong = REPLACE.replace("n3", "n33", 1)
    for lost in (False, True):
        if lost:
            lose_disk(nodes)
        refused = done(wrong.partition(" > ")[0], nodes.endpoints["n1"], tmp_path)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "n33 is no member of the cluster, whose members are n1, n2 and n3, and no other" in refused.stderr


def test_replace_ends_at_its_deadline_and_is_safe_to_run_again(nodes: Nodes, tmp_path: Path) -> None:
    lose_disk(nodes)
    late = done(REPLACE.replace(" > ", " --deadline 3 > "), nodes.endpoints["n1"], tmp_path)
    assert late.returncode == 1
    assert "n3 was within reach a moment ago; ask again" in late.stderr
    assert "It is safe to run the command again" in late.stderr
    late = done(WAIT + " --deadline 30", nodes.endpoints["n1"], tmp_path)
    assert late.returncode == 1
    assert "waiting for a node to join: 2 machines for 3 replicas of each group" in late.stderr
    assert 'join = ["' in late.stdout
    known = json.loads(
        done(".venv/bin/metadctl --endpoint HOST:PORT members --json", nodes.endpoints["n1"], tmp_path).stdout
    )
    assert [member["node"] for member in known] == ["n1", "n2"]
