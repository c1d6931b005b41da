"""Tutorials: notebooks have clean outputs of their own code, name what exists, and run."""

import ast
import importlib
import json
import re
from itertools import pairwise
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


@every
def test_form(path):
    text = sources(path, "markdown")
    code = sources(path, "code")
    assert len(text) + len(code) <= 16
    assert re.fullmatch(r"# .*\?", text[0].splitlines()[0])
    assert re.search(r"^Next: ", text[-1], re.MULTILINE)
    assert code[0] == sources(PATHS[0], "code")[0]  # installation
    assert "assert " in "".join(code)


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


def test_a_page_shows_each_kind_of_output(tmp_path):
    data = (
        {"text/plain": ["[7]"]},
        {"image/png": "AAA\nBBB=\n"},
        {"text/html": ["<div>\n", "    <b>\n", "</div>"]},
        {"text/markdown": ["| a |"]},
    )
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["5\n", "6\n"]}]
    outputs += [{"output_type": "execute_result", "data": each} for each in data]
    cells = [
        {"cell_type": "markdown", "source": ["# Is it?\n", "\n", "Yes."]},
        {"cell_type": "code", "source": ["print(5)"], "outputs": outputs},
    ]
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    page = notebooks.markdown(path)
    assert page.startswith('# Is it?\n\nThis page is a notebook: <a href="x.ipynb" download>')
    shown = [
        *("Yes.", "```python\nprint(5)\n```", "```text\n5\n6\n```", "```text\n[7]\n```"),
        *("(data:image/png;base64,AAABBB=)", "<div>\n<b>\n</div>", "| a |"),
    ]
    places = [page.index(part) for part in shown]
    assert all(first < second for first, second in pairwise(places))


def test_a_name_of_no_notebook(capsys):
    assert notebooks.main(["6_"]) == 2
    assert "no notebook begins with 6_" in capsys.readouterr().err


@pytest.mark.slow
@every
def test_it_runs(path, monkeypatch):
    pytest.importorskip("ipykernel", reason="in requirements-dev.txt; the notebooks need a kernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ran = notebooks.executed(path)
    outputs = [output for cell in ran["cells"] for output in cell.get("outputs", ())]
    assert [output for output in outputs if output.get("name") == "stderr"] == []
