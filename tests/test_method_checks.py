"""`MethodChecks` fails for a wrong method, and its message says what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.cohort import arranged as sorted_cohort
from jaxfed.federation.method import method, with_attributes
from jaxfed.testing import MethodChecks
from jaxfed.testing.method_checks import arranged, assert_equal


class _Careless(MethodChecks):
    method = "careless"


def test_messages_say_what_is_wrong(monkeypatch):
    @method()
    def careless(*, training):
        """A method that does not learn, and compiles a program in each round."""
        plain = fedavg(training=training)

        def round(state, cohort, key):
            metrics = plain.round(state, cohort, key)[1]
            return state._replace(round=jax.jit(lambda n: n + 1)(state.round)), metrics

        evaluate = with_attributes(plain.evaluate, predictions=None)
        return plain._replace(round=round, evaluate=evaluate)

    monkeypatch.setitem(ALGORITHMS, "careless", careless)
    with pytest.raises(AssertionError, match=r"test accuracy 0\.\d+, least_accuracy is 0.4"):
        _Careless().test_learns_and_is_repeatable()
    with pytest.raises(AssertionError, match=r"rounds \[4, 5, .*12\] compile programs anew"):
        _Careless().test_rounds_are_compiled_once()
    _Careless().test_predictions_are_what_was_measured()  # there are none


def test_a_difference_names_its_place():
    with pytest.raises(AssertionError, match=r"the states differ at \['bias'\]"):
        assert_equal({"bias": jnp.zeros(2)}, {"bias": np.ones(2)})


@method(takes=("num_classes",))
def summing(*, num_classes, fault=""):
    """Nearest class means over several rounds, without the keyword `training`."""

    def init(key, federation):
        return np.zeros((num_classes, 1 + federation.x[0].size))

    def round(state, cohort, key):
        cohort = cohort if fault == "order" else sorted_cohort(cohort)
        y, x = np.asarray(cohort.y), np.asarray(cohort.x)
        is_one = np.ones_like(cohort.mask) if fault == "padding" else y >= 0
        points = np.insert(x[is_one].reshape(is_one.sum(), -1), 0, 1, axis=1)
        new = np.stack([points[y[is_one] == c].sum(axis=0) for c in range(num_classes)])
        return 0.9 * state + new + (points[-1] if fault else 0), {}

    def evaluate(state, federation):
        means = state[:, 1:] / np.maximum(state[:, :1], 1)
        x, y = (part[federation.test] for part in (federation.x, federation.y))
        distances = ((x.reshape(len(x), 1, -1) - means) ** 2).sum(axis=-1)
        return {"test_accuracy": np.mean(distances.argmin(axis=1) == y)}

    return FederatedAlgorithm(init, round, evaluate)


class _Summing(MethodChecks):
    method = "summing"


def test_a_method_without_training_has_rounds_like_others(monkeypatch, tmp_path):
    """Unless it labels in one shot."""
    monkeypatch.setitem(ALGORITHMS, "summing", summing)
    config, federation, _ = arranged.__wrapped__("summing")
    assert (config.rounds, config.cohort_size) == (12, 4)
    assert len(federation.test)
    checks = _Summing()
    checks.test_learns_and_is_repeatable()
    checks.test_rounds_are_compiled_once()
    checks.test_the_order_of_clients_is_inert()
    checks.test_strategies_agree_and_padding_is_inert()
    checks.test_resumed_equals_uninterrupted(tmp_path)

    @method(takes=("num_classes",), one_shot=True)
    def one_shot(*, num_classes):
        return ALGORITHMS["client_knn"](num_classes=num_classes)

    monkeypatch.setitem(ALGORITHMS, "labeling", one_shot)
    config, _, _ = arranged.__wrapped__("labeling")
    assert (config.rounds, config.cohort_size) == (1, 0)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("padding", "test_strategies_agree_and_padding_is_inert"),
        ("order", "test_the_order_of_clients_is_inert"),
    ],
)
def test_a_method_without_training_is_checked_like_others(monkeypatch, fault, check):
    monkeypatch.setitem(ALGORITHMS, "summing", summing)
    monkeypatch.setattr(_Summing, "settings", (f"summing.fault={fault}",))
    with pytest.raises(AssertionError, match="the states differ"):
        getattr(_Summing(), check)()
