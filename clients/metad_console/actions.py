"""What the console may do with ``--write``: each action asks before, and shows the command of ``metadctl`` that does
the same. What a principal may do is for the cluster to say: it refuses the rest."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from nicegui import ui

from metad_client import Client
from metad_client.cli.printing import in_line
from metad_client.cli.view import GroupView
from metad_client.errors import MetadError, PermissionDeniedError
from metad_wire.messages import Kv, Session, TableRecord
from metad_wire.tables.broker import Broker
from metad_wire.tables.table import PlainTable

from .frame import button, dialog, label, problem, tag
from .sessions import Session as Signed

DO_S: Final = 15.0
"""An action that takes longer is given up: it may have happened, and the person is told so."""


class Action(NamedTuple):
    """One thing to do."""

    title: str
    effect: str
    """What follows from it, in a sentence."""
    command: tuple[str, ...]
    """The words behind ``metadctl``."""
    do: Callable[[Client], Awaitable[Any]]
    again: str = ""
    """What a person types once more before it is done; empty: one click is enough."""


def ask(session: Signed, action: Action) -> None:
    """Show the action and its command; do it when the person says so."""
    if not session.may_write:
        return
    with dialog(action.title, "ask", "alertdialog") as asking:
        tag("p", action.effect)
        label("The same from a shell:", "soft")
        with tag("pre", tabindex="0"):
            ui.label(shlex.join(map(in_line, (*session.metadctl, *action.command)))).props["tag"] = "span"
        typed = ""
        if action.again:

            def note(event: Any) -> None:
                nonlocal typed
                typed = str(event.args)

            with tag("label", f"Type {in_line(action.again)} to go on"):
                tag("input", autocomplete="off", spellcheck="false").on("input", note, js_handler=_VALUE)
        failed = problem("")

        async def go() -> None:
            if action.again and typed != action.again:
                failed.set_text(f"This is not {in_line(action.again)}.")
                return
            await _do(session, action, asking, failed)

        with tag("div", classes="row-of-buttons"):
            button("Leave it", asking.close).props["autofocus"] = True
            button("Do it", go, "danger")


_VALUE: Final = "(event) => emit(event.target.value)"


async def _do(session: Signed, action: Action, asking: ui.dialog, failed: ui.label) -> None:
    try:
        async with asyncio.timeout(DO_S):
            await action.do(await session.client())
    except TimeoutError:
        failed.set_text("No answer in time. It may have happened, or still happen: look before you repeat it.")
    except MetadError as error:
        denied = isinstance(error, PermissionDeniedError)
        failed.set_text("You may not do this." if denied else in_line(f"It was not done: {error}"))
    else:
        asking.close()
        ui.notify(f"Done: {action.title}", type="positive")


# --- the cluster ---


def transfer(session: Signed, group: GroupView) -> None:
    """Move a leader: first the person chooses the node."""
    others = [voter for voter in group.voters if voter != group.leader]
    with dialog(f"Move the leader of {group.name}", "ask") as asking:
        tag("p", f"{group.leader or 'Nobody'} leads it." + ("" if others else " It has no other voter."))

        def choose(node: str) -> Callable[[], None]:
            def chosen() -> None:
                asking.close()
                ask(session, _transfer(group, node))

            return chosen

        with tag("div", classes="row-of-buttons"):
            for node in others:
                button(f"To {node}", choose(node))
            button("Leave it", asking.close)


def _transfer(group: GroupView, node: str) -> Action:
    return Action(
        f"Move the leader of {group.name} to {node}",
        f"{node} leads {group.name} from then on, and again after restarts. Requests of the group wait for a moment.",
        ("transfer", group.name, node),
        lambda m: m.cluster.transfer(group.name, node),
    )


def leave(session: Signed, node: str) -> None:
    """Drain a node for good."""
    action = Action(
        f"Let node {node} leave the cluster",
        "Its replicas and leaders move to other nodes. The node ends when nothing needs it any more, and does not come "
        "back under its name. It is refused if groups would then have fewer replicas than the cluster wants.",
        ("leave", node),
        lambda m: m.cluster.leave(node),
        again=node,
    )
    ask(session, action)


def fence(session: Signed, broker: Broker) -> None:
    """End the life of a broker."""
    action = Action(
        f"End the life of broker {in_line(broker.broker)}",
        f"No group writes in the name of epoch {broker.broker_epoch} any more, its sessions are disconnected, and "
        "their wills come due. The broker may register again.",
        ("brokers", "fence", broker.broker, "--epoch", str(broker.broker_epoch)),
        lambda m: m.brokers.fence(broker.broker, broker.broker_epoch),
    )
    ask(session, action)


# --- records ---


def delete_key(record: Kv) -> Action:
    """Delete a key, as it was seen."""
    return Action(
        f"Delete key {in_line(record.key)}",
        f"It is deleted from namespace {in_line(record.namespace)} if nobody wrote it since you looked.",
        ("delete", "kv", record.namespace, record.key, "--expected-version", str(record.version)),
        lambda m: m.kv.delete(record.namespace, record.key, expected_version=record.version),
    )


def delete_session(record: Session) -> Action:
    """Delete a session."""
    return Action(
        f"Delete the session of {in_line(record.client_id)}",
        "With it go its subscriptions and what is in flight. No will is published. A client that is connected is told "
        "by its broker.",
        ("sessions", "delete", record.tenant, record.client_id),
        lambda m: m.sessions.delete(record.tenant, record.client_id),
    )


def delete_record(table: PlainTable[Any], found: TableRecord[Any]) -> Action:
    """Delete a record of a declared table, as it was seen."""
    key = [getattr(found.record, name) for name in table.key]
    shown = [str(part) for part in key]
    return Action(
        f"Delete {in_line('/'.join(shown))} of {table.name}",
        "It is deleted if nobody wrote it since you looked.",
        ("records", "delete", table.name, *shown, "--expected-version", str(found.version)),
        lambda m: m.table(table).delete(*key, expected_version=found.version),
    )


def end_tenant(session: Signed, tenant: str) -> None:
    """Delete everything of a tenant."""
    action = Action(
        f"End tenant {in_line(tenant)}",
        "Everything of it is deleted in all groups: sessions, offsets, keys and records of all tables. Wills are "
        "dropped. There is no way back.",
        ("tenants", "end", tenant, "--again", tenant),
        lambda m: m.tenants.end(tenant),
        again=tenant,
    )
    ask(session, action)
