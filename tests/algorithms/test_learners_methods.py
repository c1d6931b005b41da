"""FedCT's relatives: what each teaches whom, by hand, and what it refuses."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import numpy as np
import pytest
import toy_learner
from float64_training import cross_entropy, gradient, logits, softmax, the_one_that_fits, weights_of
from shown_methods import shown
from small_training import KEY, RATE, federation_of, training_of
from toy_learner import NUM_CLASSES, NUM_PUBLIC, clients, nearest, step, toy

from jaxfed.algorithms.centralized import centralized
from jaxfed.algorithms.distributed_distillation import distributed_distillation
from jaxfed.algorithms.dsfl import dsfl
from jaxfed.algorithms.fedmd import fedmd
from jaxfed.algorithms.local_learning import local_learning
from jaxfed.algorithms.pate import pate
from jaxfed.learners import Fitted, Learner, network
from jaxfed.privacy.composition import approximate
from jaxfed.training.local.batches import Batches

FEDERATION = clients()
U = FEDERATION.public_examples


def rounds_of(algorithm, number):
    states, told = toy_learner.rounds_of(algorithm, FEDERATION, number)
    return states[-1], told


def trained(x, y, steps, start=None):
    center = np.zeros((NUM_CLASSES, x.shape[1])) if start is None else start
    for _ in range(steps):
        center = step(center, x, y, np.ones(len(y)))
    return center


def test_local_learning_is_each_client_alone():
    algorithm = local_learning(learner=toy(), num_classes=NUM_CLASSES, steps=2)
    state, told = rounds_of(algorithm, 3)
    for center, own in zip(state.learner.center, FEDERATION.partition.labeled, strict=True):
        np.testing.assert_allclose(center, trained(FEDERATION.x[own], FEDERATION.y[own], 6))
    assert "communication" not in told[0]
    quality = algorithm.evaluate(state, FEDERATION)
    assert "consensus_accuracy" not in quality
    assert quality["test_accuracy"] > 0.5


def test_centralized_has_all_labels():
    algorithm = centralized(server_learner=toy(), num_classes=NUM_CLASSES, steps=2)
    state, _ = rounds_of(algorithm, 2)
    own = np.concatenate(FEDERATION.partition.labeled)
    (center,) = state.learner.center
    np.testing.assert_allclose(center, trained(FEDERATION.x[own], FEDERATION.y[own], 4), rtol=1e-6)
    quality = algorithm.evaluate(state, FEDERATION)
    said = nearest(center, FEDERATION.x[own])
    assert quality["train_accuracy"] == np.mean(said == FEDERATION.y[own])
    assert quality["client_test_accuracy_deviation"] == 0


def test_pate_teaches_a_student_what_teachers_vote():
    algorithm = pate(
        learner=toy(),
        server_learner=toy(),
        public=U,
        num_classes=NUM_CLASSES,
        steps=3,
        student_steps=2,
    )
    state, told = rounds_of(algorithm, 3)
    votes = [
        nearest(trained(FEDERATION.x[own], FEDERATION.y[own], 3), U)
        for own in FEDERATION.partition.labeled
    ]
    counts = np.stack([np.bincount(u, minlength=NUM_CLASSES) for u in np.transpose(votes)])
    np.testing.assert_array_equal(state.label, counts.argmax(axis=1))
    np.testing.assert_allclose(state.learner.center[0], trained(U, state.label, 6), rtol=1e-6)
    np.testing.assert_array_equal(state.teacher_turns, [1, 1, 1, 1])
    assert [t["communication"]["upload_bytes"] for t in told] == [4 * NUM_PUBLIC // 4, 0, 0]
    said = nearest(state.learner.center[0], FEDERATION.x[FEDERATION.test])
    quality = algorithm.evaluate(state, FEDERATION)
    assert quality["test_accuracy"] == np.mean(said == FEDERATION.y[FEDERATION.test])
    assert "epsilon" not in told[-1]


def test_pates_noise_and_what_it_costs():
    make = partial(
        pate, learner=toy(), server_learner=toy(), public=U, num_classes=NUM_CLASSES, steps=3
    )
    clean, _ = rounds_of(make(), 1)
    votes = np.stack([nearest(center, U) for center in clean.teachers.center])
    counts = np.stack([np.bincount(u, minlength=NUM_CLASSES) for u in votes.T])
    little, _ = rounds_of(make(gamma=100.0), 1)
    much, (told,) = rounds_of(make(gamma=0.1), 1)
    np.testing.assert_array_equal(counts[np.arange(NUM_PUBLIC), little.label], counts.max(axis=1))
    assert np.mean(much.label != clean.label) > 0.2
    assert told["epsilon"] == pytest.approx(2 * 0.1 * NUM_PUBLIC)
    assert told["epsilon_approximate"] == approximate(0.2, NUM_PUBLIC, 1e-5)


def recorded(scale):
    """A network's stand-in: writes down its fits; its scores are a client's number times `scale`."""
    fits = []

    def make(**keywords):
        def init(key, federation):
            return np.zeros(federation.num_clients)

        def fit(state, cohort, taught, key, steps):
            there = np.asarray(cohort.client_id)
            labels = int(np.sum(np.asarray(cohort.y)[there >= 0] >= 0))
            fits.append((keywords, there[there >= 0].tolist(), labels, taught, steps))
            return Fitted(state, {}, {"clients": int(np.sum(there >= 0)), "train_loss": 1.0})

        def scores(state, client_id, x):
            each = scale * (1 + np.asarray(client_id))[:, None, None] * np.ones((1, len(x), 3))
            return (each * np.arange(1, 4)).astype(np.float32)

        def proba(state, client_id, x):
            answer = scores(state, client_id, x)
            return answer / answer.sum(axis=-1, keepdims=True)

        def predict(state, client_id, x):
            return scores(state, client_id, x).argmax(axis=-1).astype(np.int32)

        return Learner(init, fit, predict, proba, scores)

    return make, fits


@pytest.mark.parametrize("sums", ["plaintext", "masked"])
def test_fedmd_transfers_digests_and_revisits(sums):
    stand_in, fits = recorded(0.5)
    labels = FEDERATION.y[FEDERATION.public]
    algorithm = fedmd(
        network=stand_in,
        public=U,
        public_labels=labels,
        num_classes=3,
        subset=10,
        transfer_steps=7,
        private_steps=6,
        digest_steps=5,
        revisit_steps=4,
        sums=sums,
    )
    state, (told, _) = rounds_of(algorithm, 2)
    everybody, own = [0, 1, 2, 3], sum(map(len, FEDERATION.partition.labeled))
    assert [(who, labels, steps) for _, who, labels, _, steps in fits] == [
        (everybody, 0, 7),  # transfer on public labels, then on own ones
        (everybody, own, 6),
        (everybody, 0, 5),  # digest, revisit
        (everybody, own, 4),
        (everybody, 0, 5),
        (everybody, own, 4),
    ]
    losses = [keywords["public_loss"] for keywords, *_ in fits[::2]]
    assert losses == ["label", "score_l1", "score_l1"]
    np.testing.assert_array_equal(fits[0][3].label, labels)
    first, second = fits[2][3], fits[4][3]
    assert first.weight.sum() == second.weight.sum() == 10
    assert (first.weight != second.weight).any()  # drawn anew
    expected = 0.5 * np.mean([1, 2, 3, 4]) * np.arange(1, 4)
    np.testing.assert_allclose(first.soft[first.weight > 0], np.tile(expected, (10, 1)), rtol=1e-6)
    assert (first.soft[first.weight == 0] == 0).all()
    np.testing.assert_array_equal(state.turns, [2, 2, 2, 2])
    assert told["digest_loss"] == told["train_loss"] == 1
    if sums == "plaintext":
        assert told["communication"]["upload"] == {"votes": 4 * 10 * 3 * 4}
    assert told["communication"]["download"]["mean"] == 4 * 10 * (3 + 1) * 4


def test_fedmd_without_public_labels():
    stand_in, fits = recorded(1.0)
    make = partial(fedmd, network=stand_in, public=U, num_classes=3, subset=0)
    rounds_of(make(public_labels=None), 1)
    assert [steps for *_, steps in fits] == [500, 50, 50]
    assert fits[1][3].weight.sum() == NUM_PUBLIC


def test_fedmd_transfers_to_new_clients_alone():
    stand_in, fits = recorded(1.0)
    algorithm = fedmd(network=stand_in, public=U, num_classes=3, subset=0, public_labels=None)
    toy_learner.rounds_of(algorithm, FEDERATION, 2, [[0, 1], [0, 1, 2]])
    assert [who for _, who, *_ in fits] == [[0, 1]] * 3 + [[2]] + [[0, 1, 2]] * 2


@pytest.mark.parametrize("sums", ["plaintext", "masked"])
def test_distillation_teaches_the_mean_answer(sums):
    stand_in, fits = recorded(1.0)
    algorithm = distributed_distillation(
        network=stand_in, public=U, num_classes=3, steps=5, rho=0.3, sums=sums
    )
    state, (told, _) = rounds_of(algorithm, 2)
    assert fits[0][0] == {"public_loss": "squared_distance", "pseudo_weight": 0.3}
    assert [steps for *_, steps in fits] == [5, 5]
    assert (fits[0][3].weight == 0).all()  # nothing is known yet
    assert (fits[1][3].weight == 1).all()
    mean = np.tile(np.arange(1, 4) / 6, (NUM_PUBLIC, 1))
    np.testing.assert_allclose(fits[1][3].soft, mean, rtol=1e-5)
    np.testing.assert_array_equal(state.label, np.full(NUM_PUBLIC, 2))
    num_bytes = 4 * NUM_PUBLIC * 3 * 4
    assert told["communication"]["download"]["mean"] == num_bytes
    if sums == "plaintext":
        assert told["communication"]["upload_bytes"] == num_bytes


def test_without_a_masked_sum_the_mean_answer_stays():
    algorithm = distributed_distillation(
        network=recorded(1.0)[0], public=U, num_classes=3, sums="masked"
    )
    before, _ = rounds_of(algorithm, 1)
    after, told = algorithm.round(before, FEDERATION.cohort([2]), KEY)
    np.testing.assert_array_equal(after.soft, before.soft)
    assert after.soft.any()
    assert told["communication"]["download_bytes"] == 0


WHOLE = Batches("joint", 64, 1)  # every batch is all that a client has: no randomness
HEAT, STEPS, DISTILL = 0.2, 2, 3


def federation_with(num_public):
    federation = federation_of([6, 5, 7], num_labeled=4)
    return replace(federation, public=federation.validation[:num_public])


def made(federation, **keywords):
    networks = partial(network, training=training_of(WHOLE), public_batch_size=4)
    steps = {"steps": STEPS, "distill_steps": DISTILL, "temperature": HEAT}
    public = {"public": federation.public_examples, "num_classes": 3}
    return shown(dsfl, **({"network": networks} | steps | public | keywords))


def descended(v, x, y, rate, steps):
    for _ in range(steps):
        v = v - rate * gradient(lambda u: cross_entropy(u, x, y), v)
    return v


def round_by_hand(federation, networks, fits, u):
    """Networks of clients 0 and 1 after a round on the public example u, and z(u)."""
    networks = dict(networks)
    for client in (0, 1):
        points = federation.partition.labeled[client]
        x, y = federation.x[points].astype(np.float64), federation.y[points]
        networks[client] = descended(networks[client], x, y, RATE / (1 + fits), STEPS)
    x = federation.public_examples[[u]].astype(np.float64)
    z = softmax(sum(softmax(logits(networks[client], x)) for client in (0, 1)) / 2 / HEAT)
    for client in (0, 1):
        networks[client] = descended(networks[client], x, z, RATE / (2 + fits), DISTILL)
    return networks, z


def test_two_rounds_are_the_equations():
    """A round has one public example, drawn out of two; client 2 takes no part."""
    federation = federation_with(2)
    algorithm = made(federation, subset=1)
    state = algorithm.init(KEY, federation)
    first = weights_of(state.learner.model)
    for number in range(2):
        key = jax.random.fold_in(KEY, number)
        state, metrics = algorithm.round(state, federation.cohort([1, 0]), key)
        assert metrics["communication"]["upload"] == {"votes": 2 * 3 * 4}
        assert metrics["communication"]["download"] == {"mean": 2 * (3 + 1) * 4}
        assert metrics["voters"] == state.weight.sum() + 1 == 2
        assert metrics["failed_clients"] == 0
        assert metrics["train_loss"] != metrics["distill_loss"]
    np.testing.assert_array_equal(state.turns, [2, 2, 0])
    candidates = []
    for drawn in product(range(2), repeat=2):
        networks = dict(enumerate(first))
        for number, u in enumerate(drawn):
            networks, z = round_by_hand(federation, networks, 2 * number, u)
        candidates.append(
            (np.concatenate(list(networks.values())), z[0], [u == drawn[-1] for u in range(2)])
        )
    found = weights_of(state.learner.model).ravel(), state.soft[state.weight > 0][0], state.weight
    the_one_that_fits(candidates, found)


def test_sums_under_masks_teach_the_same_and_one_client_alone_teaches_nothing():
    federation = federation_with(8)
    own = {"network": lambda **keywords: toy(), "subset": 0}
    plain, masked = made(federation, **own), made(federation, **own, sums="masked")
    start = plain.init(KEY, federation)
    cohort = federation.cohort([0, 1])
    (one, _), (other, _) = plain.round(start, cohort, KEY), masked.round(start, cohort, KEY)
    assert one.weight.sum() == 8
    np.testing.assert_allclose(one.soft, other.soft, atol=1e-5)
    x = federation.public_examples
    (view,), (summed,) = (method.views(start, one, cohort, KEY) for method in (plain, masked))
    mean = view.answers(x).mean(axis=0)
    np.testing.assert_allclose(softmax(mean / HEAT), one.soft, atol=1e-6)
    assert (view.client.tolist(), summed.client.tolist()) == ([0, 1], [-1])
    np.testing.assert_allclose(summed.answers(x)[0], mean, atol=1e-6)
    alone, metrics = masked.round(start, federation.cohort([2]), KEY)
    assert alone.weight.sum() == metrics["communication"]["download_bytes"] == 0
