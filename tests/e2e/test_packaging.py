"""What the containers of docs/packaging run, run here: the same command lines and variables, with addresses of this
machine in place of names. Nodes form a cluster, are probed, drain, come back with their volumes, and take one in."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from e2e_server import METAD, Server, free_ports

from machines import (
    CONTAINER,
    KUBERNETES,
    PORTS,
    compose,
    compose_nodes,
    image_environment,
    manifest,
    of,
    pod_environment,
    pods,
)
from metad_client import Options, blocking, client_files
from waiting import WAIT_S, wait_until

PROBE = CONTAINER / "probe.py"


class Machine:
    """Runs containers here: each has addresses of its own, a volume, and certificates where they are mounted."""

    def __init__(self, home: Path, hosts: Mapping[str, str], here: str = "127.0.0.1") -> None:
        """``hosts``: container -> how the others name it. ``here``: how they name this machine instead."""
        self.home = home
        self.hosts = hosts
        self.servers: dict[str, Server] = {}
        ports = iter(free_ports(3 * len(hosts)))
        self._at = {(name, port): f"{here}:{next(ports)}" for name in hosts for port in PORTS.values()}
        self._stack = ExitStack()

    def here(self, name: str, text: str) -> str:
        """The text of a container's setting, as it is on this machine."""
        for (other, port), at in self._at.items():
            text = re.sub(rf"\b{re.escape(self.hosts[other])}(\.\w+\.svc)?:{port}\b", at, text)
            if other == name:
                text = re.sub(rf"\b(0\.0\.0\.0|127\.0\.0\.1):{port}\b", rf"\1:{at.partition(':')[2]}", text)
        text = re.sub("^/data/", f"{self.home / name}/", text)
        return re.sub("^/certificates/", f"{self.home / 'certs'}/", text)

    def environment(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        return {key: self.here(name, value) for key, value in given.items() if key.startswith("METAD_")}

    def start(self, name: str, given: Mapping[str, str], command: list[str]) -> Server:
        """Start a container, or start it again with the same volume."""
        (self.home / name).mkdir(exist_ok=True)
        environment = self.environment(name, given)
        environment["PATH"] = f"{METAD.parent}:{os.environ['PATH']}"  # as in the image
        server = Server(self.home / name, environment=environment, instead=command)
        server.endpoint = self.at(name, "METAD_LISTEN")
        self.servers[name] = self._stack.enter_context(server)
        return server

    def at(self, name: str, what: str) -> str:
        return self._at[name, PORTS[what]]

    def probe(self, name: str, given: Mapping[str, str], path: str) -> tuple[bool, str]:
        """Ask as the container's engine would."""
        environment = {**os.environ, **self.environment(name, given)}
        command = [sys.executable, str(PROBE), path]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)
        assert done.stderr == ""
        return done.returncode == 0, done.stdout

    def until_ready(self, name: str, given: Mapping[str, str]) -> None:
        def look() -> bool:
            assert self.servers[name].process.poll() is None, self.servers[name].stderr
            return self.probe(name, given, "/readyz")[0]

        wait_until(look, f"{name} is ready")

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those that the first comment of kustomization.yaml makes; all files that it puts into the secret are there."""
    home = tmp_path_factory.mktemp("certificates")
    text = (KUBERNETES / "kustomization.yaml").read_text()
    (command,) = re.findall(r"(?m)^# +metadctl (certs .*)$", text)
    subprocess.run([str(METAD.with_name("metadctl")), *shlex.split(command)], cwd=home, check=True, timeout=WAIT_S)
    (numbers,) = re.findall(r"for n in ([\d ]+);", text)
    named = [
        name.replace("$n", number) for name in re.findall(r"--from-file (\S+\.pem)", text) for number in numbers.split()
    ]
    assert len(set(named)) == 1 + 2 * len(pods())
    assert all((home / name).is_file() for name in named)
    return home / "certs"


@pytest.fixture
def kubernetes(tmp_path: Path, certificates: Path) -> Iterator[Machine]:
    (tmp_path / "certs").symlink_to(certificates)
    with Machine(tmp_path, {pod: f"{pod}.metad" for pod in pods(more=1)}) as machine:
        yield machine


def _pod(machine: Machine, name: str) -> Server:
    """Start the container of a pod, with the settings that it would find mounted."""
    file = machine.home / f"{name}.toml"
    file.write_text(machine.here(name, (KUBERNETES / "metad.toml").read_text()))
    (container,) = manifest("StatefulSet")["template"]["spec"]["containers"]
    command = [each.replace("/etc/metad/metad.toml", str(file)) for each in container["command"]]
    return machine.start(name, pod_environment(name), command)


def _client(machine: Machine, certificates: Path) -> blocking.BlockingClient:
    where = ",".join(machine.at(pod, "METAD_LISTEN") for pod in pods())
    return blocking.connect(f"metads://{where}", Options(tls=client_files(str(certificates), "app")))


def test_pods_form_a_cluster_and_come_back_with_their_volumes(kubernetes: Machine, certificates: Path) -> None:
    """The probes, with the certificate of the node, say what kubelet has to know."""
    first, second, third = pods()
    _pod(kubernetes, first)
    wait_until(lambda: kubernetes.probe(first, pod_environment(first), "/livez")[0], "it lives")
    is_ready, why = kubernetes.probe(first, pod_environment(first), "/readyz")
    assert not is_ready, "alone it is no majority"
    assert why.startswith("/readyz: 503 [-] groups: no")
    for pod in (second, third):
        _pod(kubernetes, pod)
    for pod in pods():
        kubernetes.until_ready(pod, pod_environment(pod))
    with _client(kubernetes, certificates) as client:
        client.kv.put("ns", "k", b"kept")
        assert {node.node_id for node in client.cluster.map().map.nodes} == {*pods()}
        grace_s = manifest("StatefulSet")["template"]["spec"]["terminationGracePeriodSeconds"]
        leaving = kubernetes.servers[second]
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.process.wait(grace_s) == 0
        assert leaving.events("stopped")[0]["drained"]
        kubernetes.servers[third].kill()
        for pod in (second, third):
            _pod(kubernetes, pod)
            kubernetes.until_ready(pod, pod_environment(pod))
        record = client.kv.get("ns", "k")
        assert record is not None
        assert record.value == b"kept"
        assert not any(server.events("peer_refused") for server in kubernetes.servers.values())


def test_a_pod_whose_name_nobody_knows_yet_keeps_no_others_from_a_cluster(tmp_path: Path, certificates: Path) -> None:
    """The name of a pod is in the DNS once it has a machine. Here that of the third never is."""
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip("the name of this machine is not known to itself")
    (tmp_path / "certs").symlink_to(certificates)
    there = pods()[:2]
    with Machine(tmp_path, {pod: f"{pod}.metad" for pod in there}, socket.gethostname()) as machine:
        for pod in there:
            _pod(machine, pod)
        for pod in there:
            machine.until_ready(pod, pod_environment(pod))


def test_pods_beyond_the_founders_join_and_leave_again(kubernetes: Machine, certificates: Path) -> None:
    """``kubectl scale`` starts the same command under another name."""
    (new,) = set(pods(more=1)) - set(pods())
    for pod in pods():
        _pod(kubernetes, pod)
    metadctl = str(METAD.with_name("metadctl"))
    made = [metadctl, "certs", "--out", str(certificates), "--nodes", new]
    subprocess.run(made, check=True, timeout=WAIT_S)
    _pod(kubernetes, new)
    kubernetes.until_ready(new, pod_environment(new))
    with _client(kubernetes, certificates) as client:
        assert {node.node_id for node in client.cluster.map().map.nodes} == {*pods(), new}
    kubernetes.servers[new].kill()
    _pod(kubernetes, new)
    kubernetes.until_ready(new, pod_environment(new))
    leave = [metadctl, "--endpoint", f"metads://{kubernetes.at(pods()[0], 'METAD_LISTEN')}", "leave", new]
    subprocess.run([*leave, "--certs", str(certificates)], check=True, timeout=WAIT_S)
    assert kubernetes.servers[new].exited() == 0


def test_prometheus_reads_a_pod_with_its_own_certificate(kubernetes: Machine, certificates: Path) -> None:
    (pod, *_) = pods()
    _pod(kubernetes, pod)
    wait_until(lambda: kubernetes.probe(pod, pod_environment(pod), "/livez")[0], "it lives")
    own = kubernetes.environment(pod, pod_environment(pod))
    prometheus = {**own, "METAD_TLS_CERT": str(certificates / "client-prometheus.pem")}
    prometheus["METAD_TLS_KEY"] = str(certificates / "client-prometheus-key.pem")
    assert kubernetes.probe(pod, prometheus, "/metrics") == (True, "")
    assert not kubernetes.probe(pod, {**own, "METAD_TLS_CERT": ""}, "/metrics")[0], "in clear text"


def test_the_nodes_of_compose_serve_their_tools(tmp_path: Path) -> None:
    nodes = {name: image_environment() | node["environment"] for name, node in compose_nodes().items()}
    (arguments,) = of("CMD")
    with Machine(tmp_path, {name: name for name in nodes}) as machine:
        for name, given in nodes.items():
            machine.start(name, given, ["metad", *yaml.safe_load(arguments)])
        for name, given in nodes.items():
            machine.until_ready(name, given)
            assert machine.probe(name, given, "/livez") == (True, "")
        tool = [machine.here("", word) for word in compose()["services"]["metadctl"]["entrypoint"][1:]]

        def is_well() -> bool:
            command = [str(METAD.with_name("metadctl")), *tool, "status", "--check"]
            return subprocess.run(command, capture_output=True, timeout=WAIT_S).returncode == 0

        wait_until(is_well, "metadctl says OK")
        (job,) = yaml.safe_load((CONTAINER / "prometheus.yaml").read_text())["scrape_configs"]
        for target in job["static_configs"][0]["targets"]:
            with urllib.request.urlopen(f"http://{machine.here('', target)}/metrics", timeout=WAIT_S) as page:
                assert b"metad_group_leads" in page.read()
        for name in nodes:
            assert machine.servers[name].terminate() == 0


def test_the_probe_of_a_container_without_settings(tmp_path: Path) -> None:
    """``docker run metad``: on loopback, in clear text, for whoever is in the container."""
    with Machine(tmp_path, {"metad": "metad"}) as machine:
        machine.start("metad", image_environment() | {"METAD_LISTEN": "127.0.0.1:7420"}, ["metad", "serve"])
        machine.until_ready("metad", image_environment())
        machine.servers["metad"].kill()
        assert machine.probe("metad", image_environment(), "/livez") == (
            False,
            "/livez: <urlopen error [Errno 111] Connection refused>\n",
        )
