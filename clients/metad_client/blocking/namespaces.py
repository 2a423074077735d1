"""The namespaces of the blocking client: which methods each has. A test compares them with the async ones."""

from __future__ import annotations

from typing import Generic, TypeVar

from metad_wire.messages import Message

from ..namespaces import (
    cluster,
    inflight,
    kv,
    leases,
    offsets,
    records,
    retained,
    sequences,
    sessions,
    subscriptions,
    wills,
)
from .verbs import Call, Listing, Twin

Record = TypeVar("Record", bound=Message)


class Sessions(Twin):
    """``m.sessions``: the sessions of brokers' clients. See :class:`metad_client.Sessions`."""

    takeover_many = Call(sessions.Sessions.takeover_many)
    update_many = Call(sessions.Sessions.update_many)
    disconnect_many = Call(sessions.Sessions.disconnect_many)
    get_many = Call(sessions.Sessions.get_many)
    delete_many = Call(sessions.Sessions.delete_many)
    list = Listing(sessions.Sessions.list)
    takeover = Call(sessions.Sessions.takeover)
    update = Call(sessions.Sessions.update)
    disconnect = Call(sessions.Sessions.disconnect)
    get = Call(sessions.Sessions.get)
    delete = Call(sessions.Sessions.delete)


class Subscriptions(Twin):
    """``m.subscriptions``: the topic filters of brokers' clients. See :class:`metad_client.Subscriptions`."""

    add_many = Call(subscriptions.Subscriptions.add_many)
    remove_many = Call(subscriptions.Subscriptions.remove_many)
    get_many = Call(subscriptions.Subscriptions.get_many)
    list = Listing(subscriptions.Subscriptions.list)
    add = Call(subscriptions.Subscriptions.add)
    remove = Call(subscriptions.Subscriptions.remove)
    get = Call(subscriptions.Subscriptions.get)


class InflightStates(Twin):
    """``m.inflight``: what is in flight between brokers and their clients. See :class:`metad_client.InflightStates`."""

    put_many = Call(inflight.InflightStates.put_many)
    delete_many = Call(inflight.InflightStates.delete_many)
    get_many = Call(inflight.InflightStates.get_many)
    put = Call(inflight.InflightStates.put)
    delete = Call(inflight.InflightStates.delete)
    get = Call(inflight.InflightStates.get)


class Wills(Twin):
    """``m.wills``: the wills that are due, for brokers that publish them. See :class:`metad_client.Wills`."""

    due = Listing(wills.Wills.due, chunk=1)
    claim = Call(wills.Wills.claim)
    acknowledge_many = Call(wills.Wills.acknowledge_many)
    release_many = Call(wills.Wills.release_many)
    list = Listing(wills.Wills.list)
    acknowledge = Call(wills.Wills.acknowledge)
    release = Call(wills.Wills.release)


class Offsets(Twin):
    """``m.offsets``: the committed offsets of consumer groups. See :class:`metad_client.Offsets`."""

    commit_many = Call(offsets.Offsets.commit_many)
    fetch_many = Call(offsets.Offsets.fetch_many)
    delete_many = Call(offsets.Offsets.delete_many)
    generations_many = Call(offsets.Offsets.generations_many)
    reset_generations_many = Call(offsets.Offsets.reset_generations_many)
    list = Listing(offsets.Offsets.list)
    groups = Listing(offsets.Offsets.groups)
    commit = Call(offsets.Offsets.commit)
    fetch = Call(offsets.Offsets.fetch)
    delete = Call(offsets.Offsets.delete)
    generation = Call(offsets.Offsets.generation)
    reset_generation = Call(offsets.Offsets.reset_generation)
    delete_group = Call(offsets.Offsets.delete_group)


class KeyValue(Twin):
    """``m.kv``: small values by (namespace, key). See :class:`metad_client.KeyValue`."""

    put_many = Call(kv.KeyValue.put_many)
    get_many = Call(kv.KeyValue.get_many)
    delete_many = Call(kv.KeyValue.delete_many)
    transact_many = Call(kv.KeyValue.transact_many)
    scan = Listing(kv.KeyValue.scan)
    put = Call(kv.KeyValue.put)
    get = Call(kv.KeyValue.get)
    delete = Call(kv.KeyValue.delete)
    transact = Call(kv.KeyValue.transact)


class Leases(Twin):
    """``m.leases``: leases of namespaces. See :class:`metad_client.Leases`."""

    grant_many = Call(leases.Leases.grant_many)
    revoke_many = Call(leases.Leases.revoke_many)
    keep_alive_many = Call(leases.Leases.keep_alive_many)
    get_many = Call(leases.Leases.get_many)
    attach_many = Call(leases.Leases.attach_many)
    detach_many = Call(leases.Leases.detach_many)
    list = Listing(leases.Leases.list)
    keys = Listing(leases.Leases.keys)
    grant = Call(leases.Leases.grant)
    revoke = Call(leases.Leases.revoke)
    keep_alive = Call(leases.Leases.keep_alive)
    get = Call(leases.Leases.get)
    attach = Call(leases.Leases.attach)
    detach = Call(leases.Leases.detach)


class Sequences(Twin):
    """``m.sequences``: counters that are only added to. See :class:`metad_client.Sequences`."""

    add_many = Call(sequences.Sequences.add_many)
    get_many = Call(sequences.Sequences.get_many)
    delete_many = Call(sequences.Sequences.delete_many)
    list = Listing(sequences.Sequences.list)
    add = Call(sequences.Sequences.add)
    get = Call(sequences.Sequences.get)
    delete = Call(sequences.Sequences.delete)


class RetainedMessages(Twin):
    """``m.retained``: the message that each topic retains. See :class:`metad_client.RetainedMessages`."""

    put_many = Call(retained.RetainedMessages.put_many)
    get_many = Call(retained.RetainedMessages.get_many)
    delete_many = Call(retained.RetainedMessages.delete_many)
    match = Listing(retained.RetainedMessages.match)
    put = Call(retained.RetainedMessages.put)
    get = Call(retained.RetainedMessages.get)
    delete = Call(retained.RetainedMessages.delete)


class Cluster(Twin):
    """``m.cluster``: the cluster as a whole. See :class:`metad_client.Cluster`."""

    map = Call(cluster.Cluster.map)
    statuses = Call(cluster.Cluster.statuses)
    transfer = Call(cluster.Cluster.transfer)
    join = Call(cluster.Cluster.join)
    leave = Call(cluster.Cluster.leave)
    add_group = Call(cluster.Cluster.add_group)
    rebalance = Call(cluster.Cluster.rebalance)


class Records(Twin, Generic[Record]):
    """``m.table(TABLE)``: the records of a plain table. See :class:`metad_client.Records`."""

    put_many = Call(records.Records[Record].put_many)
    get_many = Call(records.Records[Record].get_many)
    delete_many = Call(records.Records[Record].delete_many)
    list = Listing(records.Records[Record].list)
    put = Call(records.Records[Record].put)
    get = Call(records.Records[Record].get)
    delete = Call(records.Records[Record].delete)
