"""`--help_keys` and the pages of docs that are made from the code."""

from pathlib import Path

import pytest
from invoking import called

from docs.generate import reference as made
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file
from jaxfed.config import overrides as reference
from jaxfed.config.sections import Experiment, shared_settings
from jaxfed.errors import UsageError
from jaxfed.learners import LEARNERS
from jaxfed.models import MODELS
from launch import run


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


def test_a_config_shows_its_own_values():
    config = file.load("fedavg_xclp", ["rounds=7"])
    text = reference.help_text("rounds", config)
    assert text.startswith(f"rounds = 7 (default: {Experiment.rounds!r})\n")
    assert reference.help_text("seed", config) == reference.help_text("seed")
    given = ("--help_keys=rounds", "--config=fedavg_xclp", "--config.rounds=7")
    assert called(run.main, *given).stdout == text + "\n"
    with pytest.raises(UsageError, match=r"--help_keys=trainig.lr: no key begins so"):
        reference.help_text("trainig.lr")
