"""DP-FedAvg of clients and of records: rounds by hand, what noise is, what is accounted, who is drawn."""

from functools import cache, partial
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from float64_training import affine, log_softmax
from on_demand import on_demand
from small_round_checks import check_rounds
from small_training import KEY, RATE, assert_close, federation_of, training_of

from jaxfed.algorithms.dp_fedavg import dp_fedavg
from jaxfed.algorithms.dp_fedavg_records import dp_fedavg_records, drawn_examples, private_gradient
from jaxfed.errors import UsageError
from jaxfed.experiment.run.simulate import simulate
from jaxfed.federation.rounds import Sampling, participation, sample_clients
from jaxfed.models.mlp import mlp
from jaxfed.privacy.composition import EVERYTHING, Poisson, WithoutReplacement, epsilon_of
from jaxfed.training.aggregate import clipped_mean
from jaxfed.training.local.batches import Batches, ClientData
from jaxfed.training.local.losses import weighted_loss
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


def test_noise_of_clients_has_its_deviation():
    """z S / K on every number, of another draw in every round and from every key."""
    state = LINEAR.init(KEY)
    deltas = jax.tree.map(lambda leaf: jnp.zeros((5, *leaf.shape)), state)
    weights = jnp.array([1.0, 1, 0, 1, 1])
    mean = clipped_mean(server_optimizer(optax.sgd(1.0)), clip=2.0, noise_multiplier=1.5)

    def change(key, number):
        start = mean.init(state, KEY)._replace(key=key, round=number)
        return jax.tree.map(jnp.subtract, mean.apply(state, deltas, weights, start)[0], state)

    far = jax.tree.map(lambda leaf: leaf.at[1:4].set(9.0), deltas)
    few = weights * jnp.array([1.0, 0, 0, 0, 1])
    assert mean.apply(state, far, few, mean.init(state, KEY))[1].norm == 0  # of those that count
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
    with_noise, without = (affine(rounds_of(made)[0].model) for made in (loud, quiet))
    noise = with_noise - without
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
    cohorts = [who.clients_of(number) for number in (1, 2)]
    _, told = rounds_of(algorithm, 2, cohorts)
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
    cohorts = [who.clients_of(number) for number in range(1, rounds + 1)]
    algorithm = dp_fedavg(training=training(), participation=who, target_epsilon=3.0)
    _, told = rounds_of(algorithm, rounds, cohorts)
    epsilons = [metrics["epsilon"] for metrics in told]
    assert 2.9 < epsilons[-1] <= 3


@pytest.mark.parametrize(
    ("told", "played", "named"),
    [
        ((Sampling(1), 2, 0), {"rounds": 2}, "cohort_size=1, but the run has cohort_size=4"),
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
            (Sampling(), 2, 5.0),
            {"rounds": 8},
            "allows 2 rounds of a client, but one takes part in 8",
        ),
    ],
)
def test_a_run_of_other_cohorts_or_more_rounds_is_refused(told, played, named):
    """Before its first round; epsilon would be that of other clients or fewer rounds."""
    sampling, rounds, target = told
    who = participation(sampling, FEDERATION, seed=0, rounds=rounds)
    algorithm = dp_fedavg(
        training=training(), participation=who, clip=0.3, target_epsilon=target, delta=1e-4
    )
    with pytest.raises(UsageError, match=f"^participation: .*{named}"):
        simulate(algorithm, FEDERATION, **played)
    if who.is_drawn or target:
        # The round itself refuses, whatever replaces it and whoever calls it.
        replaced = algorithm._replace(round=lambda *arguments: algorithm.round(*arguments))
        with pytest.raises(UsageError, match=r"^participation: "):
            simulate(replaced, FEDERATION, **played)


def test_clients_that_are_not_drawn_are_refused_in_their_round():
    """Of a run by another seed, and of a round that is repeated or left out."""
    who = participation(Sampling(2), FEDERATION, seed=3, rounds=2)
    first, second = map(who.clients_of, (1, 2))
    assert first != second
    algorithm = dp_fedavg(training=training(), participation=who, **LOUD)
    rounds_of(algorithm, 2, [first[::-1], second])  # in any order
    for cohorts in ([second], [first, first], [[first[0]] * 2]):
        with pytest.raises(UsageError, match=r"^participation: round \d is of other clients than"):
            rounds_of(algorithm, len(cohorts), cohorts)


@pytest.mark.parametrize("level", on_demand(METHODS, at_once=["clients"]))
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


SHARE, CLIP = 0.3, 0.7


def client(number, padding=0, features=4, fill=7.0):
    """Every fifth example has no label, and is never drawn."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((number, features)).astype(np.float32)
    y = rng.integers(0, 3, number).astype(np.int32)
    y[::5] = -1
    mask = np.arange(number + padding) < number
    x = np.pad(x, [(0, padding), (0, 0)], constant_values=fill)
    y = np.pad(y, (0, padding), constant_values=2)
    return ClientData(*map(jnp.asarray, (x, y, np.ones(len(y), np.float32), y >= 0, mask)))


def drawn(data, steps=400):
    plan = drawn_examples(data, KEY, share=SHARE, steps=steps)
    index, used = jax.vmap(plan.rows)(jnp.arange(steps))
    members = np.zeros(index.shape, bool)
    np.put_along_axis(members, np.asarray(index), np.asarray(used), axis=1)
    assert (np.sort(index, axis=1) == np.arange(index.shape[1])).all()
    return plan, members


def test_draws_are_of_the_share_and_of_nothing_else():
    data = client(50)
    plan, members = drawn(data)
    assert int(plan.num_steps) == 400
    can = np.asarray(data.label) >= 0
    assert not members[:, ~can].any()
    sizes = members.sum(axis=1)
    assert sizes.mean() == pytest.approx(12, abs=0.6)  # of 40
    assert sizes.var() == pytest.approx(40 * 0.3 * 0.7, rel=0.3)
    often = members[:, can].mean(axis=0)  # of each example: deviation 0.023
    assert np.abs(often - 0.3).max() < 0.1
    pairs = np.cov(members[:, can].astype(float), rowvar=False)
    off = pairs[~np.eye(40, dtype=bool)].mean() / pairs.diagonal().mean()
    assert off == pytest.approx(0, abs=0.01)
    assert len({row.tobytes() for row in members}) > 390


def test_padding_is_never_drawn_and_draws_nobody_else():
    _, members = drawn(client(20), steps=30)
    _, padded = drawn(client(20, padding=9), steps=30)
    np.testing.assert_array_equal(padded[:, :20], members)
    assert not padded[:, 20:].any()


def test_a_client_without_labels_takes_no_step():
    nobody = client(20)._replace(label=jnp.full(20, -1))
    assert int(drawn_examples(nobody, KEY, share=0.3, steps=9).num_steps) == 0


def gradient_at(data, *, noise=0.0, chunk=3, features=4, model=None, loss=None):
    model = model or mlp((features,), 3, hidden=())
    state = model.init(KEY)
    plan = drawn_examples(data, KEY, share=SHARE, steps=5)
    made = private_gradient(clip=CLIP, noise_multiplier=noise, share=SHARE, chunk=chunk)
    gradient_of = made(loss or weighted_loss(model), anchor=state, data=data, plan=plan, key=KEY)
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)
    return state, plan, lambda step: gradient_of(parameters, statistics, step)


@pytest.mark.parametrize("padding", [0, 11])
def test_the_mean_is_of_clipped_gradients_over_what_is_expected(padding):
    data = client(22, padding)
    state, plan, gradient_of = gradient_at(data)
    w = affine(state)
    index, used = map(np.asarray, plan.rows(jnp.int32(2)))
    rows = index[used]
    x, y = np.asarray(data.x, np.float64)[rows], np.asarray(data.label)[rows]
    short, norms = clipped(gradients(w, x, y), CLIP)
    assert (norms > CLIP).any()
    assert len(rows) > 3  # more than a chunk
    value, _, gradient = gradient_of(jnp.int32(2))
    expected = short.sum(axis=0) / (0.3 * 17)
    np.testing.assert_allclose(affine(gradient), expected, rtol=1e-4, atol=1e-6)
    log_p = log_softmax(x @ w[:4] + w[4])
    assert float(value) == pytest.approx(-log_p[np.arange(len(y)), y].mean(), rel=1e-4)


def test_noise_has_its_deviation_though_nobody_is_drawn():
    """z C over the expected number, not over the drawn one; the same client draws other noise each step."""
    model = mlp((400,), 3, hidden=())
    data = client(3, features=400)  # two labels
    _, plan, gradient_of = gradient_at(data, noise=2.0, features=400, model=model)
    _, _, quiet = gradient_at(data, features=400, model=model)
    empty = [s for s in range(40) if not np.asarray(plan.rows(jnp.int32(s))[1]).any()][:2]
    noises = []
    for step in map(jnp.int32, empty):
        loss, _, gradient = quiet(step)
        assert float(loss) == 0  # the mean loss of nobody
        noises.append((affine(gradient_of(step)[2]) - affine(gradient)).ravel())
        assert noises[-1].std() == pytest.approx(2.0 * CLIP / (SHARE * 2), rel=0.08)
        assert abs(noises[-1].mean()) < 0.3
    assert abs(np.corrcoef(*noises)[0, 1]) < 0.15


def test_noise_draws_from_no_key_of_a_loss(monkeypatch):
    """The loss at row i has `fold_in` of the step's key and i; `split` of that key would make the same."""
    keys = {"loss": set(), "noise": set()}

    def record(kind, key):
        def note(data):
            keys[kind].add(tuple(map(int, data)))

        jax.debug.callback(note, jax.random.key_data(key))

    def noisy(tree, key, deviation):
        for own in (key, *jax.random.split(key, 2)):
            record("noise", own)
        return tree

    def loss(state, anchor, batch, key):
        record("loss", key)
        return weighted_loss(model)(state, anchor, batch, key)

    monkeypatch.setattr(import_module(private_gradient.__module__), "noisy", noisy)
    model = mlp((4,), 3, hidden=())
    gradient_at(client(9), noise=1.0, chunk=9, model=model, loss=loss)[2](jnp.int32(0))
    jax.effects_barrier()
    assert (len(keys["noise"]), len(keys["loss"])) == (3, 9)
    assert not keys["noise"] & keys["loss"]


def test_gradients_of_a_chunk_alone_are_in_memory():
    data = client(64, features=3000)
    results, temporary = [], []
    for chunk in (2, 64):
        _, _, gradient_of = gradient_at(data, chunk=chunk, features=3000)
        compiled = jax.jit(partial(lambda f, step: f(step)[2], gradient_of)).lower(jnp.int32(1))
        program = compiled.compile()
        results.append(program(jnp.int32(1)))
        temporary.append(program.memory_analysis().temp_size_in_bytes)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)
    model = 3000 * 3 * 4
    assert temporary[0] < 12 * model  # two gradients, and what they are made of
    assert temporary[1] > 60 * model
