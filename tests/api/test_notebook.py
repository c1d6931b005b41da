"""Results as a notebook shows them."""

import base64
import json

import pytest
from invoking import ROOT
from small_workdirs import XCLP, make_run

import jaxfed
from jaxfed.api import run
from jaxfed.experiment.run.loop import Experiment
from jaxfed.host.checkpoint import Checkpoints

TINY = {"num_repeats": 1, "algorithm": "client_knn", "baselines": (), "execution__plots": False}
TINY |= {"dataset__train_size": 100}


@pytest.fixture
def opened(tmp_path):
    accuracies = {"xclp": XCLP, "a<b": XCLP}
    make_run(tmp_path / "a<b", accuracies, algorithm="xclp", baselines=["a<b"])
    summary = json.loads((tmp_path / "a<b" / "summary.json").read_text())
    summary["remarks"] = ["xclp in repeat 1: x < y"]
    (tmp_path / "a<b" / "summary.json").write_text(json.dumps(summary))
    return jaxfed.open(tmp_path / "a<b")


def test_the_table_is_the_consoles(opened):
    html = opened._repr_html_()
    lines = html.splitlines()
    assert lines[1].startswith("<tr><th>algorithm</th><th>accuracy, %</th>")
    assert "<tr><td>XCLP ‡</td><td>84.00 ± 4.00</td>" in html
    assert "<p>‡ xclp in repeat 1: x &lt; y</p>" in html
    assert lines[-1].startswith("<p>results are in /")
    assert lines[-1].endswith("a&lt;b</p>")
    assert "a<b" not in html


def test_plots_are_pictures_in_a_notebook_and_paths_elsewhere(opened):
    plots = opened.plot()  # drawn now
    names = [path.stem for path in plots]
    assert names == ["algorithms", "partition"]
    assert repr(plots).splitlines() == [str(opened.workdir / "plots" / f"{n}.png") for n in names]
    pictures = plots._repr_html_().split("base64,")[1:]
    assert base64.b64decode(pictures[0].partition('"')[0]) == plots[0].read_bytes()
    before = plots[0].stat().st_mtime_ns
    assert opened.plot()[0].stat().st_mtime_ns == before  # those that are there


def test_nothing_to_draw_is_one_line(opened, monkeypatch):
    monkeypatch.setattr("jaxfed.reports.figures.run_plots", lambda run: {})
    with pytest.raises(jaxfed.UsageError, match=r"plot: .*plots has no pictures"):
        opened.plot()


def test_a_temporary_folder_is_called_so(capsys):
    result = jaxfed.run("xclp_digits:smoke", **TINY)
    said = "a temporary folder that is deleted with the result; workdir=FOLDER keeps them"
    assert f"results are in {result.workdir}, {said}" in capsys.readouterr().out
    assert f"{result.workdir}, {said}</p>" in result._repr_html_()


def test_a_kept_folder_is_not(opened, tmp_path, capsys):
    jaxfed.run("xclp_digits:smoke", workdir=tmp_path / "w", **TINY)
    assert capsys.readouterr().out.splitlines()[-1] == f"results are in {tmp_path / 'w'}"


@pytest.fixture
def interrupted(monkeypatch):
    """A run is stopped after some rounds are saved."""

    def stop_after(rounds):
        def experiment(self):
            if rounds:
                Checkpoints(self.workdir.checkpoints).save(rounds, {}, {})
            raise KeyboardInterrupt

        monkeypatch.setattr(Experiment, "run", experiment)

    return stop_after


@pytest.mark.parametrize(
    ("rounds", "more", "said"),
    [
        (12, {}, "stopped; the same call goes on after round 12 in {}"),
        (0, {}, "stopped; the same call goes on after round 0 in {}"),
        (
            1,
            {"overwrite": True},
            "stopped; the same call without overwrite=True goes on after round 1 in {}",
        ),
    ],
)
def test_a_stop_says_what_is_kept(rounds, more, said, interrupted, tmp_path):
    interrupted(rounds)
    with pytest.raises(KeyboardInterrupt) as stopped:
        jaxfed.run("xclp_digits:smoke", workdir=tmp_path / "w", progress=False, **TINY, **more)
    assert str(stopped.value) == said.format(tmp_path / "w")
    assert stopped.value._render_traceback_() == [str(stopped.value)]  # all that IPython prints


def test_without_a_workdir_a_stop_keeps_nothing(interrupted, monkeypatch):
    interrupted(3)
    places = []
    monkeypatch.setattr(
        run, "conduct", lambda config, place, *a, **k: places.append(place) or _stop(config, place)
    )
    with pytest.raises(KeyboardInterrupt, match=r"^stopped; nothing is kept: with workdir="):
        jaxfed.run("xclp_digits:smoke", progress=False, **TINY)
    assert not places[0].exists()


def _stop(config, place):
    assert place.is_dir()
    raise KeyboardInterrupt


CELLS = (
    """import jaxfed
settings = dict(algorithm="fedavg", baselines=(), num_repeats=1, rounds=3)
result = jaxfed.run("fedavg_xclp:smoke", **settings)
result""",
    "result.plot()",
    """import signal, threading
from jaxfed.federation import rounds as module
played = module.play
def stopped_in_round_2(*args, **more):
    for number, each in enumerate(played(*args, **more), start=1):
        yield each
        if number == 2:
            signal.raise_signal(signal.SIGINT)
import jaxfed.experiment.run.simulate as loop
loop.play = stopped_in_round_2
jaxfed.run("fedavg_xclp:smoke", workdir=PLACE, checkpoint_every=1, **settings)""",
    """loop.play = played
jaxfed.run("fedavg_xclp:smoke", workdir=PLACE, checkpoint_every=1, **settings)""",
)


@pytest.mark.slow
def test_in_a_real_kernel(tmp_path, monkeypatch):
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient, of a notebook's kernel, is missing"
    )
    nbformat = pytest.importorskip("nbformat", reason="nbformat, of nbclient, is missing")
    pytest.importorskip("ipykernel", reason="ipykernel is missing")
    cells = [
        nbformat.v4.new_code_cell(cell.replace("PLACE", repr(str(tmp_path / "w"))))
        for cell in CELLS
    ]
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=300, allow_errors=True).execute()
    run, plot, stop, again = (cell.outputs for cell in notebook.cells)
    assert "ipywidgets" not in json.dumps(notebook)
    assert {out.name for out in run if out.output_type == "stream"} == {"stdout"}  # no warnings
    text = "".join(out.text for out in run if out.output_type == "stream")
    assert "round 3/3" in text
    assert "round 2/3" not in text
    assert "a temporary folder that is deleted with the result" in text
    assert run[-1].data["text/html"].startswith("<table>")
    assert plot[0].data["text/html"].count("<img ") >= 2
    error = stop[-1]
    place = tmp_path / "w"
    said = f"stopped; the same call goes on after round 2 in {place}"
    assert error.traceback == [said]
    assert "resuming after 2 finished rounds" in "".join(o.text for o in again if "text" in o)
    assert again[-1].data["text/html"].startswith("<table>")
