"""Parts of a page of HTML that needs no other file: no script, no font, no network. All text is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1c2128; --soft: #5d6670; --rule: #dfe3e8;
  --main: #3b82c4; --warn: #fff4dd; --warn-ink: #6b4a00; --good: #1c7c4c; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --card: #1d2127; --ink: #e7eaee; --soft: #9aa4af;
  --rule: #333a43; --main: #5a9fdd; --warn: #3a2f14; --warn-ink: #f3d58c; --good: #62c793; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 4px 0 12px; color: var(--soft); } .answer { color: var(--ink); font-size: 20px; font-weight: 600; }
code { white-space: nowrap; font-size: 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 20px 0; }
.tile, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); }
.warning { background: var(--warn); color: var(--warn-ink); border-radius: 10px; padding: 10px 16px; margin: 8px 0; }
.warning ul { margin: 2px 0 0; padding-left: 20px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 14px; margin: 14px 0;
  grid-auto-flow: row dense; }
.wide { grid-column: 1 / -1; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
svg .label { fill: var(--ink); }
svg .name { fill: var(--ink); stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; paint-order: stroke; }
.charts section:not(.wide) svg { max-width: 620px; }
@media (max-width: 1000px) { .wide svg text { font-size: 15px; } }
.axis { fill: none; stroke: var(--soft); } .tick { stroke: var(--soft); } .grid { stroke: var(--rule); }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .dashed { stroke-dasharray: 6 4; }
.band { fill: var(--main); opacity: .22; }
.bar { fill: var(--main); } .level { stroke: var(--ink); stroke-dasharray: 5 4; } .cells { image-rendering: pixelated; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; color: var(--soft); margin-top: 6px; font-size: 13px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 5px; }
.legend .dash { width: 17px; height: 0; border-radius: 0; border-top: 2px dashed; vertical-align: 4px; }
.scroll { overflow-x: auto; } .scroll:focus-visible { outline: 2px solid var(--main); }
.scroll > p { position: sticky; left: 0; width: max-content; max-width: 100%; margin: 0; font-size: 13px; }
@supports (animation-timeline: scroll(nearest inline)) { .scroll > p { visibility: hidden; height: 0;
  animation: wide linear both; animation-timeline: scroll(nearest inline); }
  @keyframes wide { 0%, 100% { visibility: visible; height: auto; } } }
.own { white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child, .words th, .words td { text-align: left; }
.pairs td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.tile .good { color: var(--good); } .tile .bad { color: var(--bad); } main > section { margin: 14px 0; }
.words td:last-child { white-space: normal; min-width: 320px; }
td.left { text-align: left; } caption { text-align: left; color: var(--soft); padding: 4px 0; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
details { margin-top: 8px; } summary { color: var(--soft); cursor: pointer; font-size: 13px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; margin: 6px 0; }
.pairs td:first-child { color: var(--soft); white-space: nowrap; width: 1%; }
@media print { :root { color-scheme: light; --ground: #fff; --card: #fff; --ink: #000; --soft: #444; --rule: #bbb;
  --main: #3b82c4; --warn: #fff4dd; --warn-ink: #6b4a00; --good: #1c7c4c; --bad: #b3261e; } @page { margin: 12mm; }
  body { font-size: 11px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0 1px; }
  p, li, .tile, svg, .legend, tr { break-inside: avoid; } h2, h2 + p, svg, summary, thead { break-after: avoid; }
  section { box-decoration-break: clone; -webkit-box-decoration-break: clone; }
  pre { columns: 4; column-gap: 10px; font-size: 8px; line-height: 1.25; }
  thead { display: table-header-group; }
  .charts { display: block; } .charts section { margin: 10px 0; } .charts section:not(.wide) svg { max-width: 440px; }
  .tiles { grid-template-columns: repeat(5, 1fr); } .tile b { font-size: 15px; }
  .scroll { overflow: visible; } .scroll > p { display: none; }
  th, td { white-space: normal; padding: 2px 3px; font-size: 8px; overflow-wrap: break-word; }
  .many th, .many td { padding: 2px; font-size: 6.8px; }
  .legend { font-size: 10px; } summary { list-style: none; font-size: 10px; }
  details::details-content { content-visibility: visible; display: block; } }
"""
_MANY: Final = 18
"""Columns that paper has room for; where there are more, letters are smaller."""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""For the browser: it runs nothing and fetches nothing, whatever the page says."""


class Html(str):
    """HTML that was made here; every other string is text, and escaped."""

    __slots__ = ()


def document(title: str, body: str) -> str:
    """The page around ``body``, which is HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def section(title: str, text: str, content: str, *, wide: bool = False) -> str:
    """A card: a heading, a sentence, and ``content``, which is HTML."""
    said = f"<p>{escape(text)}</p>" if text else ""
    return f"<section{' class=wide' if wide else ''}><h2>{escape(title)}</h2>{said}{content}</section>"


def legend(entries: Sequence[tuple[str, str]], dashed: Sequence[tuple[str, str]] = ()) -> str:
    """Colours and what they stand for; after them those of dashed lines."""
    spans = [f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for colour, name in entries]
    spans += [f'<span><i class="dash" style="color:{colour}"></i>{escape(name)}</span>' for colour, name in dashed]
    return f'<div class="legend">{"".join(spans)}</div>'


def tile(name: str, value: str) -> str:
    """A number to be seen first."""
    return f'<div class="tile"><b>{_cell(value)}</b><span>{escape(name)}</span></div>'


def pairs(values: Sequence[tuple[str, str]]) -> str:
    """A table of names and what they are."""
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{_cell(value)}</td></tr>" for name, value in values)
    return f'<table class="pairs">{lines}</table>'


def rows(headings: Sequence[str], values: Sequence[Sequence[str]], *, words: bool = False) -> str:
    """A table with headings; its last column is of sentences if ``words``.

    Raises:
        ValueError: a row has more or fewer cells than there are headings.
    """
    if any(len(row) != len(headings) for row in values):
        raise ValueError(f"rows need {len(headings)} cells: {', '.join(headings)}")
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    lines = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in values)
    kind = " class=words" if words else " class=many" if len(headings) > _MANY else ""
    return f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def numbers(headings: Sequence[str], values: Sequence[Sequence[str]]) -> str:
    """A table that a chart was drawn from, to be opened: for those who can not see the chart, and to copy."""
    return f"<details><summary>Numbers</summary>{scroll(rows(headings, values))}</details>"


def scroll(table: str) -> str:
    """A table, which is HTML, that scrolls where it is wider than the page, and says so."""
    said = "<p>→ This table is wider than the page: scroll to the right for the other columns.</p>"
    return f'<div class="scroll" tabindex="0">{said}{table}</div>'


def _cell(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)
