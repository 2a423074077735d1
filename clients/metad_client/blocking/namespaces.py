"""The namespaces of the blocking client: which methods each has. A test compares them with the async ones."""

from __future__ import annotations

from typing import Generic, TypeVar

from metad_wire.messages import Message
from metad_wire.tables.assignment import Partition, Resource

from .. import broker_life
from ..assignment import assigned, assignments, plans
from ..errors import ClosedError, MetadError
from ..families import audit, backups, config, features, principals, quotas, roles, schemas, tenants, topics, users
from ..namespaces import (
    brokers,
    cluster,
    consumers,
    inflight,
    kv,
    leases,
    offsets,
    retained,
    sequences,
    sessions,
    subscriptions,
    tables,
    wills,
)
from .holding import PartitionRoute
from .portal import Portal
from .verbs import Call, Listing, Twin, forgetting

Record = TypeVar("Record", bound=Message)


class BrokerLife(Twin):
    """A life of a broker. See :class:`metad_client.BrokerLife`. Any thread may use it."""

    lost = Call(broker_life.BrokerLife.lost)
    serve = Call(broker_life.BrokerLife.serve)
    drain = Call(broker_life.BrokerLife.drain)
    end = Call(broker_life.BrokerLife.end)
    on_state = Call(broker_life.BrokerLife.on_state, forgetting)
    check = Call(broker_life.BrokerLife.check)

    def __init__(self, portal: Portal, target: broker_life.BrokerLife) -> None:
        super().__init__(portal, target)
        self._life = target
        self.owner, self.broker, self.epoch, self.unfenced = target.owner, target.broker, target.epoch, target.unfenced

    @property
    def state(self) -> broker_life.LifeState:
        """Whether this life may serve, at this moment. Look whenever something is served from memory."""
        try:
            return self._portal.call(lambda: self._life.state)
        except ClosedError:
            return broker_life.LifeState.LOST

    @property
    def over(self) -> MetadError | None:
        """Why the life is lost; None while it is not."""
        try:
            return self._portal.call(lambda: self._life.over)
        except ClosedError as error:
            return error

    def report(self, load: int) -> None:
        """Say with each heartbeat from now on how loaded the broker is, in its own unit: 0 to 2**32 - 1. Raises
        InvalidRequestError."""
        self._life.report(load)


class Brokers(Twin):
    """``m.brokers``: the brokers of the cluster. See :class:`metad_client.Brokers`."""

    get_many = Call(brokers.Brokers.get_many)
    register = Call(brokers.Brokers.register, BrokerLife)
    get = Call(brokers.Brokers.get)
    list = Listing(brokers.Brokers.list)
    fence = Call(brokers.Brokers.fence)

    def __init__(self, portal: Portal, target: brokers.Brokers) -> None:
        super().__init__(portal, target)
        self._brokers = target

    @property
    def life(self) -> BrokerLife | None:
        """The life that this client has registered last, if any."""
        life = self._brokers.life
        return None if life is None else BrokerLife(self._portal, life)


class Sessions(Twin):
    """``m.sessions``: the sessions of brokers' clients. See :class:`metad_client.Sessions`."""

    get_many = Call(sessions.Sessions.get_many)
    takeover_many = Call(sessions.Sessions.takeover_many)
    update_many = Call(sessions.Sessions.update_many)
    disconnect_many = Call(sessions.Sessions.disconnect_many)
    delete_many = Call(sessions.Sessions.delete_many)
    get = Call(sessions.Sessions.get)
    list = Listing(sessions.Sessions.list)
    end_tenant = Call(sessions.Sessions.end_tenant)
    endings = Call(sessions.Sessions.endings)
    takeover = Call(sessions.Sessions.takeover)
    update = Call(sessions.Sessions.update)
    disconnect = Call(sessions.Sessions.disconnect)
    delete = Call(sessions.Sessions.delete)


class Subscriptions(Twin):
    """``m.subscriptions``: the topic filters of brokers' clients. See :class:`metad_client.Subscriptions`."""

    get_many = Call(subscriptions.Subscriptions.get_many)
    add_many = Call(subscriptions.Subscriptions.add_many)
    remove_many = Call(subscriptions.Subscriptions.remove_many)
    get = Call(subscriptions.Subscriptions.get)
    list = Listing(subscriptions.Subscriptions.list)
    add = Call(subscriptions.Subscriptions.add)
    remove = Call(subscriptions.Subscriptions.remove)


class InflightStates(Twin):
    """``m.inflight``: what is in flight between brokers and their clients. See :class:`metad_client.InflightStates`."""

    get_many = Call(inflight.InflightStates.get_many)
    put_many = Call(inflight.InflightStates.put_many)
    delete_many = Call(inflight.InflightStates.delete_many)
    get = Call(inflight.InflightStates.get)
    put = Call(inflight.InflightStates.put)
    delete = Call(inflight.InflightStates.delete)


class Wills(Twin):
    """``m.wills``: the wills that are due, for brokers that publish them. See :class:`metad_client.Wills`."""

    acknowledge_many = Call(wills.Wills.acknowledge_many)
    release_many = Call(wills.Wills.release_many)
    list = Listing(wills.Wills.list)
    due = Listing(wills.Wills.due, chunk=1)
    claim = Call(wills.Wills.claim)
    acknowledge = Call(wills.Wills.acknowledge)
    release = Call(wills.Wills.release)


class Offsets(Twin):
    """``m.offsets``: the committed offsets of consumer groups. See :class:`metad_client.Offsets`."""

    fetch_many = Call(offsets.Offsets.fetch_many)
    delete_many = Call(offsets.Offsets.delete_many)
    commit_many = Call(offsets.Offsets.commit_many)
    generations_many = Call(offsets.Offsets.generations_many)
    reset_generations_many = Call(offsets.Offsets.reset_generations_many)
    fetch = Call(offsets.Offsets.fetch)
    delete = Call(offsets.Offsets.delete)
    list = Listing(offsets.Offsets.list)
    groups = Listing(offsets.Offsets.groups)
    commit = Call(offsets.Offsets.commit)
    generation = Call(offsets.Offsets.generation)
    reset_generation = Call(offsets.Offsets.reset_generation)
    delete_group = Call(offsets.Offsets.delete_group)


class Consumers(Twin):
    """``m.consumers``: the members of consumer groups. See :class:`metad_client.Consumers`."""

    get_many = Call(consumers.Consumers.get_many)
    leave_many = Call(consumers.Consumers.leave_many)
    join_many = Call(consumers.Consumers.join_many)
    heartbeat_many = Call(consumers.Consumers.heartbeat_many)
    assign_many = Call(consumers.Consumers.assign_many)
    describe_many = Call(consumers.Consumers.describe_many)
    get = Call(consumers.Consumers.get)
    leave = Call(consumers.Consumers.leave)
    members = Listing(consumers.Consumers.members)
    join = Call(consumers.Consumers.join)
    heartbeat = Call(consumers.Consumers.heartbeat)
    assign = Call(consumers.Consumers.assign)
    describe = Call(consumers.Consumers.describe)


class KeyValue(Twin):
    """``m.kv``: small values by (namespace, key). See :class:`metad_client.KeyValue`."""

    get_many = Call(kv.KeyValue.get_many)
    put_many = Call(kv.KeyValue.put_many)
    delete_many = Call(kv.KeyValue.delete_many)
    transact_many = Call(kv.KeyValue.transact_many)
    get = Call(kv.KeyValue.get)
    scan = Listing(kv.KeyValue.scan)
    put = Call(kv.KeyValue.put)
    delete = Call(kv.KeyValue.delete)
    transact = Call(kv.KeyValue.transact)


class Leases(Twin):
    """``m.leases``: leases of namespaces. See :class:`metad_client.Leases`."""

    get_many = Call(leases.Leases.get_many)
    revoke_many = Call(leases.Leases.revoke_many)
    attach_many = Call(leases.Leases.attach_many)
    detach_many = Call(leases.Leases.detach_many)
    grant_many = Call(leases.Leases.grant_many)
    keep_alive_many = Call(leases.Leases.keep_alive_many)
    get = Call(leases.Leases.get)
    revoke = Call(leases.Leases.revoke)
    attach = Call(leases.Leases.attach)
    detach = Call(leases.Leases.detach)
    list = Listing(leases.Leases.list)
    keys = Listing(leases.Leases.keys)
    grant = Call(leases.Leases.grant)
    keep_alive = Call(leases.Leases.keep_alive)


class Sequences(Twin):
    """``m.sequences``: counters that are only added to. See :class:`metad_client.Sequences`."""

    get_many = Call(sequences.Sequences.get_many)
    delete_many = Call(sequences.Sequences.delete_many)
    add_many = Call(sequences.Sequences.add_many)
    get = Call(sequences.Sequences.get)
    delete = Call(sequences.Sequences.delete)
    list = Listing(sequences.Sequences.list)
    add = Call(sequences.Sequences.add)


class RetainedMessages(Twin):
    """``m.retained``: the message that each topic retains. See :class:`metad_client.RetainedMessages`."""

    get_many = Call(retained.RetainedMessages.get_many)
    put_many = Call(retained.RetainedMessages.put_many)
    delete_many = Call(retained.RetainedMessages.delete_many)
    get = Call(retained.RetainedMessages.get)
    match = Listing(retained.RetainedMessages.match)
    put = Call(retained.RetainedMessages.put)
    delete = Call(retained.RetainedMessages.delete)


class Backups(Twin):
    """``m.backups``: checkpoints of nodes, and restores. See :class:`metad_client.Backups`."""

    checkpoint = Call(backups.Backups.checkpoint)
    read = Call(backups.Backups.read)
    drop = Call(backups.Backups.drop)
    log = Call(backups.Backups.log)
    restore = Call(backups.Backups.restore)
    move_step = Call(backups.Backups.move_step)
    move_rows = Call(backups.Backups.move_rows)
    copy_rows = Call(backups.Backups.copy_rows)


class Cluster(Twin):
    """``m.cluster``: the cluster as a whole. See :class:`metad_client.Cluster`."""

    map = Call(cluster.Cluster.map)
    statuses = Call(cluster.Cluster.statuses)
    activity = Call(cluster.Cluster.activity)
    events = Call(cluster.Cluster.events)
    compact = Call(cluster.Cluster.compact)
    settings = Call(cluster.Cluster.settings)
    set = Call(cluster.Cluster.set)
    transfer = Call(cluster.Cluster.transfer)
    prefer = Call(cluster.Cluster.prefer)
    join = Call(cluster.Cluster.join)
    leave = Call(cluster.Cluster.leave)
    add_group = Call(cluster.Cluster.add_group)
    rebalance = Call(cluster.Cluster.rebalance)
    drain = Call(cluster.Cluster.drain)
    move_slots = Call(cluster.Cluster.move_slots)
    move_replica = Call(cluster.Cluster.move_replica)
    remove_group = Call(cluster.Cluster.remove_group)


class Tables(Twin):
    """``m.tables``: the tables that programs declare. See :class:`metad_client.Tables`."""

    get_many = Call(tables.Tables.get_many)
    drop_many = Call(tables.Tables.drop_many)
    transact_many = Call(tables.Tables.transact_many)
    get = Call(tables.Tables.get)
    drop = Call(tables.Tables.drop)
    declare = Call(tables.Tables.declare)
    open = Call(tables.Tables.open)
    list = Listing(tables.Tables.list)
    transact = Call(tables.Tables.transact)


class Schemas(Twin):
    """``m.schemas``: versions of schemas, and the topics that follow them. See :class:`metad_client.Schemas`."""

    register_many = Call(schemas.Schemas.register_many)
    register = Call(schemas.Schemas.register)
    newest = Call(schemas.Schemas.newest)
    bind = Call(schemas.Schemas.bind)
    followed = Call(schemas.Schemas.followed)
    followers = Listing(schemas.Schemas.followers)


class Assigned(Twin):
    """Resources of one kind. See :class:`metad_client.Assigned`."""

    create = Call(assigned.Assigned.create)
    resize = Call(assigned.Assigned.resize)
    trim = Call(assigned.Assigned.trim)
    delete = Call(assigned.Assigned.delete)

    def __init__(self, portal: Portal, target: assigned.Assigned) -> None:
        super().__init__(portal, target)
        self.kind = target.kind


class Assignments(Twin):
    """``m.assignments``: resources whose partitions metad places. See :class:`metad_client.Assignments`."""

    explain_many = Call(assignments.Assignments.explain_many)
    create_many = Call(assignments.Assignments.create_many)
    alter_many = Call(assignments.Assignments.alter_many)
    resize_many = Call(assignments.Assignments.resize_many)
    delete_many = Call(assignments.Assignments.delete_many)
    in_sync_many = Call(assignments.Assignments.in_sync_many)
    release_many = Call(assignments.Assignments.release_many)
    report_many = Call(assignments.Assignments.report_many)
    claim_many = Call(assignments.Assignments.claim_many)
    seal_many = Call(assignments.Assignments.seal_many)
    elect_many = Call(assignments.Assignments.elect_many)
    move_many = Call(assignments.Assignments.move_many)
    explain = Call(assignments.Assignments.explain)
    delete = Call(assignments.Assignments.delete)
    release = Call(assignments.Assignments.release)
    report = Call(assignments.Assignments.report)
    claim = Call(assignments.Assignments.claim)
    seal = Call(assignments.Assignments.seal)
    elect = Call(assignments.Assignments.elect)
    route = Call(assignments.Assignments.route, PartitionRoute)
    create = Call(assignments.Assignments.create)
    alter = Call(assignments.Assignments.alter)
    resize = Call(assignments.Assignments.resize)
    in_sync = Call(assignments.Assignments.in_sync)
    move = Call(assignments.Assignments.move)

    def __init__(self, portal: Portal, target: assignments.Assignments) -> None:
        super().__init__(portal, target)
        self.resources: Records[Resource] = Records(portal, target.resources)
        self.partitions: Records[Partition] = Records(portal, target.partitions)
        self.topics = Assigned(portal, target.topics)
        self.message_queues = Assigned(portal, target.message_queues)
        self.masters = Assigned(portal, target.masters)
        self.connectors = Assigned(portal, target.connectors)
        self.share_groups = Assigned(portal, target.share_groups)
        self.shards = Assigned(portal, target.shards)
        self.quorum_queues = Assigned(portal, target.quorum_queues)
        self.classic_queues = Assigned(portal, target.classic_queues)


class Plans(Twin):
    """``m.plans``: orders to move partitions between brokers. See :class:`metad_client.Plans`."""

    get_many = Call(plans.Plans.get_many)
    create_many = Call(plans.Plans.create_many)
    set_many = Call(plans.Plans.set_many)
    delete_many = Call(plans.Plans.delete_many)
    get = Call(plans.Plans.get)
    delete = Call(plans.Plans.delete)
    create = Call(plans.Plans.create)
    pause = Call(plans.Plans.pause)
    resume = Call(plans.Plans.resume)
    cancel = Call(plans.Plans.cancel)
    list = Listing(plans.Plans.list)
    recommend = Call(plans.Plans.recommend)


class Features(Twin):
    """``m.features``: what is switched on once all nodes know it. See :class:`metad_client.Features`."""

    change_many = Call(features.Features.change_many)
    hold = Call(features.Features.hold)
    allow = Call(features.Features.allow)
    list = Listing(features.Features.list)


class Quotas(Twin):
    """``m.quotas``: how much tenants and principals may take. See :class:`metad_client.Quotas`."""

    put_many = Call(quotas.Quotas.put_many)
    delete_many = Call(quotas.Quotas.delete_many)
    put = Call(quotas.Quotas.put)
    delete = Call(quotas.Quotas.delete)
    list = Listing(quotas.Quotas.list)
    use = Call(quotas.Quotas.use)


class Tenants(Twin):
    """``m.tenants``: everything of a tenant. See :class:`metad_client.Tenants`."""

    list = Listing(tenants.Tenants.list)
    use = Call(tenants.Tenants.use)
    end = Call(tenants.Tenants.end)
    keep = Call(tenants.Tenants.keep)
    endings = Call(tenants.Tenants.endings)


class Roles(Twin):
    """``m.roles``: what those may do to whom they are given. See :class:`metad_client.Roles`."""

    put_many = Call(roles.Roles.put_many)
    delete_many = Call(roles.Roles.delete_many)
    delete = Call(roles.Roles.delete)
    put = Call(roles.Roles.put)
    list = Listing(roles.Roles.list)


class Audit(Twin):
    """``m.audit``: what was administered, refused and ended. See :class:`metad_client.Audit`."""

    list = Listing(audit.Audit.list)


class Principals(Twin):
    """``m.principals``: who has which roles. See :class:`metad_client.Principals`."""

    get_many = Call(principals.Principals.get_many)
    put_many = Call(principals.Principals.put_many)
    delete_many = Call(principals.Principals.delete_many)
    change_many = Call(principals.Principals.change_many)
    get = Call(principals.Principals.get)
    delete = Call(principals.Principals.delete)
    put = Call(principals.Principals.put)
    change = Call(principals.Principals.change)
    list = Listing(principals.Principals.list)
    may = Call(principals.Principals.may)


class Topics(Twin):
    """``m.topics``: how many partitions and queues topics have. See :class:`metad_client.Topics`."""

    resize_many = Call(topics.Topics.resize_many)
    resize = Call(topics.Topics.resize)


class Users(Twin):
    """``m.users``: users who prove a password. See :class:`metad_client.Users`."""

    create = Call(users.Users.create)
    set_password = Call(users.Users.set_password)
    check = Call(users.Users.check)


class Config(Twin):
    """``m.config``: settings that brokers take over while they run. See :class:`metad_client.Config`."""

    set_many = Call(config.Config.set_many)
    set = Call(config.Config.set)
    history = Call(config.Config.history)
    effective = Call(config.Config.effective)


class Records(Twin, Generic[Record]):
    """``m.table(TABLE)``: the records of a declared table. See :class:`metad_client.Records`."""

    put_many = Call(tables.Records[Record].put_many)
    get_many = Call(tables.Records[Record].get_many)
    delete_many = Call(tables.Records[Record].delete_many)
    list = Listing(tables.Records[Record].list)
    list_by = Listing(tables.Records[Record].list_by)
    count = Call(tables.Records[Record].count)
    delete_prefix = Call(tables.Records[Record].delete_prefix)
    put = Call(tables.Records[Record].put)
    get = Call(tables.Records[Record].get)
    delete = Call(tables.Records[Record].delete)
