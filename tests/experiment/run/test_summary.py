"""Methods whose clients all fail: a line, and exit status 1."""

import pytest
from invoking import invoke

from jaxfed.config import file
from jaxfed.experiment.run.summary import failure, remarks, summarize

FEDCT = "ml_collections_configs/fedct.py:smoke"
LAST = {"algorithm": "fedct", "repeat": 0, "round": 2}
WORKED, FAILED = {"clients": 5, "failed_clients": 0}, {"clients": 0, "failed_clients": 5}


@pytest.mark.parametrize(
    ("overrides", "told", "line"),
    [
        ([], WORKED, ""),
        ([], {**WORKED, "failed_clients": 1, "clients": 4}, ""),
        ([], {**FAILED, "round": 1}, ""),  # who fails now may recover
        (["cohort_size=1"], {"clients": 0, "failed_clients": 1}, ""),  # others may have models
        ([], {"clients": 0, "failed_clients": 0}, ""),  # nothing to learn
        ([], {"train_loss": 0.5}, ""),  # one model for all
        ([], FAILED, "fedct failed at every client in repeat 1 after round 2"),
        (["cohort_size=5"], FAILED, "fedct failed at every client"),
        ([], {**WORKED, "has_no_model": True}, "fedct has no model in repeat 1 after round 2: the"),
        ([], {**FAILED, "has_no_model": True, "round": 1}, ""),
    ],
)
def test_what_is_said_of_a_last_round(overrides, told, line):
    said = failure(file.load(FEDCT, overrides), LAST | told)
    assert line in said
    assert bool(said) == bool(line)
    assert "\n" not in said


TRAINING = "ml_collections_configs/fedavg_xclp.py"


def played(*rounds, name="fedavg_xclp", repeat=0, selected=None):
    """Lines of one method: the weight of its pseudo-labels in each round, None in stage 1."""
    lines = [
        {"algorithm": name, "repeat": repeat, "round": number, "train_loss": 1.0}
        | ({} if weight is None else {"pseudo_labeled": 1.0, "pseudo_label_weight": weight})
        for number, weight in enumerate(rounds, start=1)
    ]
    lines[-1] |= {} if selected is None else {"selected_round": selected}
    return lines


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (played(None, 0.5, 0.0, selected=2), []),
        (played(None, 0.5), []),  # without a validation split the last state counts
        (
            played(None, 0.0, 0.0, selected=3),
            ["in repeat 1: no round gave a pseudo-label any weight"],
        ),
        (
            played(None, 0.5, selected=1),
            ["in repeat 1: validation selected a state from before its fi"],
        ),
        (
            played(None, 0.5, selected=0),
            ["in repeat 1: validation selected the state that it started"],
        ),
        (played(None, None, name="fedavg", selected=1), []),  # of which all rounds are alike
        (
            played(None, None, name="fixmatch", selected=1),
            ["validation selected a state from before its first"],
        ),
        (
            [*played(0.0), *played(0.0, repeat=1), *played(0.5, repeat=2)],
            ["fedavg_xclp in repeats 1, 2: no round gave"],
        ),
    ],
)
def test_a_row_that_owes_nothing_to_its_methods_name_has_a_line(lines, said):
    config = file.load(TRAINING, ["baselines=fedavg,fixmatch"])
    found = remarks(config, lines)
    assert len(found) == len(said)
    assert all(words in line for words, line in zip(said, found, strict=True))


def test_a_summary_has_its_remarks():
    config = file.load(TRAINING, ["baselines="])
    lines = [line | {"seconds": 1.0} for line in played(None, 0.0)]
    assert summarize(config, lines)["remarks"] == remarks(config, lines) != []
    assert "remarks" not in summarize(config, [line | {"seconds": 1.0} for line in played(0.5)])


SVC = ("--config.learner.name=estimator", "--config.learner.estimator.estimator=sklearn.svm.SVC")


def test_a_run_in_which_no_client_has_a_model(tmp_path):
    arguments = [f"--config={FEDCT}", f"--workdir={tmp_path / 'run'}", *SVC]
    arguments += ["--config.learner.estimator.kernel=precomputed", "--config.execution.plots=false"]
    status, error = invoke(arguments)
    assert status == 1
    lines = [line for line in error.splitlines() if line.startswith("jaxfed: ")]
    assert lines == [
        f"jaxfed: {name} has no model in repeat 1 after round 2: the warnings say why"
        for name in ("fedct", "local_learning", "centralized")
    ]
    assert "Traceback" not in error
    again, told = invoke(arguments)
    assert (again, told.splitlines()) == (1, lines)  # finished, and as wrong as before
