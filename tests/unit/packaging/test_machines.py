"""What docs/packaging has for machines names only what there is: options, variables, files, exit statuses; its times
fit those of a node; and where a checker of the format is on this machine, that agrees."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import metad
from machines import (
    CONTAINER,
    FOLDER,
    KUBERNETES,
    PORTS,
    compose,
    compose_nodes,
    copied,
    image_environment,
    kustomization,
    manifest,
    manifests,
    of,
    pod_environment,
    pods,
)
from metad.cli import _parser as metad_parser
from metad.config import load_config
from metad.config.declarations import Config
from metad.config.environment import VARIABLES, overrides_of
from metad.config.files import problems_in
from metad.errors import RefusedError
from metad_client.cli.command_line import build_parser as metadctl_parser
from metad_wire.program.open_files import peer_files

ROOT = Path(__file__).resolve().parents[3]
TO_END_S = Config().drain_timeout_ms / 1_000 + 5
"""A node that drains ends by then: its last replies, and its stores."""


# --- systemd ------------------------------------------------------------------------------------------------------

UNIT = FOLDER / "systemd" / "metad.service"


def unit() -> dict[str, dict[str, list[str]]]:
    """Section -> key -> values."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in UNIT.read_text().splitlines():
        if section := re.fullmatch(r"\[(\w+)\]", line):
            keys = found[section[1]] = {}
        elif line and line[0] != "#":
            key, _, value = line.partition("=")
            keys.setdefault(key, []).append(value)
    return found


def test_the_command_of_the_unit_exists_with_all_its_options() -> None:
    (command,) = unit()["Service"]["ExecStart"]
    program, *words = shlex.split(command)
    assert Path(program).name == "metad"
    parsed = metad_parser().parse_args(words)
    assert (parsed.command, parsed.config) == ("serve", Path("/etc/metad/metad.toml"))
    assert parsed.data_dir == "${STATE_DIRECTORY}"
    with pytest.raises(SystemExit):
        metad_parser().parse_args([*words, "--no-such-option"])


def test_the_unit_waits_as_long_as_a_node_needs_and_restarts_what_a_restart_helps() -> None:
    service = {key: values[-1] for key, values in unit()["Service"].items()}
    assert service["Type"] == "notify"
    assert service["TimeoutStartSec"] == "infinity", "a founder waits for a majority"
    assert int(service["TimeoutStopSec"]) >= TO_END_S
    assert int(service["WatchdogSec"]) >= 30, "the recovery of a node that finds room again is no hang"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", str(RefusedError.exit_status)]
    assert int(service["LimitNOFILE"]) - peer_files(int(service["LimitNOFILE"])) > 16_384
    assert service["KillMode"] == "mixed", "a supervisor passes SIGTERM on once"
    user = (FOLDER / "systemd" / "metad.sysusers").read_text().splitlines()[-1].split()
    assert user[:2] == ["u", service["User"]]
    assert user[-1] == f"/var/lib/{service['StateDirectory']}"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()

    def verified(text: str) -> tuple[int, str]:
        file = tmp_path / "metad.service"
        file.write_text(text.replace("/opt/metad/bin/metad", str(Path(sys.executable).with_name("metad"))))
        command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, "\n".join(line for line in done.stderr.splitlines() if str(file) in line)

    assert verified(text) == (0, "")
    assert "WatchdgSec" in verified(text.replace("WatchdogSec", "WatchdgSec"))[1]
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=30", str(tmp_path / "metad.service")]
    (tmp_path / "metad.service").write_text(text)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"its exposure is over 3.0 of 10: {done.stdout}"


# --- the image ----------------------------------------------------------------------------------------------------


def test_the_image_is_of_fixed_versions_and_of_no_root() -> None:
    for image in of("FROM", last_stage=False):
        assert re.match(r"python:3\.\d+\.\d+-slim-\w+( AS \w+)?$", image)
    (user,) = of("USER")
    assert re.fullmatch(r"([1-9]\d*):([1-9]\d*)", user), "Kubernetes' runAsNonRoot wants a number"
    assert of("STOPSIGNAL") == ["SIGTERM"]
    assert of("VOLUME") == ["/data"]
    assert image_environment()["METAD_DATA_DIR"].startswith("/data/")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    minor = int(re.findall(r"python:3\.(\d+)", of("FROM")[0])[0])
    assert wanted == ">=3.11"
    assert minor >= 11


def test_what_the_image_runs_exists() -> None:
    (entrypoint,), (arguments,) = of("ENTRYPOINT"), of("CMD")
    assert yaml.safe_load(entrypoint) == ["/opt/metad/bin/metad"]
    assert metad_parser().parse_args(yaml.safe_load(arguments)).command == "serve"
    (health,) = of("HEALTHCHECK")
    probe = yaml.safe_load(health.partition("CMD ")[2])
    assert probe[1:] == ["/opt/metad/probe.py", "/livez"]
    assert "docs/packaging/container/probe.py /opt/metad/probe.py" in of("COPY")
    own = {name for name in image_environment() if name.startswith("METAD_")}
    assert own <= VARIABLES.keys()
    assert problems_in(overrides_of(image_environment())) == []
    extras = {
        path: set(tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"]["optional-dependencies"])
        for path in (".", "clients")
    }
    named = re.findall(r"'\.(/clients)?\[([\w,]+)\]'", " ".join(of("RUN", last_stage=False)))
    assert {folder for folder, _ in named} == {"", "/clients"}
    assert all(set(names.split(",")) <= extras["clients" if folder else "."] for folder, names in named)


def test_all_that_the_image_copies_is_there_and_let_through() -> None:
    rules = (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
    let = [rule[1:] for rule in rules if rule.startswith("!")]
    assert rules[1] == "*", "nothing else of whoever builds it: data, certificates, environments"
    assert sorted(let) == sorted(copied())
    assert all((ROOT / source).exists() for source in copied())


@pytest.mark.slow
def test_what_the_image_copies_is_enough_to_install_it(tmp_path: Path) -> None:
    """The commands of the build stage, without the packages of others."""
    for source in copied():
        target = tmp_path / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
            shutil.copytree(ROOT / source, target, ignore=ignored)
        else:
            shutil.copy(ROOT / source, target)
    for name in re.findall(r"mkdir ((?:\w+ )+)", " ".join(of("RUN", last_stage=False)))[0].split():
        (tmp_path / name).mkdir()
    wheels = tmp_path / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*command, "-w", str(wheels), "./clients", "."], cwd=tmp_path, check=True, timeout=600)
    assert {wheel.name.partition("-")[0] for wheel in wheels.iterdir()} == {"metad_client", "metad_service"}


# --- compose ------------------------------------------------------------------------------------------------------


def test_the_nodes_of_compose_are_one_cluster() -> None:
    nodes = compose_nodes()
    assert len(nodes) == 3
    for name, node in nodes.items():
        environment = image_environment() | node["environment"]
        assert {key for key in environment if key.startswith("METAD_")} <= VARIABLES.keys()
        config = load_config(None, overrides_of(environment))
        assert config.node_id == name
        assert config.cluster.seeds == {each: f"{each}:{PORTS['METAD_CLUSTER_LISTEN']}" for each in nodes}
        assert config.cluster.advertise_clients == f"{name}:{PORTS['METAD_LISTEN']}"
        assert config.security.plaintext
        assert node["volumes"] == [f"{name}:/data"]
        assert name in compose()["volumes"]
        assert int(node["stop_grace_period"].removesuffix("s")) >= TO_END_S
        assert "ports" not in node, "in clear text, and for whoever reaches it"
    assert compose()["networks"].keys() == {"private"}


def test_what_stands_beside_the_nodes_of_compose_finds_them() -> None:
    services, nodes = compose()["services"], compose_nodes()
    tool = services["metadctl"]["entrypoint"]
    arguments = metadctl_parser().parse_args([*tool[1:], "status"])
    assert arguments.endpoint == ",".join(f"{name}:{PORTS['METAD_LISTEN']}" for name in nodes)
    (job,) = yaml.safe_load((CONTAINER / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{name}:{PORTS['METAD_HTTP']}" for name in nodes]}]
    source = yaml.safe_load((CONTAINER / "grafana" / "source.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    version = metad.__version__
    for service in services.values():
        image, _, tag = service["image"].partition(":")
        assert tag == version if image == "metad" else re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for mount in service.get("volumes", []):
            source, _, _ = mount.partition(":")
            made = source in ("./rules", "./dashboards")
            assert made or (CONTAINER / source).exists() if source.startswith(".") else source in compose()["volumes"]


# --- Kubernetes ---------------------------------------------------------------------------------------------------


def test_the_pods_are_the_founders_and_have_the_names_of_their_service() -> None:
    (generated,) = kustomization()["configMapGenerator"]
    (file,) = generated["files"]
    service = next(one["metadata"]["name"] for one in manifests() if one["kind"] == "Service")
    assert manifest("StatefulSet")["serviceName"] == service
    assert manifest("Service")["clusterIP"] == "None"
    assert manifest("Service")["publishNotReadyAddresses"], "a majority of nodes forms the cluster before one is ready"
    assert manifest("StatefulSet")["podManagementPolicy"] == "Parallel", "the first one is ready after the second"
    addresses = {each: f"{each}.{service}:7421" for each in pods()}
    for pod in pods(more=1):
        environment = pod_environment(pod)
        assert {key for key in environment if key.startswith("METAD_")} <= VARIABLES.keys()
        del environment["METAD_JOIN" if pod in pods() else "METAD_SEEDS"]  # as the command does
        config = load_config(KUBERNETES / file, overrides_of(environment))
        assert config.node_id == pod
        assert config.cluster.seeds == (addresses if pod in pods() else {})
        assert config.cluster.join == ([] if pod in pods() else [*addresses.values()])
        assert config.cluster.advertise == f"{pod}.{service}:7421"
        assert config.cluster.advertise_clients == f"{pod}.{service}.{kustomization()['namespace']}.svc:7420"
        assert config.security.certificate == f"/certificates/node-{pod}.pem"
    (container,) = manifest("StatefulSet")["template"]["spec"]["containers"]
    assert container["command"][:2] == ["sh", "-c"]
    last = shlex.split(container["command"][2].splitlines()[-1])
    assert last[:2] == ["exec", "metad"], "SIGTERM is for metad"
    parsed = metad_parser().parse_args(last[2:])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert parsed.config == Path(mounts["settings"]) / file
    assert environment["METAD_DATA_DIR"].startswith(mounts["data"])
    (image,) = kustomization()["images"]
    assert image["newTag"] == metad.__version__
    volumes = {volume["name"]: volume for volume in manifest("StatefulSet")["template"]["spec"]["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == generated["name"]
    assert mounts.keys() == volumes.keys() | {
        one["metadata"]["name"] for one in manifest("StatefulSet")["volumeClaimTemplates"]
    }


def test_a_pod_is_probed_and_ended_as_a_node_wants_it() -> None:
    pod = manifest("StatefulSet")["template"]["spec"]
    (container,) = pod["containers"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    asked = {name: probe["exec"]["command"] for name, probe in probes.items()}
    program = ["/opt/metad/bin/python", "/opt/metad/probe.py"]
    assert asked == {
        "startup": [*program, "/livez"],
        "liveness": [*program, "/livez"],
        "readiness": [*program, "/readyz"],
    }
    waits_s = float(re.findall(r"_WAIT_S = ([\d.]+)", (CONTAINER / "probe.py").read_text())[0])
    assert all(probe["timeoutSeconds"] > waits_s for probe in probes.values())
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 1_800, "a long log is read"
    assert pod["terminationGracePeriodSeconds"] >= TO_END_S
    assert manifest("PodDisruptionBudget")["maxUnavailable"] == 1
    user, group = of("USER")[0].split(":")
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (int(user), int(group))
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == {port["port"] for port in manifest("Service")["ports"]} == {*PORTS.values()}
    allowed = {port["port"] for rule in manifest("NetworkPolicy")["ingress"] for port in rule["ports"]}
    assert allowed == ports
    assert manifest("NetworkPolicy")["policyTypes"] == ["Ingress"], "nodes dial brokers to learn whether these live"


def test_two_nodes_are_never_on_one_machine() -> None:
    spec = manifest("StatefulSet")
    (rule,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    labels = spec["template"]["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"] == labels
    assert manifest("Service")["selector"] == labels
    assert manifest("NetworkPolicy")["podSelector"] == manifest("PodDisruptionBudget")["selector"] == spec["selector"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
def test_kustomize_makes_the_same_of_the_manifests() -> None:
    command = ["kubectl", "kustomize", str(KUBERNETES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    made = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    settings = made.pop("ConfigMap")
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"metad:{metad.__version__}"
    assert settings["metadata"]["name"] in {volume.get("configMap", {}).get("name") for volume in pod["volumes"]}
    assert made.keys() == {one["kind"] for one in manifests()}
    for kind, one in made.items():
        assert one["metadata"]["namespace"] == kustomization()["namespace"]
        one["metadata"].pop("namespace")
        if kind != "StatefulSet":  # whose settings have the name of their content
            assert one in [*manifests()]


@pytest.mark.parametrize("version", ["1.32", "1.37"])
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    checker = pytest.importorskip("kubernetes_validate", reason="the extra manifests is not installed (make setup)")
    for one in manifests():
        checker.validate(one, version, strict=True)
    wrong = next(one for one in manifests() if one["kind"] == "PodDisruptionBudget")
    wrong["spec"]["maxUnavailble"] = 1
    with pytest.raises(checker.ValidationError):
        checker.validate(wrong, version, strict=True)


def test_every_file_of_the_folder_is_looked_at() -> None:
    """A file that is added needs its test."""
    known = ["systemd/metad.*", "container/*", "kubernetes/*.yaml", "kubernetes/metad.toml", "README.md"]
    files = {
        path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }
    assert not [name for name in files if not any(fnmatch(name, pattern) for pattern in known)]
    listed = {f"kubernetes/{name}" for name in [*kustomization()["resources"], "metad.toml", "kustomization.yaml"]}
    assert {name for name in files if name.startswith("kubernetes/")} == listed
