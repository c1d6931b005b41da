"""Columns that are given up at max_steps: whoever solves them, in a labeling or to choose, says so, once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from secure_labels import digits

from jaxfed.algorithms import ALGORITHMS
from jaxfed.federation.clients import Federation
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.xclp import Parameters, Propagation, cross_client_label_propagation
from jaxfed.xclp.one_shot.cosine_propagation import label_over_cosines
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy, warn_of_solution

SOLVED, CUT_SHORT = SolverAccuracy(9, 1e-7), SolverAccuracy(4, 1e-2, cut_short=True)


def test_accuracy_of_several_systems_is_that_of_the_worst():
    assert (
        SOLVED.worst(CUT_SHORT)
        == CUT_SHORT.worst(SOLVED)
        == SolverAccuracy(9, 1e-2, cut_short=True)
    )


@pytest.mark.parametrize(
    ("labeling", "choosing", "begins"),
    [
        (SOLVED, SOLVED, None),
        (CUT_SHORT, SOLVED, "label propagation stopped at relative residual 1.0e-02 after 4 steps"),
        (SOLVED, CUT_SHORT, "choosing by leave-one-out stopped at relative residual 1.0e-02"),
        (CUT_SHORT, CUT_SHORT, "label propagation and choosing by leave-one-out stopped at"),
    ],
)
def test_one_line_says_what_was_cut_short(labeling, choosing, begins, recwarn):
    warn_of_solution(labeling, choosing, Propagation(2))
    assert [str(told.message)[: len(begins)] for told in recwarn] == ([begins] if begins else [])


@pytest.mark.parametrize(("alpha", "is_told"), [(0.999, False), (0.99999, True)])
def test_scores_that_float32_cannot_tell_apart_are_told_of(alpha, is_told, recwarn):
    p = Propagation(2, alpha=alpha, label_matrix="degree_balanced")
    warn_of_solution(SOLVED, SOLVED, p)
    assert [str(told.message)[:14] for told in recwarn] == ["alpha=0.99999 "] * is_told


VECTORS, LABELS = digits(2, 24, labeled=0.5)
SETTINGS = {"num_classes": 10, "num_neighbors": 3, "alpha": 0.9, "select": ("alpha:0.5",)}


def over_codes(**protocols):
    p = Parameters(**SETTINGS, num_bits=64, **protocols)
    return lambda: cross_client_label_propagation(VECTORS, LABELS, p)


def over_cosines():
    labels = np.concatenate(LABELS)
    y = (labels[:, None] == np.arange(10)).astype(np.float32)
    x = jnp.asarray(np.concatenate(VECTORS))
    label_over_cosines(x, y, None, Propagation(**SETTINGS))


RUNS = {
    "codes": over_codes(),
    "cosines": over_cosines,
}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.sample(2)
def test_every_solve_that_is_cut_short_is_told(run, monkeypatch):
    """Each in turn; the last ones are the labeling's."""
    solve, numbers = PropagationMatrix.solved, []

    def solved(matrix, y):
        numbers.append(len(numbers))
        z, info = solve(matrix, y)
        if numbers[-1] == bad:
            info = info._replace(
                steps=jnp.full_like(info.steps, matrix.max_steps),
                converged=jnp.zeros_like(info.converged),
            )
        return z, info

    monkeypatch.setattr(PropagationMatrix, "solved", solved)
    bad = -1
    RUNS[run]()
    num_solves = len(numbers)
    num_of_labeling = 1
    assert num_solves == 2 * 2 + 1
    for bad in range(num_solves):
        numbers.clear()
        is_last = bad >= num_solves - num_of_labeling
        name = "label propagation" if is_last else "choosing by leave-one-out"
        with pytest.warns(RuntimeWarning, match=f"^{name} stopped .* after 1000 steps") as told:
            RUNS[run]()
        assert len(told) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["xclp", "pooled_lp"])
def test_steps_that_suffice_for_the_labeling_alone(method):
    """At alpha = 0.5 they do; at 0.9999999, which is tried and not chosen, they do not."""
    settings = {**SETTINGS, "alpha": 0.5, "select": ("alpha:0.9999999",), "max_steps": 30}
    made = ALGORITHMS[method](**settings)
    federation = Federation.from_clients(list(zip(VECTORS, LABELS, strict=True)), num_classes=10)
    key = jax.random.key(0)
    with pytest.warns(RuntimeWarning, match=r"^choosing by leave-one-out stopped"):
        made.round(made.init(key, federation), federation.cohort(), key)
