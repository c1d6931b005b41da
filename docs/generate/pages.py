"""Gather the pages of the site, and turn links between files of the repository into links of the site."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from docs.generate.notebooks import markdown

# File of the repository -> page. README is the first page; docs/ is the root of the site.
FRONT = {"README.md": "index.md", "docs/index.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
FRONT |= {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
FRONT |= {"examples/flower/README.md": "flower.md", "examples/notebooks/README.md": "tutorials.md"}
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s=]+)(\))")
_SOURCES = {".py", ".sbatch", ".service", ".toml", ".txt", ".cff", ".csv"}


@dataclass
class Site:
    """Pages by their paths, and the files of the repository that they link to."""

    root: Path
    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def titles(self) -> dict[str, str]:
        """The first heading of each page; of results, the name of their folder."""
        return {path: _title(text, path) for path, text in self.texts.items()}

    def write(self, folder: Path) -> None:
        """Write pages and files into an empty folder.

        Results are outside the search: they all have words such as "seeds", which ask for a guide.
        """
        for path, text in self.texts.items():
            head = "---\nsearch:\n  exclude: true\n---\n\n" if _is_result(path) else ""
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(head + text)
        for path, file in self.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / path)


def gathered(root: Path, made: dict[str, str]) -> tuple[Site, list[str]]:
    """Return the site, and a line for each link of a page that leads nowhere.

    Args:
        root: of the repository.
        made: pages made from code and results, by path; their links are as those of files in docs/.
    """
    site, faults = Site(root), []
    sources = {name: page for name, page in FRONT.items() if (root / name).is_file()}
    sources |= {f"docs/{path.name}": path.name for path in sorted((root / "docs").glob("*.md"))}
    sources |= {
        str(path.relative_to(root)): str(path.relative_to(root))
        for path in sorted((root / "results").rglob("*.md"))
    }
    notebooks = sorted((root / "examples" / "notebooks").glob("*.ipynb"))
    sources |= {str(path.relative_to(root)): f"tutorials/{path.stem}.md" for path in notebooks}
    known = sources | {f"docs/{path}": path for path in made}
    for path in (root / "docs" / "assets").glob("*.[cj]s*"):  # styles and scripts
        site.files[f"assets/{path.name}"] = path
    if "README.md" in sources:
        known["docs/index.md"] = "index.md"
    site.files |= {f"tutorials/{path.name}": path for path in notebooks}  # to download
    texts = {name: (root / name).read_text() for name in sources if not name.endswith(".ipynb")}
    texts |= {str(path.relative_to(root)): markdown(path) for path in notebooks}
    texts |= {f"docs/{path}": text for path, text in made.items()}
    for name, text in texts.items():
        page = known[name]

        def moved(target: str, name: str = name, page: str = page) -> str:
            path, mark, anchor = target.partition("#")
            wanted = os.path.normpath(PurePosixPath(name).parent / path) if path else name
            target_path = _site_path(site, known, wanted)
            if target_path is None and (root / wanted).is_dir():
                return ""  # a folder of files: the site has no page of it
            if target_path is None:
                faults.append(f"{name}: {target} leads nowhere")
                return target
            return os.path.relpath(target_path, PurePosixPath(page).parent) + mark + anchor

        site.texts[page] = _outside_code(text, lambda part, moved=moved: _linked(part, moved))
    return site, faults


def _site_path(site: Site, known: dict[str, str], wanted: str) -> str | None:
    """Return the path in the site of a file of the repository, which is copied where it is no page."""
    file = site.root / wanted
    if wanted in known:
        return known[wanted]
    if f"{wanted}/README.md" in known:
        return known[f"{wanted}/README.md"]
    if not file.is_file():
        return None
    # Sources open in a browser as text.
    path = wanted.removeprefix("docs/") + (".txt" if file.suffix in _SOURCES else "")
    path = (
        path
        if path.startswith(("results/", "assets/")) or file.suffix in {".png", ".svg"}
        else (f"source/{path}")
    )
    site.files[path] = file
    return path


def _linked(part: str, moved: Callable[[str], str]) -> str:
    def replaced(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return match[0]
        target_path = moved(target)
        return match[1] + target_path + match[3] if target_path else match[1][1:-2]

    return _LINK.sub(replaced, part)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a text but for its fenced and indented blocks."""
    parts = re.split(r"(^```.*?^```$|^    [^\n]*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def _is_result(path: str) -> bool:
    """True for pages of measured numbers; `results.md` leads to them."""
    return path.startswith("results/") or path in {"leaderboard.md", "gallery.md"}


def _title(text: str, path: str) -> str:
    if path.startswith("results/"):
        folder = "/".join(PurePosixPath(path).parts[1:-1])
        name = PurePosixPath(path).stem
        return folder if name == "README" else f"{folder}: {name}"
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else path
