"""Checks of the finished site: links, anchors, pictures, and that nothing is loaded from a network."""

from __future__ import annotations

import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
_SEARCH = "assets/search-from-files.js"
_SHIM = re.compile(r'<script src="?https://unpkg\.com/iframe-worker/shim[^>]*></script>')


class _Page(HTMLParser):
    """Anchors of a page, its links, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one tag."""
        said = {key: value or "" for key, value in attrs}
        self.anchors |= {said[key] for key in ("id", "name") if key in said}
        if tag == "a" and said.get("href"):
            self.links.append(said["href"])
        if tag in _LOADED and said.get(_LOADED[tag]) and said.get("rel") != "canonical":
            self.loaded.append(said[_LOADED[tag]])


def search_from_files(folder: Path) -> None:
    """Replace a script that Zensical loads from a network, so that search works without a server."""
    for file in folder.rglob("*.html"):
        path = "../" * (len(file.relative_to(folder).parts) - 1) + _SEARCH
        file.write_text(_SHIM.sub(f'<script src="{path}"></script>', file.read_text()))


def faults_of(folder: Path) -> list[str]:
    """Return a line for each broken link, missing anchor or picture, and each file from elsewhere."""
    read = {}
    for file in sorted(folder.rglob("*.html")):
        read[file.relative_to(folder).as_posix()] = page = _Page()
        page.feed(file.read_text())
    faults = []
    for name, page in read.items():
        if name == "404.html":  # its links begin at the root of a server
            continue
        elsewhere = [target for target in page.loaded if urlsplit(target).netloc]
        faults += [f"{name}: loads {target}" for target in elsewhere]
        for target in dict.fromkeys([*page.links, *page.loaded]):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
            path = name if not parts.path else path
            if (folder / path).is_dir():
                path = posixpath.normpath(posixpath.join(path, "index.html"))
            if not (folder / path).is_file():
                faults.append(f"{name}: {target} leads nowhere")
            elif parts.fragment and path in read:
                fragment = unquote(parts.fragment)
                if fragment not in read[path].anchors and not fragment.startswith("__"):
                    faults.append(f"{name}: {target}: {path} has no such heading")
    return faults
