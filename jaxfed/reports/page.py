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

from jaxfed.reports.style import DPI

_PIXELS_PER_INCH = 88


def render(markdown: str, folder: Path) -> str:
    """Return the page, for phones and desktops; images are PNG files below a folder."""
    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("image", _image_from(folder))
    body = parser.render(markdown)
    body = re.sub(r"<p>(<figure.*?</figure>)</p>", r"\1", body)
    # Wide tables scroll; keyboards reach them.
    table = r"(<table>.*?</table>)"
    body = re.sub(table, r'<div class="scroll" tabindex="0">\1</div>', body, flags=re.DOTALL)
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
{body}</body>
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


_STYLE = """
body { margin: 0 auto; max-width: 80rem; padding: 1rem; font-family: system-ui, sans-serif; line-height: 1.5;
  overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; background: white; }
figcaption, .scroll + p { font-size: 0.85rem; opacity: 0.8; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.6rem; border-bottom: 1px solid #8884; overflow-wrap: normal; }
pre { white-space: pre-wrap; }
"""
