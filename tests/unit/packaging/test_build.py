"""What a build says of itself: the commit comes from git's own files in a checkout, and from a module in a wheel. A
repository that packs its references, and a further work tree, were read as having no commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import metad_wire
from metad_wire.program import build as b


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "commit", "--quiet", "--allow-empty", "--message=first")
    return folder


def test_a_checkout_is_at_what_git_says(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert b.commit_of(checkout) == head
    git(checkout, "pack-refs", "--all")
    assert b.commit_of(checkout) == head
    further = checkout.parent / "further"
    git(checkout, "worktree", "add", "--quiet", "-b", "topic/a", str(further))
    git(further, "commit", "--quiet", "--allow-empty", "--message=second")
    assert b.commit_of(further) == git(further, "rev-parse", "HEAD") != head
    git(checkout, "checkout", "--quiet", "--detach")
    assert b.commit_of(checkout) == head


@pytest.mark.parametrize("head", ["", "ref: refs/heads/main", "nonsense", "ref: HEAD"])
def test_what_is_no_checkout_has_no_commit(tmp_path: Path, head: str) -> None:
    assert b.commit_of(tmp_path) == ""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    (tmp_path / ".git" / "packed-refs").write_text("")
    assert b.commit_of(tmp_path) == ""


@pytest.mark.parametrize(
    ("packed", "commit", "said"),
    [
        ("0123456789abcdef.dirty", "", "+g0123456789.dirty"),
        ("0123456789abcdef", "fedcba98765", "+g0123456789"),  # a wheel that lies in a checkout says its own
        ("", "fedcba98765432", "+gfedcba9876.src"),
        ("", "", ""),
    ],
)
def test_version_and_commit(monkeypatch: pytest.MonkeyPatch, packed: str, commit: str, said: str) -> None:
    monkeypatch.setattr(b, "_of_wheel", lambda: packed)
    monkeypatch.setattr(b, "commit_of", lambda _: commit)
    b.build.cache_clear()
    try:
        assert b.build() == metad_wire.__version__ + said
    finally:
        b.build.cache_clear()
