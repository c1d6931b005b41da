"""The README's Python runs, block after block, as somebody who copies it would."""

import re
import sys
from types import ModuleType

import pytest
from invoking import ROOT

import jaxfed


def blocks(section):
    text = (ROOT / "README.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("copied_from_readme")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_as_a_library(module, capsys):
    code = blocks("As a library")
    assert len(code) == 3
    for block in code:
        exec(block, vars(module))
    assert module.simulated.metrics["test_accuracy"] > 0.6
    assert set(module.table.role) == {"labeled", "unlabeled", "new"}
    assert len(module.labels) == 40


def test_own_method(module, tmp_path):
    config, checks = blocks("Your own method, network, labels, reader")
    path = tmp_path / "fedlast.py"
    path.write_text(config)
    result = jaxfed.run(f"{path}:smoke", progress=False, fedlast__keep=0.9)
    assert set(result.methods) == {"fedlast", "fedavg"}
    exec(checks, vars(module))
    module.TestFedLast().test_rounds_are_compiled_once()
