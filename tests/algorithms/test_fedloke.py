"""FedLoKe against its equations: two models at each client, of which one travels."""

import numpy as np
from float64_training import gradient, log_softmax, logits, softmax, weights_of
from small_training import RATE, double, federation_of, rounds_of, shifted, training_of

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
    states = rounds_of(algorithm, federation, 3, COHORTS, sent := [])
    assert sent[0]["upload"] == sent[0]["download"] == {"parameters": 2 * 67 * 4}
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
