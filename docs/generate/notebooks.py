"""Tutorials: notebooks as pages of the site, and the command that runs them and stores their outputs.

    python -m docs.generate.notebooks [NAME ...]      # all, or those whose file begins so: 1_first

A notebook is committed with outputs, but without numbers of execution and other traces of a machine. The
metadata have a checksum of the code that made the outputs, so that a test finds outputs of other code. The
site shows what is committed and runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
SECONDS = 600  # a cell may take
_STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)

Notebook = dict[str, Any]


def markdown(path: Path) -> str:
    """Return a notebook as Markdown, with its outputs; its links stay as they are."""
    cells = json.loads(path.read_text())["cells"]
    title, _, rest = _source(cells[0]).partition("\n")
    parts = [
        f"{title}\n\nThis page is a notebook: "
        f'<a href="{path.name}" download>download {path.name}</a> to run and change it.\n{rest}'
    ]
    for cell in cells[1:]:
        if cell["cell_type"] == "markdown":
            parts.append(_source(cell))
        else:
            parts.append(f"```python\n{_source(cell)}\n```")
            parts += map(_shown, cell["outputs"])
    return "\n\n".join(parts) + "\n"


def code_checksum(notebook: Notebook) -> str:
    """Return the checksum of a notebook's code cells."""
    code = [_source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def executed(path: Path) -> Notebook:
    """Run a notebook in a new kernel, and return it with clean outputs.

    Args:
        path: of the notebook; it runs in this folder.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    clean = json.loads(nbformat.writes(notebook))
    for cell in clean["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = [_clean(output) for output in cell["outputs"]]
    clean["metadata"] = {
        "jaxfed": {"outputs_of": code_checksum(clean)},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return clean


def main(names: Sequence[str]) -> int:
    """Run notebooks and store their outputs."""
    found = [path for path in sorted(FOLDER.glob("*.ipynb")) if path.name.startswith(tuple(names))]
    if not found:
        print(f"no notebook begins with {' or '.join(names)} in {FOLDER}", file=sys.stderr)
        return 2
    for path in found:
        print(path.name, flush=True)
        text = json.dumps(executed(path), indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(text + "\n")
    return 0


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _clean(output: dict[str, Any]) -> dict[str, Any]:
    """An output without its number; a picture or a table is stored once, not as text too."""
    if "data" not in output:
        return output
    data = output["data"]
    if data.keys() & {"image/png", "text/html", "text/markdown"}:
        data = {kind: value for kind, value in data.items() if kind != "text/plain"}
    if "text/html" in data:  # of pandas, whose style sheet no page of notebooks applies
        lines = _STYLE.sub("", "".join(data["text/html"])).splitlines(keepends=True)
        data = data | {"text/html": lines}
    clean = output | {"data": data, "metadata": {}}
    return clean | ({"execution_count": None} if "execution_count" in output else {})


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![plot](data:image/png;base64,{''.join(data['image/png'].split())})"
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    if "text/html" in data:
        return "\n".join(map(str.strip, "".join(data["text/html"]).splitlines()))
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [""]))
