"""What a node says of the end of its certificates, and when."""

from __future__ import annotations

import datetime
import io
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from metad.log_events import EVENTS
from metad.logs import Repeats
from metad.server.serve import LOOK_S, SAY_S, Certificates
from metad_wire.operator.authority import Authority
from metad_wire.transport import unfinished
from metad_wire.transport.credentials import Principal, Role

DAY_S = 86_400


def issue(path: Path, seconds: float) -> float:
    """A certificate that ends so long from now; the time of its end."""
    end = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(seconds=seconds)
    begin = end - datetime.timedelta(days=200)
    issued = Authority.create().issue(Principal(Role.NODE, "n1"), not_before=begin, not_after=end)
    path.write_bytes(issued.certificate)
    return end.timestamp()


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(str(record.msg), Path(record.fields["path"]).name) for record in caplog.records]  # type: ignore[attr-defined]
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("metad"), "propagate", True)
    caplog.set_level(logging.INFO, "metad")


def test_the_end_itself_is_an_error_that_names_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A node whose certificate was over said "end soon", as a warning, and that hourly."""
    path = tmp_path / "n1.pem"
    end_s = issue(path, 10 * DAY_S)
    certificates = Certificates({"certificate": str(path), "ca": ""})
    certificates.look(end_s - 10 * DAY_S)
    assert said(caplog) == [("certificates_end_soon", "n1.pem")]
    certificates.look(end_s - 1)
    assert said(caplog) == [("certificates_end_soon", "n1.pem")], "an hour has passed"
    certificates.look(end_s)
    assert said(caplog) == [("certificates_ended", "n1.pem")], "at the end, not an hour later"
    assert EVENTS["certificates_ended"].level == logging.ERROR
    for look in range(1, int(SAY_S // LOOK_S)):
        certificates.look(end_s + look * LOOK_S)
    assert said(caplog) == [], "and at a low rate"
    certificates.look(end_s + SAY_S)
    assert said(caplog) == [("certificates_ended", "n1.pem")]


def test_a_replaced_file_is_looked_at_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "n1.pem"
    end_s = issue(path, 100 * DAY_S)
    certificates = Certificates({"certificate": str(path)})
    certificates.look(end_s - 100 * DAY_S)
    assert said(caplog) == []
    other = tmp_path / "other.pem"
    sooner_s = issue(other, DAY_S)
    os.replace(other, path)
    certificates.look(sooner_s - DAY_S + LOOK_S)
    assert said(caplog) == [("certificates_end_soon", "n1.pem")]


def test_the_end_of_each_certificate_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that replaces another which has ended within the same minute: it counted as the same line again."""
    path, lines = tmp_path / "n1.pem", io.StringIO()
    now = [0.0]
    handler = logging.StreamHandler(lines)
    handler.addFilter(Repeats(lambda: now[0]))
    monkeypatch.setattr(logging.getLogger("metad"), "handlers", [handler])
    certificates = Certificates({"certificate": str(path)})
    first_s = issue(path, -10)
    certificates.look(first_s + 10)
    other = tmp_path / "other.pem"
    second_s = issue(other, 12)
    os.replace(other, path)
    certificates.look(second_s - 12)
    now[0] = 12.0
    certificates.look(second_s)
    assert lines.getvalue().split() == ["certificates_ended", "certificates_end_soon", "certificates_ended"]


def test_each_file_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leaf, ca = tmp_path / "n1.pem", tmp_path / "ca.pem"
    issue(leaf, 40 * DAY_S)
    end_s = issue(ca, 5)
    Certificates({"certificate": str(leaf), "ca": str(ca)}).look(end_s + 1)
    assert said(caplog) == [("certificates_ended", "ca.pem")]


def test_a_calendar_that_is_set_back_does_not_silence_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "n1.pem"
    end_s = issue(path, DAY_S)
    certificates = Certificates({"certificate": str(path)})
    certificates.look(end_s + 10 * DAY_S)
    certificates.look(end_s + 9 * DAY_S)
    assert said(caplog) == [("certificates_ended", "n1.pem")] * 2


def test_peers_that_come_again_and_again_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """They are refused ten times a second once a certificate is over."""
    now = [0.0]
    sparing = unfinished._refusals
    monkeypatch.setattr(sparing, "_now", lambda: now[0])
    monkeypatch.setattr(sparing, "_since_s", float("-inf"))
    for tenth in range(600):
        now[0] = tenth / 10
        unfinished.log_refused("TLS handshake refused: certificate expired")
    assert len([record for record in caplog.records if record.msg == "tls_refused"]) <= 10
