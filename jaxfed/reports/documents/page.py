"""The report's Markdown as one self-contained HTML page: styles and images are embedded."""

from __future__ import annotations

import base64
import html
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from jaxfed.reports.figures.style import DPI


def render(markdown: str, folder: Path) -> str:
    """Return the page, for phones and desktops; images are PNG files below a folder."""
    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("image", _image_from(folder))
    body = parser.render(markdown)
    body = re.sub(r"<p>(<figure.*?</figure>)</p>", r"\1", body)
    body = re.sub(r"((?:<figure.*?</figure>\n?){2,})", r'<div class="gallery">\1</div>', body)
    # Wide tables scroll; keyboards reach them.
    table = r"(<table>.*?</table>)"
    body = re.sub(table, r'<div class="scroll" tabindex="0">\1</div>', body, flags=re.DOTALL)
    titles = re.findall(r"<h2>(.*?)</h2>", body)
    links = "".join(f'<a href="#s{place}">{title}</a>' for place, title in enumerate(titles))
    places = iter(range(len(titles)))
    body = re.sub(r"<h2>", lambda _: f'<h2 id="s{next(places)}">', body)
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
<nav>{links}</nav>
<main>
{body}</main>
</body>
</html>
"""


def _image_from(folder: Path) -> Callable[..., str]:
    """Return the rule by which an image is embedded with its caption, or missed in one line."""

    def rule(renderer: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
        del renderer, options, env
        token = tokens[place]
        caption = html.escape("".join(child.content for child in token.children or ()))
        file = folder / str(token.attrs["src"])
        if not file.is_file():  # writing it failed, and logged the reason
            return f"{caption}: cannot be drawn"
        content = file.read_bytes()
        # From the PNG's header; all plots have the same scale and font size.
        pixels = struct.unpack(">II", content[16:24])
        width, height = (round(_PIXELS_PER_INCH * number / DPI) for number in pixels)
        source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        return (
            f'<figure><img src="{source}" width="{width}" height="{height}" alt="{caption}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    return rule


_PIXELS_PER_INCH = 88  # two plots of the common width fit side by side into 1280 pixels

_STYLE = """
:root { --bg: #f4f6f8; --card: #ffffff; --ink: #1b2530; --muted: #5b6875; --line: #e2e7ec;
  --best: #e8f2fa; --edge: #5b687599; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #0e1720; --card: #16212c; --ink: #e2e8ee; --muted: #9fb0bf; --line: #2b3a48;
    --best: #1d4260; --edge: #9fb0bfb0; }
  img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: lighten; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); line-height: 1.5;
  font-family: system-ui, sans-serif; }
nav { position: sticky; top: 0; z-index: 2; display: flex; gap: 1rem; overflow-x: auto;
  padding: 0.6rem 1.25rem; background: var(--card); border-bottom: 1px solid var(--line); }
nav a { flex: none; color: var(--ink); text-decoration: none; font-size: 0.9rem; }
main { max-width: 80rem; margin: 0 auto; padding: 1rem 1.25rem 3rem; overflow-wrap: anywhere; }
h2 { margin: 3rem 0 1rem; scroll-margin-top: 3.5rem; } h3 { margin: 1.5rem 0 0.7rem; font-size: 1.02rem; }
figure { margin: 0; padding: 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 0.75rem; min-width: 0; }
.gallery { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 37.5rem), 1fr)); align-items: start;
  margin-bottom: 1rem; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption, .scroll + p { margin-top: 0.8rem; color: var(--muted); font-size: 0.82rem; }
/* A wide table scrolls in its card; a shadow marks each side that has more of it. */
.scroll { overflow-x: auto; padding: 0 1rem; border: 1px solid var(--line); border-radius: 0.75rem;
  background:
  linear-gradient(to right, var(--card) 40%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--card) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--edge), transparent) left / 0.9rem 100% no-repeat scroll,
  linear-gradient(to left, var(--edge), transparent) right / 0.9rem 100% no-repeat scroll, var(--card); }
table { border-collapse: collapse; min-width: 100%; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
th, td { padding: 0.42rem 0.5rem; border-bottom: 1px solid var(--line); overflow-wrap: normal; }
th { font-size: 0.8rem; color: var(--muted); vertical-align: bottom; }
td strong { background: var(--best); border-radius: 0.35rem; }
details { padding: 0.8rem 1.1rem; background: var(--card); border-radius: 0.75rem; font-size: 0.9rem; }
pre { white-space: pre-wrap; }
@media print { nav { display: none; } figure { break-inside: avoid; } }
"""
