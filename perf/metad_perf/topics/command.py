"""``metad-perf topics``: what it costs to keep the metadata of many topics in a declared table.

One cluster has all topics. Some of them are created in turn with others on a cluster that has four groups for them, and
changes are made in turn with others on a cluster that has a thousand topics: so a busy machine slows both sides. One
process writes the topics of a cluster, and a broker in another has them in an image.

In the end every topic must have been written as often as its version says, for a read and in the image.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from ..commands import Topics
from ..experiment.actor import Actor
from ..experiment.nodes import cpu_s, quiet
from ..experiment.stage import Stage, conduct, staged
from ..report import output
from ..report.conclusion import conclude
from ..report.histogram import Latencies
from .broker import Begin, Build, Built, Follow, Followed, open_broker
from .records import topic_of
from .writer import Change, Changed, Create, List, Verify, open_writer

FEW: Final = 1_000
GROUPS: Final = 4
_PARTS: Final = 10  # of the creation
_PARTS_IN_TURN: Final = 3
_SINGLES_SHARE: Final = 4  # a single call costs several times what a record of a batch does


def run(options: Topics) -> int:
    """Returns the exit code: 1 if a topic was lost or wrong, or a node was not well."""
    made = conduct(options, partial(_play, options))
    code = conclude("topics", made, options, "lost", "wrong")
    output.say(
        f"{made['topics']:,} topics created at {made['created_per_s']:,.0f}/s; a broker has all of them after"
        f" {made['image_seconds']:g} s, in {made['image_rss_mib']:,.0f} MiB."
    )
    return code


class _Side(NamedTuple):
    """A cluster, the process that writes its topics, and a broker of it."""

    stage: Stage
    writer: Actor
    broker: Actor
    topics: int


class _Way(NamedTuple):
    """How topics are changed: how often, in which batches, and how many different ones at most."""

    changes: int
    batch: int
    different: int

    def within(self, topics: int) -> range:
        """Which of so many."""
        return range(0, topics, max(1, topics // self.different))


async def _side(options: Topics, stage: Stage, topics: int, writer: Actor) -> tuple[_Side, Built]:
    broker = stage.actor(open_broker, stage.members.target, options.kind)
    await quiet(stage.members.all)
    return _Side(stage, writer, broker, topics), await broker.ask(Build())


def _writer(options: Topics, stage: Stage) -> Actor:
    return stage.actor(open_writer, stage.members.target, options.kind, options.batch, options.in_flight, options.seed)


async def _play(options: Topics, stage: Stage) -> dict[str, Any]:
    config, problems, shape = options.server_config, stage.problems, options.shape
    topics = options.topics
    many_groups = msgspec.structs.replace(shape, groups=f"{options.kind}={GROUPS}")
    writer = _writer(options, stage)
    found = await staged(many_groups, config, problems, partial(_created, options, writer))
    side, built = await _side(options, stage, topics, writer)
    found |= await staged(shape, config, problems, partial(_changed, options, side))
    with output.progress(f"list topics of {options.lists:,} owners", options.lists) as progress:
        spent, wrong_pages = await writer.ask(List(topics, options.lists))
        progress(options.lists)
    lags, not_followed = await _lags(options, side)
    wrong = await writer.ask(Verify())
    pages = _percentiles("list_index_ms", spent)
    return {
        "created_per_s": found["created_per_s"],
        "image_seconds": built.seconds,
        "image_rss_mib": built.rss_mib,
        "change_cost_ratio_1e6_to_1e3": found["change_cost_ratio_1e6_to_1e3"],
        "list_index_ms_p99": pages["list_index_ms_p99"],
        "watch_lag_ms_p99": lags["watch_lag_ms_p99"],
        "groups_ratio_4_to_1": found["groups_ratio_4_to_1"],
        "topics": topics,
        "lost": topics - built.records,
        "wrong": wrong + wrong_pages + not_followed + found["not_followed"],
        **pages,
        **lags,
        "image_cpu_s": built.cpu_s,
        "change_cost_us": found["change_cost_us"],
        "change_cost_ratios": found["change_cost_ratios"],
        "record_bytes": len(msgspec.msgpack.encode(topic_of(topics - 1))),
    }


async def _created(options: Topics, writer: Actor, beside: Stage) -> dict[str, Any]:
    """Create all topics, the first parts of them in turn with others on the cluster with more groups."""
    other, part = _writer(options, beside), -(-options.topics // _PARTS)
    seconds, ratios = 0.0, []
    with output.progress(f"create {options.topics:,} topics", options.topics) as progress:
        for at, first in enumerate(range(0, options.topics, part)):
            order = Create(first, min(part, options.topics - first))
            if at < _PARTS_IN_TURN:
                who = (writer, other) if at % 2 else (other, writer)
                spent = {actor: await actor.ask(order) for actor in who}
                ratios.append(output.ratio(spent[writer], spent[other]))
                seconds += spent[writer]
            else:
                seconds += await writer.ask(order)
            progress(order.count)
    return {
        "created_per_s": output.ratio(options.topics, seconds),
        "groups_ratio_4_to_1": statistics.median(ratios),
    }


async def _changed(options: Topics, many: _Side, beside: Stage) -> dict[str, Any]:
    """What a change costs with many topics and with few, in turn: of as many different ones, and of any."""
    topics = min(FEW, options.topics)
    writer = _writer(options, beside)
    await writer.ask(Create(0, topics))
    few, _ = await _side(options, beside, topics, writer)
    ways = {
        "batches": _Way(options.changes, options.batch, topics),
        "singles": _Way(-(-options.changes // _SINGLES_SHARE), 1, topics),
        "batches_anywhere": _Way(options.changes, options.batch, options.topics),
    }
    costs: dict[str, list[dict[int, float]]] = {way: [] for way in ways}
    wrong = 0
    with output.progress("change topics", len(ways) * (1 + options.pairs)) as progress:
        for name, way in ways.items():  # the last leaves the nodes with more to tidy up than the others
            for pair in range(1 + options.pairs):  # the first fills what is remembered, and does not count
                spent = {}
                for which in (0, 1) if pair % 2 else (1, 0):
                    spent[which], differing = await _cost((few, many)[which], way)
                    wrong += differing
                costs[name] += [spent] if pair else []
                progress(1)
    ratios = {way: output.median_ratio((one[1], one[0]) for one in found) for way, found in costs.items()}
    return {
        "change_cost_ratio_1e6_to_1e3": max(ratios["batches"], ratios["singles"]),
        "change_cost_ratios": ratios,
        "change_cost_us": {way: _medians(found, topics, options.topics) for way, found in costs.items()},
        "not_followed": wrong,
    }


def _medians(found: Sequence[Mapping[int, float]], few: int, many: int) -> dict[str, float]:
    return {str(topics): statistics.median(one[at] for one in found) for at, topics in enumerate((few, many))}


async def _cost(side: _Side, way: _Way) -> tuple[float, int]:
    """CPU time of all nodes and of the broker for a changed topic, in µs; and how many topics the broker has wrong."""
    members = side.stage.members.all
    before = sum(cpu_s(members).values())
    await side.broker.ask(Begin())
    changed: Changed = await side.writer.ask(Change(way.within(side.topics), way.changes, way.batch))
    followed: Followed = await side.broker.ask(Follow(changed.versions))
    used_s = sum(cpu_s(members).values()) - before + followed.cpu_s
    return 1e6 * used_s / way.changes, followed.wrong


async def _lags(options: Topics, side: _Side) -> tuple[dict[str, float], int]:
    """From the answer to a change until the broker hears of it."""
    count = max(1, round(options.rate * options.seconds))
    await side.broker.ask(Begin(listen=True))
    with output.progress(f"{options.rate:g} changes a second", count) as progress:
        changed: Changed = await side.writer.ask(Change(range(side.topics), count, 1, options.rate))
        progress(count)
    followed: Followed = await side.broker.ask(Follow(changed.versions))
    came_ns = followed.came_ns
    lags_ns = [max(0, came_ns[which] - answered) for which, answered in changed.answered_ns.items() if which in came_ns]
    return _percentiles("watch_lag_ms", lags_ns), followed.wrong + len(changed.answered_ns) - len(lags_ns)


def _percentiles(name: str, spent_ns: Sequence[int]) -> dict[str, float]:
    latencies = Latencies()
    latencies.extend(spent_ns)
    return {f"{name}_p50": latencies.percentile_ms(50), f"{name}_p99": latencies.percentile_ms(99)}
