"""Results as a notebook shows them."""

import json

import pytest
from invoking import ROOT

import jaxfed
from jaxfed.experiment.run.loop import Experiment

TINY = {"num_repeats": 1, "algorithm": "client_knn", "baselines": (), "execution__plots": False}
TINY |= {"dataset__train_size": 100}


def test_a_temporary_folder_is_called_so(capsys):
    result = jaxfed.run("xclp_digits:smoke", **TINY)
    said = "a temporary folder that is deleted with the result; workdir=FOLDER keeps them"
    assert f"results are in {result.workdir}, {said}" in capsys.readouterr().out


def test_a_kept_folder_is_not(tmp_path, capsys):
    jaxfed.run("xclp_digits:smoke", workdir=tmp_path / "w", **TINY)
    assert capsys.readouterr().out.splitlines()[-1] == f"results are in {tmp_path / 'w'}"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_stop_says_what_is_kept(monkeypatch, tmp_path, is_kept, overwrite):
    places = []

    def experiment(self):
        places.append(self.workdir.path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "run", experiment)
    place = tmp_path / "w" if is_kept else None
    with pytest.raises(KeyboardInterrupt) as stopped:
        jaxfed.run("xclp_digits:smoke", workdir=place, progress=False, overwrite=overwrite, **TINY)
    call = "the same call" + " without overwrite=True" * overwrite
    kept = f"{call} goes on in {place}" if is_kept else "nothing is kept: with workdir=FOLDER a run"
    assert str(stopped.value).startswith(f"stopped; {kept}")
    assert stopped.value._render_traceback_() == [str(stopped.value)]  # all that IPython prints
    assert places[0].exists() == is_kept


CELLS = (
    """import jaxfed
settings = dict(algorithm="fedavg", baselines=(), num_repeats=1, rounds=3)
result = jaxfed.run("fedavg_xclp:smoke", **settings)
result""",
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
    run, stop, again = (cell.outputs for cell in notebook.cells)
    assert "ipywidgets" not in json.dumps(notebook)
    assert {out.name for out in run if out.output_type == "stream"} == {"stdout"}  # no warnings
    text = "".join(out.text for out in run if out.output_type == "stream")
    assert "round 3/3" in text
    assert "a temporary folder that is deleted with the result" in text
    error = stop[-1]
    place = tmp_path / "w"
    said = f"stopped; the same call goes on in {place}"
    assert error.traceback == [said]
    assert "resuming after 2 finished rounds" in "".join(o.text for o in again if "text" in o)
