"""What docs/packaging has for machines, read as its programs would read it: for the tests that look at it, and for
those that run what a container would run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "packaging"
CONTAINER = FOLDER / "container"
KUBERNETES = FOLDER / "kubernetes"
PORTS = {"METAD_LISTEN": 7420, "METAD_CLUSTER_LISTEN": 7421, "METAD_HTTP": 7480}


def instructions() -> list[tuple[str, str]]:
    """The steps of the Dockerfile: instruction, and the rest of it."""
    text = re.sub(r"(?m)^#.*\n", "", (CONTAINER / "Dockerfile").read_text()).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def of(name: str, *, last_stage: bool = True) -> list[str]:
    steps = instructions()
    begin = max(at for at, (step, _) in enumerate(steps) if step == "FROM") if last_stage else 0
    return [rest for step, rest in steps[begin:] if step == name]


def copied() -> list[str]:
    """What the image takes from the repository."""
    return [source for rest in of("COPY", last_stage=False) if "--from" not in rest for source in rest.split()[:-1]]


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(of("ENV"))))


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    return found


def compose_nodes() -> dict[str, dict[str, Any]]:
    return {name: one for name, one in compose()["services"].items() if "METAD_NODE_ID" in one.get("environment", {})}


def kustomization() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    return found


def manifests() -> Iterator[dict[str, Any]]:
    """Read every manifest."""
    for file in kustomization()["resources"]:
        yield from yaml.safe_load_all((KUBERNETES / file).read_text())


def manifest(kind: str) -> Any:
    return next(one["spec"] for one in manifests() if one["kind"] == kind)


def pod_environment(pod: str) -> dict[str, str]:
    """What a container of this pod gets."""
    (container,) = manifest("StatefulSet")["template"]["spec"]["containers"]
    known = {"metadata.name": pod, "metadata.namespace": kustomization()["namespace"]}
    found = image_environment()
    for variable in container["env"]:
        value = variable.get("value") or known[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda it: found[it[1]], value)
    return found


def pods(more: int = 0) -> list[str]:
    """The names that the stateful set gives its pods, with so many more."""
    (name,) = (one["metadata"]["name"] for one in manifests() if one["kind"] == "StatefulSet")
    return [f"{name}-{ordinal}" for ordinal in range(manifest("StatefulSet")["replicas"] + more)]
