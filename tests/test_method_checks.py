"""`MethodChecks` fails for a wrong method, and its message says what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.testing import MethodChecks
from jaxfed.testing.method_checks import assert_equal


class _Careless(MethodChecks):
    method = "careless"


def test_messages_say_what_is_wrong(monkeypatch):
    def careless(*, training):
        """A method that does not learn, and compiles a program in each round."""
        plain = fedavg(training=training)

        def round(state, cohort, key):
            metrics = plain.round(state, cohort, key)[1]
            return state._replace(round=jax.jit(lambda n: n + 1)(state.round)), metrics

        return plain._replace(round=round, predictions=None)

    monkeypatch.setitem(ALGORITHMS, "careless", careless)
    with pytest.raises(AssertionError, match=r"test accuracy 0\.\d+, least_accuracy is 0.4"):
        _Careless().test_learns_and_is_repeatable()
    with pytest.raises(AssertionError, match=r"rounds \[4, 5, .*12\] compile programs anew"):
        _Careless().test_rounds_are_compiled_once()
    _Careless().test_predictions_are_what_was_measured()  # there are none


def test_a_difference_names_its_place():
    with pytest.raises(AssertionError, match=r"the states differ at \['bias'\]"):
        assert_equal({"bias": jnp.zeros(2)}, {"bias": np.ones(2)})
