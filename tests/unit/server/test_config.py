"""Every mistake in a configuration is named by its field; the reference page is what the code says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metad.cli import main
from metad.config import Config, load_config
from metad.config.declarations import Section
from metad.config.environment import VARIABLES, overrides_of, unknown_variables
from metad.config.pages import reference
from metad.errors import ConfigError

MIB = 1024 * 1024


def load(tmp_path: Path, toml: str, **overrides: Any) -> Config:
    path = tmp_path / "metad.toml"
    path.write_text(toml)
    return load_config(path, {"data_dir": "d"} | overrides)


def test_defaults_need_only_a_data_directory() -> None:
    config = load_config(None, {"data_dir": "d"})
    assert config == Config(data_dir="d")
    assert config.limits.connections_max == 4096


def test_a_file_is_read_and_flags_win(tmp_path: Path) -> None:
    config = load(
        tmp_path, 'data_dir = "x"\nlisten = "[::]:1"\n[groups]\ndata = 9\n[commit]\nlinger_ms = 1.5\n', listen="h:2"
    )
    assert (config.data_dir, config.listen, config.groups.data, config.commit.linger_ms) == ("d", "h:2", 9, 1.5)
    assert (config.groups.offset, config.groups.metadata) == (2, 1)


@pytest.mark.parametrize(
    ("toml", "match"),
    [
        ("a", "metad.toml: "),  # no TOML
        ("surprise = 1", "surprise: unknown key"),
        ("[limits]\nsurprise = 1", r"limits\.surprise: unknown key"),
        ("[groups]\nsession = 1", r"groups\.session: unknown key"),
        ("limits = 1", r"limits: expected `table`, got `int`"),
        ("listen = 7420", r"listen: expected `str`, got `int`"),
        ("fsync = 1", r"fsync: expected `bool`, got `int`"),
        ('[groups]\ndata = "4"', r"groups\.data: expected `int`, got `str`"),
        ("[groups]\ndata = true", r"groups\.data: expected `int`, got `bool`"),
        ("[groups]\ndata = 1.5", r"groups\.data: expected `int`, got `float`"),
        ("[groups]\ndata = 0", r"groups\.data: 0 is too small"),
        ("[groups]\noffset = -1", r"groups\.offset: -1 is too small"),
        ("[groups]\nmetadata = 0", r"groups\.metadata: 0 is too small"),
        ("[groups]\nmetadata = 1025", r"groups\.metadata: at most 1024"),
        ("[groups]\ndata = 1025", r"groups\.data: at most 1024"),
        ("[storage]\nengine = 'disk'", r"storage\.engine: 'disk' is neither"),
        ("[storage]\nlow_room_share = -0.1", r"storage\.low_room_share: -0.1 is too small"),
        ("[storage]\nlow_room_share = 0.51", r"storage\.low_room_share: 0.51 is too large: at most 0.5"),
        ("[storage]\nlow_room_share = nan", r"storage\.low_room_share: nan is too large"),
        ("[storage]\nblock_cache_bytes = 0", r"storage\.block_cache_bytes: 0 is too small"),
        (f"[storage]\nmemtable_bytes = {2**63}", r"storage\.memtable_bytes: .* is too large"),
        (f"[storage]\nmemtable_bytes = {10**30}", "memtable_bytes|out of range|too large"),
        ("[limits]\nframe_bytes_max = 1048576", r"limits\.frame_bytes_max: at least 4 MiB"),
        (f"[limits]\nframe_bytes_max = {2048 * MIB}", r"limits\.frame_bytes_max: .*at most 1 GiB"),
        (
            f"[limits]\nconnection_window_bytes = {8 * MIB}",
            r"limits\.connection_window_bytes: must hold at least one frame",
        ),
        (f"[limits]\nin_flight_bytes_max = {8 * MIB}", r"limits\.in_flight_bytes_max: must hold at least one frame"),
        (f"[limits]\nunfinished_bytes_max = {8 * MIB}", r"limits\.unfinished_bytes_max: must hold at least one frame"),
        ("[limits]\nhandshake_timeout_ms = 0", r"limits\.handshake_timeout_ms: 0 is too small"),
        ("[commit]\nentry_items_max = 0", r"commit\.entry_items_max: 0 is too small"),
        ("[commit]\nlinger_ms = -0.1", r"commit\.linger_ms: -0.1 is too small"),
        ("[commit]\nlinger_ms = nan", r"commit\.linger_ms: nan is too large"),
        ("[commit]\nlinger_ms = inf", r"commit\.linger_ms: inf is too large"),
        ("[dedupe]\nidentities_max = 0", r"dedupe\.identities_max: 0 is too small"),
        ("[raft]\nelection_timeout_ms = 0", r"raft\.election_timeout_ms: 0 is too small"),
        ("[raft]\nheartbeat_ms = 201", r"raft\.heartbeat_ms: at most a third of raft\.election_timeout_ms"),
        (
            "[raft]\nlease_ms = 601",
            r"raft\.lease_ms: longer than raft\.heartbeat_ms, and at most raft\.election_timeout_ms",
        ),
        ("[raft]\nlease_ms = 100", r"raft\.lease_ms: longer than raft\.heartbeat_ms"),
        ("[raft]\nlease_ms = -1", r"raft\.lease_ms: -1 is too small"),
        ("[raft]\nstep_down_ms = 199", r"raft\.step_down_ms: at least raft\.lease_ms"),
        ("[raft]\nstep_down_ms = 1201", r"raft\.step_down_ms: .*at most two of raft\.election_timeout_ms"),
        ("[raft]\nlog_cache_bytes = 0", r"raft\.log_cache_bytes: 0 is too small"),
        ("[cluster]\nreplicas = 0", r"cluster\.replicas: 0 is too small"),
        ("[cluster]\nseeds = ['a:1']", r"cluster\.seeds: expected `table`, got `array`"),
        ("[cluster]\nseeds = { node-1 = { a = 1 } }", r"cluster\.seeds\[\.\.\.\]: expected `str`, got `table`"),
        ("plaintext = true", r"plaintext: unknown key; did you mean security\.plaintext\?"),
        ("[security]\nlisten = 'h:1'", r"security\.listen: unknown key; did you mean listen or cluster\.listen\?"),
        ("[cluster]\nseeds = { node-1 = 1 }", r"cluster\.seeds\[\.\.\.\]: expected `str`, got `int`"),
        ("[cluster]\njoin = 'a:1'", r"cluster\.join: expected `array`, got `str`"),
        ("[cluster]\nseeds = { a = 'h:1', b = 'h:2' }", "cluster.seeds: this node, 'node-1', is not among them"),
        (
            "[cluster]\nseeds = { node-1 = 'h:1' }\njoin = ['h:2']",
            r"cluster\.join: a founding node \(cluster\.seeds\) does not join",
        ),
        ('[cluster]\nseed_regions = {node-1 = "eu"}', "cluster.seed_regions: 'node-1' is not among cluster.seeds"),
        (
            '[cluster]\nseeds = {node-1 = "h:1"}\nseed_regions = {node-1 = ""}',
            "cluster.seed_regions.node-1: '' is not a valid region name",
        ),
        ('[cluster]\nregion = "\\n"', "cluster.region: .* is not a valid region name"),
        (
            '[cluster]\nseeds = {node-1 = "h:1"}\nregion = "us"\nseed_regions = {node-1 = "eu"}',
            "cluster.region: cluster.seed_regions says 'eu'",
        ),
        ("drain_timeout_ms = -1", "drain_timeout_ms: -1 is too small: at least 0"),
        ("log_level = 'loud'", "log_level: 'loud' is not one of debug"),
        ("node_id = 'a\u200bb'", "node_id: .* has characters that cannot be seen"),
        ("[security]\nadministrators = ['a']", "security.administrators: needs security.certificate"),
        ("node_id = ''", "node_id: must take 1 to 256 bytes"),
        (f"cluster_id = '{'é' * 129}'", "cluster_id: must take at most 256 bytes"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, toml: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        load(tmp_path, toml)
    assert "\n" not in str(caught.value)


def test_a_directory_is_required_for_what_shall_survive() -> None:
    with pytest.raises(ConfigError, match=r"data_dir: give a directory \(--data-dir or METAD_DATA_DIR\)"):
        load_config(None, {})
    assert load_config(None, {"storage": {"engine": "memory"}}).data_dir == ""


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml: No such file"):
        load_config(tmp_path / "missing.toml", {})
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        load_config(tmp_path, {})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.toml: "):
        load_config(tmp_path / "binary.toml", {})
    if os.getuid():
        (tmp_path / "secret.toml").touch(mode=0)
        with pytest.raises(ConfigError, match="Permission denied"):
            load_config(tmp_path / "secret.toml", {})


def sections() -> list[Section]:
    config = Config()
    return [config, *(v for f in Config.__struct_fields__ if isinstance(v := getattr(config, f), Section))]


def test_the_reference_lists_every_field_with_its_default() -> None:
    top, *parts = reference().split("\n## ")
    pages = {part.partition("\n")[0]: part for part in parts}
    config = Config()
    del pages["Environment variables"], pages["While a node runs"]
    assert set(pages) == {f"`[{f}]`" for f in Config.__struct_fields__ if isinstance(getattr(config, f), Section)}
    for section in sections():
        page = top if section == config else pages[f"`[{type(section).__name__.removesuffix('Config').lower()}]`"]
        for field in section.__struct_fields__:
            default = getattr(section, field)
            if isinstance(default, Section):
                continue
            row = next(line for line in page.splitlines() if line.startswith(f"| `{field}` |"))
            assert f"| `{msgspec.json.encode(default).decode()}` |" in row
            assert len(row.split("|")[4].strip()) > 5, f"{field} is not described"


def test_the_command_prints_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    assert capsys.readouterr().out == reference() + "\n"


@pytest.mark.parametrize("endpoint", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:-1"])
def test_endpoints_of_peers_are_checked_before_anything_is_opened(endpoint: str) -> None:
    for cluster in ({"seeds": {"node-1": endpoint}}, {"join": [endpoint]}):
        with pytest.raises(ConfigError, match=r"is not HOST:PORT|has no port"):
            load_config(None, {"storage": {"engine": "memory"}, "cluster": cluster})


# --- check, sample, environment ------------------------------------------------------------------------


def check(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> tuple[int, list[str]]:
    status = main(["config", "--check", str(path), *flags])
    return status, capsys.readouterr().out.splitlines()


def test_a_check_names_every_problem_by_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metad.toml"
    path.write_text("fsync = 1\nlog_levle = 'info'\n[limits]\nframe_bytes_max = '4'\n[cluster]\nseeds = { a = 1 }\n")
    assert check(capsys, path) == (
        1,
        [
            "fsync: expected `bool`, got `int`",
            "log_levle: unknown key; did you mean log_level?",
            "limits.frame_bytes_max: expected `int`, got `str`",
            "cluster.seeds[...]: expected `str`, got `int`",
        ],
    )
    path.write_text("listen = 'x'\n[limits]\nframe_bytes_max = 1\n[cluster]\nseeds = { a = 'h:1', b = 'q' }\n")
    status, lines = check(capsys, path)
    assert status == 1
    keys = [line.partition(":")[0] for line in lines]
    assert keys == ["limits.frame_bytes_max", "cluster.seeds", "listen", "cluster.seeds.b"]


def test_a_check_opens_the_certificates_and_looks_where_clear_text_would_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metad.toml"
    path.write_text("listen = '10.0.0.1:1'\n")
    assert check(capsys, path)[1][0].startswith("listen: 10.0.0.1:1 is not a loopback address")
    flags = ("--tls-cert", "none.pem", "--tls-key", "none.pem", "--tls-ca", "none.pem")
    assert "none.pem" in check(capsys, path, *flags)[1][0]


def test_a_check_says_what_is_in_clear_text_and_which_variables_mean_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once wrong: it printed the bare key of a log event, once for each address."""
    path = tmp_path / "metad.toml"
    path.write_text(
        "listen = '10.0.0.1:1'\n[cluster]\nseeds = { node-1 = '10.0.0.1:2' }\n[security]\nplaintext = true\n"
    )
    monkeypatch.setenv("METAD_NODEID", "a")
    assert main(["config", "--check", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{path}: no problems\n"
    assert printed.err.splitlines() == [
        "metad: listen: 10.0.0.1:1 is in clear text and open to all, as you confirm",
        "metad: cluster.listen: 10.0.0.1:2 is in clear text and open to all, as you confirm",
        "metad: METAD_NODEID is no variable of metad; did you mean METAD_NODE_ID?",
    ]


def test_a_file_without_problems_needs_no_data_directory_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metad.toml"
    path.write_text("node_id = 'a'\n")
    assert check(capsys, path) == (0, [f"{path}: no problems"])
    assert main(["config", "--check", str(tmp_path / "none.toml")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_the_sample_is_the_default_with_and_without_its_comment_signs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "--sample"]) == 0
    sample = capsys.readouterr().out
    assert all(len(line) <= 104 for line in sample.splitlines())
    assert load(tmp_path, sample) == Config(data_dir="d")
    every = re.sub(r"(?m)^#(?=[a-z_]+ = )", "", sample)
    assert load(tmp_path, every) == Config(data_dir="d")
    named = {key.rpartition(".")[2] for key in re.findall(r"(?m)^([a-z_]+) = ", every)}
    assert named == {field for section in sections() for field in section.__struct_fields__} - {
        field for field in Config.__struct_fields__ if isinstance(getattr(Config(), field), Section)
    }


def test_variables_win_over_the_file_and_flags_over_variables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metad.toml"
    path.write_text("node_id = 'file'\n[cluster]\nreplicas = 5\nseeds = { file = 'h:1' }\n")
    variables = {
        "METAD_NODE_ID": "a",
        "METAD_LISTEN": "h:2",
        "METAD_LOG_LEVEL": "",
        "METAD_SEEDS": "a=h:1, b=h:2",
        "METAD_REGION": "eu",
        "METAD_PLAINTEXT": "True",
    }
    config = load_config(path, {"data_dir": "d"} | overrides_of(variables))
    assert (config.node_id, config.listen, config.log_level) == ("a", "h:2", "info")
    assert (config.cluster.seeds, config.cluster.replicas) == ({"a": "h:1", "b": "h:2"}, 5)
    assert (config.cluster.region, config.security.plaintext) == ("eu", True)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("METAD_LISTEN", "nonsense")
    assert check(capsys, path) == (1, ["listen: not HOST:PORT: 'nonsense'"])
    assert check(capsys, path, "--listen", "h:3") == (0, [f"{path}: no problems"])


@pytest.mark.parametrize(
    ("variable", "text"), [("METAD_PLAINTEXT", "maybe"), ("METAD_SEEDS", "a"), ("METAD_SEEDS", "a=,b=h:1")]
)
def test_a_variable_that_makes_no_sense_is_named(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        overrides_of({variable: text})


def test_every_variable_sets_an_existing_key() -> None:
    for variable, key in VARIABLES.items():
        section, _, field = key.rpartition(".")
        assert hasattr(getattr(Config(), section) if section else Config(), field), variable


def test_a_misspelt_variable_is_noticed_and_that_of_another_program_is_not() -> None:
    """Kubernetes sets METAD_PORT and METAD_SERVICE_HOST beside a service named metad."""
    others = {"METAD_PORT": "tcp://10.0.0.1:7420", "METAD_SERVICE_HOST": "10.0.0.1", "METAD_REQUIRE_JVM": "1"}
    assert unknown_variables({"METAD_NODEID": "a", "HOME": "/", **others}) == {"METAD_NODEID": "METAD_NODE_ID"}
