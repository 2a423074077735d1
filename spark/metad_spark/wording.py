"""Numbers and durations in words: for the terminal, the report and its pictures. Pure."""

from __future__ import annotations

LEFT_OUT = (
    "The simulation leaves out the brokers' CPU, the cost of a refusal, what restoring a session costs beyond its"
    " takeover, disks slower than the calibration's, and that nodes may have more than one core. It bounds a group's"
    " queue in items, metad by the time that they would wait."
)
"""What a reader must know besides."""


def percent(share: float) -> str:
    """Never 100 % where somebody is missing, nor 0 % where somebody is not: as many digits as that takes."""
    if share in (0.0, 1.0):
        return f"{100 * share:g} %"
    for digits in range(4, 16):
        text = f"{100 * share:.{digits}g}"
        if float(text) not in (0.0, 100.0):
            return f"{text if float(text) >= 0.001 else f'{float(text):.12f}'.rstrip('0')} %"
    return f"{'over' if share < 1 else 'about'} 99.99 %"


def short(value: float) -> str:
    """A number in short form: 1,200 as 1.2 k, 31,500,000 as 31.5 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration: 0.4 s, 83 s, 18 min, 3.5 h."""
    if value < 1000:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"
