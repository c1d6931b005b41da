"""Python blocks of the pages run, in order; README is short."""

import re
import sys
from functools import partial
from types import ModuleType

import pytest
from invoking import ROOT
from on_demand import on_demand

import jaxfed
from jaxfed.algorithms import ALGORITHMS
from jaxfed.federation.evaluate import MEASURES
from jaxfed.learners import LEARNERS

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
AS_FILES = {"docs/learners.md", "docs/own-method.md"}  # blocks that are saved as a config


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("copied_from_a_page")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@pytest.fixture(autouse=True)
def registries():
    """What a block registers goes with its test."""
    before = {*ALGORITHMS, *LEARNERS, *MEASURES}  # other tests' methods too
    yield
    for registry in (ALGORITHMS, LEARNERS, MEASURES):
        for name in registry.keys() - before:
            del registry[name]


def run(page, module):
    for block in blocks(page):
        exec(block, vars(module))
    return module


QUIET = {"progress": False, "execution__plots": False}
RESULTS = {"README.md", "docs/library.md", "docs/your-data.md"}  # long ones, and those below
RUN = [page for page in PAGES if blocks(page) and page not in AS_FILES]


@pytest.mark.parametrize(
    "page", on_demand(RUN, at_once=[page for page in RUN if page not in RESULTS])
)
def test_blocks_run(page, module, tmp_path, monkeypatch, capsys):
    """Without plots, which tests of figures draw."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jaxfed, "run", partial(jaxfed.run, **QUIET))
    run(page, module)


def test_readme_as_a_library(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("README.md", module).simulated.metrics["test_accuracy"] > 0.6


def test_partition(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = run("docs/your-data.md", module).parts
    assert sum(map(len, parts.labeled)) == 60
    assert sum(map(len, parts.unlabeled)) == 540


def test_own_learner(tmp_path):
    (config,) = blocks("docs/learners.md")
    path = tmp_path / "centroid.py"
    path.write_text(config)
    result = jaxfed.run(f"{path}:smoke", learner__centroid__pseudo_weight=2.0, **QUIET)
    told = result.results.set_index(["algorithm", "metric"])["mean"]
    assert told["fedct", "test_accuracy"] > 0.8


def test_own_method(module, tmp_path, monkeypatch):
    config, checks, aggregation, messages = blocks("docs/own-method.md")
    path = tmp_path / "fedlast.py"
    path.write_text(config)
    result = jaxfed.run(f"{path}:smoke", fedlast__keep=0.9, **QUIET)
    assert set(result.methods) == {"fedlast", "fedavg"}
    exec(aggregation, vars(module))
    alone = {"algorithm": "fedmedian", "baselines": (), **QUIET}
    assert jaxfed.run("fedavg_xclp:smoke", **alone).metrics.train_loss.iloc[-1] < 1
    exec(messages, vars(module))
    result = jaxfed.run("fedavg_xclp:smoke", **alone | {"algorithm": "fedprior"})
    counted = result.metrics.iloc[-1]  # five clients, ten classes
    assert counted["communication.upload.class_counts"] == 5 * 4 * 10
    assert counted["communication.download.class_shares"] == 5 * 4 * 10
    del ALGORITHMS["fedlast"]  # the checks import it in a process of their own
    monkeypatch.delitem(sys.modules, "fedlast", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    exec(checks, vars(module))
    module.TestFedLast().test_rounds_are_compiled_once()


def test_readme_is_a_front_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
