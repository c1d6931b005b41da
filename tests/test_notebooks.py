"""Tutorials: notebooks have clean outputs of their own code, name what exists, and run."""

import ast
import importlib
import json
import re
from operator import attrgetter

import pytest
from invoking import ROOT

import jaxfed
from docs.generate import notebooks

nbformat = pytest.importorskip("nbformat", reason="of nbclient, in requirements-dev.txt")

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))
every = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def sources(path, kind):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


@every
def test_outputs_are_clean_and_of_this_code(path):
    notebook = json.loads(path.read_text())
    nbformat.validate(notebook)
    assert notebook["metadata"]["jaxfed"]["outputs_of"] == notebooks.code_checksum(notebook), (
        f"run: python -m docs.generate.notebooks {path.stem}"
    )
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert {cell["execution_count"] for cell in cells} == {None}
    assert {output.get("execution_count") for output in outputs} == {None}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}  # no warning
    assert not re.search(r"/tmp/|/home/|0x[0-9a-f]{8}", json.dumps(outputs))
    assert path.stat().st_size < 150_000


def test_readme_has_each_notebook_and_its_question():
    readme = (notebooks.FOLDER / "README.md").read_text()
    rows = re.findall(r"^\| \[`(.*)`\]\((.*)\) \| (.*) \|$", readme, re.MULTILINE)
    assert rows == [
        (path.stem, path.name, sources(path, "markdown")[0].splitlines()[0].removeprefix("# "))
        for path in PATHS
    ]


@every
def test_names_exist(path):
    for node in (node for cell in sources(path, "code") for node in ast.walk(ast.parse(cell))):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "jaxfed":
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Attribute):
            chain = re.fullmatch(r"jaxfed\.([\w.]+)", ast.unparse(node))
            assert chain is None or attrgetter(chain[1])(jaxfed) is not None


@pytest.mark.slow
@every
def test_it_runs(path, monkeypatch):
    pytest.importorskip("ipykernel", reason="in requirements-dev.txt; the notebooks need a kernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ran = notebooks.executed(path)
    outputs = [output for cell in ran["cells"] for output in cell.get("outputs", ())]
    assert [output for output in outputs if output.get("name") == "stderr"] == []
