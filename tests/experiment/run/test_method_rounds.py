"""States are selected by the measure that `dataset.validation_measure` names; scikit-learn has the area."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import jaxfed
from jaxfed.errors import UsageError
from jaxfed.experiment.run.simulate import validated
from jaxfed.experiment.store.records import read_run
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.evaluate import MEASURES, auroc
from jaxfed.reports.tables import run_table
from jaxfed.training.round.parts import Classifier, evaluation_by

TRUTH = np.array([0, 0, 1, 1, 0, -1])
CLIENTS = [(np.ones((2, 2), np.float32), [0, 1])]


def federation(y, num_classes=2):
    x = np.arange(2 * len(y), dtype=np.float32).reshape(-1, 2)
    return jaxfed.Federation.from_clients(CLIENTS, validation=(x, y), num_classes=num_classes)


def method(probability, **fields):
    """One whose network gives these probabilities, whatever the examples."""
    classifier = Classifier(
        lambda state: state, lambda state, x: jnp.asarray(probability)[: len(x)]
    )
    evaluation = evaluation_by(classifier)._asdict()
    return FederatedAlgorithm(init=None, round=None, name="mine", **{**evaluation, **fields})


def test_a_method_without_probabilities_is_refused():
    labels = method(np.ones((6, 2), np.float32) / 2, predict=None)
    with pytest.raises(UsageError, match=r"^config\.dataset\.validation_measure='auroc': mine"):
        validated(labels, (), federation(TRUTH), "auroc")
    assert validated(labels, (), federation(TRUTH), "accuracy")


def test_the_area_of_a_model_that_is_nan_is_that_of_chance():
    spoiled = method(np.full((6, 2), np.nan, np.float32))
    assert validated(spoiled, (), federation(TRUTH), "auroc")["validation_auroc"] == 0.5


@pytest.mark.parametrize("number", [2, 3])
def test_the_area_is_scikit_learns(number):
    """Of the classes that are there; scores repeat, and some points have no known class."""
    rng = np.random.default_rng(number)
    probability = rng.integers(1, 5, size=(60, number)).astype(np.float32)
    probability /= probability.sum(axis=1, keepdims=True)
    truth = rng.integers(-1, number, size=60)
    known = truth >= 0
    given = probability[known, 1] if number == 2 else probability[known]
    expected = roc_auc_score(truth[known], given, multi_class="ovr")
    assert auroc(probability, truth) == pytest.approx(expected, rel=1e-6)
    assert np.isnan(auroc(probability, np.zeros(60, int)))


def right_and_sure(probability, truth):
    """A measure of one's own: the share of labels that are right, and surer than nine tenths."""
    return float(np.mean((probability.argmax(axis=1) == truth) & (probability.max(axis=1) > 0.9)))


@pytest.mark.parametrize("measure", ["balanced_accuracy", "auroc", "right_and_sure"])
def test_a_run_selects_by_it(measure, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(MEASURES, "right_and_sure", right_and_sure)
    result = jaxfed.run(
        "fedavg_xclp:smoke",
        workdir=tmp_path / "w",
        algorithm="fedavg",
        baselines=(),
        dataset__validation_measure=measure,
        dataset__train_size=300,
        training__learning_rate=3.0,
        rounds=4,
        evaluate_every=1,
        num_repeats=1,
        execution__plots=False,
    )
    lines = result.metrics
    values = lines[f"validation_{measure}"].to_list()
    (last,) = lines[f"selected_validation_{measure}"].dropna()
    assert last == max(values)
    assert lines["selected_round"].dropna().item() == lines["round"][int(np.argmax(values))]
    console, table = capsys.readouterr().out, run_table(read_run(tmp_path / "w"), "w")
    assert "test_right_and_sure" in console
    assert table.texts.columns[1] == "Test right and sure"
    assert ("validation right and sure" in console) == (measure == "right_and_sure")
