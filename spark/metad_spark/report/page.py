"""The report as one HTML file: a sentence, figures, pictures, a small table. No script, no external files.

Pure: knows what a page is, not what a storm is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawing with its heading and caption."""

    heading: str
    caption: str
    svg: str
    legend: Sequence[tuple[str, str]] = ()
    """(colour, word) of areas that carry no name of their own."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of words; numbers are aligned to the right. ``strong`` are the indexes of highlighted rows."""

    heading: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of the page, from the top."""

    title: str
    verdict: str
    good: bool
    """Whether the verdict is a good one."""
    faults: Sequence[str] = ()
    """Sentences in red below the verdict."""
    notice: str = ""
    """First of all: what every reader must know before the verdict and the numbers."""
    made: Sequence[str] = ()
    """At the bottom: the command, the version, the date."""
    figures: Sequence[tuple[str, str]]
    """(number, its meaning)."""
    parts: Sequence[Picture | Table]
    settings: Sequence[tuple[str, str]]
    """(key, value), for readers who want to repeat it."""
    settings_heading: str = "What was simulated, and with what"

    def html(self) -> str:
        """The text of the file."""
        figures = "".join(
            f"<div><b>{escape(number)}</b><span>{escape(name)}</span></div>" for number, name in self.figures
        )
        parts = "".join(_picture(part) if isinstance(part, Picture) else _table(part) for part in self.parts)
        notice = f'<p class="notice">{escape(self.notice)}</p>' if self.notice else ""
        made = "".join(f"<p>{escape(each)}</p>" for each in self.made)
        made = f"<footer>{made}</footer>" if made else ""
        faults = "".join(f'<p class="fault">{escape(fault)}</p>' for fault in self.faults)
        settings = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in self.settings)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
            f"<body><main><header><h1>{escape(self.title)}</h1>{notice}"
            f'<p class="verdict {"good" if self.good else "bad"}">{escape(self.verdict)}</p>{faults}</header>'
            f'<section class="figures">{figures}</section>{parts}'
            f"<details><summary>{escape(self.settings_heading)}</summary><table>{settings}</table></details>"
            f"{made}</main></body></html>\n"
        )


def _picture(picture: Picture) -> str:
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{escape(word)}</span>' for colour, word in picture.legend
    )
    return (
        f"<section><h2>{escape(picture.heading)}</h2><p>{escape(picture.caption)}</p>"
        f"{f'<p class=legend>{legend}</p>' if legend else ''}<div class=wide>{picture.svg}</div></section>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(
        f"<tr{' class=strong' if index in table.strong else ''}>{''.join(_cell(cell) for cell in row)}</tr>"
        for index, row in enumerate(table.rows)
    )
    return (
        f"<section><h2>{escape(table.heading)}</h2><p>{escape(table.caption)}</p>"
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _cell(text: str) -> str:
    return f"<td{' class=n' if text[:1].isdigit() else ''}>{escape(text)}</td>"


_STYLE = """
:root{color-scheme:light dark;--back:#f8fafc;--card:#fff;--ink:#1f2937;--soft:#4b5563;--faint:#6b7280;--grid:#e5e7eb;
--good:#16a34a;--good-back:#f0fdf4;--bad:#dc2626;--bad-back:#fef2f2;--note-back:#fefce8}
@media (prefers-color-scheme:dark){:root{--back:#0b1120;--card:#111827;--ink:#e5e7eb;--soft:#cbd5e1;--faint:#9ca3af;
--grid:#374151;--good:#4ade80;--good-back:#052e16;--bad:#f87171;--bad-back:#450a0a;--note-back:#422006}}
body{margin:0;background:var(--back);color:var(--ink);font-size:15px;line-height:1.5}
body,svg{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:940px;margin:0 auto;padding:32px 20px 56px}
h1{font-size:26px;line-height:1.25;margin:0 0 10px}
h2{font-size:17px;margin:0 0 2px}
p{margin:0 0 10px;color:var(--soft)}
.verdict{font-size:17px;color:var(--ink);padding:12px 16px;border-left:5px solid var(--good);
background:var(--good-back)}
.fault{color:var(--bad);font-weight:600}
.notice{padding:8px 16px;background:var(--note-back)}
.notice::first-line{font-weight:600}
.verdict.bad{border-color:var(--bad);background:var(--bad-back)}
section,details{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:18px 22px;margin:18px 0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(104px,1fr));gap:14px 20px}
.figures b{display:block;font-size:23px;font-variant-numeric:tabular-nums;line-height:1.25}
.figures span{color:var(--faint);font-size:13px}
svg{display:block;width:100%;height:auto;font-size:12px}
.wide{overflow-x:auto}
.legend span{margin-right:18px}
.legend i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;opacity:.7}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--faint);font-weight:500}
th,td{padding:6px 10px 6px 0;border-bottom:1px solid var(--grid);vertical-align:top}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
tr.strong td{background:var(--good-back)}
tr.strong td:first-child::before{content:"\\2713\\a0";color:var(--good)}
summary{cursor:pointer;color:var(--soft)}
footer p{font-size:13px;color:var(--faint);overflow-wrap:anywhere;margin:0}
@media (max-width:700px){main{padding:16px 8px 32px}section,details{padding:12px}.wide svg{width:760px}
.wide table{width:680px}}
@media print{body{background:#fff}section,details{break-inside:avoid}}
"""
