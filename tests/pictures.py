"""What the texts of a page's pictures cover, as a browser shows them: none may be over another, or be cut.

Widths are those of the font that the pictures name first; whatever a browser takes in its place is no wider.
"""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from functools import cache
from typing import NamedTuple

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

SVG = "{http://www.w3.org/2000/svg}"
_FONT = FontProperties(family="DejaVu Sans")
_PLACE = re.compile(r"translate\(([-\d.]+) ([-\d.]+)\)")


class Box(NamedTuple):
    """A text and what it covers, in the picture's units."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


@cache
def _width(text: str) -> float:
    return float(TextPath((0, 0), text, size=100, prop=_FONT).get_extents().x1) / 100 if text.strip() else 0.0


def boxes(svg: str) -> list[Box]:
    """Of each text of a picture."""
    found = []
    for node in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        style = dict(part.split(": ", 1) for part in node.attrib["style"].split("; "))
        size = float(style["font-size"].removesuffix("px"))
        if place := _PLACE.search(node.attrib["transform"]):
            x, y = map(float, place.groups())
        else:
            x, y = float(node.attrib["x"]), float(node.attrib["y"])
        text = node.text or ""
        width = _width(text) * size
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[style.get("text-anchor", "start")]
        found.append(Box(text, left, y - 0.75 * size, left + width, y + 0.2 * size))
    return found


def faults(page: str) -> list[str]:
    """What is wrong with the pictures of a page, or with one picture."""
    wrong = []
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        _, _, width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split())
        shown = boxes(svg)
        wrong += [
            f"{box.text!r} is cut"
            for box in shown
            if box.left < 0 or box.top < 0 or box.right > width or box.bottom > height
        ]
        wrong += [
            f"{one.text!r} is over {other.text!r}"
            for one, other in itertools.combinations(shown, 2)
            if one.left < other.right and other.left < one.right and one.top < other.bottom and other.top < one.bottom
        ]
    return wrong
