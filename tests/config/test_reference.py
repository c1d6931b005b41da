"""`--help_keys` and the pages of docs that are made from the code."""

import re
from pathlib import Path

import pytest
from invoking import called, invoke

from docs.generate import reference as made
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import base, file
from jaxfed.config import overrides as reference
from jaxfed.config.keys import flatten
from jaxfed.config.sections import Experiment, shared_settings
from jaxfed.errors import UsageError
from jaxfed.federation.method import method
from jaxfed.learners import LEARNERS
from jaxfed.models import MODELS
from jaxfed.settings import Share
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS
from launch import entry, run


@pytest.fixture(autouse=True)
def _what_jaxfed_has_alone(monkeypatch):
    """Without methods and the like that other tests of this process have registered."""
    for registry in (ALGORITHMS, LEARNERS, MODELS, *reference.PLUGINS):
        for name in registry.from_outside():
            monkeypatch.delitem(registry, name)


@pytest.mark.parametrize("page", ["keys", "methods"])
def test_pages_are_what_the_code_says(page):
    """If not: python -m docs.generate.reference PAGE > docs/PAGE.md."""
    assert (Path("docs") / f"{page}.md").read_text() == made.PAGES[page]()


def test_every_key_has_a_meaning_and_what_is_allowed():
    silent = [entry.key for entry in reference.entries() if not entry.meaning]
    assert not silent
    assert not [key for key, one in shared_settings().items() if not one.allowed]


def test_every_key_of_a_config_is_listed():
    listed = {entry.key for entry in reference.entries()}
    config = dict(flatten(base.get_config().to_dict()))
    assert {key for key in config if not key.startswith("selection.candidates")} <= listed


def test_a_prefix_selects_and_a_wrong_one_suggests():
    text = reference.help_text("training.server")
    heads = re.findall(r"^(\S+) = ", text, re.MULTILINE)
    assert heads == [key for key in shared_settings() if key.startswith("training.server")]
    assert "training.server_tau = 0.001\n    with server_optimizer=" in text
    with pytest.raises(
        UsageError, match=r"--help_keys=trainig.lr: no such section, did you mean 'training'"
    ):
        reference.help_text("trainig.lr")


def test_a_config_shows_its_own_values():
    config = file.load("fedavg_xclp", ["rounds=7"])
    text = reference.help_text("rounds", config)
    assert text.startswith(f"rounds = 7 (default: {Experiment.rounds!r})\n")
    assert reference.help_text("seed", config) == reference.help_text("seed")
    given = ("--help_keys=rounds", "--config=fedavg_xclp", "--config.rounds=7")
    assert called(run.main, *given).stdout == text + "\n"
    status, said = invoke(["--help_keys=rounds", "--config.rounds=7"])
    assert (status, said) == (2, "jaxfed: --config=ml_collections_configs/NAME.py is missing\n")


def keys_of(page):
    return re.findall(r"^\| `(\S+)`", page, re.MULTILINE)


def test_what_a_config_registers_is_listed(monkeypatch):
    @method()
    def mine(*, training, share: Share = 0.2, mu=1.0):
        """A method.

        Args:
            share: what is trimmed.
        """

    def source(parts, *, least=0.5): ...

    def network(num_classes, *, width: int = 8): ...

    for registry, factory in ((ALGORITHMS, mine), (PSEUDO_LABELS, source), (MODELS, network)):
        monkeypatch.setitem(registry, "mine" if registry is ALGORITHMS else "other", factory)
    text = reference.help_text("mine")
    assert text == (
        "mine.share = 0.2\n    what is trimmed (allowed: numbers from 0 to 1)\n"
        "mine.mu = 1.0\n    (allowed: numbers)"
    )
    assert reference.help_text("other.least").startswith("other.least = 0.5\n")
    assert re.search(
        r"option of .*\bother\b", reference.help_text("model.width")
    )  # beside other tests'


def test_methods_have_what_leaves_a_client():
    rows = [line.split(" | ") for line in made.methods_page().splitlines() if "](../" in line]
    assert len(rows) == len(ALGORITHMS) - len(ALGORITHMS.from_outside())
    assert all(len(cells) == 7 and cells[5].strip() for cells in rows)


def test_the_flag_goes_without_a_value():
    assert entry.split_overrides(["run", "--help_keys"]) == (["run", "--help_keys="], [])
