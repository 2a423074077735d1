"""``metadctl certs`` and ``metadctl token``: files that work, and mistakes in one line."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from metad_client.cli import main
from metad_wire.operator.authority import Authority, AuthorityError, issue_fleet
from metad_wire.operator.tokens import Tokens
from metad_wire.transport.credentials import Principal, Role, TlsFiles, broker_files, client_files
from metad_wire.transport.tls_context import client_context, server_context


def test_one_command_makes_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "certs"
    names = ["--nodes", "a,b,c", "--clients", "app", "--admins", "ops", "--brokers", "b1"]
    assert main(["certs", "--out", str(out), *names, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["for"] for row in rows] == ["node-a", "node-b", "node-c", "client-app", "admin-ops", "broker-b1"]
    for row in rows:
        files = TlsFiles(certificate=row["certificate"], key=row["key"], ca=row["ca"])
        client_context(files)
        server_context(files, certificate_required=True)
    assert client_files(str(out)).certificate == rows[3]["certificate"]
    assert client_files(str(out), administers=True).certificate == rows[4]["certificate"]
    assert client_files(str(out), "ops").certificate == rows[4]["certificate"]
    keys = [path for path in out.iterdir() if path.name.endswith("-key.pem")]
    assert len(keys) == 7
    assert broker_files(str(out), "b1").key == rows[5]["key"]
    assert client_files(str(out), "b1").certificate == rows[5]["certificate"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_an_authority_that_is_there_is_used_again(tmp_path: Path) -> None:
    assert main(["certs", "--out", str(tmp_path), "--nodes", "a", "--json"]) == 0
    ca, old = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "node-a.pem").read_bytes()
    assert main(["certs", "--out", str(tmp_path), "--nodes", "a,d", "--json"]) == 0
    assert (tmp_path / "ca.pem").read_bytes() == ca
    assert (tmp_path / "node-a.pem").read_bytes() != old, "renewed"
    assert (tmp_path / "node-d.pem").exists()


def test_certificates_last_as_long_as_is_said_and_are_listed_with_their_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path), "--json"]
    assert main(["certs", *out, "--nodes", "a"]) == 0
    assert main(["certs", *out, "--clients", "app", "--days", "7"]) == 0
    capsys.readouterr()
    assert main(["certs", "list", *out]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["for"] for row in rows] == ["client-app", "node-a", "ca"]
    assert [row["days"] for row in rows[:2]] == [6, 364], "whole days that are left"
    assert main(["certs", "list", "--out", str(tmp_path / "none")]) == 1


def test_a_certificate_names_its_role_and_hosts(tmp_path: Path) -> None:
    issue_fleet(tmp_path, ["a"], [], ["10.0.0.1", "a.example"])
    names = ssl._ssl._test_decode_cert(str(tmp_path / "node-a.pem"))["subjectAltName"]  # type: ignore[attr-defined]
    assert set(names) == {("URI", "metad://node/a"), ("IP Address", "10.0.0.1"), ("DNS", "a.example")}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no names to issue for"),
        (["--nodes", "a b"], "is not a name"),
        (["--clients", "../x"], "is not a name"),
        (["--nodes", "a", "--days", "0"], "lasts from 1 to 3650 days"),
        (["--nodes", "a", "--hosts", "ü.example"], "neither an address nor a host name"),
    ],
)
def test_mistakes_are_said_in_one_line(
    tmp_path: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", "--out", str(tmp_path / "certs"), *arguments]) in (1, 2)
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not (tmp_path / "certs").exists(), "nothing was begun"


def test_an_authority_of_somebody_else_is_refused(tmp_path: Path) -> None:
    one, other = Authority.create().own(), Authority.create().own()
    (tmp_path / "ca.pem").write_bytes(one.certificate)
    (tmp_path / "ca-key.pem").write_bytes(other.key)
    with pytest.raises(AuthorityError, match="not its certificate's"):
        issue_fleet(tmp_path, ["a"], [])
    (tmp_path / "ca-key.pem").write_text("no key")
    with pytest.raises(AuthorityError, match="not an authority made by metad"):
        issue_fleet(tmp_path, ["a"], [])


@pytest.mark.parametrize(("missing", "what"), [("ca.pem", "certificate"), ("ca-key.pem", "key")])
def test_an_authority_of_which_a_file_is_elsewhere(
    tmp_path: Path, missing: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key is kept offline. Once wrong: "cannot write to certs: No such file or directory"."""
    issue_fleet(tmp_path, ["a"], [])
    (tmp_path / missing).unlink()
    capsys.readouterr()
    assert main(["certs", "--out", str(tmp_path), "--nodes", "b"]) == 1
    assert f"{tmp_path / missing} is missing: put the {what} of this authority there" in capsys.readouterr().err
    assert not (tmp_path / missing).exists()


def test_no_two_certificates_have_one_serial_number() -> None:
    authority = Authority.create()
    principal = Principal(Role.CLIENT, "app")
    assert authority.issue(principal).certificate != authority.issue(principal).certificate


@pytest.mark.parametrize(
    ("clients", "name", "complaint"),
    [([], "", "no client"), (["a", "b"], "", "say which"), (["a"], "c", "no client c")],
)
def test_which_client_to_be_must_be_clear(tmp_path: Path, clients: list[str], name: str, complaint: str) -> None:
    issue_fleet(tmp_path, ["n"], clients)
    with pytest.raises(ValueError, match=complaint):
        client_files(str(tmp_path), name)


def test_an_administrator_will_do_where_there_is_no_client(tmp_path: Path) -> None:
    issue_fleet(tmp_path, ["n"], [], admins=["ops"])
    assert client_files(str(tmp_path)).certificate == str(tmp_path / "admin-ops.pem")


def test_a_token_is_printed_once_and_its_hash_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens"
    tokens = []
    for name in ("app", "app", "other"):
        assert main(["token", name, "--file", str(path)]) == 0
        tokens.append(capsys.readouterr().out.strip())
    kept = path.read_text()
    assert all(token not in kept for token in tokens)
    assert [Tokens.read(str(path)).holder(token.encode()) for token in tokens] == ["app", "app", "other"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_of_tokens_keeps_its_owner_its_mode_and_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, link = tmp_path / "tokens", tmp_path / "link"
    path.touch()
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12_345, 54_321)
    link.symlink_to(path)
    before = path.stat()
    assert main(["token", "app", "--file", str(link)]) == 0
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert link.is_symlink()
    assert Tokens.read(str(path)).holder(capsys.readouterr().out.strip().encode()) == "app"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "tokens"]


def test_a_file_of_tokens_whose_owner_cannot_be_kept_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    path.write_text("# kept\n")

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refused)
    assert main(["token", "app", "--file", str(path)]) == 1
    assert "Operation not permitted" in capsys.readouterr().err
    assert path.read_text() == "# kept\n"
    assert [each.name for each in tmp_path.iterdir()] == ["tokens"]


def test_a_file_that_nodes_would_refuse_is_not_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens"
    path.write_text("something else\n")
    assert main(["token", "app", "--file", str(path)]) == 1
    assert "line 1" in capsys.readouterr().err
    assert path.read_text() == "something else\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--endpoint", "metads://h:1"], "needs --certs DIR"),
        (["--endpoint", "metads://h:1", "--tls-cert", "c"], "--tls-ca is missing"),
        (["--endpoint", "metads://h:1", "--certs", "/none"], "no client"),
        (["--endpoint", "metads://h:1", "--tls-ca", "/none"], "authorities"),
        (["--endpoint", "https://h:1"], "no transport for https"),
        (["--token-file", "/none"], "cannot read the token"),
        (["--endpoint", "h:1", "--certs", "/none"], "no client"),
        (["--endpoint", "metad://h:1", "--tls-ca", "/none"], "metad:// is in clear text, and certificates are given"),
    ],
)
def test_what_a_scheme_lacks_is_a_wrong_command_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*arguments, "status"])
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_an_output_that_takes_nothing_ends_it_with_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "metad_client.cli", "token", "app", "--file", str(tmp_path / "tokens")]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "metadctl: cannot write the output: No space left on device\n")
