"""The report as one HTML file: a sentence, figures, pictures, a small table. No script, nothing to load from elsewhere.

Pure: knows what a page is, not what a storm is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawing with what to see in it."""

    heading: str
    caption: str
    svg: str
    legend: Sequence[tuple[str, str]] = ()
    """(colour, word) of areas that carry no name of their own."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of words; numbers stand to the right. ``strong`` are the indexes of rows to point out."""

    heading: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything on it, from the top."""

    title: str
    verdict: str
    good: bool
    """Whether the verdict is a good one."""
    faults: Sequence[str] = ()
    """Sentences in red below the verdict."""
    figures: Sequence[tuple[str, str]]
    """(number, what it is)."""
    parts: Sequence[Picture | Table]
    settings: Sequence[tuple[str, str]]
    """What was simulated, (key, value), for who wants to repeat it."""

    def html(self) -> str:
        """The file's text."""
        figures = "".join(
            f"<div><b>{escape(number)}</b><span>{escape(name)}</span></div>" for number, name in self.figures
        )
        parts = "".join(_picture(part) if isinstance(part, Picture) else _table(part) for part in self.parts)
        faults = "".join(f'<p class="fault">{escape(fault)}</p>' for fault in self.faults)
        settings = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in self.settings)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
            f'<body><main><header><h1>{escape(self.title)}</h1><p class="verdict {"good" if self.good else "bad"}">'
            f'{escape(self.verdict)}</p>{faults}</header><section class="figures">{figures}</section>{parts}'
            f"<details><summary>What was simulated, and with what</summary><table>{settings}</table></details>"
            "</main></body></html>\n"
        )


def _picture(picture: Picture) -> str:
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{escape(word)}</span>' for colour, word in picture.legend
    )
    return (
        f"<section><h2>{escape(picture.heading)}</h2><p>{escape(picture.caption)}</p>"
        f"{f'<p class=legend>{legend}</p>' if legend else ''}{picture.svg}</section>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(
        f"<tr{' class=strong' if index in table.strong else ''}>{''.join(_cell(cell) for cell in row)}</tr>"
        for index, row in enumerate(table.rows)
    )
    return (
        f"<section><h2>{escape(table.heading)}</h2><p>{escape(table.caption)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
    )


def _cell(text: str) -> str:
    return f"<td{' class=n' if text[:1].isdigit() else ''}>{escape(text)}</td>"


_STYLE = """
:root{color-scheme:light}
body{margin:0;background:#f8fafc;color:#1f2937;font-size:15px;line-height:1.5}
body,svg{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:940px;margin:0 auto;padding:32px 20px 56px}
h1{font-size:26px;line-height:1.25;margin:0 0 10px}
h2{font-size:17px;margin:0 0 2px}
p{margin:0 0 10px;color:#4b5563}
.verdict{font-size:17px;color:#1f2937;padding:12px 16px;border-left:5px solid #16a34a;background:#f0fdf4}
.fault{color:#b91c1c;font-weight:600}
.verdict.bad{border-color:#dc2626;background:#fef2f2}
section,details{background:#fff;border:1px solid #e5e7eb;border-radius:10px;padding:18px 22px;margin:18px 0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(104px,1fr));gap:14px 20px}
.figures b{display:block;font-size:23px;font-variant-numeric:tabular-nums;line-height:1.25}
.figures span{color:#6b7280;font-size:13px}
svg{display:block;width:100%;height:auto;font-size:12px}
.legend span{margin-right:18px}
.legend i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;opacity:.7}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:#6b7280;font-weight:500}
th,td{padding:6px 10px 6px 0;border-bottom:1px solid #f1f5f9;vertical-align:top}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
tr.strong td{background:#f0fdf4}
tr.strong td:first-child::before{content:"\\2713\\a0";color:#16a34a}
summary{cursor:pointer;color:#4b5563}
@media print{body{background:#fff}section,details{break-inside:avoid}}
"""
