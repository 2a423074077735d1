"""A Spark session for one command: on this machine, on a cluster or through Spark Connect, used by the same code.

Code that uses this module must not ask a session for its context or its JVM: Connect has neither. Spark prints a lot
while it starts, so its output goes to a file, and the user sees one line if it fails.

Executors that do not have metad's own packages get them as one zip.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from metad_wire.program.extras import install

from ..errors import SparkFailed, UsageError
from .java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import zipfile

import metad_spark
import metad_wire

_SUFFIXES = {".py", ".toml", ".json"}


def package_zip(folder: Path) -> Path:
    """Write ``metad_packages.zip`` into the folder. The cluster must provide the packages' imports (numpy, pyarrow,
    pandas, msgspec)."""
    made = folder / "metad_packages.zip"
    roots = (Path(metad_spark.__path__[0]), Path(metad_wire.__path__[0]))
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for root in roots:
            for file in sorted(root.rglob("*")):
                if file.suffix in _SUFFIXES:
                    archive.write(file, Path(root.name) / file.relative_to(root))
    return made


_HERE = {
    "spark.driver.memory": "1g",  # the JVM only plans and carries bytes; the models run in the Python workers
    "spark.sql.shuffle.partitions": "8",  # of 200, each of a cache is a task
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # line numbers for stack traces, which nobody here is shown
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # it would overwrite our progress bar
    "spark.driver.bindAddress": "127.0.0.1",
}
"""For a Spark of our own on this machine; the operator of a cluster configures its Spark."""


_CONNECT_PORT = 15002


def submitted() -> bool:
    """Whether spark-submit started this process, and so has chosen the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextlib.contextmanager
def open_session(*, master: str | None = None, connect: bool = False) -> Iterator[SparkSession]:
    """A session on ``master``; it ends with the block, and a JVM that was started for it ends too. The session of a
    program that has one, such as a notebook, is used where no master is asked for, and stays.

    ``master``: ``local[2]`` and the like, a cluster's URL, or ``sc://host:port`` for a Spark Connect server; None means
    the choice of spark-submit, and without it all cores of this machine. ``connect`` starts a Connect server on a local
    master and uses it like a remote one.

    Raises :class:`..errors.JavaMissing` before anything is started, :class:`..errors.SparkFailed` if Spark does not
    start or the server is not reached, :class:`..errors.UsageError` if ``connect`` does not fit ``master``."""
    if master is None and not connect and (active := _active()) is not None:
        with _shipped(active, here=_is_here(active.conf.get("spark.master", ""))):
            yield active
        return
    if master is None and not submitted():
        master = "local[*]"
    remote = master is not None and master.startswith("sc://")
    here = _is_here(master)
    if connect and not here:
        raise UsageError("--connect starts a server on a local master; give --master sc://HOST:PORT for another one")
    if not remote and not submitted():
        find_java()
    if connect:
        _want_port(_CONNECT_PORT)
    if here:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # another python3 on the path has other packages
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _said() as log:
        session = _start(master, remote=remote or connect, here=here, log=log)
        try:
            with _shipped(session, here=here):
                yield session
        finally:
            session.stop()


def _is_here(master: str | None) -> bool:
    """Whether a master's executors are on this machine, in this process's JVM."""
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")


def _active() -> SparkSession | None:
    """The session that this program has, if it has one."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return None
    return SparkSession.getActiveSession()


@contextlib.contextmanager
def _shipped(session: SparkSession, *, here: bool) -> Iterator[None]:
    """While this lasts executors on other machines have our code; those of this machine read it where it is."""
    if here:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="metad-spark-") as folder:
        session.addArtifacts(str(package_zip(Path(folder))), pyfile=True)
        yield


def _want_port(port: int) -> None:
    """Check that the port is free: Spark's own server always takes it, and reports a taken port in pages of output.
    Raises SparkFailed."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise SparkFailed(f"port {port} is taken: a Connect server there? then --master sc://localhost") from None


def _start(master: str | None, *, remote: bool, here: bool, log: Path) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError as missing:
        raise SparkFailed(f"{missing}; {install('spark')}") from None
    builder = SparkSession.builder.appName("metad-spark")
    if master is not None:
        builder = builder.remote(master) if remote else builder.master(master)
    for key, value in _HERE.items() if here else ():
        builder = builder.config(key, value)
    with warnings.catch_warnings(), _stderr_to(log):
        # Connect warns of settings that start-up has already made
        warnings.filterwarnings("ignore", "Failed to set spark.", UserWarning)
        try:
            return builder.getOrCreate()
        except Exception as error:  # py4j, gRPC and PySpark each raise their own
            raise SparkFailed(f"Spark did not start on {master}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The text of a Spark error before its stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def _said() -> Iterator[Path]:
    """A file for Spark's output, which is kept only if something failed."""
    handle, name = tempfile.mkstemp(prefix="metad-spark-", suffix=".log")
    os.close(handle)
    log = Path(name)
    try:
        yield log
    except SparkFailed as error:
        raise SparkFailed(f"{error}; Spark said more in {log}") from error
    except BaseException:
        log.unlink(missing_ok=True)
        raise
    log.unlink(missing_ok=True)


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirects this process's file descriptor 2 to the file; processes started meanwhile inherit it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
