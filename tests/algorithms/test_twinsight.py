"""Twin-sight against its equations: whole rounds in NumPy, of both networks and the projector."""

import sys

import jax
import numpy as np
import pytest
from float64_training import gradient, log_softmax, softmax
from small_training import KEY, RATE, double, federation_of, rounds_of, shifted, training_of

from jaxfed.algorithms.twinsight import Twins, twinsight
from jaxfed.training.local.batches import Batches

WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has: no randomness
SIZES, LABELED, COHORTS = [8, 6, 7], 3, [[0, 1], [1, 2]]
LABELS, CONTRAST, TWIN, HEAT, HIDDEN, SIZE = 0.9, 0.7, 4.0, 0.5, 8, 2
SHAPES = ((4, 8), (8,), (8, 3), (3,), (4, 8), (8,), (8, HIDDEN), (HIDDEN,), (HIDDEN, SIZE), (SIZE,))


def algorithm_of(**changes):
    training = training_of(WHOLE, augment=shifted, strong_augment=double, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[Twins.__module__], "_PROJECTION_HIDDEN", HIDDEN)
        patch.setattr(sys.modules[Twins.__module__], "_PROJECTION_SIZE", SIZE)
        return twinsight(
            training=training,
            unlabeled_weight=LABELS,
            contrast_weight=CONTRAST,
            twin_weight=TWIN,
            temperature=HEAT,
        )


def numbers(state):
    """All parameters in one vector."""
    layers = [
        *(state["supervised"][name] for name in ("first", "last")),
        state["encoder"]["first"],
        *(state["projector"]["hidden"][0], state["projector"]["head"]),
    ]
    leaves = [layer[name][...] for layer in layers for name in ("kernel", "bias")]
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])


def outputs(w, x):
    """h, f, g and z of examples."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    parts = [part.reshape(shape) for part, shape in zip(np.split(w, ends), SHAPES, strict=True)]
    h, g = np.tanh(x @ parts[0] + parts[1]), np.tanh(x @ parts[4] + parts[5])
    hidden = g @ parts[6] + parts[7]
    z = np.where(hidden.real > 0, hidden, 0) @ parts[8] + parts[9]
    return h, h @ parts[2] + parts[3], g, z


def cosines(a):
    unit = a / np.sqrt((a * a).sum(axis=1, keepdims=True))
    return unit @ unit.T


def loss(w, x, y, least, seen):
    (h, f, g, z), (_, strong, _, far) = outputs(w, x + 0.5), outputs(w, 2 * x)
    n, rest = len(x), range(len(y), len(x))
    log_f, log_strong, p = log_softmax(f), log_softmax(strong), softmax(outputs(w.real, x + 0.5)[1])
    value = -sum(log_f[i, label] for i, label in enumerate(y)) / len(y)
    for i in rest:
        label = p[i].argmax()
        is_sure = p[i, label] >= least[label]
        seen[bool(is_sure)] += 1
        value -= LABELS * is_sure * log_strong[i, label] / len(rest)
    near = cosines(np.concatenate([z, far])) / HEAT
    for i in range(2 * n):
        others = [near[i, j] for j in range(2 * n) if j != i]
        value += CONTRAST * (np.log(np.sum(np.exp(others))) - near[i, (i + n) % (2 * n)]) / (2 * n)
    return value + TWIN * ((cosines(h) - cosines(g)) ** 2).sum() / n**2


def test_two_rounds_are_the_equations():
    federation, seen = federation_of(SIZES, num_labeled=LABELED), {True: 0, False: 0}
    states = rounds_of(algorithm_of(), federation, 2, COHORTS)
    w = numbers(states[0].model)
    assert len(w) == sum(np.prod(shape) for shape in SHAPES)
    for number, cohort in enumerate(COHORTS):
        ends = []
        for client in cohort:
            points, v = federation.points(client), w
            x, y = federation.x[points].astype(np.float64), federation.y[points][:LABELED]
            p = softmax(outputs(w, x[LABELED:] + 0.5)[1])
            share = p.mean(axis=0)
            least = p.max(axis=1).mean() * share / share.max()
            for _ in range(WHOLE.epochs):

                def objective(u, given=(x, y, least)):
                    return loss(u, *given, seen)

                v = v - RATE / (1 + number) * gradient(objective, v)
            ends.append(v)
        w = np.average(ends, axis=0, weights=[SIZES[client] for client in cohort])
        found = numbers(states[number + 1].model)
        np.testing.assert_allclose(found, w, rtol=5e-4, atol=5e-5)
    assert min(seen.values()) > 0


def test_twins_start_apart_statistics_move_and_both_are_sent():
    federation = federation_of([6, 0], num_labeled=3)
    algorithm = algorithm_of(batch_norm=True)
    start = algorithm.init(KEY, federation)
    state, metrics = algorithm.round(start, federation.cohort(), KEY)
    first, other = (start.model[name]["first"]["kernel"][...] for name in ("supervised", "encoder"))
    assert np.abs(first - other).max() > 0.1
    assert "last" not in start.model["encoder"]
    for name in ("supervised", "encoder"):
        moved = state.model[name]["norm"]["mean"][...] - start.model[name]["norm"]["mean"][...]
        assert np.abs(moved).max() > 0
    trained = sum(np.prod(shape) for shape in SHAPES) + 4 * 8  # with both norms' scale and shift
    assert metrics["communication"]["upload"]["parameters"] == 2 * 4 * trained
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(leaf).all()


def test_a_given_model_starts_both_networks():
    plain = training_of(WHOLE).model.init(jax.random.key(7))
    start = algorithm_of(initial_model=plain).init(KEY, federation_of([6], num_labeled=3)).model
    for name in ("supervised", "encoder"):
        np.testing.assert_array_equal(
            start[name]["first"]["kernel"][...], plain["first"]["kernel"][...]
        )
