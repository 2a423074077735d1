"""Whatever a loop does to the outside may wait without a bound: a pipe that nobody reads, a disk or a name server that
hangs. So modules of loops do it in threads, or before they serve, and this list says where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("metad", "wire/metad_wire", "clients/metad_client", "clients/metad_amqtt")
LEFT_OUT = ("metad/embedded/nodes.py", "clients/metad_client/cli", "wire/metad_wire/operator")
"""Programs of an operator or of a test, which are no servers."""

NAMES = {"print", "open", "input"}
METHODS = {
    *("read_text", "write_text", "read_bytes", "write_bytes", "unlink", "mkdir", "exists", "iterdir", "glob", "rmdir"),
    *("touch", "rename", "chmod", "is_dir", "is_file", "load_cert_chain", "load_verify_locations", "StreamHandler"),
    *("basicConfig", "gethostbyname", "gethostbyaddr", "getnameinfo", "statvfs", "fsync", "fdatasync", "rmtree"),
    *("copyfile", "posix_fallocate", "ends_at"),
}
OF_MODULES = {
    "os": {"open", "replace", "stat", "write", "read", "listdir", "link", "remove", "access", "system", "pwrite"},
    "socket": {"getaddrinfo", "create_connection"},
    "subprocess": {"run", "Popen", "check_output", "check_call", "call"},
    "time": {"sleep"},
    "sys.stderr": {"write", "flush"},
    "sys.stdout": {"write", "flush"},
}

IN_A_THREAD = "in a thread"
AT_THE_START = "before anything is served, or in a program that only starts"
PROC = "of the kernel's memory"
ALLOWED = {
    "metad/cli.py": AT_THE_START,
    "clients/metad_client/prometheus.py": AT_THE_START,
    "metad/config/files.py": AT_THE_START,
    "metad/node/node.py": PROC,
    "metad/node/settings.py": "at the start, and then in a thread",
    "metad/server/access.py": "before anything is served, and then by Watched, in a thread",
    "metad/node/disk/stores.py": AT_THE_START,
    "metad/process_limits.py": AT_THE_START,
    "metad/ready_file.py": IN_A_THREAD,
    "metad/node/chores/comparisons.py": IN_A_THREAD,
    "metad/node/disk/backups.py": "in a thread; what an earlier life has left goes at the start",
    "metad/node/disk/recovery.py": "by `metad recover`, which runs without a node",
    "metad/server/lamps/http_port.py": "a socket's name, at the start and at the end",
    "metad/raft/snapshots/staging.py": IN_A_THREAD,
    "metad/storage/ingest.py": IN_A_THREAD,
    "metad/storage/sst.py": IN_A_THREAD,
    "metad/storage/log.py": IN_A_THREAD,
    "metad/storage/memory.py": IN_A_THREAD,
    "metad/storage/rocks.py": "at the start, or in a thread: the log's writes are the system's cache",
    "metad/storage/room.py": "at the start, and then in a thread",
    "metad/supervisor.py": "the supervisor's own scratch files: who cannot read them cannot start a process either",
    "wire/metad_wire/program/build.py": "of a checkout only, once, before anything is served",
    "wire/metad_wire/program/lines.py": IN_A_THREAD,
    "wire/metad_wire/program/whole_file.py": IN_A_THREAD,
    "wire/metad_wire/transport/credentials.py": AT_THE_START,
    "wire/metad_wire/program/forks.py": "/dev/null, in a child that has just been forked",
    "wire/metad_wire/transport/quic/certificates.py": "by Watched, in a thread",
    "wire/metad_wire/transport/reload.py": IN_A_THREAD,
    "wire/metad_wire/transport/tls_context.py": "by Watched, in a thread",
    "wire/metad_wire/program/output.py": "at the end of a program",
    "clients/metad_amqtt/__main__.py": AT_THE_START,
    "clients/metad_client/namespaces/brokers.py": "the note of a life that has not begun: nothing is served without it",
}


def touches(tree: ast.AST) -> Iterator[str]:
    """The calls that may wait for the outside."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in NAMES:
            yield function.id
        elif isinstance(function, ast.Attribute):
            of = ast.unparse(function.value)
            if function.attr in METHODS or function.attr in OF_MODULES.get(of, ()):
                yield f"{of}.{function.attr}"


@cache
def found() -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(LEFT_OUT) and (calls := list(touches(ast.parse(path.read_text())))):
                files[name] = calls
    return files


def test_no_other_module_touches_the_outside() -> None:
    others = {name: calls for name, calls in found().items() if name not in ALLOWED}
    assert not others, "do it in a thread, with a bound, and say so here"


def test_the_list_has_no_module_too_many() -> None:
    assert not {*ALLOWED} - {*found()}


def test_a_call_that_waits_is_found() -> None:
    code = (
        "print(1)\nPath('x').read_text()\nos.stat('x')\nsocket.getaddrinfo('h', 1)\nsys.stderr.write('x')\nrow.open()"
    )
    assert len(list(touches(ast.parse(code)))) == 5
