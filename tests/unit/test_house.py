"""The house stays habitable: limits that nothing new is over, and lists of what was over them when they were set. The
lists may only shrink."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import house

FILES_PER_FOLDER_MAX = 15
FOLDERS = {
    "wire/metad_wire/tables": 20,
}
"""Folders of more files: so many. A table is a module."""
METHODS_MAX = 25
PARAMETERS_MAX = 8
PAGE_KIB_MAX = 20

FUNCTIONS = {
    "metad/node/node.py:Node.__init__": 145,
    "metad/node/requests/requests.py:Requests._begin": 93,
    "metad/state/machine.py:Machine.evaluate": 113,
    "wire/metad_wire/transport/quic/packets.py:PacketEngine._open_run": 74,
    "wire/metad_wire/transport/quic/packets.py:PacketEngine._seal_run": 68,
    "clients/metad_client/blocking/client.py:BlockingClient.watch": 63,
    "clients/metad_client/watch/streams.py:Streams.__init__": 66,
    "tests/extension/test_a_declared_table_on_nodes.py:test_nothing_is_lost_on_the_way": 83,
    "tests/spark/test_census.py:test_each_kind_of_orphan_is_found_and_nothing_else": 85,
    "tests/spark/test_census.py:test_lag_says_what_is_known": 61,
    "tests/contract/test_answers.py:body_of": 66,
    "tests/unit/client/scripted.py:all_well": 107,
    "tests/unit/state/test_session_life.py:test_sessions_against_a_model": 78,
    "tests/unit/state/test_wills.py:test_each_will_is_acknowledged_once_and_none_is_lost": 78,
    "perf/metad_perf/attack/kinds.py:_kinds": 130,
    "perf/metad_perf/faults/cluster.py:Ordeal.run": 62,
    "perf/metad_perf/faults/members.py:temporary_members": 82,
    "perf/metad_perf/storm/command.py:_Run.all": 89,
    "spark/metad_spark/models/node_input.py:node_inputs": 82,
    "spark/metad_spark/models/vector_steps.py:_batch": 64,
    "spark/metad_spark/models/vector_steps.py:_turn": 61,
    "spark/metad_spark/queries/orphans.py:orphans": 63,
    "spark/metad_spark/run_schedule.py:run": 68,
    "spark/metad_spark/run_sweep.py:run": 82,
}
"""Functions of more than 60 lines: so many lines."""
CLASSES = {
    "metad/control/brokers/brokers.py:Brokers": 49,
    "metad/control/controller.py:Controller": 28,
    "metad/node/node.py:Node": 37,
    "metad/node/replicas/driver.py:GroupDriver": 40,
    "metad/node/watches/watches.py:Watches": 36,
    "metad/raft/log/journal.py:RaftLog": 43,
    "metad/raft/replica.py:RaftGroup": 34,
    "metad/server/connection.py:Connection": 45,
    "metad/watch/stream.py:Stream": 35,
    "wire/metad_wire/transport/quic/carrier.py:Carrier": 29,
    "wire/metad_wire/transport/quic/engine.py:Engine": 36,
    "wire/metad_wire/transport/quic/server.py:Server": 31,
    "wire/metad_wire/transport/tls.py:_TlsEnd": 34,
    "clients/metad_client/connections/connection.py:Connection": 29,
    "clients/metad_amqtt/broker.py:MetadBroker": 56,
    "clients/metad_client/dispatch/dispatcher.py:Dispatcher": 40,
    "clients/metad_client/watch/stream.py:GroupStream": 34,
    "clients/metad_client/watch/streams.py:Streams": 50,
}
"""Classes with more methods than that."""
CONSTRUCTORS = {
    "metad/node/disk/checkpoints.py:Checkpoints.__init__": 9,
    "metad/node/disk/node_snapshots.py:NodeSnapshots.__init__": 9,
    "metad/node/disk/replica_lifecycle.py:ReplicaLifecycle.__init__": 13,
    "metad/node/requests/requests.py:Requests.__init__": 13,
    "metad/raft/replicas.py:Replicas.__init__": 11,
    "metad/raft/snapshots/snapshots.py:Snapshots.__init__": 10,
    "metad/node/watches/watches.py:Watches.__init__": 9,
    "metad/state/core/verb.py:Command.__init__": 9,
    "metad/state/core/verb.py:Verb.__init__": 13,
    "wire/metad_wire/method.py:Method.__init__": 10,
    "wire/metad_wire/table.py:Table.__init__": 15,
    "wire/metad_wire/tables/table.py:PlainTable.__init__": 10,
    "wire/metad_wire/transport/quic/engine.py:Engine.__init__": 11,
    "clients/metad_amqtt/broker.py:MetadBroker.__init__": 11,
    "clients/metad_client/holding/membership.py:Membership.__init__": 12,
    "clients/metad_client/requests/batcher.py:Batcher.__init__": 9,
    "clients/metad_client/watch/events.py:WatchBatch.__init__": 11,
    "clients/metad_client/watch/streams.py:Streams.__init__": 10,
}
"""Constructors with more parameters than that."""
PAGES = {
    "docs/OPERATE.md": 34,
    "docs/WRITE_A_BROKER.md": 27,
    "wire/PROTOCOL.md": 45,
    "wire/TABLES.md": 90,
}
"""Pages that are longer than that, in KiB."""
MARKDOWN_KIB_MAX = 384
"""All pages together, but for the changes of the next version."""
MODULES = {
    "kv_put": 55,
    "takeover": 59,
}
"""That a request enters in client, leader and followers."""
TEXTS_WITHOUT_VERB = 116
"""Public docstrings that say nothing of anything."""
MODULES_WITH_ONE_IMPORTER = 219
"""Modules that one other or none imports."""


@pytest.mark.parametrize(
    ("found", "limit", "listed"),
    [
        pytest.param(house.files_per_folder, FILES_PER_FOLDER_MAX, FOLDERS, id="files of a folder"),
        pytest.param(house.long_functions, house.FUNCTION_LINES_MAX, FUNCTIONS, id="lines of a function"),
        pytest.param(house.methods_per_class, METHODS_MAX, CLASSES, id="methods of a class"),
        pytest.param(house.constructor_parameters, PARAMETERS_MAX, CONSTRUCTORS, id="parameters of a constructor"),
        pytest.param(house.page_kib, PAGE_KIB_MAX, PAGES, id="length of a page"),
    ],
)
def test_nothing_new_is_over_a_limit(found: Callable[[], dict[str, int]], limit: int, listed: dict[str, int]) -> None:
    over = {name: size for name, size in found().items() if size > limit}
    grown = {name: size for name, size in over.items() if size > listed.get(name, limit)}
    assert not grown, f"more than {limit}, or than is listed"
    assert not listed.keys() - over.keys(), "these are within the limit by now: strike them off the list"


def test_the_pages_together_do_not_grow() -> None:
    """A new page is worth a shorter one elsewhere: say a thing once, on the page where its reader looks."""
    sizes = [page.stat().st_size for page in house.pages() if page.parent.name != "changes"]
    assert -(-sum(sizes) // 1024) <= MARKDOWN_KIB_MAX


def test_references_lead_somewhere() -> None:
    assert house.dangling_references() == []


def test_a_request_enters_no_more_modules() -> None:
    """One that enters fewer is worth a lower number here."""
    assert {name: len(entered) for name, entered in house.modules_of_requests().items()} == MODULES


def test_no_more_modules_have_one_importer() -> None:
    alone = [name for name, importers in house.importers().items() if len(importers) <= 1]
    assert len(alone) <= MODULES_WITH_ONE_IMPORTER, "merge the new one into its only user, if the two are one idea"


def test_the_worked_example_is_short_enough_to_be_read() -> None:
    folder = house.ROOT / "clients" / "examples" / "log_broker"
    assert sum(len(path.read_text().splitlines()) for path in folder.glob("*.py")) <= 700


def test_no_new_docstring_lacks_a_verb() -> None:
    without = house.texts_without_verb()
    assert len(without) <= TEXTS_WITHOUT_VERB, f"one of these is new: {without}"
