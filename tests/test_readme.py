"""The README's Python runs, block after block, as somebody who copies it would."""

import re
import sys
from types import ModuleType

import numpy as np
import pytest
from invoking import ROOT

import jaxfed
from jaxfed.algorithms import ALGORITHMS
from jaxfed.learners import LEARNERS, Learner


def blocks(section):
    text = (ROOT / "README.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("copied_from_readme")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@pytest.fixture(autouse=True)
def registries():
    """What a block registers goes with its test."""
    yield
    for registry in (ALGORITHMS, LEARNERS):
        for name in registry.from_outside():
            del registry[name]


def test_as_a_library(module, capsys):
    code = blocks("As a library")
    assert len(code) == 4
    for block in code:
        exec(block, vars(module))
    assert module.simulated.metrics["test_accuracy"] > 0.6
    assert set(module.table.role) == {"labeled", "unlabeled", "new"}
    assert len(module.labels) == 40
    assert module.agreed.metrics["test_accuracy"] > 0.5
    assert (module.agreed.state.label >= 0).all()


def test_partition():
    (code,) = [block for block in blocks("Use") if "partition(y" in block]
    made = {"y": np.arange(600) % 3}
    exec(code, made)
    parts = made["parts"]
    assert sum(map(len, parts.labeled)) == 60
    assert sum(map(len, parts.unlabeled)) == 540


def test_own_learner(tmp_path):
    (config,) = blocks("Learners")
    path = tmp_path / "centroid.py"
    path.write_text(config)
    result = jaxfed.run(f"{path}:smoke", progress=False, learner__centroid__pseudo_weight=2.0)
    told = result.results.set_index(["algorithm", "metric"])["mean"]
    assert told["fedct", "test_accuracy"] > 0.8


def test_every_learner_and_field_is_named():
    section = (ROOT / "README.md").read_text().partition("\n## Learners\n")[2].partition("\n## ")[0]
    own = set(LEARNERS)
    assert set(re.findall(r"`(\w+)", section)) >= {*own, *Learner._fields}


def test_own_method(module, tmp_path):
    config, checks = blocks("Your own method, network, labels, reader")
    path = tmp_path / "fedlast.py"
    path.write_text(config)
    result = jaxfed.run(f"{path}:smoke", progress=False, fedlast__keep=0.9)
    assert set(result.methods) == {"fedlast", "fedavg"}
    exec(checks, vars(module))
    module.TestFedLast().test_rounds_are_compiled_once()


def test_nothing_stays_registered():
    """The learner and the method of the tests above."""
    assert LEARNERS.from_outside() == ALGORITHMS.from_outside() == ()
