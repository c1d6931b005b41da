"""The report's Markdown as one self-contained HTML page: styles and images are embedded."""

from __future__ import annotations

import base64
import re
import struct
from pathlib import Path

from markdown_it import MarkdownIt

from jaxfed.reports.style import DPI

_PIXELS_PER_INCH = 88


def render(markdown: str, folder: Path) -> str:
    """Return the page, for phones and desktops; images are PNG files below a folder."""

    def embedded(image: re.Match[str]) -> str:
        source, caption = image.groups()
        if not (folder / source).is_file():  # writing it failed, and logged the reason
            return f"<p>{caption}: cannot be drawn</p>"
        content = (folder / source).read_bytes()
        # From the PNG's header; all plots have the same scale and font size.
        pixels = struct.unpack(">II", content[16:24])
        width, height = (round(_PIXELS_PER_INCH * number / DPI) for number in pixels)
        data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        size = f'width="{width}" height="{height}"'
        return f'<figure><img src="{data}" {size} alt="{caption}"><figcaption>{caption}</figcaption></figure>'

    body = MarkdownIt("commonmark").enable("table").render(markdown)
    body = re.sub(r'<p><img src="(.*?)" alt="(.*?)" /></p>', embedded, body)
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
