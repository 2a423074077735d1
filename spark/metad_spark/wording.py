"""Numbers and durations as a person says them: on the terminal, in the report and in its pictures. Pure."""

from __future__ import annotations


def short(value: float) -> str:
    """A number as a person says it: 1,200 as 1.2 k, 31,500,000 as 31.5 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration: 0.4 s, 83 s, 18 min, 3.5 h."""
    if value < 1000:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"
