"""FedMatch: its losses, gradients and rounds transcribed to NumPy, and what is sent."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import log_softmax
from small_training import (
    KEY,
    RATE,
    assert_close,
    assert_same,
    double,
    federation_of,
    rounds_of,
    training_of,
)

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedmatch import (
    Helpers,
    LossWeights,
    composed,
    fedmatch,
    fedmatch_loss,
    psi_loss,
    random_input,
    sigma_loss,
    two_part_model,
)
from jaxfed.models.mlp import mlp
from jaxfed.training.aggregate import uniformly
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.losses import Batch, softmax_cross_entropy
from jaxfed.training.server_state import together

LINEAR = mlp((4,), 3, hidden=())


def batch_of(x):
    """Two labeled rows, three unlabeled, one that only fills the batch."""
    return Batch(
        x=jnp.asarray(x, jnp.float32),
        label=jnp.array([0, 2, 0, 0, 0, 1]),
        weight=jnp.array([1.0, 1, 0, 0, 0, 0]),
        used=jnp.array([True] * 5 + [False]),
        is_labeled=jnp.array([True, True, False, False, False, True]),
    )


def affine(*states):
    """Kernel and bias of the sum of linear models, float64."""
    return tuple(
        sum(np.asarray(state["head"][name][...], np.float64) for state in states)
        for name in ("kernel", "bias")
    )


def test_the_two_losses_and_the_gradient_of_each_part():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4))
    sigma, psi, one, two = (LINEAR.init(jax.random.key(i)) for i in range(4))
    helpers = Helpers(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), one, two), jnp.array([True, False])
    )
    weights = LossWeights(supervised=2.0, consistency=0.5, l2=0.3, l1=0.7, confidence=0.5)
    pointwise = softmax_cross_entropy
    loss = fedmatch_loss(
        sigma_loss(LINEAR, weights, weak=None, pointwise=pointwise),
        psi_loss(LINEAR, helpers, weights, strong=double, pointwise=pointwise),
    )
    anchor = together(sigma=LINEAR.init(jax.random.key(9)), psi=psi)
    state = together(sigma=sigma, psi=psi)
    both = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, _), gradient = both(state, anchor, batch_of(x), KEY)

    kernel, bias = affine(sigma, psi)
    log_p = log_softmax(x @ kernel + bias)
    strong_log_p = log_softmax(2 * x @ kernel + bias)
    helper_kernel, helper_bias = affine(anchor["sigma"], one)
    helped = log_softmax(x @ helper_kernel + helper_bias)
    sure = [i for i in (2, 3, 4) if np.exp(log_p[i]).max() >= 0.5]
    assert 0 < len(sure) < 3
    supervised = -(log_p[0, 0] + log_p[1, 2]) / 2
    unsupervised = []
    for i in sure:
        votes = np.bincount([log_p[i].argmax(), helped[i].argmax()], minlength=3)
        divergence = np.sum(np.exp(helped[i]) * (helped[i] - log_p[i]))
        unsupervised.append(divergence - strong_log_p[i, votes.argmax()])
    leaves = list(zip(affine(sigma), affine(psi), strict=True))
    squares = sum(np.sum((a - b) ** 2) for a, b in leaves)
    sizes = sum(np.abs(b).sum() for _, b in leaves)
    expected = 2 * supervised + 0.5 * np.mean(unsupervised) + 0.3 * squares + 0.7 * sizes
    assert float(value) == pytest.approx(expected, rel=1e-5)

    # sigma: of the labeled rows alone; psi: of everything else.
    residual = np.exp(log_p[:2]) - np.eye(3)[[0, 2]]
    np.testing.assert_allclose(
        gradient["sigma"]["head"]["kernel"][...], 2 * x[:2].T @ residual / 2, rtol=1e-4, atol=1e-5
    )
    step = np.zeros((4, 3))
    for i in sure:
        votes = np.bincount([log_p[i].argmax(), helped[i].argmax()], minlength=3)
        step += np.outer(x[i], np.exp(log_p[i]) - np.exp(helped[i]))
        step += np.outer(2 * x[i], np.exp(strong_log_p[i]) - np.eye(3)[votes.argmax()])
    a, b = leaves[0]
    expected = 0.5 * step / len(sure) + 0.3 * 2 * (b - a) + 0.7 * np.sign(b)
    np.testing.assert_allclose(
        gradient["psi"]["head"]["kernel"][...], expected, rtol=1e-4, atol=1e-5
    )


SMALL = Batches("paired", 4, 2)
FREE = {"consistency_weight": 0.0, "l2_weight": 0.0, "l1_weight": 0.0}


@pytest.mark.slow
def test_without_psi_it_is_fedavg(monkeypatch):
    monkeypatch.setattr(sys.modules[composed.__module__], "_PSI_SCALE", 0.0)
    federation = federation_of([12, 7, 20])
    training = training_of(SMALL, strong_augment=double)
    plain = rounds_of(fedavg(training=training_of(SMALL, weighting=uniformly)), federation, 3)[-1]
    match = fedmatch(training=training, supervised_weight=1.0, **FREE)
    assert_close(composed(rounds_of(match, federation, 3)[-1].model), plain.model)


def joined(state):
    """Kernel and bias, which goes with inputs of 1, as one matrix [5, 3]."""
    kernel, bias = affine(state)
    return np.vstack([kernel, bias])


def num_bytes(entries):
    """Of a message of 15 float32: all, a bitmap with values, or indices with values."""
    k = np.count_nonzero(entries)
    return min(15 * 4, 2 + 4 * k, 8 * k)


class Server:
    """FedMatch in NumPy: every client takes part in every round, with one step on all its examples."""

    def __init__(self, sigma, psi, weights, psi_threshold, delta_threshold):
        self.sigma, self.psi, self.weights = sigma, psi, weights
        self.psi_threshold, self.delta_threshold = psi_threshold, delta_threshold
        self.seen = []  # by client: psi, outputs on the random input

    def sparse(self, psi):
        return np.where(np.abs(psi) > self.psi_threshold, psi, 0)

    def round(self, clients, rate, num_helpers):
        """The bytes of its messages."""
        psi, sent = self.sparse(self.psi), {"up": 0, "down": 0, "helpers": 0}
        returned = []
        for number, (x, y) in enumerate(clients):
            helpers = []
            if num_helpers:
                own = self.seen[number][1]
                others = [k for k in range(len(clients)) if k != number]
                others.sort(key=lambda k, own=own: np.linalg.norm(self.seen[k][1] - own))
                helpers = [self.seen[k][0] for k in others[:num_helpers]]
            sent["helpers"] += sum(map(num_bytes, helpers))
            sent["down"] += 15 * 4 + num_bytes(psi)
            by_labels, by_agreement = self.gradients(psi, helpers, x, y)
            parts = []
            for before, after in (
                (self.sigma, self.sigma - rate * by_labels),
                (psi, self.sparse(psi - rate * by_agreement)),
            ):
                changed = np.abs(after - before) > self.delta_threshold
                sent["up"] += num_bytes(changed)
                parts.append(np.where(changed, after, before))
            returned.append(parts)
        noise = np.append(np.asarray(random_input((4,))[0], np.float64), 1)
        self.seen = [(b, np.exp(log_softmax(noise @ (a + b)))) for a, b in returned]
        self.sigma, self.psi = np.mean(returned, axis=0)
        return sent

    def gradients(self, psi, helpers, x, y):
        """Of L_s at sigma, of L_u at psi."""
        w, x = self.weights, np.hstack([x, np.ones((len(x), 1))])
        strong_x = x * [2, 2, 2, 2, 1]
        one_hot, is_labeled = np.eye(3), y >= 0
        log_p = log_softmax(x @ (self.sigma + psi))
        strong_p = np.exp(log_softmax(strong_x @ (self.sigma + psi)))
        helped = [log_softmax(x @ (self.sigma + psi_j)) for psi_j in helpers]
        p = np.exp(log_p)
        by_labels = x[is_labeled].T @ (p - one_hot[y])[is_labeled] / is_labeled.sum()
        by_agreement = np.zeros((5, 3))
        sure = np.flatnonzero(~is_labeled & (p.max(axis=1) >= w.confidence))
        self.num_sure = len(sure)
        for i in sure:
            votes = np.bincount([v[i].argmax() for v in (log_p, *helped)], minlength=3)
            by_agreement += np.outer(strong_x[i], strong_p[i] - one_hot[votes.argmax()])
            for q in helped:
                by_agreement += np.outer(x[i], p[i] - np.exp(q[i])) / len(helped)
        by_agreement *= w.consistency / max(len(sure), 1)
        by_agreement += 2 * w.l2 * (psi - self.sigma) + w.l1 * np.sign(psi)
        return w.supervised * by_labels, by_agreement


@pytest.mark.parametrize("thresholds", [(0.05, 0.02), (0.0, 0.0)])
@pytest.mark.sample(1)
def test_rounds_and_bytes_are_those_of_the_transcription(thresholds):
    """Four rounds of three clients, two helpers each in the second and the fourth."""
    federation = federation_of([8, 8, 8], 3)
    weights = LossWeights(supervised=2.0, consistency=0.5, l2=0.1, l1=0.05, confidence=0.5)
    training = training_of(
        Batches("joint", 8, 1), model=LINEAR, weighting=uniformly, strong_augment=double
    )
    algorithm = fedmatch(
        training=training,
        **{
            f"{name}_weight": value
            for name, value in weights._asdict().items()
            if name != "confidence"
        },
        confidence=weights.confidence,
        helper_interval=2,
        psi_threshold=thresholds[0],
        delta_threshold=thresholds[1],
    )
    state = algorithm.init(KEY, federation)
    server = Server(*(joined(state.model[name]) for name in ("sigma", "psi")), weights, *thresholds)
    assert_same(state.model["psi"], jax.tree.map(lambda w: 0.2 * w, state.model["sigma"]))
    cohort = federation.cohort()
    clients = [(np.float64(x), y) for x, y in zip(cohort.x, np.asarray(cohort.y), strict=True)]
    for number in range(4):
        state, metrics = algorithm.round(state, cohort, jax.random.fold_in(KEY, number))
        sent = server.round(clients, RATE / (1 + number), 2 * (number % 2))
        for name in ("sigma", "psi"):
            np.testing.assert_allclose(
                joined(state.model[name]), getattr(server, name), rtol=1e-4, atol=1e-5
            )
        assert metrics["communication"]["upload"] == {"parameters": sent["up"]}
        helpers = {"helpers": sent["helpers"]} if number % 2 else {}
        assert metrics["communication"]["download"] == {"parameters": sent["down"], **helpers}
    assert server.num_sure > 0
    outputs = np.stack([outputs for _, outputs in server.seen])
    np.testing.assert_allclose(state.clients.outputs, outputs, rtol=1e-4, atol=1e-6)
    everything = 3 * 2 * 15 * 4
    assert (sent["up"] < everything) == (sent["down"] < everything) == (thresholds[0] > 0)


def test_a_client_without_labels_sends_no_sigma():
    federation = federation_of([8, 8], 0)
    training = training_of(SMALL, model=LINEAR, strong_augment=double)
    algorithm = fedmatch(training=training)
    _, metrics = algorithm.round(algorithm.init(KEY, federation), federation.cohort(), KEY)
    assert metrics["communication"]["upload"] == {"parameters": 2 * 15 * 4}  # psi
    assert metrics["communication"]["download"] == {"parameters": 2 * (15 + 12) * 4 + 2 * 2}


@pytest.mark.slow
def test_who_gets_helpers_and_what_that_costs():
    federation = federation_of([10, 10, 10, 10], 4)
    training = training_of(SMALL, strong_augment=double, batch_norm=True)
    algorithm = fedmatch(training=training, l2_weight=0.1, supervised_weight=1.0, helper_interval=2)
    state, helped = algorithm.init(KEY, federation), []
    size = 4 * (4 * 8 + 8 + 2 * 8 + 8 * 3 + 3)
    for number, cohort in enumerate([[0, 1], [0, 2], [1, 2], [0, 3]]):
        state, metrics = algorithm.round(
            state, federation.cohort(cohort), jax.random.fold_in(KEY, number)
        )
        assert metrics["communication"]["upload"]["parameters"] == 2 * 2 * size
        helped.append(metrics["communication"]["download"].get("helpers", 0) / size)
    # Round 2: client 0 knows 1 only; round 4: client 0 has two, client 3 was not seen.
    assert helped == [0, 1, 0, 2]
    seen = state.clients
    assert seen.is_known.all()
    np.testing.assert_allclose(seen.outputs.sum(axis=1), 1, rtol=1e-5)


def test_a_sparse_psi_is_evaluated():
    psi = jax.tree.map(lambda w: 0.1 * jnp.sign(w), LINEAR.init(KEY))
    state = together(sigma=LINEAR.init(KEY), psi=psi)
    x = jnp.ones((1, 4))
    for threshold, kept in ((0.05, 1.0), (0.5, 0.0)):
        model = two_part_model(LINEAR, threshold)
        kernel, bias = affine(state["sigma"], jax.tree.map(lambda w, k=kept: k * w, psi))
        np.testing.assert_allclose(
            model.apply(state, x), np.ones((1, 4)) @ kernel + bias, rtol=1e-5
        )


def test_a_given_model_is_the_sum_of_both_parts():
    given = LINEAR.init(jax.random.key(7))
    training = training_of(SMALL, model=LINEAR, initial_model=given, strong_augment=double)
    state = fedmatch(training=training).init(KEY, federation_of([8]))
    assert_close(composed(state.model), given)
    assert_close(state.model["psi"], jax.tree.map(lambda w: 0.2 * w, state.model["sigma"]))
