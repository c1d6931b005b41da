"""FedAvg and its relatives against plain loops, and against each other."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_training import (
    KEY,
    RATE,
    Net,
    assert_close,
    assert_same,
    federation_of,
    rounds_of,
    training_of,
    with_sources,
)

from jaxfed import xclp
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedprox import fedprox
from jaxfed.algorithms.fedsem import fedsem
from jaxfed.algorithms.fixmatch import fixmatch
from jaxfed.algorithms.scaffold import scaffold
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.models.model import from_module
from jaxfed.testing.method_checks import num_compilations
from jaxfed.training.local.batches import Batches
from jaxfed.training.pseudo_labels import propagated_labels, pseudo_label
from jaxfed.training.pseudo_labels.graph_points import all_examples
from jaxfed.training.server import aggregate
from jaxfed.training.server.client_rows import gather, scatter


@jax.jit
def sgd_step(parameters, x, y, rate):
    """One full-batch step of the plain loop, on a dictionary of arrays and with its own loss."""

    def loss(p):
        hidden = jnp.tanh(x @ p["w1"] + p["b1"][None])
        logits = hidden @ p["w2"] + p["b2"][None]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

    return jax.tree.map(lambda p, g: p - rate * g, parameters, jax.grad(loss)(parameters))


def as_dictionary(model):
    return {
        "w1": model["first"]["kernel"][...],
        "b1": model["first"]["bias"][...],
        "w2": model["last"]["kernel"][...],
        "b2": model["last"]["bias"][...],
    }


def test_the_loss_of_a_model_that_is_not_finite_is_no_number():
    """Also where the last step made it so, whose loss was taken before it."""
    federation = federation_of([8, 8])
    one_step = training_of(
        Batches("joint", 8, 1, steps=1),
        learning_rate=lambda count: jnp.where(count == 0, RATE, jnp.inf),
    )
    algorithm = fedavg(training=one_step)
    state = algorithm.init(KEY, federation)
    for is_finite in (True, False):
        state, metrics = algorithm.round(state, federation.cohort(), KEY)
        assert np.isfinite(metrics["train_loss"]) == is_finite


def test_one_client_with_full_batches_is_centralized_sgd():
    federation = federation_of([40])
    states = rounds_of(fedavg(training=training_of(Batches("joint", 40, 1))), federation, 5)
    plain = as_dictionary(states[0].model)
    for number, state in enumerate(states[1:]):
        plain = sgd_step(plain, federation.x[:40], federation.y[:40], RATE / (1 + number))
        assert_close(as_dictionary(state.model), plain)


def test_clients_of_one_full_batch_step_are_centralized_sgd():
    """One step of full batches, weighted by examples: the mean of gradients is the gradient."""
    sizes = [10, 25, 5]
    federation = federation_of(sizes)
    states = rounds_of(fedavg(training=training_of(Batches("joint", 25, 1))), federation, 3)
    plain = as_dictionary(states[0].model)
    for number, state in enumerate(states[1:]):
        plain = sgd_step(plain, federation.x[:40], federation.y[:40], RATE / (1 + number))
        assert_close(as_dictionary(state.model), plain)


SMALL = Batches("paired", 4, 2)


@cache
def small(make, labeled_only_rounds=0, **settings):
    """A method, compiled once for several tests."""
    return make(training=training_of(SMALL, labeled_only_rounds=labeled_only_rounds), **settings)


@pytest.mark.slow
def test_fedprox_without_its_term_is_fedavg_to_the_bit():
    federation, training = federation_of([12, 7, 20], 5), training_of(SMALL)
    plain = rounds_of(fedavg(training=training), federation, 3)[-1]
    assert_same(rounds_of(fedprox(training=training, mu=0.0), federation, 3)[-1].model, plain.model)
    pulled = rounds_of(fedprox(training=training, mu=1.0), federation, 3)[-1]

    def distance(state):
        start = fedavg(training=training).init(KEY, federation).model
        return optax.tree.norm(jax.tree.map(jnp.subtract, state.model, start))

    assert distance(pulled) < 0.8 * distance(plain)


def test_scaffold_before_its_first_correction_is_fedavg_to_the_bit():
    federation = federation_of([20, 20, 7], 5)
    plain, corrected = (
        rounds_of(small(make), federation, 2, [[0, 2], [0, 1]]) for make in (fedavg, scaffold)
    )
    assert_same(corrected[1].model, plain[1].model)
    assert not np.array_equal(
        corrected[2].model["last"]["kernel"][...], plain[2].model["last"]["kernel"][...]
    )


def test_scaffold_controls_are_mean_gradients():
    """After one full-batch step c_k is the client's gradient, and c the mean over all clients."""
    federation = federation_of([15, 15, 15, 15])
    training = training_of(Batches("joint", 15, 1), weighting=aggregate.uniformly)
    states = rounds_of(scaffold(training=training), federation, 1, cohorts=[[0, 2]])
    start, end = states
    for client in range(4):
        own = slice(15 * client, 15 * (client + 1))
        before = as_dictionary(start.model)
        after = sgd_step(before, federation.x[own], federation.y[own], 1.0)
        gradient = jax.tree.map(jnp.subtract, before, after)
        control = as_dictionary(jax.tree.map(lambda leaf, k=client: leaf[k], end.clients))
        expected = gradient if client in (0, 2) else jax.tree.map(jnp.zeros_like, gradient)
        assert_close(control, expected, rtol=1e-3, atol=1e-5)
    mean = jax.tree.map(lambda c: c.sum(axis=0) / 4, end.clients)
    assert_close(end.control, mean)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vmap", "shard_map"])
@pytest.mark.sample(1)
def test_strategies_agree_on_clients_of_all_sizes(strategy):
    federation = federation_of([12, 0, 1, 20, 3], 5)
    results = [
        rounds_of(
            fedavg(
                training=training_of(SMALL, batch_norm=True, strategy=s), pseudo_label="network"
            ),
            federation,
            2,
        )[-1]
        for s in ("map", strategy)
    ]
    assert_close(*results, rtol=1e-4, atol=1e-5)


def test_a_cohort_without_examples_changes_nothing_but_the_count():
    federation = federation_of([12, 0, 0], 5)
    first, last = rounds_of(
        fedavg(
            training=training_of(
                SMALL,
                batch_norm=True,
                aggregate=aggregate.server_optimizer(optax.sgd(0.1, momentum=0.9)),
            )
        ),
        federation,
        1,
        cohorts=[[1, 2]],
    )
    assert_same(last.model, first.model)
    assert_same(last.optimizer, first.optimizer)
    assert last.round == 1


@pytest.mark.parametrize(("weighting", "share"), [("uniform", 1), ("cohort", 1 / 3)])
@pytest.mark.sample(1)
def test_clients_with_nothing_to_train_on_are_left_out_or_hold_the_mean_back(weighting, share):
    """One of three has labels, one unlabeled examples only, one nothing at all; a fourth row is padding."""
    full = federation_of([12, 12, 0])
    nothing = full.partition.labeled[2]
    partition = Partition(
        (full.partition.labeled[0], nothing, nothing),
        (nothing, full.partition.labeled[1], nothing),
        full.partition.new,
    )
    federation = dataclasses.replace(full, partition=partition)
    algorithm = fedavg(
        training=training_of(
            SMALL, weighting=aggregate.WEIGHTINGS[weighting], clients_multiple=4, batch_norm=True
        )
    )
    start = algorithm.init(KEY, federation)
    alone, expected = algorithm.round(start, federation.cohort([0]), KEY)
    together, metrics = algorithm.round(start, federation.cohort(), KEY)
    moved = jax.tree.map(jnp.subtract, alone.model, start.model)
    assert optax.tree.norm(moved) > 0.01
    assert_close(
        together.model, jax.tree.map(lambda w, d: w + share * d, start.model, moved), atol=1e-6
    )
    assert metrics["clients"] == expected["clients"] == 1
    assert float(metrics["train_loss"]) == pytest.approx(float(expected["train_loss"]))


def test_statistics_averaged_local_and_static():
    federation = federation_of([16, 16, 16, 16])
    batches = Batches("joint", 16, 1)

    def played(kind):
        training = training_of(
            batches, batch_norm=True, batch_statistics=kind, weighting=aggregate.uniformly
        )
        return rounds_of(fedavg(training=training), federation, 2, cohorts=[[0, 1], [0, 2]])

    averaged, local, static = played("averaged"), played("local"), played("static")
    x = federation.x.reshape(-1, 4)[:64].reshape(4, 16, 4)

    def hidden(model, client):
        kernel, bias = (np.asarray(model["first"][name][...]) for name in ("kernel", "bias"))
        return x[client] @ kernel + bias

    # One full batch a round: the batch's statistics are those of the client under the model it gets.
    moved = [0.1 * hidden(averaged[0].model, k).mean(axis=0) for k in (0, 1)]
    np.testing.assert_allclose(
        averaged[1].model["norm"]["mean"][...], np.mean(moved, axis=0), atol=1e-5
    )
    own = local[2].statistics["norm"]["mean"][...]
    first = [0.1 * hidden(local[0].model, k).mean(axis=0) for k in range(4)]
    second = [0.1 * hidden(local[1].model, k).mean(axis=0) for k in range(4)]
    expected = [0.9 * first[0] + second[0], first[1], second[2], np.zeros(8)]
    np.testing.assert_allclose(own, expected, atol=1e-5)
    measured = [hidden(static[2].model, k) for k in (0, 2)]
    norm = static[2].model["norm"]
    np.testing.assert_allclose(
        norm["mean"][...], np.mean([h.mean(axis=0) for h in measured], axis=0), atol=1e-5
    )
    np.testing.assert_allclose(
        norm["var"][...], np.mean([h.var(axis=0) for h in measured], axis=0), atol=1e-5
    )
    # What statistics become is no matter to the parameters.
    for other in (local, static):
        assert_close(other[2].model["last"], averaged[2].model["last"])


def test_stages_and_the_teacher():
    federation = federation_of([20, 20], 5)
    labeled = rounds_of(small(fedavg, 2), federation, 3)
    network = rounds_of(small(fedavg, 2, pseudo_label="network"), federation, 3)
    sem = rounds_of(small(fedsem, 2), federation, 4)
    assert_same(network[2].model, labeled[2].model)
    assert not np.array_equal(
        network[3].model["last"]["kernel"][...], labeled[3].model["last"]["kernel"][...]
    )
    assert_same(sem[3].model, network[3].model)  # the teacher is the model itself for one round
    assert_same(sem[4].teacher.model, sem[2].model)


@pytest.mark.slow
def test_very_unequal_cohorts_share_their_programs():
    """A client of 200 beside clients of 1, 3 and none: nothing is compiled after the first rounds."""
    federation = federation_of([200, 3, 1, 0, 40, 7], 2)
    training = training_of(SMALL, labeled_only_rounds=1)
    embed = pseudo_label.embedding(training.model, training.execution.map_clients)
    settings = xclp.Parameters(num_classes=3, num_bits=64, num_neighbors=2)
    source = propagated_labels.XclpLabels(all_examples(embed), settings)
    algorithm = fedavg(training=with_sources(training, xclp=source), pseudo_label="xclp")
    state, counts = algorithm.init(KEY, federation), []
    for number, clients in enumerate([[0, 4], [1, 2], [0, 1], [3, 5], [2, 3], [4, 0]]):
        before = num_compilations()
        cohort = federation.cohort(clients)
        state, _ = algorithm.round(state, cohort, jax.random.fold_in(KEY, number))
        counts.append(num_compilations() - before)
    assert counts[0] > 0  # stage 1
    assert counts[1] > 0  # stage 2
    assert counts[2:] == [0, 0, 0, 0]


def test_rates_count_anew_in_stage_2():
    federation = federation_of([20, 20], 5)
    algorithm = small(fedavg, 2, pseudo_label="network")
    state, rates = algorithm.init(KEY, federation), []
    for number in range(4):
        state, metrics = algorithm.round(
            state, federation.cohort(), jax.random.fold_in(KEY, number)
        )
        rates.append(float(metrics["learning_rate"]))
    assert rates == pytest.approx([RATE, RATE / 2, RATE, RATE / 2])


def test_bytes_on_the_wire():
    federation = federation_of([20, 20, 20], 5)
    parameters = 4 * (4 * 8 + 8 + 8 * 3 + 3)
    for make, factor in ((fedavg, 1), (scaffold, 2)):
        algorithm = small(make)
        state = algorithm.init(KEY, federation)
        _, metrics = algorithm.round(state, federation.cohort([0, 2]), KEY)
        assert metrics["communication"]["upload_bytes"] == 2 * factor * parameters
        assert metrics["communication"]["download_bytes"] == 2 * factor * parameters


def test_the_teacher_reaches_a_client_once():
    """Two clients a round, one round of stage 1; in the first of stage 2 teacher and model are one."""
    federation = federation_of([20, 20, 20, 20], 5)
    algorithm = fedsem(training=training_of(SMALL, labeled_only_rounds=1, batch_norm=True))
    state = algorithm.init(KEY, federation)
    model = 4 * (4 * 8 + 8 + 8 * 3 + 3 + 4 * 8)  # BatchNorm has 8 scales, offsets, means, variances
    sent = []
    for number, clients in enumerate([[0, 3], [0, 1], [1, 2], [0, 2], [3, 0], [2, 3]]):
        state, metrics = algorithm.round(
            state, federation.cohort(clients), jax.random.fold_in(KEY, number)
        )
        communication = metrics["communication"]
        sent.append(communication["download"].get("teacher", 0) / model)
        assert communication["download_bytes"] == (2 + sent[-1]) * model
        assert communication["upload_bytes"] == 2 * model
    assert sent == [0, 0, 1, 0, 1, 0]


def test_validation_and_test_are_apart():
    federation = federation_of([40])
    algorithm = fedavg(training=training_of(Batches("joint", 40, 1)))
    state = algorithm.init(KEY, federation)
    model = from_module(partial(Net, batch_norm=False))
    predicted = np.asarray(model.apply(state.model, federation.x)).argmax(axis=1)
    for judge, points in (
        (algorithm.validate, federation.validation),
        (algorithm.evaluate, federation.test),
    ):
        (name, accuracy), *_ = judge(state, federation).items()
        assert accuracy == np.mean(predicted[points] == federation.y[points])
        assert name in ("validation_accuracy", "test_accuracy")


def test_mistakes_are_named():
    training = training_of(SMALL)
    with pytest.raises(UsageError, match=r"pseudo_label='xclpp'.*'none'"):
        fedavg(training=training, pseudo_label="xclpp")
    with pytest.raises(UsageError, match=r"fedprox.mu=-1"):
        fedprox(training=training, mu=-1)
    with pytest.raises(UsageError, match=r"fixmatch.threshold=2"):
        fixmatch(training=training, threshold=2)
    federation = federation_of([20])
    part = federation.partition._replace(new=federation.partition.labeled)
    with pytest.raises(UsageError, match=r"federation.test='central'"):
        fedavg(training=training).init(KEY, dataclasses.replace(federation, partition=part))


def test_client_states_are_gathered_and_scattered_by_id():
    states = {"c": jnp.arange(5.0)[:, None] * jnp.ones((1, 2))}
    ids = np.array([3, -1, 0], np.int32)
    np.testing.assert_array_equal(gather(states, ids)["c"][:, 0], [3, 0, 0])
    updated = scatter(states, ids, {"c": jnp.full((3, 2), 9.0)})
    np.testing.assert_array_equal(updated["c"][:, 0], [9, 1, 2, 9, 4])


def test_what_cores_have_trained_is_on_one_device():
    """All that follows a round would be done by every core alike."""
    federation = federation_of([4, 3])
    training = training_of(Batches("joint", 4, 1), strategy="shard_map")
    after = rounds_of(fedavg(training=training), federation, 1)[-1]
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(after)} == {1}
    plain = training_of(Batches("joint", 4, 1))
    alone = rounds_of(fedavg(training=plain), federation, 1)[-1]
    assert_close(after, alone)
