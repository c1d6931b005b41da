"""DP-FedAvg of clients and of records: rounds by hand, what noise is, what is accounted."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from float64_training import affine
from small_round_checks import check_rounds
from small_training import KEY, RATE, assert_close, assert_same, federation_of, training_of

from jaxfed.algorithms.dp_fedavg import dp_fedavg
from jaxfed.algorithms.dp_fedavg_records import dp_fedavg_records
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.errors import UsageError
from jaxfed.experiment.run.simulate import simulate
from jaxfed.federation.sampling import Sampling, participation, sample_clients
from jaxfed.models.mlp import mlp
from jaxfed.privacy.sampled_gaussian import (
    EVERYTHING,
    Poisson,
    WithoutReplacement,
    epsilon_of,
)
from jaxfed.training import aggregate, privacy_budget
from jaxfed.training.clipped_mean import clipped_mean
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.round import server_optimizer

LINEAR = mlp((4,), 3, hidden=())
ALL_AT_ONCE = Batches("joint", 20, 1, steps=3)
FEDERATION = federation_of([12, 7, 0, 20])
METHODS = {"clients": dp_fedavg, "records": dp_fedavg_records}


LOUD = {"clip": 0.3, "noise_multiplier": 2.0}
QUIET = {"clip": 0.3, "noise_multiplier": 0.0}


def training(batches=ALL_AT_ONCE, **changes):
    """Cohorts are padded to four clients, so that they share programs."""
    given = {"model": LINEAR, "clients_multiple": 4}
    return training_of(batches, **given | changes)


@cache
def of_clients(**settings):
    """DP-FedAvg of clients, compiled once for several tests."""
    return dp_fedavg(training=training(), **settings)


def gradients(w, x, y):
    """Of the cross-entropy at each example, [n, 5, 3]."""
    x = np.hstack([x, np.ones((len(x), 1))])
    p = np.exp(x @ w)
    return x[:, :, None] * (p / p.sum(axis=1, keepdims=True) - np.eye(3)[y])[:, None]


def clipped(changes, most):
    norms = np.sqrt(np.sum(np.square(changes), axis=(-2, -1)))
    return changes * np.minimum(1, most / np.maximum(norms, 1e-30))[..., None, None], norms


def rounds_of(algorithm, number=1, cohorts=None, federation=FEDERATION, key=KEY):
    state, told = algorithm.init(key, federation), []
    for index in range(number):
        cohort = federation.cohort(cohorts[index] if cohorts else None)
        state, metrics = algorithm.round(state, cohort, jax.random.fold_in(KEY, index))
        told.append(metrics)
    return state, told


def owned(client, federation=FEDERATION):
    points = federation.points(client)
    return federation.x[points].astype(np.float64), federation.y[points]


def test_a_round_of_clients_by_hand():
    algorithm = of_clients(**QUIET)
    before = affine(algorithm.init(KEY, FEDERATION).model)
    changes = []
    for client in range(4):
        w, (x, y) = before, owned(client)
        for _ in range(3 * bool(len(y))):
            w = w - RATE * gradients(w, x, y).mean(axis=0)
        changes.append(w - before)
    short, norms = clipped(np.stack(changes), 0.3)
    assert 0 < np.sum(norms > 0.3) < 4  # some are cut, some are not
    state, [metrics] = rounds_of(algorithm)
    assert_close(affine(state.model), before + short.mean(axis=0), rtol=1e-4, atol=1e-5)
    assert float(metrics["update_norm"]) == pytest.approx(np.median(norms), rel=1e-4)
    assert float(metrics["clipped"]) == np.mean(norms > 0.3)
    assert not [name for name in metrics if "epsilon" in name]


def test_rounds_of_records_by_hand():
    """All of them drawn: who is, is another test's matter. The mean is plain."""
    settings = {"clip": 1.5, "share": 1.0, "noise_multiplier": 0.0}
    given = training(optimizer=partial(optax.sgd, momentum=0.5))
    algorithm = dp_fedavg_records(training=given, **settings)
    found, cut = affine(algorithm.init(KEY, FEDERATION).model), []
    for number in range(2):
        models = []
        for client in (0, 1, 3):
            w, velocity, (x, y) = found, 0, owned(client)
            for _ in range(3):
                short, norms = clipped(gradients(w, x, y), 1.5)
                cut.append(np.mean(norms > 1.5))
                velocity = 0.5 * velocity + short.mean(axis=0)
                w = w - RATE / (1 + number) * velocity
            models.append(w)
        found = np.mean(models, axis=0)
    assert 0.1 < np.mean(cut) < 0.9
    state, _ = rounds_of(algorithm, 2)
    assert_close(affine(state.model), found, rtol=1e-4, atol=1e-5)


def test_without_noise_and_bound_clients_make_fedavg_to_the_bit():
    given = training(Batches("joint", 4, 2))
    # Clients without examples count here, with the model that they received.
    plain = fedavg(training=given.with_server(weighting=aggregate.over_cohort))
    private = dp_fedavg(training=given, clip=1e30, noise_multiplier=0.0)
    states = [rounds_of(algorithm, 2)[0].model for algorithm in (plain, private)]
    assert_same(*states)


def test_noise_of_clients_has_its_deviation():
    """z S / K on every number, of another draw in every round and from every key."""
    state = LINEAR.init(KEY)
    deltas = jax.tree.map(lambda leaf: jnp.zeros((5, *leaf.shape)), state)
    weights = jnp.array([1.0, 1, 0, 1, 1])
    mean = clipped_mean(server_optimizer(optax.sgd(1.0)), clip=2.0, noise_multiplier=1.5)

    def change(key, number):
        start = mean.init(state, KEY)._replace(key=key, round=number)
        return jax.tree.map(jnp.subtract, mean.apply(state, deltas, weights, start)[0], state)

    keys = jax.random.split(KEY, 200)
    changes = jax.jit(jax.vmap(change, (0, None)))
    first, second = (changes(keys, jnp.int32(n)) for n in (0, 1))
    values = np.concatenate([affine(first).ravel(), affine(second).ravel()])
    assert values.std() == pytest.approx(1.5 * 2 / 4, rel=0.04)  # of 6,000: one percent is usual
    assert abs(values.mean()) < 0.04
    assert abs(np.corrcoef(*np.split(values, 2))[0, 1]) < 0.06
    kernel, bias = affine(first)[:, 0].ravel(), affine(first)[:, 4].ravel()
    assert abs(np.corrcoef(kernel, bias)[0, 1]) < 0.2


def test_the_seed_makes_the_noise(tmp_path):
    loud, quiet = of_clients(**LOUD), of_clients(**QUIET)
    check_rounds(loud, FEDERATION, [None] * 3, tmp_path)
    models = [rounds_of(made)[0].model for made in (loud, loud, quiet)]
    assert_same(models[0], models[1])
    noise = affine(models[0]) - affine(models[2])
    assert noise.std() == pytest.approx(2 * 0.3 / 4, rel=0.6)
    keys = [
        jax.random.key_data(loud.init(key, FEDERATION).optimizer.key)
        for key in (KEY, jax.random.key(1))
    ]
    assert not np.array_equal(*keys)


@pytest.mark.parametrize("level", METHODS)
def test_epsilon_is_of_who_took_part_most_often(level):
    algorithm = METHODS[level](training=training(), delta=1e-4, **LOUD)
    cohorts = [[0, 2], [1, 3], [0, 1], [2, 3], [1, 2]]
    state, told = rounds_of(algorithm, 5, cohorts)
    most = [1, 1, 2, 2, 3]  # client 1; client 2, as often, has no records
    draw, steps = (EVERYTHING, 1) if level == "clients" else (Poisson(0.2), 3)
    expected = [epsilon_of(1e-4, 2.0, steps * rounds, draw) for rounds in most]
    assert [metrics["epsilon"] for metrics in told] == expected
    assert "epsilon_sampled" not in told[0]  # nobody said that clients are drawn
    np.testing.assert_array_equal(state.clients, [2, 3, 3 if level == "clients" else 0, 2])


def test_clients_that_are_drawn_have_an_epsilon_of_it():
    who = participation(Sampling(2), FEDERATION, seed=3, rounds=10)
    assert who.is_drawn
    algorithm = dp_fedavg(training=training(), participation=who, **LOUD)
    _, told = rounds_of(algorithm, 2, [[0, 1], [0, 2]])
    for number, metrics in enumerate(told, start=1):
        assert metrics["epsilon_sampled"] == epsilon_of(1e-5, 2.0, number, WithoutReplacement(2, 4))


@pytest.mark.parametrize(
    ("config", "is_drawn"),
    [
        (Sampling(0), False),
        (Sampling(4), False),
        (Sampling(2), True),
        (Sampling(2, "groups"), False),
        (Sampling(3, "proportional"), False),
    ],
)
def test_who_takes_part_most_often_is_who_will(config, is_drawn):
    who = participation(config, FEDERATION, seed=5, rounds=7)
    counts = np.zeros(4, int)
    for number in range(1, 8):
        counts[sample_clients(config, FEDERATION, 5, number, needs_labels=True)] += 1
    assert who.most_rounds() == counts.max()
    assert who.is_drawn == is_drawn


def test_a_budget_is_spent_with_the_last_round():
    config, rounds = Sampling(2), 4
    who = participation(config, FEDERATION, seed=2, rounds=rounds)
    cohorts = [sample_clients(config, FEDERATION, 2, number) for number in range(1, rounds + 1)]
    algorithm = dp_fedavg(training=training(), participation=who, target_epsilon=3.0)
    _, told = rounds_of(algorithm, rounds, cohorts)
    epsilons = [metrics["epsilon"] for metrics in told]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[-1]
    assert 2.9 < epsilons[-1] <= 3


def test_a_budget_of_records_is_spent_by_all_steps(monkeypatch):
    """The noise that it takes is `noise_multiplier_of`'s matter."""
    who, asked = participation(Sampling(2), FEDERATION, seed=2, rounds=4), []

    def found(*question):
        asked.append(question)
        return 2.0

    monkeypatch.setattr(privacy_budget, "noise_multiplier_of", found)
    algorithm = dp_fedavg_records(
        training=training(),
        participation=who,
        clip=0.3,
        target_epsilon=3.0,
    )
    _, [metrics] = rounds_of(algorithm, cohorts=[[0, 1]])
    assert asked == [(3.0, 1e-5, 3 * who.most_rounds(), Poisson(0.2))]
    assert metrics["epsilon"] == epsilon_of(1e-5, 2.0, 3, Poisson(0.2))


@pytest.mark.parametrize("level", METHODS)
@pytest.mark.parametrize(
    ("told", "played", "named"),
    [
        (
            (Sampling(1), 2, 0),
            {"rounds": 2},
            "cohort_size=1, but the run has cohort_size=4",
        ),
        (
            (Sampling(2), 2, 0),
            {"rounds": 2, "cohort_size": 2, "sampling": "proportional"},
            "sampling='uniform', but the run has sampling='proportional'",
        ),
        (
            (Sampling(), 2, 0),
            {"rounds": 2, "cohort_size": 3},
            "cohort_size=4, but .* cohort_size=3",
        ),
        (
            (Sampling(), 2, 3.0),
            {"rounds": 8},
            "allows 2 rounds of a client, but one takes part in 8",
        ),
    ],
)
def test_a_run_of_other_cohorts_or_more_rounds_is_refused(level, told, played, named):
    """Before its first round; epsilon would be that of other clients or fewer rounds."""
    sampling, rounds, target = told
    who = participation(sampling, FEDERATION, seed=0, rounds=rounds)
    algorithm = METHODS[level](
        training=training(), participation=who, clip=0.3, target_epsilon=target
    )
    with pytest.raises(UsageError, match=f"^participation: .*{named}"):
        simulate(algorithm, FEDERATION, **played)
    if (
        who.is_drawn or target
    ):  # rounds by hand are refused as well; nobody knows how others are drawn
        with pytest.raises(UsageError, match=r"^participation: "):
            rounds_of(algorithm, played["rounds"])


@pytest.mark.parametrize("level", METHODS)
def test_what_epsilon_depends_on_stands_beside_it(level):
    who = participation(Sampling(), FEDERATION, seed=0, rounds=2)
    algorithm = METHODS[level](
        training=training(), participation=who, clip=0.3, target_epsilon=5.0, delta=1e-4
    )
    told = simulate(algorithm, FEDERATION, rounds=2).records[-1]
    assert (told["delta"], told["clip"]) == (1e-4, 0.3)
    assert told["sampling_rate"] == (1.0 if level == "clients" else 0.2)
    draw, releases = (EVERYTHING, 2) if level == "clients" else (Poisson(0.2), 6)
    assert told["epsilon"] == epsilon_of(1e-4, told["noise_multiplier"], releases, draw)
    assert 4.8 < told["epsilon"] <= 5
