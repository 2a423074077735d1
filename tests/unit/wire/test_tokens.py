"""Tokens: whose they are, and what a server keeps of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metad_wire.operator.tokens import TOKEN_BYTES_MAX, TokenFileError, Tokens, line_of, new_token


def test_a_token_is_known_by_its_line_and_the_line_does_not_hold_it() -> None:
    token = new_token("app")
    line = line_of(token)
    assert token.partition(".")[2] not in line
    assert Tokens.parse(f"# ours\n\n{line}\n").holder(token.encode()) == "app"


def test_no_two_tokens_are_alike() -> None:
    assert len({new_token("app") for _ in range(100)}) == 100


def test_a_name_may_have_two_tokens_while_one_takes_the_place_of_the_other() -> None:
    old, new = new_token("app"), new_token("app")
    tokens = Tokens.parse(f"{line_of(old)}\n{line_of(new)}\n")
    assert len(tokens) == 2
    assert tokens.holder(old.encode()) == tokens.holder(new.encode()) == "app"


@pytest.mark.parametrize(
    "wrong", [b"", b"app", b"app.", b".", b"other.x", b"\xff.\xff", b"app." + b"x" * TOKEN_BYTES_MAX]
)
def test_what_is_no_token_is_nobodys(wrong: bytes) -> None:
    assert Tokens.parse(line_of(new_token("app"))).holder(wrong) is None


def test_another_names_secret_is_not_this_ones() -> None:
    one, other = new_token("one"), new_token("other")
    tokens = Tokens.parse(f"{line_of(one)}\n{line_of(other)}")
    assert tokens.holder(f"one.{other.partition('.')[2]}".encode()) is None


@given(st.binary(max_size=300))
def test_no_bytes_get_in_by_chance(credentials: bytes) -> None:
    assert Tokens.parse(line_of("app.secret")).holder(credentials) == ("app" if credentials == b"app.secret" else None)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "-a", "x" * 65, "ü"])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid name"):
        new_token(name)


@pytest.mark.parametrize(
    "line", ["app", "app sha256:", "app sha256:" + "0" * 63, "app md5:" + "0" * 64, "a.b sha256:" + "0" * 64]
)
def test_a_broken_file_says_which_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{line_of(new_token('fine'))}\n{line}\n")
    with pytest.raises(TokenFileError, match=r"tokens: line 2"):
        Tokens.read(str(path))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="cannot read"):
        Tokens.read(str(tmp_path / "none"))
