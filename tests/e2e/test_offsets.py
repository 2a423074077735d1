"""Consumer groups that were fenced for ever, or are of no use any more, on a real server: with the SDK and metadctl."""

from __future__ import annotations

import json
from pathlib import Path

import e2e_metadctl
import pytest
from e2e_server import Server

from metad_client import ConflictError, FencedError, OffsetCommitItem, blocking
from metad_wire.messages import GENERATION_MAX


def test_a_fenced_group_is_freed_and_a_dead_one_deleted(tmp_path: Path) -> None:
    def metadctl(server: Server, *arguments: str) -> tuple[int, str]:
        done = e2e_metadctl.metadctl(server.endpoint, "--json", *arguments)
        return done.returncode, done.stdout + done.stderr

    with Server(tmp_path / "d") as server, blocking.connect(server.ready().url) as client:
        offsets = client.offsets
        items = [OffsetCommitItem("t", "g", f"topic-{i % 7}", i, i, generation=4) for i in range(2_500)]
        offsets.commit_many(items).raise_for_error()
        offsets.commit("t", "other", "topic", 0, 1, generation=9)
        offsets.commit("t", "g", "topic-0", 0, 1, generation=GENERATION_MAX)
        with pytest.raises(FencedError):
            offsets.commit("t", "g", "topic-0", 0, 2, generation=5)
        status, printed = metadctl(server, "groups", "consumer", "get", "t", "g", "--limit", "0")
        group = json.loads(printed)
        assert (status, group["generation"], len(group["offsets"])) == (0, GENERATION_MAX, 2_500)
        status, printed = metadctl(server, "groups", "consumer", "reset", "t", "g", "5", "--expected", "3")
        assert status == 1
        assert f"generation is {GENERATION_MAX}" in printed
        assert metadctl(server, "groups", "consumer", "reset", "t", "g", "5", "--expected", str(GENERATION_MAX))[0] == 0
        offsets.commit("t", "g", "topic-0", 0, 2, generation=5)
        with pytest.raises(FencedError):
            offsets.commit("t", "g", "topic-0", 0, 3, generation=4)
        with pytest.raises(ConflictError):
            offsets.reset_generation("t", "g", 4)

        assert [(one.group, one.generation) for one in offsets.groups("t")] == [("g", 5), ("other", 9)]
        assert [one.group for one in offsets.groups("t", "o")] == ["other"]
        status, printed = metadctl(server, "groups", "consumer", "--tenant", "t", "--prefix", "g")
        listed = {"groups": [{"tenant": "t", "group": "g", "generation": 5}], "more": False}
        assert (status, json.loads(printed)) == (0, listed)

        assert offsets.delete_group("t", "g") == 2_500
        assert list(offsets.list("t", "g")) == []
        assert (offsets.generation("t", "g"), offsets.generation("t", "other")) == (0, 9)
        status, printed = metadctl(server, "groups", "consumer", "delete", "t", "other")
        assert (status, json.loads(printed)) == (0, {"offsets_deleted": 1})
        assert list(offsets.groups("t")) == []
        assert offsets.generation("t", "other") == 0
        assert server.terminate() == 0
