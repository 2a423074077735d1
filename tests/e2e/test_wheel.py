"""The wheels in fresh environments with msgspec alone: the SDK works, and every other command names the extra it wants.

Nothing is downloaded. The wheels are built with the setuptools beside this Python, and msgspec is copied from there.
"""

from __future__ import annotations

import importlib.metadata
import os
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
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OF_CLIENTS = ("clients/metad_backup", "clients/metad_transfer", "clients/metad_pytest", "clients/metad_console")
STATIC = ROOT / "clients" / "metad_console" / "static"
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
def sdk_wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the SDK and the wire."""
    return built(source / "clients", tmp_path_factory.mktemp("sdk"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the server and the tools."""
    return built(source, tmp_path_factory.mktemp("wheel"))


def built(source: Path, target: Path) -> Path:
    how = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    build = [sys.executable, "-m", "pip", "wheel", *how, "--wheel-dir", str(target), str(source)]
    subprocess.run(build, check=True, timeout=300, env={**os.environ, "METAD_COMMIT": COMMIT})
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
def sdk(sdk_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a fresh environment that has msgspec and the SDK."""
    return environment_of(tmp_path_factory.mktemp("sdk"), sdk_wheel)


@pytest.fixture(scope="module")
def base(sdk_wheel: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a fresh environment that has msgspec, the SDK and the server without its extra."""
    return environment_of(tmp_path_factory.mktemp("base"), sdk_wheel, wheel)


def environment_of(environment: Path, *wheels: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=300)
    copy_installed("msgspec", environment)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--quiet", *map(str, wheels)], check=True, timeout=300)
    subprocess.run([*pip, "check"], check=True, timeout=300)
    return environment / "bin"


def run(base: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without the paths of the checkout."""
    return subprocess.run(
        [str(base / command), *arguments], capture_output=True, text=True, timeout=300, env={"PATH": str(base)}, cwd="/"
    )


def extra_of(extra: str) -> str:
    """How a command tells to get it."""
    own = extra in ("prometheus", "quic", "schemas")
    return f"pip install './clients[{extra}]'" if own else f"pip install ./clients '.[{extra}]'"


def metadata(wheel: Path) -> tuple[Message, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()), archive.namelist()


def test_each_distribution_brings_its_packages_whole_and_nothing_else(
    source: Path, wheel: Path, sdk_wheel: Path, tmp_path: Path
) -> None:
    mqtt_wheel = built(source / "clients" / "metad_amqtt", tmp_path)
    for name, found, packages in (
        ("metad-client", sdk_wheel, ("clients/metad_client", "wire/metad_wire")),
        ("metad-amqtt", mqtt_wheel, ("clients/metad_amqtt",)),
        ("metad-service", wheel, ("metad", *OF_CLIENTS, *(f"perf/metad_{of}" for of in ("judge", "perf")))),
    ):
        fields, names = metadata(found)
        assert (fields["Name"], fields["Version"], fields["License-Expression"]) == (name, __version__, "Apache-2.0")
        assert any(each.endswith("licenses/LICENSE") for each in names)
        folders = [ROOT / package for package in packages]
        if name == "metad-service":
            folders.append(ROOT / "spark" / "metad_spark")
        files = {str(file.relative_to(folder.parent)) for folder in folders for file in folder.rglob("*.py")}
        if name == "metad-client":  # the copy that is built has no history: it was told its commit
            files.add("metad_wire/_commit.py")
        assert {each for each in names if each.endswith(".py")} == files
        shown = {f"metad_console/static/{file.name}" for file in STATIC.iterdir()} if name == "metad-service" else set()
        assert shown <= {*names}
        assert {f"{folder.name}/py.typed" for folder in folders if (folder / "py.typed").exists()} <= {*names}


@pytest.mark.parametrize("command", ["metad", "metadctl", "metad-perf", "metad-spark", "metad-console"])
def test_every_command_of_the_base_helps_and_tells_its_version(base: Path, command: str) -> None:
    assert run(base, command, "--version").stdout == f"{command} {__version__}+g{COMMIT[:10]}\n"
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
        ("console", "metad-console", []),
        ("quic", "metadctl", ["certs", "--out", "nowhere", "--nodes", "a"]),
    ],
)
def test_what_the_base_lacks_is_named_in_one_line(base: Path, extra: str, command: str, arguments: list[str]) -> None:
    """Each of them ended with a traceback."""
    done = run(base, command, *arguments)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{command}: ")
    assert extra_of(extra) in line
    assert done.returncode == (1 if command == "metadctl" else 2)
    assert not done.stdout


def test_an_embedded_server_of_the_base_is_an_import_error_that_says_what_to_install(base: Path) -> None:
    done = run(base, "python", "-c", "import metad.embedded")
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: metad.embedded: the Python package ")
    assert done.stderr.rstrip().endswith(extra_of("server"))


def test_the_metrics_of_the_sdk_without_their_extra_are_an_import_error_that_says_what_to_install(sdk: Path) -> None:
    done = run(sdk, "python", "-c", "import metad_client.prometheus")
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: metad_client.prometheus: the Python package ")
    assert done.stderr.rstrip().endswith(extra_of("prometheus"))


def test_the_configuration_can_be_looked_up_without_the_server(base: Path) -> None:
    assert run(base, "metad", "config").stdout.startswith("# Configuration")


def test_the_sdk_works_alone(sdk: Path, tmp_path: Path) -> None:
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
        done = run(sdk, "python", "-c", program)
        assert (done.stdout, done.stderr) == ("[]\n", "")
        got = run(sdk, "metadctl", "--endpoint", server.endpoint, "get", "kv", "config", "greeting")
        assert "hello" in got.stdout, got.stderr
        file = tmp_path / "order.avsc"
        file.write_text('"int"')
        words = ("schemas", "register", "acme", "order", str(file))
        done = run(sdk, "metadctl", "--endpoint", server.endpoint, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(
            "metadctl: the Python package avro is not installed. It comes with the extra schemas"
        )
        assert done.stderr.rstrip().endswith(extra_of("schemas"))


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
    assert all(line.endswith(extra_of("server")) for line in advice)
    assert "Traceback" not in done.stdout
