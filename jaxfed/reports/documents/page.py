"""The report as one self-contained HTML page: styles and images are embedded, nothing is fetched."""

from __future__ import annotations

import base64
import html
import itertools
import struct
from collections.abc import Sequence
from pathlib import Path

from jaxfed.reports.documents.sections import HOW, Picture, Section, origins
from jaxfed.reports.figures.style import DPI
from jaxfed.reports.tables.display_names import unbroken
from jaxfed.reports.tables.tables import Table


def render(sections: Sequence[Section], plots: Path) -> str:
    """Return the whole page, for phones and desktops, with the PNG files of a folder."""
    anchors = [f"s{number}" for number in range(len(sections))]
    links = "".join(
        f'<a href="#{anchor}">{_text(section.title)}</a>'
        for anchor, section in zip(anchors, sections, strict=True)
    )
    body = "".join(
        _section(anchor, section, plots) for anchor, section in zip(anchors, sections, strict=True)
    )
    counts = _counts(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>jaxfed report</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<div class="inner">
{_EMBLEM}
<div><h1>jaxfed report</h1><p>{counts}</p></div>
</div>
</header>
<nav><div class="inner">{links}</div></nav>
<main>
{body}{_how(sections)}
</main>
</body>
</html>
"""


def _counts(sections: Sequence[Section]) -> str:
    kinds = [section.kind for section in sections]
    parts = []
    for kind in ("run", "sweep"):
        count = kinds.count(kind)
        if count:
            parts.append(f"{count} {kind}{'s' if count > 1 else ''}")
    for state in ("unfinished", "failed"):
        number = sum(len(getattr(section, state)) for section in sections)
        if number:
            parts.append(f"{number} {state}")
    return " · ".join(parts)


def _section(anchor: str, section: Section, plots: Path) -> str:
    content = ""
    for kind, parts in itertools.groupby(section.parts, type):
        shown = "".join(
            _table(part) if isinstance(part, Table) else _figure(part, plots) for part in parts
        )
        content += shown if kind is Table else f'<div class="gallery">{shown}</div>'
    return f"""<section id="{anchor}">
<p class="kind">{_text(section.kind)}</p>
<h2>{_text(section.title)}</h2>
{_unfinished(section)}{content}
</section>
"""


def _unfinished(section: Section) -> str:
    """Return notices on failed and unfinished experiments."""
    names = [f"<code>{html.escape(name)}</code>" for name in section.unfinished]
    failures = [f"<code>{html.escape(name)}</code>: {_text(why)}" for name, why in section.failed]
    return _notice("Failed; the same command tries again:", failures) + _notice(
        "No results yet; the same command continues:", names
    )


def _notice(heading: str, entries: Sequence[str]) -> str:
    if not entries:
        return ""
    items = "".join(f"<li>{entry}</li>" for entry in entries)
    return f'<div class="notice"><p>{heading}</p><ul>{items}</ul></div>'


def _table(table: Table) -> str:
    def cell(tag: str, index: int, text: str, best: bool = False) -> str:
        text = _text(text)
        inner = f"<b>{text}</b>" if best else text
        kind = ' class="setting"' if index < table.num_settings else ""
        return f"<{tag}{kind}>{inner}</{tag}>"

    head = "".join(cell("th", index, text) for index, text in enumerate(table.columns))
    rows = "".join(
        f"<tr>{''.join(cell('td', index, *entry) for index, entry in enumerate(row))}</tr>"
        for row in table.rows
    )
    return f"""<figure class="table">
<h3>{_text(table.title)}</h3>
<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>
</div>
<figcaption>{_text(table.caption)}</figcaption>
</figure>
"""


def _how(sections: Sequence[Section]) -> str:
    """Return command, settings, seeds, commit and device of all experiments, folded away."""
    content = ""
    for title, facts in origins(sections):
        rows = "".join(f"<dt>{name}</dt><dd>{_fact(name, text)}</dd>" for name, text in facts)
        content += f"{f'<h3>{_text(title)}</h3>' if title else ''}<dl>{rows}</dl>"
    return f"<details><summary>{HOW}</summary>{content}</details>" if content else ""


def _fact(name: str, text: str) -> str:
    if name != "command":
        return _text(text)
    return "".join(f"<code>{html.escape(line)}</code>" for line in text.split("\n"))


def _figure(picture: Picture, plots: Path) -> str:
    file = plots / f"{picture.name}.png"
    if not file.is_file():  # writing it failed, and logged the reason
        return f"<p>{_text(picture.caption)}: cannot be drawn</p>\n"
    content = file.read_bytes()
    # From the PNG's header; all plots have the same scale and font size.
    pixels = struct.unpack(">II", content[16:24])
    width, height = (round(_PIXELS_PER_INCH * number / DPI) for number in pixels)
    wide = ' class="wide"' if width > _COLUMN else ""
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return f"""<figure{wide}>
<img src="{source}" width="{width}" height="{height}" alt="{_text(picture.caption)}">
<figcaption>{_text(picture.caption)}</figcaption>
</figure>
"""


# The page fits a screen 1280 pixels wide; two plots of the common width fit side by side.
_PIXELS_PER_INCH = 88
_COLUMN = 564


def _text(text: str) -> str:
    return html.escape(unbroken(text))


# Emblem: clients joined by one graph.
_EMBLEM = """<svg viewBox="0 0 64 64" width="56" height="56" aria-hidden="true">
<g stroke="#7db8e8" stroke-width="1.6"><path d="M14 18 32 30 50 16M32 30 20 50M32 30 46 48M14 18 20 50\
M50 16 46 48" fill="none"/></g>
<g fill="#f0b73f"><circle cx="32" cy="30" r="5"/></g>
<g fill="#e8edf2"><circle cx="14" cy="18" r="4.5"/><circle cx="50" cy="16" r="4.5"/>
<circle cx="20" cy="50" r="4.5"/><circle cx="46" cy="48" r="4.5"/></g></svg>"""

_STYLE = """
:root { --bg: #f4f6f8; --card: #ffffff; --ink: #1b2530; --muted: #5b6875; --line: #e2e7ec;
  --accent: #0a5c9c; --best: #e8f2fa; --notice: #fff6e0; --band: #10202f; --edge: #5b687599; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #0e1720; --card: #16212c; --ink: #e2e8ee; --muted: #9fb0bf; --line: #2b3a48;
    --accent: #7db8e8; --best: #1d4260; --notice: #3a3115; --edge: #9fb0bfb0; }
  img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: lighten; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--bg); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
.inner, main { max-width: 80rem; margin: 0 auto; padding: 0 1.25rem; }
header { background: var(--band); color: #e8edf2; }
header .inner { display: flex; gap: 1.1rem; align-items: center; padding-top: 2rem;
  padding-bottom: 1.6rem; }
h1 { margin: 0; font-size: 1.7rem; letter-spacing: -0.02em; line-height: 1.2; }
header p { margin: 0.2rem 0 0; color: #a9bccd; }
nav { position: sticky; top: 0; z-index: 2; background: var(--card);
  border-bottom: 1px solid var(--line); }
nav .inner { display: flex; gap: 0.4rem; overflow-x: auto; padding-top: 0.5rem;
  padding-bottom: 0.5rem; }
nav a { flex: none; padding: 0.25rem 0.75rem; border-radius: 1rem; color: var(--ink);
  text-decoration: none; font-size: 0.9rem; }
nav a:hover, nav a:focus { background: var(--best); }
main { padding-top: 1.5rem; padding-bottom: 3rem; }
section { scroll-margin-top: 3.5rem; margin-bottom: 3rem; }
.kind { margin: 0; color: var(--accent); font-size: 0.75rem; font-weight: 700;
  text-transform: uppercase; letter-spacing: 0.08em; }
h2 { margin: 0 0 1rem; font-size: 1.45rem; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h3 { margin: 0 0 0.7rem; font-size: 1.02rem; overflow-wrap: anywhere; }
figure { margin: 0; padding: 1.1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 0.75rem; min-width: 0; }
figure.table { margin-bottom: 1rem; }
.gallery { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 37.5rem),
  1fr)); align-items: start; margin-bottom: 1rem; }
.gallery .wide { grid-column: 1 / -1; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
/* A wide table scrolls in its card; a shadow marks each side that has more of it. */
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--card) 40%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--card) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--edge), transparent) left / 0.9rem 100% no-repeat scroll,
  linear-gradient(to left, var(--edge), transparent) right / 0.9rem 100% no-repeat scroll; }
table { border-collapse: collapse; min-width: 100%; font-variant-numeric: tabular-nums;
  font-size: 0.92rem; }
th, td { padding: 0.42rem 0.5rem; text-align: right; }
td.setting { min-width: 5.6rem; overflow-wrap: anywhere; }
th { font-size: 0.8rem; font-weight: 600; color: var(--muted); vertical-align: bottom;
  border-bottom: 2px solid var(--line); }
td { border-bottom: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
.setting { text-align: left; }
td:first-child, th:first-child { padding-left: 0; position: sticky; left: 0;
  background: var(--card); }
td b { background: var(--best); padding: 0.12rem 0.4rem; margin: 0 -0.4rem;
  border-radius: 0.35rem; }
figcaption { margin-top: 0.8rem; color: var(--muted); font-size: 0.82rem; }
details { padding: 0.8rem 1.1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 0.75rem; }
summary { cursor: pointer; font-weight: 600; } details h3 { margin: 1rem 0 0; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.15rem 0.8rem;
  margin: 0.7rem 0 0; font-size: 0.82rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 0.94em;
  overflow-wrap: anywhere; }
dd code { display: block; }
.notice { background: var(--notice); border-radius: 0.75rem; padding: 0.7rem 1.1rem;
  margin-bottom: 1rem; font-size: 0.9rem; }
.notice p { margin: 0; } .notice ul { margin: 0.3rem 0 0; padding-left: 1.2rem; }
@media (max-width: 40rem) { .inner, main { padding-left: 0.8rem; padding-right: 0.8rem; }
  figure { padding: 0.8rem; }
  h1 { font-size: 1.4rem; } }
@media print { nav { display: none; } figure { break-inside: avoid; } }
"""
