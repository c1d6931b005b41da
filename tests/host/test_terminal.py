"""Progress in a notebook: one line that changes, and no ipywidgets."""

import sys
from types import ModuleType

import pytest

from jaxfed.experiment.run.progress import RunProgress
from jaxfed.host import notebook_line, terminal

SETTINGS = {"num_repeats": 1, "rounds": 30, "baselines": ()}


@pytest.fixture
def page(monkeypatch):
    """Texts shown on a notebook's page, by their place, and the number of all updates."""
    shown, updates = {}, []

    def show(content, *, raw, display_id):
        assert raw
        shown[display_id] = content["text/plain"]
        updates.append(content)

    fake = ModuleType("IPython.display")
    fake.display = fake.update_display = show
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(terminal, "in_notebook", lambda: True)
    return shown, updates


def play(progress):
    progress.working_on("fedavg")
    for number in range(1, 31):
        record = {"repeat": 0, "algorithm": "fedavg", "round": number, "seconds": 0.1}
        progress.finished_round({**record, "train_loss": 1 / number}, 30)


def test_a_notebook_has_one_line_that_changes(page, capsys):
    shown, updates = page
    with RunProgress(SETTINGS) as progress:
        play(progress)
    (text,) = shown.values()
    assert text.startswith("fedavg  train loss 0.0333  30/30  ")
    assert len(updates) < 10  # 61 changes
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "round 30/30" in lines[0]


def test_every_change_is_shown_after_a_while(page, monkeypatch):
    monkeypatch.setattr(notebook_line, "_SECONDS", 0)
    updates = page[1]
    with RunProgress(SETTINGS) as progress:
        play(progress)
    assert len(updates) == 63


def test_nothing_is_shown_before_it_begins(page):
    RunProgress(SETTINGS).working_on("reading flags")
    assert not page[1]


def test_a_quiet_run_shows_nothing(page):
    shown, _ = page
    with RunProgress(SETTINGS, terminal.Console(quiet=True)) as progress:
        play(progress)
    assert not shown


def test_rich_itself_knows_a_notebook(monkeypatch):
    assert not terminal.in_notebook()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert terminal.in_notebook()
    assert not terminal._console().is_jupyter  # whose output needs ipywidgets
