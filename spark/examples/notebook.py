# ruff: noqa: E402
# %% [markdown]
# # From a running cluster to the size of the next one
#
# Open this file as a notebook (VS Code, or Jupyter with jupytext), or copy its cells one after the other.
# `tests/spark/test_notebook.py` runs them against a real cluster.
#
# They need Java 17 or later and `pip install ./clients '.[spark,perf,server]'` in a clone. The cluster is that of
# `METAD_URL`; `metad serve` starts one on this machine.
#
# ## 1. Spark, and the cluster
#
# A command that runs in a program with a Spark session uses that session and leaves it open.

# %%
import json
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from metad_spark import register
from metad_spark.cli import main

SOURCE = os.environ.get("METAD_URL", "metad://127.0.0.1:7420")
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 8).getOrCreate()
register(spark)

# %% [markdown]
# ## 2. Some sessions
#
# **Leave this cell out where there are sessions already.** It makes those of 3,000 clients at three brokers.
# `lease_s` is how long a broker that is not heard of counts as alive.

# %%
from metad_client import SessionProperties, SessionTakeoverItem, blocking

for region, clients in (("near", 1_500), ("near", 500), ("far", 1_000)):
    broker = f"broker-{region}-{clients}"
    with blocking.connect(SOURCE) as m:
        life = m.brokers.register(broker, region=region, lease_s=600).owner
        items = [
            SessionTakeoverItem("acme", f"{broker}-{number}", False, SessionProperties(3_600, b"x" * 100))
            for number in range(clients)
        ]
        m.sessions.takeover_many(broker, life.broker_epoch, items, deadline_s=60).raise_for_error()

# %% [markdown]
# ## 3. The sessions as a DataFrame

# %%
sessions = spark.read.format("metad").option("table", "session").load(SOURCE)
by_broker = sessions.groupBy("tenant", "broker").agg(
    F.count("*").alias("sessions"),
    F.count_if("connected").alias("connected"),
    F.avg(F.octet_length("payload")).alias("payload_bytes"),
)
by_broker.orderBy("broker").show()

# %% [markdown]
# ## 4. A census
#
# Who the clients are, in numbers that a simulation can draw from: by tenant and region, with expiries, subscriptions
# and how full each slot is.

# %%
assert main(["census", "--source", SOURCE, "--json", "census.json"]) == 0
with open("census.json") as file:
    census = json.load(file)
print(f"{census['connected']:,} of {census['sessions']:,} sessions are connected.")

# %% [markdown]
# ## 5. The storm of these clients
#
# All that are connected lose their connections within a second, and come back. The network and the SDKs are those of
# the scenario, `small`; write your own as a file. `--clients` asks for the same population when it is larger.

# %%
assert main(["simulate", "--population", "census.json", "--scenario", "small", "--json", "now.json"]) == 0
larger = ["--population", "census.json", "--scenario", "small", "--clients", "5e5"]
assert main(["simulate", *larger, "--tables", "storms", "--json", "later.json"]) == 0
with open("later.json") as file:
    storm = json.load(file)

# %% [markdown]
# Every run is a folder of Parquet. How many clients of each region were back, second by second:

# %%
folder = os.path.abspath("storms")
slices = spark.read.option("basePath", folder).parquet(f"{folder}/run=*/slices.parquet")
back = slices.groupBy("second").pivot("kind").agg(F.sum("restored"))
back.orderBy("second").show(10)

# %% [markdown]
# ## 6. The cluster that is large enough
#
# The smallest one with which 99.9 % of half a million such clients are back within 5 s, also if every cost is at the
# high end of its interval. `size.toml` is for `metad serve --config`.

# %%
asked = ["--population", "census.json", "--scenario", "small", "--clients", "5e5", "--target", "t999<=5s"]
assert main(["size", *asked, "--json", "size.json", "--config", "size.toml"]) == 0
with open("size.json") as file:
    size = json.load(file)
low, likely, high = size["band"]["t999_s"]
print(f"{size['nodes']} nodes with {size['groups']} groups: {likely:.1f} s, from {low:.1f} to {high:.1f} s.")

# %% [markdown]
# ## 7. How far off predictions are
#
# What the model of requests says of itself, from the storms that it was held against last. `passed` is whether every
# storm that was not used for the calibration was predicted within the bars. It holds for the settings of those storms
# only (`nodes`, `linger_ms`, `sessions`, `rejected`), and for no other model.

# %%
from metad_spark.validation import BARS_PCT, last_verdict, validity

verdict = last_verdict()
print(validity("requests"))
errors = [(name, bar, verdict.median_pct.get(name), verdict.worst_pct.get(name)) for name, bar in BARS_PCT.items()]
spark.createDataFrame(errors, "metric string, bar_pct double, median_pct double, worst_pct double").show()

# %% [markdown]
# A storm of your own: on a cluster that this cell starts and ends, because a storm is no guest for a cluster that
# others use. `validate` predicts it from its settings alone. One storm is too few to pass, so its exit code is 1
# however well it was predicted.

# %%
import subprocess
import sys

import metad.embedded

with metad.embedded.cluster(nodes=1) as nodes:
    command = ["storm", "--endpoint", nodes.url, "--sessions", "2000", "--brokers", "4", "--background", "10"]
    subprocess.run([sys.executable, "-m", "metad_perf.cli", *command, "--json", "measured.json"], check=True)
assert main(["validate", "measured.json", "--json", "validation.json"]) == 1
with open("validation.json") as file:
    (judged,) = json.load(file)["storms"]
for name, metric in judged["metrics"].items():
    print(
        f"{name}: predicted {metric['predicted']:.3g}, measured {metric['measured']:.3g}: {metric['error_pct']:+.0f} %"
    )
