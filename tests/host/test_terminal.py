"""Progress in a notebook: a line for each method, and no ipywidgets."""

from jaxfed.experiment.run.progress import RunProgress
from jaxfed.host import terminal

SETTINGS = {"num_repeats": 1, "rounds": 30, "baselines": ()}


def test_a_notebook_has_a_line_for_each_method(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "in_notebook", lambda: True)
    with RunProgress(SETTINGS) as progress:
        progress.working_on("fedavg")
        for number in range(1, 31):
            record = {"repeat": 0, "algorithm": "fedavg", "round": number, "seconds": 0.1}
            progress.finished_round({**record, "train_loss": 1 / number}, 30)
    (line,) = capsys.readouterr().out.splitlines()
    assert "round 30/30  train loss 0.0333" in line


def test_rich_itself_knows_a_notebook(monkeypatch):
    assert not terminal.in_notebook()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert terminal.in_notebook()
    assert not terminal._console().is_jupyter  # whose output needs ipywidgets
