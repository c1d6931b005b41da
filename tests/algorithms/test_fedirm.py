"""FedIRM against its equations: whole rounds in NumPy, reliable examples, the server's relations."""

import jax
import jax.numpy as jnp
import numpy as np
from float64_training import gradient, log_softmax, logits, softmax, weights_of
from small_training import KEY, RATE, federation_of, shifted, training_of

from jaxfed.algorithms.fedirm import _renewed, fedirm, relation_loss
from jaxfed.models.mlp import mlp
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.losses import Batch
from jaxfed.training.pseudo_labels.prototypes import Prototypes
from jaxfed.training.server_state import together
from jaxfed.training.specification import Training

WHOLE = Batches("joint", size=64, epochs=2)  # every batch is all that a client has: no randomness
SIZES, LABELED = [14, 9, 12], 3
WEIGHT, RAMP, AVERAGE, HEAT, MOST = 0.8, 2, 0.6, 1.7, 0.95


def rows_of(z, label):
    """The softened mean logits of every class that occurs."""
    return {
        c: log_softmax(sum(z[label == c]) / sum(label == c) / HEAT) for c in set(label.tolist())
    }


def loss(v, teacher, x, y, given, share, seen):
    """The loss at v; `given` has the received rows by class."""
    z, p = logits(v, x + 0.5), softmax(logits(v.real, x + 0.5))
    taught = softmax(logits(teacher, x + 0.5))
    log_p, own = log_softmax(z), softmax(z)
    value = -np.mean([log_p[i, label] for i, label in enumerate(y)])
    rest = np.arange(len(y), len(x))
    value += share * sum(((own[i] - taught[i]) ** 2).sum() for i in rest) / len(rest)
    reliable = np.array([i for i in rest if -sum(a * np.log(a) for a in p[i]) < MOST], int)
    seen["reliable"] += len(reliable)
    seen["unreliable"] += len(rest) - len(reliable)
    found, terms = rows_of(z[reliable], p[reliable].argmax(axis=1)), []
    for c in found.keys() & given.keys():
        m, log_m, log_u = given[c], np.log(given[c]), found[c]
        terms.append(sum(m * (log_m - log_u)) + sum(np.exp(log_u) * (log_u - log_m)))
    seen["matched"] += len(terms)
    return value + share * sum(terms) / max(len(terms), 1)


def test_three_rounds_are_the_equations():
    federation = federation_of(SIZES, num_labeled=LABELED)
    algorithm = fedirm(
        training=training_of(WHOLE, augment=shifted),
        consistency_weight=WEIGHT,
        rampup_rounds=RAMP,
        average=AVERAGE,
        temperature=HEAT,
        max_entropy=MOST,
        passes=2,
    )
    state = algorithm.init(KEY, federation)
    w, teachers, steps, given = weights_of(state.model), {}, [0, 0, 0], {}
    seen = {"reliable": 0, "unreliable": 0, "matched": 0}
    for number, cohort in enumerate([[0, 1], [1, 2], [0, 1]]):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort(cohort), key)
        received = len(cohort) * (1 + 4 * 3 * len(given)) if given else 0
        assert metrics["communication"]["download"]["relations"] == received
        ends, sent = [], []
        for client in cohort:
            points, v = federation.points(client), w
            x, y = federation.x[points].astype(np.float64), federation.y[points][:LABELED]
            teacher = teachers.get(client, w)
            share = WEIGHT * np.exp(-5 * (1 - min(number / RAMP, 1)) ** 2)
            for _ in range(WHOLE.epochs):

                def objective(u, rest=(teacher, x, y, given, share)):
                    return loss(u, *rest, seen)

                v = v - RATE / (1 + number) * gradient(objective, v)
                steps[client] += 1
                alpha = min(1 - 1 / steps[client], AVERAGE)
                teacher = alpha * teacher + (1 - alpha) * v
            ends.append(v)
            teachers[client] = teacher
            rows = rows_of(logits(v, x[:LABELED]), y)
            sent.append({c: np.exp(row) for c, row in rows.items()})
        uploaded = metrics["communication"]["upload"]["relations"]
        assert uploaded == sum(1 + 4 * 3 * len(rows) for rows in sent)
        for c in range(3):
            if any(c in rows for rows in sent):
                given = {**given, c: np.mean([rows[c] for rows in sent if c in rows], axis=0)}
        w = np.mean(ends, axis=0)  # clients count alike
        np.testing.assert_allclose(weights_of(state.model), w, rtol=2e-4, atol=2e-5)
        np.testing.assert_array_equal(state.clients.steps, steps)
        kept = weights_of(state.clients.model)
        for client, teacher in teachers.items():
            np.testing.assert_allclose(kept[client], teacher, rtol=2e-4, atol=2e-5)
        np.testing.assert_array_equal(state.memory.is_present, [c in given for c in range(3)])
        for c, row in given.items():
            np.testing.assert_allclose(state.memory.center[c], row, rtol=1e-4)
    assert min(seen.values()) > 0


def test_an_example_is_reliable_by_the_mean_of_all_passes():
    """Each pass is sure of a class that chance has drawn: one is reliable, the mean of many is not."""
    model = mlp((4,), 3, hidden=(5,))

    def drawn(state, x, key):
        chance = jax.nn.one_hot(jax.random.randint(key, (), 0, 3), 3)
        return model.apply(state, x) + 40 * chance[None], state

    training, state = Training(model._replace(train_apply=drawn)), model.init(KEY)
    settings = {"weight": 1.0, "temperature": 2.0, "max_entropy": 0.5}
    twins = together(online=state, target=state)
    given = Prototypes(jnp.eye(3) * 0.7 + 0.1, jnp.ones(3, bool))
    nothing = jnp.zeros(2, jnp.int32)
    batch = Batch(jnp.ones((2, 4)), nothing, jnp.zeros(2), nothing == 0, nothing > 0)

    def value(passes):
        loss = relation_loss(training, given, passes=passes, **settings)
        return jax.jit(lambda: loss(twins, twins, batch, KEY)[0])()

    assert value(1) > value(60) + 0.1


def test_the_server_keeps_a_class_that_nobody_sent():
    kept = Prototypes(jnp.full((2, 2), 0.5), jnp.array([True, False]))
    sent = Prototypes(
        jnp.array([[[0.9, 0.1], [0.2, 0.8]], [[0.0, 0], [0.4, 0.6]], [[0.7, 0.3], [0.5, 0.5]]]),
        jnp.array([[False, True], [False, True], [True, True]]),
    )
    after = _renewed(kept, jnp.array([0, 1, -1]), sent)
    np.testing.assert_allclose(after.center, [[0.5, 0.5], [0.3, 0.7]], rtol=1e-6)
    np.testing.assert_array_equal(after.is_present, [True, True])
