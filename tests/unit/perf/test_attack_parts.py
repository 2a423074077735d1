"""What attacks are made of: requests of every method, keys that change by hand, the choice of attacks."""

from __future__ import annotations

import random
import socket
import ssl
import threading
from itertools import pairwise

import pytest

from metad_perf.attack import sites as certificates
from metad_perf.attack.command import Plan
from metad_perf.attack.kinds import INSIDER, KINDS, STRANGER
from metad_perf.attack.peer import Target
from metad_perf.attack.state import encoded, methods_of_brokers, methods_of_records, random_body
from metad_perf.attack.tokens import KeyUpdater
from metad_perf.errors import UsageError
from metad_wire.methods import BETWEEN_NODES, METHODS, Method
from metad_wire.tables import TABLES


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_bodies_of_every_method_are_taken(method: Method) -> None:
    rng = random.Random(1)
    bodies = {str(method.decode_request(encoded(random_body(rng, method))).body) for _ in range(100)}
    # Most have something to choose.
    assert len(bodies) > 1 or not random_body(rng, method) or method.name == "cluster.rebalance"


def test_every_method_about_records_is_attacked() -> None:
    of_records = {table.name for table in TABLES.values() if table.moves} | {"tenants"}
    names = {one.name for one in METHODS.values() if one.code not in BETWEEN_NODES}
    assert {one.name for one in methods_of_records(mutating=False)} == {
        name for name in names if name.partition(".")[0] in of_records
    }


def test_every_method_of_brokers_that_is_for_clients_is_attacked() -> None:
    assert {one.name for one in methods_of_brokers()} == {
        "broker.register", "broker.heartbeat", "broker.drain", "broker.deregister", "broker.get", "broker.list",
        "broker.serve",
    }  # fmt: skip


def test_keys_changed_by_hand_are_understood() -> None:
    """An OpenSSL server goes along with all updates, and reads what comes under the last key."""
    files = certificates.node("n1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with context.wrap_socket(accepted, server_side=True) as peer:
                heard.append(peer.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()
        target = Target(
            addresses=[listener.getsockname()],
            transport="tls",
            good=certificates.client(),
            other=certificates.client("other"),
            none=certificates.anonymous(),
        )
        with KeyUpdater(target) as updater:
            assert updater.send(20, 0.0) == 20
            updater.say(b"still here")
            thread.join(10)
    assert heard == [b"still here"]


def test_the_choice_of_attacks() -> None:
    assert list(Plan().checked().names) == list(KINDS)
    insiders = Plan(names=["insiders", "tls_garbage"]).checked().names
    assert "tls_garbage" in insiders
    assert {KINDS[name].who for name in insiders if name != "tls_garbage"} == {INSIDER}
    assert all(KINDS[name].who == STRANGER for name in Plan(names=["strangers"]).checked().names)
    with pytest.raises(UsageError, match="there is no attack 'nonsense'"):
        Plan(names=["nonsense"]).checked()


def test_attacks_on_one_place_follow_each_other() -> None:
    places = [kind.site for kind in KINDS.values()]
    assert sum(before != after for before, after in pairwise(places)) == len(set(places)) - 1
