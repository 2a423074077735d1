"""The wheel in a fresh environment with msgspec alone: the SDK works, and every other command names the extra it wants.

Nothing is downloaded. The wheel is built with the setuptools beside this Python, and msgspec is copied from there.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from e2e_server import Server

from metad_wire import __version__

ROOT = Path(__file__).resolve().parents[2]
PARTS = ["pyproject.toml", "README.md", "LICENSE", "metad", "wire", "clients", "perf", "spark"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, because a build leaves files beside them."""
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / part, source / part)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of everything but the MQTT brokers."""
    return built(source, tmp_path_factory.mktemp("wheel"))


def built(source: Path, target: Path) -> Path:
    how = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    build = [sys.executable, "-m", "pip", "wheel", *how, "--wheel-dir", str(target), str(source)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = target.glob("*.whl")
    return wheel


def copy_installed(distribution: str, environment: Path) -> None:
    """Copy a package from beside this Python, as nothing is downloaded."""
    (packages,) = environment.glob("lib/python*/site-packages")
    found = importlib.metadata.distribution(distribution)
    for name in {Path(str(file)).parts[0] for file in found.files or ()} - {".."}:
        source = Path(str(found.locate_file(name)))
        if source.is_dir():
            shutil.copytree(source, packages / name, dirs_exist_ok=True)
        else:
            shutil.copy(source, packages / name)


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a fresh environment that has the wheel and msgspec."""
    environment = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=300)
    copy_installed("msgspec", environment)
    pip = [str(environment / "bin" / "pip")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel)], check=True, timeout=300)
    subprocess.run([*pip, "check"], check=True, timeout=300)
    return environment / "bin"


def run(base: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without the paths of the checkout."""
    return subprocess.run(
        [str(base / command), *arguments], capture_output=True, text=True, timeout=300, env={"PATH": str(base)}, cwd="/"
    )


def metadata(wheel: Path) -> tuple[Message, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()), archive.namelist()


def test_the_wheel_carries_licence_version_and_types(wheel: Path) -> None:
    fields, names = metadata(wheel)
    assert fields["Name"] == "metad-service"
    assert fields["Version"] == __version__
    assert fields["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {"metad/py.typed", "metad_wire/py.typed", "metad_client/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "metad_amqtt"))]


def test_the_mqtt_brokers_are_a_distribution_of_their_own(source: Path, tmp_path: Path) -> None:
    fields, names = metadata(built(source / "clients" / "metad_amqtt", tmp_path))
    assert (fields["Name"], fields["Version"]) == ("metad-amqtt", __version__)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"metad_amqtt"}
    brokers = ROOT / "clients" / "metad_amqtt"
    files = {str(file.relative_to(brokers.parent)) for file in brokers.rglob("*.py")}
    assert files | {"metad_amqtt/py.typed"} == {name for name in names if "dist-info" not in name}


@pytest.mark.parametrize("command", ["metad", "metadctl", "metad-perf", "metad-spark"])
def test_every_command_of_the_base_helps_and_tells_its_version(base: Path, command: str) -> None:
    assert run(base, command, "--version").stdout == f"{command} {__version__}\n"
    assert run(base, command, "--help").returncode == 0


@pytest.mark.parametrize(
    ("extra", "command", "arguments"),
    [
        ("server", "metad", ["serve", "--data-dir", "nowhere"]),
        ("server", "metad", ["cluster", "--data-dir", "nowhere"]),
        ("perf", "metad-perf", ["demo"]),
        ("perf", "metad-perf", ["load", "--spawn", "--verb", "kv.put"]),
        ("spark", "metad-spark", ["simulate"]),
        ("spark", "metad-spark", ["verify"]),
        ("quic", "metadctl", ["certs", "--out", "nowhere", "--nodes", "a"]),
    ],
)
def test_what_the_base_lacks_is_named_in_one_line(base: Path, extra: str, command: str, arguments: list[str]) -> None:
    """Each of them ended with a traceback."""
    done = run(base, command, *arguments)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{command}: ")
    assert f"pip install '.[{extra}]'" in line
    assert done.returncode == (1 if command == "metadctl" else 2)
    assert not done.stdout


def test_an_embedded_server_of_the_base_is_an_import_error_that_says_what_to_install(base: Path) -> None:
    done = run(base, "python", "-c", "import metad.embedded")
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: metad.embedded: the Python package ")
    assert done.stderr.rstrip().endswith("pip install '.[server]'")


def test_the_configuration_can_be_looked_up_without_the_server(base: Path) -> None:
    assert run(base, "metad", "config").stdout.startswith("# Configuration")


def test_the_sdk_of_the_base_works(base: Path, tmp_path: Path) -> None:
    with Server(tmp_path / "data").ready() as server:
        program = f"""
import asyncio, sys
from metad_client import SessionTakeoverItem, connect
async def main():
    async with connect("metad://{server.endpoint}") as m:
        await m.kv.put("config", "greeting", b"hello")
        taken = await m.sessions.takeover_many("b", 1, [SessionTakeoverItem("t", str(i)) for i in range(100)])
        taken.raise_for_error()
        await m.offsets.commit("t", "g", "orders", 0, 42)
        assert (await m.kv.get("config", "greeting")).value == b"hello"
asyncio.run(main())
print(sorted(name for name in ("numpy", "uvloop", "aioquic", "metad") if name in sys.modules))
"""
        done = run(base, "python", "-c", program)
        assert (done.stdout, done.stderr) == ("[]\n", "")
        got = run(base, "metadctl", "--endpoint", server.endpoint, "get", "kv", "config", "greeting")
        assert "hello" in got.stdout, got.stderr


def test_the_pytest_plugin_of_the_base_loads_and_says_what_its_fixtures_need(base: Path, tmp_path: Path) -> None:
    """Everybody who has the SDK and pytest has the plugin: it must not break tests that use nothing of it."""
    for distribution in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        copy_installed(distribution, base.parent)
    (tmp_path / "test_it.py").write_text(
        "def test_of_something_else(): pass\n"
        "def test_with_a_server(metad): pass\n"
        "def test_with_a_cluster(metad_cluster): pass\n"
    )
    done = run(base, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
    assert "1 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "plugins: metad-service" in run(base, "python", "-m", "pytest", str(tmp_path)).stdout
    advice = [line for line in done.stdout.splitlines() if line.startswith("metad.embedded: the Python package")]
    assert len(advice) >= 2
    assert all(line.endswith("pip install '.[server]'") for line in advice)
    assert "Traceback" not in done.stdout
