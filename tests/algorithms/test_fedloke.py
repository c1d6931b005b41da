"""FedLoKe against its equations: two models at each client, of which one travels."""

import jax
import numpy as np
import pytest
from float64_training import gradient, log_softmax, logits, softmax, weights_of
from small_training import KEY, RATE, double, federation_of, rounds_of, shifted, training_of

from jaxfed.algorithms.fedloke import fedloke
from jaxfed.training.local.batches import Batches

WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has: no randomness
SIZES, LABELED, COHORTS = [14, 9, 12], 4, [[0, 1], [1, 2], [0, 1]]
MU, DELTA, RAMP = 0.7, 0.95, 2


def entropy(p):
    return -sum(a * np.log(a) for a in p)


def loss(u, teacher, x, y, share, labeled_view, seen):
    """The loss of one of the models at u, by the other one's labels."""
    log_strong = log_softmax(logits(u, 2 * x))
    log_labeled = log_strong if labeled_view == "strong" else log_softmax(logits(u, x + 0.5))
    value = -sum(log_labeled[i, label] for i, label in enumerate(y)) / len(y)
    for i, p in enumerate(softmax(logits(teacher, x + 0.5))):
        if i >= len(y):
            is_sure = entropy(p) < DELTA
            seen[is_sure] += 1
            divergence = sum(a * (np.log(a) - log_strong[i, c]) for c, a in enumerate(p))
            value += share * is_sure * divergence / (len(x) - len(y))
    return value


def test_three_rounds_are_the_equations():
    federation = federation_of(SIZES, num_labeled=LABELED)
    training = training_of(WHOLE, augment=shifted, strong_augment=double)
    algorithm = fedloke(training=training, average=MU, max_entropy=DELTA, rampup_rounds=RAMP)
    states = rounds_of(algorithm, federation, 3, COHORTS)
    w = weights_of(states[0].model)
    residents, seen = [w for _ in SIZES], {True: 0, False: 0}
    for number, cohort in enumerate(COHORTS):
        rate, share, ends = RATE / (1 + number), min(1, number / RAMP), []
        for client in cohort:
            points = federation.points(client)
            x, y = federation.x[points].astype(np.float64), federation.y[points][:LABELED]
            g, v = w, MU * residents[client] + (1 - MU) * w
            for _ in range(WHOLE.epochs):

                def slope(u, teacher, view, given=(x, y, share)):
                    return gradient(lambda at: loss(at, teacher, *given, view, seen), u)

                g, v = g - rate * slope(g, v, "strong"), v - rate * slope(v, g, "weak")
            ends.append(g)
            residents[client] = v
        w = np.average(ends, axis=0, weights=[SIZES[client] for client in cohort])
        state = states[number + 1]
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(weights_of(state.clients), residents, rtol=2e-4, atol=2e-5)
    assert min(seen.values()) > 0


@pytest.mark.slow
def test_no_ramp_teaches_in_the_first_round_and_fedavgs_bytes_are_sent():
    federation = federation_of([8], num_labeled=4)
    training = training_of(WHOLE, strong_augment=double)
    models = []
    for rounds in (0, 1):
        algorithm = fedloke(training=training, max_entropy=1.2, rampup_rounds=rounds)
        state, metrics = algorithm.round(algorithm.init(KEY, federation), federation.cohort(), KEY)
        assert metrics["communication"]["upload"] == {"parameters": 67 * 4}
        assert metrics["communication"]["download"] == {"parameters": 67 * 4}
        models.append(weights_of(state.model))
    assert np.abs(models[0] - models[1]).max() > 1e-3


@pytest.mark.slow
def test_statistics_of_both_models_move_and_empty_clients_stay_finite():
    federation = federation_of([6, 0], num_labeled=3)
    training = training_of(WHOLE, strong_augment=double, batch_norm=True)
    algorithm = fedloke(training=training, rampup_rounds=0)
    start = algorithm.init(KEY, federation)
    state, _ = algorithm.round(start, federation.cohort(), KEY)
    for before, after in ((start.model, state.model), (start.clients, state.clients)):
        assert np.abs(after["norm"]["mean"][...] - before["norm"]["mean"][...]).max() > 0
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(leaf).all()
