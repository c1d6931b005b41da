"""FedAvg and its relatives against plain loops, and against each other."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import cross_entropy, gradient, weights_of
from small_training import (
    KEY,
    RATE,
    assert_close,
    assert_same,
    federation_of,
    rounds_of,
    training_of,
)

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedsem import fedsem
from jaxfed.algorithms.scaffold import scaffold
from jaxfed.data import Partition
from jaxfed.training import aggregate
from jaxfed.training.local.batches import Batches
from jaxfed.training.round import parts
from jaxfed.training.round.round import server_optimizer

FULL = Batches("joint", 20, 1)  # one step on all that a client has
WHOLE, FEW = federation_of([20, 12, 5, 20]), federation_of([20, 20, 20, 20], 5)
DIVERGES = 9  # the round in which the rate of `small` is infinite


@cache
def small(make):
    """A method, compiled once for several tests of two clients a round."""
    rate = {
        "learning_rate": lambda count: jnp.where(count == DIVERGES, jnp.inf, RATE / (1 + count))
    }
    return make(training=training_of(FULL, weighting=aggregate.by_examples, **rate))


@cache
def normalized(make, labeled_only_rounds=0, **settings):
    """A method with BatchNorm, a server's momentum and cohorts padded to four clients."""
    training = training_of(
        FULL,
        batch_norm=True,
        labeled_only_rounds=labeled_only_rounds,
        clients_multiple=4,
        weighting=aggregate.uniformly,
        aggregate=server_optimizer(optax.sgd(0.5, momentum=0.9)),
    )
    return make(training=training, **settings)


def sgd_step(w, x, y, rate):
    """One full-batch step of a plain loop, on the network's numbers in one vector."""
    return w - rate * gradient(lambda u: cross_entropy(u, x.astype(np.float64), y), w)


def test_the_loss_of_a_model_that_is_not_finite_is_no_number():
    """Also where the last step made it so, whose loss was taken before it."""
    state = small(fedavg).init(KEY, WHOLE)
    for number in (0, DIVERGES):
        start = state._replace(round=jnp.int32(number))
        _, metrics = small(fedavg).round(start, WHOLE.cohort([0, 1]), KEY)
        assert np.isfinite(metrics["train_loss"]) == (number != DIVERGES)


def test_clients_of_one_full_batch_step_are_centralized_sgd():
    """One step of full batches, weighted by examples: the mean of gradients is the gradient."""
    states = rounds_of(small(fedavg), WHOLE, 4, [[0, 1]] * 4)
    plain = weights_of(states[0].model)
    for number, state in enumerate(states[1:]):
        plain = sgd_step(plain, WHOLE.x[:32], WHOLE.y[:32], RATE / (1 + number))
        assert_close(weights_of(state.model), plain)


def test_scaffold_controls_are_mean_gradients():
    """After one full-batch step c_k is the client's gradient, and c the mean over all clients."""
    start, end = rounds_of(small(scaffold), WHOLE, 1, cohorts=[[0, 2]])
    controls, w = weights_of(end.clients), weights_of(start.model)
    for client in range(4):
        own = WHOLE.points(client)
        slope = w - sgd_step(w, WHOLE.x[own], WHOLE.y[own], 1.0)
        assert_close(controls[client], slope if client in (0, 2) else 0 * w, rtol=1e-3, atol=1e-5)
    assert_close(weights_of(end.control), controls.mean(axis=0))


def test_a_cohort_without_examples_changes_nothing_but_the_count():
    federation = federation_of([20, 0, 0], 5)
    _, first, last = rounds_of(normalized(fedavg), federation, 2, cohorts=[[0, 1], [1, 2]])
    assert_same(last.model, first.model)
    assert_same(last.optimizer, first.optimizer)
    assert jax.tree.leaves(first.optimizer)
    assert last.round == 2


@pytest.mark.parametrize(("weighting", "share"), [("uniform", 1), ("cohort", 1 / 3)])
@pytest.mark.sample(1)
def test_clients_with_nothing_to_train_on_are_left_out_or_hold_the_mean_back(weighting, share):
    """One of three has labels, one unlabeled examples only, one nothing at all; a fourth row is padding."""
    full = federation_of([20, 12, 0])
    nothing = full.partition.labeled[2]
    partition = Partition(
        (full.partition.labeled[0], nothing, nothing),
        (nothing, full.partition.labeled[1], nothing),
        full.partition.new,
    )
    federation = dataclasses.replace(full, partition=partition)
    if weighting == "uniform":
        algorithm = normalized(fedavg)
    else:
        weigh = aggregate.WEIGHTINGS[weighting]
        algorithm = fedavg(
            training=training_of(FULL, weighting=weigh, clients_multiple=4, batch_norm=True)
        )
    start = algorithm.init(KEY, federation)
    alone, expected = algorithm.round(start, federation.cohort([0]), KEY)
    together, metrics = algorithm.round(start, federation.cohort(), KEY)
    before, alone, together = (
        jax.tree.map(np.asarray, state.model) for state in (start, alone, together)
    )
    moved = jax.tree.map(np.subtract, alone, before)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(moved)) > 0.01
    assert_close(
        together, jax.tree.map(lambda w, d: w + np.float32(share) * d, before, moved), atol=1e-6
    )
    assert metrics["clients"] == expected["clients"] == 1
    assert float(metrics["train_loss"]) == pytest.approx(float(expected["train_loss"]))


def test_statistics_averaged_and_static():
    federation = federation_of([16, 16, 16, 16])
    batches = Batches("joint", 16, 1)

    def played(kind):
        training = training_of(
            batches, batch_norm=True, batch_statistics=kind, weighting=aggregate.uniformly
        )
        return rounds_of(fedavg(training=training), federation, 2, cohorts=[[0, 1], [0, 2]])

    averaged, static = played("averaged"), played("static")
    x = federation.x.reshape(-1, 4)[:64].reshape(4, 16, 4)

    def hidden(model, client):
        kernel, bias = (np.asarray(model["first"][name][...]) for name in ("kernel", "bias"))
        return x[client] @ kernel + bias

    # One full batch a round: the batch's statistics are those of the client under the model it gets.
    moved = [0.1 * hidden(averaged[0].model, k).mean(axis=0) for k in (0, 1)]
    np.testing.assert_allclose(
        averaged[1].model["norm"]["mean"][...], np.mean(moved, axis=0), atol=1e-5
    )
    measured = [hidden(static[2].model, k) for k in (0, 2)]
    norm = static[2].model["norm"]
    np.testing.assert_allclose(
        norm["mean"][...], np.mean([h.mean(axis=0) for h in measured], axis=0), atol=1e-5
    )
    np.testing.assert_allclose(
        norm["var"][...], np.mean([h.var(axis=0) for h in measured], axis=0), atol=1e-5
    )
    # What statistics become is no matter to the parameters.
    assert_close(static[2].model["last"], averaged[2].model["last"])


def test_rates_count_anew_in_stage_2():
    algorithm = normalized(fedavg, 2, pseudo_label="network")
    state, rates = algorithm.init(KEY, FEW), []
    for number in range(4):
        state, metrics = algorithm.round(state, FEW.cohort([0, 1]), jax.random.fold_in(KEY, number))
        rates.append(float(metrics["learning_rate"]))
    assert rates == pytest.approx([RATE, RATE / 2, RATE, RATE / 2])


def test_the_teacher_reaches_a_client_once():
    """Two clients a round, two rounds of stage 1; in the first of stage 2 teacher and model are one."""
    algorithm = normalized(fedsem, 2)
    state = algorithm.init(KEY, FEW)
    model = 4 * (4 * 8 + 8 + 8 * 3 + 3 + 4 * 8)  # BatchNorm has 8 scales, offsets, means, variances
    sent = []
    for number, clients in enumerate([[0, 3], [0, 3], [0, 1], [1, 2], [0, 2], [3, 0], [2, 3]]):
        state, metrics = algorithm.round(
            state, FEW.cohort(clients), jax.random.fold_in(KEY, number)
        )
        communication = metrics["communication"]
        sent.append(communication["download"].get("teacher", 0) / model)
        assert communication["download_bytes"] == (2 + sent[-1]) * model
        assert communication["upload_bytes"] == 2 * model
    assert sent == [0, 0, 0, 1, 0, 1, 0]


def test_saved_predictions_are_those_that_were_just_measured(monkeypatch):
    made = []
    in_batches = parts.in_batches
    monkeypatch.setattr(parts, "in_batches", lambda *given: made.append(1) or in_batches(*given))
    classifier = parts.network_classifier(training_of(FULL))
    measured = parts.evaluation_by(classifier)
    federation = dataclasses.replace(WHOLE, test=np.arange(10))
    first, _, last = rounds_of(small(fedavg), WHOLE, 2)
    measured.evaluate(first, federation)
    expected = measured.evaluate.predictions(last, federation)
    measured.evaluate(last, federation)
    found = measured.evaluate.predictions(last, federation)
    assert len(made) == 2  # one for each state
    assert_same(found.confidence, expected.confidence)
