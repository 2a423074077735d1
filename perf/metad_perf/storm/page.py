"""One storm as an HTML page: a sentence, figures, pictures that tell what happened, and all settings.

Pure: what the report says in, text out. Nothing is loaded from elsewhere, and no script runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from metad_spark.report.page import Page, Picture, Table
from metad_spark.report.picture import Plane

GREEN, BLUE, RED, ORANGE, GREY = "#16a34a", "#2563eb", "#dc2626", "#d97706", "#6b7280"
NODES: Final = ("#2563eb", "#d97706", "#7c3aed", "#0d9488", "#db2777")
_MARKS_MAX = 6
_RATE_STEPS = 10  # of the curves' steps, over which a rate is the mean


def page(made: Mapping[str, Any], *, made_by: Sequence[str]) -> str:
    """The page of a report. ``made_by``: lines for its foot."""
    settings = made["settings"]
    good = bool(made["ok"])
    parts: list[Picture | Table] = [
        _restored(made),
        _arrivals(made),
        _waiting(made),
        _percentiles(made),
        _goodput(made),
        _cpu(made),
        _memory(made),
        _marks(made),
    ]
    return Page(
        title="A reconnect storm on metad",
        verdict=_verdict(made),
        good=good,
        faults=[*made["examples"], *made["problems"]],
        made=made_by,
        figures=[
            (f"{made['restored']:,}", f"of {made['returning']:,} clients are back"),
            (f"{made['lost']:,}", "sessions lost"),
            (_seconds(made["t50_s"]), "until half were back"),
            (_seconds(made["t99_s"]), "until 99 %"),
            (_seconds(made["t999_s"]), "until 99.9 %"),
            (f"{made['attempts_per_session']:.2f}", "attempts for each client"),
            (f"{made['rejected']:,}", "attempts turned away"),
            (f"{made['elections']:,}", "elections"),
            (f"{made['brokers_fenced']:,}", "brokers fenced"),
            (f"{made['rss_max_mib']:,.0f} MiB", "the largest node"),
        ],
        parts=parts,
        settings=[
            *((key, _text(value)) for key, value in settings.items()),
            *((key, _text(made[key])) for key in ("nodes", "groups", "fsync", "scheme", "setting", "versions")),
            ("CPU of the brokers' processes", f"{made['harness_cpu_s']:.1f} s in the storm"),
        ],
        settings_heading="All settings",
    ).html()


def _verdict(made: Mapping[str, Any]) -> str:
    settings = made["settings"]
    told = f"{made['returning']:,} clients of {settings['brokers']} brokers came back to {made['nodes']} nodes"
    if made["restored"] < made["returning"]:
        away = made["returning"] - made["restored"]
        return f"{told}: {away:,} were still away after {made['storm_s']:.1f} s. {_lost(made)}"
    return f"{told} within {made['storm_s']:.1f} s. {_lost(made)}"


def _lost(made: Mapping[str, Any]) -> str:
    wrong = {
        "sessions were lost": made["lost"],
        "brokers were fenced": made["brokers_fenced"],
        "wills were published wrongly": made["wills_fired_wrongly"],
    }
    found = [f"{count:,} {what}" for what, count in wrong.items() if count]
    if not found:
        return "No session was lost, no broker fenced, no will published."
    return f"{', '.join(found)}.".capitalize()


def _times(made: Mapping[str, Any]) -> tuple[list[float], float]:
    """The ends of the curves' steps, and the end of the pictures."""
    step_s, steps = made["curves"]["step_s"], len(made["curves"]["restored"])
    xs = [step_s * (at + 1) for at in range(steps)]
    return xs, xs[-1]


def _marked(plane: Plane, made: Mapping[str, Any], end_s: float) -> None:
    """Kills, and the first elections."""
    inside = [(at_s, text) for at_s, text in made["marks"] if 0 <= at_s <= end_s]
    chosen = [mark for mark in inside if "term" not in mark[1]]
    chosen += [mark for mark in inside if "term" in mark[1]][: max(0, _MARKS_MAX - len(chosen))]
    for at_s, text in sorted(chosen):
        killed = text.startswith("kill")
        plane.mark(at_s, text if "term" not in text else "", RED if killed else ORANGE)


def _restored(made: Mapping[str, Any]) -> Picture:
    xs, end_s = _times(made)
    total = made["returning"]
    back = list(accumulate(made["curves"]["restored"]))
    plane = Plane(x=(0, end_s), y=(0, max(1, total)), label="clients that are back over time")
    plane.grid(x_name="seconds after the trigger", y_name="clients that are back")
    plane.area([0, *xs], [0, *back], GREEN)
    plane.line([0, *xs], [0, *back], GREEN, "back")
    plane.line([0, end_s], [total, total], GREY, "all", width=1, dash="4 4")
    _marked(plane, made, end_s)
    return Picture(
        heading="Who is back",
        caption="Every client lost its connection at 0 s unless the trigger says otherwise. A flat stretch is time in"
        " which nobody came back.",
        svg=plane.svg(),
    )


def _rates(counts: Sequence[int], step_s: float) -> list[float]:
    """A second's counts, as means over some steps."""
    return [
        sum(counts[max(0, at - _RATE_STEPS + 1) : at + 1]) / (min(at + 1, _RATE_STEPS) * step_s)
        for at in range(len(counts))
    ]


def _arrivals(made: Mapping[str, Any]) -> Picture:
    xs, end_s = _times(made)
    curves = made["curves"]
    rates = {name: _rates(curves[name], curves["step_s"]) for name in ("sent", "restored", "refused", "failed")}
    highest = max(1.0, *(max(rate) for rate in rates.values()))
    plane = Plane(x=(0, end_s), y=(0.9, highest * 1.2), label="attempts and answers a second", log_y=True)
    plane.grid(x_name="seconds after the trigger", y_name="a second (logarithmic)")
    named = (("sent", BLUE, "attempts"), ("restored", GREEN, "restored"), ("refused", RED, "turned away"))
    for name, colour, word in (*named, ("failed", ORANGE, "failed")):
        if any(rates[name]):
            plane.line(xs, rates[name], colour, word)
    _marked(plane, made, end_s)
    return Picture(
        heading="Arrivals against capacity",
        caption="Attempts as their brokers send them, and what became of them. What is restored in a second is what the"
        " cluster can do.",
        svg=plane.svg(),
    )


def _waiting(made: Mapping[str, Any]) -> Picture:
    xs, end_s = _times(made)
    curves = made["curves"]
    ended = [sum(each) for each in zip(curves["restored"], curves["refused"], curves["failed"], strict=True)]
    under_way = list(accumulate(sent - done for sent, done in zip(curves["sent"], ended, strict=True)))
    away = [made["returning"] - back for back in accumulate(curves["restored"])]
    resting = [max(0, gone - busy) for gone, busy in zip(away, under_way, strict=True)]
    plane = Plane(x=(0, end_s), y=(0, max(1, *under_way, *resting) * 1.05), label="clients that wait")
    plane.grid(x_name="seconds after the trigger", y_name="clients")
    plane.area(xs, under_way, BLUE)
    plane.line(xs, under_way, BLUE, "wait for an answer")
    plane.line(xs, resting, ORANGE, "wait to try again")
    _marked(plane, made, end_s)
    return Picture(
        heading="The queue",
        caption="Attempts that brokers have sent and that have no answer yet; clients that are on their way, or wait"
        " for their next attempt.",
        svg=plane.svg(),
    )


def _percentiles(made: Mapping[str, Any]) -> Table:
    rows = [(f"{percent} %", _seconds(at_s)) for percent, at_s in made["percentiles_s"].items()]
    return Table(
        heading="How long clients were away",
        caption="Each from when it lost its connection until its broker had everything of its session.",
        columns=["of the clients were back after", ""],
        rows=rows,
    )


def _goodput(made: Mapping[str, Any]) -> Picture:
    xs, end_s = _times(made)
    curve = made["goodput_curve"]
    smooth = _rates(curve, 1.0)
    before = made["goodput_before"]
    plane = Plane(x=(0, end_s), y=(0, max(1.0, before, *smooth) * 1.1), label="other work over time")
    plane.grid(x_name="seconds after the trigger", y_name="items a second")
    plane.area(xs, smooth, GREEN)
    plane.line(xs, smooth, GREEN, "acknowledged")
    plane.line([0, end_s], [before, before], GREY, "before", width=1, dash="4 4")
    _marked(plane, made, end_s)
    return Picture(
        heading="What other work felt",
        caption=f"Puts, updates and commits at an even pace: {before:,.0f} a second acknowledged before the storm,"
        f" {made['goodput_after']:,.0f} after it. 99 % of the batches took at most {_p99(made, 'before')} before,"
        f" {_p99(made, 'during')} during and {_p99(made, 'after')} after it.",
        svg=plane.svg(),
    )


def _p99(made: Mapping[str, Any], part: str) -> str:
    return f"{made['other_ms'][part]['99']:,.0f} ms"


def _nodes(made: Mapping[str, Any], column: int, name: str, heading: str, caption: str) -> Picture:
    _, end_s = _times(made)
    curves = {
        node: [(look[0], look[column]) for look in looks if 0 <= look[0] <= end_s]
        for node, looks in sorted(made["nodes_curve"].items())
    }
    highest = max((y for points in curves.values() for _, y in points), default=1.0)
    plane = Plane(x=(0, end_s), y=(0, max(0.1, highest) * 1.1), label=heading)
    plane.grid(x_name="seconds after the trigger", y_name=name)
    for at, (node, points) in enumerate(curves.items()):
        plane.line([x for x, _ in points], [y for _, y in points], NODES[at % len(NODES)], node)
    _marked(plane, made, end_s)
    return Picture(heading=heading, caption=caption, svg=plane.svg())


def _cpu(made: Mapping[str, Any]) -> Picture:
    cpus = made["setting"]["cpus"]
    return _nodes(
        made,
        1,
        "cores",
        "CPU of each node",
        f"The machine has {cpus} cores for the nodes, the brokers and their clients.",
    )


def _memory(made: Mapping[str, Any]) -> Picture:
    return _nodes(made, 2, "MiB", "Memory of each node", "Resident memory of the process.")


def _marks(made: Mapping[str, Any]) -> Table:
    rows = [(f"{at_s:.2f} s", text) for at_s, text in made["marks"]]
    return Table(
        heading="Kills and elections",
        caption="Red and orange lines in the pictures. A term is an election of that group." if rows else "None.",
        columns=["after", "what"],
        rows=rows,
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.3g} s"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_text(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
