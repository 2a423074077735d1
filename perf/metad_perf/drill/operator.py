"""The operator of a drill: runs ``metadctl`` as a person would, and reads the logs of the nodes.

Each look is a step of the report, with what should be seen. A look that depends on what other processes do is repeated
until it shows that, or for some seconds.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence

import msgspec

from metad_client import Client
from metad_client.errors import MetadError
from metad_wire.messages import StatusReply

from ..errors import ServerError
from ..spawn import program
from .nodes import Nodes
from .steps import Steps
from .waiting import POLL_S, until

WITHIN_S = 30.0
_COMMAND_S = 120.0  # a command that waits for the cluster has longer deadlines of its own
_WRITE_S = 20.0
LINES_SHOWN = 3
_TENANT = "operator"
EXIT_STATUS = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
"""Of ``metadctl status --check``, by verdict."""


class Report(msgspec.Struct, frozen=True):
    """What ``metadctl status --check`` says: its lines, and its exit status."""

    exit_status: int
    text: str

    @property
    def verdict(self) -> str:
        """The first word."""
        return self.text.partition(":")[0].lower()

    def names(self, problem: str) -> bool:
        """Whether one of the lines is about this: a code, and the node or group that has the problem, or the code only.
        A line reads ``warning node_unreachable: n1 and n4: not reached…``."""
        code, _, subject = problem.partition(" ")
        for line in self.text.splitlines()[1:]:
            said, _, rest = line.partition(": ")
            subjects = rest.partition(":")[0].replace(",", " ").split()
            if said.split()[-1:] == [code] and (not subject or subject in subjects):
                return True
        return False

    def shows(self, verdict: str, problems: Sequence[str]) -> bool:
        """Whether this is the verdict, told by the exit status too, and every expected problem is named. If none is
        expected, there must be none."""
        if (self.verdict, self.exit_status) != (verdict, EXIT_STATUS[verdict]):
            return False
        return all(map(self.names, problems)) if problems else not self.text.strip().count("\n")


class Said(msgspec.Struct, frozen=True):
    """What a command printed, and its exit status."""

    status: int
    text: str


class Operator:
    """``commands``: all that the runbook has. ``client``: an SDK client of the cluster. ``names``: for each group one
    that belongs to it, as ``faults.availability.names_in`` finds them."""

    def __init__(
        self, nodes: Nodes, steps: Steps, commands: Sequence[str], client: Client, names: Mapping[str, str]
    ) -> None:
        self._nodes = nodes
        self._steps = steps
        self._commands = set(commands)
        self._client = client
        self._names = names
        self._ran: set[str] = set()

    @property
    def not_run(self) -> set[str]:
        """Commands of the runbook that were not run."""
        return self._commands - self._ran

    def expects(self, what: str, expected: str, seen: str, passed: bool) -> None:
        """A look of another kind."""
        self._steps.saw(what, expected, seen, passed)

    async def status(self, verdict: str, *problems: str, within_s: float = WITHIN_S) -> None:
        """``metadctl status --check`` shows this verdict and names these problems, each as its code with the node or
        group, or the code only. None: there are none."""
        end = time.monotonic() + within_s
        command = self._known("metadctl status --check")
        while True:
            said = await self._run(command)
            report = Report(said.status, said.text)
            passed = report.shows(verdict, problems)
            if passed or time.monotonic() > end:
                break
            await asyncio.sleep(POLL_S)
        expected = f"exit status {EXIT_STATUS[verdict]}, {verdict}: {', '.join(problems) or 'no problems'}"
        self._steps.saw(command, expected, f"exit status {said.status}, {_in_line(said.text)}", passed)

    async def runs(self, command: str, *, says: str = "", exit_status: int = 0, within_s: float = 0.0) -> str:
        """A command of the runbook ends with this status and prints ``says`` somewhere. It is repeated for
        ``within_s``. Returns what it printed."""
        end = time.monotonic() + within_s
        self._known(command)
        while True:
            said = await self._run(command)
            passed = said.status == exit_status and says in said.text
            if passed or time.monotonic() > end:
                break
            await asyncio.sleep(POLL_S)
        expected = f"exit status {exit_status}" + (f", {says!r}" if says else "")
        shown = _around(said.text, says) if passed and says else _in_line(said.text)
        self._steps.saw(command, expected, f"exit status {said.status}, {shown or 'nothing'}", passed)
        return said.text

    async def log(self, node: str, event: str, *, says: str = "", within_s: float = WITHIN_S, **fields: object) -> None:
        """The node has logged this event since it was started, with these fields, and with ``says`` somewhere in the
        line."""
        found = ""

        def logged() -> bool:
            nonlocal found
            wanted = fields | {"event": event}
            lines = [
                line for line in self._nodes.log(node) if says in line and wanted.items() <= fields_of(line).items()
            ]
            found = lines[-1] if lines else ""
            return bool(lines)

        passed = await until(logged, within_s)
        shown = [event, *(f"{key}: {value}" for key, value in fields.items()), *([repr(says)] if says else [])]
        last_words = " / ".join(self._nodes.log(node)[-LINES_SHOWN:])
        self._steps.saw(f"the log of {node}", ", ".join(shown), found or last_words, passed)

    async def ends(self, node: str, *, says: str, exit_status: int = 1, within_s: float = WITHIN_S) -> None:
        """The process ends by itself with this exit status, and says why in its last lines."""
        member = self._nodes[node]
        code: int | None = None

        def ended() -> bool:
            nonlocal code
            code = member.ended()
            return code is not None

        await until(ended, within_s)
        words = " / ".join(self._nodes.log(node)[-LINES_SHOWN:])
        seen = "it runs" if code is None else f"exit status {code}, {words}"
        passed = code == exit_status and says in words
        self._steps.saw(f"{node} ends", f"exit status {exit_status}, {says!r}", seen, passed)

    async def leader_of(self, group: str) -> str:
        """The node that leads a group. Raises ServerError."""
        for node, status in (await self._client.cluster.statuses()).items():
            if isinstance(status, StatusReply) and any(g.name == group and g.role == "leader" for g in status.groups):
                return node
        raise ServerError(f"{group} has no leader")

    async def writes_go_on(self, within_s: float = _WRITE_S) -> None:
        """Every group with records acknowledges a write."""
        begin = time.monotonic()
        tried = await asyncio.gather(*[self._write(group, name, within_s) for group, name in self._names.items()])
        failed = [text for text in tried if text]
        seen = "; ".join(failed) or f"{len(tried)} groups did, within {time.monotonic() - begin:.1f} s"
        self._steps.saw("a client writes to every group", "each acknowledges", seen, bool(tried) and not failed)

    async def _write(self, group: str, name: str, within_s: float) -> str:
        """The error, if there is one."""
        try:
            if group.startswith("offset"):
                await self._client.offsets.commit(_TENANT, name, "topic", 0, 1, deadline_s=within_s)
            else:
                await self._client.kv.put(name, _TENANT, b"1", deadline_s=within_s)
        except MetadError as error:
            return f"{group}: {error}"
        return ""

    def _known(self, command: str) -> str:
        """The command, which the runbook must have."""
        assert command in self._commands, f"the runbook has no command {command!r}"
        self._ran.add(command)
        return command

    async def _run(self, command: str) -> Said:
        """Run a command line that begins with ``metadctl``."""
        name, *arguments = shlex.split(command)
        where = ["--endpoint", self._nodes.endpoints]
        if self._nodes.certs:
            where += ["--certs", self._nodes.certs]  # one in the command itself comes later, and counts
        process = await asyncio.create_subprocess_exec(
            program(name),
            *where,
            *arguments,
            cwd=self._nodes.working_directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), _COMMAND_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Said(process.returncode or 0, out.decode(errors="replace"))


def fields_of(line: str) -> dict[str, object]:
    """The simple fields of a line of a log; none if it is no JSON."""
    try:
        read = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError:
        return {}
    return {key: value for key, value in read.items() if isinstance(value, str | int | float)}


def _in_line(text: str) -> str:
    """All lines in one."""
    return " / ".join(line.strip() for line in text.splitlines())


def _around(text: str, part: str) -> str:
    """The line that has ``part``."""
    return next((line.strip() for line in text.splitlines() if part in line), part)
