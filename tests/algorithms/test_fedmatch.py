"""FedMatch: its losses, gradients and rounds transcribed to NumPy, and what is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_training import affine, log_softmax
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, truncnorm
from small_training import KEY, RATE, assert_close, assert_same, double, federation_of, training_of

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedmatch import (
    LossWeights,
    Seen,
    composed,
    fedmatch,
    helper_sender,
    nearest_clients,
    num_bytes_of_nonzero,
    random_input,
)
from jaxfed.federation.communication import Communication
from jaxfed.host.row_table import RowTable
from jaxfed.models.mlp import mlp
from jaxfed.training.aggregate import uniformly
from jaxfed.training.local.batches import Batches
from jaxfed.training.server_state import scatter, stacked_for

LINEAR = mlp((4,), 3, hidden=())


SMALL = Batches("paired", 4, 2)


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
    server = Server(*(affine(state.model[name]) for name in ("sigma", "psi")), weights, *thresholds)
    assert_same(state.model["psi"], jax.tree.map(lambda w: 0.2 * w, state.model["sigma"]))
    cohort = federation.cohort()
    clients = [(np.float64(x), y) for x, y in zip(cohort.x, np.asarray(cohort.y), strict=True)]
    for number in range(4):
        state, metrics = algorithm.round(state, cohort, jax.random.fold_in(KEY, number))
        sent = server.round(clients, RATE / (1 + number), 2 * (number % 2))
        for name in ("sigma", "psi"):
            np.testing.assert_allclose(
                affine(state.model[name]), getattr(server, name), rtol=1e-4, atol=1e-5
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


def test_a_given_model_is_the_sum_of_both_parts():
    given = LINEAR.init(jax.random.key(7))
    training = training_of(SMALL, model=LINEAR, initial_model=given, strong_augment=double)
    state = fedmatch(training=training).init(KEY, federation_of([8]))
    assert_close(composed(state.model), given)
    assert_close(state.model["psi"], jax.tree.map(lambda w: 0.2 * w, state.model["sigma"]))


@given(st.integers(0, 2**31 - 1), st.integers(1, 6), st.integers(1, 3))
def test_helpers_are_the_nearest_others(seed, num_clients, num_helpers):
    rng = np.random.default_rng(seed)
    outputs, known = rng.random((num_clients, 3)), rng.random(num_clients) < 0.7
    client_id = np.append(rng.permutation(num_clients), -1).astype(np.int32)
    seen_id = np.flatnonzero(known)
    found = nearest_clients(outputs[seen_id], seen_id, client_id, num_helpers)
    for client, helpers in zip(client_id, found, strict=True):
        others = [k for k in np.flatnonzero(known) if k != client]
        others.sort(key=lambda k, c=client: np.linalg.norm(outputs[k] - outputs[c]))
        wanted = others[:num_helpers] if client >= 0 and known[client] else []
        assert helpers.tolist() == wanted + [-1] * (num_helpers - len(wanted))


def test_the_random_input_is_one_image():
    """Of bytes that are normal with mean and deviation 125, cut to 0..255, then divided by 255."""
    x = random_input((64, 64, 3))
    assert_same(x, random_input((64, 64, 3)))
    assert random_input((2,)).shape == (1, 2)
    assert 0 <= x.min() < 0.001
    assert 0.999 < x.max() <= 1
    bytes_of = truncnorm((0 - 125) / 125, (255 - 125) / 125, loc=125, scale=125)
    assert kstest(255 * np.asarray(x).ravel(), bytes_of.cdf).pvalue > 0.01


@pytest.mark.parametrize("has_tables", [False, True])
@pytest.mark.parametrize(
    ("interval", "round_number", "is_sent"), [(1, 0, True), (2, 0, False), (2, 1, True)]
)
def test_the_server_sends_the_psi_it_saw(interval, round_number, is_sent, has_tables):
    """Clients 0 and 2 are nearest to client 1; nobody saw client 3."""
    parameters = jax.tree.map(jnp.ones_like, mlp((4,), 3, hidden=()).init(KEY))
    stacked = jax.tree.map(
        lambda leaf: leaf * jnp.arange(4.0).reshape(-1, *[1] * (leaf.ndim - 1)),
        stacked_for(4, parameters),
    )
    outputs = jnp.array([[0.0], [1.0], [5.0], [9.0]])
    seen = Seen(stacked, outputs, jnp.array([True, True, True, False]))
    if has_tables:
        unseen = jax.tree.map(lambda leaf: np.zeros_like(leaf[0]), seen)
        tables = jax.tree.map(lambda leaf: RowTable(4, leaf), unseen)
        seen = scatter(tables, np.arange(3), jax.tree.map(lambda leaf: leaf[:3], seen))
    federation = federation_of([3, 3, 3, 3])
    state = fedavg(training=training_of(Batches("paired", 4, 2))).init(KEY, federation)
    state = state._replace(clients=seen, round=jnp.int32(round_number))
    communication = Communication()
    helpers = helper_sender(1, interval)(state, federation.cohort([1, 2, 3]), communication)
    np.testing.assert_array_equal(helpers.is_present, [[is_sent], [is_sent], [False]])
    # Client 0's psi, all zeros, is sent for nothing; client 1's has 15 float32.
    assert communication.download == ({"helpers": 15 * 4} if is_sent else {})
    if is_sent:
        kernel = helpers.psi["head"]["kernel"][...][:2, 0]
        np.testing.assert_array_equal(kernel[0], np.zeros((4, 3)))
        np.testing.assert_array_equal(kernel[1], np.ones((4, 3)))


def encodings(values, is_sent):
    """The three messages, as bytes."""
    sent = values[is_sent].tobytes()
    return (
        values.tobytes(),
        np.packbits(is_sent).tobytes() + sent,
        np.flatnonzero(is_sent).astype(np.uint32).tobytes() + sent,
    )


@given(st.integers(1, 400), st.floats(0, 1), st.integers(0, 2**31 - 1))
def test_bytes_are_those_of_the_shortest_encoding(n, share, seed):
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(n) < share, rng.standard_normal(n), 0).astype(np.float32)
    shortest = min(map(len, encodings(values, values != 0)))
    assert int(num_bytes_of_nonzero([values[: n // 2], values[n // 2 :]])) == shortest
