"""A Spark Connect server in a process of its own reads, follows and writes a cluster for a program in another one, and
so does a program that spark-submit starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from spark_rig import SMALL

import metad.embedded
from metad_client import KvPutItem, SessionTakeoverItem, blocking

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]
SUBMIT = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
}
QUICK = [word for key, value in SMALL.items() for word in ("--conf", f"{key}={value}")]
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from metad_spark import register

url, folder, master = sys.argv[1:]
builder = SparkSession.builder
spark = (builder.remote(master) if master else builder).getOrCreate()
register(spark)
sessions = spark.read.format("metad").option("table", "session").load(url)
print("sessions", sessions.groupBy("broker").count().collect()[0]["count"])
try:
    spark.read.format("metad").option("table", "sessions").load(url).count()
except Exception as error:
    print("refused", "there is no table 'sessions' to read" in str(error))
changes = spark.readStream.format("metad").options(table="kv").load(url).where("namespace = 'from'")
copied = changes.selectExpr("'to' as namespace", "key", "value")
query = (
    copied.writeStream.format("metad")
    .options(table="kv", query="copy", checkpointLocation=folder)
    .trigger(availableNow=True)
    .start(url)
)
query.awaitTermination()
print("failed", query.exception())
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with metad.embedded.cluster(nodes=1) as nodes:
        with blocking.connect(nodes.url) as m:
            items = [SessionTakeoverItem("acme", f"c-{number}") for number in range(500)]
            m.sessions.takeover_many("b-1", 1, items, deadline_s=60).raise_for_error()
            m.kv.put_many([KvPutItem("from", f"k{number}", b"%d" % number) for number in range(50)]).raise_for_error()
        yield nodes.url


@pytest.fixture(scope="module")
def server(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Connect server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("connect")
    command = [
        *(str(SUBMIT), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"),
        *(*QUICK, "--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1", "--driver-memory", "1g", "spark-internal"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=ENVIRONMENT, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        pause, end = threading.Event(), time.monotonic() + 300
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < end, "the server does not listen in time"
            pause.wait(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check(said: subprocess.CompletedProcess[str], url: str) -> None:
    assert said.returncode == 0, said.stderr[-3000:]
    assert said.stdout.split("\n")[:-1] == ["sessions 500", "refused True", "failed None"]
    with blocking.connect(url) as m:
        found = {record.key: (record.value, record.version) for record in m.kv.scan("to")}
        assert found == {f"k{number}": (b"%d" % number, 1) for number in range(50)}
        for key in found:
            m.kv.delete("to", key)


def test_a_connect_server_in_a_process_of_its_own(server: str, cluster: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), cluster, str(tmp_path / "checkpoint"), server]
    check(subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600), cluster)


def test_a_program_that_spark_submit_starts(java: None, cluster: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace('query="copy"', 'query="submitted"'))
    command = [str(SUBMIT), "--master", "local[2]", *QUICK, "--conf", "spark.ui.enabled=false", str(program), cluster]
    command += [str(tmp_path / "checkpoint"), ""]
    check(subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600), cluster)
