"""``metad-perf topics --filters``: how fast a broker finds the subscribers of a topic among many filters, and what they
cost it.

No node is involved: the trie is in the broker. The same filters go into paho-mqtt's trie, the one that Python's MQTT
clients use, and both are asked in turn for the same topics, so a busy machine slows both.

The filters are those of a fleet: most name one device, some all devices of a site or one sensor of many, a few
everything. Sites, devices and topics come from a seed.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from paho.mqtt.matcher import MQTTMatcher

from metad_client.topics import Subscribers
from metad_wire.text.topics import SEPARATOR

from .commands import Topics
from .report import output
from .report.conclusion import conclude, reported

_SEED = 7
_DEVICES_PER_SITE = 500
_SENSORS = ("state", "temperature", "humidity", "alarm", "battery", "log", "position", "load")
_SLICE = 5_000  # topics that one of the two is asked for before the other


def filters(count: int, seed: int = _SEED) -> Iterator[str]:
    """So many filters, all different."""
    rng = random.Random(seed)
    yield from ("#", "fleet/#", "fleet/+/device/+/alarm")[:count]
    seen: set[str] = set()
    sites = max(1, count // _DEVICES_PER_SITE)
    while len(seen) < count - 3:
        site, device = rng.randrange(sites), rng.randrange(_DEVICES_PER_SITE * sites)
        sensor, kind = rng.choice(_SENSORS), rng.random()
        if kind < 0.7:
            filter_ = f"fleet/{site}/device/{device}/{sensor}"
        elif kind < 0.85:
            filter_ = f"fleet/{site}/device/{device}/#"
        elif kind < 0.95:
            filter_ = f"fleet/+/device/{device}/{sensor}"
        else:
            filter_ = f"fleet/{site}/+/{device}/+"
        if filter_ not in seen:
            seen.add(filter_)
            yield filter_


def topics(known: list[str], count: int, seed: int = _SEED) -> list[str]:
    """Topic names that some filter asks for, one in four of them by chance alone."""
    rng = random.Random(seed + 1)
    made = []
    for _ in range(count):
        levels = rng.choice(known).split(SEPARATOR)
        if len(levels) < 4 or rng.random() < 0.25:
            levels = ["fleet", str(rng.randrange(len(known))), "device", str(rng.randrange(len(known))), "state"]
        names = {"#": rng.choice(_SENSORS), "+": "device" if levels[2] == "+" else rng.choice(_SENSORS)}
        made.append(SEPARATOR.join(names.get(level, level) for level in levels))
    return made


def _rss() -> int:
    return int(psutil.Process().memory_info().rss)


def _filled(known: list[str], add: Callable[[int, str], object]) -> tuple[float, float]:
    """Seconds and bytes of memory for one filter."""
    gc.collect()
    before, begin_s = _rss(), time.perf_counter()
    for number, filter_ in enumerate(known):
        add(number, filter_)
    seconds = time.perf_counter() - begin_s
    return seconds / len(known), (_rss() - before) / len(known)


def _asked(names: list[str], ask: Callable[[str], int]) -> tuple[float, int]:
    """Seconds of this thread's CPU, and subscribers found."""
    found, begin_s = 0, time.thread_time()
    for name in names:
        found += ask(name)
    return time.thread_time() - begin_s, found


def measure(count: int, asked: int) -> dict[str, Any]:
    """Fill both with so many filters, and ask both for so many topics."""
    known = list(filters(count))
    ours, theirs = Subscribers[str, int](), MQTTMatcher()  # type: ignore[no-untyped-call]  # paho has no types here
    put: Callable[[str, str], None] = theirs.__setitem__
    iter_match: Callable[[str], Iterator[str]] = theirs.iter_match
    clients = [f"client-{number}" for number in range(min(count, 100_000))]
    gc.collect()
    add_s, filter_bytes = _filled(known, lambda number, one: ours.add(one, clients[number % len(clients)], 1))
    paho_add_s, paho_bytes = _filled(known, lambda number, one: put(one, clients[number % len(clients)]))

    def ask(name: str) -> int:
        return len(ours.match(name).subscribers)

    def ask_paho(name: str) -> int:
        return len(list(iter_match(name)))

    names = topics(known, asked)
    seconds, paho_seconds, ratios = 0.0, 0.0, []
    found = wrong = 0
    for number, at in enumerate(range(0, asked, _SLICE)):
        part = names[at : at + _SLICE]
        if number % 2:
            other, other_found = _asked(part, ask_paho)
            one, one_found = _asked(part, ask)
        else:
            one, one_found = _asked(part, ask)
            other, other_found = _asked(part, ask_paho)
        seconds += one
        paho_seconds += other
        ratios.append(other / one)
        found += one_found
        wrong += one_found != other_found
    removed_s = time.perf_counter()
    for number, filter_ in enumerate(known):
        wrong += not ours.remove(filter_, clients[number % len(clients)])
    removed_s = (time.perf_counter() - removed_s) / count
    return {
        "filters": count,
        "topics": asked,
        "found_per_topic": found / asked,
        "matches_per_s": asked / seconds,
        "filter_bytes": filter_bytes,
        "add_us": add_s * 1e6,
        "remove_us": removed_s * 1e6,
        "paho_matches_per_s": asked / paho_seconds,
        "paho_filter_bytes": paho_bytes,
        "paho_add_us": paho_add_s * 1e6,
        "ratio": statistics.median(ratios),
        "wrong": wrong + len(ours),
    }


def run(options: Topics) -> int:
    """Returns the exit code: 1 if the two did not find the same."""
    filters = options.filters or 1
    made = reported(options, measure(filters, options.topics))
    code = conclude("filters", made, options, "wrong")
    output.say(
        f"{made['matches_per_s']:,.0f} matches/s on one core among {filters:,} filters of"
        f" {made['filter_bytes']:g} bytes; {made['ratio']:g} times as many as paho-mqtt, whose filters take"
        f" {made['paho_filter_bytes']:g} bytes."
    )
    return code
